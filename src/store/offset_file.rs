//! A file of committed offsets: a head, and cells of two checksummed copies each.
//!
//! Files are numbered without a gap, have one length, and are whole and durable before they bear
//! their name.

use super::files::{HEAD, Head, corrupt, io_error};
use super::offsets::OffsetKey;
use super::record::{checksum, put, u16_at, u32_at, u64_at};
use crate::error::Result;
use crate::storage::{Storage, StorageFile};
use crate::sync::Arc;

pub(super) const KIND: [u8; 4] = *b"offs";
#[cfg(not(all(test, loom)))]
pub(super) const FILE: usize = 64 << 10;
#[cfg(all(test, loom))]
pub(super) const FILE: usize = HEAD + 2 * CELL;
pub(super) const COPY: usize = 32;
pub(super) const CELL: usize = 2 * COPY;
pub(super) const CELLS: usize = (FILE - HEAD) / CELL;

/// A commit and its place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    /// Counted over all files.
    pub(super) number: usize,
    pub(super) sequence: u64,
    pub(super) offset: u64,
}

/// What a cell holds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Content {
    Nothing,
    /// Neither copy is sound.
    Unsound,
    /// Of its copies the newest; the cell has no number yet.
    Commit(OffsetKey, Cell),
}

/// Makes an empty file, complete and durable before it bears its name; one that `stands_in` for a
/// file that was lost says so.
pub(super) fn make_file(
    storage: &dyn Storage,
    store_id: u64,
    number: usize,
    stands_in: bool,
) -> Result<Arc<dyn StorageFile>> {
    let name = file_name(number);
    let failed = |action, source| io_error(storage, action, &name, source);
    let new = format!("{name}.new");
    let file = storage.create(&new, FILE as u64).map_err(|e| failed("create", e))?;
    let head = Head::new(KIND, store_id, number as u64, FILE as u64);
    let head = Head { after: u64::from(stands_in), ..head };
    file.write_at(0, &head.encode()).map_err(|e| failed("write", e))?;
    file.sync().map_err(|e| failed("sync", e))?;
    storage.rename(&new, &name).map_err(|e| failed("rename", e))?;
    storage.sync_folder("meta").map_err(|e| failed("sync", e))?;
    Ok(file)
}

/// Refuses a file that cells cannot be read from; returns its head.
pub(super) fn check_file(storage: &dyn Storage, store_id: u64, name: &str) -> Result<Head> {
    let failed = |action, source| io_error(storage, action, name, source);
    let file = storage.open(name).map_err(|e| failed("open", e))?;
    if file.len().map_err(|e| failed("measure", e))? != FILE as u64 {
        return Err(corrupt(storage, name, 0, "the length is wrong"));
    }
    let mut bytes = [0; HEAD];
    file.read_at(0, &mut bytes).map_err(|e| failed("read", e))?;
    let head = Head::decode(storage, name, KIND, &bytes)?;
    if head.store_id != store_id {
        return Err(corrupt(storage, name, 16, "the file belongs to another store"));
    }
    Ok(head)
}

/// The bytes of one copy of a cell.
pub(super) fn encode(store_id: u64, key: OffsetKey, cell: Cell) -> [u8; COPY] {
    let mut bytes = [0; COPY];
    put(&mut bytes, 0, &cell.offset.to_le_bytes());
    put(&mut bytes, 8, &key.group.to_le_bytes());
    put(&mut bytes, 12, &key.incarnation.to_le_bytes());
    put(&mut bytes, 16, &cell.sequence.to_le_bytes());
    put(&mut bytes, 24, &key.queue.to_le_bytes());
    bytes[26] = 1;
    let crc = checksum(store_id, &bytes[..COPY - 4]);
    put(&mut bytes, COPY - 4, &crc.to_le_bytes());
    bytes
}

/// What the bytes of a cell say.
pub(super) fn content(store_id: u64, cell: &[u8]) -> Content {
    let copies = cell.as_chunks::<COPY>().0.iter().filter_map(|copy| decode(store_id, copy));
    match copies.max_by_key(|(_, cell)| cell.sequence) {
        Some((key, cell)) => Content::Commit(key, cell),
        None if cell.iter().any(|byte| *byte != 0) => Content::Unsound,
        None => Content::Nothing,
    }
}

fn decode(store_id: u64, bytes: &[u8; COPY]) -> Option<(OffsetKey, Cell)> {
    let sound = bytes[26] == 1 && checksum(store_id, &bytes[..COPY - 4]) == u32_at(bytes, COPY - 4);
    let key = OffsetKey {
        group: u32_at(bytes, 8),
        incarnation: u32_at(bytes, 12),
        queue: u16_at(bytes, 24),
    };
    sound.then(|| (key, Cell { number: 0, sequence: u64_at(bytes, 16), offset: u64_at(bytes, 0) }))
}

/// The files, of which none may be missing before the last: a later one would be written over.
pub(super) fn list(storage: &dyn Storage) -> Result<Vec<String>> {
    let names = storage.list("meta").map_err(|e| io_error(storage, "list", "meta", e))?;
    let mut numbers: Vec<usize> = names.iter().filter_map(|name| number_of(name)).collect();
    numbers.sort_unstable();
    match numbers.iter().enumerate().find(|(nth, number)| nth != *number) {
        Some((_, later)) => {
            Err(corrupt(storage, &file_name(*later), 0, "the file before this one is missing"))
        }
        None => Ok(numbers.into_iter().map(file_name).collect()),
    }
}

pub(super) fn number_of(name: &str) -> Option<usize> {
    name.strip_prefix("offsets-")?.parse().ok()
}

pub(super) fn file_name(number: usize) -> String {
    format!("meta/offsets-{number:04}")
}
