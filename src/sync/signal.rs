//! The door through which every wait goes: a thread parks on a [`Signal`] until a condition
//! holds or a deadline passes.
//!
//! A signal counts its notifications. A waiter reads the count, evaluates its condition without
//! any lock of the signal, and parks only if the count has not moved since: a change that is
//! followed by `notify` is therefore never missed, whatever the condition looks at.

use super::{Arc, Condvar, Mutex, Rank};
use crate::clock::{Clock, Moment};

/// Something to park on; clones are handles to the same signal.
#[derive(Clone)]
pub(crate) struct Signal {
    inner: Arc<Inner>,
}

struct Inner {
    notifications: Mutex<u64>,
    changed: Condvar,
}

impl Signal {
    pub(crate) fn new() -> Self {
        let notifications = Mutex::new(Rank::Signal, 0);
        Self { inner: Arc::new(Inner { notifications, changed: Condvar::new() }) }
    }

    /// Wakes every waiter, which then looks at its condition again.
    pub(crate) fn notify(&self) {
        *self.inner.notifications.lock() += 1;
        self.inner.changed.notify_all();
    }

    /// Waits until `ready` returns true (then true) or `deadline` has passed (then false).
    ///
    /// `ready` may take locks: none is held when it is called.
    pub(crate) fn wait_until(
        &self,
        clock: &Clock,
        deadline: Option<Moment>,
        mut ready: impl FnMut() -> bool,
    ) -> bool {
        if deadline.is_some() {
            clock.attach(self);
        }
        loop {
            let seen = *self.inner.notifications.lock();
            if ready() {
                return true;
            }
            let limit = match deadline {
                Some(deadline) if clock.moment() >= deadline => return false,
                Some(deadline) => clock.real_time_until(deadline),
                None => None,
            };
            if clock.work_for(deadline) {
                continue;
            }
            let mut now = self.inner.notifications.lock();
            #[cfg(broken_signal_blind)]
            let seen = *now;
            if *now == seen {
                self.inner.changed.wait(&mut now, limit);
            }
        }
    }

    /// Whether anyone else holds a handle.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn shared(&self) -> bool {
        Arc::strong_count(&self.inner) > 1
    }

    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl std::fmt::Debug for Signal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Signal").finish_non_exhaustive()
    }
}
