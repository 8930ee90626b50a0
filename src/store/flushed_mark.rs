//! The flushed mark: up to where the log was durable, for the next open.

use super::slots::{Slots, VALUE};
use crate::error::Result;
use crate::storage::Storage;
use crate::sync::Arc;

pub(super) const FILE: &str = "meta/flushed";
pub(super) const KIND: [u8; 4] = *b"flsh";

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
        storage: &Arc<dyn Storage>,
        store_id: u64,
    ) -> Result<(Self, Option<Flushed>)> {
        let boot_id = storage.boot_id();
        let initial = encode(0, boot_id);
        let (slots, value) = Slots::open(storage, FILE, KIND, store_id, &initial)?;
        let said = value.map(|value| {
            let mut boot = [0; 16];
            boot.copy_from_slice(&value[8..24]);
            // Two lives that do not know their boot are not the same.
            let same_boot = boot_id == Some(boot);
            Flushed { position: super::record::u64_at(&value, 0), same_boot }
        });
        Ok((Self { slots, boot_id }, said))
    }

    /// The position that the mark names, read without changing anything.
    pub(crate) fn read(storage: &dyn Storage, store_id: u64) -> Result<u64> {
        let value = Slots::read(storage, FILE, KIND, store_id)?;
        Ok(value.map_or(0, |value| super::record::u64_at(&value, 0)))
    }

    /// Lets go of the file.
    pub(crate) fn release(&mut self) {
        self.slots.release();
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
