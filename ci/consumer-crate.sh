#!/usr/bin/env bash
# A crate outside the repository links rocklet by path and runs the first Rust sample of the README.
set -euo pipefail
cd "$(dirname "$0")/.."
unset RUSTFLAGS
repository=$PWD

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/src"
cat > "$scratch/Cargo.toml" << EOF
[package]
name = "consumer-crate"
version = "0.0.0"
edition = "2024"

[dependencies]
rocklet = { path = "$repository" }

[workspace]
EOF
cp Cargo.lock "$scratch/" # the versions that the repository is tested with

# Lines that rustdoc hides ("# ...") are part of the sample.
sample=$(awk '/^```rust/ { inside = 1; next } inside && /^```/ { exit } inside' README.md | sed 's/^# \?//')
[ -n "$sample" ] || { echo "consumer crate: README.md has no Rust sample" >&2; exit 1; }
if grep -q 'fn main' <<< "$sample"; then
    printf '%s\n' "$sample" > "$scratch/src/main.rs"
else
    {
        echo 'fn main() -> Result<(), Box<dyn std::error::Error>> {'
        printf '%s\n' "$sample"
        echo 'Ok(())'
        echo '}'
    } > "$scratch/src/main.rs"
fi

cd "$scratch" # the sample's directories are made here
CARGO_TARGET_DIR=$scratch/target cargo build --quiet
timeout 60 target/debug/consumer-crate
echo "consumer crate: the README's sample runs in a crate of its own"
