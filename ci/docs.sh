#!/usr/bin/env bash
# The documentation builds without a warning.
set -euo pipefail
cd "$(dirname "$0")/.."
unset RUSTFLAGS

RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --all-features
