//! Progress as the broker stores it: whatever an offset is stored for, it is synced before long.

use super::Store;
use super::offsets::OffsetKey;
use crate::error::Result;

impl Store {
    /// Stores a group's progress in a queue if it is higher than before (CONC-11), and has it
    /// synced before long.
    ///
    /// # Errors
    /// `DiskFull` if this is the group's first commit to the queue and there is no room for a cell.
    pub(crate) fn raise_offset(&self, key: OffsetKey, offset: u64) -> Result<()> {
        self.sync_soon(self.offsets.raise(key, offset)?);
        Ok(())
    }

    /// Stores a group's progress in a queue, whichever way it moves.
    ///
    /// # Errors
    /// As [`raise_offset`](Self::raise_offset).
    pub(crate) fn set_offset(&self, key: OffsetKey, offset: u64) -> Result<()> {
        self.sync_soon(self.offsets.set(key, offset)?);
        Ok(())
    }

    /// Stores where a group begins in a queue, unless it has.
    ///
    /// # Errors
    /// As [`raise_offset`](Self::raise_offset).
    pub(crate) fn begin_offset(&self, key: OffsetKey, offset: u64) -> Result<()> {
        self.sync_soon(self.offsets.begin(key, offset)?);
        Ok(())
    }

    /// As [`set_offset`](Self::set_offset), and ignores what comes after it until
    /// [`thaw`](super::offsets::Offsets::thaw).
    ///
    /// # Errors
    /// As [`raise_offset`](Self::raise_offset); then nothing is frozen.
    pub(crate) fn freeze_offset(&self, key: OffsetKey, offset: u64) -> Result<()> {
        self.sync_soon(self.offsets.freeze(key, offset)?);
        Ok(())
    }

    fn sync_soon(&self, first_unsynced: bool) {
        if first_unsynced {
            self.flusher().ring();
        }
    }
}
