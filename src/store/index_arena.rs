//! Where the blocks of all consume queues live: a few large files instead of one a queue, so that
//! a hundred thousand queues cost neither descriptors nor mappings.
//!
//! Each file holds blocks of one length. A queue starts with a small block and goes on with ever
//! larger ones. Of the largest, which is what busy queues take one after the other, the allocator has
//! the next one ready, and the next file made in time. A block names its queue and its first offset
//! in a head with a checksum; bytes behind its last entry are zero, so that a reader of the file
//! knows where entries end.

use super::checkpoint::Bounds;
use super::files::{HEAD, Head, IMPOSSIBLE, check_space, corrupt, io_error};
use super::record::{checksum, put, u16_at, u32_at, u64_at};
use crate::error::{Error, Result};
use crate::storage::{Backing, Carver, Segment, SegmentWriter, Storage, StorageFile, recycle};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Arc, Mutex, MutexGuard, Rank};
use std::collections::BTreeMap;

/// Bytes of a block's head.
pub(crate) const BLOCK_HEAD: usize = 32;
/// Bytes of an entry.
pub(crate) const ENTRY: usize = 16;

/// Folder of the index files.
pub(crate) const FOLDER: &str = "index";
const KIND: [u8; 4] = *b"indx";
const SMALLEST_BLOCK: usize = 256;
const LARGEST_BLOCK: usize = 256 * 1024 - LINE;
const GROWTH: usize = 4;
/// Blocks of one length stand an odd number of cache lines apart: at a round distance, the entries
/// that queues with equally many messages write next would push each other out of the cache.
const LINE: usize = 64;
const LARGEST_FILE: usize = 64 << 20;

/// The owner of all index files.
#[derive(Debug)]
pub(crate) struct IndexArena {
    storage: Arc<dyn Storage>,
    store_id: u64,
    first_file: usize,
    /// Bytes that stay available to others.
    pub(super) min_free: u64,
    /// Held while a file is made, so that its number is its own, and while a block is made ready;
    /// true once neither may be.
    closed: Mutex<bool>,
    state: Mutex<State>,
    /// A block of the largest kind was taken since the last call of `prepare`.
    taken: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    files: Vec<Backing>,
    // By block length.
    classes: BTreeMap<usize, Class>,
    /// Given back while somebody still looked at them.
    held: Vec<Arc<Segment>>,
}

#[derive(Debug, Default)]
struct Class {
    files: u32,
    /// The file that is being carved, and the one that follows if it is made already.
    open: Option<Carver>,
    next: Option<Carver>,
    /// Zeroed, with their pages faulted in.
    ready: Vec<SegmentWriter>,
    free: Vec<SegmentWriter>,
}

/// When the next file of a class is to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// When there is no block.
    Now,
    /// When half of the last file is used.
    Soon,
}

/// Which queue a block belongs to, and from where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockHead {
    pub(crate) incarnation: u32,
    pub(crate) queue: u16,
    pub(crate) first: u64,
}

/// A block found in a file: its head, and a writer behind its last trusted entry.
#[derive(Debug)]
pub(crate) struct FoundBlock {
    pub(crate) head: BlockHead,
    pub(crate) writer: SegmentWriter,
}

impl FoundBlock {
    /// How many entries are trusted.
    pub(crate) fn entries(&self) -> u64 {
        ((self.writer.cursor() - BLOCK_HEAD) / ENTRY) as u64
    }
}

impl IndexArena {
    /// Opens the index files, of which there must be `expected`, or more that were made since.
    ///
    /// # Errors
    /// `Corrupt` if a file is missing or damaged: then the index is to be rebuilt.
    pub(crate) fn open(
        storage: &Arc<dyn Storage>,
        store_id: u64,
        first_file: usize,
        expected: u64,
        trust: Trust<'_>,
    ) -> Result<(Self, Vec<FoundBlock>)> {
        let mut state = State::default();
        let mut found = Vec::new();
        let names = list(&**storage)?;
        if (names.len() as u64) < expected
            || names.iter().enumerate().any(|(number, name)| *name != file_name(number))
        {
            return Err(corrupt(&**storage, FOLDER, 0, "an index file is missing or foreign"));
        }
        for name in names {
            let file = storage.open(&name).map_err(|e| io_error(&**storage, "open", &name, e))?;
            let (block, backing, free) =
                blocks_of(&**storage, store_id, &name, &*file, trust, &mut found)?;
            state.files.push(backing);
            let class = state.classes.entry(block).or_default();
            class.files += 1;
            class.free.extend(free);
        }
        if matches!(trust, Trust::Below(_)) {
            found.iter_mut().for_each(|block| block.writer.zero_rest());
        }
        let arena = Self {
            storage: storage.clone(),
            store_id,
            first_file,
            min_free: 0,
            closed: Mutex::new(Rank::IndexFile, false),
            state: Mutex::new(Rank::Grow, state),
            taken: AtomicBool::new(false),
        };
        Ok((arena, found))
    }

