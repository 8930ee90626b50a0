//! The hold table: who waits for the next message of which queue (HOLD-1..8).
//!
//! A queue is watched before its waiter looks at the maximum under the append lock, and a
//! producer reads the count of watchers inside that lock. So either the waiter sees the message,
//! or the producer sees the waiter and comes here after the lock: no message is missed, and no
//! timed check is needed to find what was (HOLD-7).

use crate::store::{ConsumeQueue, Store};
use crate::sync::{Arc, Mutex, Rank};
use smallvec::SmallVec;
use std::collections::HashMap;

/// Somebody who waits for a message. Only what it wants is asked with a lock held, that of the
/// table.
pub(crate) trait Waiter: Send + Sync {
    /// False only if the message is not wanted. Neither allocates nor runs the user's code.
    fn wants(&self, message: Arrival) -> bool;

    /// Everything from `from`, where it waited, up to `next` has been looked at for it and is not
    /// wanted: progress without being woken.
    fn skipped(&self, from: u64, next: u64);

    /// Reading is worth while from `next` on. The waiter is held no longer.
    fn wake(&self, next: u64);
}

/// A message that has just been stored, as a waiter looks at it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) tag_hash: i32,
    pub(crate) position: u64,
}

/// All waiters of a broker.
#[derive(Debug)]
pub(crate) struct HoldTable {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    held: HashMap<(u32, u16), Vec<Held>>,
    tickets: u64,
}

struct Held {
    /// Tells this stay from a later one of the same waiter.
    ticket: u64,
    waiter: Arc<dyn Waiter>,
    next: u64,
}

impl HoldTable {
    pub(crate) fn new() -> Self {
        Self { table: Mutex::new(Rank::HoldTable, Table::default()) }
    }

    /// Holds `waiter` until a message that it wants stands at or behind offset `next`; wakes it
    /// at once if there is one already.
    pub(crate) fn park(
        &self,
        store: &Store,
        queue: &ConsumeQueue,
        next: u64,
        waiter: &Arc<dyn Waiter>,
    ) {
        self.park_unless(queue, next, waiter, || store.exact_max(queue));
    }

    /// Holds `waiter` unless messages stand behind `next` by the time that it is in the table:
    /// `exact_max` looks under the append lock.
    pub(crate) fn park_unless(
        &self,
        queue: &ConsumeQueue,
        next: u64,
        waiter: &Arc<dyn Waiter>,
        exact_max: impl FnOnce() -> u64,
    ) {
        #[cfg(not(broken_watch_late))]
        queue.watch();
        let mut table = self.table.lock();
        table.tickets += 1;
        let ticket = table.tickets;
        let held = Held { ticket, waiter: waiter.clone(), next };
        table.held.entry(queue.key()).or_default().push(held);
        drop(table);
        #[cfg(not(broken_park_blind))]
        let max = exact_max();
        #[cfg(broken_park_blind)]
        let max = 0;
        // A producer may have woken it meanwhile, and it may be back already: by the ticket only
        // this stay is ended.
        let missed = |held: &Held| held.ticket == ticket && held.next < max;
        #[cfg(broken_wake_any_stay)]
        let missed = |held: &Held| Arc::ptr_eq(&held.waiter, waiter) && next < max;
        #[cfg(not(broken_wake_uncancelled))]
        if let Some(Held { next, .. }) = self.take(queue, missed) {
            waiter.wake(next);
        }
        #[cfg(broken_wake_uncancelled)]
        if max > next {
            waiter.wake(next);
        }
        #[cfg(broken_watch_late)]
        queue.watch();
    }

    /// Takes `waiter` out; false if it has been woken before.
    pub(crate) fn cancel(&self, queue: &ConsumeQueue, waiter: &Arc<dyn Waiter>) -> bool {
        #[cfg(broken_cancel_unwatches)]
        if self.take(queue, |held| Arc::ptr_eq(&held.waiter, waiter)).is_none() {
            queue.unwatch();
            return false;
        }
        self.take(queue, |held| Arc::ptr_eq(&held.waiter, waiter)).is_some()
    }

    /// Tells the waiters of a queue that these messages stand from `first` on.
    pub(crate) fn arrived(
        &self,
        queue: &ConsumeQueue,
        first: u64,
        messages: impl ExactSizeIterator<Item = Arrival> + Clone,
    ) {
        let end = first + messages.len() as u64;
        let mut table = self.table.lock();
        let Some(held) = table.held.get_mut(&queue.key()) else { return };
        // Few queues have more than one group or two.
        let (mut woken, mut passed) = (SmallVec::<[_; 2]>::new(), SmallVec::<[_; 2]>::new());
        held.retain_mut(|held| {
            if end <= held.next {
                return true;
            }
            #[cfg(broken_wake_one)]
            if !woken.is_empty() {
                return true;
            }
            // What arrived out of order cannot be skipped by looking at this part alone.
            if held.next != first || messages.clone().any(|m| held.waiter.wants(m)) {
                woken.push((held.waiter.clone(), held.next));
                return false;
            }
            held.next = end;
            passed.push(held.waiter.clone());
            true
        });
        if held.is_empty() {
            table.held.remove(&queue.key());
        }
        drop(table);
        passed.iter().for_each(|waiter| waiter.skipped(first, end));
        for (waiter, next) in woken {
            queue.unwatch();
            waiter.wake(next);
        }
    }

    /// How many waiters there are.
    pub(crate) fn len(&self) -> usize {
        self.table.lock().held.values().map(Vec::len).sum()
    }

    fn take(&self, queue: &ConsumeQueue, which: impl Fn(&Held) -> bool) -> Option<Held> {
        let mut table = self.table.lock();
        let held = table.held.get_mut(&queue.key())?;
        let at = held.iter().position(which)?;
        let taken = held.swap_remove(at);
        if held.is_empty() {
            table.held.remove(&queue.key());
        }
        drop(table);
        queue.unwatch();
        Some(taken)
    }
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Held").field("next", &self.next).finish_non_exhaustive()
    }
}
