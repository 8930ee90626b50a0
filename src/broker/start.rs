//! Where a group begins that has committed nothing yet.

use crate::error::Result;
use crate::store::{ConsumeQueue, Edge, Store};
use std::time::{SystemTime, UNIX_EPOCH};

/// Where a new group begins to consume. A group that has committed an offset goes on from there,
/// whatever this says (REB-11), and begins with the first message in topics and queues that it
/// meets later, made while it ran or while it was away. The start is stored before `start()`
/// returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Start {
    /// With the first message that is stored.
    #[default]
    First,
    /// With the first message that is sent after `start()`.
    Last,
    /// With the first message that was stored at this time or later (STORE-35). Messages carry
    /// the time of the last tick of the system's clock, which is up to 10 ms ago.
    Time(SystemTime),
    /// As RocketMQ's broker answers a new group that asks for the end (REB-12): with the first
    /// message if the queue still has all that it ever got, and all of it within the last `bytes`
    /// of the log, or is empty; otherwise as [`Last`](Self::Last). RocketMQ takes 40 % of the
    /// memory. In broadcasting always as `Last` (REB-13).
    LastUnlessYoung {
        /// How much of the log counts as young.
        bytes: u64,
    },
}

impl Start {
    /// What it means for a member that keeps its progress by itself.
    pub(crate) fn of_an_instance(self) -> Self {
        if let Self::LastUnlessYoung { .. } = self { Self::Last } else { self }
    }

    pub(crate) fn offset(self, store: &Store, queue: &ConsumeQueue) -> Result<u64> {
        match self {
            Self::First => Ok(queue.min()),
            // Exact under the append lock: a send that has returned is below it.
            Self::Last => Ok(store.exact_max(queue)),
            Self::LastUnlessYoung { bytes } => {
                let (_, end, _) = store.extent();
                let is_young = |first: u64| end.saturating_sub(first) <= bytes;
                match (queue.min(), queue.entry(0)) {
                    (0, None) => Ok(0),
                    (0, Some(first)) if is_young(first.position) => Ok(0),
                    _ => Ok(store.exact_max(queue)),
                }
            }
            Self::Time(time) => {
                let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
                let ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
                store.offset_at(queue, ms, Edge::AtOrAfter)
            }
        }
    }
}
