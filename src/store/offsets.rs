//! Committed offsets: one cell for every group and queue, overwritten in place.
//!
//! A cell is two CRC'd copies used in turn, so that a crash in the middle of a commit leaves the
//! one before. Cells live in mapped files whose blocks are reserved: a commit is a few stores into
//! memory, survives the end of the process as soon as it returns, and needs no space on a full
//! disk; only the first commit of a group to a queue may.

#[cfg(all(test, not(loom)))]
mod tests;

use super::files::{HEAD, Head, corrupt, io_error};
use super::offset_file::{
    CELL, CELLS, COPY, Cell, Content, FILE, KIND, check_file, content, encode, file_name, list,
    make_file,
};
use crate::error::{Error, Result};
use crate::storage::{Region, Storage, read_all};
use crate::sync::{Arc, Mutex, Rank};
use std::collections::{HashMap, HashSet};

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
    /// Cells below `used` that hold nothing any more.
    free: Vec<usize>,
    /// Incarnations of topics that were deleted: what their consumers commit late is dropped.
    gone: HashSet<u32>,
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
    // The descriptor is closed: a hundred thousand queues have hundreds of files.
    region: Region,
    dirty: bool,
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
                let number = state.files.len() * CELLS + nth;
                match content(store_id, region.bytes(at..at + CELL)) {
                    Content::Commit(key, cell) => {
                        state.cells.insert(key, Cell { number, ..cell });
                        state.used = number + 1;
                    }
                    Content::Unsound => {
                        unsound += 1;
                        state.used = number + 1;
                    }
                    Content::Nothing => state.free.push(number),
                }
            }
            state.files.push(CellFile { region, dirty: false });
        }
        // Those behind the last one that is used are given out in their order.
        let used = state.used;
        state.free.retain(|number| *number < used);
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
                match content(store_id, cell) {
                    Content::Commit(key, cell) => offsets.push((key, cell.offset)),
                    Content::Unsound => unsound += 1,
                    Content::Nothing => {}
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

    /// Forgets what the groups, `0..groups`, have committed in a topic that was deleted.
    pub(crate) fn forget(&self, incarnation: u32, queues: u16, groups: u32) {
        let mut state = self.state.lock();
        if state.closed {
            return;
        }
        state.gone.insert(incarnation);
        for group in 0..groups {
            for queue in 0..queues {
                state.free_cell(&OffsetKey { group, incarnation, queue });
            }
        }
    }

    /// Forgets all that a group has committed, which was deleted, and which nobody commits for.
    pub(crate) fn forget_group(&self, group: u32) {
        let mut state = self.state.lock();
        if state.closed {
            return;
        }
        let own: Vec<_> = state.cells.keys().filter(|key| key.group == group).copied().collect();
        own.iter().for_each(|key| state.free_cell(key));
    }

    /// Forgets what was committed in topics that are not `live`, for good with the next sync.
    pub(crate) fn retain(&self, live: impl Fn(u32) -> bool) {
        let mut state = self.state.lock();
        let gone: Vec<_> =
            state.cells.keys().filter(|key| !live(key.incarnation)).copied().collect();
        gone.iter().for_each(|key| state.free_cell(key));
    }

    /// Makes all commits so far survive a loss of power. One that comes meanwhile may be left out:
    /// it is dirty again.
    pub(crate) fn sync(&self) -> Result<()> {
        let mut state = self.state.lock();
        if !std::mem::take(&mut state.dirty) {
            return Ok(());
        }
        let files = state.files.iter_mut().enumerate();
        let dirty = files
            .filter_map(|(number, cells)| std::mem::take(&mut cells.dirty).then_some(number))
            .collect::<Vec<_>>();
        drop(state);
        for (nth, number) in dirty.iter().enumerate() {
            let name = file_name(*number);
            let failed = |action, source| io_error(&*self.storage, action, &name, source);
            let file = self.storage.open(&name).map_err(|e| {
                // Nothing is lost, as by a sync that failed: the next one goes on here.
                self.dirty_again(&dirty[nth..]);
                failed("open", e)
            })?;
            file.sync().map_err(|e| failed("sync", e))?;
        }
        #[cfg(broken_offsets_clean_late)]
        {
            let mut state = self.state.lock();
            state.dirty = false;
            state.files.iter_mut().for_each(|cells| cells.dirty = false);
        }
        Ok(())
    }

    fn dirty_again(&self, numbers: &[usize]) {
        let mut state = self.state.lock();
        numbers.iter().for_each(|number| state.files[*number].dirty = true);
        state.dirty = true;
    }

    /// Writes all cells once more as they stand: a sync of an earlier process may have failed, and
    /// left them behind as clean. They are to be synced.
    pub(crate) fn write_again(&self) -> Result<()> {
        let mut state = self.state.lock();
        let State { files, dirty, .. } = &mut *state;
        for (number, cells) in files.iter_mut().enumerate() {
            let name = file_name(number);
            let failed = |action, source| io_error(&*self.storage, action, &name, source);
            let file = self.storage.open(&name).map_err(|e| failed("open", e))?;
            file.write_at(0, cells.region.bytes(0..FILE)).map_err(|e| failed("write", e))?;
            (cells.dirty, *dirty) = (true, true);
        }
        Ok(())
    }

    /// Takes no further commit, and waits for a file that is being made: the files may belong to
    /// another broker from now on.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        drop(self.growth.lock());
    }

    /// Lets go of the files of a closed store; what was committed can still be asked for.
    pub(crate) fn release(&self) {
        let files = std::mem::take(&mut self.state.lock().files);
        drop(files);
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
                None if state.gone.contains(&key.incarnation) => return Ok(false),
                None => {
                    if let Some(number) = state.vacant() {
                        break (number, 0);
                    }
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
        Ok(CellFile { region, dirty: false })
    }
}

impl State {
    /// A cell that holds nothing.
    fn vacant(&mut self) -> Option<usize> {
        self.free.pop().or_else(|| {
            let fresh = (self.used < self.files.len() * CELLS).then_some(self.used)?;
            self.used += 1;
            Some(fresh)
        })
    }

    fn free_cell(&mut self, key: &OffsetKey) {
        let Some(Cell { number, .. }) = self.cells.remove(key) else { return };
        let file = &mut self.files[number / CELLS];
        file.region.write(HEAD + number % CELLS * CELL, &[0; CELL]);
        (file.dirty, self.dirty) = (true, true);
        self.free.push(number);
        self.frozen.remove(key);
    }
}
