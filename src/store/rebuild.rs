//! Bringing the consume queues back: from the index files as far as they can be trusted, and from
//! the records of the log behind that.

use super::checkpoint::{Bounds, Checkpoint};
use super::consume_queue::{Block, ConsumeQueue, Entry};
use super::cursors::{Cursor, Room};
use super::delay_table::KnownDelays;
use super::index_arena::{BLOCK_HEAD, BlockHead, ENTRY, FoundBlock, IndexArena};
use super::record::{Kind, Record};
use super::report::LostMessages;
use super::tail::Tail;
use super::topic::Topic;
use super::topic_event::{Change, Shape, TopicEvent};
use crate::error::Result;
use crate::storage::SegmentWriter;
use crate::sync::Arc;
use crate::topic_config::TopicConfig;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

/// Topics and queues in the making.
#[derive(Debug, Default)]
pub(crate) struct Rebuild {
    topics: BTreeMap<u32, (String, Shape)>,
    /// Incarnations whose deletion was replayed.
    gone: BTreeSet<u32>,
    /// Topics that are known by their messages alone.
    guessed: BTreeSet<u32>,
    queues: HashMap<Key, Queue>,
    pub(crate) last_store_ms: u64,
    /// The one behind those of all events and messages.
    next_incarnation: u32,
    /// The record that covers what a salvage has cut out, of those read the last one; 0 for none.
    cut_at: u64,
    /// The first offsets as a checkpoint has them; `None` if there is none.
    starts: Option<HashMap<Key, u64>>,
    /// Offsets whose messages a salvage has cut out.
    gaps: Vec<(Key, Range<u64>)>,
    pub(crate) delays: KnownDelays,
}

/// Incarnation and number of a queue.
type Key = (u32, u16);

#[derive(Debug, Default)]
struct Queue {
    chain: Vec<Block>,
    writer: Option<SegmentWriter>,
    min: u64,
    next: u64,
    /// The position that the last entry names.
    last: u64,
    /// A replayed purge has raised the minimum up to here.
    purged: u64,
}

/// What does not fit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Misfit(pub(crate) &'static str);

impl Rebuild {
    /// Starts from what a checkpoint says; `None` if there is none.
    pub(crate) fn new(checkpoint: Option<&Checkpoint>) -> Self {
        let starts = |checkpoint: &Checkpoint| {
            checkpoint.bounds.iter().map(|(key, range)| (*key, range.start)).collect()
        };
        Self {
            last_store_ms: checkpoint.map_or(0, |checkpoint| checkpoint.last_store_ms),
            starts: checkpoint.map(starts),
            ..Self::default()
        }
    }

    /// Does to the topics what an event of the table or of the log says.
    pub(crate) fn topic(&mut self, event: TopicEvent) {
        let TopicEvent { name, incarnation, change } = event;
        self.next_incarnation = self.next_incarnation.max(incarnation + 1);
        match change {
            Change::Shape(shape) => {
                self.topics.insert(incarnation, (name, shape));
                self.guessed.remove(&incarnation);
            }
            Change::Deleted => {
                self.topics.remove(&incarnation);
                self.guessed.remove(&incarnation);
                self.gone.insert(incarnation);
            }
            Change::Purged => {
                let queues = self.topics.get(&incarnation).map_or(0, |(_, shape)| shape.queues);
                for number in 0..queues {
                    if let Some(queue) = self.queues.get_mut(&(incarnation, number)) {
                        (queue.min, queue.purged) = (queue.next, queue.next);
                    }
                }
            }
        }
    }

    /// Gives back the blocks of queues whose topics are gone, deleted or lost with the power.
    pub(crate) fn free_unused(&mut self, arena: &IndexArena) {
        let Self { topics, queues, .. } = self;
        let of_a_topic = |incarnation: &u32, number: &u16| {
            topics.get(incarnation).is_some_and(|(_, shape)| number < &shape.queues)
        };
        let mut unused = Vec::new();
        queues.retain(|(incarnation, number), queue| {
            let used = of_a_topic(incarnation, number);
            if !used {
                queue.writer = None;
                unused.extend(queue.chain.drain(..).map(|block| block.segment));
            }
            used
        });
        arena.free(unused);
    }

    /// The incarnation behind all that the index and the log name.
    pub(crate) fn next_incarnation(&self) -> u32 {
        let of_queues = self.queues.keys().map(|(incarnation, _)| *incarnation).max();
        of_queues.map_or(0, |highest| highest.saturating_add(1)).max(self.next_incarnation)
    }

