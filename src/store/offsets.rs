//! Committed offsets: one cell for every group and queue, overwritten in place.
//!
//! A cell is two CRC'd copies used in turn, so that a crash in the middle of a commit leaves the
//! one before. Cells live in mapped files whose blocks are reserved: a commit is a few stores into
//! memory, survives the end of the process as soon as it returns, and needs no space on a full
//! disk; only the first commit of a group to a queue may.

use super::files::{HEAD, Head, corrupt, io_error};
use super::record::{checksum, put, u16_at, u32_at, u64_at};
use crate::error::{Error, Result};
use crate::storage::{Region, Storage, StorageFile, read_all};
use crate::sync::{Arc, Mutex, Rank};
use std::collections::{HashMap, HashSet};

const KIND: [u8; 4] = *b"offs";
#[cfg(not(all(test, loom)))]
const FILE: usize = 64 << 10;
#[cfg(all(test, loom))]
const FILE: usize = HEAD + 2 * CELL;
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
    /// Keys that were set, and keep that value until they are thawed (OFF-13).
    frozen: HashSet<OffsetKey>,
    /// Files that stand in for others, which a salvage could not read.
    lost_files: u64,
    /// Something has not been synced.
    dirty: bool,
    closed: bool,
}

#[derive(Debug)]
struct CellFile {
    region: Region,
    file: Arc<dyn StorageFile>,
    dirty: bool,
}

#[derive(Clone, Copy, Debug)]
struct Cell {
    number: usize,
    sequence: u64,
    offset: u64,
}

impl Offsets {
    /// Opens the cells, in `expected` files or more that were made since; the second value counts
    /// those in which neither copy was sound.
    ///
    /// # Errors
    /// `Corrupt` if a file is missing.
    pub(crate) fn open(
        storage: &Arc<dyn Storage>,
        store_id: u64,
        expected: u64,
    ) -> Result<(Self, u64)> {
        let mut state = State::default();
        let mut unsound = 0;
        let names = list(&**storage)?;
        if (names.len() as u64) < expected {
            let reason = "the file is missing";
            return Err(corrupt(&**storage, &file_name(names.len()), 0, reason));
        }
        for name in names {
            let failed = |action, source| io_error(&**storage, action, &name, source);
            let head = check_file(&**storage, store_id, &name)?;
            state.lost_files += head.after;
            let file = storage.open(&name).map_err(|e| failed("open", e))?;
            let mut region = file.map().map_err(|e| failed("map", e))?;
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
            state.files.push(CellFile { region, file, dirty: false });
        }
        let growth = Mutex::new(Rank::OffsetGrowth, ());
        let state = Mutex::new(Rank::OffsetStore, state);
        Ok((Self { storage: storage.clone(), store_id, growth, state }, unsound))
    }

    /// All commits and how many cells are unreadable, read without changing anything.
    pub(crate) fn read(
        storage: &dyn Storage,
        store_id: u64,
    ) -> Result<(Vec<(OffsetKey, u64)>, u64)> {
        let (mut offsets, mut unsound) = (Vec::new(), 0);
        for name in list(storage)? {
            let bytes =
                read_all(storage, &name).map_err(|e| io_error(storage, "read", &name, e))?;
            let bytes = bytes.unwrap_or_default();
            let head = Head::decode(storage, &name, KIND, &bytes)?;
            if head.store_id != store_id || bytes.len() != FILE {
                return Err(corrupt(storage, &name, 0, "the head does not fit the file"));
            }
            for cell in bytes[HEAD..].as_chunks::<CELL>().0 {
                let copies = cell.as_chunks::<COPY>().0.iter().filter_map(|c| decode(store_id, c));
                match copies.max_by_key(|(_, cell)| cell.sequence) {
                    Some((key, cell)) => offsets.push((key, cell.offset)),
                    None => unsound += u64::from(cell.iter().any(|byte| *byte != 0)),
                }
            }
        }
        Ok((offsets, unsound))
    }

    /// Makes the first file, which must be there if offsets were `expected`.
    ///
    /// # Errors
    /// `Corrupt` if it is missing.
    pub(crate) fn prepare(&self, expected: bool) -> Result<()> {
        if expected && self.state.lock().files.is_empty() {
            let reason = "the file is missing, though there are groups";
            return Err(corrupt(&*self.storage, &file_name(0), 0, reason));
        }
        if self.state.lock().files.is_empty() { self.grow() } else { Ok(()) }
    }

