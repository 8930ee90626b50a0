//! What only push consumers have to set.

use super::builder::{ConsumerBuilder, DAY_MS, check_ms, check_range};
use super::hook::ConsumeHook;
use super::offset_store::OffsetStore;
use crate::error::Result;
use crate::sync::{Arc, cores};
use std::time::Duration;

/// Settings of a push consumer that is not made yet.
pub type PushConsumerBuilder = ConsumerBuilder<PushSettings>;

/// What only push consumers have to set, see [`PushConsumerBuilder`].
#[derive(Clone, Copy, Debug)]
pub struct PushSettings {
    pub(super) threads: usize,
    pub(super) pull_batch: usize,
    pub(super) pull_interval: Duration,
    pub(super) short_poll: Option<Duration>,
    pub(super) listener_batch: usize,
    pub(super) consume_timeout: Duration,
    pub(super) max_span: usize,
    pub(super) queue_messages: usize,
    pub(super) queue_mib: usize,
    pub(super) topic_messages: Option<usize>,
    pub(super) topic_mib: Option<usize>,
    pub(super) flow_delay: Duration,
    pub(super) error_delay: Duration,
    pub(super) local_retry_delay: Duration,
    pub(super) filter_retries: bool,
    pub(super) pull_expiry: Duration,
    pub(super) persist_interval: Duration,
    pub(super) take_over_after: Option<Duration>,
    pub(super) suspend_time: Duration,
    pub(super) manual_commit: bool,
    pub(super) orderly_retries: Option<u32>,
    pub(super) lease_renewal: Duration,
}

impl Default for PushSettings {
    fn default() -> Self {
        Self {
            threads: cores().max(2),
            pull_batch: 32,
            pull_interval: Duration::ZERO,
            short_poll: None,
            listener_batch: 1,
            consume_timeout: Duration::from_secs(15 * 60),
            max_span: 2000,
            queue_messages: 1000,
            queue_mib: 100,
            topic_messages: None,
            topic_mib: None,
            flow_delay: Duration::from_millis(50),
            error_delay: Duration::from_secs(1),
            local_retry_delay: Duration::from_secs(5),
            filter_retries: false,
            pull_expiry: Duration::from_secs(120),
            persist_interval: Duration::from_secs(5),
            take_over_after: None,
            suspend_time: Duration::from_secs(1),
            manual_commit: false,
            orderly_retries: None,
            lease_renewal: Duration::from_secs(20),
        }
    }
}

impl PushSettings {
    /// Checks all of them, in the order of RocketMQ (CLI-3).
    pub(super) fn check(&self) -> Result<()> {
        check_range("threads", self.threads, 1, 1000)?;
        check_range("max_span", self.max_span, 1, 65_535)?;
        check_range("queue_messages", self.queue_messages, 1, 65_535)?;
        check_range("topic_messages", self.topic_messages.unwrap_or(1), 1, 6_553_500)?;
        check_range("queue_mib", self.queue_mib, 1, 1024)?;
        check_range("topic_mib", self.topic_mib.unwrap_or(1), 1, 102_400)?;
        check_ms("pull_interval in ms", self.pull_interval, 0, 65_535)?;
        check_range("listener_batch", self.listener_batch, 1, 1024)?;
        check_range("pull_batch", self.pull_batch, 1, 1024)?;
        let short_poll = self.short_poll.unwrap_or(Duration::from_millis(1));
        check_ms("short_poll in ms", short_poll, 1, 65_535)?;
        check_ms("consume_timeout in ms", self.consume_timeout, 1, 30 * DAY_MS)?;
        check_ms("flow_delay in ms", self.flow_delay, 1, DAY_MS)?;
        check_ms("error_delay in ms", self.error_delay, 1, DAY_MS)?;
        check_ms("local_retry_delay in ms", self.local_retry_delay, 1, DAY_MS)?;
        check_ms("pull_expiry in ms", self.pull_expiry, 1000, DAY_MS)?;
        check_ms("persist_interval in ms", self.persist_interval, 1, DAY_MS)?;
        check_ms("lease_renewal in ms", self.lease_renewal, 1, DAY_MS)?;
        let take_over = self.take_over_after.unwrap_or(Duration::from_millis(1));
        check_ms("take_over_after in ms", take_over, 1, DAY_MS)
    }
}

impl ConsumerBuilder<PushSettings> {
    /// Sets how many threads call the listener: 1 to 1000; by default the number of cores, at
    /// least 2.
    pub fn threads(mut self, threads: usize) -> Self {
        self.own.threads = threads;
        self
    }

    /// Sets how many messages are read from the log at once: 1 to 1024, 32 by default.
    pub fn pull_batch(mut self, messages: usize) -> Self {
        self.own.pull_batch = messages;
        self
    }

