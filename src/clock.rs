//! The one source of time: the system's clocks, or one that a test drives.
//!
//! Two kinds of time: *wall time* in milliseconds since 1970 (store and born times, may jump),
//! and *moments* on a monotonic scale (deadlines, never jump).

#![allow(clippy::disallowed_methods)] // the door to the system's clocks

use crate::sync::Signal;
use std::fmt;
use std::time::{Duration, Instant};

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

    pub(crate) fn since(self, earlier: Self) -> Duration {
        self.since_start.saturating_sub(earlier.since_start)
    }
}

#[cfg(any(test, feature = "testing"))]
pub use driven::DrivenClock;

#[cfg(any(test, feature = "testing"))]
mod driven {
    use super::{Clock, Duration, Moment, Source, fmt};
    use crate::sync::{Arc, Mutex, Rank, Signal};

    /// A clock that stands still until a test moves it (feature `testing`).
    ///
    /// Clones share the time. Moving it wakes every wait of the broker that has a deadline.
    #[derive(Clone)]
    pub struct DrivenClock {
        state: Arc<Mutex<State>>,
    }

    struct State {
        since_start: Duration,
        wall_ms: u64,
        waiting: Vec<Signal>,
    }

    impl DrivenClock {
        /// Creates a clock whose wall time is `wall_ms` milliseconds since 1970.
        #[must_use]
        pub fn new(wall_ms: u64) -> Self {
            let state = State { since_start: Duration::ZERO, wall_ms, waiting: Vec::new() };
            Self { state: Arc::new(Mutex::new(Rank::Timer, state)) }
        }

        /// Moves both scales forward by `duration`.
        pub fn advance(&self, duration: Duration) {
            let mut state = self.state.lock();
            state.since_start += duration;
            state.wall_ms += u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
            let waiting = state.waiting.clone();
            drop(state);
            waiting.iter().for_each(Signal::notify);
        }

        /// Sets the wall time alone, as an operator or a time service would.
        pub fn set_wall_ms(&self, wall_ms: u64) {
            self.state.lock().wall_ms = wall_ms;
        }

        /// The wall time in milliseconds since 1970.
        #[must_use]
        pub fn wall_ms(&self) -> u64 {
            self.state.lock().wall_ms
        }

        pub(super) fn moment(&self) -> Moment {
            Moment { since_start: self.state.lock().since_start }
        }

        pub(super) fn attach(&self, signal: &Signal) {
            let mut state = self.state.lock();
            state.waiting.retain(Signal::shared);
            if !state.waiting.iter().any(|known| known.same(signal)) {
                state.waiting.push(signal.clone());
            }
        }

        pub(crate) fn clock(&self) -> Clock {
            Clock { source: Source::Driven(self.clone()) }
        }
    }

    impl fmt::Debug for DrivenClock {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("DrivenClock").field("wall_ms", &self.wall_ms()).finish_non_exhaustive()
        }
    }
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
