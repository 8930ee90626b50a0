//! The table of what was counted and what was expected.

use std::collections::BTreeSet;
use std::fmt::{self, Display, Formatter};

/// Checks that held or did not, followed by a summary.
#[derive(Debug, Default)]
pub(crate) struct Table {
    checks: Vec<Check>,
    /// What is printed below the checks if all of them hold.
    pub(crate) summary: String,
}

#[derive(Debug)]
struct Check {
    what: String,
    counted: u64,
    expected: String,
    holds: bool,
}

impl Table {
    /// Adds a check that a count is as expected.
    pub(crate) fn exactly(&mut self, what: impl Into<String>, counted: u64, expected: u64) {
        self.add(what.into(), counted, expected.to_string(), counted == expected);
    }

    /// Adds a check that a count is in bounds.
    pub(crate) fn at_most(&mut self, what: impl Into<String>, counted: u64, limit: u64) {
        self.add(what.into(), counted, format!("<= {limit}"), counted <= limit);
    }

    /// Adds a check that these rows, not only as many, are the expected ones.
    pub(crate) fn rows(
        &mut self,
        what: impl Into<String>,
        counted: &BTreeSet<u64>,
        expected: &BTreeSet<u64>,
    ) {
        let holds = counted == expected;
        self.add(what.into(), counted.len() as u64, expected.len().to_string(), holds);
    }

    /// Whether all checks hold.
    pub(crate) fn holds(&self) -> bool {
        self.checks.iter().all(|check| check.holds)
    }

    fn add(&mut self, what: String, counted: u64, expected: String, holds: bool) {
        self.checks.push(Check { what, counted, expected, holds });
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:52} {:>8} {:>8}", "", "counted", "expected")?;
        for Check { what, counted, expected, holds } in &self.checks {
            let verdict = if *holds { "" } else { "  <-- OFF" };
            writeln!(f, "{what:52} {counted:8} {expected:>8}{verdict}")?;
        }
        match self.checks.iter().filter(|check| !check.holds).count() {
            0 => writeln!(f, "{}", self.summary),
            off => writeln!(f, "{off} checks are off"),
        }
    }
}
