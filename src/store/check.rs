//! Checking a store without changing anything in it: every record, every entry of the index that
//! is in files, every committed offset, and the small files.
//!
//! The store may be in use meanwhile, by this process or by another one: it is followed as a
//! reader does, up to where it is when the check begins.

use super::Store;
use super::checkpoint::Checkpoint;
use super::consume_queue::Entry;
use super::delay_table::{DelayTable, KnownDelays};
use super::files::{HEAD, corrupt};
use super::flushed_mark::FlushedMark;
use super::follow::{Follower, Key};
use super::groups::Groups;
use super::index_arena;
use super::log_file::{LogFile, file_name, file_of};
use super::offsets::{OffsetKey, Offsets};
use super::record::{ALIGN, CONTINUED, CONTINUES, Kind, Record, u64_at};
use super::recover::{NEXT_BASE, NEXT_BASE_KIND};
use super::scan::{Behind, End, RawFile, behind, find};
use super::schedule::DueAt;
use super::slots::Slots;
use super::topics::Topics;
use crate::error::{Error, Result};
use crate::storage::Storage;
use crate::sync::{Arc, Counted};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::PathBuf;

/// What a check of a whole directory has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verification {
    /// Records read, with checksums that fit.
    pub records: u64,
    /// Bytes of those records.
    pub bytes: u64,
    /// Queues that have or had messages.
    pub queues: u64,
    /// Entries of the queue index that were compared with their records: those below the last
    /// checkpoint. What is above it is not relied on after a crash.
    pub index_entries: u64,
    /// Committed offsets read.
    pub offsets: u64,
    /// What is wrong, in the order in which it was found.
    pub faults: Vec<Fault>,
}

/// Something in a file that rocklet did not write there, or that is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fault {
    /// The file or folder.
    pub file: PathBuf,
    /// A commit-log position, for the log and the index; otherwise a byte of the file.
    pub position: u64,
    /// What is wrong.
    pub reason: &'static str,
}

impl Store {
    /// Checks everything in the directory, as another process would.
    pub(crate) fn verify(&self) -> Result<Verification> {
        check(&self.storage)
    }
}

/// Checks the store behind `storage`.
///
/// # Errors
/// `Io` if the directory cannot be read, or holds no store; `Version`.
pub(crate) fn check(storage: &Arc<dyn Storage>) -> Result<Verification> {
    let mut check = Check::of(storage);
    if let Some(mut follower) = check.note(Follower::open(storage))? {
        // These first: none is beyond what the log has afterwards.
        let durable = check.durable_end(follower.store_id());
        let offsets = check.offsets(follower.store_id())?;
        follower.refresh()?;
        check.log(&mut follower)?;
        check.commits(&follower, &offsets);
        check.metadata(&follower, durable)?;
    }
    Ok(check.found)
}

struct Check<'a> {
    storage: &'a Arc<dyn Storage>,
    found: Verification,
    seen: HashMap<Key, Seen>,
}

/// How far a queue has been read.
#[derive(Default)]
struct Seen {
    next: u64,
    last: u64,
}

impl<'a> Check<'a> {
    fn of(storage: &'a Arc<dyn Storage>) -> Self {
        Self { storage, found: Verification::default(), seen: HashMap::new() }
    }

