//! One thread for everything that is to happen later: it sleeps until the earliest deadline, and
//! for ever when there is none.

use crate::clock::{Clock, Moment};
use crate::sync::{Alarm, Mutex, Rank};
use std::collections::BTreeMap;
use std::time::Duration;

type Action = Box<dyn FnOnce() + Send>;

/// Pending actions by deadline.
#[derive(Debug)]
pub(crate) struct Timer {
    clock: Clock,
    state: Mutex<State>,
    alarm: Alarm,
}

#[derive(Default)]
struct State {
    pending: BTreeMap<Appointment, Action>,
    scheduled: u64,
    stopped: bool,
}

/// Names a pending action, so that it can be [cancelled](Timer::cancel).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Appointment {
    due: Moment,
    // Those of one moment keep the order in which they were made.
    nth: u64,
}

#[cfg(all(test, loom))]
impl Appointment {
    pub(crate) fn due(&self) -> Moment {
        self.due
    }
}

impl Timer {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, state: Mutex::new(Rank::Timer, State::default()), alarm: Alarm::new() }
    }

    /// Runs `action` on the timer's thread once `delay` has passed, unless the broker closes
    /// before. It must be short: others wait behind it.
    pub(crate) fn after(&self, delay: Duration, action: impl FnOnce() + Send + 'static) {
        self.at(self.clock.moment().plus(delay), action);
    }

    /// The same, at a moment.
    pub(crate) fn at(&self, due: Moment, action: impl FnOnce() + Send + 'static) -> Appointment {
        let mut state = self.state.lock();
        let appointment = Appointment { due, nth: state.scheduled };
        if state.stopped {
            return appointment;
        }
        state.scheduled += 1;
        let earliest = state.next().is_none_or(|next| due < next);
        state.pending.insert(appointment, Box::new(action));
        drop(state);
        if earliest {
            self.alarm.ring();
        }
        appointment
    }

    /// Forgets an action, if it is still pending.
    pub(crate) fn cancel(&self, appointment: Appointment) {
        let forgotten = self.state.lock().pending.remove(&appointment);
        // What it holds goes with no lock held.
        drop(forgotten);
    }

    /// Runs what is due; says when the next action is.
    pub(crate) fn step(&self) -> Option<Moment> {
        loop {
            let now = self.clock.moment();
            let mut state = self.state.lock();
            let due = state.next();
            if due.is_none_or(|due| due > now) {
                return due;
            }
            let action = state.pending.pop_first();
            drop(state);
            action.into_iter().for_each(|(_, action)| action());
        }
    }

    /// How many actions are pending.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn len(&self) -> usize {
        self.state.lock().pending.len()
    }

    /// Rings when the next action is another one than the last step said.
    pub(crate) fn alarm(&self) -> &Alarm {
        &self.alarm
    }

    /// Ends the thread and forgets what is pending.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        let pending = std::mem::take(&mut state.pending);
        drop(state);
        drop(pending);
        self.alarm.ring();
    }
}

impl State {
    fn next(&self) -> Option<Moment> {
        self.pending.first_key_value().map(|(next, _)| next.due)
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("pending", &self.pending.len()).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::clock::DrivenClock;

    #[test]
    fn actions_run_in_order_of_their_deadlines_and_not_before() {
        let driven = DrivenClock::new(0);
        let timer = Timer::new(driven.clock());
        let (sender, receiver) = std::sync::mpsc::channel();
        for (name, seconds) in [("c", 30), ("a", 10), ("b", 20), ("b2", 20)] {
            let sender = sender.clone();
            timer.after(Duration::from_secs(seconds), move || sender.send(name).unwrap());
        }
        let run_after = |millis| {
            driven.advance(Duration::from_millis(millis));
            let due = timer.step();
            (receiver.try_iter().collect::<Vec<_>>(), due.is_some())
        };
        assert_eq!(run_after(10_000), (vec!["a"], true));
        assert_eq!(run_after(9_999), (vec![], true));
        assert_eq!(run_after(60_000), (vec!["b", "b2", "c"], false));
        let soon = driven.clock().moment().plus(Duration::from_secs(1));
        let (cancelled, kept) = (sender.clone(), sender);
        let cancelled = timer.at(soon, move || cancelled.send("cancelled").unwrap());
        timer.at(soon, move || kept.send("kept").unwrap());
        timer.cancel(cancelled);
        assert_eq!(run_after(1000), (vec!["kept"], false));
        timer.cancel(cancelled);
        timer.after(Duration::from_secs(1), || unreachable!());
        timer.stop();
        assert_eq!(run_after(2_000), (vec![], false));
    }
}
