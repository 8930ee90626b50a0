#!/usr/bin/env bash
# The long tests of groups, twenty seconds each: members join and leave under load, with and without
# failures, and order under fire. With "all" also a thousand closes, which takes minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
unset RUSTFLAGS

tests=(long_storm order_under_fire_for_twenty)
[ "${1:-}" = all ] && tests+=(a_thousand_times)
cargo test --test it -- --ignored --nocapture "${tests[@]}"