    /// Makes a fault of what a file holds; other errors stay what they are.
    fn note<T>(&mut self, result: Result<T>) -> Result<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(Error::Corrupt { file, position, reason }) => {
                self.found.faults.push(Fault { file, position, reason });
                Ok(None)
            }
            Err(other) => Err(other),
        }
    }

    fn fault(&mut self, name: &str, position: u64, reason: &'static str) {
        self.found.faults.push(Fault { file: self.storage.path(name), position, reason });
    }

    fn log(&mut self, follower: &mut Follower) -> Result<()> {
        if follower.index_misfits() {
            self.fault(index_arena::FOLDER, 0, "the index lacks what the checkpoint says");
        }
        let (faults, mut cut_at) = (self.found.faults.len(), 0);
        for file in follower.log_files() {
            self.file(follower, file, &mut cut_at);
        }
        self.ends_of_queues(follower);
        self.end_of_log(follower)?;
        // What retention has dropped meanwhile was not missing.
        let first = follower.log_files().first().map_or(0, |file| file.base);
        let index = self.storage.path(index_arena::FOLDER);
        let mut nth = 0;
        self.found.faults.retain(|fault| {
            nth += 1;
            nth <= faults || fault.file != index || fault.position >= first
        });
        Ok(())
    }

    fn file(&mut self, follower: &Follower, file: &Counted<LogFile>, cut_at: &mut u64) {
        let end = follower.position().min(file.end());
        let store_id = follower.store_id();
        let (mut position, mut batch) = (file.base + HEAD as u64, false);
        while position < end {
            let record = file.record(position).and_then(|record| {
                let sound = record.verify(store_id);
                if sound { Ok(record) } else { Err("the record fails its checksum") }
            });
            let record = match record {
                Ok(record) => record,
                Err(reason) => {
                    self.fault(&file.name(), position, reason);
                    let from = position + ALIGN as u64;
                    let rest = (from - file.base) as usize..(end - file.base) as usize;
                    let rest = file.segment.read(rest).unwrap_or_default();
                    let next = find(store_id, rest, from, |_| true);
                    position = next.map_or(end, |record| record.position());
                    // One fault is enough for what is missing there.
                    batch = next.is_some_and(|record| record.has(CONTINUED));
                    *cut_at = from;
                    continue;
                }
            };
            if record.has(CONTINUED) != batch {
                self.fault(&file.name(), position, "a record of the batch is missing");
            }
            batch = record.has(CONTINUES);
            self.record(follower, file, &record, cut_at);
            position += record.length() as u64;
        }
    }

    fn record(
        &mut self,
        follower: &Follower,
        file: &Counted<LogFile>,
        record: &Record<'_>,
        cut_at: &mut u64,
    ) {
        self.found.bytes += record.length() as u64;
        match record.kind() {
            Kind::Lost => *cut_at = record.position(),
            Kind::Filler => {}
            Kind::Topic | Kind::Delayed | Kind::Done => self.found.records += 1,
            Kind::Message => {
                self.found.records += 1;
                self.message(follower, file, record, *cut_at);
            }
        }
    }

    fn message(
        &mut self,
        follower: &Follower,
        file: &Counted<LogFile>,
        record: &Record<'_>,
        cut_at: u64,
    ) {
        let (key, offset) = ((record.incarnation(), record.queue()), record.offset());
        let position = record.position();
        let seen = self.seen.entry(key).or_insert(Seen { next: offset, last: 0 });
        let missing = offset != seen.next && cut_at <= seen.last;
        *seen = Seen { next: offset + 1, last: position };
        if missing {
            let reason = "messages before this one are missing from its queue";
            self.fault(&file.name(), position, reason);
        }
        let queue = follower.queue(key);
        let Some(queue) = queue.filter(|q| (q.min()..q.indexed()).contains(&offset)) else {
            return;
        };
        self.found.index_entries += 1;
        let (length, tag_hash) = (record.length() as u32, record.tag_hash());
        if queue.entry(offset) != Some(Entry { position, length, tag_hash }) {
            let reason = "the index does not lead to this record";
            self.fault(index_arena::FOLDER, position, reason);
        }
    }

    /// What the index has behind the last record of a queue must be known to be lost.
    fn ends_of_queues(&mut self, follower: &Follower) {
        let mut missing = Vec::new();
        for (key, queue) in follower.queues() {
            self.found.queues += 1;
            let read = self.seen.get(&key).map_or(0, |seen| seen.next).max(queue.min());
            let end = queue.indexed();
            let mut rest = (read..end).map(|offset| queue.entry(offset));
            let lost = |entry: Option<Entry>| entry.is_some_and(|entry| entry.is_lost());
            missing.extend(rest.find(|entry| !lost(*entry)));
        }
        for entry in missing {
            let position = entry.map_or(0, |entry: Entry| entry.position);
            let reason = "the index leads to a record that is not there";
            self.fault(index_arena::FOLDER, position, reason);
        }
    }

    /// Looks whether the log ends because of damage.
    fn end_of_log(&mut self, follower: &mut Follower) -> Result<()> {
        let position = follower.position();
        let found = self.begins_behind(follower);
        if follower.refresh()? && follower.position() != position {
            // What was found is what the owner has appended.
            return Ok(());
        }
        if let Some(found) = self.note(found)?.flatten() {
            let name = follower.log_files().iter().rev().find(|file| file.base <= found);
            let name = name.map_or_else(|| file_name(0), |file| file.name());
            self.fault(&name, position, "a damaged record stands before sound ones");
        }
        Ok(())
    }

    /// The position of an append that begins behind the end.
    fn begins_behind(&self, follower: &Follower) -> Result<Option<u64>> {
        let position = follower.position();
        let mut files = Vec::new();
        for file in follower.log_files().iter().filter(|file| file.end() > position) {
            files.extend(RawFile::open_shared(&**self.storage, file.base)?);
        }
        let found = behind(follower.store_id(), &mut files, &End::at(position, 0));
        Ok(match found {
            Behind::Append { position, .. } => Some(position),
            Behind::Nothing | Behind::Rest => None,
        })
    }

    fn offsets(&mut self, store_id: u64) -> Result<Vec<(OffsetKey, u64)>> {
        let read = Offsets::read(&**self.storage, store_id);
        let (offsets, unreadable) = self.note(read)?.unwrap_or_default();
        self.found.offsets = offsets.len() as u64;
        if unreadable > 0 {
            self.fault("meta/offsets-0000", 0, "committed offsets cannot be read");
        }
        Ok(offsets)
    }

    fn commits(&mut self, follower: &Follower, offsets: &[(OffsetKey, u64)]) {
        if follower.is_overtaken() {
            // The end of a queue may be what was dropped.
            return;
        }
        for (key, offset) in offsets {
            let queue = follower.queue((key.incarnation, key.queue));
            if queue.is_some_and(|queue| queue.max() < *offset) {
                let reason = "a committed offset lies behind the end of its queue";
                self.fault("meta/offsets-0000", *offset, reason);
            }
        }
    }

    /// Each message that waits must be there, and be due when the table says.
    fn delays(&mut self, follower: &Follower, known: &KnownDelays) {
        for (position, word) in known.waiting().filter(|(at, _)| *at < follower.position()) {
            let file = file_of(follower.log_files(), position);
            let record = file.and_then(|file| file.record(position).ok());
            let due = record.filter(|record| record.kind() == Kind::Delayed);
            if due.and_then(|record| record.due()).map(DueAt::word) != Some(word) {
                self.fault("meta/delays", position, "it names a message that does not wait there");
            }
        }
    }

    /// How far the log must reach. What cannot be read is told of by `metadata`.
    fn durable_end(&self, store_id: u64) -> u64 {
        let checkpoint = Checkpoint::load(&**self.storage, store_id).ok().flatten();
        let flushed = FlushedMark::read(&**self.storage, store_id).unwrap_or(0);
        checkpoint.map_or(0, |checkpoint| checkpoint.position).max(flushed)
    }

    fn metadata(&mut self, follower: &Follower, durable: u64) -> Result<()> {
        let (storage, store_id) = (&**self.storage, follower.store_id());
        self.note(Groups::read(storage, store_id))?;
        let checkpoint = self.note(Checkpoint::load(storage, store_id))?.flatten();
        // The table has at least what the checkpoint says, unless its end is lost. Part of that may
        // stand in the log still.
        let table = self.note(Topics::read(storage, store_id))?.unwrap_or_default();
        let mut topics: HashSet<u32> = table.iter().map(|event| event.incarnation).collect();
        topics.extend(follower.topics().map(|(incarnation, ..)| incarnation));
        topics.extend(follower.deleted());
        if checkpoint.as_ref().is_some_and(|known| (topics.len() as u64) < known.topics) {
            self.fault("meta/topics", 0, "a topic is missing");
        }
        if checkpoint.as_ref().is_some_and(|known| known.min_position < follower.begins_after()) {
            let name = follower.log_files().first().map_or_else(|| file_name(0), |f| f.name());
            self.fault(&name, 0, "the log file before this one is missing");
        }
        let delays = DelayTable::read(storage, store_id)?;
        let needed = checkpoint.as_ref().map_or(0, |known| known.delays_as_of);
        if !delays.fits(needed, u64::MAX) {
            self.fault("meta/delays", 0, "it lacks what the checkpoint says");
        } else if needed > 0 {
            self.delays(follower, &delays);
        }
        self.note(FlushedMark::read(storage, store_id))?;
        let end = follower.position();
        if durable > end {
            let name = follower.log_files().last().map_or_else(|| file_name(0), |f| f.name());
            self.fault(&name, end, "records that were durable are missing from here on");
        }
        let next_base = Slots::read(storage, NEXT_BASE, NEXT_BASE_KIND, store_id);
        let next_base = self.note(next_base)?.flatten().map(|value| u64_at(&value, 0));
        let last = follower.log_files().last().map_or(0, |file| file.base);
        if next_base.is_some_and(|next| next <= last && last > 0) {
            self.note::<()>(Err(corrupt(storage, NEXT_BASE, 0, "it lies below a log file")))?;
        }
        Ok(())
    }
}

