//! Making the log durable: group commit, the flushed mark, and the end of trust after a failure.
//!
//! A flush covers everything committed before it began. Whoever needs a position to be durable
//! and finds no flush in progress leads one for all; the others wait for it, and the next leader
//! covers whatever came meanwhile (docs/design.md). A failed sync is never tried again: the pages may
//! have been dropped as clean, so a second success would prove nothing.

use super::slots::{Slots, VALUE};
use crate::clock::Clock;
use crate::error::Result;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, Padded, Rank, Signal};

/// The durable end of the log, and the right to move it.
#[derive(Debug)]
pub(crate) struct FlushGate {
    flushed: Padded<AtomicU64>,
    state: Mutex<State>,
    done: Signal,
    clock: Clock,
}

#[derive(Debug)]
struct State {
    flushed: u64,
    leading: bool,
    failed: Option<String>,
}

impl FlushGate {
    /// A gate for a log that is durable up to `flushed`.
    pub(crate) fn new(clock: Clock, flushed: u64) -> Self {
        let state = State { flushed, leading: false, failed: None };
        Self {
            flushed: Padded::new(AtomicU64::new(flushed)),
            state: Mutex::new(Rank::Flush, state),
            done: Signal::new(),
            clock,
        }
    }

    /// The position below which everything is durable.
    pub(crate) fn flushed(&self) -> u64 {
        self.flushed.load(Ordering::Acquire)
    }

    /// Returns once everything below `target` is durable.
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
            if let Some(cause) = &state.failed {
                return Err(cause.clone());
            }
            if state.leading {
                drop(state);
                self.done.wait_until(&self.clock, None, || self.settled(target));
                continue;
            }
            state.leading = true;
            let from = state.flushed;
            drop(state);
            // Read after this flush has begun to be ours: all that came before is covered.
            let to = committed();
            let synced = sync(from, to);
            let mut state = self.state.lock();
            state.leading = false;
            match synced {
                Ok(()) => {
                    #[cfg(broken_flush_end_late)]
                    let to = committed();
                    state.flushed = to;
                    self.flushed.store(to, Ordering::Release);
                }
                #[cfg(not(broken_flush_retry))]
                Err(error) => state.failed = Some(error.to_string()),
                #[cfg(broken_flush_retry)]
                Err(_) => {}
            }
            drop(state);
            #[cfg(not(broken_flush_silent))]
            self.done.notify();
        }
    }

    fn settled(&self, target: u64) -> bool {
        self.flushed() >= target || {
            let state = self.state.lock();
            !state.leading || state.failed.is_some()
        }
    }
}

/// How far the log was known to be durable, and in which life of the machine: what recovery needs
/// to tell a torn tail from damage.
///
/// Written to the page cache after each flush: it survives the process, and after a loss of power
/// it is at worst older, which makes recovery more lenient, never less.
#[derive(Debug)]
pub(crate) struct FlushedMark {
    slots: Slots,
    boot_id: Option<[u8; 16]>,
}

impl FlushedMark {
    /// Opens the mark; the second value is what it said, if it could be read.
    pub(crate) fn open(
        storage: &crate::sync::Arc<dyn crate::storage::Storage>,
        store_id: u64,
    ) -> Result<(Self, Option<Flushed>)> {
        let boot_id = storage.boot_id();
        let initial = encode(0, boot_id);
        let (slots, value) = Slots::open(storage, "meta/flushed", *b"flsh", store_id, &initial)?;
        let said = value.map(|value| {
            let mut boot = [0; 16];
            boot.copy_from_slice(&value[8..24]);
            // Two lives that do not know their boot are not the same.
            let same_boot = boot_id == Some(boot);
            Flushed { position: super::record::u64_at(&value, 0), same_boot }
        });
        Ok((Self { slots, boot_id }, said))
    }

    pub(crate) fn set(&mut self, position: u64) -> Result<()> {
        self.slots.set(&encode(position, self.boot_id))
    }
}

/// What the mark said at open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flushed {
    pub(crate) position: u64,
    /// The machine has not been restarted since: nothing can be missing below the end of the log.
    pub(crate) same_boot: bool,
}

fn encode(position: u64, boot_id: Option<[u8; 16]>) -> [u8; VALUE] {
    let mut value = [0; VALUE];
    value[..8].copy_from_slice(&position.to_le_bytes());
    value[8..24].copy_from_slice(&boot_id.unwrap_or_default());
    value
}
