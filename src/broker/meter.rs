//! What a group does with a topic, counted, and as rates (OPS-9).

use super::Broker;
use super::samples::{Samples, Window};
use crate::clock::Moment;
use crate::error::Result;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Mutex, Rank};
use std::collections::BTreeMap;
use std::time::Duration;

/// What the members of a group did with a topic within a [`Window`], all together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Rates {
    /// Over what time: less than the window if counting began within it, and zero, like all the
    /// rest, before there are two samples.
    pub time: Duration,
    /// Messages that were read from the log, per second.
    pub read: f64,
    /// Bytes of their bodies, per second.
    pub read_bytes: f64,
    /// What a read took on average, of those that found something.
    pub read_time: Duration,
    /// Messages that listeners consumed, per second.
    pub consumed: f64,
    /// Messages that listeners failed, per second.
    pub failed: f64,
    /// How many they failed.
    pub failed_messages: u64,
    /// How many of them were sent back: stored for another delivery, or as dead letters (OPS-10).
    pub sent_back: u64,
    /// How many were passed by because their [time](crate::Message::time_to_live) was over.
    pub expired: u64,
    /// What a call of a listener took on average. Single calls are timed by the ticks of the system's
    /// clock, of up to 10 ms, and so are averages of few.
    pub consume_time: Duration,
}

impl Broker {
    /// What a group did within `window`, by topic. Counting begins with the group's first consumer
    /// after the broker was opened; there is nothing before.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let broker = rocklet::Broker::open(dir.path())?;
    /// use rocklet::Window;
    /// broker.create_topic("orders", 1)?;
    /// let consumer = broker.push_consumer("audit").subscribe("orders", "*")?.start(|_| ())?;
    /// let rates = broker.group_rates("audit", Window::Minute)?;
    /// assert_eq!(rates["orders"].failed_messages, 0);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `NoSuchGroup`.
    pub fn group_rates(&self, group: &str, window: Window) -> Result<BTreeMap<String, Rates>> {
        let core = self.core();
        core.known_group(group)?;
        let Some(group) = core.running_group(group) else { return Ok(BTreeMap::new()) };
        let now = core.clock().moment();
        let rates = |(topic, meter): (String, Arc<Meter>)| (topic, meter.rates(window, now));
        Ok(group.meters().into_iter().map(rates).collect())
    }
}

/// The counters of a group and a topic.
#[derive(Debug)]
pub(crate) struct Meter {
    reads: AtomicU64,
    read: AtomicU64,
    read_bytes: AtomicU64,
    read_nanos: AtomicU64,
    calls: AtomicU64,
    consumed: AtomicU64,
    failed: AtomicU64,
    sent_back: AtomicU64,
    expired: AtomicU64,
    consume_nanos: AtomicU64,
    start: Moment,
    /// When the next sample is due, in nanoseconds after the start: a hint, for who counts.
    due: AtomicU64,
    samples: Mutex<Samples<Totals>>,
}

/// What the counters say at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Totals {
    reads: u64,
    read: u64,
    read_bytes: u64,
    read_nanos: u64,
    calls: u64,
    consumed: u64,
    failed: u64,
    sent_back: u64,
    expired: u64,
    consume_nanos: u64,
}

impl Meter {
    pub(crate) fn new(start: Moment) -> Self {
        let samples = Samples::new(start);
        Self {
            reads: AtomicU64::new(0),
            read: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
            read_nanos: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            consumed: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            sent_back: AtomicU64::new(0),
            expired: AtomicU64::new(0),
            consume_nanos: AtomicU64::new(0),
            start,
            due: AtomicU64::new(nanos(samples.due().since(start))),
            samples: Mutex::new(Rank::Signal, samples),
        }
    }

    /// Counts a read of `messages` with bodies of `bytes` bytes, which ended at `now`.
    pub(crate) fn count_read(&self, messages: usize, bytes: usize, took: Duration, now: Moment) {
        self.sample(now);
        add(&self.reads, 1);
        add(&self.read, messages as u64);
        add(&self.read_bytes, bytes as u64);
        add(&self.read_nanos, nanos(took));
    }

    /// Counts a call of a listener, which ended at `now`.
    pub(crate) fn count_call(&self, consumed: usize, failed: usize, took: Duration, now: Moment) {
        self.sample(now);
        add(&self.calls, 1);
        add(&self.consumed, consumed as u64);
        if failed > 0 {
            add(&self.failed, failed as u64);
        }
        add(&self.consume_nanos, nanos(took));
    }

    /// Counts a message that was sent back.
    pub(crate) fn count_sent_back(&self, now: Moment) {
        self.sample(now);
        add(&self.sent_back, 1);
    }

