//! Committed offsets: one cell for every group and queue, overwritten in place.
//!
//! A cell is two CRC'd copies used in turn, so that a crash in the middle of a commit leaves the
//! one before. Cells live in mapped files whose blocks are reserved: a commit is a few stores into
//! memory, survives the end of the process as soon as it returns, and needs no space on a full
//! disk; only the first commit of a group to a queue may.

use super::files::{HEAD, Head, io_error};
use super::record::{checksum, put, u16_at, u32_at, u64_at};
use crate::error::Result;
use crate::storage::{Region, Storage, StorageFile};
use crate::sync::{Arc, Mutex, Rank};
use std::collections::HashMap;

const KIND: [u8; 4] = *b"offs";
const FILE: usize = 64 << 10;
const COPY: usize = 32;
const CELL: usize = 2 * COPY;
const CELLS: usize = (FILE - HEAD) / CELL;

/// Which queue of which group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OffsetKey {
    pub(crate) group: u32,
    pub(crate) incarnation: u32,
    pub(crate) queue: u16,
}

/// All committed offsets of a store.
#[derive(Debug)]
pub(crate) struct Offsets {
    storage: Arc<dyn Storage>,
    store_id: u64,
    /// Held while a file is made, so that two first commits do not make the same one.
    growth: Mutex<()>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    files: Vec<CellFile>,
    cells: HashMap<OffsetKey, Cell>,
    used: usize,
    dirty: bool,
}

#[derive(Debug)]
struct CellFile {
    region: Region,
    file: Arc<dyn StorageFile>,
}

#[derive(Clone, Copy, Debug)]
struct Cell {
    number: usize,
    sequence: u32,
    offset: u64,
}

