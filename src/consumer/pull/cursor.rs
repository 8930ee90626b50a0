//! How far a pull consumer is in one of its queues.

use crate::broker::core::Core;
use crate::broker::group::Owned;
use crate::broker::hold::Waiter;
use crate::error::Result;
use crate::sync::Arc;

/// One queue that a pull consumer has.
pub(super) struct Cursor {
    pub(super) owned: Owned,
    /// Tells it from others of the same queue, earlier or later, which may have had another filter.
    pub(super) ticket: u64,
    pub(super) waiter: Arc<dyn Waiter>,
    /// Where reading goes on; the next commit stores it.
    pub(super) next: u64,
    pub(super) committed: u64,
    /// Since the last commit something was handed out, or sought.
    pub(super) moved: bool,
    /// It is to be given back: by the commit that covers what was handed out.
    pub(super) revoked: bool,
    pub(super) paused: bool,
}

impl Cursor {
    /// A queue that is read from `offset` on, where the group stands.
    pub(super) fn new(owned: Owned, ticket: u64, waiter: Arc<dyn Waiter>, offset: u64) -> Self {
        let (next, committed) = (offset, offset);
        let (moved, revoked, paused) = (false, false, false);
        Self { owned, ticket, waiter, next, committed, moved, revoked, paused }
    }

    /// The same place, with another filter.
    pub(super) fn with(&self, owned: Owned, ticket: u64, waiter: Arc<dyn Waiter>) -> Self {
        let Self { next, committed, moved, revoked, paused, .. } = *self;
        Self { owned, ticket, waiter, next, committed, moved, revoked, paused }
    }

    /// Whether what was found out for the holder of `ticket`, from `from` on, is true for it still.
    pub(super) fn is_at(&self, ticket: u64, from: u64) -> bool {
        !self.revoked && self.ticket == ticket && self.next == from
    }

    /// Whether it is to be read.
    pub(super) fn is_read(&self) -> bool {
        !self.revoked && !self.paused
    }

    /// Goes on at `next`, where the user has got to.
    pub(super) fn go_on(&mut self, next: u64) {
        (self.next, self.moved) = (next, true);
    }

    /// Stores where the user has got to, if that is new; says whether it was.
    pub(super) fn commit(&mut self, core: &Core) -> Result<bool> {
        if !self.moved {
            return Ok(false);
        }
        core.store.set_offset(self.owned.key, self.next)?;
        self.note_commit(self.next);
        Ok(true)
    }

    /// The group stands at `offset`, whatever was handed out.
    pub(super) fn note_commit(&mut self, offset: u64) {
        self.committed = offset;
        self.moved &= offset != self.next;
    }

    /// The group was moved to `offset`: what was handed out counts no more.
    pub(super) fn begin_at(&mut self, offset: u64) {
        (self.next, self.committed, self.moved) = (offset, offset, false);
    }

    /// Goes past messages that are not wanted; with nothing handed out and uncommitted before
    /// them, that is progress at once (PULL-11, B-086): says whether
    /// it was stored.
    pub(super) fn pass(&mut self, core: &Core, next: u64) -> bool {
        let all_committed = !self.moved && self.next == self.committed;
        self.next = next;
        if !all_committed || next <= self.committed {
            return false;
        }
        self.moved = true;
        // What fails here is left to the next commit.
        self.commit(core).unwrap_or(false)
    }
}