    /// Counts a message that nobody got in time.
    pub(crate) fn count_expired(&self, now: Moment) {
        self.sample(now);
        add(&self.expired, 1);
    }

    /// What happened within `window`, up to the last sample before `now`.
    pub(crate) fn rates(&self, window: Window, now: Moment) -> Rates {
        self.sample(now);
        let ends = self.samples.lock().ends(window);
        let Some((first, last, time)) = ends else { return Rates::default() };
        let sum = |of: fn(&Totals) -> u64| of(&last).saturating_sub(of(&first));
        let rate = |of| sum(of) as f64 / time.as_secs_f64();
        let average = |nanos, calls| match sum(calls) {
            0 => Duration::ZERO,
            calls => Duration::from_nanos(sum(nanos) / calls),
        };
        Rates {
            time,
            read: rate(|totals| totals.read),
            read_bytes: rate(|totals| totals.read_bytes),
            read_time: average(|totals| totals.read_nanos, |totals| totals.reads),
            consumed: rate(|totals| totals.consumed),
            failed: rate(|totals| totals.failed),
            failed_messages: sum(|totals| totals.failed),
            sent_back: sum(|totals| totals.sent_back),
            expired: sum(|totals| totals.expired),
            consume_time: average(|totals| totals.consume_nanos, |totals| totals.calls),
        }
    }

    /// The last minute as RocketMQ shows it, with failures and, without calls, their time from the
    /// last hour (OPS-9).
    pub(crate) fn status(&self, now: Moment) -> Rates {
        let minute = self.rates(Window::Minute, now);
        let hour = self.rates(Window::Hour, now);
        let no_calls = minute.consume_time.is_zero();
        let consume_time = if no_calls { hour.consume_time } else { minute.consume_time };
        Rates { consume_time, failed_messages: hour.failed_messages, ..minute }
    }

    /// Takes the samples that are due, before anything more is counted. What others count at this
    /// very moment may fall into the sample or behind it.
    fn sample(&self, now: Moment) {
        if nanos(now.since(self.start)) < self.due.load(Ordering::Relaxed) {
            return;
        }
        let mut samples = self.samples.lock();
        let due = samples.take(now, self.totals());
        self.due.store(nanos(due.since(self.start)), Ordering::Relaxed);
    }

    fn totals(&self) -> Totals {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Totals {
            reads: read(&self.reads),
            read: read(&self.read),
            read_bytes: read(&self.read_bytes),
            read_nanos: read(&self.read_nanos),
            calls: read(&self.calls),
            consumed: read(&self.consumed),
            failed: read(&self.failed),
            sent_back: read(&self.sent_back),
            expired: read(&self.expired),
            consume_nanos: read(&self.consume_nanos),
        }
    }
}

fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::clock::DrivenClock;

    // (OPS-9)
    #[test]
    fn ops_9_rates_and_averages_are_those_between_two_samples() {
        let driven = DrivenClock::new(0);
        let moment = || driven.clock().moment();
        let meter = Meter::new(moment());
        assert_eq!(meter.rates(Window::Minute, moment()), Rates::default());
        for _ in 0..60 {
            driven.advance(Duration::from_secs(1));
            meter.count_read(20, 300, Duration::from_micros(50), moment());
            meter.count_call(9, 1, Duration::from_millis(4), moment());
            meter.count_call(10, 0, Duration::from_millis(2), moment());
            meter.count_sent_back(moment());
            meter.count_expired(moment());
        }
        // What ended in the very moment of the last sample is not in it.
        let expected = Rates {
            time: Duration::from_secs(60),
            read: 59.0 * 20.0 / 60.0,
            read_bytes: 59.0 * 300.0 / 60.0,
            read_time: Duration::from_micros(50),
            consumed: 59.0 * 19.0 / 60.0,
            failed: 59.0 / 60.0,
            failed_messages: 59,
            sent_back: 59,
            expired: 59,
            consume_time: Duration::from_millis(3),
        };
        assert_eq!(meter.rates(Window::Minute, moment()), expected);
        assert_eq!(meter.rates(Window::Hour, moment()), Rates::default());
        // Half a minute of silence: the other half is what there was.
        driven.advance(Duration::from_secs(30));
        assert_eq!(meter.rates(Window::Minute, moment()).failed_messages, 31);
        driven.advance(Duration::from_secs(3600));
        let minute = meter.rates(Window::Minute, moment());
        assert_eq!((minute.read, minute.consume_time), (0.0, Duration::ZERO));
        assert_eq!(meter.rates(Window::Hour, moment()).failed_messages, 60);
        let status = meter.status(moment());
        assert_eq!((status.failed_messages, status.consumed), (60, 0.0));
        assert_eq!(status.consume_time, Duration::from_millis(3), "of the hour");
    }
}