    /// Chains the blocks that the index files hold; `arena` gets back those that are not needed.
    /// `bounds` are those of a checkpoint. Messages below `min_position` are gone.
    pub(crate) fn blocks(
        &mut self,
        arena: &IndexArena,
        mut found: Vec<FoundBlock>,
        bounds: &Bounds,
        min_position: u64,
    ) -> std::result::Result<(), Misfit> {
        found.sort_by_key(|block| block.head.first);
        let mut unused = Vec::new();
        for block in found {
            let BlockHead { incarnation, queue, first } = block.head;
            let start = bounds.get(&(incarnation, queue)).map_or(0, |range| range.start);
            let queue = self.queues.entry((incarnation, queue)).or_default();
            let entries = block.entries();
            let segment = block.writer.segment().clone();
            if let Some(last) = queue.chain.last()
                && (last.end() != first || queue.next != first)
            {
                if entries == 0 {
                    // Given to the queue in advance, and not reached before the crash.
                    unused.push(segment);
                    continue;
                }
                if last.end() != queue.next || queue.min != queue.next {
                    return Err(Misfit("a block of the index is missing or not full"));
                }
                // Nothing before is needed any more: a reader held it when it was to be freed.
                queue.writer = None;
                unused.extend(queue.chain.drain(..).map(|block| block.segment));
            }
            if queue.chain.is_empty() {
                if first > start {
                    return Err(Misfit("the first block of a queue is missing"));
                }
                queue.min = first;
            }
            if queue.min == first {
                let gone = (0..entries).take_while(|nth| {
                    let at = BLOCK_HEAD + *nth as usize * ENTRY;
                    let entry = segment.read(at..at + ENTRY);
                    entry.is_some_and(|entry| Entry::decode(entry).position < min_position)
                });
                queue.min += gone.count() as u64;
            }
            queue.next = first + entries;
            // A purge leaves messages in the log.
            queue.min = queue.min.max(start.min(queue.next));
            if let Some(last) = entries.checked_sub(1) {
                let at = BLOCK_HEAD + last as usize * ENTRY;
                let entry = segment.read(at..at + ENTRY);
                queue.last = entry.map_or(0, |entry| Entry::decode(entry).position);
            }
            queue.chain.push(Block { first, segment });
            queue.writer = Some(block.writer);
        }
        arena.free(unused);
        Ok(())
    }

    /// Compares with what a checkpoint says of the queues, and gives those that neither index nor
    /// log know any more their numbering back, in an empty block that keeps it. Unless the `whole`
    /// log was replayed, the table has to know every topic.
    pub(crate) fn compare(
        &mut self,
        arena: &IndexArena,
        checkpoint: &Checkpoint,
        whole: bool,
    ) -> Result<std::result::Result<(), Misfit>> {
        let Checkpoint { topics, bounds, .. } = checkpoint;
        let lost = !whole && checkpoint.position > 0 && !self.guessed.is_empty();
        let few = ((self.topics.len() + self.gone.len()) as u64) < *topics;
        if self.cut_at == 0 && (lost || few) {
            return Ok(Err(Misfit("a topic is missing")));
        }
        for (&(incarnation, number), &Range { start, end }) in bounds {
            if self.gone.contains(&incarnation) {
                continue;
            }
            if self.guessed.contains(&incarnation)
                && let Some((_, shape)) = self.topics.get_mut(&incarnation)
            {
                shape.reach(number);
            }
            let queue = self.queues.entry((incarnation, number)).or_default();
            if queue.chain.is_empty() && start == end {
                (queue.min, queue.next) = (end, end);
                let head = BlockHead { incarnation, queue: number, first: end };
                let writer = arena.allocate(head, 0)?;
                queue.chain.push(Block { first: end, segment: writer.segment().clone() });
                queue.writer = Some(writer);
            }
            if queue.next < end && self.cut_at > queue.last {
                if queue.chain.is_empty() {
                    (queue.min, queue.next) = (start, start);
                }
                self.fill(arena, (incarnation, number), end)?;
            }
            let Some(queue) = self.queues.get(&(incarnation, number)) else { continue };
            if queue.next < end || (start < end && queue.min > start.max(queue.purged)) {
                return Ok(Err(Misfit("messages of a queue are missing")));
            }
        }
        // What the checkpoint does not know has begun behind it, and nothing of it was dropped.
        let cut = |(key, queue): (&(u32, u16), &Queue)| {
            queue.min > queue.purged && !bounds.contains_key(key) && !self.gone.contains(&key.0)
        };
        if checkpoint.position > 0 && self.queues.iter().any(cut) {
            return Ok(Err(Misfit("the first messages of a queue are missing")));
        }
        Ok(Ok(()))
    }

