#!/usr/bin/env bash
# Builds the fuzz targets and runs each of them, which must find nothing.
#
#   ci/fuzz.sh [SECONDS [TARGET ...]]       default: 60 seconds for each target in fuzz/fuzz_targets
#
# Any toolchain will do: the coverage that libFuzzer steers by is a pass of LLVM. What is found is
# left in fuzz/artifacts/<target>; it belongs into tests/fuzz-corpus/<target>, which `cargo test`
# runs, together with the fix. fuzz/corpus grows from run to run and is not part of the repository.
set -euo pipefail
cd "$(dirname "$0")/../fuzz"
seconds=${1:-60}
[ $# -eq 0 ] || shift
[ $# -gt 0 ] || set -- $(cd fuzz_targets && ls | sed 's/\.rs$//')

host=$(rustc -vV | sed -n 's/^host: //p')
coverage="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4"
coverage+=" -Cllvm-args=-sanitizer-coverage-inline-8bit-counters"
coverage+=" -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares"
export RUSTFLAGS="--cfg fuzzing $coverage -Ccodegen-units=1"
# With a target named, build scripts and macros are built without the flags.
cargo build --quiet --release --target "$host"
built=${CARGO_TARGET_DIR:-target}/$host/release

# Directories are made and removed all the time.
[ ! -d /dev/shm ] || export TMPDIR=/dev/shm
for target in "$@"; do
    mkdir -p "corpus/$target" "artifacts/$target"
    echo "== $target: $seconds seconds =="
    log=artifacts/$target.log
    if ! "$built/$target" -max_total_time="$seconds" -timeout=30 -rss_limit_mb=2048 -max_len=2048 \
        -print_final_stats=1 -artifact_prefix="artifacts/$target/" \
        "corpus/$target" "../tests/fuzz-corpus/$target" > "$log" 2>&1; then
        tail -n 60 "$log"
        echo "fuzz: $target has found something"
        exit 1
    fi
    grep -E '^(Done|stat::number|stat::average|stat::new|stat::slowest)' "$log"
done
echo "fuzz: $# targets, no finding"
