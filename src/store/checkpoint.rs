//! The checkpoint: from which position on the log has to be read after a crash, and what a clean
//! close leaves behind.
//!
//! A checkpoint at position P says: every entry of the index for a record below P is durable, and
//! so is every topic made below P. It names each queue's range of offsets as it was before P was
//! taken; an index that lacks part of it is damaged and gets rebuilt. A file `CLEAN` with the same position says
//! that nothing came after.

use super::delay_table::DelayTable;
use super::files::{HEAD, IMPOSSIBLE, corrupt, io_error, load, save};
use super::record::{put, u16_at, u32_at, u64_at};
use super::tail::Tail;
use super::{Store, reserve};
use crate::error::{Error, Result};
use crate::storage::Storage;
use std::collections::BTreeMap;
use std::ops::Range;

const FILE: &str = "meta/checkpoint";
const CLEAN: &str = "CLEAN";
const KIND: [u8; 4] = *b"chck";
const CLEAN_KIND: [u8; 4] = *b"clen";
const FIXED: usize = 56;
const EACH: usize = 24;

/// By incarnation and queue: the offsets that are stored, `[min, max)`.
pub(crate) type Bounds = BTreeMap<(u32, u16), Range<u64>>;

/// What a checkpoint says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    /// Everything derived from records below is durable.
    pub(crate) position: u64,
    /// Log files that end at or below are gone, or to be removed.
    pub(crate) min_position: u64,
    pub(crate) index_files: u64,
    pub(crate) last_store_ms: u64,
    /// How many topics there are.
    pub(crate) topics: u64,
    pub(crate) offset_files: u64,
    /// Up to where the table of delays goes at least; 0 if nothing waits that it would have to name.
    pub(crate) delays_as_of: u64,
    pub(crate) bounds: Bounds,
}

impl Checkpoint {
    /// The last checkpoint; `None` if there is none.
    pub(crate) fn load(storage: &dyn Storage, store_id: u64) -> Result<Option<Self>> {
        let Some((id, bytes)) = load(storage, FILE, KIND)? else { return Ok(None) };
        let damaged = |reason| Err(corrupt(storage, FILE, 0, reason));
        if id != store_id {
            return damaged("the file belongs to another store");
        }
        if bytes.len() < FIXED || !(bytes.len() - FIXED).is_multiple_of(EACH) {
            return damaged("the length is wrong");
        }
        let bounds = bytes[FIXED..].as_chunks::<EACH>().0.iter().map(|each| {
            let key = (u32_at(&each[..], 0), u16_at(&each[..], 4));
            (key, u64_at(&each[..], 8)..u64_at(&each[..], 16))
        });
        let bounds: Bounds = bounds.collect();
        if bounds.values().any(|range| range.end > IMPOSSIBLE) {
            return damaged("it names an impossible offset");
        }
        Ok(Some(Self {
            position: u64_at(&bytes, 0),
            min_position: u64_at(&bytes, 8),
            index_files: u64_at(&bytes, 16),
            last_store_ms: u64_at(&bytes, 24),
            topics: u64_at(&bytes, 32),
            offset_files: u64_at(&bytes, 40),
            delays_as_of: u64_at(&bytes, 48),
            bounds,
        }))
    }

    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> u64 {
        (HEAD + FIXED + self.bounds.len() * EACH) as u64
    }

    /// Replaces the last checkpoint, durably.
    pub(crate) fn save(&self, storage: &dyn Storage, store_id: u64) -> Result<()> {
        let mut bytes = Vec::with_capacity(FIXED + self.bounds.len() * EACH);
        bytes.extend_from_slice(&self.position.to_le_bytes());
        bytes.extend_from_slice(&self.min_position.to_le_bytes());
        bytes.extend_from_slice(&self.index_files.to_le_bytes());
        bytes.extend_from_slice(&self.last_store_ms.to_le_bytes());
        bytes.extend_from_slice(&self.topics.to_le_bytes());
        bytes.extend_from_slice(&self.offset_files.to_le_bytes());
        bytes.extend_from_slice(&self.delays_as_of.to_le_bytes());
        for ((incarnation, queue), Range { start, end }) in &self.bounds {
            let mut each = [0; EACH];
            put(&mut each, 0, &incarnation.to_le_bytes());
            put(&mut each, 4, &queue.to_le_bytes());
            put(&mut each, 8, &start.to_le_bytes());
            put(&mut each, 16, &end.to_le_bytes());
            bytes.extend_from_slice(&each);
        }
        save(storage, FILE, KIND, store_id, &bytes)
    }
}

