//! A small table in a file: a log of checksummed entries, compacted when it has grown to twice
//! what is live. Creating the n-th topic therefore writes one entry, not n.

use super::files::{HEAD, Head, corrupt, io_error};
use super::record::{checksum, u32_at};
use crate::error::{Error, Result};
use crate::storage::{Storage, StorageFile, folder_of, read_all, replace, write_new};
use crate::sync::Arc;

/// A table that is smaller is never compacted.
const SMALL: u64 = 64 << 10;

/// An append log of entries.
#[derive(Debug)]
pub(crate) struct Table {
    storage: Arc<dyn Storage>,
    name: &'static str,
    kind: [u8; 4],
    store_id: u64,
    // `None` once it is released.
    file: Option<Arc<dyn StorageFile>>,
    /// Why it is not known which file bears the name after a loss of power.
    lost: Option<String>,
    end: u64,
    /// Bytes of an entry that was not finished stand at the end.
    torn: bool,
    /// Whether to compact is looked at from this length on.
    look_at: u64,
}

impl Table {
    /// Opens the table, or creates an empty one; gives every sound entry, oldest first, to
    /// `entry`. A torn entry at the end is cut off before the next one is added.
    pub(crate) fn open(
        storage: &Arc<dyn Storage>,
        name: &'static str,
        kind: [u8; 4],
        store_id: u64,
        mut entry: impl FnMut(&[u8]),
    ) -> Result<Self> {
        let failed = |action, source| io_error(&**storage, action, name, source);
        let bytes = match read_all(&**storage, name).map_err(|e| failed("read", e))? {
            Some(bytes) => bytes,
            None => {
                let head = Head::new(kind, store_id, 0, 0).encode();
                replace(&**storage, name, &head).map_err(|e| failed("create", e))?;
                head.to_vec()
            }
        };
        let at = Self::parse(&**storage, name, kind, store_id, &bytes, &mut entry)?;
        let file = storage.open(name).map_err(|e| failed("open", e))?;
        let torn = at < bytes.len();
        let storage = storage.clone();
        let (file, lost, end, look_at) = (Some(file), None, at as u64, SMALL);
        Ok(Self { storage, name, kind, store_id, file, lost, end, torn, look_at })
    }

    /// Makes an empty table, in place of what is there.
    pub(crate) fn create(
        storage: &Arc<dyn Storage>,
        name: &'static str,
        kind: [u8; 4],
        store_id: u64,
    ) -> Result<Self> {
        let head = Head::new(kind, store_id, 0, 0).encode();
        replace(&**storage, name, &head).map_err(|e| io_error(&**storage, "create", name, e))?;
        Self::reopen(storage, name, kind, store_id, head.len() as u64)
    }

    /// Goes on with a table whose sound entries are known to end at `end`.
    pub(crate) fn reopen(
        storage: &Arc<dyn Storage>,
        name: &'static str,
        kind: [u8; 4],
        store_id: u64,
        end: u64,
    ) -> Result<Self> {
        let file = storage.open(name).map_err(|e| io_error(&**storage, "open", name, e))?;
        let storage = storage.clone();
        let (file, lost, torn, look_at) = (Some(file), None, true, SMALL);
        Ok(Self { storage, name, kind, store_id, file, lost, end, torn, look_at })
    }

    /// Gives the sound entries of a table to `entry`, up to the first one that is not; returns where
    /// they end. The head is not looked at.
    pub(crate) fn sound_entries(
        store_id: u64,
        bytes: &[u8],
        mut entry: impl FnMut(&[u8]),
    ) -> usize {
        let mut at = HEAD.min(bytes.len());
        while let Some(content) = sound_entry(store_id, &bytes[at..]) {
            entry(content);
            at += 8 + content.len();
        }
        at
    }

    /// Gives every sound entry of a table to `entry`, oldest first, without changing anything; of
    /// a table that is not there, none.
    pub(crate) fn read(
        storage: &dyn Storage,
        name: &'static str,
        kind: [u8; 4],
        store_id: u64,
        mut entry: impl FnMut(&[u8]),
    ) -> Result<()> {
        let bytes = read_all(storage, name).map_err(|e| io_error(storage, "read", name, e))?;
        let Some(bytes) = bytes else { return Ok(()) };
        Self::parse(storage, name, kind, store_id, &bytes, &mut entry).map(drop)
    }

