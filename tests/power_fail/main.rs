//! Proof by exhaustion on a simulated storage: power is lost after every storage call, every call
//! fails, every byte is flipped, and each time the store keeps what it has promised.
//!
//! `cargo test --release --test power_fail -- --full` does all of it, `ci/power-fail.sh` likewise;
//! without `--full` a slice is done. `--seed` chooses the samples. A state that failed is done again
//! by the command that its report names.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "doors of the library")]

mod faults;
mod power;
mod script;
mod sweep;
mod world;

#[path = "../support/mod.rs"]
mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;
use support::runner::{argument, has_argument, run};

fn main() -> ExitCode {
    run(&[
        ("flip_every_byte", sweep::flip_bytes),
        ("cut_every_file", sweep::cut_files),
        ("fail_every_call", faults::fail_calls),
        ("lose_power_after_every_call", power::lose_power),
    ])
}

/// How much is done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    pub(crate) full: bool,
    pub(crate) seed: u64,
}

impl Effort {
    pub(crate) fn from_arguments() -> Self {
        Self { full: has_argument("--full"), seed: argument("--seed").unwrap_or(1) }
    }
}

/// Counts states, and keeps what is wrong with some.
#[derive(Debug)]
pub(crate) struct Tally {
    what: &'static str,
    states: u64,
    failures: Vec<String>,
    start: Instant,
}

impl Tally {
    pub(crate) fn new(what: &'static str) -> Self {
        Self { what, states: 0, failures: Vec::new(), start: Instant::now() }
    }

    /// Checks one state: an error and a panic are failures, which `name` tells.
    pub(crate) fn state(
        &mut self,
        name: impl Fn() -> String,
        check: impl FnOnce() -> Result<(), String>,
    ) {
        self.states += 1;
        if let Err(error) = contained(check) {
            let failure = format!("{}\n  {error}", name());
            println!("FAILED {failure}");
            self.failures.push(failure);
            assert!(self.failures.len() < 20, "too many failures");
        }
    }

    pub(crate) fn states(&self) -> u64 {
        self.states
    }

    pub(crate) fn end(self) {
        let Self { what, states, failures, start } = self;
        println!(
            "{states} {what}, {} failures, {:.1} s",
            failures.len(),
            start.elapsed().as_secs_f64()
        );
        assert!(failures.is_empty(), "{}", failures.join("\n"));
    }
}

/// Runs `check`; its panic is an error, too.
pub(crate) fn contained<R>(check: impl FnOnce() -> Result<R, String>) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(check)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(format!("panicked: {}", text.unwrap_or_default()))
    })
}
