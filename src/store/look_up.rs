//! Finding single messages: by key, and by id.

use super::Store;
use super::delivery::{Deliveries, DetachedDelivery};
use super::files::{HEAD, corrupt};
use super::key_index::{Wanted, key_hash};
use super::log_file::LogFile;
use super::record::{Kind, Record};
use super::topic::Topic;
use crate::error::Result;
use crate::properties::Properties;
use crate::sync::Counted;
use std::ops::RangeInclusive;

impl Store {
    /// The newest `max` messages of `topic` that have `key` and were stored within `times`, in the
    /// order of the log.
    ///
    /// # Errors
    /// `Corrupt` if a part of the log that has to be read cannot be; `Closed`.
    pub(crate) fn find_by_key(
        &self,
        topic: &Topic,
        key: &str,
        times: RangeInclusive<u64>,
        max: usize,
    ) -> Result<Deliveries> {
        let wanted = Wanted { hash: key_hash(&topic.name, key), times, max };
        let found = self.keys.find(&self.log, self.gate.flushed(), &wanted, |position| {
            let Some(file) = self.log.file(position) else { return Ok(None) };
            let record = self.record_at(&file, position, |record| self.log.trusts(record))?;
            let matches = record.is_some_and(|record| {
                wanted.times.contains(&record.store_ms())
                    && Properties(record.properties()).keys().any(|known| known == key)
                    && stands_in(topic, &record)
            });
            Ok(matches.then_some((file, position)))
        })?;
        let mut messages = Deliveries::with_capacity(self.store_id, found.len());
        found.iter().rev().for_each(|(file, position)| messages.push(file, *position));
        Ok(messages)
    }

    /// The message whose record begins at `position`; `None` if none does, or if it is gone.
    ///
    /// # Errors
    /// `Corrupt` if it cannot be read.
    pub(crate) fn message_at(&self, position: u64) -> Result<Option<DetachedDelivery>> {
        let committed = self.log.committed();
        let file = self.log.file(position).filter(|_| position < committed);
        let Some(file) = file else { return Ok(None) };
        let record = self.record_at(&file, position, |record| record.verify(self.store_id))?;
        let stands = record.is_some_and(|record| {
            let topic = std::str::from_utf8(record.topic()).ok();
            let topic = topic.and_then(|name| self.topics.get(name));
            topic.is_some_and(|topic| stands_in(&topic, &record))
        });
        Ok(if stands { self.detached(&file, position) } else { None })
    }

    /// The record that begins at `position`; `None` if none does there, as in the middle of one.
    ///
    /// # Errors
    /// `Corrupt` if one does and is not sound.
    fn record_at<'f>(
        &self,
        file: &'f LogFile,
        position: u64,
        sound: impl Fn(&Record<'_>) -> bool,
    ) -> Result<Option<Record<'f>>> {
        let reason = match file.record(position) {
            Ok(record) if sound(&record) => return Ok(Some(record)),
            Ok(_) => "the record fails its checksum",
            Err(reason) => reason,
        };
        match self.begins_at(file, position)? {
            true => Err(corrupt(&*self.storage, &file.name(), position, reason)),
            false => Ok(None),
        }
    }

    fn detached(&self, file: &Counted<LogFile>, position: u64) -> Option<DetachedDelivery> {
        let mut messages = Deliveries::with_capacity(self.store_id, 1);
        messages.push(file, position);
        messages.get(0).map(|message| message.detach())
    }

    /// Whether a record begins at `position`, going by those before it in the file.
    fn begins_at(&self, file: &LogFile, position: u64) -> Result<bool> {
        let mut begins = file.base + HEAD as u64;
        self.log.visit(begins..position, |record| {
            begins = record.position() + record.length() as u64;
            true
        })?;
        Ok(begins == position)
    }
}

/// Whether the record is the message that the index of one of the topic's queues names, and not
/// one of an earlier topic of that name, of what was dropped, or a copy in another's body.
fn stands_in(topic: &Topic, record: &Record<'_>) -> bool {
    let queue = topic.queues.get(usize::from(record.queue()));
    queue.is_some_and(|queue| {
        let offset = record.offset();
        record.kind() == Kind::Message
            && record.incarnation() == topic.incarnation
            && record.topic() == topic.name.as_bytes()
            && (queue.min()..queue.max()).contains(&offset)
            && queue.entry(offset).is_some_and(|entry| entry.position == record.position())
    })
}
