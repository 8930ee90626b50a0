//! One call of a schedule's callback, and the queue whose turn it is.

use super::super::builder::check_range;
use super::super::pull::Pull;
use super::service::ScheduleService;
use super::turn_gate::TurnGate;
use crate::broker::expiry::Most;
use crate::broker::group::Owned;
use crate::broker::timer::Appointment;
use crate::error::{Error, Result};
use crate::queue_id::QueueId;
use crate::store::FetchStatus;
use crate::sync::Mutex;

/// A queue that a schedule has.
pub(super) struct TurnQueue {
    pub(super) owned: Owned,
    pub(super) gate: TurnGate,
    /// Its next turn, while that is with the timer.
    pub(super) again: Mutex<Option<Appointment>>,
}

/// One call of the callback of a [`PullSchedule`](crate::PullSchedule): for one queue, beginning
/// where the group stands in it.
pub struct PullTurn<'a> {
    pub(super) service: &'a ScheduleService,
    pub(super) queue: &'a TurnQueue,
}

impl PullTurn<'_> {
    /// The queue whose turn it is.
    #[must_use]
    pub fn queue(&self) -> &QueueId {
        &self.queue.owned.id
    }

    /// How far the group has come in the queue.
    #[must_use]
    pub fn committed(&self) -> u64 {
        self.queue.gate.next()
    }

    /// Whether the queue is to be given back: this is the last call for it.
    #[must_use]
    pub fn is_last(&self) -> bool {
        self.queue.gate.is_revoked()
    }

    /// Reads up to `max` messages (1 to 65 535) that pass the subscription's filter, from where the
    /// group stands.
    ///
    /// # Errors
    /// `Setting`; `GroupForbids`; `Corrupt` if a message cannot be read.
    pub fn pull(&self, max: usize) -> Result<Pull> {
        check_range("max", max, 1, 65_535)?;
        let read = self.read(max);
        read.inspect_err(|_| self.service.group.pulls.failed.add(1))
    }

    fn read(&self, max: usize) -> Result<Pull> {
        self.service.permits()?;
        let (from, owned, service) = (self.queue.gate.next(), &self.queue.owned, self.service);
        let most = Most { messages: max, bytes: usize::MAX };
        let began = service.core.clock().moment();
        owned.passed.forget_below(from);
        let fetch = service.core.fetch_for(service.account(), owned, from, most, |_| true)?;
        let now = service.core.clock().moment();
        let took = now.since(began);
        service.group.pulls.count(&fetch, from, took);
        if fetch.status == FetchStatus::Found {
            let bytes = fetch.messages.iter().map(|message| message.body().len()).sum();
            owned.meter.count_read(fetch.messages.len(), bytes, took, now);
        }
        Ok(Pull::new(fetch, from))
    }

    /// Stores `next` as the group's progress, forwards or backwards; it survives the end of the
    /// process when this returns.
    ///
    /// # Errors
    /// `OffsetRange` if it lies behind the end of the queue; `DiskFull` or `Io` if it is the
    /// group's first offset in the queue and there is no room.
    pub fn commit(&self, next: u64) -> Result<()> {
        let Owned { queue, key, .. } = &self.queue.owned;
        let (min, max) = (queue.min(), queue.max());
        if next > max {
            return Err(Error::OffsetRange { offset: next, min, max });
        }
        self.service.core.store.set_offset(*key, next)?;
        self.queue.gate.go_on(next);
        Ok(())
    }
}

impl std::fmt::Debug for PullTurn<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PullTurn").field("queue", self.queue()).finish_non_exhaustive()
    }
}
