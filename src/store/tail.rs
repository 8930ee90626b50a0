//! The tail of the log: everything that the append lock guards (docs/design.md).
//!
//! An append, in this order:
//! 1. looks whether there is room in the segment, in its populated pages and in the queue's index
//!    block, and refuses otherwise: the caller leaves the lock, makes room, and comes again. What it
//!    has found is remembered as one number, `clear`, with which the next appends compare;
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
    flusher_alarm: u64,
    /// Wake the allocator once the segment is filled up to here.
    allocator_alarm: usize,
    /// What ends within this part of the segment is appended without a look at all that stands
    /// above: there is room, nothing is wrong, and nobody is to be woken. 0 if anything is wrong or has changed.
    clear: usize,
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
            clear: 0,
        }
    }

    /// Appends `drafts` as one batch to the queue of a `target`, or to none, if that needs a look at
    /// nothing but the queue; otherwise does nothing.
    #[inline]
    pub(crate) fn append_clear(
        &mut self,
        target: Option<Target>,
        drafts: &mut [Draft<'_>],
        now_ms: u64,
    ) -> Option<Appended> {
        let length = drafts.iter().map(Draft::length).sum::<usize>();
        let takes = self.writer.cursor() + length <= self.clear
            && target.is_none_or(|target| self.takes(target) && self.indexes(target, drafts.len()));
        if !takes {
            return None;
        }
        let clear = self.clear;
        let appended = self.commit(target, drafts, length, now_ms);
        self.clear = clear;
        Some(appended)
    }

    /// Appends `drafts` as one batch to the queue of a `target`, or to none.
    pub(crate) fn append(
        &mut self,
        target: Option<Target>,
        drafts: &mut [Draft<'_>],
        now_ms: u64,
    ) -> Result<Appended, Refusal> {
        if let Some(appended) = self.append_clear(target, drafts, now_ms) {
            return Ok(appended);
        }
        self.accepts().map_err(Refusal::Stopped)?;
        if let Some(target) = target {
            if !self.takes(target) {
                return Err(Refusal::Gone);
            }
            if !self.indexes(target, drafts.len()) {
                return Err(Refusal::Block);
            }
        }
        let length = drafts.iter().map(Draft::length).sum::<usize>();
        self.check_room(length)?;
        let appended = self.commit(target, drafts, length, now_ms);
        self.since_ms.get_or_insert(appended.store_ms);
        let appended = self.ring(appended);
        self.clear = self.clear_to();
        Ok(appended)
    }

    #[inline]
    fn commit(
        &mut self,
        target: Option<Target>,
        drafts: &mut [Draft<'_>],
        length: usize,
        now_ms: u64,
    ) -> Appended {
        // Whoever follows an append that unwound looks at everything.
        (self.inside, self.clear) = (true, 0);
        let store_ms = now_ms.max(self.last_store_ms);
        self.last_store_ms = store_ms;
        let position = self.end;
        let mut cursor = target.map(|target| self.cursors.at_mut(target.slot));
        let offset = cursor.as_ref().map_or(0, |cursor| cursor.next);
        let mut keyed = false;
        for (nth, draft) in drafts.iter_mut().enumerate() {
            let position = self.base + self.writer.cursor() as u64;
            let place = Place { position, offset: offset + nth as u64, store_ms };
            #[cfg(not(broken_index_first))]
            draft.write(place, self.writer.space(draft.length()));
            if let Some(cursor) = &mut cursor {
                cursor.push(position, draft);
            }
            #[cfg(broken_index_first)]
            {
                if let Some(cursor) = &mut cursor {
                    cursor.publish();
                }
                draft.write(place, self.writer.space(draft.length()));
            }
            keyed |= draft.has(KEYED);
            self.writer.prepare(draft.length());
        }
        self.writer.publish();
        let watched = cursor.is_some_and(|cursor| {
            cursor.publish();
            cursor.queue.watched()
        });
        let end = position + length as u64;
        self.end = end;
        if keyed {
            self.keyed = end;
        }
        self.inside = false;
        let (wake_flusher, wake_allocator) = (false, false);
        Appended { position, offset, store_ms, end, watched, wake_flusher, wake_allocator }
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
        (self.flushed, self.max_unflushed, self.clear) = (flushed, max_unflushed, 0);
    }

    /// Has the flusher woken once the log ends at `end`.
    pub(super) fn set_flusher_alarm(&mut self, end: u64) {
        (self.flusher_alarm, self.clear) = (end, 0);
    }

    /// Has the allocator woken once `segment` is filled up to `cursor`, if it is still being filled.
    pub(super) fn set_allocator_alarm(&mut self, segment: &Arc<Segment>, cursor: usize) {
        if Arc::ptr_eq(self.writer.segment(), segment) {
            (self.allocator_alarm, self.clear) = (cursor, 0);
        }
    }

    /// Whether the allocator has something to do for the log: what was prepared is used up so far, or
    /// the segment is a new one.
    pub(super) fn awaits_allocator(&self) -> bool {
        matches!(self.allocator_alarm, 0 | usize::MAX)
    }

    /// Makes room for appends that wait: everything below `flushed` is durable.
    pub(super) fn note_flushed(&mut self, flushed: u64) {
        self.flushed = flushed;
    }

    /// Refuses everything from now on.
    pub(super) fn close(&mut self) {
        if self.state == State::Open {
            (self.state, self.clear) = (State::Closed, 0);
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
            (self.state, self.clear) = (State::Poisoned(cause.to_owned()), 0);
        }
    }

    /// What an append leaves behind that unwinds half-way.
    #[cfg(all(test, not(loom)))]
    pub(super) fn leave_in_the_middle(&mut self) {
        (self.inside, self.clear) = (true, 0);
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

    /// Whether the queue takes messages as of this value of its topic.
    #[inline]
    fn takes(&self, target: Target) -> bool {
        #[cfg(not(broken_generation_unchecked))]
        return self.cursors.at(target.slot).generation == target.generation;
        #[cfg(broken_generation_unchecked)]
        true
    }

    /// Whether the queue's index blocks have room for so many entries.
    #[inline]
    fn indexes(&self, target: Target, entries: usize) -> bool {
        self.cursors.at(target.slot).has_room(entries)
    }

    /// Whether the log takes records of this length; rolls over to the next segment for them.
    fn check_room(&mut self, length: usize) -> Result<(), Refusal> {
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

    /// Adds who is to be woken, once each.
    fn ring(&mut self, appended: Appended) -> Appended {
        let wake_flusher = self.end >= self.flusher_alarm;
        if wake_flusher {
            self.flusher_alarm = u64::MAX;
        }
        let wake_allocator = self.writer.cursor() >= self.allocator_alarm;
        if wake_allocator {
            self.allocator_alarm = usize::MAX;
        }
        Appended { wake_flusher, wake_allocator, ..appended }
    }

    /// How far nothing needs to be looked at. A record that fills the segment to its end, or leaves
    /// room for a filler alone, is looked at.
    fn clear_to(&self) -> usize {
        let segment = self.writer.segment();
        let populated = segment.populated();
        let populated = if populated < segment.capacity() { populated } else { usize::MAX };
        let unflushed = self.flushed.saturating_add(self.max_unflushed);
        let below = unflushed.min(self.flusher_alarm.saturating_sub(1)).saturating_sub(self.base);
        (segment.capacity().saturating_sub(HEADER))
            .min(populated)
            .min(self.allocator_alarm.saturating_sub(1))
            .min(usize::try_from(below).unwrap_or(usize::MAX))
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
        (self.allocator_alarm, self.clear) = (0, 0);
        self.since_ms = None;
    }

    /// Where the next byte goes.
    #[inline]
    fn cursor(&self) -> u64 {
        self.base + self.writer.cursor() as u64
    }
}
