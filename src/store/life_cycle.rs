//! The life of a topic: made, changed, purged, deleted.
//!
//! Every change is made in the same steps, with the changes locked: the topic's queues take
//! nothing, the event is recorded in the log, memory follows, and the queues take messages again,
//! for the topic's new value alone. So each message stands before or behind the event in the log
//! as it did in memory, and recovery comes to the same end. A producer that is refused meanwhile
//! waits for the change, and looks the topic up again.

use super::Store;
use super::append::AppendError;
use super::consume_queue::ConsumeQueue;
use super::cursors::Cursor;
use super::draft::{Draft, Outline, Pending, Source};
use super::drop_front::Disposal;
use super::record::Kind;
use super::topic::Topic;
use super::topic_event::{Change, Shape, TopicEvent};
use super::topics::Changes;
use crate::error::Result;
use crate::sync::Arc;
use crate::topic_config::TopicConfig;

/// Cursors that are changed without letting go of the append lock.
const AT_ONCE: usize = 64;

impl Store {
    /// Creates a topic, unless it exists: then `None`.
    pub(crate) fn create_topic(
        &self,
        name: &str,
        config: impl Into<TopicConfig>,
    ) -> Result<Option<Arc<Topic>>> {
        let config = config.into();
        self.with_room(Disposal::Return, || self.try_create_topic(name, config))
    }

    fn try_create_topic(&self, name: &str, config: TopicConfig) -> Result<Option<Arc<Topic>>> {
        let mut changes = self.topics.changes();
        if self.topics.get(name).is_some() {
            return Ok(None);
        }
        let shape = Shape::new(config);
        let incarnation = changes.next_incarnation;
        let change = Change::Shape(shape);
        let event = TopicEvent { name: name.to_owned(), incarnation, change };
        self.record_event(&mut changes, event)?;
        changes.next_incarnation += 1;
        let topic = self.reshape(&mut changes, name.into(), incarnation, shape, Vec::new());
        self.topics.publish(&mut changes, topic.clone());
        self.resume(&topic);
        Ok(Some(topic))
    }

    /// Changes the counts of queues and the permission; `None` if there is no such topic.
    pub(crate) fn update_topic(
        &self,
        name: &str,
        config: TopicConfig,
    ) -> Result<Option<Arc<Topic>>> {
        self.with_room(Disposal::Return, || self.try_update_topic(name, config))
    }

    fn try_update_topic(&self, name: &str, config: TopicConfig) -> Result<Option<Arc<Topic>>> {
        let mut changes = self.topics.changes();
        let Some(old) = self.topics.get(name) else { return Ok(None) };
        if old.config == config {
            return Ok(Some(old));
        }
        let queues = config.queues().max(old.queues.len() as u16);
        let shape = Shape { config, queues };
        self.halt(&old);
        let recorded = self.record_event(&mut changes, old.changed(Change::Shape(shape)));
        recorded.inspect_err(|_| self.resume(&old))?;
        let name = old.name.clone();
        let topic = self.reshape(&mut changes, name, old.incarnation, shape, old.queues.clone());
        self.topics.publish(&mut changes, topic.clone());
        old.retire();
        self.resume(&topic);
        Ok(Some(topic))
    }

    /// Deletes a topic with everything in it; `None` if there is no such topic.
    pub(crate) fn delete_topic(&self, name: &str) -> Result<Option<Arc<Topic>>> {
        self.with_room(Disposal::Return, || self.try_delete_topic(name))
    }

    fn try_delete_topic(&self, name: &str) -> Result<Option<Arc<Topic>>> {
        let mut changes = self.topics.changes();
        let Some(topic) = self.topics.get(name) else { return Ok(None) };
        self.halt(&topic);
        let recorded = self.record_event(&mut changes, topic.changed(Change::Deleted));
        let end = recorded.inspect_err(|_| self.resume(&topic))?;
        self.topics.withdraw(&mut changes, &topic);
        topic.retire();
        // Under the lock that adds blocks: none comes behind those that are taken.
        let growth = self.index_growth.lock();
        for queue in &topic.queues {
            queue.end();
            let blocks = self.log.with_tail(|tail| Some(tail.cursors.of(queue)?.take_blocks()));
            drop(blocks);
            changes.free_slot(queue.slot);
        }
        drop(growth);
        changes.doom(end, topic.clone());
        Ok(Some(topic))
    }

