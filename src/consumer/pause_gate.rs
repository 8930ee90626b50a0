//! Where pull requests wait while their consumer is paused (CLI-11).

use crate::sync::{Mutex, Rank};

/// Lets requests pass, or keeps them until it is opened again.
#[derive(Debug)]
pub(crate) struct PauseGate<R> {
    /// Those that wait; `None` while nothing is to wait.
    waiting: Mutex<Option<Vec<R>>>,
}

impl<R> PauseGate<R> {
    pub(crate) fn new() -> Self {
        Self { waiting: Mutex::new(Rank::Member, None) }
    }

    /// Returns the request if it may pass; otherwise [`open`](Self::open) returns it. Drops those
    /// that wait and are `stale`.
    pub(crate) fn pass(&self, request: R, stale: impl Fn(&R) -> bool) -> Option<R> {
        let mut waiting = self.waiting.lock();
        match &mut *waiting {
            Some(waiting) => {
                waiting.retain(|request| !stale(request));
                waiting.push(request);
                None
            }
            None => Some(request),
        }
    }

    pub(crate) fn close(&self) {
        self.waiting.lock().get_or_insert_default();
    }

    /// Lets everything pass; returns what has waited.
    #[must_use = "whoever waited goes on"]
    pub(crate) fn open(&self) -> Vec<R> {
        #[cfg(broken_gate_opened_twice)]
        {
            let waited = std::mem::take(self.waiting.lock().get_or_insert_default());
            *self.waiting.lock() = None;
            return waited;
        }
        #[cfg(not(broken_gate_opened_twice))]
        self.waiting.lock().take().unwrap_or_default()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.waiting.lock().is_some()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn cli_11_what_comes_while_it_is_closed_waits_until_it_is_opened() {
        let gate = PauseGate::new();
        assert_eq!(gate.pass(1, |_| false), Some(1));
        gate.close();
        gate.close();
        assert!(gate.is_closed());
        assert_eq!(gate.pass(2, |_| false), None);
        assert_eq!(gate.pass(3, |_| false), None);
        assert_eq!(gate.pass(4, |request| *request == 2), None);
        assert_eq!(gate.open(), [3, 4]);
        assert_eq!((gate.pass(5, |_| false), gate.open()), (Some(5), vec![]));
    }
}
