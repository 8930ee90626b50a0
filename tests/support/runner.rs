//! A runner for targets without libtest: they are started again as children, with arguments of
//! their own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

/// Why a test cannot be run here.
#[derive(Debug)]
pub(crate) struct Ignored(pub(crate) String);

/// A test by its name.
pub(crate) type Test = (&'static str, fn() -> Result<(), Ignored>);

/// Runs the tests that the arguments choose, one after the other, and counts them in the last
/// line. Of libtest's arguments it knows filters, `--exact`, `--skip` and `--list`.
pub(crate) fn run(tests: &[Test]) -> ExitCode {
    let chosen = Choice::from_arguments();
    let (mut passed, mut failed) = (0, 0);
    for (name, test) in tests.iter().filter(|(name, _)| chosen.takes(name)) {
        if chosen.list {
            println!("{name}: test");
            continue;
        }
        match catch_unwind(AssertUnwindSafe(test)) {
            Ok(Ok(())) => {
                println!("test {name} ... ok");
                passed += 1;
            }
            Ok(Err(Ignored(reason))) => println!("ignored: {reason} (test {name})"),
            Err(_) => {
                println!("test {name} ... FAILED");
                failed += 1;
            }
        }
    }
    if !chosen.list {
        println!("{passed} passed, {failed} failed");
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The number that follows `name` among the arguments.
pub(crate) fn argument(name: &str) -> Option<u64> {
    let value = text_argument(name)?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} needs a number, not {value:?}")))
}

/// What follows `name` among the arguments.
pub(crate) fn text_argument(name: &str) -> Option<String> {
    let mut arguments = std::env::args();
    arguments.find(|argument| argument == name)?;
    Some(arguments.next().unwrap_or_default())
}

/// Whether `name` is among the arguments.
pub(crate) fn has_argument(name: &str) -> bool {
    std::env::args().any(|argument| argument == name)
}

#[derive(Default)]
struct Choice {
    filters: Vec<String>,
    skipped: Vec<String>,
    exact: bool,
    list: bool,
    none: bool,
}

impl Choice {
    fn from_arguments() -> Self {
        let mut choice = Self::default();
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--exact" => choice.exact = true,
                "--list" => choice.list = true,
                // No test of ours is ignored as such.
                "--ignored" => choice.none = true,
                "--skip" => choice.skipped.extend(arguments.next()),
                "--rounds" | "--seconds" | "--seed" | "--queues" | "--messages" | "--script"
                | "--step" | "--subset" | "--call" | "--file" | "--byte" | "--test-threads"
                | "--format" | "--color" | "-Z" | "--logfile" | "--shuffle-seed" => {
                    drop(arguments.next())
                }
                flag if flag.starts_with('-') => {}
                filter => choice.filters.push(filter.to_owned()),
            }
        }
        choice
    }

    fn takes(&self, name: &str) -> bool {
        let fits = |filter: &String| {
            if self.exact { filter == name } else { name.contains(filter.as_str()) }
        };
        !self.none
            && (self.filters.is_empty() || self.filters.iter().any(fits))
            && !self.skipped.iter().any(fits)
    }
}
