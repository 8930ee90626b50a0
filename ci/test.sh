#!/usr/bin/env bash
# All tests of the library, doc tests included: the command of the README.
set -euo pipefail
cd "$(dirname "$0")/.."
unset RUSTFLAGS

cargo test
