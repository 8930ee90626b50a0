//! How a push consumer stops: it leaves its group, drains, and ends its workers.

use super::super::owned_queue::Work;
use super::Service;
use crate::broker::core::Running;
use crate::error::{Error, Result};
use crate::sync::atomic::Ordering;
use crate::sync::spawn;
use std::time::Duration;

impl Service {
    /// Ends the workers of a consumer that was refused by its group, where another one may have
    /// its name.
    pub(in super::super) fn discard(&self) {
        if !self.stopping.swap(true, Ordering::AcqRel) {
            self.finish();
        }
    }

    /// Stops, and waits until that is done, but for listeners no longer than `limit`.
    ///
    /// # Errors
    /// `NotDrained` if that was not long enough: the rest happens when they return.
    pub(in super::super) fn stop_within(&self, limit: Option<Duration>) -> Result<()> {
        let deadline = limit.map(|limit| self.core.clock().moment().plus(limit));
        let first = !self.stopping.swap(true, Ordering::AcqRel);
        if first {
            self.group.leave(&self.name);
        }
        match (first, self.is_worker()) {
            (true, false) if limit.is_none() => self.finish(),
            // A listener cannot wait for itself.
            (true, _) => self.finish_behind(),
            (false, _) => {}
        }
        let stopped = || self.stopped.load(Ordering::Acquire);
        if self.is_worker() || self.changed.wait_until(self.core.clock(), deadline, stopped) {
            return Ok(());
        }
        Err(Error::NotDrained { queues: self.queues.lock().len() })
    }

    /// Does what is left on a thread of its own. Without one to spare, whoever stops it next does
    /// that.
    fn finish_behind(&self) {
        let service = self.myself.upgrade();
        let behind = service.map(|service| spawn("stop", move || service.finish()));
        if !matches!(behind, Some(Ok(_))) {
            self.stopping.store(false, Ordering::Release);
        }
    }

    /// What is left of stopping once the group has been left.
    fn finish(&self) {
        let drained = || self.broken.load(Ordering::Acquire) || self.queues.lock().is_empty();
        self.changed.wait_until(self.core.clock(), None, drained);
        self.pool.close(|| self.work.send(Work::Stop));
        drop(self.paused.open());
        // What a dead worker has left unfinished: nobody works on it any more.
        let left = std::mem::take(&mut *self.queues.lock());
        for (id, queue) in left {
            self.group.released(&self.name, &id, queue.window.low());
        }
        self.stopped.store(true, Ordering::Release);
        self.changed.notify();
    }
}

impl Running for Service {
    fn stop(&self) {
        // Without a limit there is no error.
        let _ = self.stop_within(None);
    }

    fn is_worker(&self) -> bool {
        self.pool.has_current_thread()
    }
}
