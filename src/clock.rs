//! The one source of time: the system's clocks, or one that a test drives.
//!
//! Two kinds of time: *wall time* in milliseconds since 1970 (store and born times, may jump),
//! and *moments* on a monotonic scale (deadlines, never jump).

#![allow(clippy::disallowed_methods)] // the door to the system's clocks

#[cfg(any(test, feature = "testing"))]
mod driven;

#[cfg(any(test, feature = "testing"))]
pub use driven::DrivenClock;

use crate::sync::Signal;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant, SystemTime};

/// A source of time; clones share it.
#[derive(Clone)]
pub(crate) struct Clock {
    source: Source,
}

#[derive(Clone)]
enum Source {
    System {
        start: Instant,
    },
    #[cfg(any(test, feature = "testing"))]
    Driven(DrivenClock),
}

impl Clock {
    /// The clocks of the system.
    pub(crate) fn system() -> Self {
        Self { source: Source::System { start: Instant::now() } }
    }

    /// Wall time in milliseconds since 1970, at most one scheduler tick (4 to 10 ms) behind, for
    /// a few nanoseconds: what the append path can afford.
    pub(crate) fn coarse_wall_ms(&self) -> u64 {
        match &self.source {
            Source::System { .. } => {
                let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
                let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
                let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
                seconds * 1000 + nanos / 1_000_000
            }
            #[cfg(any(test, feature = "testing"))]
            Source::Driven(clock) => clock.wall_ms(),
        }
    }

    /// Wall time in milliseconds since 1970.
    pub(crate) fn wall_ms(&self) -> u64 {
        match &self.source {
            Source::System { .. } => {
                let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
                since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
            }
            #[cfg(any(test, feature = "testing"))]
            Source::Driven(clock) => clock.wall_ms(),
        }
    }

    /// The current moment on the monotonic scale.
    pub(crate) fn moment(&self) -> Moment {
        match &self.source {
            Source::System { start } => Moment { since_start: start.elapsed() },
            #[cfg(any(test, feature = "testing"))]
            Source::Driven(clock) => clock.moment(),
        }
    }

    /// How long a thread may really sleep for `deadline`: `None` when only the driver of the
    /// clock can end the wait.
    pub(crate) fn real_time_until(&self, deadline: Moment) -> Option<Duration> {
        match &self.source {
            Source::System { .. } => Some(deadline.since(self.moment())),
            #[cfg(any(test, feature = "testing"))]
            Source::Driven(_) => None,
        }
    }

    /// What runs the background work of a broker: `None` if that is threads.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn steps(&self) -> Option<&DrivenClock> {
        match &self.source {
            Source::Driven(clock) if clock.runs_steps() => Some(clock),
            _ => None,
        }
    }

    /// Does something for a thread that waits, instead of letting it sleep; false if it has to.
    #[inline]
    pub(crate) fn work_for(&self, deadline: Option<Moment>) -> bool {
        #[cfg(any(test, feature = "testing"))]
        if let Some(steps) = self.steps() {
            return steps.work_for(deadline);
        }
        let _ = deadline;
        false
    }

    /// Notes a thread, for as long as what is returned lives, that may end the waits of others.
    pub(crate) fn thread(&self) -> ThreadNote {
        ThreadNote {
            #[cfg(any(test, feature = "testing"))]
            clock: self.steps().inspect(|clock| clock.count_thread(true)).cloned(),
        }
    }

    /// A number that nobody can foresee, unless the clock is one of a simulation.
    pub(crate) fn random(&self) -> u64 {
        #[cfg(any(test, feature = "testing"))]
        if let Some(steps) = self.steps() {
            return steps.random();
        }
        RandomState::new().hash_one(0)
    }

    /// Makes a driven clock notify `signal` whenever it moves.
    pub(crate) fn attach(&self, signal: &Signal) {
        match &self.source {
            Source::System { .. } => {
                let _ = signal;
            }
            #[cfg(any(test, feature = "testing"))]
            Source::Driven(clock) => clock.attach(signal),
        }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clock").field("now", &self.moment()).finish_non_exhaustive()
    }
}

/// A point on the monotonic scale of one clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment {
    since_start: Duration,
}

impl Moment {
    pub(crate) fn plus(self, duration: Duration) -> Self {
        Self { since_start: self.since_start.saturating_add(duration) }
    }

    /// Whole milliseconds of the scale.
    pub(crate) fn ms(self) -> u64 {
        u64::try_from(self.since_start.as_millis()).unwrap_or(u64::MAX)
    }

    /// The same, rounded up.
    pub(crate) fn ms_rounded_up(self) -> u64 {
        let whole = Duration::from_millis(self.ms());
        self.ms().saturating_add(u64::from(whole < self.since_start))
    }

    pub(crate) fn since(self, earlier: Self) -> Duration {
        self.since_start.saturating_sub(earlier.since_start)
    }
}

/// A thread that a simulation knows of.
pub(crate) struct ThreadNote {
    #[cfg(any(test, feature = "testing"))]
    clock: Option<DrivenClock>,
}

#[cfg(any(test, feature = "testing"))]
impl Drop for ThreadNote {
    fn drop(&mut self) {
        if let Some(clock) = &self.clock {
            clock.count_thread(false);
        }
    }
}

/// Background work that a simulation runs as steps.
#[cfg(any(test, feature = "testing"))]
pub(crate) trait Work: fmt::Debug + Send + Sync {
    /// When the next step is due: now if it was woken, never if it waits to be.
    fn due(&self, now: Moment) -> Option<Moment>;

    /// Does it.
    fn step(&self);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_wait_on_a_driven_clock_ends_when_the_clock_passes_the_deadline() {
        let driven = DrivenClock::new(1_000);
        let clock = driven.clock();
        let signal = Signal::new();
        let deadline = clock.moment().plus(Duration::from_secs(3600));
        let waiter =
            std::thread::spawn(move || signal.wait_until(&clock, Some(deadline), || false));
        while !waiter.is_finished() {
            driven.advance(Duration::from_secs(600));
            std::thread::yield_now();
        }
        assert!(!waiter.join().unwrap(), "timed out by the driven clock");
    }
}
