//! The table of topics: by name, and by incarnation.
//!
//! What happens to a topic is a record in the log first; `meta/topics` gets it once the log is
//! durable there and before a checkpoint passes it, and recovery replays what came after. An
//! incarnation is a number that no other topic ever had, so that nothing of a deleted topic comes
//! back under its name.

use super::by_name::ByName;
use super::table::Table;
use super::topic::Topic;
use super::topic_event::{Change, TopicEvent};
use crate::error::Result;
use crate::storage::Storage;
use crate::sync::{Arc, Mutex, MutexGuard, Rank};
use std::collections::BTreeMap;

const FILE: &str = "meta/topics";
const KIND: [u8; 4] = *b"topc";

/// All topics of a store.
#[derive(Debug)]
pub(crate) struct Topics {
    by_name: ByName<Topic>,
    changes: Mutex<Changes>,
}

/// What the lock guards under which topics change.
#[derive(Debug)]
pub(crate) struct Changes {
    table: Table,
    /// In the log up to this position, not yet in the table.
    unsaved: Vec<(u64, TopicEvent)>,
    /// Topics that were deleted or purged at this position: their index blocks can be used again
    /// once a checkpoint has passed it.
    doomed: Vec<(u64, Arc<Topic>)>,
    pub(super) next_incarnation: u32,
    next_generation: u64,
    next_slot: usize,
    free_slots: Vec<usize>,
}

impl Topics {
    /// Opens the table; returns the topics that it knows.
    pub(crate) fn open(
        storage: &Arc<dyn Storage>,
        store_id: u64,
    ) -> Result<(Self, Vec<TopicEvent>)> {
        let mut known = Known::default();
        let table = Table::open(storage, FILE, KIND, store_id, |entry| known.take(entry))?;
        let changes = Changes {
            table,
            unsaved: Vec::new(),
            doomed: Vec::new(),
            next_incarnation: known.last + 1,
            // Above those of recovered topics, which come from their incarnations.
            next_generation: 1 << 32,
            next_slot: 0,
            free_slots: Vec::new(),
        };
        let changes = Mutex::new(Rank::TopicTable, changes);
        Ok((Self { by_name: ByName::new(), changes }, known.topics.into_values().collect()))
    }

    /// The topics that the table knows, read without changing anything.
    pub(crate) fn read(storage: &dyn Storage, store_id: u64) -> Result<Vec<TopicEvent>> {
        let mut known = Known::default();
        Table::read(storage, FILE, KIND, store_id, |entry| known.take(entry))?;
        Ok(known.topics.into_values().collect())
    }

    #[inline]
    pub(crate) fn get(&self, name: &str) -> Option<Arc<Topic>> {
        self.by_name.get(name)
    }

    /// All topics, in no order.
    pub(crate) fn all(&self) -> Vec<Arc<Topic>> {
        self.by_name.values()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// The lock under which topics change.
    pub(crate) fn changes(&self) -> MutexGuard<'_, Changes> {
        self.changes.lock()
    }

    /// Waits until a change that is being made is done: whoever was refused finds the topic as it
    /// is then.
    pub(crate) fn settle(&self) {
        drop(self.changes());
    }

    /// Makes a topic visible, in place of the one of that name.
    pub(super) fn publish(&self, _: &mut Changes, topic: Arc<Topic>) {
        self.by_name.insert(topic.name.clone(), topic);
    }

    /// Makes a topic invisible.
    pub(super) fn withdraw(&self, _: &mut Changes, topic: &Topic) {
        self.by_name.remove(&topic.name);
    }

    /// Takes over what recovery has found: the topics, whose queues use the first slots, and the
    /// events that the table lacks, all below `position`.
    pub(super) fn recovered(
        &self,
        topics: Vec<Topic>,
        next_incarnation: u32,
        lacking: Vec<TopicEvent>,
        position: u64,
    ) {
        let mut changes = self.changes();
        changes.next_slot = topics.iter().map(|topic| topic.queues.len()).sum();
        changes.next_incarnation = changes.next_incarnation.max(next_incarnation);
        changes.unsaved.extend(lacking.into_iter().map(|event| (position, event)));
        topics.into_iter().for_each(|topic| self.publish(&mut changes, Arc::new(topic)));
    }

    /// Writes to the table, durably, what the log has below `position`, where it is durable: a
    /// checkpoint comes next.
    pub(crate) fn save(&self, position: u64) -> Result<()> {
        let mut changes = self.changes.lock();
        let Changes { table, unsaved, next_incarnation, .. } = &mut *changes;
        let count = unsaved.partition_point(|(end, _)| *end <= position);
        if count == 0 {
            return Ok(());
        }
        // As one entry: of several, a loss of power could keep a later one only.
        let events = unsaved[..count].iter().flat_map(|(_, event)| event.encode());
        table.append(&events.collect::<Vec<_>>())?;
        table.sync()?;
        unsaved.drain(..count);
        if !unsaved.is_empty() {
            // What is in memory is ahead of the durable log: that is not to be in the table yet.
            return Ok(());
        }
        // The last incarnation may be one that is gone, and is not to be given again.
        let last = TopicEvent {
            name: String::new(),
            incarnation: *next_incarnation - 1,
            change: Change::Deleted,
        };
        table.compact(|| {
            let topics = self.all();
            let live = topics.iter().map(|topic| topic.event().encode());
            std::iter::once(last.encode()).chain(live).collect()
        })
    }
}

/// What the entries of a table come to.
#[derive(Debug, Default)]
struct Known {
    topics: BTreeMap<u32, TopicEvent>,
    /// The last incarnation.
    last: u32,
}