impl Offsets {
    /// Opens the cells; the second value counts those in which neither copy was sound.
    pub(crate) fn open(storage: &Arc<dyn Storage>, store_id: u64) -> Result<(Self, u64)> {
        let mut state = State::default();
        let mut unsound = 0;
        loop {
            let name = file_name(state.files.len());
            let failed = |action, source| io_error(&**storage, action, &name, source);
            let file = match storage.open(&name) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => break,
                opened => opened.map_err(|e| failed("open", e))?,
            };
            if file.len().map_err(|e| failed("measure", e))? != FILE as u64 {
                return Err(super::files::corrupt(&**storage, &name, 0, "the length is wrong"));
            }
            let mut region = file.map().map_err(|e| failed("map", e))?;
            let head = Head::decode(&**storage, &name, KIND, region.bytes(0..HEAD))?;
            if head.store_id != store_id {
                let reason = "the file belongs to another store";
                return Err(super::files::corrupt(&**storage, &name, 16, reason));
            }
            for nth in 0..CELLS {
                let at = HEAD + nth * CELL;
                let bytes = region.bytes(at..at + CELL);
                let copies = bytes.as_chunks::<COPY>().0.iter().filter_map(|c| decode(store_id, c));
                let number = state.files.len() * CELLS + nth;
                match copies.max_by_key(|(_, cell)| cell.sequence) {
                    Some((key, cell)) => {
                        state.cells.insert(key, Cell { number, ..cell });
                        state.used = number + 1;
                    }
                    None if bytes.iter().any(|byte| *byte != 0) => {
                        unsound += 1;
                        state.used = number + 1;
                    }
                    None => {}
                }
            }
            state.files.push(CellFile { region, file });
        }
        let growth = Mutex::new(Rank::OffsetGrowth, ());
        let state = Mutex::new(Rank::OffsetStore, state);
        Ok((Self { storage: storage.clone(), store_id, growth, state }, unsound))
    }

    /// Makes the first file, which must be there if offsets were `expected`.
    ///
    /// # Errors
    /// `Corrupt` if it is missing.
    pub(crate) fn prepare(&self, expected: bool) -> Result<()> {
        if expected && self.state.lock().files.is_empty() {
            let reason = "the file is missing, though there are groups";
            return Err(super::files::corrupt(&*self.storage, &file_name(0), 0, reason));
        }
        if self.state.lock().files.is_empty() { self.grow() } else { Ok(()) }
    }

    /// The number behind the last group that has an offset.
    pub(crate) fn groups(&self) -> u32 {
        let state = self.state.lock();
        state.cells.keys().map(|key| key.group.saturating_add(1)).max().unwrap_or(0)
    }

    pub(crate) fn get(&self, key: OffsetKey) -> Option<u64> {
        self.state.lock().cells.get(&key).map(|cell| cell.offset)
    }

    /// Stores `offset`, whether it is higher or lower than the one before; true if nothing
    /// unsynced was there before, so that somebody should sync soon.
    ///
    /// # Errors
    /// `DiskFull` if this is the first commit to the queue and there is no room for a cell.
    pub(crate) fn set(&self, key: OffsetKey, offset: u64) -> Result<bool> {
        self.update(key, |_| Some(offset))
    }

    /// Stores `offset` if it is higher than the one before (CONC-11).
    ///
    /// # Errors
    /// As [`set`](Self::set).
    pub(crate) fn raise(&self, key: OffsetKey, offset: u64) -> Result<bool> {
        self.update(key, |old| old.is_none_or(|old| old < offset).then_some(offset))
    }

    /// Stores `offset` unless there is one already: a late initial value never replaces progress
    /// (B-150).
    ///
    /// # Errors
    /// As [`set`](Self::set).
    pub(crate) fn begin(&self, key: OffsetKey, offset: u64) -> Result<bool> {
        self.update(key, |old| old.is_none().then_some(offset))
    }

    /// Lowers every offset to what `max` allows for its queue; calls `report` for each that was
    /// above it (B-008).
    pub(crate) fn clamp(
        &self,
        max: impl Fn(&OffsetKey) -> Option<u64>,
        mut report: impl FnMut(OffsetKey, u64, u64),
    ) -> Result<()> {
        let cells: Vec<(OffsetKey, u64)> =
            self.state.lock().cells.iter().map(|(key, cell)| (*key, cell.offset)).collect();
        for (key, offset) in cells {
            if let Some(max) = max(&key).filter(|max| *max < offset) {
                self.set(key, max)?;
                report(key, offset, max);
            }
        }
        Ok(())
    }

    /// Makes all commits so far survive a loss of power.
    pub(crate) fn sync(&self) -> Result<()> {
        let mut state = self.state.lock();
        if !std::mem::take(&mut state.dirty) {
            return Ok(());
        }
        let files: Vec<_> = state.files.iter().map(|cells| cells.file.clone()).collect();
        drop(state);
        for (number, file) in files.iter().enumerate() {
            let synced = file.sync();
            synced.map_err(|e| io_error(&*self.storage, "sync", &file_name(number), e))?;
        }
        Ok(())
    }

    fn update(&self, key: OffsetKey, new: impl Fn(Option<u64>) -> Option<u64>) -> Result<bool> {
        let mut state = self.state.lock();
        let (number, sequence) = loop {
            match state.cells.get(&key) {
                Some(cell) if new(Some(cell.offset)).is_none() => return Ok(false),
                Some(cell) => break (cell.number, cell.sequence.wrapping_add(1)),
                None if state.used < state.files.len() * CELLS => {
                    let number = state.used;
                    state.used += 1;
                    break (number, 0);
                }
                None => {
                    // No file is made while commits wait for the state.
                    drop(state);
                    self.grow()?;
                    state = self.state.lock();
                }
            }
        };
        let old = state.cells.get(&key).map(|cell| cell.offset);
        let Some(offset) = new(old) else { return Ok(false) };
        let cell = Cell { number, sequence, offset };
        let at = HEAD + number % CELLS * CELL + (sequence % 2) as usize * COPY;
        let bytes = encode(self.store_id, key, cell);
        state.files[number / CELLS].region.write(at, &bytes);
        state.cells.insert(key, cell);
        Ok(!std::mem::replace(&mut state.dirty, true))
    }

    fn grow(&self) -> Result<()> {
        let _growth = self.growth.lock();
        let state = self.state.lock();
        let number = state.files.len();
        if state.used < number * CELLS {
            return Ok(());
        }
        drop(state);
        let made = self.create(number)?;
        self.state.lock().files.push(made);
        Ok(())
    }

    fn create(&self, number: usize) -> Result<CellFile> {
        let name = file_name(number);
        let failed = |action, source| io_error(&*self.storage, action, &name, source);
        let new = format!("{name}.new");
        let file = self.storage.create(&new, FILE as u64).map_err(|e| failed("create", e))?;
        let head = Head::new(KIND, self.store_id, number as u64, FILE as u64);
        file.write_at(0, &head.encode()).map_err(|e| failed("write", e))?;
        file.sync().map_err(|e| failed("sync", e))?;
        self.storage.rename(&new, &name).map_err(|e| failed("rename", e))?;
        self.storage.sync_folder("meta").map_err(|e| failed("sync", e))?;
        let region = file.map().map_err(|e| failed("map", e))?;
        Ok(CellFile { region, file })
    }
}

