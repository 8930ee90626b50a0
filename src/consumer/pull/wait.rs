//! Pulling from any queue, at once or as soon as there is something (PC-3, PC-4).

use super::found::{Pull, PullStatus};
use super::member::PullMember;
use crate::broker::filter::Filter;
use crate::broker::hold::{Arrival, Waiter};
use crate::clock::Moment;
use crate::error::Result;
use crate::queue_id::QueueId;
use crate::store::Store;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Arc, Signal};
use std::time::Duration;

impl PullMember {
    /// Looks once, at a bounded number of messages.
    pub(super) fn pull(
        &self,
        id: &QueueId,
        filter: &Filter,
        offset: u64,
        max: usize,
    ) -> Result<Pull> {
        let _reading = self.core.reading()?;
        self.check_open()?;
        self.group.permits(self.mode)?;
        let (topic, queue) = self.core.queue(id)?;
        topic.check_readable()?;
        let fetch = self.core.fetch(&queue, offset, max, usize::MAX, filter)?;
        Ok(Pull::new(fetch, offset))
    }

    /// Looks until there is a message, or `timeout` has passed.
    pub(super) fn pull_within(
        &self,
        id: &QueueId,
        filter: &Filter,
        mut offset: u64,
        max: usize,
        timeout: Duration,
    ) -> Result<Pull> {
        let clock = self.core.clock();
        let deadline = clock.moment().plus(timeout);
        loop {
            let pull = self.pull(id, filter, offset, max)?;
            offset = match pull.status {
                PullStatus::Found | PullStatus::OffsetIllegal => return Ok(pull),
                _ if clock.moment() >= deadline => return Ok(pull),
                PullStatus::NoMatchedMessage => pull.next,
                PullStatus::NoNewMessage => self.await_arrival(id, filter, offset, deadline)?,
            };
        }
    }

    /// Sleeps in the hold table, at the end of a queue, until it is worth while to look again, and
    /// says where.
    fn await_arrival(
        &self,
        id: &QueueId,
        filter: &Filter,
        offset: u64,
        deadline: Moment,
    ) -> Result<u64> {
        let (_, queue) = self.core.queue(id)?;
        let awaited = Arc::new(Awaited {
            filter: filter.clone(),
            store: self.core.store.clone(),
            place: AtomicU64::new(offset),
            woken: AtomicBool::new(false),
            signal: self.waits.clone(),
        });
        let waiter: Arc<dyn Waiter> = awaited.clone();
        self.core.hold.park(&self.core.store, &queue, offset, &waiter);
        let over = || awaited.woken.load(Ordering::Acquire) || self.is_closed() || queue.is_gone();
        self.waits.wait_until(self.core.clock(), Some(deadline), over);
        self.core.hold.cancel(&queue, &waiter);
        Ok(awaited.place.load(Ordering::Relaxed))
    }
}

/// One call that waits.
struct Awaited {
    filter: Filter,
    store: Arc<Store>,
    /// Everything below it has been looked at.
    place: AtomicU64,
    woken: AtomicBool,
    /// Shared by all calls that wait on the same consumer.
    signal: Signal,
}

impl Waiter for Awaited {
    fn wants(&self, message: Arrival) -> bool {
        self.filter.may_pass(&self.store, message)
    }

    fn skipped(&self, _from: u64, next: u64) {
        self.place.fetch_max(next, Ordering::Relaxed);
    }

    fn wake(&self, next: u64) {
        self.place.fetch_max(next, Ordering::Relaxed);
        self.woken.swap(true, Ordering::Release);
        self.signal.notify();
    }
}
