//! One thread for everything that is to happen later: it sleeps until the earliest deadline, and
//! for ever when there is none.

use crate::clock::{Clock, Moment};
use crate::sync::{Alarm, Mutex, Rank};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

type Action = Box<dyn FnOnce() + Send>;

/// Pending actions by deadline.
#[derive(Debug)]
pub(crate) struct Timer {
    clock: Clock,
    state: Mutex<State>,
    alarm: Alarm,
}

#[derive(Debug, Default)]
struct State {
    pending: BinaryHeap<Reverse<Entry>>,
    scheduled: u64,
    stopped: bool,
}

struct Entry {
    due: Moment,
    // Entries of one moment keep the order in which they were scheduled.
    nth: u64,
    action: Action,
}

impl Timer {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, state: Mutex::new(Rank::Timer, State::default()), alarm: Alarm::new() }
    }

    /// Runs `action` on the timer's thread once `delay` has passed, unless the broker closes
    /// before. It must be short: others wait behind it.
    pub(crate) fn after(&self, delay: Duration, action: impl FnOnce() + Send + 'static) {
        let due = self.clock.moment().plus(delay);
        let mut state = self.state.lock();
        if state.stopped {
            return;
        }
        let nth = state.scheduled;
        state.scheduled += 1;
        let earliest = state.pending.peek().is_none_or(|Reverse(first)| due < first.due);
        state.pending.push(Reverse(Entry { due, nth, action: Box::new(action) }));
        drop(state);
        if earliest {
            self.alarm.ring();
        }
    }

    /// Runs what is due; says when the next action is.
    pub(crate) fn step(&self) -> Option<Moment> {
        loop {
            let now = self.clock.moment();
            let mut state = self.state.lock();
            let due = state.pending.peek().map(|Reverse(first)| first.due);
            if due.is_none_or(|due| due > now) {
                return due;
            }
            let action = state.pending.pop().map(|Reverse(entry)| entry.action);
            drop(state);
            action.into_iter().for_each(|action| action());
        }
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

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry").field("due", &self.due).finish_non_exhaustive()
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due, self.nth).cmp(&(other.due, other.nth))
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
        timer.after(Duration::from_secs(1), || unreachable!());
        timer.stop();
        assert_eq!(run_after(2_000), (vec![], false));
    }
}
