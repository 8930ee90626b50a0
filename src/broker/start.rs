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
}

impl Start {
    pub(crate) fn offset(self, store: &Store, queue: &ConsumeQueue) -> Result<u64> {
        match self {
            Self::First => Ok(queue.min()),
            // Exact under the append lock: a send that has returned is below it.
            Self::Last => Ok(store.exact_max(queue)),
            Self::Time(time) => {
                let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
                let ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
                store.offset_at(queue, ms, Edge::AtOrAfter)
            }
        }
    }
}
