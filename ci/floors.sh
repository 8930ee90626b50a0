#!/usr/bin/env bash
# The floors of the crate: a module, its tests included, names things of its own floor or of a lower
# one only. And the wall around raw memory: `unsafe` stands in two files.
set -euo pipefail
cd "$(dirname "$0")/.."

declare -A floor
on_floor() {
    local level=$1 module
    for module in "${@:2}"; do floor[$module]=$level; done
}
on_floor 0 sync error topic_config message message_id queue_id placement delay properties names string_hash service_state config clock random
on_floor 1 storage
on_floor 2 store
on_floor 3 broker
on_floor 4 producer consumer reader

walled="src/storage/region.rs src/storage/segment.rs"

# Prints the names that a file has after `crate::`, in groups too; comments are left out.
named_in() {
    sed 's|//.*||' "$1" | tr '\n' ' ' | awk '{
        while (match($0, /[^$A-Za-z0-9_]crate::/)) {
            $0 = substr($0, RSTART + RLENGTH)
            paths = $0
            if (sub(/^[{]/, "", paths)) {
                while (paths ~ /^[^}]*[{]/) sub(/[{][^{}]*[}]/, "", paths)
                sub(/[}].*/, "", paths)
            } else {
                sub(/[^A-Za-z0-9_].*/, "", paths)
            }
            count = split(paths, path, ",")
            for (i = 1; i <= count; i++)
                if (match(path[i], /[A-Za-z_][A-Za-z0-9_]*/)) print substr(path[i], RSTART, RLENGTH)
        }
    }' | sort -u
}

# Prints the module from which lib.rs exports a name.
home_of() {
    tr '\n' ' ' < src/lib.rs | grep -oE 'pub use [a-z_]+[^;]*' | grep -w "$1" | cut -d ' ' -f 3 | sed 's/:.*//' || true
}

faults=0
fault() {
    echo "floors: $*" >&2
    faults=$((faults + 1))
}

files=0
while read -r file; do
    own=${file#src/}
    own=${own%%/*}
    own=${own%.rs}
    files=$((files + 1))
    if sed 's|//.*||' "$file" | grep -qw unsafe && [[ " $walled " != *" $file "* ]]; then
        fault "$file: unsafe belongs to $walled"
    fi
    [ "$own" = lib ] && continue
    if [ -z "${floor[$own]:-}" ]; then
        fault "$file: module $own has no floor; give it one in $0"
        continue
    fi
    for name in $(named_in "$file"); do
        module=$name
        [ -n "${floor[$name]:-}" ] || module=$(home_of "$name")
        if [ -z "${floor[${module:-?}]:-}" ]; then
            fault "$file: crate::$name has no floor; give its module one in $0"
        elif [ "${floor[$module]}" -gt "${floor[$own]}" ]; then
            fault "$file: floor ${floor[$own]} names crate::$name of floor ${floor[$module]}"
        fi
    done
done < <(find src -name '*.rs' | sort)

echo "floors: $files files, $faults faults"
[ "$faults" -eq 0 ]
