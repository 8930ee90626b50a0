#!/usr/bin/env bash
# Everything at once for ten minutes, or for as many seconds as the argument says: nothing grows, no
# message is missed or repeated.
set -euo pipefail
cd "$(dirname "$0")/.."
unset RUSTFLAGS

cargo test --test soak -- --seconds "${1:-600}"