impl Known {
    fn take(&mut self, entry: &[u8]) {
        for event in TopicEvent::decode_all(entry) {
            self.last = self.last.max(event.incarnation);
            match event.change {
                Change::Shape(_) => drop(self.topics.insert(event.incarnation, event)),
                Change::Deleted => drop(self.topics.remove(&event.incarnation)),
                // Its place in the log counts, and there alone it is looked for.
                Change::Purged => {}
            }
        }
    }
}

impl Changes {
    /// Lets go of the table, and of the index of every queue.
    pub(super) fn release(&mut self, topics: &[Arc<Topic>]) {
        self.table.release();
        let doomed = self.doomed.drain(..).map(|(_, topic)| topic).collect::<Vec<_>>();
        let queues = topics.iter().chain(&doomed).flat_map(|topic| &topic.queues);
        queues.for_each(|queue| drop(queue.take_blocks()));
    }

    /// See [`Table::write_again`].
    pub(crate) fn write_again(&mut self) -> Result<()> {
        self.table.write_again()
    }

    /// Notes an event that the log has, up to `end`, and the table does not.
    pub(super) fn note(&mut self, end: u64, event: TopicEvent) {
        self.unsaved.push((end, event));
    }

    /// Notes a topic whose index blocks are of no use once a checkpoint has passed `end`.
    pub(super) fn doom(&mut self, end: u64, topic: Arc<Topic>) {
        self.doomed.push((end, topic));
    }

    /// The doomed of which a checkpoint at `position` has told.
    pub(super) fn passed(&mut self, position: u64) -> Vec<Arc<Topic>> {
        let count = self.doomed.partition_point(|(end, _)| *end <= position);
        self.doomed.drain(..count).map(|(_, topic)| topic).collect()
    }

    /// A generation that no value of a topic has.
    pub(super) fn new_generation(&mut self) -> u64 {
        self.next_generation += 1;
        self.next_generation
    }

    /// A slot for a cursor.
    pub(super) fn new_slot(&mut self) -> usize {
        self.free_slots.pop().unwrap_or_else(|| {
            self.next_slot += 1;
            self.next_slot - 1
        })
    }

    /// Takes the slot of a queue back that is gone.
    pub(super) fn free_slot(&mut self, slot: usize) {
        self.free_slots.push(slot);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::storage::Directory;
    use crate::store::topic_event::Shape;
    use crate::topic_config::TopicConfig;

    fn storage(dir: &std::path::Path) -> Arc<dyn Storage> {
        let storage = Directory::new(dir).unwrap();
        storage.make_folder("meta").unwrap();
        Arc::new(storage)
    }

    fn event(incarnation: u32) -> TopicEvent {
        let change = Change::Shape(Shape::new(TopicConfig::new(4)));
        TopicEvent { name: format!("topic-{incarnation}"), incarnation, change }
    }

    fn deleted(incarnation: u32) -> TopicEvent {
        TopicEvent { change: Change::Deleted, ..event(incarnation) }
    }

    fn incarnations(known: &[TopicEvent]) -> Vec<u32> {
        known.iter().map(|event| event.incarnation).collect()
    }

    #[test]
    fn only_what_is_durable_in_the_log_reaches_the_table() {
        let dir = tempfile::tempdir().unwrap();
        let storage = storage(dir.path());
        let (topics, _) = Topics::open(&storage, 7).unwrap();
        for nth in 1..=5 {
            topics.changes().note(u64::from(nth) * 100, event(nth));
        }
        topics.changes().note(600, deleted(2));
        for (position, known) in [(99, vec![]), (300, vec![1, 2, 3]), (599, vec![1, 2, 3, 4, 5])] {
            topics.save(position).unwrap();
            assert_eq!(incarnations(&Topics::open(&storage, 7).unwrap().1), known);
        }
        topics.save(600).unwrap();
        assert_eq!(incarnations(&Topics::open(&storage, 7).unwrap().1), [1, 3, 4, 5]);
    }

    #[test]
    fn b_021_an_incarnation_is_not_given_again_after_a_compaction() {
        let dir = tempfile::tempdir().unwrap();
        let storage = storage(dir.path());
        let (topics, _) = Topics::open(&storage, 7).unwrap();
        let mut last = 0;
        // Topics that come and go, so that nothing is left of them but their number.
        for nth in (1..=4000).step_by(100) {
            let mut changes = topics.changes();
            for nth in nth..nth + 100 {
                changes.note(1, event(nth));
                changes.note(1, deleted(nth));
                changes.next_incarnation = nth + 1;
                last = nth;
            }
            drop(changes);
            topics.save(1).unwrap();
        }
        let length = std::fs::metadata(storage.path(FILE)).unwrap().len();
        assert!(length < 140_000, "{length} bytes were not compacted");
        let (again, known) = Topics::open(&storage, 7).unwrap();
        assert!(known.is_empty());
        assert_eq!(again.changes().next_incarnation, last + 1);
    }

    #[test]
    fn b_080_a_save_that_reached_the_disk_in_part_is_a_torn_entry() {
        let dir = tempfile::tempdir().unwrap();
        let storage = storage(dir.path());
        let (topics, known) = Topics::open(&storage, 7).unwrap();
        assert!(known.is_empty());
        topics.changes().note(1, event(1));
        topics.save(1).unwrap();
        let first = std::fs::read(dir.path().join(FILE)).unwrap().len();
        (2..500).for_each(|nth| topics.changes().note(1, event(nth)));
        topics.save(1).unwrap();
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
