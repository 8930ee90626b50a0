//! The log of another process, read on record by record: its files, as long as their owner has
//! them, and its end, the first record whose position, checksum or batch does not fit.

use super::consume_queue::Entry;
use super::files::{HEAD, Head, IMPOSSIBLE, io_error};
use super::follow::Key;
use super::log_file::{KIND, LogFile, bases, file_name};
use super::record::{
    ALIGN, CONTINUED, CONTINUES, HEADER, Kind, Record, covered, names_position, u32_at,
};
use super::topic_event::TopicEvent;
use crate::error::Result;
use crate::storage::{Carver, SegmentWriter, Storage};
use crate::sync::{Arc, Counted};
use std::collections::BTreeSet;
use std::io;

/// The files of the log, and how far they have been read.
#[derive(Debug)]
pub(super) struct FollowedLog {
    storage: Arc<dyn Storage>,
    store_id: u64,
    /// Ascending, without a gap.
    files: Vec<Followed>,
    /// The same, for reading.
    shared: Vec<Counted<LogFile>>,
    /// Everything below has been verified, or is vouched for by a checkpoint.
    position: u64,
    /// Incarnations whose topics have been named.
    named: BTreeSet<u32>,
    buffer: Vec<u8>,
    seen: Vec<Seen>,
}

/// A log file, and the right to say how much of it has been verified.
#[derive(Debug)]
struct Followed {
    file: Counted<LogFile>,
    writer: SegmentWriter,
    after: u64,
}

/// What has become of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listed {
    Same,
    /// Some came, or went.
    Other,
    /// Some went that had not been read.
    Overtaken,
}

/// What a verified record says.
#[derive(Debug)]
pub(super) enum Seen {
    /// With the name of its topic, the first time.
    Message {
        key: Key,
        offset: u64,
        entry: Entry,
        topic: Option<String>,
    },
    Topic(TopicEvent),
    Lost(u64),
}

impl FollowedLog {
    /// A log of which nothing has been looked at.
    pub(super) fn new(storage: &Arc<dyn Storage>, store_id: u64) -> Self {
        Self {
            storage: storage.clone(),
            store_id,
            files: Vec::new(),
            shared: Vec::new(),
            position: 0,
            named: BTreeSet::new(),
            buffer: Vec::new(),
            seen: Vec::new(),
        }
    }

    /// Takes what stands below `position` for verified: before the files are listed.
    pub(super) fn start_at(&mut self, position: u64) {
        self.position = position;
    }

    /// The position behind the last verified record.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// The files, ascending.
    pub(super) fn files(&self) -> &[Counted<LogFile>] {
        &self.shared
    }

    /// Where the file ended that stood before the first one; 0 if there was none.
    pub(super) fn begins_after(&self) -> u64 {
        self.files.first().map_or(0, |first| first.after)
    }

    /// Verifies the next append, and returns what it says; `None` if there is none yet.
    pub(super) fn read_on(&mut self) -> Option<Vec<Seen>> {
        while !self.advance() {
            if !self.roll_over() {
                return None;
            }
        }
        Some(std::mem::take(&mut self.seen))
    }

    /// Takes an emptied list back, for the next append.
    pub(super) fn reuse(&mut self, seen: Vec<Seen>) {
        self.seen = seen;
    }

    /// Looks which log files there are; and goes on behind those that were dropped.
    pub(super) fn list(&mut self) -> Result<Listed> {
        let bases = bases(&*self.storage)?;
        let count = self.files.len();
        self.files.retain(|followed| bases.contains(&followed.file.base));
        let mut changed = self.files.len() != count;
        for base in bases {
            if self.files.last().is_none_or(|last| base >= last.file.end()) {
                let Some(followed) = self.open_file(base)? else {
                    // Before the first one that is there it has just been dropped.
                    if self.files.is_empty() {
                        continue;
                    }
                    break;
                };
                // What stands behind a missing file is not a prefix.
                let end = self.files.last().map(|last| last.file.end());
                if end.is_some_and(|end| end != followed.after) {
                    break;
                }
                self.files.push(followed);
                changed = true;
            }
        }
        if !changed {
            return Ok(Listed::Same);
        }
        self.shared = self.files.iter().map(|followed| followed.file.clone()).collect();
        let Some(first) = self.files.first() else { return Ok(Listed::Other) };
        let (begin, after) = (first.file.base + HEAD as u64, first.after);
        if self.position >= begin {
            return Ok(Listed::Other);
        }
        let overtaken = self.position != after;
        self.position = begin;
        Ok(if overtaken { Listed::Overtaken } else { Listed::Other })
    }

