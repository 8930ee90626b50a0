#!/usr/bin/env bash
# Kills a working store again and again and checks after each kill what it had acknowledged: rounds as
# told, 1 000 without an argument. The output says what was verified.
#
#   ci/kill.sh [rounds [seed]]
set -euo pipefail
cd "$(dirname "$0")/.."
unset RUSTFLAGS

cargo test --test kill -- --rounds "${1:-1000}" ${2:+--seed "$2"}
