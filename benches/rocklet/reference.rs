//! References that run in this process: a channel, a paced copy, a parked thread, a synced file.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use std::{hint, thread};

use crossbeam::channel;
use hdrhistogram::Histogram;

use crate::Fallible;
use crate::cases::{Case, DUE, LISTENERS, PACE, SLOW};
use crate::payload::{Check, Payload};

/// Messages in the channel: the producer seldom waits, and they stay in the cache.
const DEPTH: usize = 4096;

/// A message is a fresh `Box<[u8]>`, as a program would send it; the receiver blocks.
pub(crate) fn relay_channel(case: &Case, messages: u64) -> Fallible<Vec<f64>> {
    let (check, mut payload) = (Check::new(case.size, 1), Payload::new(case.size));
    let (sender, receiver) = channel::bounded::<Box<[u8]>>(DEPTH);
    let seconds = thread::scope(|scope| {
        let check = &check;
        let began = Instant::now();
        let consumer = scope.spawn(move || {
            receiver.iter().for_each(|body| _ = check.see(&body));
            began.elapsed()
        });
        (0..messages).try_for_each(|sequence| sender.send(payload.stamp(0, sequence).into()))?;
        drop(sender);
        Fallible::Ok(consumer.join().map_err(|_| "the receiver panicked")?.as_secs_f64())
    })?;
    check.finish(messages)?;
    Ok(vec![messages as f64 / seconds])
}

/// The least that durable can cost without company: every message is written and synced by itself,
/// into a file that is long enough and has been synced before. As many as the case has syncs.
pub(crate) fn write_and_sync(case: &Case, messages: u64, dir: &Path) -> Fallible<Vec<f64>> {
    let messages = (messages / case.waiting()).max(1);
    let (check, mut payload) = (Check::new(case.size, 1), Payload::new(case.size));
    let file = File::options().read(true).write(true).create_new(true).open(dir.join("raw"))?;
    file.write_all_at(&vec![1; messages as usize * case.size], 0)?;
    file.sync_all()?;
    let began = Instant::now();
    for sequence in 0..messages {
        file.write_all_at(payload.stamp(0, sequence), sequence * case.size as u64)?;
        file.sync_data()?;
    }
    let seconds = began.elapsed().as_secs_f64();
    let mut body = vec![0; case.size];
    for sequence in 0..messages {
        file.read_exact_at(&mut body, sequence * case.size as u64)?;
        check.see(&body);
    }
    check.finish(messages)?;
    Ok(vec![messages as f64 / seconds])
}

/// The most that slow listeners can do: threads that take the next number and sleep.
pub(crate) fn sleep(messages: u64) -> Fallible<Vec<f64>> {
    let next = AtomicU64::new(0);
    let began = Instant::now();
    thread::scope(|scope| {
        for _ in 0..LISTENERS {
            scope.spawn(|| {
                while next.fetch_add(1, Ordering::Relaxed) < messages {
                    thread::sleep(SLOW);
                }
            });
        }
    });
    Ok(vec![messages as f64 / began.elapsed().as_secs_f64()])
}

/// The receiver falls asleep between two messages, so that most sends have to wake it.
pub(crate) fn pace_channel(case: &Case, messages: u64) -> Fallible<Vec<f64>> {
    let (check, mut payload) = (Check::new(case.size, 1), Payload::new(case.size));
    let (sender, receiver) = channel::bounded::<Box<[u8]>>(DEPTH);
    let (pace, arrivals) = (Pace::new(), Arrivals::new()?);
    let sends = thread::scope(|scope| {
        let (check, arrivals) = (&check, &arrivals);
        scope.spawn(move || receiver.iter().for_each(|body| arrivals.see(&pace, check.see(&body))));
        pace.send(messages, move |sequence| Ok(sender.send(payload.stamp(0, sequence).into())?))
    })?;
    check.finish(messages)?;
    Ok([sends, arrivals.percentiles()].concat())
}

