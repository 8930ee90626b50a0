//! A queue that a push consumer owns, and what travels on the channel of its workers.

use super::concurrent::Service;
use super::uncommitted::Uncommitted;
use crate::broker::copies::Copies;
use crate::broker::group::Owned;
use crate::broker::hold::{Arrival, Waiter};
use crate::broker::process_queue::ProcessQueue;
use crate::broker::run::Run;
use crate::clock::Moment;
use crate::store::{Deliveries, DetachedDelivery, Store};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Mutex, OnceLock, Rank, Weak};
use std::collections::BTreeMap;
use std::time::Duration;

/// A queue that a consumer owns.
pub(super) struct OwnedQueue {
    pub(super) owned: Owned,
    pub(super) window: ProcessQueue<Deliveries>,
    /// Failed messages until their next attempt, by offset: here and not in the timer, which
    /// outlives the consumer.
    pub(super) failed: Mutex<BTreeMap<u64, DetachedDelivery>>,
    /// Of a queue that is consumed in order: only who has its pull request uses it.
    pub(super) uncommitted: Mutex<Uncommitted>,
    pub(super) reads: Reads,
    pub(super) last_call: LastCall,
    /// What of it has been sent back before it was given to this consumer, once that is known.
    pub(super) sent_back: OnceLock<Option<Copies>>,
    pub(super) myself: Weak<Self>,
    store: Arc<Store>,
    service: Weak<Service>,
}

/// The right to read on in a queue; exactly one for each owned queue (PULL-1).
pub(super) struct PullRequest {
    pub(super) queue: Arc<OwnedQueue>,
    pub(super) next: u64,
}

/// What workers do.
pub(super) enum Work {
    /// Ask a store of the user's where to go on; it begins here if the store has nothing.
    Open(Arc<OwnedQueue>, u64),
    Pull(PullRequest),
    Help(Arc<OwnedQueue>, Arc<Run>),
    Retry(Arc<OwnedQueue>, u64),
    /// Give a drained queue back.
    Release(Arc<OwnedQueue>),
    /// Have a store of the user's keep all progress.
    Persist,
    /// Tell the user which queues have changed.
    Tell,
    Stop,
}

impl OwnedQueue {
    /// A queue that is read from `offset` on, if that is `known` already.
    pub(super) fn new(owned: Owned, offset: u64, known: bool, service: &Service) -> Arc<Self> {
        let window = if known { ProcessQueue::new(offset) } else { ProcessQueue::unopened(offset) };
        Arc::new_cyclic(|myself| Self {
            owned,
            window,
            failed: Mutex::new(Rank::ProcessQueue, BTreeMap::new()),
            uncommitted: Mutex::new(Rank::ProcessQueue, Uncommitted::default()),
            reads: Reads::new(service.core.clock().moment()),
            last_call: LastCall::new(service.core.clock().moment()),
            sent_back: OnceLock::new(),
            myself: myself.clone(),
            store: service.core.store.clone(),
            service: service.myself.clone(),
        })
    }
}

impl Waiter for OwnedQueue {
    fn wants(&self, message: Arrival) -> bool {
        self.owned.filter.may_pass(&self.store, message)
    }

    fn skipped(&self, _from: u64, next: u64) {
        if let (Some(service), Some(queue)) = (self.service.upgrade(), self.myself.upgrade()) {
            service.progress(&queue, self.window.skip_held(next));
        }
    }

    fn wake(&self, next: u64) {
        if let (Some(service), Some(queue)) = (self.service.upgrade(), self.myself.upgrade()) {
            service.group().pulls.woken.add(1);
            service.read_on(PullRequest { queue, next });
        }
    }
}

/// When a queue was read last (PQ-11).
#[derive(Debug)]
pub(super) struct Reads {
    /// And whether its pull request is held, which counts as reading.
    last: Mutex<(Moment, bool)>,
}

impl Reads {
    fn new(now: Moment) -> Self {
        Self { last: Mutex::new(Rank::ProcessQueue, (now, false)) }
    }

    pub(super) fn note(&self, now: Moment) {
        *self.last.lock() = (now, false);
    }

    pub(super) fn hold(&self) {
        self.last.lock().1 = true;
    }

    /// When it was read last, and whether the next read is held.
    pub(super) fn last(&self) -> (Moment, bool) {
        *self.last.lock()
    }

    /// Whether the last one is longer ago than `age`.
    pub(super) fn are_older(&self, age: Duration, now: Moment) -> bool {
        let (last, held) = self.last();
        !held && now.since(last) > age
    }
}

/// When the listener returned last, without a lock: it is noted for every message.
#[derive(Debug)]
pub(super) struct LastCall {
    since: Moment,
    /// Nanoseconds after that, and one more; 0 if it never did.
    nanos: AtomicU64,
}

impl LastCall {
    fn new(now: Moment) -> Self {
        Self { since: now, nanos: AtomicU64::new(0) }
    }

    pub(super) fn note(&self, now: Moment) {
        let nanos = u64::try_from(now.since(self.since).as_nanos()).unwrap_or(u64::MAX);
        self.nanos.store(nanos.saturating_add(1), Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> Option<Moment> {
        let nanos = self.nanos.load(Ordering::Relaxed).checked_sub(1)?;
        Some(self.since.plus(Duration::from_nanos(nanos)))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::clock::DrivenClock;

    #[test]
    fn pq_11_reads_expire_strictly_after_the_limit_unless_they_are_held() {
        let driven = DrivenClock::new(0);
        let clock = driven.clock();
        let limit = Duration::from_secs(120);
        let reads = Reads::new(clock.moment());
        driven.advance(limit);
        assert!(!reads.are_older(limit, clock.moment()));
        driven.advance(Duration::from_millis(1));
        assert!(reads.are_older(limit, clock.moment()));
        reads.hold();
        driven.advance(100 * limit);
        assert!(!reads.are_older(limit, clock.moment()));
        reads.note(clock.moment());
        assert!(!reads.are_older(limit, clock.moment()));
    }
}