    /// The blocks of another process's index files, for reading alone; there must be `expected`
    /// files, or more that were made since.
    ///
    /// # Errors
    /// `Corrupt` if a file is missing or damaged.
    pub(crate) fn read(
        storage: &dyn Storage,
        store_id: u64,
        expected: u64,
        trust: Trust<'_>,
    ) -> Result<Vec<FoundBlock>> {
        let mut found = Vec::new();
        let names = list(storage)?;
        if (names.len() as u64) < expected {
            return Err(corrupt(storage, FOLDER, 0, "an index file is missing"));
        }
        for name in names {
            let file =
                storage.open_shared(&name).map_err(|e| io_error(storage, "open", &name, e))?;
            blocks_of(storage, store_id, &name, &*file, trust, &mut found)?;
        }
        Ok(found)
    }

    /// A fresh block for the entries of a queue from offset `head.first`; `previous` is the
    /// length of the queue's last block, 0 for none.
    ///
    /// # Errors
    /// `DiskFull` if a new file is needed and there is no room for it.
    pub(crate) fn allocate(&self, head: BlockHead, previous: usize) -> Result<SegmentWriter> {
        let largest = self.largest();
        let length = (previous * GROWTH + LINE).clamp(SMALLEST_BLOCK, largest);
        let mut writer = loop {
            match self.take(length, Class::take) {
                Some(writer) => break writer,
                None => self.make_file(&self.closed.lock(), length, Need::Now)?,
            }
        };
        if length == largest {
            self.taken.store(true, Ordering::Relaxed);
        }
        writer.write(&head.encode(self.store_id));
        writer.publish();
        Ok(writer)
    }

    /// Whether there is something to [`prepare`](Self::prepare).
    pub(crate) fn wants(&self) -> bool {
        self.taken.load(Ordering::Relaxed)
    }

    /// Has the next of the largest blocks ready, and the next file of them made in time, once one
    /// was taken.
    pub(crate) fn prepare(&self) {
        if !self.taken.swap(false, Ordering::Relaxed) {
            return;
        }
        let length = self.largest();
        // Under this lock, so that nothing is written behind a close.
        let closed = self.closed.lock();
        if *closed {
            return;
        }
        let unready = |class: &mut Class, length| {
            class.ready.is_empty().then(|| class.take_unready(length)).flatten()
        };
        if let Some(writer) = self.take(length, unready) {
            self.state.lock().class(length).ready.push(writer);
        }
        // A lack of space is told to the producer that needs a file, which tries by itself.
        let _ = self.make_file(&closed, length, Need::Soon);
    }

    /// Takes blocks back that no queue needs any more. One that a reader still holds is used again
    /// when he has let go of it.
    pub(crate) fn free(&self, blocks: Vec<Arc<Segment>>) {
        let mut state = self.state.lock();
        state.held.extend(blocks);
        state.take_back();
    }

    /// Waits for a file that is being made, or turns out to find no space.
    pub(super) fn wait_for_file(&self) {
        drop(self.closed.lock());
    }

    /// Makes no file and has no block ready from now on, and waits for what is being made: the files
    /// may belong to another broker soon.
    pub(crate) fn close(&self) {
        *self.closed.lock() = true;
    }

    /// Lets go of all files; the caller has seen to it that nothing is allocated any more.
    pub(crate) fn release(&self) {
        let files = std::mem::take(&mut *self.state.lock());
        drop(files);
    }

    /// Makes every entry written so far durable; returns how many files there are.
    pub(crate) fn sync(&self) -> Result<u64> {
        let files = self.state.lock().files.clone();
        for (number, file) in files.iter().enumerate() {
            let synced = file.sync();
            synced.map_err(|e| io_error(&*self.storage, "sync", &file_name(number), e))?;
        }
        Ok(files.len() as u64)
    }

    fn largest(&self) -> usize {
        LARGEST_BLOCK.min(self.first_file / GROWTH).max(SMALLEST_BLOCK)
    }

