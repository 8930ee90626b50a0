//! What becomes of a message that the listener has failed.

use super::super::owned_queue::{OwnedQueue, Work};
use super::Service;
use super::worker::Worker;
use crate::broker::Mode;
use crate::broker::run::{Place, Run};
use crate::broker::send_back::Failure;
use crate::broker::settled::Settled;
use crate::names;
use crate::store::Delivery;
use crate::sync::Arc;
use crate::sync::atomic::Ordering;

impl Service {
    /// A message has failed. It is dropped in broadcasting, and otherwise sent back; if that fails,
    /// too, it stays in flight and is delivered again after a while (CONC-9, CONC-10).
    pub(super) fn failed(
        &self,
        queue: &Arc<OwnedQueue>,
        delivery: &Delivery<'_>,
        failure: &Failure,
    ) {
        let (offset, counters) = (delivery.offset(), &self.core.counters);
        counters.failed.fetch_add(1, Ordering::Relaxed);
        self.note_failure(format!("{} at {offset}: {}", queue.owned.id, failure.reason));
        if self.mode == Mode::Broadcasting {
            counters.dropped.fetch_add(1, Ordering::Relaxed);
        } else if let Err(error) = self.core.send_back(&self.group, delivery, failure) {
            counters.failed_send_backs.fetch_add(1, Ordering::Relaxed);
            self.note_failure(format!("{} at {offset}, to be sent back: {error}", queue.owned.id));
            return self.retry_in_place(queue, delivery);
        }
        self.progress(queue, queue.window.finish(offset, delivery.body().len()));
    }

    /// The time of a message was over before its turn came.
    pub(super) fn expired(&self, queue: &Arc<OwnedQueue>, delivery: &Delivery<'_>) {
        let offset = delivery.offset();
        let kept = self.core.expire(self.account(), delivery);
        match kept.and_then(|kept| kept.map_or(Ok(()), |kept| self.core.make_durable(&kept))) {
            Ok(()) => self.progress(queue, queue.window.finish(offset, delivery.body().len())),
            Err(error) => {
                self.note_failure(format!("{} at {offset}, expired: {error}", queue.owned.id));
                self.retry_in_place(queue, delivery);
            }
        }
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
            let queue = &queue.owned.queue;
            if own_progress { self.core.settled(&self.group, queue, next) } else { None }
        };
        let settled = queue.settled.get_or_init(look_up).as_ref();
        let is_retried = names::is_of_a_group(queue.owned.id.topic());
        let filter = self.settings.filter_retries && is_retried;
        Again { service: self, settled, filter }
    }
}

/// Which messages have had their turn.
pub(super) struct Again<'a> {
    service: &'a Service,
    settled: Option<&'a Settled>,
    filter: bool,
}

impl Again<'_> {
    /// Whether a message is to be delivered: it has not been sent back before, and what has failed
    /// still passes, if that is asked for (FILT-4).
    pub(super) fn delivers(&self, message: &Delivery<'_>) -> bool {
        let sent_back = self.settled.is_some_and(|settled| settled.has(message));
        !sent_back && (!self.filter || self.service.passes_again(message))
    }
}
