//! Appending: encode outside the lock, place under it, make room and try again if there is none.

use super::Store;
use super::commit_log::Limits;
use super::consume_queue::{Block, ConsumeQueue};
use super::draft::{Copy, Draft, Pending};
use super::drop_front::Disposal;
use super::index_arena::BlockHead;
use super::record::{CONTINUED, CONTINUES, Kind, MAX_OVERHEAD};
use super::tail::{Appended, Refusal, Target};
use super::topic::Topic;
use crate::error::{Error, Result};
use smallvec::SmallVec;

/// What appending a batch did.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    pub(crate) appended: Appended,
    /// Of every record.
    pub(crate) positions: Vec<u64>,
}

/// Why nothing was appended.
#[derive(Debug)]
pub(crate) enum AppendError {
    /// The topic has changed or was deleted: look it up again.
    Gone,
    Failed(Error),
}

impl AppendError {
    /// Of an append to no topic, which cannot go.
    pub(super) fn into_error(self) -> Error {
        match self {
            Self::Failed(error) => error,
            Self::Gone => Error::Closed,
        }
    }
}

impl From<Error> for AppendError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Store {
    /// Appends one message to queue `queue` of `topic` if nothing stands in its way: neither room has to
    /// be made nor anybody woken, and the topic has not changed. So it is nearly always.
    #[inline]
    pub(crate) fn append_clear(
        &self,
        topic: &Topic,
        queue: &ConsumeQueue,
        message: Pending<'_>,
    ) -> Option<Appended> {
        let mut drafts = [Draft::blank(&topic.outline)];
        drafts[0].fill(&topic.outline, queue.queue, 0, message);
        let now_ms = self.clock.coarse_wall_ms();
        self.log.append_clear(topic.target(queue), &mut drafts, now_ms)
    }

    /// Appends one message to queue `queue` of `topic`.
    pub(crate) fn append(
        &self,
        topic: &Topic,
        queue: &ConsumeQueue,
        message: Pending<'_>,
    ) -> std::result::Result<Appended, AppendError> {
        let mut drafts = [Draft::blank(&topic.outline)];
        drafts[0].fill(&topic.outline, queue.queue, 0, message);
        let (target, now_ms) = (topic.target(queue), self.clock.coarse_wall_ms());
        if let Some(appended) = self.log.append_clear(target, &mut drafts, now_ms) {
            return Ok(appended);
        }
        self.check_length(drafts[0].length()).map_err(AppendError::Failed)?;
        self.place(Some((topic, queue)), &mut drafts)
    }

    /// Appends a message that was stored before to queue `queue` of `topic`.
    pub(crate) fn append_copy(
        &self,
        topic: &Topic,
        queue: &ConsumeQueue,
        copy: &Copy<'_>,
    ) -> std::result::Result<Appended, AppendError> {
        let mut drafts = [Draft::blank(&topic.outline)];
        drafts[0].fill_copy(&topic.outline, Kind::Message, queue.queue, copy);
        self.check_length(drafts[0].length()).map_err(AppendError::Failed)?;
        self.place(Some((topic, queue)), &mut drafts)
    }

