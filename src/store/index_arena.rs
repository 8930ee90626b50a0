//! Where the blocks of all consume queues live: a few large files instead of one a queue, so that
//! a hundred thousand queues cost neither descriptors nor mappings.
//!
//! Each file holds blocks of one length. A queue starts with a small block and goes on with ever
//! larger ones. A block names its queue and its first offset in a head with a checksum; bytes
//! behind its last entry are zero, so that a reader of the file knows where entries end.

use super::checkpoint::Bounds;
use super::files::{HEAD, Head, IMPOSSIBLE, check_space, corrupt, io_error};
use super::record::{checksum, put, u16_at, u32_at, u64_at};
use crate::error::Result;
use crate::storage::{Backing, Carver, Segment, SegmentWriter, Storage, StorageFile, recycle};
use crate::sync::{Arc, Mutex, Rank};
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
    state: Mutex<State>,
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
    open: Option<Carver>,
    free: Vec<SegmentWriter>,
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
        let state = Mutex::new(Rank::Grow, state);
        Ok((Self { storage: storage.clone(), store_id, first_file, min_free: 0, state }, found))
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
        let largest = LARGEST_BLOCK.min(self.first_file / GROWTH);
        let length = (previous * GROWTH + LINE).clamp(SMALLEST_BLOCK, largest.max(SMALLEST_BLOCK));
        let mut state = self.state.lock();
        state.take_back();
        let State { files, classes, .. } = &mut *state;
        let class = classes.entry(length).or_default();
        let mut writer = match class.free.pop() {
            Some(mut used) => {
                used.zero_rest();
                used
            }
            None => {
                let carved = class.open.as_mut().and_then(|carver| carver.carve(length, 0));
                let fresh = match carved {
                    Some(fresh) => fresh,
                    None => {
                        let mut carver = self.create(files.len(), class.files, length)?;
                        files.push(carver.backing());
                        class.files += 1;
                        let fresh = carver.carve(length, 0);
                        class.open = Some(carver);
                        // Files are at least four blocks and a head long.
                        fresh.expect("a new file holds a block")
                    }
                };
                // Zero already; its pages are faulted in here and not under the append lock.
                fresh.segment().populate_to(length, length);
                fresh
            }
        };
        writer.write(&head.encode(self.store_id));
        writer.publish();
        Ok(writer)
    }

    /// Takes blocks back that no queue needs any more. One that a reader still holds is used again
    /// when he has let go of it.
    pub(crate) fn free(&self, blocks: Vec<Arc<Segment>>) {
        let mut state = self.state.lock();
        state.held.extend(blocks);
        state.take_back();
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

    fn create(&self, number: usize, of_class: u32, block: usize) -> Result<Carver> {
        let name = file_name(number);
        let size = (self.first_file << of_class.min(10)).clamp(self.first_file, LARGEST_FILE);
        let failed = |action, source| io_error(&*self.storage, action, &name, source);
        check_space(&*self.storage, &name, size as u64, self.min_free)?;
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
    /// Makes those of the blocks given back free that nobody looks at any more.
    fn take_back(&mut self) {
        for block in std::mem::take(&mut self.held) {
            match recycle(block) {
                Ok(mut writer) => {
                    // Without a head it belongs to nobody, whatever happens next.
                    writer.zero_rest();
                    let length = writer.segment().capacity();
                    self.classes.entry(length).or_default().free.push(writer);
                }
                Err(held) => self.held.push(held),
            }
        }
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
