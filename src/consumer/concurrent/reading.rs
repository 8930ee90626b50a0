//! Reading for a push consumer: one turn of a pull request, and when the next one comes.

use super::super::handler::Handler;
use super::super::owned_queue::{OwnedQueue, PullRequest, Work};
use super::Service;
use super::worker::Worker;
use crate::broker::expiry::Most;
use crate::broker::filter::Filter;
use crate::broker::group::Owned;
use crate::broker::hold::Waiter;
use crate::broker::pull_stats::Count;
use crate::broker::run::{Place, Run};
use crate::clock::Moment;
use crate::error::Result;
use crate::store::{Delivery, Fetch, FetchStatus};
use crate::sync::Arc;
use crate::sync::atomic::Ordering;
use std::time::Duration;

// A run is read at once, so it is bounded in bytes, too.
const RUN_BYTES: usize = 4 << 20;
const MIB: usize = 1 << 20;

impl Service {
    /// One turn of a pull request (PULL-2, PULL-11).
    pub(super) fn pull(&self, worker: &Arc<Worker>, request: PullRequest) {
        let stale = |request: &PullRequest| request.queue.window.is_revoked();
        if stale(&request) {
            return;
        }
        // While it waits for its consumer it counts as read, as wherever it waits (PULL-4).
        request.queue.reads.hold();
        let Some(request) = self.paused.pass(request, stale) else { return };
        let Some(request) = self.pass_leased(request) else { return };
        let PullRequest { queue, next } = &request;
        let began = self.core.clock().moment();
        queue.reads.note(began);
        if let Err(error) = self.group.permits(self.mode) {
            return self.pull_failed(request, error.to_string());
        }
        if let Some(limit) = self.exceeded(queue) {
            self.pull_later(self.settings.flow_delay, request);
            return limit.add(1);
        }
        let index = &queue.owned.queue;
        let fetch = match self.read(queue, *next) {
            Ok(fetch) => fetch,
            Err(error) => {
                self.core.counters.failed_reads.fetch_add(1, Ordering::Relaxed);
                let cause = format!("{} from {next} on: {error}", queue.owned.id);
                return self.pull_failed(request, cause);
            }
        };
        match fetch.status {
            FetchStatus::Found => self.take_over(worker, request, fetch, began),
            FetchStatus::NoMatched => {
                self.group.pulls.none_matched.add(1);
                self.pass_to(fetch.next, request);
            }
            // A deleted topic: the queue is about to be revoked.
            FetchStatus::Removing | FetchStatus::TooSmall if index.is_gone() => {
                self.pass_to(fetch.next, request);
            }
            FetchStatus::Removing | FetchStatus::TooSmall => self.correct(request, fetch.next),
            FetchStatus::Empty if *next > 0 => self.correct(request, 0),
            FetchStatus::AtEnd | FetchStatus::Empty => self.wait(request),
            FetchStatus::Beyond => {
                let nearest = index.opened_at().clamp(fetch.min, fetch.max);
                self.correct(request, nearest);
            }
        }
    }