    /// Appends `messages` to one queue, all or nothing, as one batch.
    pub(crate) fn append_batch<'m>(
        &self,
        topic: &Topic,
        queue: &ConsumeQueue,
        messages: impl ExactSizeIterator<Item = Pending<'m>>,
    ) -> std::result::Result<Batch, AppendError> {
        if messages.len() == 0 {
            return Err(AppendError::Failed(Error::Batch { reason: "it is empty" }));
        }
        let last = messages.len() - 1;
        let mut drafts: SmallVec<[Draft<'_>; 8]> = SmallVec::with_capacity(messages.len());
        for (nth, message) in messages.enumerate() {
            let mut flags = 0;
            flags |= if nth < last { CONTINUES } else { 0 };
            flags |= if nth > 0 { CONTINUED } else { 0 };
            drafts.push(Draft::blank(&topic.outline));
            drafts[nth].fill(&topic.outline, queue.queue, flags, message);
        }
        let length = drafts.iter().map(Draft::length).sum();
        self.check_length(length).map_err(AppendError::Failed)?;
        let appended = self.place(Some((topic, queue)), &mut drafts)?;
        let lengths = drafts.iter().map(Draft::length);
        let positions = lengths.scan(appended.position, |next, length| {
            Some(std::mem::replace(next, *next + length as u64))
        });
        Ok(Batch { appended, positions: positions.collect() })
    }

    pub(super) fn check_length(&self, length: usize) -> Result<()> {
        let limit = self.log.largest_record();
        if length > limit {
            return Err(Error::TooLarge { what: "message or batch", length, limit });
        }
        Ok(())
    }

    pub(super) fn place(
        &self,
        queue: Option<(&Topic, &ConsumeQueue)>,
        drafts: &mut [Draft<'_>],
    ) -> std::result::Result<Appended, AppendError> {
        let target = queue.map(|(topic, queue)| topic.target(queue));
        let appended = loop {
            let refusal = match self.log.append(target, drafts, self.clock.coarse_wall_ms()) {
                Ok(appended) => break appended,
                Err(refusal) => refusal,
            };
            self.make_room(queue.map(|(_, queue)| queue), drafts.len(), refusal)?;
        };
        self.wake_for(&appended);
        Ok(appended)
    }

    /// Appends to `queue` without a look at the limits of the log: by what is carried forward,
    /// space is going to be freed. `None` if the topic takes nothing: it has changed or is deleted.
    pub(super) fn place_beyond_limits(
        &self,
        target: Target,
        queue: &ConsumeQueue,
        drafts: &mut [Draft<'_>],
    ) -> Result<Option<Appended>> {
        loop {
            let now_ms = self.clock.coarse_wall_ms();
            match self.log.append(Some(target), drafts, now_ms) {
                Ok(appended) => {
                    self.wake_for(&appended);
                    return Ok(Some(appended));
                }
                Err(Refusal::Segment) => drop(self.log.grow(now_ms, Limits::default())?),
                Err(Refusal::Pages(segment, wanted)) => self.log.populate(&segment, wanted),
                Err(Refusal::Block) => self.grow_index(queue, drafts.len())?,
                Err(Refusal::Unflushed(needed)) => {
                    // If that fails, the next try is told why.
                    let _ = self.wait_durable(needed);
                }
                Err(Refusal::Gone) => return Ok(None),
                Err(Refusal::Stopped(error)) => return Err(error),
            }
        }
    }

    #[inline]
    pub(super) fn wake_for(&self, appended: &Appended) {
        if appended.wake_allocator {
            self.allocator.ring();
        }
        if appended.wake_flusher {
            self.flusher().ring();
        }
    }

    #[cold]
    pub(super) fn make_room(
        &self,
        queue: Option<&ConsumeQueue>,
        entries: usize,
        refusal: Refusal,
    ) -> std::result::Result<(), AppendError> {
        match refusal {
            Refusal::Segment => match queue {
                Some(_) => self.make_file(),
                // Whoever makes a topic has its table, which a drop needs, and makes room himself.
                None => self.grow_log(),
            }
            .map_err(AppendError::Failed),
            Refusal::Pages(segment, wanted) => {
                self.log.populate(&segment, wanted);
                Ok(())
            }
            Refusal::Block => match queue {
                Some(queue) => self
                    .with_room(Disposal::Return, || self.grow_index(queue, entries))
                    .map_err(AppendError::Failed),
                None => Ok(()),
            },
            Refusal::Unflushed(needed) => {
                // If that fails, the next try is told why.
                let _ = self.wait_durable(needed);
                Ok(())
            }
            Refusal::Gone => Err(AppendError::Gone),
            Refusal::Stopped(error) => Err(AppendError::Failed(error)),
        }
    }

    /// Makes the next log file, if need be at the cost of the oldest.
    pub(super) fn make_file(&self) -> Result<()> {
        self.with_room(Disposal::Reuse, || self.grow_log())
    }

    fn grow_log(&self) -> Result<()> {
        let made = self.log.grow(self.clock.coarse_wall_ms(), self.config.space.limits);
        if !matches!(made, Ok(false)) {
            // The log has grown, or cannot.
            self.retainer.ring();
        }
        made.map(drop)
    }

    /// Adds blocks to the queue's index until it takes `entries` more.
    pub(super) fn grow_index(&self, queue: &ConsumeQueue, entries: usize) -> Result<()> {
        let _growth = self.index_growth.lock();
        loop {
            // Looked at under the lock that `close` takes: nothing grows behind it.
            let state = self.log.with_tail(|tail| tail.accepts().map(|()| tail.index_room(queue)));
            // What takes nothing now refuses the append the next time.
            let Some((room, next)) = state? else { return Ok(()) };
            if room >= entries {
                return Ok(());
            }
            let (first, previous) = queue.chain_end(next);
            let head = BlockHead { incarnation: queue.incarnation, queue: queue.queue, first };
            let writer = self.arena.allocate(head, previous)?;
            queue.push_block(Block { first, segment: writer.segment().clone() });
            self.log.with_tail(|tail| tail.add_block(queue, writer));
            if self.arena.wants() {
                self.allocator.ring();
            }
        }
    }
}

/// The segment must hold the largest message that is allowed.
pub(crate) fn smallest_segment(max_body: usize) -> u64 {
    (max_body + MAX_OVERHEAD + super::files::HEAD + super::record::HEADER) as u64
}
