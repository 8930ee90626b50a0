#!/usr/bin/env bash
# Which rules of the specification are named by a test, or have a reason why they need none.
#
#   ci/rule-coverage.sh [FAMILY ...]            default: all but what is not built yet (TXN RPC)
#
# A test names rule PROD-12 by its name, `fn prod_12_...` or `fn prod_12_prod_13_...`, or as "(PROD-12)" or "(PROD-12, PROD-13)" in
# the comment above its #[test]; one without libtest by the name in its table. A reason is a row `| PROD-12 | why |` (several ids may share a row) in
# docs/design.md, under a heading "Rules that do not apply" or "Rules without a test". All rules are
# listed in docs/rules.txt.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- $(sed -nE 's/^([A-Z]+)-[0-9]+$/\1/p' docs/rules.txt | uniq | grep -vxE 'TXN|RPC')

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
ids() { grep -oE '[A-Z]+-[0-9]+' | sort -u || true; }

find src tests loom-tests -name '*.rs' -exec cat {} + | awk '
    /^ *\/\// { sub(/^ *\/+/, ""); comment = comment $0; next }
    /^ *#\[test\]/ { test = 1; next }
    match($0, /\("[a-z]+_[0-9]+_/) {
        split(substr($0, RSTART, RLENGTH), word, /[("_]+/)
        print "(" toupper(word[2]) "-" word[3] ")"
    }
    /^ *#\[/ { next }
    test && match($0, /fn [a-z0-9_]+/) {
        split(substr($0, RSTART + 3, RLENGTH - 3), word, "_")
        for (nth = 1; word[nth] ~ /^[a-z]+$/ && word[nth + 1] ~ /^[0-9]+$/; nth += 2)
            print "(" toupper(word[nth]) "-" word[nth + 1] ")"
        print comment
    }
    { comment = ""; test = 0 }
' | grep -oE '\([A-Z]+-[0-9]+(, *[A-Z]+-[0-9]+)*\)' | ids > "$scratch/all.tested"

awk '
    /^#/ { inside = /Rules that do not apply|Rules without a test/ }
    inside && /^\|/ { split($0, cell, "|"); if (cell[3] ~ /[A-Za-z]/) print cell[2] }
' docs/design.md | ids > "$scratch/all.reasoned"

cd "$scratch"
all=$OLDPWD/docs/rules.txt
faults=0
for family in "$@"; do
    { grep -E "^$family-[0-9]+$" "$all" || true; } | sort > rules
    for kind in tested reasoned; do
        { grep -E "^$family-" all.$kind || true; } > $kind
        for rule in $(comm -13 rules $kind); do
            echo "$rule: $kind, but no such rule"
            faults=$((faults + 1))
        done
    done
    if [ ! -s rules ]; then
        echo "$family: no such family"
        faults=$((faults + 1))
    fi
    named=$(comm -12 rules tested | wc -l)
    reason=$(comm -12 rules reasoned | comm -23 - tested | wc -l)
    missing=$(sort -u tested reasoned | comm -23 rules - | sort -V)
    for rule in $missing; do
        echo "$rule: no test names it and docs/design.md gives no reason"
        faults=$((faults + 1))
    done
    echo "$family: $(wc -l < rules) rules, $named named by tests, $reason with a reason," \
        "$(wc -w <<< "$missing") missing"
done
[ "$faults" -eq 0 ]
