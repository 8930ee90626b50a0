#!/usr/bin/env bash
# clippy on every target and feature, on the default features alone, and on the loom models; then the
# floors of the crate.
set -euo pipefail
cd "$(dirname "$0")/.."
unset RUSTFLAGS

cargo clippy --all-targets --all-features -- -D warnings
cargo clippy --lib -- -D warnings
cargo clippy --config "build.rustflags=['--cfg','loom']" --target-dir target/loom \
    --lib --profile test -- -D warnings
ci/floors.sh
