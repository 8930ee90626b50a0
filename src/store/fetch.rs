//! Reading messages of a queue from an offset on (STORE-27..33).

use super::commit_log::CommitLog;
use super::consume_queue::ConsumeQueue;
use super::delivery::{Deliveries, Delivery};
use super::index_arena;
use super::log_file::{LogFile, file_of};
use super::record::{Kind, Record};
use super::{Store, Verify};
use crate::error::{Error, Result};
use crate::sync::Counted;
use std::cell::Cell;

/// Index entries that one call looks at, unless more messages than that are asked for (STORE-29).
const SCAN: usize = 800;

/// What chooses among messages: first by the hash in the index, then by the message itself.
pub(crate) trait Select {
    /// False only if no message with this tag hash is wanted.
    fn by_hash(&self, tag_hash: i32) -> bool;
    /// Whether the message is wanted.
    fn by_message(&self, message: &Delivery<'_>) -> bool;
}

/// How a read ended (STORE-28).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FetchStatus {
    /// At least one message.
    Found,
    /// Messages, but none that passes the selection; the read stopped at its scan limit or at the
    /// end.
    NoMatched,
    /// Nothing was ever stored in the queue.
    Empty,
    /// The offset is below the first stored message.
    TooSmall,
    /// The offset is the next one to be given.
    AtEnd,
    /// The offset is beyond that.
    Beyond,
    /// The messages are being removed by retention.
    Removing,
}

/// The result of a read.
#[derive(Debug)]
pub(crate) struct Fetch {
    pub(crate) status: FetchStatus,
    pub(crate) messages: Deliveries,
    /// Where to read on, whatever the status.
    pub(crate) next: u64,
    pub(crate) min: u64,
    pub(crate) max: u64,
}

impl Store {
    /// Reads up to `max_messages` messages, and no more than `max_bytes` unless the first alone
    /// is larger (STORE-30).
    ///
    /// # Errors
    /// `Corrupt` if a record cannot be read.
    pub(crate) fn fetch(
        &self,
        queue: &ConsumeQueue,
        offset: u64,
        max_messages: usize,
        max_bytes: usize,
        select: &impl Select,
    ) -> Result<Fetch> {
        self.log.fetch(queue, offset, max_messages, max_bytes, select)
    }

    /// Visits the messages of a queue that stand at `position` in the log or behind it, and can be
    /// read.
    pub(crate) fn visit_from(
        &self,
        queue: &ConsumeQueue,
        position: u64,
        mut visit: impl FnMut(&Record<'_>),
    ) {
        queue.scan(queue.first_at(position)..queue.max(), |_, entry| {
            if !entry.is_lost() {
                self.with_record(entry.position, &mut visit);
            }
            true
        });
    }

    /// What `read` makes of the record at `position`, which has been committed; `None` if it cannot
    /// be read.
    pub(crate) fn with_record<R>(
        &self,
        position: u64,
        read: impl FnOnce(&Record<'_>) -> R,
    ) -> Option<R> {
        let file = self.log.file(position)?;
        file.record(position).ok().map(|record| read(&record))
    }
}

impl CommitLog {
    /// What [`Store::fetch`] does.
    pub(crate) fn fetch(
        &self,
        queue: &ConsumeQueue,
        offset: u64,
        max_messages: usize,
        max_bytes: usize,
        select: &impl Select,
    ) -> Result<Fetch> {
        let (min, max) = (queue.min(), queue.max());
        let nothing = |status, next| {
            Ok(Fetch { status, messages: Deliveries::none(self.store_id), next, min, max })
        };
        match offset {
            _ if max == 0 => return nothing(FetchStatus::Empty, 0),
            _ if offset < min => return nothing(FetchStatus::TooSmall, min),
            _ if offset == max => return nothing(FetchStatus::AtEnd, offset),
            _ if offset > max => return nothing(FetchStatus::Beyond, max),
            _ => {}
        }
        let expected = max_messages.min(SCAN).min((max - offset) as usize);
        let mut messages = Deliveries::with_capacity(self.store_id, expected);
        messages.note_stored(min, max);
        // Looked up after `max`: the file of every record below it is in the list by then.
        let files = self.files();
        let file: Cell<Option<&Counted<LogFile>>> = Cell::new(None);
        // A record stands in memory that was written long ago: it is asked for some records before.
        let expect = |position| file.get().into_iter().for_each(|file| file.expect(position));
        let (mut scanned, mut bytes) = (0, 0);
        let mut damage = None;
        let mut removed = false;
        #[cfg(broken_files_first)]
        let max = queue.max();
        queue.scan_ahead(offset..max, expect, |offset, entry| {
            let length = entry.length as usize;
            let full = messages.len() >= max_messages
                || (!messages.is_empty() && bytes + length > max_bytes)
                || scanned >= SCAN.max(max_messages);
            if full {
                return false;
            }
            scanned += 1;
            if entry.is_lost() {
                return true;
            }
            // An entry that is to be verified is not believed either.
            if self.verify == Verify::OnOpen && !select.by_hash(entry.tag_hash) {
                return true;
            }
            if file.get().is_none_or(|f| entry.position < f.base || entry.position >= f.end()) {
                file.set(file_of(&files, entry.position));
            }
            let Some(file) = file.get() else {
                removed = files.first().is_some_and(|first| entry.position < first.base);
                if !removed {
                    let reason = "the index names a position outside of the log";
                    damage = Some((index_arena::FOLDER.to_owned(), entry.position, reason));
                }
                return removed;
            };
            match self.record(file, queue, offset, entry) {
                Ok(record) if select.by_message(&Delivery::new(record, file, self.store_id)) => {
                    bytes += length;
                    messages.push(file, entry.position);
                }
                Ok(_) => {}
                Err(reason) => damage = Some((file.name(), entry.position, reason)),
            }
            damage.is_none()
        });
        if scanned == 0 && max_messages > 0 && offset >= queue.min() {
            // The index is gone as a whole: the store was closed.
            return Err(Error::Closed);
        }
        if let Some((name, position, reason)) = damage {
            // What stands before the damage is delivered, or passed by, first.
            if scanned == 1 {
                return Err(super::files::corrupt(&*self.storage, &name, position, reason));
            }
            scanned -= 1;
        }
        let status = match (messages.is_empty(), removed) {
            (false, _) => FetchStatus::Found,
            (true, false) => FetchStatus::NoMatched,
            (true, true) => FetchStatus::Removing,
        };
        Ok(Fetch { status, messages, next: offset + scanned as u64, min, max })
    }
}

/// Index entries are hints: the record must be the one that belongs there.
#[inline]
pub(super) fn fits(queue: &ConsumeQueue, offset: u64, record: &Record<'_>) -> bool {
    record.kind() == Kind::Message
        && record.offset() == offset
        && record.queue() == queue.queue
        && record.incarnation() == queue.incarnation
}