    /// Takes a block, zeroed and with its pages faulted in: not under the lock, and not under that of
    /// the append.
    fn take(
        &self,
        length: usize,
        take: impl FnOnce(&mut Class, usize) -> Option<Taken>,
    ) -> Option<SegmentWriter> {
        let mut state = self.state.lock();
        state.take_back();
        let taken = take(state.class(length), length)?;
        drop(state);
        Some(match taken {
            Taken::Ready(writer) => writer,
            Taken::Fresh(writer) => {
                writer.segment().populate_to(length, length);
                writer
            }
            Taken::Used(mut writer) => {
                writer.zero_rest();
                writer
            }
        })
    }

    /// Makes a file for blocks of this length, if there is need.
    fn make_file(&self, closed: &MutexGuard<'_, bool>, length: usize, need: Need) -> Result<()> {
        if **closed {
            return Err(Error::Closed);
        }
        let mut state = self.state.lock();
        let number = state.files.len();
        let class = state.class(length);
        if !class.needs_file(length, need) {
            return Ok(());
        }
        let size = (self.first_file << class.files.min(10)).clamp(self.first_file, LARGEST_FILE);
        drop(state);
        // What is not needed yet is no reason to fill a disk.
        let spare = if need == Need::Soon { size as u64 } else { 0 };
        check_space(&*self.storage, &file_name(number), size as u64, self.min_free + spare)?;
        let carver = self.create(number, size, length)?;
        let mut state = self.state.lock();
        state.files.push(carver.backing());
        let class = state.class(length);
        class.files += 1;
        class.next = Some(carver);
        Ok(())
    }

    fn create(&self, number: usize, size: usize, block: usize) -> Result<Carver> {
        let name = file_name(number);
        let failed = |action, source| io_error(&*self.storage, action, &name, source);
        let new = format!("{FOLDER}/new");
        let file = self.storage.create(&new, size as u64).map_err(|e| failed("create", e))?;
        let head = Head::new(KIND, self.store_id, block as u64, size as u64);
        file.write_at(0, &head.encode()).map_err(|e| failed("write", e))?;
        file.sync().map_err(|e| failed("sync", e))?;
        let region = file.map().map_err(|e| failed("map", e))?;
        self.storage.rename(&new, &name).map_err(|e| failed("rename", e))?;
        self.storage.sync_folder(FOLDER).map_err(|e| failed("sync", e))?;
        let mut carver = Carver::new(region);
        carver.carve(HEAD, HEAD);
        Ok(carver)
    }
}

impl State {
    fn class(&mut self, length: usize) -> &mut Class {
        self.classes.entry(length).or_default()
    }

    /// Makes those of the blocks given back free that nobody looks at any more.
    fn take_back(&mut self) {
        for block in std::mem::take(&mut self.held) {
            match recycle(block) {
                Ok(mut writer) => {
                    // Without a head it belongs to nobody, whatever happens next.
                    writer.zero_rest();
                    let length = writer.segment().capacity();
                    self.class(length).free.push(writer);
                }
                Err(held) => self.held.push(held),
            }
        }
    }
}

/// A block of a class, and what is still to be done to it.
enum Taken {
    Ready(SegmentWriter),
    /// Zero already.
    Fresh(SegmentWriter),
    Used(SegmentWriter),
}

impl Class {
    fn take(&mut self, length: usize) -> Option<Taken> {
        self.ready.pop().map(Taken::Ready).or_else(|| self.take_unready(length))
    }

    fn take_unready(&mut self, length: usize) -> Option<Taken> {
        if let Some(used) = self.free.pop() {
            return Some(Taken::Used(used));
        }
        if self.open.as_ref().is_none_or(|open| open.left() < length) {
            self.open = self.next.take();
        }
        self.open.as_mut()?.carve(length, 0).map(Taken::Fresh)
    }

    fn needs_file(&self, length: usize, need: Need) -> bool {
        let least = |open: &Carver| match need {
            Need::Now => length,
            Need::Soon => open.len() / 2,
        };
        let short = self.open.as_ref().is_none_or(|open| open.left() < least(open));
        let ready = need == Need::Now && !self.ready.is_empty();
        short && self.next.is_none() && self.free.is_empty() && !ready
    }
}

