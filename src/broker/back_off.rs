//! How long a failed message waits for its next delivery.

use crate::error::{Error, Result};
use crate::sync::Arc;
use std::time::Duration;

/// How long a failed message waits for its next delivery, by how often it has failed.
///
/// ```
/// use rocklet::{BackOff, GroupSettings};
/// use std::time::Duration;
/// let seconds = Duration::from_secs;
/// assert_eq!(BackOff::levels().delay(0), seconds(10));
/// let doubling = BackOff::exponential(seconds(1), seconds(60));
/// assert_eq!([0, 1, 5, 6, 99].map(|n| doubling.delay(n)), [1, 2, 32, 60, 60].map(seconds));
/// let settings = GroupSettings::new().max_retries(5).back_off(doubling);
/// # drop(settings);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "a back-off does nothing until a group gets it"]
pub struct BackOff {
    steps: Steps,
}

/// In milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Steps {
    #[default]
    Levels,
    Table(Arc<[u64]>),
    Exponential {
        first: u64,
        cap: u64,
    },
}

/// The delay levels 3 to 18 of RocketMQ, in seconds (CONC-17).
const LEVELS: [u64; 16] =
    [10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200];

const MAX_STEPS: usize = 64;
/// A year.
const MAX_MS: u64 = 365 * 86_400_000;

const TABLE: u8 = 1;
const EXPONENTIAL: u8 = 2;

impl BackOff {
    /// RocketMQ's: 10 s, 30 s, 1 to 10 minutes, 20 and 30 minutes, 1 and 2 hours, and 2 hours from
    /// then on (CONC-17, VEC-8). The default.
    pub fn levels() -> Self {
        Self::default()
    }

    /// One delay for every failure, the last one for all that follow: 1 to 64 delays of up to a
    /// year, in whole milliseconds.
    pub fn table(delays: impl IntoIterator<Item = Duration>) -> Self {
        Self { steps: Steps::Table(delays.into_iter().map(ms).collect()) }
    }

    /// `first` after the first failure, and twice as long after every further one, up to `cap`:
    /// at most a year, in whole milliseconds.
    pub fn exponential(first: Duration, cap: Duration) -> Self {
        Self { steps: Steps::Exponential { first: ms(first), cap: ms(cap) } }
    }

    /// How long a message waits that had failed `failures` times before it failed now.
    #[must_use]
    pub fn delay(&self, failures: u32) -> Duration {
        let nth = usize::try_from(failures).unwrap_or(usize::MAX);
        match &self.steps {
            Steps::Levels => Duration::from_secs(LEVELS[nth.min(LEVELS.len() - 1)]),
            Steps::Table(delays) => {
                let delay = delays.get(nth).or(delays.last());
                Duration::from_millis(delay.copied().unwrap_or_default())
            }
            Steps::Exponential { first, cap } => {
                let factor = 1_u64.checked_shl(failures).unwrap_or(u64::MAX);
                Duration::from_millis(first.saturating_mul(factor).min(*cap))
            }
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        let check = |name, value, min, max| {
            let rule = "a number";
            let fits = (min..=max).contains(&value);
            if fits { Ok(()) } else { Err(Error::Setting { name, value, rule, min, max }) }
        };
        let check_ms = |ms| check("back_off in ms", ms, 0, MAX_MS);
        match &self.steps {
            Steps::Levels => Ok(()),
            Steps::Table(delays) => {
                check("steps of back_off", delays.len() as u64, 1, MAX_STEPS as u64)?;
                delays.iter().copied().try_for_each(check_ms)
            }
            Steps::Exponential { first, cap } => check_ms(*first).and_then(|()| check_ms(*cap)),
        }
    }

    /// What the table of groups keeps: nothing for the default, else a kind and its numbers.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let (kind, numbers) = match &self.steps {
            Steps::Levels => return,
            Steps::Table(delays) => (TABLE, delays.to_vec()),
            Steps::Exponential { first, cap } => (EXPONENTIAL, vec![*first, *cap]),
        };
        out.push(kind);
        numbers.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
    }

    /// The default for what was stored before there was a choice.
    pub(super) fn decode(bytes: &[u8]) -> Self {
        let Some((kind, rest)) = bytes.split_first() else { return Self::default() };
        let (numbers, _) = rest.as_chunks::<8>();
        let numbers: Vec<u64> = numbers.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
        let steps = match (*kind, &*numbers) {
            (TABLE, [_, ..]) => Steps::Table(numbers.into()),
            (EXPONENTIAL, &[first, cap]) => Steps::Exponential { first, cap },
            _ => Steps::Levels,
        };
        Self { steps }
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conc_17_vec_8_retries_wait_as_the_levels_from_3_on_say() {
        let minutes = |minutes: u64| 60 * minutes;
        let table = [10, 30].into_iter().chain((1..=10).map(minutes));
        let table: Vec<_> = table.chain([20, 30, 60, 120].map(minutes)).collect();
        let back_off = BackOff::levels();
        let delays: Vec<_> = (0..16).map(|nth| back_off.delay(nth).as_secs()).collect();
        assert_eq!(delays, table);
        assert_eq!(back_off.delay(u32::MAX).as_secs(), 7200, "as level 18 from then on");
    }

    #[test]
    fn a_table_repeats_its_last_delay_and_an_exponential_one_stops_at_its_cap() {
        let ms = Duration::from_millis;
        let table = BackOff::table([ms(5), ms(1)]);
        assert_eq!([0, 1, 2, u32::MAX].map(|nth| table.delay(nth)), [5, 1, 1, 1].map(ms));
        let doubling = BackOff::exponential(ms(3), ms(40));
        assert_eq!([0, 1, 2, 3, 4].map(|nth| doubling.delay(nth)), [3, 6, 12, 24, 40].map(ms));
        assert_eq!([63, 64, u32::MAX].map(|nth| doubling.delay(nth)), [40, 40, 40].map(ms));
    }

    #[test]
    fn what_is_out_of_range_is_refused() {
        let (day, year) = (Duration::from_secs(86_400), Duration::from_millis(MAX_MS));
        let more = year + Duration::from_millis(1);
        for taken in [BackOff::levels(), BackOff::table(vec![year; 64]), exponential(day, year)] {
            taken.check().unwrap();
        }
        let tables = [vec![], vec![day; 65], vec![day, more]].map(BackOff::table);
        let doubling = [exponential(more, day), exponential(day, Duration::MAX)];
        for refused in tables.into_iter().chain(doubling) {
            assert!(matches!(refused.check(), Err(Error::Setting { .. })), "{refused:?}");
        }
    }

    #[test]
    fn a_back_off_comes_back_as_it_was_stored() {
        let day = Duration::from_secs(86_400);
        for back_off in [BackOff::levels(), BackOff::table([day; 3]), exponential(day, 2 * day)] {
            let mut bytes = Vec::new();
            back_off.encode(&mut bytes);
            assert_eq!(BackOff::decode(&bytes), back_off);
        }
        assert_eq!(BackOff::decode(&[99, 1]), BackOff::levels());
    }

    fn exponential(first: Duration, cap: Duration) -> BackOff {
        BackOff::exponential(first, cap)
    }
}