fn encode(store_id: u64, key: OffsetKey, cell: Cell) -> [u8; COPY] {
    let mut bytes = [0; COPY];
    put(&mut bytes, 0, &cell.offset.to_le_bytes());
    put(&mut bytes, 8, &key.group.to_le_bytes());
    put(&mut bytes, 12, &key.incarnation.to_le_bytes());
    put(&mut bytes, 16, &cell.sequence.to_le_bytes());
    put(&mut bytes, 20, &key.queue.to_le_bytes());
    bytes[22] = 1;
    let crc = checksum(store_id, &bytes[..COPY - 4]);
    put(&mut bytes, COPY - 4, &crc.to_le_bytes());
    bytes
}

fn decode(store_id: u64, bytes: &[u8; COPY]) -> Option<(OffsetKey, Cell)> {
    let sound = bytes[22] == 1 && checksum(store_id, &bytes[..COPY - 4]) == u32_at(bytes, COPY - 4);
    let key = OffsetKey {
        group: u32_at(bytes, 8),
        incarnation: u32_at(bytes, 12),
        queue: u16_at(bytes, 20),
    };
    sound.then(|| (key, Cell { number: 0, sequence: u32_at(bytes, 16), offset: u64_at(bytes, 0) }))
}

fn file_name(number: usize) -> String {
    format!("meta/offsets-{number:04}")
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::storage::Directory;

    fn key(queue: u16) -> OffsetKey {
        OffsetKey { group: 1, incarnation: 2, queue }
    }

    fn storage(dir: &std::path::Path) -> Arc<dyn Storage> {
        let storage = Directory::new(dir).unwrap();
        storage.make_folder("meta").unwrap();
        Arc::new(storage)
    }

    #[test]
    fn commits_survive_reopening_without_a_close() {
        let dir = tempfile::tempdir().unwrap();
        let storage = storage(dir.path());
        let (offsets, _) = Offsets::open(&storage, 5).unwrap();
        for queue in 0..2500 {
            assert_eq!(offsets.get(key(queue)), None);
            offsets.set(key(queue), 10).unwrap();
            offsets.set(key(queue), 10 + u64::from(queue)).unwrap();
        }
        drop(offsets);
        let (offsets, unsound) = Offsets::open(&storage, 5).unwrap();
        assert_eq!(unsound, 0);
        for queue in 0..2500 {
            assert_eq!(offsets.get(key(queue)), Some(10 + u64::from(queue)));
        }
    }

    #[test]
    fn conc_11_raise_never_lowers() {
        let dir = tempfile::tempdir().unwrap();
        let (offsets, _) = Offsets::open(&storage(dir.path()), 5).unwrap();
        offsets.raise(key(0), 0).unwrap();
        assert_eq!(offsets.get(key(0)), Some(0));
        offsets.raise(key(0), 7).unwrap();
        offsets.raise(key(0), 3).unwrap();
        assert_eq!(offsets.get(key(0)), Some(7));
        offsets.set(key(0), 3).unwrap();
        assert_eq!(offsets.get(key(0)), Some(3));
    }

    #[test]
    fn b_080_a_damaged_newest_copy_leaves_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        let storage = storage(dir.path());
        let (offsets, _) = Offsets::open(&storage, 5).unwrap();
        for offset in 1..=3 {
            offsets.set(key(0), offset).unwrap();
        }
        drop(offsets);
        let path = dir.path().join("meta/offsets-0000");
        let mut bytes = std::fs::read(&path).unwrap();
        // Sequence 2 went to the first copy.
        bytes[HEAD] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(Offsets::open(&storage, 5).unwrap().0.get(key(0)), Some(2));
        bytes[HEAD + COPY] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        let (offsets, unsound) = Offsets::open(&storage, 5).unwrap();
        assert_eq!((offsets.get(key(0)), unsound), (None, 1));
    }
}
