//! The table of topics: by name, and by incarnation.
//!
//! A topic's creation is a record in the log first; `meta/topics` gets it before a checkpoint
//! passes that record, and recovery replays what came after. An incarnation is a number that no
//! other topic ever had, so that nothing of a deleted topic comes back under its name.

use super::consume_queue::ConsumeQueue;
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
    /// The body of the record and of the table entry.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; 8];
        put(&mut bytes, 0, &self.incarnation.to_le_bytes());
        put(&mut bytes, 4, &self.queues.to_le_bytes());
        bytes.extend_from_slice(self.name.as_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let name = std::str::from_utf8(bytes.get(8..)?).ok()?.to_owned();
        Some(Self { name, incarnation: u32_at(bytes, 0), queues: u16_at(bytes, 4) })
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
            events.extend(TopicEvent::decode(entry));
        })?;
        let changes = Changes { table, unsaved: Vec::new(), next_incarnation: 1 };
        let changes = Mutex::new(Rank::TopicTable, changes);
        Ok((Self { by_name: Swap::new(HashMap::new()), changes }, events))
    }

    #[inline]
    pub(crate) fn get(&self, name: &str) -> Option<Arc<Topic>> {
        self.by_name.load().get(name).cloned()
    }

    /// Runs `use_it` with the topic, without taking a reference of its own.
    #[inline]
    pub(crate) fn with<R>(&self, name: &str, use_it: impl FnOnce(&Topic) -> R) -> Option<R> {
        self.by_name.load().get(name).map(|topic| use_it(topic))
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
        for event in unsaved.iter() {
            table.append(&event.encode())?;
        }
        table.sync()?;
        unsaved.clear();
        let live: Vec<_> = self.all().iter().map(|topic| topic.event().encode()).collect();
        table.compact(live.iter().map(Vec::as_slice))
    }
}

impl Changes {
    /// Notes an event that the log has and the table does not.
    pub(crate) fn note(&mut self, event: TopicEvent) {
        self.unsaved.push(event);
    }
}