    /// Takes over one record of the log.
    pub(crate) fn record(
        &mut self,
        arena: &IndexArena,
        record: &Record<'_>,
    ) -> Result<std::result::Result<(), Misfit>> {
        self.last_store_ms = self.last_store_ms.max(record.store_ms());
        self.delays.record(record);
        match record.kind() {
            Kind::Filler | Kind::Delayed | Kind::Done => return Ok(Ok(())),
            Kind::Lost => {
                self.cut_at = record.position();
                return Ok(Ok(()));
            }
            Kind::Topic => {
                if let Some(event) = TopicEvent::decode(record.body()) {
                    self.topic(event);
                }
                return Ok(Ok(()));
            }
            Kind::Message => {}
        }
        let (incarnation, number) = (record.incarnation(), record.queue());
        self.next_incarnation = self.next_incarnation.max(incarnation + 1);
        if self.gone.contains(&incarnation) {
            return Ok(Ok(()));
        }
        // A record names its topic: the log alone brings back what the table has lost.
        let (_, shape) = self.topics.entry(incarnation).or_insert_with(|| {
            self.guessed.insert(incarnation);
            let name = String::from_utf8_lossy(record.topic()).into_owned();
            (name, Shape::new(TopicConfig::new(0)))
        });
        shape.reach(number);
        let key = (incarnation, number);
        let queue = self.queues.entry(key).or_default();
        let offset = record.offset();
        if queue.chain.is_empty() && queue.next == 0 {
            let starts = self.starts.as_ref().filter(|_| self.cut_at > 0);
            // A queue that the checkpoint does not know has begun at 0.
            let start = starts.map(|starts| starts.get(&key).copied().unwrap_or(0));
            let start = start.map_or(offset, |start| start.min(offset));
            (queue.min, queue.next) = (start, start);
        }
        if offset < queue.next {
            return Ok(Ok(()));
        }
        if offset > queue.next {
            if self.cut_at <= queue.last {
                return Ok(Err(Misfit("messages before this one are missing from its queue")));
            }
            self.fill(arena, key, offset)?;
        }
        let entry = Entry {
            position: record.position(),
            length: record.length() as u32,
            tag_hash: record.tag_hash(),
        };
        self.push(arena, key, entry)?;
        Ok(Ok(()))
    }

    /// Leads from the end of a queue to offset `end` past messages that are lost.
    fn fill(&mut self, arena: &IndexArena, key: Key, end: u64) -> Result<()> {
        let next = self.queues.entry(key).or_default().next;
        self.gaps.push((key, next..end));
        let entry = Entry::lost(self.cut_at);
        (next..end).try_for_each(|_| self.push(arena, key, entry))
    }

    /// Adds an entry to a queue.
    fn push(&mut self, arena: &IndexArena, key: Key, entry: Entry) -> Result<()> {
        let queue = self.queues.entry(key).or_default();
        if queue.writer.as_ref().is_none_or(|writer| writer.remaining() < ENTRY) {
            let previous = queue.writer.as_ref().map_or(0, |full| full.segment().capacity());
            let head = BlockHead { incarnation: key.0, queue: key.1, first: queue.next };
            let writer = arena.allocate(head, previous)?;
            queue.chain.push(Block { first: queue.next, segment: writer.segment().clone() });
            queue.writer = Some(writer);
        }
        if let Some(writer) = &mut queue.writer {
            writer.write(&entry.encode());
            writer.publish();
            (queue.next, queue.last) = (queue.next + 1, entry.position);
        }
        Ok(())
    }

    /// The messages that a salvage has cut out, as far as they are known by what stands around.
    pub(crate) fn lost(&self) -> Vec<LostMessages> {
        let lost = self.gaps.iter().map(|((incarnation, queue), offsets)| {
            let topic = self.topics.get(incarnation).map(|(name, _)| name.clone());
            let topic = topic.unwrap_or_default();
            LostMessages { topic, queue: *queue, from: offsets.start, to: offsets.end }
        });
        let mut lost: Vec<_> = lost.collect();
        lost.sort_by(|a, b| (&a.topic, a.queue, a.from).cmp(&(&b.topic, b.queue, b.from)));
        lost
    }

    /// Gives every queue its cursor in the tail, in the next slot, and every topic its queues.
    pub(crate) fn finish(mut self, store_id: u64, tail: &mut Tail) -> Vec<Topic> {
        let mut slots = 0;
        let mut topics = Vec::with_capacity(self.topics.len());
        for (incarnation, (name, shape)) in std::mem::take(&mut self.topics) {
            let queues = (0..shape.queues).map(|number| {
                let queue = self.queues.remove(&(incarnation, number)).unwrap_or_default();
                let Queue { chain, writer, min, next, .. } = queue;
                let queue = Arc::new(ConsumeQueue::new(incarnation, number, slots, chain));
                slots += 1;
                queue.raise_min(min);
                if let Some(chunks) = tail.cursors.full() {
                    tail.cursors.widen(Room::beside(chunks));
                }
                tail.cursors.put(Cursor::new(queue.clone(), next, writer));
                queue
            });
            // None has 0, which stands for a queue that takes nothing.
            let (queues, generation) = (queues.collect(), u64::from(incarnation) + 1);
            let id = (store_id, name.into(), incarnation);
            let topic = Topic::new(id, shape.config, generation, queues);
            for queue in &topic.queues {
                tail.cursors.at_mut(queue.slot).generation = topic.generation_of(queue);
            }
            topics.push(topic);
        }
        topics
    }
}
