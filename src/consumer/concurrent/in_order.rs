//! Working in order: the worker that reads a run keeps the pull request until it is done with it, so
//! that a queue is never with two workers, of whichever member.
//!
//! A queue that is suspended gives back what was read of it: its pull request waits with the timer,
//! and the messages are read again when it comes. A queue that members share has a lease; while it
//! is not valid nothing is read, and no listener is called.

use super::super::orderly::{OrderlyListener, OrderlyOutcome, Pause};
use super::super::owned_queue::{OwnedQueue, PullRequest};
use super::Service;
use crate::broker::run::{Place, Run};
use crate::clock::Moment;
use crate::store::Delivery;
use crate::sync::atomic::Ordering;
use crate::sync::{Arc, contain};
use smallvec::SmallVec;
use std::ops::Range;
use std::time::Duration;

/// How long one run may keep its worker from other queues (ORD-10).
const CONTINUOUS: Duration = Duration::from_secs(60);
/// When a queue comes again that had to make way, or whose lease has lapsed (ORD-10, ORD-11).
const SOON: Duration = Duration::from_millis(10);
/// When a lease is tried again that somebody else has (ORD-11).
const LOCKED: Duration = Duration::from_secs(3);
/// When leases are renewed first (ORD-4).
const FIRST_RENEWAL: Duration = Duration::from_secs(1);

/// How a queue goes on after a batch.
enum Turn {
    Next,
    /// From this offset on, after a while.
    Again(u64, Duration),
}

impl Service {
    /// Renews the leases of all queues, now and then, until the consumer has stopped (ORD-4).
    pub(in super::super) fn renew_leases(&self) {
        self.renew_leases_after(FIRST_RENEWAL.min(self.settings.lease_renewal));
    }

    fn renew_leases_after(&self, time: Duration) {
        let service = self.myself.clone();
        self.core.timer.after(time, move || {
            let running = service.upgrade().filter(|s| !s.stopped.load(Ordering::Acquire));
            let Some(service) = running else { return };
            let leases = |queue: &Arc<OwnedQueue>| queue.owned.lease;
            let leases: Vec<_> = service.queues.lock().values().filter_map(leases).collect();
            service.group.leases.renew(&leases, service.core.clock().moment());
            service.renew_leases_after(service.settings.lease_renewal);
        });
    }

    /// Lets a pull request pass that may read: takes up a lease that has lapsed, unless somebody else
    /// has it. Otherwise the request comes again (ORD-11, PULL-2).
    pub(super) fn pass_leased(&self, request: PullRequest) -> Option<PullRequest> {
        let Some(lease) = request.queue.owned.lease else { return Some(request) };
        let now = self.core.clock().moment();
        if self.group.leases.is_valid(lease, now) {
            return Some(request);
        }
        self.core.counters.lapsed.fetch_add(1, Ordering::Relaxed);
        if self.group.leases.renew(&[lease], now).is_empty() {
            self.pull_later(LOCKED, request);
            return None;
        }
        Some(request)
    }

    /// Works on a run; its pull request goes on when that is done (ORD-10).
    pub(super) fn work_in_order(
        &self,
        listener: &dyn OrderlyListener,
        request: PullRequest,
        run: &Run,
    ) {
        let queue = &request.queue;
        // A queue counts as read as long as it is worked on.
        queue.reads.hold();
        let begun = self.core.clock().moment();
        let mut done = 0;
        while run.claims().open() {
            if !self.may_go_on(queue, begun) {
                let from = run.places()[done].offset;
                self.progress(queue, queue.window.give_back(&[], run, &[]));
                return self.pull_later(SOON, PullRequest { next: from, ..request });
            }
            if run.is_mortal() && self.is_overdue(run, done) {
                // Read again from there, what has expired is passed by.
                let next = run.places()[done].offset;
                self.progress(queue, queue.window.give_back(&[], run, &[]));
                return self.read_on(PullRequest { next, ..request });
            }
            let Some(batch) = run.claims().claim() else { break };
            done = batch.end;
            if let Turn::Again(next, pause) = self.consume_in_order(listener, queue, run, batch) {
                return self.pull_later(pause, PullRequest { next, ..request });
            }
        }
        match self.settings.pull_interval {
            Duration::ZERO => self.read_on(request),
            interval => self.pull_later(interval, request),
        }
    }

