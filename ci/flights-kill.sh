#!/usr/bin/env bash
# The flights example is killed at ten random points, resumed after each, and must end with the
# totals of a run that nobody killed. Argument: a flights CSV; without it, the bundled sample.
# SEED=n repeats the kill points of an earlier run.
set -euo pipefail
csv=${1:-examples/data/flights-sample.csv}
[ $# -eq 0 ] || csv=$(realpath "$csv")
cd "$(dirname "$0")/.."
unset RUSTFLAGS
kills=10

fail() {
    echo "flights-kill: $*" >&2
    exit 1
}

cargo build --release --example flights
flights=${CARGO_TARGET_DIR:-target}/release/examples/flights
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# The totals, without the line of the repeats.
totals() {
    grep ' sent, ' "$1" || fail "no totals in: $(cat "$1")"
}

"$flights" "$csv" > "$scratch/whole" || fail "without a kill: $(cat "$scratch/whole")"

# Each kill comes after at most a tenth of the rows, so that there are rows left for the next.
rows=$(($(wc -l < "$csv") - 1))
seed=${SEED:-$((RANDOM + 1))}
RANDOM=$seed
echo "flights-kill: $rows rows, SEED=$seed"
for round in $(seq "$kills"); do
    after=$(((RANDOM * 32768 + RANDOM) % (rows / kills) + 1))
    status=0
    # A shell of its own, because the shell reports the kill on its standard error.
    bash -c '"$@"; exit $?' - "$flights" "$csv" --dir "$scratch/dir" --kill-after "$after" \
        > "$scratch/round" 2> "$scratch/errors" || status=$?
    [ "$status" -eq 137 ] || fail "round $round, kill after $after rows: exit status $status, not \
137: $(cat "$scratch/round" "$scratch/errors")"
    echo "flights-kill: round $round: $(head -n 1 "$scratch/round"), killed after $after"
done

"$flights" "$csv" --dir "$scratch/dir" > "$scratch/resumed" || fail "resumed: $(cat "$scratch/resumed")"
cat "$scratch/resumed"
[ "$(totals "$scratch/whole")" = "$(totals "$scratch/resumed")" ] ||
    fail "other totals than without a kill: $(cat "$scratch/whole")"

# The checks can fail: the same directory does not pass for a file that differs in one character.
sed '$ s/.$/?/' "$csv" > "$scratch/forged.csv"
if "$flights" "$scratch/forged.csv" --dir "$scratch/dir" > "$scratch/forged"; then
    fail "a forged row went unnoticed: $(cat "$scratch/forged")"
fi
grep -q 'unlike the file .* 1 .* OFF' "$scratch/forged" || fail "a forged row: $(cat "$scratch/forged")"

echo "flights-kill: $kills kills, nothing lost, the totals of a run without one"