/// What the last checkpoint said; the lock makes checkpoints one at a time.
#[derive(Debug, Default)]
pub(super) struct Checkpointed {
    pub(super) position: u64,
    pub(super) min_position: u64,
    pub(super) closed: bool,
    /// Bytes known to be set aside for a full disk.
    pub(super) reserved: u64,
    pub(super) delays: DelayTable,
}

impl Store {
    /// Writes a checkpoint if the last one is far behind.
    pub(super) fn checkpoint_step(&self) {
        let mut last = self.checkpoint.lock();
        let behind = self.gate.flushed().saturating_sub(last.position);
        if behind >= self.config.segment_bytes || self.delays.press() {
            // A checkpoint that fails leaves the one before: recovery reads more.
            let _ = self.write_checkpoint(&mut last, None);
            drop(last);
            self.index_keys();
        }
    }

    /// Writes a checkpoint at the present end of the log; `min_position` raises the minimum.
    pub(super) fn write_checkpoint(
        &self,
        last: &mut Checkpointed,
        min_position: Option<u64>,
    ) -> Result<()> {
        match self.try_write_checkpoint(last, min_position) {
            Err(Error::DiskFull { .. }) if reserve::spend(&*self.storage) => {
                last.reserved = 0;
                self.try_write_checkpoint(last, min_position)
            }
            written => written,
        }
    }

    fn try_write_checkpoint(
        &self,
        last: &mut Checkpointed,
        min_position: Option<u64>,
    ) -> Result<()> {
        if last.closed {
            return Err(Error::Closed);
        }
        // What a failed sync has dropped, a second one does not bring back.
        self.log.with_tail(Tail::healthy)?;
        // Which topics there are belongs to the position, too: none may come or go meanwhile.
        let changes = self.topics.changes();
        let topics = self.topics.all();
        let queues = topics.iter().flat_map(|topic| topic.queues.iter());
        // Bounds first, then the position: the position covers at least what they say.
        let bounds = queues.map(|queue| {
            let min = min_position.map_or_else(|| queue.min(), |raised| queue.first_at(raised));
            ((queue.incarnation, queue.queue), min..queue.max())
        });
        let bounds = bounds.filter(|(_, bounds)| bounds.end > 0).collect();
        let topics = topics.len() as u64;
        let ((position, last_store_ms), delays) = self.delays.capture(
            |schedule| last.delays.saving(schedule),
            || self.log.with_tail(|tail| (tail.committed(), tail.last_store_ms())),
        );
        drop(changes);
        self.wait_durable(position).map_err(|cause| Error::Poisoned { cause })?;
        let changed = delays.changes;
        let derived = self.arena.sync().and_then(|files| {
            self.topics.save(position)?;
            last.delays.save(&self.storage, self.store_id, position, delays)?;
            Ok(files)
        });
        let index_files = derived.inspect_err(|error| {
            if !matches!(error, Error::DiskFull { .. }) {
                self.poison(&error.to_string());
            }
        })?;
        self.delays.saved(changed);
        let kept = self.log.min_position().max(last.min_position);
        let min_position = min_position.map_or(kept, |raised| raised.max(kept));
        let offset_files = self.offsets.files();
        let checkpoint = Checkpoint {
            position,
            min_position,
            index_files,
            last_store_ms,
            topics,
            offset_files,
            delays_as_of: last.delays.as_of(),
            bounds,
        };
        checkpoint.save(&*self.storage, self.store_id)?;
        let needed = checkpoint.bytes() + last.delays.needs();
        reserve::refill(&*self.storage, &mut last.reserved, needed);
        (last.position, last.min_position) = (position, min_position);
        self.free_doomed(position);
        Ok(())
    }
}

/// Says that the log ends at `end` and that the checkpoint there is the last word.
pub(crate) fn mark_clean(storage: &dyn Storage, store_id: u64, end: u64) -> Result<()> {
    save(storage, CLEAN, CLEAN_KIND, store_id, &end.to_le_bytes())
}

/// The end of the log as of a clean close. A damaged mark is no mark: recovery then reads the log.
pub(crate) fn clean_end(storage: &dyn Storage, store_id: u64) -> Result<Option<u64>> {
    match load(storage, CLEAN, CLEAN_KIND) {
        Ok(Some((id, bytes))) if id == store_id && bytes.len() == 8 => Ok(Some(u64_at(&bytes, 0))),
        Ok(_) | Err(Error::Corrupt { .. }) => Ok(None),
        Err(other) => Err(other),
    }
}

/// Takes the mark away, durably, before anything is appended.
pub(crate) fn unmark_clean(storage: &dyn Storage) -> Result<()> {
    match storage.unlink(CLEAN) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(io_error(storage, "remove", CLEAN, error)),
        Ok(()) => storage.sync_folder("").map_err(|e| io_error(storage, "sync", "", e)),
    }
}
