#!/usr/bin/env bash
# The proofs on a simulated storage: every byte of a store is flipped, every file cut, every storage
# call fails, and power is lost after every one, with every choice, or a sample, of what has reached
# the disk. With `--slice` a part of it is done, in less than a minute. Other arguments go to the
# test target: `--seed 7`, or what a failure says to repeat it.
set -euo pipefail
cd "$(dirname "$0")/.."
unset RUSTFLAGS

arguments=(--full "$@")
if [ "${1:-}" = --slice ]; then
    arguments=("${@:2}")
fi
said=$(mktemp)
trap 'rm -f "$said"' EXIT
cargo test --release --test power_fail -- "${arguments[@]}" | tee "$said"
printf '\n'
grep -E '^[0-9]+ (faults|.* failures)|^--seed' "$said" | sort -u
