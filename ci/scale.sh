#!/usr/bin/env bash
# What very many queues, topics and messages cost, with the numbers that the README names: 100 000
# queues, 5 000 topics with 256 descriptors, 10 million messages, 1 million delays. An optimised build; the directory
# for the messages (TMPDIR) needs 2 GiB.
set -euo pipefail
cd "$(dirname "$0")/.."
unset RUSTFLAGS

cargo test --release --test scale -- --queues 100000 --messages 10000000 --delays 1000000
