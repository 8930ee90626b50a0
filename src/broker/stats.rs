//! What a broker is doing, as plain numbers.

use super::core::Core;
use super::pull_stats::PullStats;
use crate::store::RetentionStats;
use crate::sync::atomic::Ordering;
use std::time::Duration;

/// A snapshot of a broker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The position of the first byte of the log that is still there.
    pub log_start: u64,
    /// The position behind the last message.
    pub log_end: u64,
    /// The position below which everything is durable against loss of power.
    pub flushed: u64,
    /// Bytes of the log that await a flush.
    pub unflushed: u64,
    /// Flushes of the log since the broker was opened.
    pub flushes: u64,
    /// What these flushes took, all together.
    pub flush_time: Duration,
    /// What the slowest of them took.
    pub slowest_flush: Duration,
    /// Topics.
    pub topics: usize,
    /// Consumers that are running, push and pull.
    pub consumers: usize,
    /// Rebalances that changed nothing, because the assignment strategy failed.
    pub failed_rebalances: u64,
    /// Queues whose consumer sleeps until a message arrives.
    pub held: usize,
    /// How reads for consumers ended, of all groups;
    /// [`Broker::pull_stats`](crate::Broker::pull_stats) tells it of one.
    pub pulls: PullStats,
    /// Messages that listeners consumed since the broker was opened.
    pub delivered: u64,
    /// Messages that listeners failed, including those that panicked.
    pub failed: u64,
    /// Messages whose listener panicked.
    pub panicked: u64,
    /// Messages whose listener took longer than
    /// [`consume_timeout`](crate::PushConsumerBuilder::consume_timeout), counted as failed, too.
    pub timed_out: u64,
    /// Calls of [hooks](crate::ConsumeHook) that panicked.
    pub panicked_hooks: u64,
    /// Messages whose [predicate](crate::Filter::predicate) panicked: they count as not wanted.
    pub panicked_filters: u64,
    /// Reads for listeners that failed, such as at a damaged record: each is tried again after a
    /// second, and [`PushConsumer::last_failure`](crate::PushConsumer::last_failure) tells why.
    pub failed_reads: u64,
    /// Commits of push consumers that could not be stored: their progress is kept in memory and
    /// lost with the process, unless a later commit of the queue succeeds.
    pub failed_commits: u64,
    /// Messages that broadcasting listeners failed: they are not delivered again.
    pub dropped: u64,
    /// Messages that listeners failed and that were stored to be delivered again.
    pub retries: u64,
    /// Messages that became dead letters, see [`Broker::dead_letters`](crate::Broker::dead_letters).
    pub dead_letters: u64,
    /// Messages that listeners failed and that were discarded, because their group has no
    /// [retry queues](crate::GroupSettings::retry_queues).
    pub discarded: u64,
    /// Messages that listeners failed and that could not be stored to be delivered again: they stay
    /// where they are, and are delivered again after the
    /// [local delay](crate::PushConsumerBuilder::local_retry_delay).
    pub failed_send_backs: u64,
    /// Queues that were begun anew because all workers of their consumer were busy for too long, or
    /// because a lease was not renewed.
    pub expired: u64,
    /// Queues that are to change hands, and wait until their listeners have returned, or until what
    /// was polled is committed.
    pub draining: usize,
    /// Queues that changed hands while a listener was inside with a message of them, see
    /// [`take_over_after`](crate::PushConsumerBuilder::take_over_after).
    pub taken_over: u64,
    /// Messages that were finished after their queue was taken over, or after the time for consuming
    /// them was up: the result was ignored.
    pub late: u64,
    /// Times that a queue that is consumed in order was suspended or rolled back.
    pub suspended: u64,
    /// Times that a consumer found the lease of such a queue lapsed, because it was not renewed in
    /// time.
    pub lapsed: u64,
    /// Delayed messages that wait to be due.
    pub delayed: usize,
    /// Delayed messages whose topic was deleted before they were due.
    pub dropped_delays: u64,
    /// Times that a message that was due could not be stored. It is tried again after pauses that grow
    /// from a second to a minute, one for all that cannot be stored for the same reason.
    pub failed_delays: u64,
    /// Delayed messages that were lost because they could not be read;
    /// [`Broker::delay_failure`](crate::Broker::delay_failure) tells why the last one was.
    pub lost_delays: u64,
    /// What the log takes, and what was dropped of it.
    pub retention: RetentionStats,
}

impl Stats {
    pub(super) fn of(core: &Core) -> Self {
        let (log_start, log_end, flushed) = core.store.extent();
        let flushes = core.store.flushes();
        let groups = core.groups();
        let mut pulls = PullStats::default();
        groups.iter().for_each(|group| pulls += group.pulls.snapshot());
        Self {
            log_start,
            log_end,
            flushed,
            unflushed: log_end.saturating_sub(flushed),
            flushes: flushes.count,
            flush_time: flushes.time,
            slowest_flush: flushes.slowest,
            topics: core.store.topics.len(),
            consumers: groups.iter().map(|group| group.members() + group.guests()).sum(),
            failed_rebalances: groups.iter().map(|group| group.failures()).sum(),
            held: core.hold.len(),
            pulls,
            delivered: core.counters.delivered.load(Ordering::Relaxed),
            failed: core.counters.failed.load(Ordering::Relaxed),
            panicked: core.counters.panicked.load(Ordering::Relaxed),
            timed_out: core.counters.timed_out.load(Ordering::Relaxed),
            panicked_hooks: core.counters.panicked_hooks.load(Ordering::Relaxed),
            panicked_filters: core.counters.panicked_filters.load(Ordering::Relaxed),
            failed_reads: core.counters.failed_reads.load(Ordering::Relaxed),
            failed_commits: core.counters.failed_commits.load(Ordering::Relaxed),
            retries: core.counters.retries.load(Ordering::Relaxed),
            dead_letters: core.counters.dead_letters.load(Ordering::Relaxed),
            discarded: core.counters.discarded.load(Ordering::Relaxed),
            failed_send_backs: core.counters.failed_send_backs.load(Ordering::Relaxed),
            dropped: core.counters.dropped.load(Ordering::Relaxed),
            expired: core.counters.expired.load(Ordering::Relaxed),
            draining: groups.iter().map(|group| group.draining()).sum(),
            taken_over: core.counters.taken_over.load(Ordering::Relaxed),
            late: core.counters.late.load(Ordering::Relaxed),
            suspended: core.counters.suspended.load(Ordering::Relaxed),
            lapsed: core.counters.lapsed.load(Ordering::Relaxed),
            delayed: core.store.waiting(),
            dropped_delays: core.counters.dropped_delays.load(Ordering::Relaxed),
            failed_delays: core.counters.failed_delays.load(Ordering::Relaxed),
            lost_delays: core.store.lost_delays().count,
            retention: core.store.retention_stats(),
        }
    }
}