    fn read(&self, queue: &OwnedQueue, next: u64) -> Result<Fetch> {
        let most = Most { messages: self.settings.pull_batch, bytes: RUN_BYTES };
        let (again, owned) = (self.again(queue, next), &queue.owned);
        owned.passed.forget_below(queue.window.low());
        let comes_again = queue.uncommitted.lock().knows_any();
        if !comes_again || self.settings.filter_retries {
            let delivers = |message: &Delivery<'_>| again.delivers(message);
            return self.core.fetch_for(self.account(), owned, next, most, delivers);
        }
        // What was delivered before in order is not filtered again (FILT-4).
        let delivers = |message: &Delivery<'_>| {
            let known = queue.uncommitted.lock().knows(message.offset());
            again.delivers(message) && (known || self.core.passes(&owned.filter, message))
        };
        let unfiltered = Owned { filter: Filter::ALL, ..owned.clone() };
        self.core.fetch_for(self.account(), &unfiltered, next, most, delivers)
    }

    /// Hands what was found to the workers, and the pull request on.
    fn take_over(&self, worker: &Arc<Worker>, request: PullRequest, fetch: Fetch, began: Moment) {
        let now = self.core.clock().moment();
        let took = now.since(began);
        self.group.pulls.count_found(fetch.messages.len(), took);
        let mut mortal = false;
        let place = |m: Delivery<'_>| {
            mortal |= m.expires_ms().is_some();
            Place { offset: m.offset(), size: m.body().len() }
        };
        let places: Vec<_> = fetch.messages.iter().map(place).collect();
        let bytes = places.iter().map(|place| place.size).sum();
        request.queue.owned.meter.count_read(places.len(), bytes, took, now);
        let batch = self.handler.batch(self.settings.listener_batch);
        let run = Arc::new(Run::new(fetch.messages, places, batch).mortal(mortal));
        let queue = request.queue;
        if !queue.window.register(&run, fetch.next) {
            return;
        }
        let next = PullRequest { queue: queue.clone(), next: fetch.next };
        if let Handler::InOrder(listener) = &self.handler {
            return self.work_in_order(&**listener, next, &run);
        }
        if self.settings.pull_interval.is_zero() {
            self.work.send(Work::Pull(next));
        } else {
            self.pull_later(self.settings.pull_interval, next);
        }
        self.work_on(worker, &queue, &run);
    }

    /// Goes on at `next`: nothing before it is to be consumed.
    fn pass_to(&self, next: u64, PullRequest { queue, .. }: PullRequest) {
        self.progress(&queue, queue.window.skip(next));
        self.work.send(Work::Pull(PullRequest { queue, next }));
    }

    /// Goes on at the nearest offset that the queue has, at once: what is in flight keeps its place
    /// in the window, so nothing has to be waited for (PULL-12).
    fn correct(&self, request: PullRequest, nearest: u64) {
        let PullRequest { queue, next } = &request;
        self.group.pulls.count_illegal(*next, nearest);
        let id = &queue.owned.id;
        self.note_failure(format!("{id} has no offset {next}: reading goes on at {nearest}"));
        if nearest >= *next {
            self.pass_to(nearest, request);
        } else if queue.window.rewind(nearest) {
            self.go_back(queue, nearest);
            self.work.send(Work::Pull(PullRequest { next: nearest, ..request }));
        } else {
            // Revoked meanwhile.
            self.pull_later(self.settings.error_delay, request);
        }
    }

    /// Has the pull request wait for the next message (HOLD-1).
    fn wait(&self, request: PullRequest) {
        let pulls = &self.group.pulls;
        if let Some(interval) = self.settings.short_poll {
            self.pull_later(interval, request);
            return pulls.no_new.add(1);
        }
        pulls.no_new.add(1);
        let PullRequest { queue, next } = request;
        let (index, waiter) = (&queue.owned.queue, queue.clone() as Arc<dyn Waiter>);
        queue.reads.hold();
        self.core.hold.park(&self.core.store, index, next, &waiter);
        // Revoked while it was being parked: nobody will come to fetch it.
        if queue.window.is_revoked() {
            self.core.hold.cancel(index, &waiter);
        }
        pulls.held.add(1);
    }

    /// How often the limit was exceeded that reading has run into, if it has: more is in flight than
    /// it may run ahead of (PULL-2, PULL-3, PULL-5).
    fn exceeded(&self, queue: &OwnedQueue) -> Option<&Count> {
        // In order one run is in flight at a time, and what waits for a commit: 17 bytes for each.
        if let Handler::InOrder(_) = self.handler {
            return None;
        }
        let settings = &self.settings;
        let share = |of_topic: Option<usize>, of_queue: usize| match of_topic {
            Some(most) => (most / self.queues.lock().len().max(1)).max(1),
            None => of_queue,
        };
        let in_flight = queue.window.in_flight();
        let pulls = &self.group.pulls;
        let too_much = in_flight.messages > share(settings.topic_messages, settings.queue_messages)
            || in_flight.bytes / MIB > share(settings.topic_mib, settings.queue_mib);
        if too_much {
            return Some(&pulls.paused_for_size);
        }
        (in_flight.span > settings.max_span as u64).then_some(&pulls.paused_for_span)
    }

    fn pull_failed(&self, request: PullRequest, cause: String) {
        self.note_failure(cause);
        self.pull_later(self.settings.error_delay, request);
        self.group.pulls.failed.add(1);
    }

    /// Has the request come again after a while, if the queue is still owned then.
    pub(super) fn pull_later(&self, delay: Duration, PullRequest { queue, next }: PullRequest) {
        queue.reads.hold();
        let (service, queue) = (self.myself.clone(), queue.myself.clone());
        self.core.timer.after(delay, move || {
            if let (Some(service), Some(queue)) = (service.upgrade(), queue.upgrade()) {
                service.read_on(PullRequest { queue, next });
            }
        });
    }

    /// Hands a pull request that has waited to the workers.
    pub(in super::super) fn read_on(&self, request: PullRequest) {
        request.queue.reads.note(self.core.clock().moment());
        self.work.send(Work::Pull(request));
    }
}
