#!/usr/bin/env bash
# Proves that the loom models can fail: builds the crate with each planted bug in turn and requires
# that the model that declares it fails with a text of its own.
#
#   ci/planted-bugs.sh [broken_name ...]        all planted bugs, or the named ones
#
# A model declares in the head of its file (each line may be repeated):
#   //! Planted bugs: broken_first, broken_second
#   //! Fails with: a text of the model or of loom, any one of them will do
set -euo pipefail
cd "$(dirname "$0")/.."
unset RUSTFLAGS # would override --config silently
export CARGO_INCREMENTAL=0 CARGO_PROFILE_TEST_DEBUG=0 # each build is used once
seconds_each=${PLANTED_BUG_SECONDS:-300}

header() { sed -n "s|^//! $1: *||p" "$2"; }
bugs_of() { header "Planted bugs" "$1" | tr -s ', ' '\n' | sed '/^$/d'; }
models() { find loom-tests -maxdepth 1 -name '*.rs' ! -name mod.rs | sort; }
names() { grep -ohE 'broken_[a-z0-9_]+' "$@" | sort -u; }

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
complete=true
complain() {
    echo "planted bugs: $*" >&2
    complete=false
}

# Every model has planted bugs; model heads, source and check-cfg agree on their names.
for file in $(models); do
    [ -n "$(bugs_of "$file")" ] || complain "$file declares none"
    [ -n "$(header "Fails with" "$file")" ] || complain "$file declares no text to fail with"
    bugs_of "$file"
done | sort > "$scratch/declared"
for bug in $(uniq -d "$scratch/declared"); do complain "$bug is declared more than once"; done
find src -name '*.rs' -exec grep -ohE '^[^/]*broken_.*' {} + | names > "$scratch/source"
names Cargo.toml > "$scratch/listed"
for place in source listed; do
    while read -r bug; do complain "$bug: not both declared by a model and in $place"; done \
        < <(sort -u "$scratch/declared" | comm -3 - "$scratch/$place" | tr -d '\t')
done

# Prints how the model took the bug; fails unless it caught it.
try() {
    local model=$1 bug=$2 log=$scratch/log harness status=0 text
    # Each build runs one model once: what it uses is optimised, and made only once; it is not.
    harness=$(cargo rustc --config "build.rustflags=['--cfg','loom']" \
        --config profile.test.opt-level=0 --config 'profile.test.package."*".opt-level=3' \
        --lib --profile test \
        --target-dir target/loom --message-format=json-render-diagnostics -- --cfg "$bug" 2> "$log" \
        | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p') || { echo "does not build"; return 1; }
    timeout "$seconds_each" "$harness" "loom_tests::$model::" --nocapture > "$log" 2>&1 || status=$?
    rm -f "$harness"
    case $status in
        0) echo "MISSED: the model passed ($(grep -c ' \.\.\. ok$' "$log") tests ran)"; return 1 ;;
        124) echo "MISSED: no verdict after $seconds_each s"; return 1 ;;
    esac
    while read -r text; do
        if grep -qF -- "$text" "$log"; then
            echo "caught: \"$text\""
            return 0
        fi
    done < <(header "Fails with" "loom-tests/$model.rs")
    echo "MISSED: failed with another text than the model's own"
    return 1
}

planted=0
caught=0
for file in $(models); do
    model=$(basename "$file" .rs)
    for bug in $(bugs_of "$file"); do
        [[ $# -eq 0 || " $* " == *" $bug "* ]] || continue
        planted=$((planted + 1))
        started=$SECONDS
        if verdict=$(try "$model" "$bug"); then
            caught=$((caught + 1))
        else
            tail -n 30 "$scratch/log" >&2
        fi
        echo "$model: $bug $verdict ($((SECONDS - started)) s)"
    done
done
echo "$planted planted bugs, $caught caught"
[ "$planted" -gt 0 ] && [ "$planted" -eq "$caught" ] && $complete
