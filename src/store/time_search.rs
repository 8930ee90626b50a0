//! Search by store time. Store times never decrease along the log, whatever the clock does
//! (B-175), so a search halves the queue and never scans it.

use super::Store;
use super::consume_queue::ConsumeQueue;
use super::files::corrupt;
use super::record::Kind;
use crate::error::{Error, Result};
use std::ops::{AddAssign, RangeInclusive};

/// Which message around a moment is meant, also where many have the same time (STORE-35).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Edge {
    /// The first message that was stored at the time or later; the end of the queue if there is
    /// none.
    AtOrAfter,
    /// The last message that was stored at the time or before; the first stored message if there
    /// is none.
    AtOrBefore,
}

/// How much was stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Volume {
    /// Messages.
    pub messages: u64,
    /// Bytes that they take in the log, with everything that belongs to them.
    pub bytes: u64,
}

impl AddAssign for Volume {
    fn add_assign(&mut self, more: Self) {
        self.messages += more.messages;
        self.bytes += more.bytes;
    }
}

impl Store {
    /// The offset in `queue` that belongs to the time `ms`; the end of an empty queue.
    ///
    /// # Errors
    /// `Corrupt` if a record cannot be read.
    pub(crate) fn offset_at(&self, queue: &ConsumeQueue, ms: u64, edge: Edge) -> Result<u64> {
        match edge {
            Edge::AtOrAfter => self.first_not(queue, |stored| stored < ms),
            Edge::AtOrBefore => {
                let behind = self.first_not(queue, |stored| stored <= ms)?;
                Ok(behind.saturating_sub(1).max(queue.min()))
            }
        }
    }

    /// The store time of the message at `offset`, in milliseconds.
    ///
    /// # Errors
    /// `Corrupt` if the record cannot be read; `OffsetRange` if there is no such message.
    pub(crate) fn store_ms(&self, queue: &ConsumeQueue, offset: u64) -> Result<u64> {
        let (min, max) = (queue.min(), queue.max());
        let entry = queue.entry(offset).ok_or(Error::OffsetRange { offset, min, max })?;
        let file = self.log.file(entry.position).ok_or(Error::OffsetRange { offset, min, max })?;
        // What covers a lost message is as old as what stood behind it.
        let lost = || file.record(entry.position).ok().filter(|record| record.kind() == Kind::Lost);
        let record = match entry.is_lost().then(lost).flatten() {
            Some(lost) => Ok(lost),
            None => self.log.record(&file, queue, offset, entry),
        };
        let damaged = |reason| corrupt(&*self.storage, &file.name(), entry.position, reason);
        record.map(|record| record.store_ms()).map_err(damaged)
    }

    /// What is stored in `queue` of those times.
    ///
    /// # Errors
    /// `Corrupt` if a record cannot be read.
    pub(crate) fn volume(
        &self,
        queue: &ConsumeQueue,
        times: &RangeInclusive<u64>,
    ) -> Result<Volume> {
        let first = self.first_not(queue, |stored| stored < *times.start())?;
        let end = self.first_not(queue, |stored| stored <= *times.end())?;
        let mut volume = Volume::default();
        queue.scan(first..end, |_, entry| {
            if !entry.is_lost() {
                volume += Volume { messages: 1, bytes: entry.length.into() };
            }
            true
        });
        Ok(volume)
    }

    /// The first offset whose store time is not `early`; the end of the queue if all are.
    fn first_not(&self, queue: &ConsumeQueue, early: impl Fn(u64) -> bool) -> Result<u64> {
        let (mut low, mut high) = (queue.min(), queue.max());
        while low < high {
            let middle = low + (high - low) / 2;
            let early = match self.store_ms(queue, middle) {
                // Retention has taken it meanwhile: then it was too early for anything.
                Err(Error::OffsetRange { .. }) => true,
                stored => early(stored?),
            };
            if early {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }
}
