//! The commit log: its files, the lock under which it grows at the tail, and how room is made.
//!
//! Files are made outside the append lock, by the allocator ahead of need or by the producer that
//! needs one: whoever holds the grow lock. A new file is complete, durable and in the list of
//! files before the tail can reach it, so rolling under the append lock only moves a cursor. How the
//! front of the log goes is told in `drop_front`.

use super::Verify;
use super::ahead::Ahead;
use super::consume_queue::{ConsumeQueue, Entry};
use super::cursors::{Cursor, Room};
use super::draft::Draft;
use super::fetch::fits;
use super::files::{HEAD, check_space, corrupt, io_error};
use super::log_file::{self, FOLDER, LogFile, file_of};
use super::record::Record;
use super::slots::{Slots, VALUE};
use super::tail::{Appended, Filling, Refusal, Tail, Target};
use crate::error::{Error, Result};
use crate::storage::{SegmentWriter, Storage};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Counted, Mutex, Padded, Rank, Swap};
use std::io;
use std::ops::Range;

/// A log that fills a file in less than this has large pages in the next ones, of which the system
/// writes the whole when a part has changed.
const QUICK_MS: u64 = 10_000;
/// The smallest unit of write-back.
const PAGE: u64 = 4096;

/// All of the log that is open.
#[derive(Debug)]
pub(crate) struct CommitLog {
    pub(super) storage: Arc<dyn Storage>,
    pub(super) store_id: u64,
    pub(super) file_size: u64,
    pub(super) ahead: Ahead,
    pub(super) verify: Verify,
    pub(super) files: Swap<Vec<Counted<LogFile>>>,
    tail: Padded<Mutex<Tail>>,
    pub(super) growth: Mutex<Growth>,
    /// Bytes of dropped files that deliveries keep alive.
    pub(super) held: Arc<AtomicU64>,
    /// Where the log began when it was closed.
    released_at: AtomicU64,
}

/// How much space the log may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Bytes of all its files, those that wait for another life too.
    pub(crate) max_bytes: Option<u64>,
    /// Bytes that stay available to others.
    pub(crate) min_free: u64,
}

#[derive(Debug)]
pub(super) struct Growth {
    next_base: u64,
    slots: Slots,
    /// Dropped files that wait for another life, with their names.
    pub(super) spares: Vec<(String, SegmentWriter)>,
}

/// What recovery found, to go on from.
#[derive(Debug)]
pub(crate) struct Opened {
    /// Ascending; the last ones may be empty and wait for the tail.
    pub(crate) files: Vec<Counted<LogFile>>,
    pub(crate) tail: Tail,
    pub(crate) next_base: u64,
    pub(crate) slots: Slots,
}

impl CommitLog {
    pub(crate) fn new(
        storage: &Arc<dyn Storage>,
        store_id: u64,
        file_size: u64,
        most_ahead: usize,
        opened: Opened,
    ) -> Self {
        let Opened { files, tail, next_base, slots } = opened;
        let growth = Growth { next_base, slots, spares: Vec::new() };
        Self {
            storage: storage.clone(),
            store_id,
            file_size,
            ahead: Ahead::new(most_ahead),
            verify: Verify::OnOpen,
            files: Swap::new(files),
            tail: Padded::new(Mutex::new(Rank::Append, tail)),
            growth: Mutex::new(Rank::Grow, growth),
            held: Arc::new(AtomicU64::new(0)),
            released_at: AtomicU64::new(0),
        }
    }