impl Verification {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.faults.is_empty()
    }
}

impl fmt::Display for Verification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { records, bytes, queues, index_entries, offsets, faults } = self;
        write!(f, "{records} records in {bytes} bytes, {queues} queues, ")?;
        write!(f, "{index_entries} index entries, {offsets} offsets: {} faults", faults.len())?;
        faults.iter().try_for_each(|fault| write!(f, "\n{fault}"))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, position, reason } = self;
        write!(f, "{} at {position}: {reason}", file.display())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::tests::{open, send, topic};
    use super::*;

    #[test]
    fn what_is_flushed_after_the_last_look_at_the_log_is_not_missing() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        let topic = topic(&store, 1);
        let mut check = Check::of(&store.storage);
        let mut follower = Follower::open(&store.storage).unwrap();
        let end = send(&store, &topic, 0, 0).end;
        store.wait_durable(end).unwrap();
        let durable = check.durable_end(follower.store_id());
        assert_eq!(durable, end);
        // The log has not been read so far: it is missing.
        check.metadata(&follower, durable).unwrap();
        assert_eq!(check.found.faults.len(), 1);
        follower.refresh().unwrap();
        store.wait_durable(send(&store, &topic, 0, 1).end).unwrap();
        let mut check = Check::of(&store.storage);
        check.metadata(&follower, durable).unwrap();
        assert!(check.found.is_sound(), "{}", check.found);
    }
}
