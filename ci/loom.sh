#!/usr/bin/env bash
# Runs the loom models and checks that every file of loom-tests/ had a model that passed.
set -euo pipefail
cd "$(dirname "$0")/.."
unset RUSTFLAGS # would override the alias's --config silently, and no model would run

log=$(mktemp)
trap 'rm -f "$log"' EXIT
cargo loom 2>&1 | tee "$log"

files=0
absent=()
for file in loom-tests/*.rs; do
    model=$(basename "$file" .rs)
    [ "$model" = mod ] && continue
    files=$((files + 1))
    grep -qE "^test loom_tests::$model::.* ok$" "$log" || absent+=("$model")
done
if [ "$files" -eq 0 ] || [ "${#absent[@]}" -gt 0 ]; then
    echo "loom: of $files files in loom-tests, these ran no model: ${absent[*]:-}" >&2
    exit 1
fi
echo "loom: $files files of models, all ran"
