//! Making the log durable: what the store does for those that wait, and the steps of the flusher.

use super::Store;
use super::flush_gate::Flushes;
use crate::clock::Moment;
use crate::error::{Error, Result};
use crate::sync::Alarm;

impl Store {
    /// Makes everything sent so far durable.
    ///
    /// # Errors
    /// `Poisoned` if a sync failed, now or earlier.
    pub(crate) fn flush(&self) -> Result<()> {
        let target = self.log.with_tail(|tail| tail.healthy().map(|()| tail.committed()))?;
        self.wait_durable(target).map_err(|cause| Error::Poisoned { cause })
    }

    /// Returns when everything below `target` is durable, or with the cause why it cannot be.
    pub(crate) fn wait_durable(&self, target: u64) -> std::result::Result<(), String> {
        let sync = |from, to| {
            let attempted = self.mark.lock().attempt(to);
            let synced = attempted.and_then(|()| self.log.sync(from, to));
            let synced = synced.and_then(|()| self.mark.lock().set(to));
            // Before anybody is told of it: who is told, and sends again, is refused.
            synced.inspect_err(|error| self.poison(&error.to_string()))?;
            self.log.with_tail(|tail| tail.note_flushed(to));
            Ok(())
        };
        self.gate.wait(target, || self.log.committed(), sync)
    }

    /// Asks the flusher to make everything below `target` durable soon.
    pub(crate) fn want_durable(&self, target: u64) {
        self.gate.want(target);
    }

    /// Waits for the flusher to do so: true once it is done, false if `deadline` passes before; or
    /// the cause why it will never be.
    pub(crate) fn await_durable(
        &self,
        target: u64,
        deadline: Option<Moment>,
    ) -> std::result::Result<bool, String> {
        self.gate.await_durable(target, deadline)
    }

    /// The position below which everything is durable.
    pub(crate) fn flushed(&self) -> u64 {
        self.gate.flushed()
    }

    pub(crate) fn flushes(&self) -> Flushes {
        self.gate.flushes()
    }

    /// Rung when there is something to flush.
    pub(crate) fn flusher(&self) -> &Alarm {
        &self.gate.flusher
    }

    /// What the flusher does as often as it is rung before its interval has passed: it flushes for
    /// those who want that, and starts write-back.
    pub(crate) fn flush_wanted(&self) {
        if let Some(target) = self.gate.open_want() {
            // Whoever waits for it, or sends next, is told of a failure.
            let _ = self.wait_durable(target);
        }
        self.write_back();
    }

    /// One step of the flusher, after its interval: true if there was something to do.
    pub(crate) fn flush_step(&self) -> bool {
        let end = self.log.with_tail(|tail| {
            // The next append wakes it.
            tail.set_flusher_alarm(0);
            tail.committed()
        });
        let behind = self.gate.flushed() < end;
        // A failure has poisoned the store; whoever sends next is told.
        let _ = self.wait_durable(end);
        match self.offsets.sync() {
            // It was not even tried, for want of a descriptor perhaps: the next step does it.
            Ok(()) | Err(Error::Io { action: "open", .. }) => {}
            Err(error) => self.poison(&error.to_string()),
        }
        if self.retaining.waits_for_groups() {
            self.retainer.ring();
        }
        self.checkpoint_step();
        behind
    }

    /// Lets the disk begin with what the next flush will wait for, and has the flusher rung when
    /// there is as much again.
    fn write_back(&self) {
        let least = (self.config.max_unflushed / 2).max(1);
        let (range, from) = self.gate.write_back(self.log.committed(), least);
        if let Some(range) = range
            && let Err(error) = self.log.start_write_back(range.start, range.end)
        {
            self.poison(&error.to_string());
        }
        self.log.with_tail(|tail| tail.set_flusher_alarm(from.saturating_add(least)));
    }

    /// Makes every later append and flush fail with `cause`.
    pub(crate) fn poison(&self, cause: &str) {
        self.log.with_tail(|tail| tail.poison(cause));
        self.gate.fail(cause);
    }
}