    /// Forgets what groups have committed in a topic that is gone.
    pub(crate) fn forget_offsets(&self, topic: &Topic) {
        let groups = self.groups.end();
        self.offsets.forget(topic.incarnation, topic.queues.len() as u16, groups);
        self.flusher().ring();
    }

    /// Drops all messages of a topic, consumed or not; `None` if there is no such topic, otherwise
    /// how many there were.
    pub(crate) fn purge_topic(&self, name: &str) -> Result<Option<u64>> {
        self.with_room(Disposal::Return, || self.try_purge_topic(name))
    }

    fn try_purge_topic(&self, name: &str) -> Result<Option<u64>> {
        let mut changes = self.topics.changes();
        let Some(topic) = self.topics.get(name) else { return Ok(None) };
        self.halt(&topic);
        let recorded = self.record_event(&mut changes, topic.changed(Change::Purged));
        let purged = recorded.map(|end| {
            let mut messages = 0;
            for queue in &topic.queues {
                messages += queue.max() - queue.min();
                queue.raise_min(queue.max());
            }
            changes.doom(end, topic.clone());
            Some(messages)
        });
        self.resume(&topic);
        purged
    }

    /// Gives index blocks back that no queue needs any more, now that a checkpoint at `position`
    /// says so.
    pub(super) fn free_doomed(&self, position: u64) {
        let doomed = self.topics.changes().passed(position);
        let mut blocks = Vec::new();
        for queue in doomed.iter().flat_map(|topic| &topic.queues) {
            // Under the lock that adds blocks: both replace the chain.
            let _growth = self.index_growth.lock();
            match queue.is_gone() {
                true => blocks.extend(queue.take_blocks()),
                false => blocks.extend(queue.drop_blocks(queue.min())),
            }
        }
        self.arena.free(blocks);
    }

    /// Appends the event to the log, and has it saved in the table; returns where it ends.
    fn record_event(&self, changes: &mut Changes, event: TopicEvent) -> Result<u64> {
        let body = event.encode();
        let outline = Outline::new(self.store_id, Kind::Topic, event.incarnation, &event.name);
        let properties = Source::Encoded(&[]);
        let pending = Pending { tag_hash: 0, born_ms: None, properties, body: &body };
        let mut draft = Draft::blank(&outline);
        draft.fill(&outline, 0, 0, pending);
        let placed = self.place(None, &mut [draft]);
        let appended = placed.map_err(AppendError::into_error)?;
        changes.note(appended.end, event);
        Ok(appended.end)
    }

    /// A value of a topic that looks like `shape`: with the queues that it has, and new ones.
    fn reshape(
        &self,
        changes: &mut Changes,
        name: Arc<str>,
        incarnation: u32,
        shape: Shape,
        mut queues: Vec<Arc<ConsumeQueue>>,
    ) -> Arc<Topic> {
        for number in queues.len() as u16..shape.queues {
            let slot = changes.new_slot();
            let queue = Arc::new(ConsumeQueue::new(incarnation, number, slot, Vec::new()));
            self.log.add_cursor(Cursor::new(queue.clone(), 0, None));
            queues.push(queue);
        }
        let generation = changes.new_generation();
        let id = (self.store_id, name, incarnation);
        Arc::new(Topic::new(id, shape.config, generation, queues))
    }

    /// Lets the topic's queues take nothing.
    fn halt(&self, topic: &Topic) {
        self.set_generations(topic, |_| 0);
    }

    /// Lets the topic's queues take messages of this value of it, as far as that allows.
    fn resume(&self, topic: &Topic) {
        self.set_generations(topic, |queue| topic.generation_of(queue));
    }

    fn set_generations(&self, topic: &Topic, generation: impl Fn(&ConsumeQueue) -> u64) {
        for queues in topic.queues.chunks(AT_ONCE) {
            self.log.with_tail(|tail| {
                for queue in queues {
                    if let Some(cursor) = tail.cursors.of(queue) {
                        cursor.generation = generation(queue);
                    }
                }
            });
        }
    }
}
