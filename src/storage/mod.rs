//! Floor 1: bytes on disk. All unsafe code of the crate lives in `region` and `segment`.
//!
//! Everything above goes through the [`Storage`] seam, so that the same store runs on a real
//! directory and on a simulated one that can fail and lose power.

mod dir;
mod region;
mod segment;
#[cfg(any(test, feature = "testing"))]
mod sim;
mod staging;

pub(crate) use dir::Directory;
pub(crate) use region::Region;
pub(crate) use segment::{Backing, Carver, Segment, SegmentWriter, recycle};
pub(crate) use staging::Staging;

#[cfg(all(test, not(loom)))]
pub(crate) use sim::Faults;
#[cfg(any(test, feature = "testing"))]
pub use sim::{Change, Crash, Fate, FaultPlan, SimulatedStorage, StorageCall, StorageFault};

use crate::sync::Arc;
use std::fmt::Debug;
use std::io;
use std::ops::Range;
use std::path::PathBuf;

/// A directory that one broker owns.
///
/// Names are relative, with `/` between folder and file.
pub(crate) trait Storage: Debug + Send + Sync {
    /// Takes the exclusive lock of the directory; false if another holds it.
    fn lock(&self) -> io::Result<bool>;

    /// Gives the lock back.
    fn unlock(&self);

    /// Creates `folder` if it is missing, durably.
    fn make_folder(&self, folder: &str) -> io::Result<()>;

    /// The names of the files in `folder`, sorted.
    fn list(&self, folder: &str) -> io::Result<Vec<String>>;

    /// Opens an existing file.
    fn open(&self, name: &str) -> io::Result<Arc<dyn StorageFile>>;

    /// Opens an existing file for reading alone, while its owner may be writing to it. As long as it
    /// or a region mapped from it lives, the owner does not use the file for anything else.
    ///
    /// # Errors
    /// `WouldBlock` or `NotFound` if the owner is just about to.
    fn open_shared(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        self.open(name)
    }

    /// Creates a file of `len` bytes, all zero and all backed by blocks, or nothing: after a
    /// failure the name is free again. The name is durable only after `sync_folder`.
    fn create(&self, name: &str, len: u64) -> io::Result<Arc<dyn StorageFile>>;

    /// Renames a file over whatever bears the new name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    fn unlink(&self, name: &str) -> io::Result<()>;

    /// Renames a file unless somebody else has a lock on it, as a reader in another process has:
    /// then it stays, and the answer is false.
    fn rename_unshared(&self, from: &str, to: &str) -> io::Result<bool> {
        self.rename(from, to).map(|()| true)
    }

    /// How full the file system is.
    fn space(&self) -> io::Result<Space> {
        Ok(Space { used: 0, available: u64::MAX })
    }

    /// Makes creations, renames and unlinks in `folder` durable.
    fn sync_folder(&self, folder: &str) -> io::Result<()>;

    /// The machine's boot, never all zero, so that recovery can tell a killed process from lost
    /// power; `None` if it cannot be read.
    fn boot_id(&self) -> Option<[u8; 16]>;

    /// Random bytes for a new store's id.
    fn random(&self) -> io::Result<u64>;

    /// What to call `name` in an error.
    fn path(&self, name: &str) -> PathBuf;
}

/// The bytes of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Space {
    pub(crate) used: u64,
    /// To this process: without what is reserved for others.
    pub(crate) available: u64,
}

/// One open file.
pub(crate) trait StorageFile: Debug + Send + Sync {
    fn len(&self) -> io::Result<u64>;

    /// Fills `bytes` from `at`; an error if the file ends before.
    fn read_at(&self, at: u64, bytes: &mut [u8]) -> io::Result<()>;

    /// Writes all of `bytes` at `at`, which may extend the file.
    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes content and length durable.
    fn sync(&self) -> io::Result<()>;

    /// Starts writing `range` to the disk, without waiting for it: a hint, after which `sync` has
    /// less to do. A write that fails then fails this call or the next sync.
    fn start_write_back(&self, range: Range<u64>) -> io::Result<()> {
        let _ = range;
        Ok(())
    }

    /// Maps the whole file.
    fn map(&self) -> io::Result<Region>;

    /// Shortens the file; never called on a mapped one.
    fn truncate(&self, len: u64) -> io::Result<()>;
}

/// Reads a small file whole; `None` if there is none of that name.
pub(crate) fn read_all(storage: &dyn Storage, name: &str) -> io::Result<Option<Vec<u8>>> {
    let file = match storage.open(name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let len = usize::try_from(file.len()?).map_err(io::Error::other)?;
    let mut bytes = vec![0; len];
    file.read_at(0, &mut bytes)?;
    Ok(Some(bytes))
}

/// Replaces a small file whole and durably: write new, sync, rename, sync the folder.
pub(crate) fn replace(storage: &dyn Storage, name: &str, bytes: &[u8]) -> io::Result<()> {
    let (new, _) = write_new(storage, name, bytes)?;
    storage.rename(&new, name)?;
    storage.sync_folder(folder_of(name))
}

/// The first half of that: a durable file under another name, which is returned with it.
pub(crate) fn write_new(
    storage: &dyn Storage,
    name: &str,
    bytes: &[u8],
) -> io::Result<(String, Arc<dyn StorageFile>)> {
    let new = format!("{name}.new");
    let file = storage.create(&new, bytes.len() as u64)?;
    file.write_at(0, bytes)?;
    file.sync()?;
    Ok((new, file))
}

/// The folder part of a name.
pub(crate) fn folder_of(name: &str) -> &str {
    name.rfind('/').map_or("", |slash| &name[..slash])
}
