//! A sudden death at a chosen row.

use rustix::process::{Signal, getpid, kill_process};
use std::sync::atomic::{AtomicU64, Ordering};

/// Kills the process when a given number of rows is consumed.
#[derive(Debug)]
pub(crate) struct KillSwitch {
    after: Option<u64>,
    consumed: AtomicU64,
}

impl KillSwitch {
    /// Makes a switch that fires after `after` rows, or never.
    pub(crate) fn new(after: Option<u64>) -> Self {
        Self { after, consumed: AtomicU64::new(0) }
    }

    /// Counts one row, and does not return if it is the last.
    pub(crate) fn consumed_one(&self) {
        let consumed = self.consumed.fetch_add(1, Ordering::Relaxed) + 1;
        if Some(consumed) == self.after {
            // SIGKILL cannot be caught: no destructor runs, nothing is flushed or committed.
            kill_process(getpid(), Signal::KILL).expect("a process may kill itself");
        }
    }
}
