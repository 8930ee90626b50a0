//! When a message is to be delivered: a duration, an instant, or one of RocketMQ's levels.

use crate::error::{Error, Result};
use crate::sync::Arc;
use std::time::{Duration, SystemTime};

/// A message may wait for a year at most: what is longer is taken for a mistake of units.
pub(crate) const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// What a message says about its delivery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Delay {
    #[default]
    None,
    For(Duration),
    Until(SystemTime),
    /// From 1 on.
    Level(u32),
}

/// When a message goes to its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// So long after now, on a clock that nobody sets.
    After(Duration),
    /// When the wall clock says this, in milliseconds since 1970.
    At(u64),
}

impl Delay {
    /// The same, unless a level counts already: that comes before all else (DELAY-10).
    pub(crate) fn or(self, other: Self) -> Self {
        if matches!(self, Self::Level(_)) { self } else { other }
    }

    /// When a message is due that is sent at this wall time; `None` if it is not delayed.
    ///
    /// # Errors
    /// `DelayTooLong`.
    pub(crate) fn due(self, levels: &DelayLevels, wall_ms: u64) -> Result<Option<Due>> {
        let (delay, due) = match self {
            Self::None => return Ok(None),
            Self::For(delay) => (delay, Due::After(delay)),
            Self::Level(level) => (levels.delay(level), Due::After(levels.delay(level))),
            Self::Until(instant) => {
                let since = instant.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                // Rounded up: never early.
                let ms = since.as_nanos().div_ceil(1_000_000);
                let ms = u64::try_from(ms).unwrap_or(u64::MAX);
                (Duration::from_millis(ms.saturating_sub(wall_ms)), Due::At(ms))
            }
        };
        match delay {
            Duration::ZERO => Ok(None),
            delay if delay > LONGEST => Err(Error::DelayTooLong { delay, limit: LONGEST }),
            _ => Ok(Some(due)),
        }
    }
}

/// The delays behind the levels of [`Message::delay_level`](crate::Message::delay_level), from
/// level 1 on (DELAY-1).
///
/// ```
/// # use rocklet::DelayLevels;
/// # use std::time::Duration;
/// assert_eq!(DelayLevels::default().delay(3), Duration::from_secs(10));
/// let levels = DelayLevels::parse("5s 1m 2h")?;
/// assert_eq!(levels.delay(2), Duration::from_secs(60));
/// assert_eq!(levels.delay(9), Duration::from_secs(7200), "levels above the last one are the last");
/// # Ok::<_, rocklet::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DelayLevels {
    delays: Arc<[Duration]>,
}

impl DelayLevels {
    /// Reads a table as RocketMQ's `messageDelayLevel` has it: whole numbers with a unit, `s`, `m`,
    /// `h` or `d`, separated by single spaces.
    ///
    /// # Errors
    /// `Name` if it cannot be read, or has a delay that is negative or longer than 366 days.
    pub fn parse(table: &str) -> Result<Self> {
        let delays = table.trim_end_matches(' ').split(' ').map(delay_of);
        let delays: Option<Vec<_>> = delays.collect();
        let delays = delays.ok_or_else(|| Error::Name {
            what: "delay level table",
            name: table.chars().take(256).collect(),
            reason: "must be delays such as `1s 5m 2h 1d`, of at most 366 days each",
        })?;
        Ok(Self { delays: delays.into() })
    }

    /// The delay of a level; none for level 0, that of the last one for higher levels.
    #[must_use]
    pub fn delay(&self, level: u32) -> Duration {
        let index = (level as usize).min(self.delays.len()).checked_sub(1);
        index.and_then(|index| self.delays.get(index)).copied().unwrap_or_default()
    }

    /// How many levels there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.delays.len()
    }

    /// Whether there are none: never.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.delays.is_empty()
    }
}

impl Default for DelayLevels {
    /// RocketMQ's: 1, 5, 10 and 30 seconds, 1 to 10, 20 and 30 minutes, 1 and 2 hours.
    fn default() -> Self {
        let seconds =
            [1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200];
        Self { delays: seconds.map(Duration::from_secs).into() }
    }
}

fn delay_of(text: &str) -> Option<Duration> {
    let (unit, digits) = (text.chars().next_back()?, text.get(..text.len().checked_sub(1)?)?);
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 24 * 3600,
        _ => return None,
    };
    let delay = Duration::from_secs(digits.parse::<u64>().ok()?.checked_mul(seconds)?);
    (delay <= LONGEST).then_some(delay)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(delay: Delay) -> Result<Option<Due>> {
        delay.due(&DelayLevels::default(), 1_000)
    }

    fn at(ms: u64) -> Delay {
        Delay::Until(SystemTime::UNIX_EPOCH + Duration::from_millis(ms))
    }

    #[test]
    fn delay_1_levels_start_at_1_and_end_at_the_last() {
        let levels = DelayLevels::default();
        assert_eq!(
            levels,
            DelayLevels::parse("1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h")
                .unwrap()
        );
        let delays = [0, 1, 18, 19, u32::MAX].map(|level| levels.delay(level).as_secs());
        assert_eq!((levels.len(), delays), (18, [0, 1, 7200, 7200, 7200]));
        assert_eq!(due(Delay::Level(2)).unwrap(), Some(Due::After(Duration::from_secs(5))));
    }

    #[test]
    fn delay_10_what_is_not_in_the_future_is_not_delayed() {
        for delay in [Delay::None, Delay::For(Duration::ZERO), at(0), at(999), at(1_000)] {
            assert_eq!(due(delay).unwrap(), None, "{delay:?}");
        }
        let before_1970 = SystemTime::UNIX_EPOCH - Duration::from_secs(1);
        assert_eq!(due(Delay::Until(before_1970)).unwrap(), None);
        assert_eq!(due(at(1_001)).unwrap(), Some(Due::At(1_001)));
        let between = SystemTime::UNIX_EPOCH + Duration::from_micros(1_000_001);
        assert_eq!(due(Delay::Until(between)).unwrap(), Some(Due::At(1_001)), "never early");
    }

    #[test]
    fn delay_10_what_is_too_far_ahead_is_refused() {
        let nearly = Duration::from_millis(1);
        for delay in [Delay::For(LONGEST), at(1_000 + LONGEST.as_millis() as u64)] {
            due(delay).unwrap().unwrap();
        }
        let far = at(1_001 + LONGEST.as_millis() as u64);
        for delay in [Delay::For(LONGEST + nearly), Delay::For(Duration::MAX), far] {
            assert!(matches!(due(delay), Err(Error::DelayTooLong { .. })), "{delay:?}");
        }
    }

    #[test]
    fn delay_10_a_level_comes_before_all_else() {
        let (level, delay) = (Delay::Level(3), Delay::For(Duration::from_secs(1)));
        assert_eq!(
            (level.or(delay), delay.or(at(5)), Delay::None.or(delay)),
            (level, at(5), delay)
        );
    }
}