    /// Sets how many messages a listener of batches gets at once: 1 to 1024, 1 by default. They were
    /// read together, so there are never more than [`pull_batch`](Self::pull_batch) (CONC-1).
    pub fn listener_batch(mut self, messages: usize) -> Self {
        self.own.listener_batch = messages;
        self
    }

    /// Sets how long a listener may take: 1 ms to 30 days, 15 minutes by default. After that its
    /// messages count as failed and are delivered again, after the third delay level (10 s) whatever
    /// the back-off of the group, while it goes on; what it returns in the end is ignored. Only time
    /// inside the listener counts (PQ-12, PQ-13).
    pub fn consume_timeout(mut self, limit: Duration) -> Self {
        self.own.consume_timeout = limit;
        self
    }

    /// Adds a hook around the calls of the listener, behind those that there are.
    pub fn hook(mut self, hook: impl ConsumeHook + 'static) -> Self {
        self.plan.hooks.push(Arc::new(hook));
        self
    }

    /// Sets how long to wait between two reads of a queue: up to 65 535 ms, 0 by default.
    pub fn pull_interval(mut self, interval: Duration) -> Self {
        self.own.pull_interval = interval;
        self
    }

    /// Looks for new messages at this interval, 1 to 65 535 ms, where a queue has none (HOLD-1).
    /// Sending wakes nobody then, and what is sent meanwhile comes in larger runs, later. By
    /// default a queue sleeps until a message arrives that passes its filter.
    pub fn short_poll(mut self, interval: Duration) -> Self {
        self.own.short_poll = Some(interval);
        self
    }

    /// Sets how far reading may run ahead of the lowest unfinished offset of a queue: 1 to 65 535
    /// offsets, 2000 by default. Above it reading pauses.
    pub fn max_span(mut self, offsets: usize) -> Self {
        self.own.max_span = offsets;
        self
    }

    /// Sets how many unfinished messages of a queue may be in flight: 1 to 65 535, 1000 by default.
    /// Above it reading pauses.
    pub fn queue_messages(mut self, messages: usize) -> Self {
        self.own.queue_messages = messages;
        self
    }

    /// Sets how many MiB the bodies of a queue's unfinished messages may have: 1 to 1024, 100 by
    /// default. With one MiB more reading pauses.
    pub fn queue_mib(mut self, mib: usize) -> Self {
        self.own.queue_mib = mib;
        self
    }

    /// Sets how many unfinished messages may be in flight in all queues that the consumer has,
    /// instead of in each: 1 to 6 553 500. Each queue gets an equal part, at least 1 (PULL-5).
    pub fn topic_messages(mut self, messages: usize) -> Self {
        self.own.topic_messages = Some(messages);
        self
    }

    /// Sets how many MiB may be in flight in all queues that the consumer has, instead of in each:
    /// 1 to 102 400. Each queue gets an equal part, at least 1 (PULL-5).
    pub fn topic_mib(mut self, mib: usize) -> Self {
        self.own.topic_mib = Some(mib);
        self
    }

    /// Sets how long reading pauses above one of these limits: 1 ms to 1 day, 50 ms by default.
    pub fn flow_delay(mut self, delay: Duration) -> Self {
        self.own.flow_delay = delay;
        self
    }

    /// Sets when a read that failed is tried again: after 1 ms to 1 day, 1 s by default.
    pub fn error_delay(mut self, delay: Duration) -> Self {
        self.own.error_delay = delay;
        self
    }

    /// Sets how long a failed message waits for its next delivery if it cannot be sent back, because
    /// the disk is full, perhaps: 1 ms to 1 day, 5 s by default (CONC-10). Otherwise the
    /// [group](crate::GroupSettings::back_off) says how long.
    pub fn local_retry_delay(mut self, delay: Duration) -> Self {
        self.own.local_retry_delay = delay;
        self
    }

    /// Applies the filter of its topic to a failed message again before its next delivery, and drops
    /// it if it does not pass any more (FILT-4). Without this, a message that was delivered once is
    /// delivered until it succeeds, or becomes a dead letter.
    pub fn filter_retries(mut self) -> Self {
        self.own.filter_retries = true;
        self
    }

    /// Sets after what time without a read, because all workers are busy, a queue is begun anew:
    /// 1 s to 1 day, 120 s by default (PQ-11). A queue that waits for messages counts as read.
    pub fn pull_expiry(mut self, expiry: Duration) -> Self {
        self.own.pull_expiry = expiry;
        self
    }

    /// Lets a queue that is to change hands go to its next owner after this time, 1 ms to 1 day,
    /// even if a listener is still inside with a message of it. That message is then delivered
    /// again, perhaps while the first listener goes on; what that one returns in the end is
    /// ignored. By default the queue waits: nothing is delivered twice, and a listener that never
    /// returns keeps its queue for ever.
    pub fn take_over_after(mut self, time: Duration) -> Self {
        self.own.take_over_after = Some(time);
        self
    }