    /// Whether one of the messages that are left of a run has expired while it waited.
    fn is_overdue(&self, run: &Run, from: usize) -> bool {
        let mut left = (from..run.places().len()).filter_map(|index| run.messages().get(index));
        left.any(|message| self.core.has_expired(&message))
    }

    fn may_go_on(&self, queue: &OwnedQueue, begun: Moment) -> bool {
        let now = self.core.clock().moment();
        let valid = queue.owned.lease.is_none_or(|lease| self.group.leases.is_valid(lease, now));
        valid && now.since(begun) <= CONTINUOUS
    }

    fn consume_in_order(
        &self,
        listener: &dyn OrderlyListener,
        queue: &Arc<OwnedQueue>,
        run: &Run,
        batch: Range<usize>,
    ) -> Turn {
        let (messages, places) = (messages(queue, run, batch.clone()), &run.places()[batch]);
        let (counters, count) = (&self.core.counters, messages.len() as u64);
        let began = self.core.clock().moment();
        let called = match messages.is_empty() {
            true => Ok(OrderlyOutcome::Success),
            false => contain(|| listener.consume(&messages)),
        };
        if self.settings.take_over_after.is_some() && queue.window.is_abandoned() {
            counters.late.fetch_add(count, Ordering::Relaxed);
            return Turn::Next;
        }
        let outcome = called.unwrap_or_else(|panic| {
            counters.panicked.fetch_add(count, Ordering::Relaxed);
            OrderlyOutcome::Suspend(Pause::because(format!("the listener panicked: {panic}")))
        });
        let manual = self.settings.manual_commit;
        let (consumed, failed) = match &outcome {
            OrderlyOutcome::Suspend(_) => (0, messages.len()),
            OrderlyOutcome::Rollback(_) if manual => (0, 0),
            _ => (messages.len(), 0),
        };
        self.note_call(queue, began, consumed, failed);
        let done = match outcome {
            OrderlyOutcome::Suspend(pause) => {
                counters.failed.fetch_add(count, Ordering::Relaxed);
                self.note_suspended(queue, &messages, pause.reason());
                return self.suspend(queue, run, &[], places, &pause);
            }
            OrderlyOutcome::Rollback(pause) if manual => {
                let kept = queue.unsettled.lock().take_kept();
                self.note_failure(format!(
                    "{} was rolled back: {}",
                    queue.owned.id,
                    pause.reason()
                ));
                return self.suspend(queue, run, &kept, places, &pause);
            }
            outcome => {
                counters.delivered.fetch_add(count, Ordering::Relaxed);
                !manual || outcome == OrderlyOutcome::Commit
            }
        };
        if done {
            self.commit_in_order(queue, places);
        } else {
            queue.unsettled.lock().keep(places);
            self.progress(queue, queue.window.keep(places.len()));
        }
        Turn::Next
    }

    fn note_suspended(&self, queue: &OwnedQueue, messages: &[Delivery<'_>], reason: &str) {
        for message in messages {
            let offset = message.offset();
            self.note_failure(format!("{} at {offset}: {reason}", queue.owned.id));
            queue.unsettled.lock().note_failure(offset);
        }
    }

    /// Gives a batch back, and what was kept before it, to be read again after a pause.
    fn suspend(
        &self,
        queue: &Arc<OwnedQueue>,
        run: &Run,
        kept: &[Place],
        batch: &[Place],
        pause: &Pause,
    ) -> Turn {
        self.core.counters.suspended.fetch_add(1, Ordering::Relaxed);
        let first = kept.first().or(batch.first());
        let next = first.map_or_else(|| queue.window.low(), |first| first.offset);
        self.progress(queue, queue.window.give_back(kept, run, batch));
        Turn::Again(next, pause.time(self.settings.suspend_time))
    }

    /// Commits a batch, and what was kept before it.
    fn commit_in_order(&self, queue: &Arc<OwnedQueue>, batch: &[Place]) {
        let kept = queue.unsettled.lock().take_kept();
        let progress = queue.window.commit(&kept, batch);
        if let Some(offset) = progress.commit {
            queue.unsettled.lock().settle(offset);
        }
        self.progress(queue, progress);
    }
}

/// The messages of a batch, which know how often they have failed.
fn messages<'a>(
    queue: &OwnedQueue,
    run: &'a Run,
    batch: Range<usize>,
) -> SmallVec<[Delivery<'a>; 2]> {
    let unsettled = queue.unsettled.lock();
    let messages = batch.filter_map(|index| run.messages().get(index));
    messages.map(|message| message.after_failures(unsettled.times(message.offset()))).collect()
}