    /// How many files there are, all of them durable.
    pub(crate) fn files(&self) -> u64 {
        self.state.lock().files.len() as u64
    }

    /// How many of them stand in for files that a salvage, now or earlier, has given up.
    pub(crate) fn lost_files(&self) -> u64 {
        self.state.lock().lost_files
    }

    /// The number behind the last group that has an offset.
    pub(crate) fn groups(&self) -> u32 {
        let state = self.state.lock();
        state.cells.keys().map(|key| key.group.saturating_add(1)).max().unwrap_or(0)
    }

    /// All commits, in no order.
    pub(crate) fn all(&self) -> Vec<(OffsetKey, u64)> {
        self.state.lock().cells.iter().map(|(key, cell)| (*key, cell.offset)).collect()
    }

    /// The incarnation behind the last topic of which an offset is stored.
    pub(crate) fn next_incarnation(&self) -> u32 {
        let state = self.state.lock();
        let highest = state.cells.keys().map(|key| key.incarnation).max();
        highest.map_or(0, |highest| highest.saturating_add(1))
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
        #[cfg(broken_begin_blind)]
        if self.get(key).is_none() {
            return self.set(key, offset);
        }
        self.update(key, |old| old.is_none().then_some(offset))
    }

    /// Stores `offset`, and ignores whatever comes after it, until [`thaw`](Self::thaw): for those
    /// who still finish what they had before the offset was moved (OFF-10).
    ///
    /// # Errors
    /// As [`set`](Self::set); then nothing is frozen.
    pub(crate) fn freeze(&self, key: OffsetKey, offset: u64) -> Result<bool> {
        // Before the value is set, so that nothing comes between.
        let before = self.state.lock().frozen.insert(key);
        let set = self.store(key, |_| Some(offset), true);
        if set.is_err() && before {
            self.state.lock().frozen.remove(&key);
        }
        set
    }

    /// Takes commits again.
    pub(crate) fn thaw(&self, key: OffsetKey) {
        self.state.lock().frozen.remove(&key);
    }

    /// Lowers every offset to what `max` allows for its queue; calls `report` for each that was
    /// above it (B-008).
    pub(crate) fn clamp(
        &self,
        max: impl Fn(&OffsetKey) -> Option<u64>,
        mut report: impl FnMut(OffsetKey, u64, u64),
    ) -> Result<()> {
        for (key, offset) in self.all() {
            if let Some(max) = max(&key).filter(|max| *max < offset) {
                self.set(key, max)?;
                report(key, offset, max);
            }
        }
        Ok(())
    }

    /// Makes all commits so far survive a loss of power. One that comes meanwhile may be left out:
    /// it is dirty again.
    pub(crate) fn sync(&self) -> Result<()> {
        let mut state = self.state.lock();
        if !std::mem::take(&mut state.dirty) {
            return Ok(());
        }
        let files = state.files.iter_mut().enumerate();
        let dirty = files.filter_map(|(number, cells)| {
            std::mem::take(&mut cells.dirty).then(|| (number, cells.file.clone()))
        });
        let dirty: Vec<_> = dirty.collect();
        drop(state);
        for (number, file) in dirty {
            let synced = file.sync();
            synced.map_err(|e| io_error(&*self.storage, "sync", &file_name(number), e))?;
        }
        #[cfg(broken_offsets_clean_late)]
        {
            let mut state = self.state.lock();
            state.dirty = false;
            state.files.iter_mut().for_each(|cells| cells.dirty = false);
        }
        Ok(())
    }

