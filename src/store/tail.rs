//! The tail of the log: everything that the append lock guards (docs/design.md).
//!
//! An append, in this order:
//! 1. looks whether there is room in the segment, in its populated pages and in the queue's index
//!    block, and refuses otherwise: the caller leaves the lock, makes room, and comes again;
//! 2. copies the records behind the published end;
//! 3. writes their index entries;
//! 4. publishes the segment (Release), then the index block, then the queue's maximum (Release).
//!
//! So a reader that sees a maximum finds every entry below it, and a reader that sees an entry
//! finds its record (A3). Whoever dies in between leaves bytes that nobody sees (A5). Nothing in
//! here allocates, waits, or calls the system.

use super::consume_queue::ConsumeQueue;
use super::cursors::Cursors;
use super::draft::Draft;
use super::record::{self, HEADER, KEYED, Place};
use crate::error::Error;
use crate::storage::{Segment, SegmentWriter};
use crate::sync::Arc;

/// What the append lock guards.
#[derive(Debug)]
pub(crate) struct Tail {
    store_id: u64,
    base: u64,
    writer: SegmentWriter,
    /// The position behind the last committed record: what an append that unwound has written
    /// lies behind it.
    end: u64,
    next: Option<(u64, SegmentWriter)>,
    pub(crate) cursors: Cursors,
    last_store_ms: u64,
    /// The store time of the first append to this segment since it was opened.
    since_ms: Option<u64>,
    /// The position behind the last record with keys: the key index need not read what follows.
    keyed: u64,
    state: State,
    /// Set on entry, cleared on the way out: an append that finds it set follows one that
    /// unwound in the middle.
    inside: bool,
    /// Everything below is durable.
    flushed: u64,
    /// Bytes that may lie above it.
    max_unflushed: u64,
    /// Wake the flusher once the log ends here.
    pub(super) flusher_alarm: u64,
    /// Wake the allocator once the segment is filled up to here.
    pub(super) allocator_alarm: usize,
}

/// Which cursor an append goes to, and as of which value of the topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) slot: usize,
    pub(crate) generation: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Open,
    Closed,
    Poisoned(String),
}

/// The segment that the tail fills, up to where, and the one that follows if it is ready.
#[derive(Debug)]
pub(super) struct Filling {
    pub(super) segment: Arc<Segment>,
    pub(super) cursor: usize,
    /// From its first append to its last one.
    pub(super) elapsed_ms: u64,
    pub(super) next: Option<Arc<Segment>>,
}

/// What an append did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Appended {
    /// Of the first record.
    pub(crate) position: u64,
    /// Of the first record, in its queue.
    pub(crate) offset: u64,
    pub(crate) store_ms: u64,
    /// The position behind the last record.
    pub(crate) end: u64,
    /// Somebody sleeps until a message arrives in the queue.
    pub(crate) watched: bool,
    pub(super) wake_flusher: bool,
    pub(super) wake_allocator: bool,
}

/// Why an append did nothing.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The next segment is not ready.
    Segment,
    /// The pages up to this byte of the segment have not been faulted in.
    Pages(Arc<Segment>, usize),
    /// The queue's index blocks have no room for so many entries.
    Block,
    /// Too much would await a flush, unless everything below this position is durable.
    Unflushed(u64),
    /// The queue's topic has changed, or was deleted.
    Gone,
    /// Nothing is taken any more: `Closed` or `Poisoned`.
    Stopped(Error),
}

impl Tail {
    /// Goes on at the end of what `writer` has, in the segment that starts at `base`.
    pub(crate) fn new(store_id: u64, base: u64, writer: SegmentWriter, last_store_ms: u64) -> Self {
        let end = base + writer.cursor() as u64;
        Self {
            store_id,
            base,
            writer,
            end,
            next: None,
            cursors: Cursors::default(),
            last_store_ms,
            since_ms: None,
            // What was there before may have any.
            keyed: end,
            state: State::Open,
            inside: false,
            flushed: end,
            max_unflushed: u64::MAX,
            flusher_alarm: 0,
            allocator_alarm: 0,
        }
    }

