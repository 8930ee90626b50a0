//! A small value that is overwritten in place and survives a crash in the middle: two slots used
//! in turn, each with a sequence number and a checksum.

use super::files::{HEAD, Head, corrupt, io_error};
use super::record::{checksum, put, u32_at, u64_at};
use crate::error::{Error, Result};
use crate::storage::{Storage, StorageFile, folder_of};
use crate::sync::Arc;

/// Bytes of the value.
pub(crate) const VALUE: usize = 40;

// In a sector each, so that no torn write damages both.
const SLOTS: [u64; 2] = [512, 1024];
const SLOT: usize = VALUE + 16;
const FILE: u64 = 4096;

/// Two slots in a file of their own.
#[derive(Debug)]
pub(crate) struct Slots {
    storage: Arc<dyn Storage>,
    name: &'static str,
    // `None` once it is released.
    file: Option<Arc<dyn StorageFile>>,
    store_id: u64,
    sequence: u64,
}

impl Slots {
    /// Opens `name`, or creates it with `initial`; returns the newest sound value.
    ///
    /// # Errors
    /// A damaged head is an error; a file in which neither slot is sound gives `None`.
    pub(crate) fn open(
        storage: &Arc<dyn Storage>,
        name: &'static str,
        kind: [u8; 4],
        store_id: u64,
        initial: &[u8; VALUE],
    ) -> Result<(Self, Option<[u8; VALUE]>)> {
        let failed = |action, source| io_error(&**storage, action, name, source);
        let file = match storage.open(name) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let new = format!("{name}.new");
                let file = storage.create(&new, FILE).map_err(|e| failed("create", e))?;
                let head = Head::new(kind, store_id, 0, FILE);
                file.write_at(0, &head.encode()).map_err(|e| failed("write", e))?;
                let file = Some(file);
                let slots = Self { storage: storage.clone(), name, file, store_id, sequence: 0 };
                let slots = slots.first(initial)?;
                storage.rename(&new, name).map_err(|e| failed("rename", e))?;
                storage.sync_folder(folder_of(name)).map_err(|e| failed("sync", e))?;
                return Ok((slots, Some(*initial)));
            }
            Err(error) => return Err(failed("open", error)),
        };
        let newest = newest(&**storage, name, kind, store_id, &*file)?;
        let sequence = newest.map_or(0, |(sequence, _)| sequence);
        let file = Some(file);
        let slots = Self { storage: storage.clone(), name, file, store_id, sequence };
        Ok((slots, newest.map(|(_, value)| value)))
    }

    /// The newest sound value of `name`, read without changing anything; `None` if there is no such
    /// file.
    ///
    /// # Errors
    /// `Corrupt` also if neither slot is sound: no crash leaves it so.
    pub(crate) fn read(
        storage: &dyn Storage,
        name: &str,
        kind: [u8; 4],
        store_id: u64,
    ) -> Result<Option<[u8; VALUE]>> {
        let file = match storage.open(name) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(|e| io_error(storage, "open", name, e))?,
        };
        match newest(storage, name, kind, store_id, &*file)? {
            Some((_, value)) => Ok(Some(value)),
            None => Err(corrupt(storage, name, SLOTS[0], "neither copy is sound")),
        }
    }

    /// Overwrites the older slot; the value survives the end of the process.
    pub(crate) fn set(&mut self, value: &[u8; VALUE]) -> Result<()> {
        let sequence = self.sequence + 1;
        let mut slot = [0; SLOT];
        put(&mut slot, 0, value);
        put(&mut slot, VALUE, &sequence.to_le_bytes());
        let crc = checksum(self.store_id, &slot[..SLOT - 8]);
        put(&mut slot, SLOT - 8, &crc.to_le_bytes());
        let at = SLOTS[(sequence % 2) as usize];
        let wrote = self.file()?.write_at(at, &slot);
        wrote.map_err(|e| io_error(&*self.storage, "write", self.name, e))?;
        self.sequence = sequence;
        Ok(())
    }

    /// Makes the value survive a loss of power.
    pub(crate) fn sync(&self) -> Result<()> {
        self.file()?.sync().map_err(|e| io_error(&*self.storage, "sync", self.name, e))
    }

    /// Lets go of the file: nothing is set any more.
    pub(crate) fn release(&mut self) {
        self.file = None;
    }

    fn file(&self) -> Result<&dyn StorageFile> {
        self.file.as_deref().ok_or(Error::Closed)
    }

    fn first(mut self, value: &[u8; VALUE]) -> Result<Self> {
        self.set(value)?;
        self.sync()?;
        Ok(self)
    }
}

/// The newest sound slot: its sequence and its value.
fn newest(
    storage: &dyn Storage,
    name: &str,
    kind: [u8; 4],
    store_id: u64,
    file: &dyn StorageFile,
) -> Result<Option<(u64, [u8; VALUE])>> {
    let failed = |action, source| io_error(storage, action, name, source);
    let mut bytes = vec![0; FILE as usize];
    let len = file.len().map_err(|e| failed("measure", e))?.min(FILE) as usize;
    file.read_at(0, &mut bytes[..len]).map_err(|e| failed("read", e))?;
    let head = Head::decode(storage, name, kind, &bytes[..len.max(HEAD)])?;
    if head.store_id != store_id {
        return Err(corrupt(storage, name, 16, "the file belongs to another store"));
    }
    let found = SLOTS.iter().filter_map(|at| {
        let slot = &bytes[*at as usize..*at as usize + SLOT];
        let sound = checksum(head.store_id, &slot[..SLOT - 8]) == u32_at(slot, SLOT - 8);
        let mut value = [0; VALUE];
        value.copy_from_slice(&slot[..VALUE]);
        sound.then(|| (u64_at(slot, VALUE), value))
    });
    Ok(found.max_by_key(|(sequence, _)| *sequence))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::storage::Directory;
    use std::os::unix::fs::FileExt;

    #[test]
    fn the_newest_sound_slot_counts() {
        let dir = tempfile::tempdir().unwrap();
        let storage: Arc<dyn Storage> = Arc::new(Directory::new(dir.path()).unwrap());
        let open = || Slots::open(&storage, "s", *b"test", 9, &[1; VALUE]).unwrap();
        let (mut slots, value) = open();
        assert_eq!(value, Some([1; VALUE]));
        slots.set(&[2; VALUE]).unwrap();
        slots.set(&[3; VALUE]).unwrap();
        assert_eq!(open().1, Some([3; VALUE]));
        // Damage to the newest leaves the one before.
        let file = std::fs::OpenOptions::new().write(true).open(dir.path().join("s")).unwrap();
        file.write_at(&[9], 1024).unwrap();
        assert_eq!(open().1, Some([2; VALUE]));
        let read = || Slots::read(&*storage, "s", *b"test", 9);
        assert_eq!(read().unwrap(), Some([2; VALUE]));
        file.write_at(&[9], 512).unwrap();
        assert_eq!(open().1, None);
        assert!(matches!(read(), Err(Error::Corrupt { position: 512, .. })));
    }
}
