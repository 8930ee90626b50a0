//! Reading for a push consumer: one turn of a pull request, and when the next one comes.

use super::super::owned_queue::{OwnedQueue, PullRequest, Work};
use super::Service;
use crate::broker::group::Owned;
use crate::broker::hold::Waiter;
use crate::broker::run::{Place, Run};
use crate::store::{Delivery, FetchStatus};
use crate::sync::Arc;
use crate::sync::atomic::Ordering;
use std::time::Duration;

// A run is read at once, so it is bounded in bytes, too.
const RUN_BYTES: usize = 4 << 20;
const MIB: usize = 1 << 20;

impl Service {
    /// One turn of a pull request (PULL-2, PULL-11).
    pub(super) fn pull(&self, request: PullRequest) {
        let stale = |request: &PullRequest| request.queue.window.is_revoked();
        if stale(&request) {
            return;
        }
        // While it waits for its consumer it counts as read, as wherever it waits (PULL-4).
        request.queue.reads.hold();
        let Some(request) = self.paused.pass(request, stale) else { return };
        let PullRequest { queue, next } = &request;
        queue.reads.note(self.core.clock().moment());
        if let Err(error) = self.group.permits(self.mode) {
            self.note_failure(error.to_string());
            return self.pull_later(self.settings.error_delay, request);
        }
        if self.is_full(queue) {
            return self.pull_later(self.settings.flow_delay, request);
        }
        let Owned { queue: index, filter, .. } = &queue.owned;
        let batch = self.settings.pull_batch;
        let fetch = match self.core.fetch(index, *next, batch, RUN_BYTES, filter) {
            Ok(fetch) => fetch,
            Err(error) => {
                self.note_failure(format!("{} from {next} on: {error}", queue.owned.id));
                self.core.counters.failed_reads.fetch_add(1, Ordering::Relaxed);
                return self.pull_later(self.settings.error_delay, request);
            }
        };
        match fetch.status {
            FetchStatus::Found => {
                let place = |m: Delivery<'_>| Place { offset: m.offset(), size: m.body().len() };
                let places = fetch.messages.iter().map(place).collect();
                let run = Arc::new(Run::new(fetch.messages, places, 1));
                if queue.window.register(&run, fetch.next) {
                    let queue = queue.clone();
                    let next = PullRequest { queue: queue.clone(), next: fetch.next };
                    if self.settings.pull_interval.is_zero() {
                        self.work.send(Work::Pull(next));
                    } else {
                        self.pull_later(self.settings.pull_interval, next);
                    }
                    self.work_on(&queue, &run);
                }
            }
            FetchStatus::NoMatched | FetchStatus::Removing | FetchStatus::TooSmall => {
                self.progress(queue, queue.window.skip(fetch.next));
                self.work.send(Work::Pull(PullRequest { next: fetch.next, ..request }));
            }
            FetchStatus::AtEnd | FetchStatus::Empty => {
                let waiter: Arc<dyn Waiter> = queue.clone();
                queue.reads.hold();
                self.core.hold.park(&self.core.store, index, *next, &waiter);
                // Revoked while it was being parked: nobody will come to fetch it.
                if queue.window.is_revoked() {
                    self.core.hold.cancel(index, &waiter);
                }
            }
            // Commits beyond the end are lowered at open; nothing else can lead here.
            FetchStatus::Beyond => self.pull_later(self.settings.error_delay, request),
        }
    }

    /// Whether more is in flight than reading may run ahead of (PULL-2, PULL-3, PULL-5).
    fn is_full(&self, queue: &OwnedQueue) -> bool {
        let settings = &self.settings;
        let share = |of_topic: Option<usize>, of_queue: usize| match of_topic {
            Some(most) => (most / self.queues.lock().len().max(1)).max(1),
            None => of_queue,
        };
        let in_flight = queue.window.in_flight();
        in_flight.messages > share(settings.topic_messages, settings.queue_messages)
            || in_flight.bytes / MIB > share(settings.topic_mib, settings.queue_mib)
            || in_flight.span > settings.max_span as u64
    }

    fn pull_later(&self, delay: Duration, request: PullRequest) {
        request.queue.reads.hold();
        let service = self.myself.clone();
        self.core.timer.after(delay, move || {
            if let Some(service) = service.upgrade() {
                service.read_on(request);
            }
        });
    }

    /// Hands a pull request that has waited to the workers.
    pub(in super::super) fn read_on(&self, request: PullRequest) {
        request.queue.reads.note(self.core.clock().moment());
        self.work.send(Work::Pull(request));
    }
}
