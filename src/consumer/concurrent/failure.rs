//! What becomes of a message that the listener has failed.

use super::super::owned_queue::{OwnedQueue, Work};
use super::Service;
use super::worker::Worker;
use crate::broker::Mode;
use crate::broker::copies::Copies;
use crate::broker::run::{Place, Run};
use crate::broker::send_back::Failure;
use crate::error::Error;
use crate::names;
use crate::store::{Appended, Delivery};
use crate::sync::Arc;
use crate::sync::atomic::Ordering;
use std::ops::Range;

impl Service {
    /// A part of a run has failed. It is dropped in broadcasting, and otherwise sent back, message by
    /// message; one of which that fails, too, stays in flight, and is delivered again after a while
    /// (CONC-9, CONC-10).
    pub(super) fn fail(
        &self,
        queue: &Arc<OwnedQueue>,
        run: &Run,
        part: Range<usize>,
        failure: &Failure,
    ) {
        let mut done = Vec::with_capacity(part.len());
        let mut last = None;
        for index in part {
            let sent_back = match run.messages().get(index) {
                Some(delivery) => self.send_back(queue, &delivery, failure),
                // Somebody has written to the file: there is nothing left to deliver.
                None => Some(None),
            };
            if let Some(stored) = sent_back {
                last = stored.or(last);
                done.push(index);
            }
        }
        // One wait for all of them.
        match last.map_or(Ok(()), |last| self.core.make_durable(&last)) {
            Ok(()) => {
                let done: Vec<_> = done.into_iter().map(|index| run.places()[index]).collect();
                self.progress(queue, queue.window.finish_all(&done));
            }
            // Their copies may not survive, so they are not passed.
            Err(error) => {
                let messages = done.into_iter().filter_map(|index| run.messages().get(index));
                messages.for_each(|delivery| self.not_sent_back(queue, &delivery, &error));
            }
        }
    }

    /// Sends one message back; `None` if that is not possible, and otherwise what was stored, if
    /// anything.
    fn send_back(
        &self,
        queue: &Arc<OwnedQueue>,
        delivery: &Delivery<'_>,
        failure: &Failure,
    ) -> Option<Option<Appended>> {
        let counters = &self.core.counters;
        counters.failed.fetch_add(1, Ordering::Relaxed);
        let (id, offset) = (&queue.owned.id, delivery.offset());
        self.note_failure(format!("{id} at {offset}: {}", failure.reason));
        if self.mode == Mode::Broadcasting {
            counters.dropped.fetch_add(1, Ordering::Relaxed);
            return Some(None);
        }
        let sent_back = self.core.store_back(&self.group, delivery, failure);
        sent_back.inspect_err(|error| self.not_sent_back(queue, delivery, error)).ok()
    }

    /// The time of a message was over before its turn came.
    pub(super) fn pass_expired(&self, queue: &Arc<OwnedQueue>, delivery: &Delivery<'_>) {
        let offset = delivery.offset();
        let kept = self.core.pass_by(self.account(), &queue.owned, delivery);
        match kept.and_then(|kept| kept.map_or(Ok(()), |kept| self.core.make_durable(&kept))) {
            Ok(()) => self.progress(queue, queue.window.finish(offset, delivery.body().len())),
            Err(error) => {
                self.note_failure(format!("{} at {offset}, expired: {error}", queue.owned.id));
                self.retry_in_place(queue, delivery);
            }
        }
    }

    fn not_sent_back(&self, queue: &Arc<OwnedQueue>, delivery: &Delivery<'_>, error: &Error) {
        let (id, offset) = (&queue.owned.id, delivery.offset());
        self.core.counters.failed_send_backs.fetch_add(1, Ordering::Relaxed);
        self.note_failure(format!("{id} at {offset} cannot be sent back: {error}"));
        self.retry_in_place(queue, delivery);
    }

    fn retry_in_place(&self, queue: &Arc<OwnedQueue>, delivery: &Delivery<'_>) {
        let offset = delivery.offset();
        queue.failed.lock().insert(offset, delivery.next_attempt());
        self.progress(queue, queue.window.wait_for_retry());
        let (work, queue) = (self.work.clone(), queue.myself.clone());
        self.core.timer.after(self.settings.local_retry_delay, move || {
            queue.upgrade().into_iter().for_each(|queue| work.send(Work::Retry(queue, offset)));
        });
    }

    /// The next attempt of a message that could not be sent back is due.
    pub(super) fn retry(&self, worker: &Arc<Worker>, queue: &Arc<OwnedQueue>, offset: u64) {
        let failed = queue.failed.lock().remove(&offset);
        let Some(message) = failed.filter(|_| queue.window.begin_retry()) else { return };
        let delivery = &message.delivery();
        let place = Place { offset, size: delivery.body().len() };
        if self.settings.filter_retries && !self.passes_again(delivery) {
            return self.progress(queue, queue.window.finish_all(&[place]));
        }
        let mortal = delivery.expires_ms().is_some();
        let alone = Arc::new(Run::new(message.into(), vec![place], 1).mortal(mortal));
        self.work_on(worker, queue, &alone);
    }

    /// Whether a message that has failed still passes the filter of the topic in which it was sent.
    fn passes_again(&self, delivery: &Delivery<'_>) -> bool {
        let filter = self.group.filter(delivery.topic());
        filter.is_none_or(|filter| self.core.passes(&filter, delivery))
    }

    /// What is to be known of messages that are read from `next` on.
    pub(super) fn again<'a>(&'a self, queue: &'a OwnedQueue, next: u64) -> Again<'a> {
        let own_progress = self.mode == Mode::Clustering && self.own_offsets.is_none();
        let look_up = || {
            let owned = &queue.owned;
            if own_progress { self.core.sent_back(&self.group, owned, next) } else { None }
        };
        let sent_back = queue.sent_back.get_or_init(look_up).as_ref();
        let is_retried = names::is_of_a_group(queue.owned.id.topic());
        let filter = self.settings.filter_retries && is_retried;
        Again { service: self, sent_back, filter }
    }
}

/// Which messages have had their turn.
pub(super) struct Again<'a> {
    service: &'a Service,
    sent_back: Option<&'a Copies>,
    filter: bool,
}

impl Again<'_> {
    /// Whether a message is to be delivered: it has not been sent back before, and what has failed
    /// still passes, if that is asked for (FILT-4).
    pub(super) fn delivers(&self, message: &Delivery<'_>) -> bool {
        let sent_back = self.sent_back.is_some_and(|copies| copies.replace(message));
        !sent_back && (!self.filter || self.service.passes_again(message))
    }
}
