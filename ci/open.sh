#!/usr/bin/env bash
# How fast a directory opens: after a kill, against a plain checksum of the same bytes; and after a
# clean close, how much of it is read. With --quick on a sixteenth of the volume.
set -euo pipefail
cd "$(dirname "$0")/.."
unset RUSTFLAGS

cargo bench --bench open -- "$@"