    /// Returns where the sound entries end.
    fn parse(
        storage: &dyn Storage,
        name: &'static str,
        kind: [u8; 4],
        store_id: u64,
        bytes: &[u8],
        entry: &mut impl FnMut(&[u8]),
    ) -> Result<usize> {
        let damaged = |at, reason| Err(corrupt(storage, name, at as u64, reason));
        let head = Head::decode(storage, name, kind, bytes)?;
        if head.store_id != store_id {
            return damaged(16, "the file belongs to another store");
        }
        let at = Self::sound_entries(store_id, bytes, entry);
        if (at + 1..bytes.len()).any(|later| sound_entry(store_id, &bytes[later..]).is_some()) {
            return damaged(at, "an entry in the middle fails its checksum");
        }
        Ok(at)
    }

    /// Bytes of the table.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Adds an entry; it survives the end of the process.
    pub(crate) fn append(&mut self, content: &[u8]) -> Result<()> {
        if self.torn {
            let cut = self.file()?.truncate(self.end);
            cut.map_err(|e| io_error(&*self.storage, "cut", self.name, e))?;
            self.torn = false;
        }
        let bytes = encode(self.store_id, content);
        let wrote = self.file()?.write_at(self.end, &bytes);
        wrote.map_err(|e| io_error(&*self.storage, "write", self.name, e))?;
        self.end += bytes.len() as u64;
        Ok(())
    }

    /// Adds an entry that survives a loss of power. After a failure the next one takes its place.
    pub(crate) fn append_durably(&mut self, content: &[u8]) -> Result<()> {
        let before = self.end;
        self.append(content)?;
        let synced = self.sync();
        if synced.is_err() {
            self.end = before;
        }
        synced
    }

    /// Writes the table once more as it stands, durably: a sync of an earlier process may have
    /// failed, and left it behind as clean.
    pub(crate) fn write_again(&mut self) -> Result<()> {
        let failed = |action, source| io_error(&*self.storage, action, self.name, source);
        let mut bytes = vec![0; self.end as usize];
        self.file()?.read_at(0, &mut bytes).map_err(|e| failed("read", e))?;
        self.file()?.write_at(0, &bytes).map_err(|e| failed("write", e))?;
        self.sync()
    }

    /// Makes all entries survive a loss of power.
    pub(crate) fn sync(&self) -> Result<()> {
        self.file()?.sync().map_err(|e| io_error(&*self.storage, "sync", self.name, e))
    }

    /// Lets go of the file: nothing is added any more.
    pub(crate) fn release(&mut self) {
        self.file = None;
    }

    fn file(&self) -> Result<&dyn StorageFile> {
        if let Some(cause) = &self.lost {
            return Err(Error::Poisoned { cause: cause.clone() });
        }
        self.file.as_deref().ok_or(Error::Closed)
    }

    /// Rewrites the table from its `live` entries if it has grown to twice their size. If the new
    /// file's name cannot be made durable it takes no entry any more: after a loss of power the
    /// old file may be back.
    pub(crate) fn compact(&mut self, live: impl FnOnce() -> Vec<Vec<u8>>) -> Result<()> {
        if self.end < self.look_at {
            return Ok(());
        }
        let bytes = self.image(&live());
        self.look_at = SMALL.max(2 * bytes.len() as u64);
        if self.end < self.look_at { Ok(()) } else { self.replace(&bytes) }
    }

    /// Makes these its entries, durably. See [`compact`](Self::compact) for what a failure leaves.
    pub(crate) fn rewrite(&mut self, entries: &[Vec<u8>]) -> Result<()> {
        let bytes = self.image(entries);
        self.replace(&bytes)
    }

    fn image(&self, entries: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = Head::new(self.kind, self.store_id, 0, 0).encode().to_vec();
        for content in entries {
            encode_into(&mut bytes, self.store_id, content);
        }
        bytes
    }

    fn replace(&mut self, bytes: &[u8]) -> Result<()> {
        let failed = |action, source| io_error(&*self.storage, action, self.name, source);
        let (new, file) =
            write_new(&*self.storage, self.name, bytes).map_err(|e| failed("replace", e))?;
        self.storage.rename(&new, self.name).map_err(|e| failed("replace", e))?;
        // From here on the old file has no name: what it got would be gone at the next open.
        (self.file, self.end, self.torn) = (Some(file), bytes.len() as u64, false);
        let synced = self.storage.sync_folder(folder_of(self.name)).map_err(|e| failed("sync", e));
        synced.inspect_err(|error| self.lost = Some(error.to_string()))
    }
}

