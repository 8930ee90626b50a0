#!/usr/bin/env bash
# The benches run and print their table; the short form, whose figures are only roughly right.
set -euo pipefail
cd "$(dirname "$0")/.."
unset RUSTFLAGS

cargo bench -- --quick
