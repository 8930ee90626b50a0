#!/usr/bin/env bash
# Formatting of the package (tests, examples, benches and loom models included) and of the peer benches.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo fmt --check
if [ -f benches/peers/Cargo.toml ]; then
    cargo fmt --check --manifest-path benches/peers/Cargo.toml
fi