    /// Takes no further commit, and waits for a file that is being made: the files may belong to
    /// another broker from now on.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        drop(self.growth.lock());
    }

    fn update(&self, key: OffsetKey, new: impl Fn(Option<u64>) -> Option<u64>) -> Result<bool> {
        self.store(key, new, false)
    }

    /// Stores what `new` makes of the offset; a frozen one only if `thawed`.
    fn store(
        &self,
        key: OffsetKey,
        new: impl Fn(Option<u64>) -> Option<u64>,
        thawed: bool,
    ) -> Result<bool> {
        let mut state = self.state.lock();
        let (number, sequence) = loop {
            match state.cells.get(&key) {
                #[cfg(not(broken_frozen_ignored))]
                _ if !thawed && state.frozen.contains(&key) => return Ok(false),
                Some(cell) if new(Some(cell.offset)).is_none() => return Ok(false),
                _ if state.closed => return Err(Error::Closed),
                Some(cell) => break (cell.number, cell.sequence.saturating_add(1)),
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
        let file = &mut state.files[number / CELLS];
        file.region.write(at, &bytes);
        file.dirty = true;
        state.cells.insert(key, cell);
        #[cfg(not(broken_commit_silent))]
        return Ok(!std::mem::replace(&mut state.dirty, true));
        #[cfg(broken_commit_silent)]
        return Ok(!std::mem::replace(&mut state.dirty, true) && cell.sequence == 0);
    }

    fn grow(&self) -> Result<()> {
        let _growth = self.growth.lock();
        let state = self.state.lock();
        if state.closed {
            return Err(Error::Closed);
        }
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
        let storage = &*self.storage;
        let file = make_file(storage, self.store_id, number, false)?;
        let region = file.map().map_err(|e| io_error(storage, "map", &file_name(number), e))?;
        Ok(CellFile { region, file, dirty: false })
    }
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

fn encode(store_id: u64, key: OffsetKey, cell: Cell) -> [u8; COPY] {
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
fn list(storage: &dyn Storage) -> Result<Vec<String>> {
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
        let (offsets, _) = Offsets::open(&storage, 5, 0).unwrap();
        for queue in 0..2500 {
            assert_eq!(offsets.get(key(queue)), None);
            offsets.set(key(queue), 10).unwrap();
            offsets.set(key(queue), 10 + u64::from(queue)).unwrap();
        }
        drop(offsets);
        let (offsets, unsound) = Offsets::open(&storage, 5, 0).unwrap();
        assert_eq!(unsound, 0);
        for queue in 0..2500 {
            assert_eq!(offsets.get(key(queue)), Some(10 + u64::from(queue)));
        }
    }

    #[test]
    fn conc_11_raise_never_lowers() {
        let dir = tempfile::tempdir().unwrap();
        let (offsets, _) = Offsets::open(&storage(dir.path()), 5, 0).unwrap();
        offsets.raise(key(0), 0).unwrap();
        assert_eq!(offsets.get(key(0)), Some(0));
        offsets.raise(key(0), 7).unwrap();
        offsets.raise(key(0), 3).unwrap();
        assert_eq!(offsets.get(key(0)), Some(7));
        offsets.set(key(0), 3).unwrap();
        assert_eq!(offsets.get(key(0)), Some(3));
    }

    #[test]
    fn off_13_a_frozen_offset_keeps_its_value_until_it_is_thawed() {
        let dir = tempfile::tempdir().unwrap();
        let (offsets, _) = Offsets::open(&storage(dir.path()), 5, 0).unwrap();
        offsets.raise(key(0), 10).unwrap();
        offsets.freeze(key(0), 4).unwrap();
        assert!(!offsets.raise(key(0), 11).unwrap());
        assert!(!offsets.set(key(0), 12).unwrap());
        assert!(!offsets.begin(key(0), 13).unwrap());
        assert_eq!(offsets.get(key(0)), Some(4));
        offsets.freeze(key(0), 2).unwrap();
        assert_eq!(offsets.get(key(0)), Some(2), "moved again");
        offsets.thaw(key(0));
        offsets.raise(key(0), 5).unwrap();
        assert_eq!(offsets.get(key(0)), Some(5));
        offsets.close();
        assert!(matches!(offsets.freeze(key(1), 4), Err(Error::Closed)));
        assert!(offsets.state.lock().frozen.is_empty());
    }

    #[test]
    fn b_080_a_damaged_newest_copy_leaves_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        let storage = storage(dir.path());
        let (offsets, _) = Offsets::open(&storage, 5, 0).unwrap();
        for offset in 1..=3 {
            offsets.set(key(0), offset).unwrap();
        }
        drop(offsets);
        let path = dir.path().join("meta/offsets-0000");
        let mut bytes = std::fs::read(&path).unwrap();
        // Sequence 2 went to the first copy.
        bytes[HEAD] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(Offsets::open(&storage, 5, 0).unwrap().0.get(key(0)), Some(2));
        bytes[HEAD + COPY] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        let (offsets, unsound) = Offsets::open(&storage, 5, 0).unwrap();
        assert_eq!((offsets.get(key(0)), unsound), (None, 1));
    }

    #[test]
    fn b_079_a_commit_that_is_killed_at_any_byte_leaves_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        let storage = storage(dir.path());
        let (offsets, _) = Offsets::open(&storage, 5, 0).unwrap();
        let path = dir.path().join("meta/offsets-0000");
        let mut before = None;
        for offset in [10, 20, 30, 1 << 40] {
            let old = std::fs::read(&path).unwrap_or_else(|_| vec![0; FILE]);
            offsets.set(key(3), offset).unwrap();
            let new = std::fs::read(&path).unwrap();
            let first = (HEAD..FILE).find(|at| old[*at] != new[*at]).unwrap() / COPY * COPY;
            let cell = first..first + COPY;
            assert!(old[cell.end..] == new[cell.end..], "one copy is written");
            // Bytes reach memory from the front; a disk may take any part of them.
            let parts = (0..COPY).flat_map(|at| [cell.start..first + at, first + at..cell.end]);
            for written in parts {
                let mut bytes = new.clone();
                bytes[cell.clone()].copy_from_slice(&old[cell.clone()]);
                bytes[written.clone()].copy_from_slice(&new[written.clone()]);
                let whole = bytes[cell.clone()] == new[cell.clone()];
                let copy = tempfile::tempdir().unwrap();
                let storage = self::storage(copy.path());
                std::fs::write(copy.path().join("meta/offsets-0000"), &bytes).unwrap();
                let (again, unsound) = Offsets::open(&storage, 5, 0).unwrap();
                let expected = if whole { Some(offset) } else { before };
                assert_eq!(again.get(key(3)), expected, "{offset}, {written:?}");
                assert!(unsound == 0 || before.is_none());
            }
            before = Some(offset);
        }
    }

    #[test]
    fn a_missing_file_is_refused_wherever_it_stood() {
        let dir = tempfile::tempdir().unwrap();
        let storage = storage(dir.path());
        let (offsets, _) = Offsets::open(&storage, 5, 0).unwrap();
        for queue in 0..2 * CELLS as u16 + 1 {
            offsets.set(key(queue), 10).unwrap();
        }
        assert_eq!(offsets.files(), 3);
        drop(offsets);
        for (missing, named) in [(0, 1), (1, 2), (2, 2)] {
            let path = storage.path(&file_name(missing));
            let bytes = std::fs::read(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            match Offsets::open(&storage, 5, 3) {
                Err(Error::Corrupt { file, .. }) => {
                    assert_eq!(file, storage.path(&file_name(named)))
                }
                other => panic!("{missing}: {other:?}"),
            }
            std::fs::write(&path, bytes).unwrap();
        }
        std::fs::write(dir.path().join("meta/offsets-0003.new"), b"").unwrap();
        assert_eq!(Offsets::open(&storage, 5, 3).unwrap().0.get(key(CELLS as u16)), Some(10));
    }

    #[test]
    fn the_newest_copy_counts_after_any_number_of_commits() {
        let dir = tempfile::tempdir().unwrap();
        let storage = storage(dir.path());
        let near = u64::from(u32::MAX);
        for (queue, sequence) in [near - 1, near, 1 << 40].into_iter().enumerate() {
            let key = key(queue as u16);
            let (offsets, _) = Offsets::open(&storage, 5, 0).unwrap();
            offsets.set(key, 1).unwrap();
            offsets.state.lock().cells.get_mut(&key).unwrap().sequence = sequence;
            for offset in 2..5 {
                offsets.set(key, offset).unwrap();
                assert_eq!(Offsets::open(&storage, 5, 0).unwrap().0.get(key), Some(offset));
            }
        }
    }

    #[test]
    fn only_files_with_commits_are_synced_and_a_closed_store_takes_none() {
        let dir = tempfile::tempdir().unwrap();
        let (offsets, _) = Offsets::open(&storage(dir.path()), 5, 0).unwrap();
        for queue in 0..CELLS as u16 + 1 {
            offsets.set(key(queue), 10).unwrap();
        }
        offsets.sync().unwrap();
        assert!(offsets.set(key(CELLS as u16), 11).unwrap());
        let dirty = |offsets: &Offsets| -> Vec<bool> {
            offsets.state.lock().files.iter().map(|cells| cells.dirty).collect()
        };
        assert_eq!(dirty(&offsets), [false, true]);
        offsets.sync().unwrap();
        assert_eq!(dirty(&offsets), [false, false]);
        offsets.close();
        assert!(matches!(offsets.set(key(0), 11), Err(Error::Closed)));
        assert!(matches!(offsets.begin(key(3000), 0), Err(Error::Closed)));
        assert!(matches!(offsets.grow(), Err(Error::Closed)));
        assert!(!offsets.raise(key(0), 9).unwrap());
        assert_eq!(offsets.get(key(0)), Some(10));
    }
}
