//! Locks with a rank. In debug builds every acquisition checks that no lock of the same or of an
//! inner rank is already held by the thread, so that a lock-order fault shows in any test that
//! walks the path, not only in the run that deadlocks.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

/// The order in which locks may be taken, outermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// Who makes room for the log or the index at the cost of the oldest file. The outermost.
    Room,
    /// Which files of the log may go: one drop at a time.
    Retention,
    /// Start and close of a broker: held while threads are started or joined.
    Lifecycle,
    /// One consumer group's membership and assignment.
    Coordinator,
    /// One consumer's own state.
    Member,
    /// The window of what is in flight of one queue.
    ProcessQueue,
    /// The leases of one group: progress is stored under it.
    Lease,
    /// The making of a file for committed offsets.
    OffsetGrowth,
    /// The committed offsets.
    OffsetStore,
    /// Topics and groups by name, and the order in which topics are created.
    TopicTable,
    /// Parked pull requests.
    HoldTable,
    /// The index of keys: the log is read and key files are written under it.
    KeyIndex,
    /// Who gives a queue its next index block.
    IndexGrowth,
    /// The making of a file for index blocks, or of the next block.
    IndexFile,
    /// Growth of the log, and what there is of the index: files of the log are made under it, never
    /// under the append lock.
    Grow,
    /// State of the flush in progress.
    Flush,
    /// Which messages wait to be due: a record that changes it is appended under it.
    Delays,
    /// The one lock under which records get their place. A leaf: nothing is taken inside.
    Append,
    /// Pending timers.
    Timer,
    /// The count of reads that closing waits for.
    Readers,
    /// Inside a signal or a channel; held for a few instructions.
    Signal,
}

/// A mutual-exclusion lock that does not poison.
pub(crate) struct Mutex<T> {
    rank: Rank,
    inner: imp::Mutex<T>,
}

impl<T> Mutex<T> {
    pub(crate) fn new(rank: Rank, value: T) -> Self {
        Self { rank, inner: imp::mutex(value) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        order::enter(self.rank);
        MutexGuard { rank: self.rank, inner: Some(imp::lock(&self.inner)) }
    }
}

impl<T> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex").field("rank", &self.rank).finish_non_exhaustive()
    }
}

/// Access to what a [`Mutex`] guards.
pub(crate) struct MutexGuard<'a, T> {
    rank: Rank,
    // `None` only while a condition variable has it.
    inner: Option<imp::Guard<'a, T>>,
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.inner.as_ref().expect("a guard outside a wait holds its lock")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect("a guard outside a wait holds its lock")
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        order::leave(self.rank);
    }
}

/// A condition to wait for under a [`Mutex`].
pub(crate) struct Condvar {
    inner: imp::Condvar,
}

impl Condvar {
    pub(crate) fn new() -> Self {
        Self { inner: imp::condvar() }
    }

    /// Waits until notified, or for `limit`; may also return without cause.
    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>, limit: Option<Duration>) {
        if let Some(held) = guard.inner.take() {
            guard.inner = Some(imp::wait(&self.inner, held, limit));
        }
    }

    pub(crate) fn notify_all(&self) {
        self.inner.notify_all();
    }
}

/// The per-thread list of ranks held; empty functions in release builds.
mod order {
    use super::Rank;

    #[cfg(all(debug_assertions, not(all(test, loom))))]
    thread_local! {
        static HELD: std::cell::RefCell<Vec<Rank>> = const { std::cell::RefCell::new(Vec::new()) };
    }

    #[cfg(all(debug_assertions, not(all(test, loom))))]
    pub(super) fn enter(rank: Rank) {
        HELD.with_borrow_mut(|held| {
            if let Some(inner) = held.iter().find(|h| **h >= rank) {
                let text = format!("lock order: {rank:?} taken while {inner:?} is held");
                assert!(std::thread::panicking(), "{text}");
            }
            held.push(rank);
        });
    }

    #[cfg(all(debug_assertions, not(all(test, loom))))]
    pub(super) fn leave(rank: Rank) {
        // A guard may be dropped while the thread's locals are torn down.
        let _ = HELD.try_with(|held| {
            let mut held = held.borrow_mut();
            if let Some(at) = held.iter().rposition(|h| *h == rank) {
                held.remove(at);
            }
        });
    }

    #[cfg(not(all(debug_assertions, not(all(test, loom)))))]
    pub(super) fn enter(_: Rank) {}

    #[cfg(not(all(debug_assertions, not(all(test, loom)))))]
    pub(super) fn leave(_: Rank) {}
}

#[cfg(not(all(test, loom)))]
mod imp {
    use std::time::Duration;

    pub(super) use parking_lot::{Condvar, Mutex, MutexGuard as Guard};

    pub(super) fn mutex<T>(value: T) -> Mutex<T> {
        Mutex::new(value)
    }
    pub(super) fn lock<T>(mutex: &Mutex<T>) -> Guard<'_, T> {
        mutex.lock()
    }
    pub(super) fn condvar() -> Condvar {
        Condvar::new()
    }
    pub(super) fn wait<'a, T>(
        condvar: &Condvar,
        mut guard: Guard<'a, T>,
        limit: Option<Duration>,
    ) -> Guard<'a, T> {
        match limit {
            Some(limit) => {
                condvar.wait_for(&mut guard, limit);
            }
            None => condvar.wait(&mut guard),
        }
        guard
    }
}

#[cfg(all(test, loom))]
mod imp {
    use std::time::Duration;

    pub(super) use loom::sync::{Condvar, Mutex, MutexGuard as Guard};

    pub(super) fn mutex<T>(value: T) -> Mutex<T> {
        Mutex::new(value)
    }
    pub(super) fn lock<T>(mutex: &Mutex<T>) -> Guard<'_, T> {
        mutex.lock().unwrap_or_else(|e| e.into_inner())
    }
    pub(super) fn condvar() -> Condvar {
        Condvar::new()
    }
    // Loom's timed waits never time out, so a wait with a limit is left to the model: it waits
    // for the notification alone.
    pub(super) fn wait<'a, T>(
        condvar: &Condvar,
        guard: Guard<'a, T>,
        _limit: Option<Duration>,
    ) -> Guard<'a, T> {
        condvar.wait(guard).unwrap_or_else(|e| e.into_inner())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "lock order: Coordinator taken while Append is held")]
    fn taking_an_outer_lock_inside_an_inner_one_is_reported() {
        let inner = Mutex::new(Rank::Append, ());
        let outer = Mutex::new(Rank::Coordinator, ());
        let _inner = inner.lock();
        let _outer = outer.lock();
    }

    #[test]
    fn locks_taken_in_order_and_released_in_any_order_pass() {
        let outer = Mutex::new(Rank::Coordinator, 1);
        let inner = Mutex::new(Rank::Append, 2);
        let a = outer.lock();
        let b = inner.lock();
        drop(a);
        drop(b);
        assert_eq!(*outer.lock() + *inner.lock(), 3);
    }
}
