//! The table of topics: by name, and by incarnation.
//!
//! A topic's creation is a record in the log first; `meta/topics` gets it before a checkpoint
//! passes that record, and recovery replays what came after. An incarnation is a number that no
//! other topic ever had, so that nothing of a deleted topic comes back under its name.

use super::consume_queue::ConsumeQueue;
use super::draft::Outline;
use super::record::{put, u16_at, u32_at};
use super::table::Table;
use crate::error::Result;
use crate::queue_id::QueueId;
use crate::storage::Storage;
use crate::sync::{Arc, Mutex, Rank, Swap};
use std::collections::HashMap;

const FILE: &str = "meta/topics";
const KIND: [u8; 4] = *b"topc";

/// A topic and its queues.
#[derive(Debug)]
pub(crate) struct Topic {
    pub(crate) name: Arc<str>,
    pub(crate) incarnation: u32,
    pub(crate) queues: Vec<Arc<ConsumeQueue>>,
    /// What selectors choose from and receipts are compared with.
    pub(crate) ids: Vec<QueueId>,
    /// What its messages have in common.
    pub(super) outline: Outline,
}

impl Topic {
    /// What the table says of it.
    pub(crate) fn event(&self) -> TopicEvent {
        TopicEvent {
            name: self.name.to_string(),
            incarnation: self.incarnation,
            queues: self.queues.len() as u16,
        }
    }
}

/// What a topic record and a table entry say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TopicEvent {
    pub(crate) name: String,
    pub(crate) incarnation: u32,
    pub(crate) queues: u16,
}

impl TopicEvent {
    /// The body of the record, and a part of a table entry.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; 8];
        put(&mut bytes, 0, &self.incarnation.to_le_bytes());
        put(&mut bytes, 4, &self.queues.to_le_bytes());
        // At most 127 bytes.
        put(&mut bytes, 6, &(self.name.len() as u16).to_le_bytes());
        bytes.extend_from_slice(self.name.as_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        Self::decode_first(bytes).map(|(event, _)| event)
    }

    /// All events of a table entry.
    fn decode_all(mut bytes: &[u8]) -> impl Iterator<Item = Self> {
        std::iter::from_fn(move || {
            let (event, rest) = Self::decode_first(bytes)?;
            bytes = rest;
            Some(event)
        })
    }

    fn decode_first(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (head, rest) = bytes.split_at_checked(8)?;
        let (name, rest) = rest.split_at_checked(usize::from(u16_at(head, 6)))?;
        let name = std::str::from_utf8(name).ok()?.to_owned();
        let event = Self { name, incarnation: u32_at(head, 0), queues: u16_at(head, 4) };
        (event.incarnation < u32::MAX).then_some((event, rest))
    }
}

/// All topics of a store.
#[derive(Debug)]
pub(crate) struct Topics {
    by_name: Swap<HashMap<Arc<str>, Arc<Topic>>>,
    changes: Mutex<Changes>,
}

/// What the lock guards under which topics change.
#[derive(Debug)]
pub(crate) struct Changes {
    table: Table,
    /// In the log, not yet in the table.
    unsaved: Vec<TopicEvent>,
    pub(crate) next_incarnation: u32,
}

impl Topics {
    /// Opens the table; returns the topics that it knows.
    pub(crate) fn open(
        storage: &Arc<dyn Storage>,
        store_id: u64,
    ) -> Result<(Self, Vec<TopicEvent>)> {
        let mut events = Vec::new();
        let table = Table::open(storage, FILE, KIND, store_id, |entry| {
            events.extend(TopicEvent::decode_all(entry));
        })?;
        let changes = Changes { table, unsaved: Vec::new(), next_incarnation: 1 };
        let changes = Mutex::new(Rank::TopicTable, changes);
        Ok((Self { by_name: Swap::new(HashMap::new()), changes }, events))
    }

    /// The topics that the table knows, read without changing anything.
    pub(crate) fn read(storage: &dyn Storage, store_id: u64) -> Result<Vec<TopicEvent>> {
        let mut events = Vec::new();
        Table::read(storage, FILE, KIND, store_id, |entry| {
            events.extend(TopicEvent::decode_all(entry));
        })?;
        Ok(events)
    }

    #[inline]
    pub(crate) fn get(&self, name: &str) -> Option<Arc<Topic>> {
        self.by_name.load().get(name).cloned()
    }

    /// All topics, in no order.
    pub(crate) fn all(&self) -> Vec<Arc<Topic>> {
        self.by_name.load().values().cloned().collect()
    }

    /// The lock under which a topic is looked for again, recorded and inserted.
    pub(crate) fn changes(&self) -> crate::sync::MutexGuard<'_, Changes> {
        self.changes.lock()
    }

    /// Makes topics visible. Called with the changes locked, or by recovery.
    pub(crate) fn insert(&self, changes: &mut Changes, topics: impl IntoIterator<Item = Topic>) {
        let mut by_name = HashMap::clone(&self.by_name.load());
        for topic in topics {
            changes.next_incarnation = changes.next_incarnation.max(topic.incarnation + 1);
            by_name.insert(topic.name.clone(), Arc::new(topic));
        }
        self.by_name.store(by_name);
    }

    /// Writes to the table what only the log has, durably: a checkpoint comes next.
    pub(crate) fn save(&self) -> Result<()> {
        let mut changes = self.changes.lock();
        if changes.unsaved.is_empty() {
            return Ok(());
        }
        let Changes { table, unsaved, .. } = &mut *changes;
        // As one entry: of several, a loss of power could keep a later one only.
        table.append(&unsaved.iter().flat_map(TopicEvent::encode).collect::<Vec<_>>())?;
        table.sync()?;
        unsaved.clear();
        table.compact(|| self.all().iter().map(|topic| topic.event().encode()).collect())
    }
}

impl Changes {
    /// Gives no incarnation below `next` any more.
    pub(crate) fn skip_to(&mut self, next: u32) {
        self.next_incarnation = self.next_incarnation.max(next);
    }

    /// Notes an event that the log has and the table does not.
    pub(crate) fn note(&mut self, event: TopicEvent) {
        self.unsaved.push(event);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::storage::Directory;

    #[test]
    fn b_080_a_save_that_reached_the_disk_in_part_is_a_torn_entry() {
        let dir = tempfile::tempdir().unwrap();
        let storage: Arc<dyn Storage> = Arc::new(Directory::new(dir.path()).unwrap());
        storage.make_folder("meta").unwrap();
        let event = |incarnation: u32| TopicEvent {
            name: format!("topic-{incarnation}"),
            incarnation,
            queues: 4,
        };
        let (topics, known) = Topics::open(&storage, 7).unwrap();
        assert!(known.is_empty());
        topics.changes().note(event(1));
        topics.save().unwrap();
        let first = std::fs::read(dir.path().join(FILE)).unwrap().len();
        (2..500).for_each(|nth| topics.changes().note(event(nth)));
        topics.save().unwrap();
        let all: Vec<_> = (1..500).map(event).collect();
        assert_eq!(Topics::open(&storage, 7).unwrap().1, all);
        // A page that is missing, with others behind it.
        let whole = std::fs::read(dir.path().join(FILE)).unwrap();
        for page in [0, 1, 2] {
            let mut bytes = whole.clone();
            let hole = (page * 4096).max(first)..whole.len().min((page + 1) * 4096);
            bytes[hole].fill(0);
            std::fs::write(dir.path().join(FILE), bytes).unwrap();
            assert_eq!(Topics::open(&storage, 7).unwrap().1, all[..1], "page {page}");
        }
    }
}
