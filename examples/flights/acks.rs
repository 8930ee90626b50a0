//! What was acknowledged, remembered outside the queue.

use crate::Result;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The highest row whose `send` returned, in a file of eight bytes.
///
/// The log cannot testify that it lost nothing, so this file does: like the log it survives a kill
/// of the process, but it shares no code with it.
#[derive(Debug)]
pub(crate) struct Acks(File);

impl Acks {
    /// Opens the file, or makes an empty one.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        Ok(Self(file))
    }

    /// Notes that `row` and everything before it is acknowledged.
    pub(crate) fn note(&self, row: u64) -> Result<()> {
        Ok(self.0.write_all_at(&row.to_le_bytes(), 0)?)
    }

    /// Returns the highest row noted, 0 if none.
    pub(crate) fn highest(&self) -> Result<u64> {
        let mut row = [0; 8];
        match self.0.read_at(&mut row, 0)? {
            0 => Ok(0),
            _ => Ok(u64::from_le_bytes(row)),
        }
    }
}
