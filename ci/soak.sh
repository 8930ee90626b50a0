#!/usr/bin/env bash
# Everything at once for ten minutes, or for as many seconds as the argument says: nothing grows, no
# message is missed or repeated.
set -euo pipefail
cd "$(dirname "$0")/.."
unset RUSTFLAGS
# The allocator is to return what is freed, and to keep no pool for threads that have ended: what is
# measured is what rocklet holds.
export MALLOC_ARENA_MAX=1 MALLOC_TRIM_THRESHOLD_=131072 MALLOC_MMAP_THRESHOLD_=131072

cargo test --test soak -- --seconds "${1:-600}"
