//! What a pull has found.

use crate::store::{Deliveries, Fetch, FetchStatus};

/// What [`PullConsumer::pull`](crate::PullConsumer::pull) found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Pull {
    /// How it ended.
    pub status: PullStatus,
    /// The messages, if there are any.
    pub messages: Deliveries,
    /// The offset to go on at, whatever the status.
    pub next: u64,
    /// The first stored offset of the queue.
    pub min: u64,
    /// The offset that the next message of the queue will get.
    pub max: u64,
}

impl Pull {
    /// What reading from `offset` on has found (STORE-32).
    pub(crate) fn new(fetch: Fetch, offset: u64) -> Self {
        let status = match fetch.status {
            FetchStatus::Found => PullStatus::Found,
            FetchStatus::NoMatched | FetchStatus::Removing => PullStatus::NoMatchedMessage,
            FetchStatus::AtEnd => PullStatus::NoNewMessage,
            FetchStatus::Empty if offset == 0 => PullStatus::NoNewMessage,
            FetchStatus::Empty | FetchStatus::TooSmall | FetchStatus::Beyond => {
                PullStatus::OffsetIllegal
            }
        };
        let Fetch { messages, next, min, max, .. } = fetch;
        Self { status, messages, next, min, max }
    }
}

/// How a pull ended (STORE-32).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PullStatus {
    /// There are messages.
    Found,
    /// The offset is the end of the queue.
    NoNewMessage,
    /// There are messages, but none of those looked at passes the filter.
    NoMatchedMessage,
    /// The offset lies outside of the queue; `next` is the nearest one inside.
    OffsetIllegal,
}
