//! What a running consumer is doing, for operators (OPS-3).

use crate::broker::filter::Filter;
use crate::broker::{Mode, Rates};
use crate::queue_id::QueueId;
use std::collections::BTreeMap;
use std::time::Duration;

/// A snapshot of a running consumer, push or pull (OPS-3).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RunningInfo {
    /// Its group.
    pub group: String,
    /// Its name.
    pub name: String,
    /// Whether the members of the group share messages.
    pub mode: Mode,
    /// How long ago it was started.
    pub age: Duration,
    /// Whether it was paused; of a pull consumer, all of its queues.
    pub paused: bool,
    /// How many threads call its listener.
    pub threads: usize,
    /// All settings with their values, for people to read.
    pub settings: String,
    /// What the group subscribes to, by topic.
    pub subscriptions: BTreeMap<String, Filter>,
    /// The queues that it has, sorted.
    pub queues: Vec<QueueInfo>,
    /// What the group does, by topic, as RocketMQ shows it (OPS-9): of the last minute, but
    /// `failed_messages` of the last hour, and so is `consume_time` if no listener was called in
    /// that minute.
    pub status: BTreeMap<String, Rates>,
}

/// A snapshot of a queue that a consumer has.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueInfo {
    /// The queue.
    pub queue: QueueId,
    /// What is committed. Of a push consumer the lowest offset that is not finished, which is the
    /// same but for a store that fails, or that is asked now and then.
    pub committed: u64,
    /// The offset at which reading goes on.
    pub next: u64,
    /// The lowest and the highest offset that is read and not finished, or not committed.
    pub in_flight: Option<(u64, u64)>,
    /// How many messages are read and not finished. A pull consumer does not count them: it is
    /// how many offsets it has gone on since the last commit.
    pub messages: usize,
    /// Bytes of their bodies, of a push consumer.
    pub bytes: usize,
    /// How many of them wait: for their next delivery here or, in order, for a commit.
    pub retrying: usize,
    /// Whether it is to be given back, and waits until what is in flight is finished or committed.
    pub draining: bool,
    /// Whether its next read waits: for a message, for the consumer to be resumed, or until less is
    /// in flight.
    pub waiting: bool,
    /// Whether its lease is valid, if it is consumed in order with others (ORD-4).
    pub leased: Option<bool>,
    /// How long ago it was read last, by a push consumer.
    pub last_read: Option<Duration>,
    /// How long ago the listener returned last with a message of it.
    pub last_consumed: Option<Duration>,
}