    /// Maps a log file; `None` if it is not a whole one, or is being dropped.
    fn open_file(&self, base: u64) -> Result<Option<Followed>> {
        let name = file_name(base);
        let failed = |action, source: io::Error| match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::WouldBlock => Ok(None),
            _ => Err(io_error(&*self.storage, action, &name, source)),
        };
        let file = match self.storage.open_shared(&name) {
            Ok(file) => file,
            Err(error) => return failed("open", error),
        };
        let size = file.len().map_err(|e| io_error(&*self.storage, "measure", &name, e))?;
        if size < (HEAD + HEADER) as u64 {
            return Ok(None);
        }
        let region = match file.map() {
            Ok(region) => region,
            Err(error) => return failed("map", error),
        };
        let mut carver = Carver::new(region);
        // Under the lock it is the file that its name says, or none of ours.
        let head = carver.peek(0..HEAD).unwrap_or_default();
        let head = match Head::decode(&*self.storage, &name, KIND, head) {
            Err(error @ crate::Error::Version { .. }) => return Err(error),
            head => head.ok(),
        };
        let head = head
            .filter(|head| (head.store_id, head.number, head.size) == (self.store_id, base, size));
        let Some(head) = head else { return Ok(None) };
        let verified = self.position.clamp(base + HEAD as u64, base + size) - base;
        let writer = carver.carve(size as usize, verified as usize);
        Ok(writer.map(|writer| {
            let file = Counted::new(LogFile::found(base, 0, &writer));
            Followed { file, writer, after: head.after }
        }))
    }

    /// Verifies the next append in the file that is being read; false if there is none yet.
    fn advance(&mut self) -> bool {
        let here = |followed: &Followed| {
            (followed.file.base..followed.file.end()).contains(&self.position)
        };
        let Some(nth) = self.files.iter().position(here) else { return false };
        self.seen.clear();
        let mut length = 0;
        loop {
            let Some((step, continues)) = self.step(nth, length) else {
                if length > 0 {
                    // What was named in part of a batch was told to nobody.
                    self.named.clear();
                }
                return false;
            };
            length += step;
            if !continues {
                break;
            }
        }
        let writer = &mut self.files[nth].writer;
        writer.skip(length);
        writer.publish();
        self.position += length as u64;
        true
    }

    /// Verifies the record that stands `ahead` bytes behind the verified part, and notes what it
    /// says; returns its length, and whether its batch goes on.
    fn step(&mut self, nth: usize, ahead: usize) -> Option<(usize, bool)> {
        let Self { buffer, files, store_id, seen, named, .. } = self;
        let writer = &files[nth].writer;
        let left = writer.remaining().checked_sub(ahead).filter(|left| *left >= HEADER)?;
        let position = self.position + ahead as u64;
        buffer.resize(HEADER, 0);
        writer.copy_ahead(ahead, buffer);
        if !names_position(buffer, position) {
            return None;
        }
        if let Some((kind, length)) = covered(*store_id, buffer, position) {
            if kind == Kind::Lost {
                seen.push(Seen::Lost(position));
            }
            return (length <= left && ahead == 0).then_some((length, false));
        }
        let length = u32_at(buffer, 0) as usize;
        if !(HEADER..=left).contains(&length) || !length.is_multiple_of(ALIGN) {
            return None;
        }
        // A copy: what the owner is still writing does not change while it is checked.
        buffer.resize(length, 0);
        writer.copy_ahead(ahead, buffer);
        let record = Record::parse(buffer, position).ok()?;
        let sound = record.verify(*store_id)
            && record.offset() <= IMPOSSIBLE
            && record.incarnation() < u32::MAX
            && record.has(CONTINUED) == (ahead > 0);
        if !sound {
            return None;
        }
        match record.kind() {
            Kind::Message => seen.push(Seen::Message {
                key: (record.incarnation(), record.queue()),
                offset: record.offset(),
                entry: Entry { position, length: length as u32, tag_hash: record.tag_hash() },
                topic: named
                    .insert(record.incarnation())
                    .then(|| String::from_utf8_lossy(record.topic()).into_owned()),
            }),
            Kind::Topic => seen.extend(TopicEvent::decode(record.body()).map(Seen::Topic)),
            Kind::Filler | Kind::Lost | Kind::Delayed | Kind::Done => {}
        }
        Some((length, record.has(CONTINUES)))
    }

    /// At the end of a file, goes on in the next one; false if there is none yet.
    fn roll_over(&mut self) -> bool {
        let next = |files: &[Followed], position| {
            let next = files.iter().find(|followed| followed.after == position);
            next.map(|followed| followed.file.base + HEAD as u64)
        };
        let full = self.files.iter().any(|followed| followed.file.end() == self.position);
        if !full {
            return false;
        }
        let first = next(&self.files, self.position);
        self.position = first.unwrap_or(self.position);
        first.is_some()
    }
}