/// Adds the blocks of a file that belong to a queue to `found`; returns the length of its blocks,
/// and those that belong to none.
fn blocks_of(
    storage: &dyn Storage,
    store_id: u64,
    name: &str,
    file: &dyn StorageFile,
    trust: Trust<'_>,
    found: &mut Vec<FoundBlock>,
) -> Result<(usize, Backing, Vec<SegmentWriter>)> {
    let failed = |action, source| io_error(storage, action, name, source);
    if file.len().map_err(|e| failed("measure", e))? == 0 {
        return Err(corrupt(storage, name, 0, "the file is empty"));
    }
    let mut carver = Carver::new(file.map().map_err(|e| failed("map", e))?);
    let size = carver.left();
    let head = carver.peek(0..HEAD.min(size)).unwrap_or_default();
    let head = Head::decode(storage, name, KIND, head)?;
    let block = usize::try_from(head.number).unwrap_or(0);
    if head.store_id != store_id
        || head.size != size as u64
        || !(SMALLEST_BLOCK..=LARGEST_BLOCK).contains(&block)
    {
        return Err(corrupt(storage, name, 0, "the head does not fit the file"));
    }
    carver.carve(HEAD, HEAD);
    let mut free = Vec::new();
    while carver.left() >= block {
        let bytes = carver.peek(0..block).unwrap_or_default();
        let Some(head) = BlockHead::decode(store_id, bytes) else {
            // Never used, freed, or torn while it was being given away.
            free.extend(carver.carve(block, 0));
            continue;
        };
        let entries = trust.entries(&head, &bytes[BLOCK_HEAD..]);
        let writer = carver.carve(block, BLOCK_HEAD + entries * ENTRY);
        found.extend(writer.map(|writer| FoundBlock { head, writer }));
    }
    Ok((block, carver.backing(), free))
}

/// Removes all index files, durably: the first step of a rebuild.
pub(crate) fn remove_all(storage: &dyn Storage) -> Result<()> {
    for name in list(storage)? {
        storage.unlink(&name).map_err(|e| io_error(storage, "remove", &name, e))?;
    }
    storage.sync_folder(FOLDER).map_err(|e| io_error(storage, "sync", FOLDER, e))
}

impl BlockHead {
    fn encode(&self, store_id: u64) -> [u8; BLOCK_HEAD] {
        let mut bytes = [0; BLOCK_HEAD];
        put(&mut bytes, 0, b"blck");
        put(&mut bytes, 4, &self.incarnation.to_le_bytes());
        put(&mut bytes, 8, &self.first.to_le_bytes());
        put(&mut bytes, 16, &self.queue.to_le_bytes());
        let crc = checksum(store_id, &bytes[..BLOCK_HEAD - 4]);
        put(&mut bytes, BLOCK_HEAD - 4, &crc.to_le_bytes());
        bytes
    }

    fn decode(store_id: u64, bytes: &[u8]) -> Option<Self> {
        let sound = bytes.len() >= BLOCK_HEAD
            && bytes[..4] == *b"blck"
            && checksum(store_id, &bytes[..BLOCK_HEAD - 4]) == u32_at(bytes, BLOCK_HEAD - 4)
            && u64_at(bytes, 8) <= IMPOSSIBLE;
        sound.then(|| Self {
            incarnation: u32_at(bytes, 4),
            first: u64_at(bytes, 8),
            queue: u16_at(bytes, 16),
        })
    }
}

/// How far the entries found in the files can be believed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Trust<'a> {
    /// After a clean close: as far as the queues' maxima say.
    Maxima(&'a Bounds),
    /// Otherwise: those of records below this position. The others are zeroed and will be
    /// written again from the log.
    Below(u64),
}

impl Trust<'_> {
    fn entries(self, head: &BlockHead, bytes: &[u8]) -> usize {
        let entries = bytes.as_chunks::<ENTRY>().0;
        match self {
            Self::Maxima(bounds) => {
                let max = bounds.get(&(head.incarnation, head.queue)).map_or(0, |range| range.end);
                let count = usize::try_from(max.saturating_sub(head.first));
                let count = count.unwrap_or(usize::MAX).min(entries.len());
                // Files that are older than the checkpoint lack its last entries.
                let last = count.checked_sub(1).map_or(1, |last| u64_at(&entries[last][..], 0));
                if last > 0 { count } else { 0 }
            }
            Self::Below(limit) => {
                let mut last = 0;
                let rising = entries.iter().take_while(|entry| {
                    let position = u64_at(&entry[..], 0);
                    // Several lost messages are covered by one record.
                    let next = position > last
                        || (position == last && position > 0 && u32_at(&entry[..], 8) == 0);
                    let trusted = next && position < limit;
                    last = position;
                    trusted
                });
                rising.count()
            }
        }
    }
}

fn list(storage: &dyn Storage) -> Result<Vec<String>> {
    let names = storage.list(FOLDER).map_err(|e| io_error(storage, "list", FOLDER, e))?;
    let named = names.into_iter().filter(|name| name != "new");
    Ok(named.map(|name| format!("{FOLDER}/{name}")).collect())
}

fn file_name(number: usize) -> String {
    format!("{FOLDER}/{number:08}")
}