/// The least that a send can be: read the clock, copy the body into a ring of memory.
pub(crate) fn pace_copy(case: &Case, messages: u64) -> Fallible<Vec<f64>> {
    let (mut payload, mut ring) = (Payload::new(case.size), vec![0; 16 << 20]);
    let slots = (ring.len() / case.size) as u64;
    Pace::new().send(messages, |sequence| {
        let start = (sequence % slots) as usize * case.size;
        ring[start..start + case.size].copy_from_slice(payload.stamp(0, sequence));
        hint::black_box((&mut ring, Instant::now()));
        Ok(())
    })
}

/// The least that waking a thread can be.
pub(crate) fn pace_park(messages: u64) -> Fallible<Vec<f64>> {
    let (pace, arrivals, sent) = (Pace::new(), Arrivals::new()?, AtomicU64::new(0));
    let sends = thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            for sequence in 0..messages {
                while sent.load(Ordering::Acquire) <= sequence {
                    thread::park();
                }
                arrivals.see(&pace, sequence);
            }
        });
        pace.send(messages, |sequence| {
            sent.store(sequence + 1, Ordering::Release);
            sleeper.thread().unpark();
            Ok(())
        })
    })?;
    Ok([sends, arrivals.percentiles()].concat())
}

/// The least that waiting for a time can be.
pub(crate) fn wait_for_each(messages: u64) -> Fallible<Vec<f64>> {
    let (pace, arrivals) = (Pace::of_delays(), Arrivals::new()?);
    for sequence in 0..messages {
        let mut wait = pace.until(sequence);
        while !wait.is_zero() {
            thread::park_timeout(wait);
            wait = pace.until(sequence);
        }
        arrivals.see(&pace, sequence);
    }
    Ok(arrivals.percentiles())
}

/// When each message is due. Times count from there, not from when a late sender came to it, so
/// that a stall counts for every message that it holds up.
#[derive(Clone, Copy)]
pub(crate) struct Pace {
    first: Instant,
    a_second: u64,
}

impl Pace {
    pub(crate) fn new() -> Self {
        Self { first: Instant::now() + Duration::from_millis(50), a_second: PACE }
    }

    /// For messages that are all sent before the first is due.
    pub(crate) fn of_delays() -> Self {
        Self { first: Instant::now() + Duration::from_millis(500), a_second: DUE }
    }

    /// How long it is until a message is due.
    pub(crate) fn until(&self, sequence: u64) -> Duration {
        self.due(sequence).saturating_duration_since(Instant::now())
    }

    /// Percentiles of how long after its due time each `send` returned.
    pub(crate) fn send(
        &self,
        messages: u64,
        mut send: impl FnMut(u64) -> Fallible<()>,
    ) -> Fallible<Vec<f64>> {
        let sends = Arrivals::new()?;
        for sequence in 0..messages {
            while Instant::now() < self.due(sequence) {
                hint::spin_loop();
            }
            send(sequence)?;
            sends.see(self, sequence);
        }
        Ok(sends.percentiles())
    }

    /// What the wall clock says when the first message is due.
    pub(crate) fn wall_time(&self) -> SystemTime {
        // Whoever is held up between two reads of the clocks comes too late.
        let looks = (0..100).map(|_| SystemTime::now() + self.until(0));
        looks.min().unwrap_or(SystemTime::UNIX_EPOCH)
    }

    pub(crate) fn after_first(&self, sequence: u64) -> Duration {
        Duration::from_nanos(sequence * 1_000_000_000 / self.a_second)
    }

    fn due(&self, sequence: u64) -> Instant {
        self.first + self.after_first(sequence)
    }
}

/// How long after its due time each message was seen.
pub(crate) struct Arrivals(Mutex<Histogram<u64>>);

impl Arrivals {
    pub(crate) fn new() -> Fallible<Self> {
        Ok(Self(Mutex::new(Histogram::new_with_bounds(1, 60_000_000_000, 3)?)))
    }

    #[inline]
    pub(crate) fn see(&self, pace: &Pace, sequence: u64) {
        let late = pace.due(sequence).elapsed().as_nanos() as u64;
        self.0.lock().unwrap_or_else(PoisonError::into_inner).saturating_record(late);
    }

    /// In microseconds.
    pub(crate) fn percentiles(&self) -> Vec<f64> {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        [0.5, 0.99, 0.999].map(|part| seen.value_at_quantile(part) as f64 / 1e3).to_vec()
    }
}
