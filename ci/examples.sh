#!/usr/bin/env bash
# The examples run as they stand: each exits with an error if what it counted is off.
set -euo pipefail
cd "$(dirname "$0")/.."
unset RUSTFLAGS

cargo run --release --example quickstart
cargo run --release --example retry_dlq
cargo run --release --example flights
cargo run --release --example orderly
if [ -f ci/flights-kill.sh ]; then
    bash ci/flights-kill.sh
fi
