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
use rustix::time::{ClockId, clock_gettime};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// A source of time; clones share it.
#[derive(Clone)]
pub(crate) struct Clock {
    source: Source,
}

#[derive(Clone)]
enum Source {
    System {
        start: Duration,
    },
    #[cfg(any(test, feature = "testing"))]
    Driven(DrivenClock),
}

impl Clock {
    /// The clocks of the system.
    pub(crate) fn system() -> Self {
        Self { source: Source::System { start: read(ClockId::Monotonic) } }
    }

    /// Wall time in milliseconds since 1970, at most one scheduler tick (4 to 10 ms) behind, for
    /// a few nanoseconds: what the append path can afford.
    pub(crate) fn coarse_wall_ms(&self) -> u64 {
        match &self.source {
            Source::System { .. } => read(ClockId::RealtimeCoarse).as_millis() as u64,
            #[cfg(any(test, feature = "testing"))]
            Source::Driven(clock) => clock.wall_ms(),
        }
    }

    /// Wall time in milliseconds since 1970.
    pub(crate) fn wall_ms(&self) -> u64 {
        self.wall().as_millis() as u64
    }

    /// Wall time since 1970, as exact as it is known.
    pub(crate) fn wall(&self) -> Duration {
        match &self.source {
            Source::System { .. } => read(ClockId::Realtime),
            #[cfg(any(test, feature = "testing"))]
            Source::Driven(clock) => Duration::from_millis(clock.wall_ms()),
        }
    }

    /// The current moment on the monotonic scale.
    pub(crate) fn moment(&self) -> Moment {
        match &self.source {
            Source::System { start } => Moment::after(*start, ClockId::Monotonic),
            #[cfg(any(test, feature = "testing"))]
            Source::Driven(clock) => clock.moment(),
        }
    }

    /// The same, at most one scheduler tick behind, for a few nanoseconds: for who looks at the clock
    /// before and after every message.
    #[inline]
    fn coarse_moment(&self) -> Moment {
        match &self.source {
            Source::System { start } => Moment::after(*start, ClockId::MonotonicCoarse),
            #[cfg(any(test, feature = "testing"))]
            Source::Driven(clock) => clock.moment(),
        }
    }

    /// Now on both scales, coarsely.
    #[inline]
    pub(crate) fn tick(&self) -> Tick {
        Tick { moment: self.coarse_moment(), wall_ms: self.coarse_wall_ms() }
    }

    /// Now, when it was `last` not long ago: within one tick of the scheduler the wall time need not
    /// be asked for again.
    #[inline]
    pub(crate) fn next_tick(&self, last: Tick) -> Tick {
        let moment = self.coarse_moment();
        let same = moment == last.moment;
        Tick { moment, wall_ms: if same { last.wall_ms } else { self.coarse_wall_ms() } }
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

/// The same point on both scales.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tick {
    pub(crate) moment: Moment,
    pub(crate) wall_ms: u64,
}

/// A point on the monotonic scale of one clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment {
    since_start: Duration,
}

impl Moment {
    #[inline]
    fn after(start: Duration, clock: ClockId) -> Self {
        Self { since_start: read(clock).saturating_sub(start) }
    }

    pub(crate) fn plus(self, duration: Duration) -> Self {
        Self { since_start: self.since_start.saturating_add(duration) }
    }

    pub(crate) fn since_start(self) -> Duration {
        self.since_start
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

/// What a clock of the system says.
#[inline]
fn read(clock: ClockId) -> Duration {
    let now = clock_gettime(clock);
    let (seconds, nanos) = (u64::try_from(now.tv_sec), u32::try_from(now.tv_nsec));
    Duration::new(seconds.unwrap_or(0), nanos.unwrap_or(0))
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
    fn the_coarse_clock_is_behind_the_precise_one_by_little() {
        let clock = Clock::system();
        let mut last = clock.coarse_moment();
        for _ in 0..1000 {
            let (before, coarse, after) = (clock.moment(), clock.coarse_moment(), clock.moment());
            assert!(last <= coarse && coarse <= after);
            assert!(before.since(coarse) <= Duration::from_secs(1), "a tick is far less");
            last = coarse;
        }
    }

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
