//! The messages that wait to be due, in memory, and how their waits end.
//!
//! A record that begins or ends a wait is appended under the lock of the schedule, by whoever finds
//! that the message waits still: so nobody else can end the same wait, and a checkpoint, which takes
//! its position under the same lock, sees both the record and what it has done, or neither.

use super::delay_table::{KnownDelays, MOST_UNSAVED};
use super::schedule::{DueAt, LATEST_MS, Now, Schedule, Ticket};
use super::tail::{Appended, Refusal};
use crate::clock::Clock;
use crate::delay::Due;
use crate::sync::{Alarm, Mutex, MutexGuard, Rank};
use std::time::Duration;

/// How far the wall clock is ahead counts in steps of so much, rounded up: what begins with the same
/// settings of the clocks goes together, however exactly they were looked at.
const STEP_MS: i64 = 4;

/// The messages that wait to be due.
#[derive(Debug)]
pub(crate) struct Delays {
    schedule: Mutex<Schedule>,
    /// What the steady clock is ahead of the clock's moments; never ahead of the wall clock by that.
    base_ms: i64,
    alarm: Alarm,
}

impl Delays {
    pub(crate) fn new(clock: &Clock, known: &KnownDelays) -> Self {
        Self {
            schedule: Mutex::new(Rank::Delays, Schedule::new(known.waiting())),
            base_ms: base_ms(clock),
            alarm: Alarm::new(),
        }
    }

    /// Begins a wait with the record that `append` appends. The wall clock was `ahead` of the steady
    /// one.
    pub(crate) fn begin(
        &self,
        (due, ahead): (DueAt, i64),
        append: impl FnOnce() -> Result<Appended, Refusal>,
    ) -> Result<Appended, Refusal> {
        let schedule = self.lock();
        let appended = append()?;
        #[cfg(broken_wait_begun_late)]
        let schedule = {
            drop(schedule);
            self.lock()
        };
        let mut schedule = schedule;
        let first = schedule.add(appended.position, due, ahead);
        drop(schedule);
        #[cfg(not(broken_wait_silent))]
        if first {
            self.alarm.ring();
        }
        #[cfg(broken_wait_silent)]
        let _ = first;
        Ok(appended)
    }

    /// Ends a wait, of a record so long, with the one that `append` appends, unless it has ended: then
    /// `None`.
    pub(crate) fn end(
        &self,
        ticket: &Ticket,
        length: u64,
        append: impl FnOnce() -> Result<Appended, Refusal>,
    ) -> Result<Option<Appended>, Refusal> {
        self.change(ticket, append, |schedule, _| {
            schedule.remove(ticket);
            schedule.bytes.take_off(ticket.position, length);
        })
    }

    /// Goes on with a wait at the record that `append` appends, unless it has ended: then `None`.
    pub(crate) fn relocate(
        &self,
        ticket: &Ticket,
        length: u64,
        append: impl FnOnce() -> Result<Appended, Refusal>,
    ) -> Result<Option<Appended>, Refusal> {
        self.change(ticket, append, |schedule, at| {
            schedule.relocate(ticket, at.position);
            schedule.bytes.take_off(ticket.position, length);
        })
    }

    fn change(
        &self,
        ticket: &Ticket,
        append: impl FnOnce() -> Result<Appended, Refusal>,
        change: impl FnOnce(&mut Schedule, &Appended),
    ) -> Result<Option<Appended>, Refusal> {
        let mut schedule = self.lock();
        #[cfg(not(broken_wait_ended_twice))]
        if !schedule.has(ticket) {
            return Ok(None);
        }
        let appended = append()?;
        change(&mut schedule, &appended);
        Ok(Some(appended))
    }

    /// Looks where the log ends, with nothing in between, and what is to be saved of that moment.
    pub(crate) fn capture<R, S>(
        &self,
        saving: impl FnOnce(&Schedule) -> S,
        look: impl FnOnce() -> R,
    ) -> (R, S) {
        #[cfg(broken_capture_early)]
        let looked = look();
        let schedule = self.lock();
        #[cfg(not(broken_capture_early))]
        let looked = look();
        (looked, saving(&schedule))
    }

    /// The first `changes` are saved.
    pub(super) fn saved(&self, changes: usize) {
        self.lock().saved(changes);
    }

    /// Rung when something may be due earlier than was said.
    pub(crate) fn alarm(&self) -> &Alarm {
        &self.alarm
    }

    /// Whether a checkpoint is to be written for what has changed.
    pub(super) fn press(&self) -> bool {
        self.lock().unsaved().len() >= MOST_UNSAVED
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock()
    }

    pub(super) fn now(&self, clock: &Clock) -> Now {
        let steady_ms = self.base_ms + signed(clock.moment().ms());
        Now { wall_ms: signed(clock.wall_ms()), steady_ms }
    }

    /// What is stored of a due time, and how far the wall clock is ahead of the steady one.
    pub(super) fn due_at(&self, clock: &Clock, due: Due) -> (DueAt, i64) {
        match due {
            Due::At(ms) => (DueAt { ms: ms.min(LATEST_MS), instant: true }, 0),
            Due::After(delay) => {
                let ahead = ahead_ms(clock).saturating_sub(self.base_ms);
                let ahead = ahead.saturating_add(ahead.wrapping_neg().rem_euclid(STEP_MS));
                // All is rounded up: never early, neither by the steady clock nor by what is stored.
                let end = signed(clock.moment().plus(delay).ms_rounded_up());
                let ms = self.base_ms.saturating_add(end).saturating_add(ahead);
                let ms = u64::try_from(ms).unwrap_or(0).min(LATEST_MS);
                (DueAt { ms, instant: false }, ahead)
            }
        }
    }
}

/// A thread that is held up between two reads sees clocks that differ.
const LOOKS: usize = 3;
const NANOS: i128 = 1_000_000;

/// By how many milliseconds the wall clock is ahead of the clock's moments, and no more than that.
fn base_ms(clock: &Clock) -> i64 {
    let look = || {
        let wall = clock.wall();
        difference(wall, clock.moment().since_start()).div_euclid(NANOS)
    };
    (0..LOOKS).map(|_| look()).max().map_or(0, |ms| ms as i64)
}

/// The same, and no less than that.
fn ahead_ms(clock: &Clock) -> i64 {
    let look = || {
        let moment = clock.moment().since_start();
        -difference(moment, clock.wall()).div_euclid(NANOS)
    };
    (0..LOOKS).map(|_| look()).min().map_or(0, |ms| ms as i64)
}

fn difference(later: Duration, earlier: Duration) -> i128 {
    later.as_nanos() as i128 - earlier.as_nanos() as i128
}

pub(super) fn signed(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX)
}
