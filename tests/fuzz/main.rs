//! What the targets in `fuzz/` run, on the samples that they have found worth keeping and on some
//! made-up input. The target for records is a unit test of the library.
#![allow(clippy::unwrap_used, clippy::print_stdout)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "doors of the library")]

mod bytes;
mod operations;
mod recovery;
mod sql;

use std::path::Path;

#[test]
fn samples_of_recovery() {
    run("recovery", recovery::run, 60);
}

#[test]
fn samples_of_operations() {
    run("operations", operations::run, 40);
}

#[test]
fn samples_of_sql() {
    run("sql", sql::run, 400);
}

fn run(target: &str, run: fn(&[u8]), made_up: u64) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz-corpus").join(target);
    let mut samples: Vec<_> =
        std::fs::read_dir(corpus).unwrap().map(|sample| sample.unwrap().path()).collect();
    samples.sort();
    assert!(!samples.is_empty());
    for sample in &samples {
        println!("{}", sample.display());
        run(&std::fs::read(sample).unwrap());
    }
    for seed in 1..=made_up {
        println!("made up: {seed}");
        run(&noise(seed, 40 + seed as usize * 5));
    }
}

/// The same bytes for the same seed.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len).map(|_| next()).collect()
}
