//! The hold table: who waits for the next message of which queue (HOLD-1..8).
//!
//! A queue is watched before its waiter looks at the maximum under the append lock, and a
//! producer reads the count of watchers inside that lock. So either the waiter sees the message,
//! or the producer sees the waiter and comes here after the lock: no message is missed, and no
//! timed check is needed to find what was (HOLD-7).

use crate::store::{ConsumeQueue, Store};
use crate::sync::{Arc, Mutex, Rank};
use std::collections::HashMap;

/// Somebody who waits for a message. Its methods are called with no lock held.
pub(crate) trait Waiter: Send + Sync {
    /// False only if no message with this tag hash is wanted.
    fn wants(&self, tag_hash: i32) -> bool;

    /// Everything below `next` has been looked at for it and is not wanted: progress without
    /// being woken.
    fn skipped(&self, next: u64);

    /// Reading is worth while from `next` on. The waiter is held no longer.
    fn wake(&self, next: u64);
}

/// All waiters of a broker.
#[derive(Debug)]
pub(crate) struct HoldTable {
    // By the slot of the queue.
    held: Mutex<HashMap<usize, Vec<Held>>>,
}

struct Held {
    waiter: Arc<dyn Waiter>,
    next: u64,
}

impl HoldTable {
    pub(crate) fn new() -> Self {
        Self { held: Mutex::new(Rank::HoldTable, HashMap::new()) }
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
        queue.watch();
        let held = Held { waiter: waiter.clone(), next };
        self.held.lock().entry(queue.slot).or_default().push(held);
        if store.exact_max(queue) > next && self.cancel(queue, waiter) {
            waiter.wake(next);
        }
    }

    /// Takes `waiter` out; false if it has been woken before.
    pub(crate) fn cancel(&self, queue: &ConsumeQueue, waiter: &Arc<dyn Waiter>) -> bool {
        let mut table = self.held.lock();
        let Some(held) = table.get_mut(&queue.slot) else { return false };
        let Some(at) = held.iter().position(|held| Arc::ptr_eq(&held.waiter, waiter)) else {
            return false;
        };
        held.swap_remove(at);
        if held.is_empty() {
            table.remove(&queue.slot);
        }
        drop(table);
        queue.unwatch();
        true
    }

    /// Tells the waiters of a queue that messages with these tag hashes stand from `first` on.
    pub(crate) fn arrived(
        &self,
        queue: &ConsumeQueue,
        first: u64,
        hashes: impl ExactSizeIterator<Item = i32> + Clone,
    ) {
        let end = first + hashes.len() as u64;
        let mut table = self.held.lock();
        let Some(held) = table.get_mut(&queue.slot) else { return };
        let (mut woken, mut passed) = (Vec::new(), Vec::new());
        held.retain_mut(|held| {
            if end <= held.next {
                return true;
            }
            // What arrived out of order cannot be skipped by looking at this part alone.
            if held.next != first || hashes.clone().any(|hash| held.waiter.wants(hash)) {
                woken.push((held.waiter.clone(), held.next));
                return false;
            }
            held.next = end;
            passed.push(held.waiter.clone());
            true
        });
        if held.is_empty() {
            table.remove(&queue.slot);
        }
        drop(table);
        passed.iter().for_each(|waiter| waiter.skipped(end));
        for (waiter, next) in woken {
            queue.unwatch();
            waiter.wake(next);
        }
    }

    /// How many waiters there are.
    pub(crate) fn len(&self) -> usize {
        self.held.lock().values().map(Vec::len).sum()
    }
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Held").field("next", &self.next).finish_non_exhaustive()
    }
}
