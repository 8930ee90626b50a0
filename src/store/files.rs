//! The head that every file of a store begins with, and the small files that are replaced whole.

use super::record::{checksum, put, u32_at, u64_at};
use crate::error::{Error, Result};
use crate::storage::{Storage, read_all, replace};
use std::io;

/// Bytes of a file head.
pub(crate) const HEAD: usize = 64;

/// No position and no offset ever comes near: what is beyond is damage, so that nothing overflows.
pub(crate) const IMPOSSIBLE: u64 = u64::MAX / 2;

const MAGIC: [u8; 4] = *b"rklt";
const VERSION: u32 = 1;

/// What a file is, and which store it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// Four letters: the kind of file.
    pub(crate) kind: [u8; 4],
    pub(crate) store_id: u64,
    /// A number of the kind's own: base position, block length.
    pub(crate) number: u64,
    /// Bytes of the whole file, or of what follows.
    pub(crate) size: u64,
    /// For a log file: where the one before it ends, 0 for the first; otherwise 0.
    pub(crate) after: u64,
    /// For a log file: the wall time at which it was given its place, in ms; otherwise 0.
    pub(crate) made_ms: u64,
}

impl Head {
    pub(crate) fn new(kind: [u8; 4], store_id: u64, number: u64, size: u64) -> Self {
        Self { kind, store_id, number, size, after: 0, made_ms: 0 }
    }

    pub(crate) fn encode(&self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        put(&mut bytes, 0, &MAGIC);
        put(&mut bytes, 4, &VERSION.to_le_bytes());
        put(&mut bytes, 8, &self.kind);
        put(&mut bytes, 16, &self.store_id.to_le_bytes());
        put(&mut bytes, 24, &self.number.to_le_bytes());
        put(&mut bytes, 32, &self.size.to_le_bytes());
        put(&mut bytes, 40, &self.after.to_le_bytes());
        put(&mut bytes, 48, &self.made_ms.to_le_bytes());
        let crc = checksum(self.store_id, &bytes[..60]);
        put(&mut bytes, 60, &crc.to_le_bytes());
        bytes
    }

    /// The head at the front of file `name`, which must be of `kind`.
    pub(crate) fn decode(
        storage: &dyn Storage,
        name: &str,
        kind: [u8; 4],
        bytes: &[u8],
    ) -> Result<Self> {
        let corrupt = |position, reason| Err(corrupt(storage, name, position, reason));
        if bytes.len() < HEAD {
            return corrupt(0, "the file is shorter than its head");
        }
        if bytes[..4] != MAGIC {
            return corrupt(0, "not a file of rocklet");
        }
        let found = u32_at(bytes, 4);
        if found != VERSION {
            let file = storage.path(name);
            return Err(Error::Version { file, found, supported: VERSION });
        }
        let store_id = u64_at(bytes, 16);
        if checksum(store_id, &bytes[..60]) != u32_at(bytes, 60) {
            return corrupt(0, "the head of the file fails its checksum");
        }
        if bytes[8..12] != kind {
            return corrupt(8, "the file is of another kind");
        }
        let (number, size, after) = (u64_at(bytes, 24), u64_at(bytes, 32), u64_at(bytes, 40));
        let made_ms = u64_at(bytes, 48);
        Ok(Self { kind, store_id, number, size, after, made_ms })
    }
}

/// Replaces the small file `name` by a head and `content`, durably.
pub(crate) fn save(
    storage: &dyn Storage,
    name: &str,
    kind: [u8; 4],
    store_id: u64,
    content: &[u8],
) -> Result<()> {
    let head = Head::new(kind, store_id, 0, content.len() as u64);
    let mut bytes = head.encode().to_vec();
    bytes.extend_from_slice(content);
    bytes.extend_from_slice(&checksum(store_id, content).to_le_bytes());
    replace(storage, name, &bytes).map_err(|source| io_error(storage, "replace", name, source))
}

/// The store id and the content of a small file; `None` if there is none.
pub(crate) fn load(
    storage: &dyn Storage,
    name: &str,
    kind: [u8; 4],
) -> Result<Option<(u64, Vec<u8>)>> {
    let bytes =
        read_all(storage, name).map_err(|source| io_error(storage, "read", name, source))?;
    let Some(mut bytes) = bytes else { return Ok(None) };
    let head = Head::decode(storage, name, kind, &bytes)?;
    let end = bytes.len().saturating_sub(4).max(HEAD);
    let content = &bytes[HEAD..end];
    if bytes.len() != HEAD + content.len() + 4
        || content.len() as u64 != head.size
        || checksum(head.store_id, content) != u32_at(&bytes, end)
    {
        return Err(corrupt(storage, name, HEAD as u64, "the content fails its checksum"));
    }
    bytes.truncate(end);
    bytes.drain(..HEAD);
    Ok(Some((head.store_id, bytes)))
}

pub(crate) fn corrupt(
    storage: &dyn Storage,
    name: &str,
    position: u64,
    reason: &'static str,
) -> Error {
    Error::Corrupt { file: storage.path(name), position, reason }
}

/// Refuses to take `bytes` more if less than `min_free` would stay available to others.
pub(crate) fn check_space(
    storage: &dyn Storage,
    name: &str,
    bytes: u64,
    min_free: u64,
) -> Result<()> {
    if min_free == 0 {
        return Ok(());
    }
    let space = storage.space().map_err(|e| io_error(storage, "measure", name, e))?;
    let needed = bytes.saturating_add(min_free);
    if space.available < needed {
        return Err(Error::DiskFull { file: storage.path(name), needed });
    }
    Ok(())
}

/// Turns a system error into ours; a lack of space is told apart, unless a sync has met it: that
/// is a failed sync, and nothing to be tried again.
pub(crate) fn io_error(
    storage: &dyn Storage,
    action: &'static str,
    name: &str,
    source: io::Error,
) -> Error {
    let file = storage.path(name);
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded if action != "sync" => {
            Error::DiskFull { file, needed: 0 }
        }
        _ => Error::Io { action, file, source },
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::storage::Directory;

    #[test]
    fn a_small_file_is_read_back_or_reported() {
        let dir = tempfile::tempdir().unwrap();
        let storage = Directory::new(dir.path()).unwrap();
        assert!(load(&storage, "a", *b"test").unwrap().is_none());
        save(&storage, "a", *b"test", 42, b"content").unwrap();
        assert_eq!(load(&storage, "a", *b"test").unwrap(), Some((42, b"content".to_vec())));
        let bytes = std::fs::read(storage.path("a")).unwrap();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            std::fs::write(storage.path("a"), &damaged).unwrap();
            assert!(load(&storage, "a", *b"test").is_err(), "byte {at}");
            std::fs::write(storage.path("a"), &bytes[..at]).unwrap();
            assert!(load(&storage, "a", *b"test").is_err(), "cut at {at}");
        }
    }
}
