//! Group commit: who makes the log durable, for whom, and the end of trust after a failure.
//!
//! A flush covers everything committed before it began. Whoever needs a position to be durable and
//! finds no flush in progress *leads* one for all; the others wait for it, and the next leader covers
//! whatever came meanwhile (docs/design.md). Whoever cannot stay to lead *wants* a position, and may
//! *await* it later: the flusher leads for him. It is rung for the first want, and by whoever ends a
//! flush that left one open, so that an open want always has a ring or a flush to follow.
//!
//! A failed sync is never tried again: the pages may have been dropped as clean, so a second success
//! would prove nothing. Once the gate has failed it leads no flush; what is durable stays durable.

use crate::clock::{Clock, Moment};
use crate::error::Result;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Alarm, Mutex, Padded, Rank, Signal};
use std::ops::Range;
use std::time::Duration;

/// The durable end of the log, and the right to move it.
#[derive(Debug)]
pub(crate) struct FlushGate {
    flushed: Padded<AtomicU64>,
    state: Mutex<State>,
    done: Signal,
    clock: Clock,
    /// Rung when there is something for the flusher to do.
    pub(crate) flusher: Alarm,
}

#[derive(Debug)]
struct State {
    flushed: u64,
    /// The highest position that somebody waits for without leading.
    wanted: u64,
    /// Up to where write-back was started.
    written_back: u64,
    leading: bool,
    failed: Option<String>,
    flushes: Flushes,
}

/// What the flushes so far took.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flushes {
    pub(crate) count: u64,
    pub(crate) time: Duration,
    pub(crate) slowest: Duration,
}

impl FlushGate {
    /// A gate for a log that is durable up to `flushed`.
    pub(crate) fn new(clock: Clock, flushed: u64) -> Self {
        let state = State {
            flushed,
            wanted: 0,
            written_back: flushed,
            leading: false,
            failed: None,
            flushes: Flushes::default(),
        };
        Self {
            flushed: Padded::new(AtomicU64::new(flushed)),
            state: Mutex::new(Rank::Flush, state),
            done: Signal::new(),
            clock,
            flusher: Alarm::new(),
        }
    }

    /// The position below which everything is durable.
    pub(crate) fn flushed(&self) -> u64 {
        self.flushed.load(Ordering::Acquire)
    }

    pub(crate) fn flushes(&self) -> Flushes {
        self.state.lock().flushes
    }

    /// Returns once everything below `target` is durable, leading a flush if nobody else does.
    ///
    /// `committed` tells how far a flush that begins now reaches, `sync` makes a range durable.
    ///
    /// # Errors
    /// The cause, if a sync failed now or ever before.
    pub(crate) fn wait(
        &self,
        target: u64,
        committed: impl Fn() -> u64,
        sync: impl Fn(u64, u64) -> Result<()>,
    ) -> std::result::Result<(), String> {
        loop {
            if self.flushed() >= target {
                return Ok(());
            }
            let mut state = self.state.lock();
            // A flush may have ended since: its cover is not to be synced again.
            #[cfg(not(broken_flush_twice))]
            if state.flushed >= target {
                return Ok(());
            }
            if state.leading {
                drop(state);
                self.done.wait_until(&self.clock, None, || self.settled(target));
                continue;
            }
            if let Some(cause) = &state.failed {
                return Err(cause.clone());
            }
            state.leading = true;
            let from = state.flushed;
            drop(state);
            // Read after this flush has begun to be ours: all that came before is covered.
            let to = committed();
            let began = self.clock.moment();
            let synced = sync(from, to);
            let took = self.clock.moment().since(began);
            #[cfg(broken_flush_end_late)]
            let to = committed();
            self.end(synced.map(|()| to), took);
        }
    }

    /// Ends the flush that the caller has led: everything below what it `reached` is durable.
    fn end(&self, reached: Result<u64>, took: Duration) {
        let mut state = self.state.lock();
        state.leading = false;
        state.flushes.note(took);
        match reached {
            Ok(to) => {
                state.flushed = to;
                self.flushed.store(to, Ordering::Release);
            }
            #[cfg(not(broken_flush_retry))]
            Err(error) => drop(state.failed.get_or_insert_with(|| error.to_string())),
            #[cfg(broken_flush_retry)]
            Err(_) => {}
        }
        let open = state.open_want().is_some();
        drop(state);
        #[cfg(not(broken_flush_silent))]
        self.done.notify();
        #[cfg(not(broken_want_left))]
        if open {
            self.flusher.ring();
        }
        #[cfg(broken_want_left)]
        let _ = open;
    }

    /// Whether a wait for `target` has something else to do than to sleep.
    fn settled(&self, target: u64) -> bool {
        self.flushed() >= target || !self.state.lock().leading
    }

    /// Asks the flusher to make everything below `target` durable soon.
    pub(crate) fn want(&self, target: u64) {
        if self.flushed() >= target {
            return;
        }
        let mut state = self.state.lock();
        let first = state.open_want().is_none();
        state.wanted = state.wanted.max(target);
        drop(state);
        #[cfg(not(broken_want_silent))]
        if first {
            self.flusher.ring();
        }
        #[cfg(broken_want_silent)]
        let _ = first;
    }

    /// The position that somebody wants to be durable and that is not yet.
    pub(crate) fn open_want(&self) -> Option<u64> {
        self.state.lock().open_want()
    }

    /// Returns true once everything below `target`, which the caller has wanted, is durable; false
    /// if `deadline` passes before.
    ///
    /// # Errors
    /// The cause, if that will never be.
    pub(crate) fn await_durable(
        &self,
        target: u64,
        deadline: Option<Moment>,
    ) -> std::result::Result<bool, String> {
        let mut failed = None;
        let in_time = self.done.wait_until(&self.clock, deadline, || {
            if self.flushed() >= target {
                return true;
            }
            let state = self.state.lock();
            // A flush that is in progress may still end well.
            failed = state.failed.clone().filter(|_| state.flushed < target && !state.leading);
            state.flushed >= target || failed.is_some()
        });
        failed.map_or(Ok(in_time), Err)
    }

    /// The next stretch of which write-back is to be started, if there are `least` bytes of it up
    /// to `end`; and from where on the one after that begins.
    pub(crate) fn write_back(&self, end: u64, least: u64) -> (Option<Range<u64>>, u64) {
        let mut state = self.state.lock();
        let from = state.written_back.max(state.flushed);
        if end < from.saturating_add(least) || state.failed.is_some() {
            return (None, from);
        }
        state.written_back = end;
        (Some(from..end), end)
    }

    /// Leads no flush from now on, for `cause`: who waits for more than is durable is told.
    pub(crate) fn fail(&self, cause: &str) {
        self.state.lock().failed.get_or_insert_with(|| cause.to_owned());
        #[cfg(not(broken_fail_silent))]
        self.done.notify();
    }

    /// As [`fail`](Self::fail), and waits for a flush in progress: no file is written afterwards.
    pub(crate) fn shut(&self, cause: &str) {
        self.fail(cause);
        #[cfg(not(broken_shut_early))]
        self.done.wait_until(&self.clock, None, || !self.state.lock().leading);
    }
}

impl State {
    fn open_want(&self) -> Option<u64> {
        Some(self.wanted).filter(|wanted| *wanted > self.flushed && self.failed.is_none())
    }
}

impl Flushes {
    fn note(&mut self, took: Duration) {
        self.count += 1;
        self.time = self.time.saturating_add(took);
        self.slowest = self.slowest.max(took);
    }
}