fn encode(store_id: u64, content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(8 + content.len());
    encode_into(&mut bytes, store_id, content);
    bytes
}

fn encode_into(bytes: &mut Vec<u8>, store_id: u64, content: &[u8]) {
    bytes.reserve_exact(8 + content.len());
    bytes.extend_from_slice(&(content.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&checksum(store_id, content).to_le_bytes());
    bytes.extend_from_slice(content);
}

fn sound_entry(store_id: u64, bytes: &[u8]) -> Option<&[u8]> {
    let length = u32_at(bytes.get(..8)?, 0) as usize;
    let content = bytes.get(8..8usize.checked_add(length)?)?;
    (length > 0 && checksum(store_id, content) == u32_at(bytes, 4)).then_some(content)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::storage::Directory;
    use crate::store::tests::faulty::{Call, Faulty};

    fn open(storage: &Arc<dyn Storage>) -> Result<(Table, Vec<Vec<u8>>)> {
        let mut entries = Vec::new();
        let table = Table::open(storage, "t", *b"test", 3, |entry| entries.push(entry.to_vec()))?;
        Ok((table, entries))
    }

    #[test]
    fn a_torn_last_entry_is_cut_and_the_table_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let storage: Arc<dyn Storage> = Arc::new(Directory::new(dir.path()).unwrap());
        let (mut table, _) = open(&storage).unwrap();
        table.append(b"one").unwrap();
        table.append(b"two").unwrap();
        let whole = std::fs::read(dir.path().join("t")).unwrap();
        for cut in HEAD..whole.len() {
            std::fs::write(dir.path().join("t"), &whole[..cut]).unwrap();
            let (mut table, entries) = open(&storage).unwrap();
            assert_eq!(entries.len(), usize::from(cut >= HEAD + 11));
            table.append(b"three").unwrap();
            assert_eq!(open(&storage).unwrap().1.last().unwrap(), b"three");
        }
        let mut damaged = whole.clone();
        damaged[HEAD + 9] ^= 1;
        std::fs::write(dir.path().join("t"), &damaged).unwrap();
        assert!(matches!(open(&storage), Err(Error::Corrupt { .. })));
    }

    #[test]
    fn b_172_a_grown_table_is_compacted_to_what_is_live() {
        let dir = tempfile::tempdir().unwrap();
        let storage: Arc<dyn Storage> = Arc::new(Directory::new(dir.path()).unwrap());
        let (mut table, _) = open(&storage).unwrap();
        let entry = [7; 1000];
        for _ in 0..500 {
            table.append(&entry).unwrap();
            table.compact(|| vec![entry.to_vec()]).unwrap();
        }
        assert!(std::fs::metadata(dir.path().join("t")).unwrap().len() < 70_000);
        assert!(open(&storage).unwrap().1.iter().all(|found| *found == entry));
    }

    #[test]
    fn b_172_no_entry_goes_to_a_file_that_a_compaction_has_replaced() {
        let entry = [7; 1000];
        for call in [Call::Create, Call::Write, Call::Sync, Call::Rename, Call::SyncFolder] {
            let dir = tempfile::tempdir().unwrap();
            let faulty = Faulty::new(dir.path());
            let (mut table, _) = open(&(faulty.clone() as _)).unwrap();
            while table.end() < SMALL {
                table.append(&entry).unwrap();
            }
            faulty.fail(Some(call), 0, 1, std::io::ErrorKind::Other);
            assert!(table.compact(|| vec![entry.to_vec()]).is_err(), "{call:?}");
            faulty.heal();
            match table.append_durably(b"last") {
                Ok(()) => assert_ne!(call, Call::SyncFolder),
                Err(error) => assert!(matches!(error, Error::Poisoned { .. }), "{error}"),
            }
            let (_, entries) = open(&(faulty as _)).unwrap();
            let last = entries.last().unwrap();
            assert_eq!(*last == *b"last", call != Call::SyncFolder, "{call:?}");
        }
    }
}
