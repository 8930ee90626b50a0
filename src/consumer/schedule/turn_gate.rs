//! Whose a scheduled queue is: a call of its owner's callback, or the next owner.

use crate::sync::{Mutex, Rank};

/// Lets one call at a time have the queue, and gives it back once, when there is none (PC-9).
#[derive(Debug)]
pub(crate) struct TurnGate {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Where the group stands.
    next: u64,
    /// A call is going on.
    busy: bool,
    revoked: bool,
}

impl TurnGate {
    pub(crate) fn new(next: u64) -> Self {
        let state = State { next, busy: false, revoked: false };
        Self { state: Mutex::new(Rank::ProcessQueue, state) }
    }

    /// Begins a call; false if the queue is lost.
    pub(crate) fn begin(&self) -> bool {
        let mut state = self.state.lock();
        #[cfg(not(broken_turn_of_a_lost_queue))]
        if state.revoked {
            return false;
        }
        state.busy = true;
        true
    }

    /// Ends it; if the queue was lost meanwhile, returns where its next owner goes on.
    pub(crate) fn end(&self) -> Option<u64> {
        #[cfg(broken_turn_torn)]
        if !self.is_revoked() {
            self.state.lock().busy = false;
            return None;
        }
        let mut state = self.state.lock();
        state.busy = false;
        state.revoked.then_some(state.next)
    }

    /// Lets no call begin any more; returns where the next owner goes on, unless one is going on.
    pub(crate) fn revoke(&self) -> Option<u64> {
        let mut state = self.state.lock();
        state.revoked = true;
        (!state.busy).then_some(state.next)
    }

    pub(crate) fn is_revoked(&self) -> bool {
        self.state.lock().revoked
    }

    /// Where its owner, or the next one, goes on.
    pub(crate) fn next(&self) -> u64 {
        self.state.lock().next
    }

    /// Has it go on elsewhere.
    pub(crate) fn go_on(&self, next: u64) {
        self.state.lock().next = next;
    }
}