    /// Appends if that is quickly done; see [`Tail::append_clear`].
    #[inline]
    pub(super) fn append_clear(
        &self,
        target: Target,
        drafts: &mut [Draft<'_>],
        now_ms: u64,
    ) -> Option<Appended> {
        self.tail.lock().append_clear(Some(target), drafts, now_ms)
    }

    /// Tries to append once; see [`Tail::append`].
    pub(crate) fn append(
        &self,
        target: Option<Target>,
        drafts: &mut [Draft<'_>],
        now_ms: u64,
    ) -> std::result::Result<Appended, Refusal> {
        self.tail.lock().append(target, drafts, now_ms)
    }

    /// Adds the cursor of a queue, whose memory is had outside of the append lock.
    pub(super) fn add_cursor(&self, cursor: Cursor) {
        if let Some(chunks) = self.with_tail(|tail| tail.cursors.full()) {
            let room = Room::beside(chunks);
            drop(self.with_tail(|tail| tail.cursors.widen(room)));
        }
        drop(self.with_tail(|tail| tail.cursors.put(cursor)));
    }

    /// Runs `look` with the append lock held.
    pub(crate) fn with_tail<R>(&self, look: impl FnOnce(&mut Tail) -> R) -> R {
        look(&mut self.tail.lock())
    }

    /// Refuses appends from now on, and waits for whoever makes room for one.
    pub(crate) fn close(&self) {
        self.tail.lock().close();
        drop(self.growth.lock());
    }

    /// Lets go of all files, so that the last delivery of each is what keeps it.
    pub(crate) fn release(&self) {
        let mut growth = self.growth.lock();
        growth.spares.clear();
        growth.slots.release();
        drop(self.with_tail(Tail::release));
        self.released_at.store(self.min_position(), Ordering::Relaxed);
        self.files.store(Vec::new());
    }

    /// The position behind the last committed record.
    pub(crate) fn committed(&self) -> u64 {
        self.tail.lock().committed()
    }

    /// The offset that the next message of `queue` will get, exact at this moment: for whoever is
    /// about to sleep (docs/design.md).
    pub(crate) fn exact_max(&self, queue: &ConsumeQueue) -> u64 {
        #[cfg(not(broken_exact_max_unlocked))]
        return self.with_tail(|tail| tail.next_offset(queue)).unwrap_or_else(|| queue.max());
        #[cfg(broken_exact_max_unlocked)]
        return queue.max();
    }

    /// The files of the log, ascending.
    pub(crate) fn files(&self) -> impl std::ops::Deref<Target = Arc<Vec<Counted<LogFile>>>> {
        self.files.load()
    }

    /// The file in which `position` lies, unless retention has dropped it.
    #[inline]
    pub(crate) fn file(&self, position: u64) -> Option<Counted<LogFile>> {
        file_of(&self.files.load(), position).cloned()
    }

    /// Visits the records from `range.start`, where one begins, that begin below `range.end`, which
    /// are committed, until `visit` returns false.
    ///
    /// # Errors
    /// `Corrupt` at one that cannot be read.
    pub(crate) fn visit(
        &self,
        range: Range<u64>,
        mut visit: impl FnMut(&Record<'_>) -> bool,
    ) -> Result<()> {
        let files = self.files();
        let mut position = range.start;
        for file in files.iter().filter(|file| file.end() > range.start) {
            position = position.max(file.base + HEAD as u64);
            while position < range.end.min(file.end()) {
                let record = file.record(position);
                let damaged = |reason| corrupt(&*self.storage, &file.name(), position, reason);
                let record = record.map_err(damaged)?;
                if !self.trusts(&record) {
                    return Err(damaged("the record fails its checksum"));
                }
                if !visit(&record) {
                    return Ok(());
                }
                position += record.length() as u64;
            }
        }
        Ok(())
    }

    /// Whether a record that is read can be believed, as far as that is to be looked at.
    #[inline]
    pub(super) fn trusts(&self, record: &Record<'_>) -> bool {
        self.verify == Verify::OnOpen || record.verify(self.store_id)
    }

    /// The record of an index entry, in the file that holds it: `entry` was found at `offset` of
    /// `queue`, and the record must be the one that belongs there.
    #[inline]
    pub(super) fn record<'a>(
        &self,
        file: &'a LogFile,
        queue: &ConsumeQueue,
        offset: u64,
        entry: Entry,
    ) -> std::result::Result<Record<'a>, &'static str> {
        let record = file.record(entry.position)?;
        if !fits(queue, offset, &record) {
            return Err("the index names another record");
        }
        if self.verify == Verify::OnRead {
            if !record.verify(self.store_id) {
                return Err("the record fails its checksum");
            }
            let Entry { length, tag_hash, .. } = entry;
            if (length as usize, tag_hash) != (record.length(), record.tag_hash()) {
                return Err("the index and the record contradict each other");
            }
        }
        Ok(record)
    }

    /// The lowest position that is still there.
    pub(crate) fn min_position(&self) -> u64 {
        let first = self.files.load().first().map(|file| file.base);
        first.unwrap_or_else(|| self.released_at.load(Ordering::Relaxed))
    }

    /// Bytes that an append can have at most: a fresh file takes it and a filler behind it.
    pub(crate) fn largest_record(&self) -> usize {
        self.file_size as usize - HEAD - super::record::HEADER
    }

    /// Makes the next file if there is none, and tells whether it did. The producer that needs it
    /// and the allocator both come here; the second finds it done.
    ///
    /// # Errors
    /// `LogFull` or `DiskFull` if the log may not take so much space, or cannot.
    pub(crate) fn grow(&self, now_ms: u64, limits: Limits) -> Result<bool> {
        let mut growth = self.growth.lock();
        let mut tail = self.tail.lock();
        tail.accepts()?;
        let Filling { segment, cursor, elapsed_ms, next } = tail.filling();
        if next.is_some() {
            return Ok(false);
        }
        drop(tail);
        self.check_room(&growth, limits)?;
        let quick = elapsed_ms * (segment.capacity() as u64) < QUICK_MS * (cursor as u64);
        let base = growth.next_base;
        // No base is ever used twice, whatever happens to the file: the promise comes first.
        growth.slots.set(&next_base_value(base + self.file_size))?;
        growth.slots.sync()?;
        growth.next_base = base + self.file_size;
        let mut files = self.files.load().to_vec();
        let after = files.last().map_or(0, |file| file.end());
        let place = log_file::Place { store_id: self.store_id, base, after, made_ms: now_ms };
        let writer = match growth.spares.pop() {
            Some((name, spare)) => log_file::reuse(&*self.storage, place, &name, spare)?,
            None => log_file::create(&*self.storage, place, self.file_size, quick)?,
        };
        files.push(Counted::new(LogFile::made(base, now_ms, &writer)));
        #[cfg(not(broken_list_last))]
        self.files.store(files);
        self.tail.lock().set_next(base, writer);
        #[cfg(broken_list_last)]
        self.files.store(files);
        Ok(true)
    }

    /// Waits for a file that is being made, or turns out to find no space.
    pub(super) fn wait_for_growth(&self) {
        drop(self.growth.lock());
    }

    /// Whether another file may be made. What is sent into the files that are there has its
    /// blocks, and a spare takes none: so this is where the limits are looked at.
    fn check_room(&self, growth: &Growth, limits: Limits) -> Result<()> {
        let Limits { max_bytes, min_free } = limits;
        if !growth.spares.is_empty() {
            return Ok(());
        }
        let bytes = self.bytes();
        if let Some(limit) = max_bytes.filter(|limit| bytes + self.file_size > *limit) {
            return Err(Error::LogFull { bytes, limit });
        }
        check_space(&*self.storage, FOLDER, self.file_size, min_free)
    }

    /// Bytes of the files of the log, the next one included.
    pub(crate) fn bytes(&self) -> u64 {
        self.files.load().iter().map(|file| file.segment.capacity() as u64).sum()
    }

    /// Writes what is committed of `range` once more as it stands, so that it is synced, whatever
    /// has become of it before.
    pub(super) fn write_again(&self, range: Range<u64>) -> Result<()> {
        let range = range.start..range.end.min(self.committed());
        let files = self.files();
        for file in files.iter().filter(|f| f.end() > range.start && f.base < range.end) {
            let start = (range.start.max(file.base) - file.base) as usize;
            let end = (range.end.min(file.end()) - file.base) as usize;
            let Some(bytes) = file.segment.read(start..end) else { continue };
            let failed = |action, e| io_error(&*self.storage, action, &file.name(), e);
            let opened = self.storage.open(&file.name()).map_err(|e| failed("open", e))?;
            opened.write_at(start as u64, bytes).map_err(|e| failed("write", e))?;
        }
        Ok(())
    }

    /// Makes `from..to` durable, a range in every file that it touches.
    pub(crate) fn sync(&self, from: u64, to: u64) -> Result<()> {
        for file in self.files().iter().filter(|file| file.end() > from && file.base < to) {
            let start = (from.max(file.base) - file.base) as usize;
            let end = (to.min(file.end()) - file.base) as usize;
            let synced = file.segment.sync(start..end);
            synced.map_err(|e| io_error(&*self.storage, "sync", &file.name(), e))?;
        }
        Ok(())
    }

    /// Lets the disk begin with `from..to`, which is all appended, and does not wait for it.
    pub(crate) fn start_write_back(&self, from: u64, to: u64) -> Result<()> {
        for file in self.files().iter().filter(|file| file.end() > from && file.base < to) {
            let start = from.max(file.base) - file.base;
            // The page in which the log ends is still written to: that would fault for nothing.
            let end = (to.min(file.end()) - file.base) / PAGE * PAGE;
            if start >= end {
                continue;
            }
            let name = file.name();
            let opened = match self.storage.open(&name) {
                // Dropped meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                opened => opened.map_err(|e| io_error(&*self.storage, "open", &name, e))?,
            };
            file.segment.detach(start as usize..end as usize);
            let started = opened.start_write_back(start..end);
            // A lack of space, too, is then a lost write.
            started.map_err(|e| io_error(&*self.storage, "sync", &name, e))?;
        }
        Ok(())
    }
}

/// What the slots of `meta/next_base` hold.
pub(super) fn next_base_value(base: u64) -> [u8; VALUE] {
    let mut value = [0; VALUE];
    value[..8].copy_from_slice(&base.to_le_bytes());
    value
}
