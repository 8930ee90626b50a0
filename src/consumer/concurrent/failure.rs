//! What becomes of a message that the listener has failed.

use super::super::owned_queue::{OwnedQueue, Work};
use super::Service;
use super::worker::Worker;
use crate::broker::Mode;
use crate::broker::run::{Place, Run};
use crate::store::Delivery;
use crate::sync::Arc;
use crate::sync::atomic::Ordering;

impl Service {
    /// A message has failed: it is dropped in broadcasting, and otherwise delivered again after a
    /// while (CONC-9, CONC-10).
    pub(super) fn failed(&self, queue: &Arc<OwnedQueue>, delivery: &Delivery<'_>, reason: &str) {
        let (offset, counters) = (delivery.offset(), &self.core.counters);
        counters.failed.fetch_add(1, Ordering::Relaxed);
        self.note_failure(format!("{} at {offset}: {reason}", queue.owned.id));
        if self.mode == Mode::Broadcasting {
            counters.dropped.fetch_add(1, Ordering::Relaxed);
            return self.progress(queue, queue.window.finish(offset, delivery.body().len()));
        }
        self.retry_in_place(queue, delivery);
    }

    fn retry_in_place(&self, queue: &Arc<OwnedQueue>, delivery: &Delivery<'_>) {
        let offset = delivery.offset();
        queue.failed.lock().insert(offset, delivery.next_attempt());
        self.progress(queue, queue.window.wait_for_retry());
        let (work, queue) = (self.work.clone(), queue.myself.clone());
        self.core.timer.after(self.settings.retry_delay, move || {
            queue.upgrade().into_iter().for_each(|queue| work.send(Work::Retry(queue, offset)));
        });
    }

    /// The next attempt of a message is due. It is not filtered again, unless that is asked for
    /// (FILT-4).
    pub(super) fn retry(&self, worker: &Arc<Worker>, queue: &Arc<OwnedQueue>, offset: u64) {
        let failed = queue.failed.lock().remove(&offset);
        let Some(message) = failed.filter(|_| queue.window.begin_retry()) else { return };
        let delivery = &message.delivery();
        let place = Place { offset, size: delivery.body().len() };
        if self.settings.filter_retries && !self.core.passes(&queue.owned.filter, delivery) {
            return self.progress(queue, queue.window.finish_all(&[place]));
        }
        let mortal = delivery.expires_ms().is_some();
        let alone = Arc::new(Run::new(message.into(), vec![place], 1).mortal(mortal));
        self.work_on(worker, queue, &alone);
    }
}
