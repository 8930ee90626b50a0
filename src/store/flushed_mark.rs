//! The flushed mark: up to where the log was durable, for the next open.

use super::record::u64_at;
use super::slots::{Slots, VALUE};
use crate::error::Result;
use crate::storage::Storage;
use crate::sync::Arc;

pub(super) const FILE: &str = "meta/flushed";
pub(super) const KIND: [u8; 4] = *b"flsh";

/// How far the log was known to be durable, and in which life of the machine: what recovery needs
/// to tell a torn tail from damage.
///
/// Written to the page cache around each flush: it survives the process, and after a loss of power
/// it is at worst older, which makes recovery more lenient, never less.
///
/// Before a flush it names how far that is to reach. A sync that fails leaves pages behind that the
/// system takes for clean: a later one passes over them, in another process, too. So what lies
/// between the two positions at open is written once more before it is synced.
#[derive(Debug)]
pub(crate) struct FlushedMark {
    slots: Slots,
    boot_id: Option<[u8; 16]>,
    position: u64,
}

impl FlushedMark {
    /// Opens the mark; the second value is what it said, if it could be read.
    pub(crate) fn open(
        storage: &Arc<dyn Storage>,
        store_id: u64,
    ) -> Result<(Self, Option<Flushed>)> {
        let boot_id = storage.boot_id();
        let initial = encode(0, 0, boot_id);
        let (slots, value) = Slots::open(storage, FILE, KIND, store_id, &initial)?;
        let said = value.map(|value| {
            let mut boot = [0; 16];
            boot.copy_from_slice(&value[8..24]);
            // Two lives that do not know their boot are not the same.
            let same_boot = boot_id == Some(boot);
            let (position, attempted) = (u64_at(&value, 0), u64_at(&value, 24));
            Flushed { position, attempted, same_boot }
        });
        let position = said.map_or(0, |said: Flushed| said.position);
        Ok((Self { slots, boot_id, position }, said))
    }

    /// The position that the mark names, read without changing anything.
    pub(crate) fn read(storage: &dyn Storage, store_id: u64) -> Result<u64> {
        let value = Slots::read(storage, FILE, KIND, store_id)?;
        Ok(value.map_or(0, |value| u64_at(&value, 0)))
    }

    /// Lets go of the file.
    pub(crate) fn release(&mut self) {
        self.slots.release();
    }

    /// Everything below `position` is durable.
    pub(crate) fn set(&mut self, position: u64) -> Result<()> {
        self.position = position;
        self.slots.set(&encode(position, position, self.boot_id))
    }

    /// A flush up to `end` is about to begin.
    pub(crate) fn attempt(&mut self, end: u64) -> Result<()> {
        self.slots.set(&encode(self.position, end, self.boot_id))
    }
}

/// What the mark said at open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flushed {
    pub(crate) position: u64,
    /// How far a flush was to reach that has not ended, or has failed.
    pub(crate) attempted: u64,
    /// The machine has not been restarted since: nothing can be missing below the end of the log.
    pub(crate) same_boot: bool,
}

fn encode(position: u64, attempted: u64, boot_id: Option<[u8; 16]>) -> [u8; VALUE] {
    let mut value = [0; VALUE];
    value[..8].copy_from_slice(&position.to_le_bytes());
    value[8..24].copy_from_slice(&boot_id.unwrap_or_default());
    value[24..32].copy_from_slice(&attempted.to_le_bytes());
    value
}
