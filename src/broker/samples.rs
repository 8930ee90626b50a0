//! Samples of counters that only rise, for rates over a minute, an hour and a day (OPS-9).
//!
//! Nothing wakes up to take them. Whoever is about to count, or asks, first takes the samples that
//! have become due: nothing was counted in between, so the counters still stand as they did then.

use crate::clock::Moment;
use std::collections::VecDeque;
use std::time::Duration;

/// The time over which a rate is taken. It ends with the last sample, which is up to a sixth of an
/// hour or of a minute old, or up to an hour in a day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Window {
    /// Sampled every 10 seconds.
    Minute,
    /// Sampled every 10 minutes.
    Hour,
    /// Sampled every hour.
    Day,
}

impl Window {
    const ALL: [Self; 3] = [Self::Minute, Self::Hour, Self::Day];

    fn step(self) -> Duration {
        Duration::from_secs(match self {
            Self::Minute => 10,
            Self::Hour => 600,
            Self::Day => 3600,
        })
    }

    /// As many samples as it has ends of steps.
    fn samples(self) -> usize {
        match self {
            Self::Minute | Self::Hour => 7,
            Self::Day => 25,
        }
    }
}

/// The samples of one set of counters, for each window.
#[derive(Debug)]
pub(super) struct Samples<T> {
    rings: [VecDeque<(Moment, T)>; 3],
    start: Moment,
}

impl<T: Copy + Default> Samples<T> {
    /// Counters that stand at their beginning now.
    pub(super) fn new(start: Moment) -> Self {
        Self { rings: Default::default(), start }
    }

    /// Takes what has become due until `now`, while the counters stood at `counters`; returns when
    /// the next sample is due.
    pub(super) fn take(&mut self, now: Moment, counters: T) -> Moment {
        for (window, ring) in Window::ALL.into_iter().zip(&mut self.rings) {
            let (step, most) = (window.step(), window.samples());
            let last = ring.back().map_or(self.start, |(moment, _)| *moment);
            let due = now.since(last).as_secs() / step.as_secs();
            if due > 0 && ring.is_empty() {
                ring.push_back((self.start, T::default()));
            }
            // More than it keeps would push each other out.
            let first = due.saturating_sub(most as u64) + 1;
            for nth in first..=due {
                let later = Duration::from_secs(nth * step.as_secs());
                ring.push_back((last.plus(later), counters));
                if ring.len() > most {
                    ring.pop_front();
                }
            }
        }
        self.due()
    }

    /// When the next sample is due.
    pub(super) fn due(&self) -> Moment {
        let last = self.rings[0].back().map_or(self.start, |(moment, _)| *moment);
        last.plus(Window::Minute.step())
    }

    /// The first and the last sample of a window, and the time between them; `None` if there are
    /// not two.
    pub(super) fn ends(&self, window: Window) -> Option<(T, T, Duration)> {
        let ring = &self.rings[window as usize];
        let ((began, first), (ended, last)) = (ring.front()?, ring.back()?);
        (ended > began).then(|| (*first, *last, ended.since(*began)))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::clock::DrivenClock;

    /// Counts `seconds` seconds, one each.
    fn count(seconds: u64) -> (Samples<u64>, Moment) {
        let driven = DrivenClock::new(0);
        let mut samples = Samples::new(driven.clock().moment());
        for counter in 0..seconds {
            samples.take(driven.clock().moment(), counter);
            driven.advance(Duration::from_secs(1));
        }
        (samples, driven.clock().moment())
    }

    #[test]
    fn ops_9_a_window_lies_between_its_first_and_its_last_sample() {
        let seconds = Duration::from_secs;
        assert_eq!(count(10).0.ends(Window::Minute), None, "not two yet");
        assert_eq!(count(11).0.ends(Window::Minute), Some((0, 10, seconds(10))));
        assert_eq!(count(69).0.ends(Window::Minute), Some((0, 60, seconds(60))));
        assert_eq!(count(75).0.ends(Window::Minute), Some((10, 70, seconds(60))));
        assert_eq!(count(75).0.ends(Window::Hour), None);
        let (samples, _) = count(26 * 3600 + 5);
        assert_eq!(samples.ends(Window::Minute), Some((93_540, 93_600, seconds(60))));
        assert_eq!(samples.ends(Window::Hour), Some((90_000, 93_600, seconds(3600))));
        assert_eq!(samples.ends(Window::Day), Some((7200, 93_600, seconds(86_400))));
    }

    #[test]
    fn ops_9_samples_that_nobody_took_in_time_are_those_that_would_have_been_taken() {
        let driven = DrivenClock::new(0);
        let moment = || driven.clock().moment();
        let (mut lazy, mut busy) = (Samples::new(moment()), Samples::new(moment()));
        let mut counter = 0_u64;
        for pause in [3, 4, 30, 1, 700, 2, 9, 86_400 * 3, 15, 10, 10] {
            for _ in 0..pause {
                driven.advance(Duration::from_secs(1));
                busy.take(moment(), counter);
            }
            lazy.take(moment(), counter);
            counter += pause;
            for window in Window::ALL {
                assert_eq!(lazy.ends(window), busy.ends(window), "{window:?} after {pause}");
            }
        }
        assert_eq!(lazy.due(), busy.due());
        assert!(lazy.rings.iter().all(|ring| ring.len() <= 25));
    }

    #[test]
    fn the_next_sample_is_due_ten_seconds_after_the_last_one() {
        let (mut samples, now) = count(35);
        assert_eq!(samples.take(now, 0).since(now), Duration::from_secs(5));
    }
}
