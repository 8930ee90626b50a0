#!/usr/bin/env bash
# The dependencies: few, all of them used, no version with a known memory-safety fault; and nothing
# of the peer benches in the package.
set -euo pipefail
cd "$(dirname "$0")/.."
unset RUSTFLAGS
most=25
floors="arc-swap 1.9.5
crossbeam-channel 0.5.17
memmap2 0.9.11"

fail() {
    echo "dependencies: $*" >&2
    exit 1
}

crates=$(cargo tree --edges normal --prefix none --format '{p}')
crates=$(awk '$1 != "rocklet" { print $1, $2 }' <<< "$crates" | sort -u)
count=$(wc -l <<< "$crates")
[ "$count" -le "$most" ] || fail "a default build has $count crates, more than $most: ${crates//$'\n'/, }"

# The compiler knows: a crate handed to the library that no path of it names is an error.
cargo clippy --quiet --lib --all-features -- -D unused-crate-dependencies

while read -r name floor; do
    versions=$(grep -A1 -x "name = \"$name\"" Cargo.lock | sed -n 's/^version = "\(.*\)"$/\1/p')
    lowest=$(printf '%s\n' "$floor" "$versions" | sed '/^$/d' | sort -V | head -n 1)
    [ "$lowest" = "$floor" ] || fail "Cargo.lock has $name $lowest, at least $floor is needed"
done <<< "$floors"

packaged=$(cargo package --list --allow-dirty 2> /dev/null) || fail "cargo package --list fails"
! grep '^benches/peers' <<< "$packaged" || fail "benches/peers must stay out of the package"

echo "dependencies: $count crates besides rocklet (at most $most), all used, versions and package sound"