    /// Sets how long a queue that is consumed in order pauses when its listener suspends it and does
    /// not say how long: 10 ms to 30 s, to which other times are corrected; 1 s by default (ORD-13).
    pub fn suspend_time(mut self, time: Duration) -> Self {
        self.own.suspend_time = time;
        self
    }

    /// Lets the listener of a consumer in order say when progress is committed, see
    /// [`OrderlyOutcome`](crate::OrderlyOutcome): what it succeeds with is kept until it commits, and
    /// is delivered again when it rolls back, or when the queue goes to another member before.
    pub fn manual_commit(mut self) -> Self {
        self.own.manual_commit = true;
        self
    }

    /// Sets how often a message that is consumed in order is delivered again before the group gives it
    /// up and goes on: it is a [dead letter](crate::DeadLetters) then, and in broadcasting it is
    /// dropped. Without this there is no limit, and a message that can never be consumed blocks its
    /// queue (ORD-16).
    pub fn orderly_retries(mut self, times: u32) -> Self {
        self.own.orderly_retries = Some(times);
        self
    }

    /// Sets how often a consumer in order renews the leases of its queues: every 1 ms to 1 day, 20 s
    /// by default, see [`lease_expiry`](crate::BrokerBuilder::lease_expiry) (ORD-4). The first time
    /// is a second after the start, or sooner.
    pub fn lease_renewal(mut self, interval: Duration) -> Self {
        self.own.lease_renewal = interval;
        self
    }

    /// Keeps progress in a store of your own, see [`OffsetStore`].
    pub fn offset_store(mut self, store: impl OffsetStore + 'static) -> Self {
        self.plan.offsets = Some(Arc::new(store));
        self
    }

    /// Sets how often progress goes to a store of your own: 1 ms to 1 day, 5 s by default. The
    /// directory gets it at once.
    pub fn persist_interval(mut self, interval: Duration) -> Self {
        self.own.persist_interval = interval;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    type Change = fn(&mut PushSettings, usize);

    /// Of every parameter the range, as the constants of RocketMQ have it.
    #[test]
    fn cli_3_every_parameter_is_checked_against_its_range() {
        fn ms(value: usize) -> Duration {
            Duration::from_millis(value as u64)
        }
        let day = 86_400_000;
        let all: [(&str, Change, usize, usize); 18] = [
            ("threads", |s, v| s.threads = v, 1, 1000),
            ("max_span", |s, v| s.max_span = v, 1, 65_535),
            ("queue_messages", |s, v| s.queue_messages = v, 1, 65_535),
            ("topic_messages", |s, v| s.topic_messages = Some(v), 1, 6_553_500),
            ("queue_mib", |s, v| s.queue_mib = v, 1, 1024),
            ("topic_mib", |s, v| s.topic_mib = Some(v), 1, 102_400),
            ("pull_interval in ms", |s, v| s.pull_interval = ms(v), 0, 65_535),
            ("listener_batch", |s, v| s.listener_batch = v, 1, 1024),
            ("consume_timeout in ms", |s, v| s.consume_timeout = ms(v), 1, 30 * day),
            ("pull_batch", |s, v| s.pull_batch = v, 1, 1024),
            ("short_poll in ms", |s, v| s.short_poll = Some(ms(v)), 1, 65_535),
            ("flow_delay in ms", |s, v| s.flow_delay = ms(v), 1, day),
            ("error_delay in ms", |s, v| s.error_delay = ms(v), 1, day),
            ("local_retry_delay in ms", |s, v| s.local_retry_delay = ms(v), 1, day),
            ("pull_expiry in ms", |s, v| s.pull_expiry = ms(v), 1000, day),
            ("persist_interval in ms", |s, v| s.persist_interval = ms(v), 1, day),
            ("lease_renewal in ms", |s, v| s.lease_renewal = ms(v), 1, day),
            ("take_over_after in ms", |s, v| s.take_over_after = Some(ms(v)), 1, day),
        ];
        PushSettings::default().check().unwrap();
        for (parameter, change, least, most) in all {
            let check = |value: usize| {
                let mut settings = PushSettings::default();
                change(&mut settings, value);
                settings.check()
            };
            check(least).unwrap();
            check(most).unwrap();
            for wrong in least.checked_sub(1).into_iter().chain([most + 1]) {
                match check(wrong) {
                    Err(Error::Setting { name, value, min, max, .. }) => assert_eq!(
                        (name, value, min, max),
                        (parameter, wrong as u64, least as u64, most as u64)
                    ),
                    other => panic!("{parameter}={wrong}: {other:?}"),
                }
            }
        }
    }
}
