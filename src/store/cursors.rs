//! The cursors of all queues, each where the next message of its queue goes.
//!
//! They are part of what the append lock guards. They stand in chunks that are made outside of it
//! and never move, so that adding the hundred-thousandth costs appends no more than the first.

use super::consume_queue::{ConsumeQueue, Entry};
use super::draft::Draft;
use super::index_arena::ENTRY;
use crate::storage::SegmentWriter;
use crate::sync::Arc;
use smallvec::SmallVec;

const CHUNK: usize = 1024;

/// Two at hand, so that the one behind a full one is added without an allocation: only a batch that
/// needs several at once makes one.
type Blocks = SmallVec<[SegmentWriter; 2]>;

/// Where the next message of one queue goes.
#[derive(Debug)]
pub(crate) struct Cursor {
    pub(super) queue: Arc<ConsumeQueue>,
    /// Of the topic's present value; 0 while the queue takes nothing.
    pub(crate) generation: u64,
    pub(super) next: u64,
    // The first is being filled; the others wait for it to be full.
    blocks: Blocks,
}

/// All cursors, by the slots of their queues.
#[derive(Debug, Default)]
pub(crate) struct Cursors {
    chunks: Vec<Vec<Cursor>>,
}

/// Room for another chunk of cursors.
#[derive(Debug)]
pub(crate) struct Room(Vec<Vec<Cursor>>);

impl Room {
    /// Room beside `chunks` that are there.
    pub(crate) fn beside(chunks: usize) -> Self {
        let mut wider = Vec::with_capacity(chunks + 1);
        wider.push(Vec::with_capacity(CHUNK));
        Self(wider)
    }
}

impl Cursors {
    #[inline]
    pub(super) fn at(&self, slot: usize) -> &Cursor {
        &self.chunks[slot / CHUNK][slot % CHUNK]
    }

    #[inline]
    pub(crate) fn at_mut(&mut self, slot: usize) -> &mut Cursor {
        &mut self.chunks[slot / CHUNK][slot % CHUNK]
    }

    /// The cursor of a queue, unless its slot has been given to another one.
    pub(super) fn of(&mut self, queue: &ConsumeQueue) -> Option<&mut Cursor> {
        let slot = queue.slot;
        let cursor = self.chunks.get_mut(slot / CHUNK)?.get_mut(slot % CHUNK)?;
        (cursor.queue.key() == queue.key()).then_some(cursor)
    }

    /// The number of chunks, if all of them are full: then the next cursor needs room.
    pub(super) fn full(&self) -> Option<usize> {
        let full = self.chunks.last().is_none_or(|last| last.len() == CHUNK);
        full.then_some(self.chunks.len())
    }

    /// Takes room over; the result is to be dropped outside of the lock.
    pub(crate) fn widen(&mut self, room: Room) -> Room {
        let Room(mut wider) = room;
        if self.full().is_some() && wider.capacity() > self.chunks.len() {
            // The new chunk goes behind the others.
            let new = wider.pop();
            wider.append(&mut self.chunks);
            wider.extend(new);
            std::mem::swap(&mut self.chunks, &mut wider);
        }
        Room(wider)
    }

    /// Puts a cursor into the slot of its queue: the next one, or that of a queue which is gone,
    /// whose cursor is to be dropped outside of the lock.
    pub(crate) fn put(&mut self, cursor: Cursor) -> Option<Cursor> {
        let slot = cursor.queue.slot;
        if let Some(old) = self.chunks.get_mut(slot / CHUNK).and_then(|c| c.get_mut(slot % CHUNK)) {
            return Some(std::mem::replace(old, cursor));
        }
        if let Some(last) = self.chunks.last_mut() {
            last.push(cursor);
        }
        None
    }
}

impl Cursor {
    /// A cursor that takes nothing yet; the next message gets offset `next`.
    pub(crate) fn new(
        queue: Arc<ConsumeQueue>,
        next: u64,
        blocks: impl IntoIterator<Item = SegmentWriter>,
    ) -> Self {
        queue.open_at(next);
        Self { queue, generation: 0, next, blocks: blocks.into_iter().collect() }
    }

    #[inline]
    pub(super) fn has_room(&self, entries: usize) -> bool {
        let first = self.blocks.first().map_or(0, SegmentWriter::remaining);
        first >= entries * ENTRY || self.room() >= entries
    }

    /// How many entries its blocks still take.
    pub(super) fn room(&self) -> usize {
        self.blocks.iter().map(|block| block.remaining() / ENTRY).sum()
    }

    pub(super) fn add_block(&mut self, block: SegmentWriter) {
        self.blocks.push(block);
    }

    /// Gives its blocks up, to be dropped outside of the lock.
    pub(super) fn take_blocks(&mut self) -> Blocks {
        std::mem::take(&mut self.blocks)
    }

    #[inline]
    pub(super) fn push(&mut self, position: u64, draft: &Draft<'_>) {
        if self.blocks[0].remaining() < ENTRY {
            self.blocks[0].publish();
            self.blocks.remove(0);
        }
        let entry = Entry { position, length: draft.length() as u32, tag_hash: draft.tag_hash() };
        self.blocks[0].write(&entry.encode());
        self.next += 1;
    }

    #[inline]
    pub(super) fn publish(&mut self) {
        #[cfg(not(broken_max_first))]
        self.blocks[0].publish();
        self.queue.publish(self.next);
        #[cfg(broken_max_first)]
        self.blocks[0].publish();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::storage::{Carver, Region};

    fn cursor(incarnation: u32, slot: usize) -> Cursor {
        Cursor::new(Arc::new(ConsumeQueue::new(incarnation, 0, slot, Vec::new())), 0, None)
    }

    #[test]
    fn the_block_behind_a_full_one_takes_no_allocation() {
        let mut carver = Carver::new(Region::heap(2 * ENTRY));
        let mut block = || carver.carve(ENTRY, 0).unwrap();
        let queue = Arc::new(ConsumeQueue::new(1, 0, 0, Vec::new()));
        let mut cursor = Cursor::new(queue, 0, Some(block()));
        cursor.blocks[0].write(&[0; ENTRY]);
        assert!(!cursor.has_room(1));
        cursor.add_block(block());
        assert!(cursor.has_room(1) && !cursor.blocks.spilled());
    }

    #[test]
    fn cursors_never_move_and_slots_are_used_again() {
        let mut cursors = Cursors::default();
        for slot in 0..3 * CHUNK {
            if let Some(chunks) = cursors.full() {
                assert_eq!(slot, chunks * CHUNK);
                drop(cursors.widen(Room::beside(chunks)));
            }
            assert!(cursors.put(cursor(slot as u32, slot)).is_none());
        }
        // Room that comes too late changes nothing.
        let first = std::ptr::from_ref(cursors.at(0));
        drop(cursors.widen(Room::beside(1)));
        assert_eq!(std::ptr::from_ref(cursors.at(0)), first);
        assert!((0..3 * CHUNK).all(|slot| cursors.at(slot).queue.incarnation == slot as u32));
        let gone = cursors.at(5).queue.clone();
        assert!(cursors.of(&gone).is_some());
        assert_eq!(cursors.put(cursor(9999, 5)).unwrap().queue.incarnation, 5);
        assert!(cursors.of(&gone).is_none());
    }
}