    /// Appends `drafts` as one batch to the queue of a `target`, or to none.
    #[inline]
    pub(crate) fn append(
        &mut self,
        target: Option<Target>,
        drafts: &mut [Draft<'_>],
        now_ms: u64,
    ) -> Result<Appended, Refusal> {
        self.check(target, drafts)?;
        self.inside = true;
        let slot = target.map(|target| target.slot);
        let store_ms = now_ms.max(self.last_store_ms);
        self.last_store_ms = store_ms;
        self.since_ms.get_or_insert(store_ms);
        let position = self.end;
        let offset = slot.map_or(0, |slot| self.cursors.at(slot).next);
        for (nth, draft) in drafts.iter_mut().enumerate() {
            let place = Place { position: self.cursor(), offset: offset + nth as u64, store_ms };
            #[cfg(not(broken_index_first))]
            draft.write(place, |part| self.writer.write(part));
            if let Some(slot) = slot {
                self.cursors.at_mut(slot).push(place.position, draft);
            }
            #[cfg(broken_index_first)]
            {
                if let Some(slot) = slot {
                    self.cursors.at_mut(slot).publish();
                }
                draft.write(place, |part| self.writer.write(part));
            }
        }
        self.writer.publish();
        self.writer.prepare((self.cursor() - position) as usize);
        self.end = self.cursor();
        if drafts.iter().any(|draft| draft.has(KEYED)) {
            self.keyed = self.end;
        }
        let mut watched = false;
        if let Some(slot) = slot {
            let cursor = self.cursors.at_mut(slot);
            cursor.publish();
            watched = cursor.queue.watched();
        }
        let wake_allocator = self.writer.cursor() >= self.allocator_alarm;
        if wake_allocator {
            self.allocator_alarm = usize::MAX;
        }
        let wake_flusher = self.end >= self.flusher_alarm;
        if wake_flusher {
            self.flusher_alarm = u64::MAX;
        }
        self.inside = false;
        let end = self.end;
        Ok(Appended { position, offset, store_ms, end, watched, wake_flusher, wake_allocator })
    }

    /// The position behind the last committed record.
    pub(crate) fn committed(&self) -> u64 {
        self.end
    }

    /// Where the file begins that is being filled.
    pub(super) fn base(&self) -> u64 {
        self.base
    }

    pub(super) fn last_store_ms(&self) -> u64 {
        self.last_store_ms
    }

    /// The position behind the last record with keys.
    pub(super) fn keyed(&self) -> u64 {
        self.keyed
    }

    /// The offset that the next message of the queue will get: with the append lock held this is
    /// the exact maximum, for whoever is about to sleep. `None` if the queue is gone.
    pub(crate) fn next_offset(&mut self, queue: &ConsumeQueue) -> Option<u64> {
        self.cursors.of(queue).map(|cursor| cursor.next)
    }

    /// How many entries the queue's blocks still take, and its next offset; `None` while the queue
    /// takes nothing.
    pub(super) fn index_room(&mut self, queue: &ConsumeQueue) -> Option<(usize, u64)> {
        let cursor = self.cursors.of(queue).filter(|cursor| cursor.generation > 0)?;
        Some((cursor.room(), cursor.next))
    }

    /// Adds a block behind those that the queue has.
    pub(crate) fn add_block(&mut self, queue: &ConsumeQueue, block: SegmentWriter) {
        if let Some(cursor) = self.cursors.of(queue) {
            cursor.add_block(block);
        }
    }

    /// Where the log is being filled.
    pub(super) fn filling(&self) -> Filling {
        Filling {
            segment: self.writer.segment().clone(),
            cursor: self.writer.cursor(),
            elapsed_ms: self.last_store_ms - self.since_ms.unwrap_or(self.last_store_ms),
            next: self.next.as_ref().map(|(_, writer)| writer.segment().clone()),
        }
    }

    /// Hands over the segment that follows the present one.
    pub(crate) fn set_next(&mut self, base: u64, writer: SegmentWriter) {
        self.next = Some((base, writer));
    }

    /// Sets how many bytes may await a flush above `flushed`.
    pub(super) fn bound_unflushed(&mut self, flushed: u64, max_unflushed: u64) {
        (self.flushed, self.max_unflushed) = (flushed, max_unflushed);
    }

    /// Makes room for appends that wait: everything below `flushed` is durable.
    pub(super) fn note_flushed(&mut self, flushed: u64) {
        self.flushed = flushed;
    }

    /// Refuses everything from now on.
    pub(super) fn close(&mut self) {
        if self.state == State::Open {
            self.state = State::Closed;
        }
    }

    /// Gives up all that it writes to, to be dropped outside of the lock; nothing can be appended
    /// any more.
    pub(super) fn release(&mut self) -> impl Sized + use<> {
        self.close();
        let writer = std::mem::replace(&mut self.writer, SegmentWriter::nowhere());
        (writer, self.next.take(), std::mem::take(&mut self.cursors))
    }

    /// Refuses everything from now on, naming `cause`.
    pub(super) fn poison(&mut self, cause: &str) {
        if !matches!(self.state, State::Poisoned(_)) {
            self.state = State::Poisoned(cause.to_owned());
        }
    }

    /// What an append leaves behind that unwinds half-way.
    #[cfg(all(test, not(loom)))]
    pub(super) fn leave_in_the_middle(&mut self) {
        self.inside = true;
        self.writer.write(&[1; 40]);
    }

    /// Whether what is in memory can be vouched for: no sync has failed, and no append was left
    /// in the middle.
    #[inline]
    pub(super) fn healthy(&mut self) -> Result<(), Error> {
        if self.inside {
            self.poison("an append was left in the middle");
        }
        match &self.state {
            State::Poisoned(cause) => Err(Error::Poisoned { cause: cause.clone() }),
            State::Open | State::Closed => Ok(()),
        }
    }

    /// Whether appends are still taken; the error says why not.
    #[inline]
    pub(super) fn accepts(&mut self) -> Result<(), Error> {
        self.healthy()?;
        #[cfg(broken_append_after_close)]
        return Ok(());
        #[cfg(not(broken_append_after_close))]
        if self.state == State::Closed { Err(Error::Closed) } else { Ok(()) }
    }

    #[inline]
    fn check(&mut self, target: Option<Target>, drafts: &[Draft<'_>]) -> Result<(), Refusal> {
        self.accepts().map_err(Refusal::Stopped)?;
        if let Some(Target { slot, generation }) = target {
            #[cfg(broken_generation_unchecked)]
            let _ = generation;
            let cursor = self.cursors.at(slot);
            #[cfg(not(broken_generation_unchecked))]
            if cursor.generation != generation {
                return Err(Refusal::Gone);
            }
            if !cursor.has_room(drafts.len()) {
                return Err(Refusal::Block);
            }
        }
        let length = drafts.iter().map(Draft::length).sum::<usize>();
        // With nothing to flush even what is longer than that by itself is taken.
        let unflushed = self.end - self.flushed;
        if unflushed > 0 && unflushed + length as u64 > self.max_unflushed {
            let needed = (self.end + length as u64).saturating_sub(self.max_unflushed);
            return Err(Refusal::Unflushed(needed.min(self.end)));
        }
        while !self.fits(length) {
            let Some((base, next)) = self.next.take() else { return Err(Refusal::Segment) };
            self.roll(base, next);
        }
        let end = self.writer.cursor() + length;
        let segment = self.writer.segment();
        if end > segment.populated() && segment.populated() < segment.capacity() {
            return Err(Refusal::Pages(segment.clone(), end));
        }
        Ok(())
    }

    // What is left behind a record is nothing, or has room for the header of a filler.
    fn fits(&self, length: usize) -> bool {
        let left = self.writer.remaining();
        length == left || length + HEADER <= left
    }

    fn roll(&mut self, base: u64, next: SegmentWriter) {
        let left = self.writer.remaining();
        if left > 0 {
            let header = record::filler(self.store_id, self.end, left);
            self.writer.write(&header);
            // What the filler covers counts as written.
            self.writer.skip_rest();
        }
        #[cfg(not(broken_filler_hidden))]
        self.writer.publish();
        self.base = base;
        self.writer = next;
        self.end = self.cursor();
        self.allocator_alarm = 0;
        self.since_ms = None;
    }

    /// Where the next byte goes.
    #[inline]
    fn cursor(&self) -> u64 {
        self.base + self.writer.cursor() as u64
    }
}
