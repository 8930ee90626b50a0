//! A call of a listener whose time is up, while it ends and the next one begins.
//!
//! Either the timer takes a call away or its worker ends it, never both and never neither; and
//! whoever is inside of a call that hangs has an appointment with the timer.
//!
//! Planted bugs: broken_late_call_counts, broken_appointment_kept
//! Fails with: a call that was taken away counts
//! Fails with: nobody comes to look at a call that hangs

use super::{ORDERS, explore, race};
use crate::broker::timer::{Appointment, Timer};
use crate::clock::{Clock, Moment};
use crate::consumer::timed_call::TimedCall;
use crate::sync::Arc;
use std::collections::BTreeSet;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(10);

struct Worker {
    call: TimedCall<()>,
    timer: Timer,
    start: Moment,
}

impl Worker {
    /// Inside of its first call, whose time will be up.
    fn new() -> Arc<Self> {
        let clock = Clock::system();
        let start = clock.moment();
        let worker = Self { call: TimedCall::new(LIMIT), timer: Timer::new(clock), start };
        worker.call.take_up(());
        worker.call.begin(0..1, start, |due| worker.appoint(due));
        Arc::new(worker)
    }

    fn appoint(&self, due: Moment) -> Appointment {
        self.timer.at(due, || ())
    }

    /// Ends the first call, and hangs in the next; true if the first one counts.
    fn go_on(&self) -> bool {
        loom::thread::yield_now();
        let in_time = self.call.end();
        let next = self.start.plus(Duration::from_secs(1));
        self.call.begin(1..2, next, |due| self.appoint(due));
        in_time
    }

    /// The time of the first call is up; true if it was taken away.
    fn look(&self) -> bool {
        loom::thread::yield_now();
        let late = self.call.look(self.start.plus(LIMIT), |due| self.appoint(due));
        late.is_some_and(|late| late.part == (0..1))
    }

    fn check(&self, counts: bool, taken_away: bool) {
        assert!(!(counts && taken_away), "a call that was taken away counts");
        assert!(counts || taken_away, "a call has no end");
        // Those that were kept are over, so this is one for the call that hangs.
        let appointment = self.call.retire();
        let due = appointment.map(|appointment| appointment.due());
        let up = self.start.plus(LIMIT);
        assert!(due.is_some_and(|due| due > up), "nobody comes to look at a call that hangs");
    }
}

#[test]
fn timed_call() {
    for mirrored in ORDERS {
        let seen = explore(3, move || {
            let worker = Worker::new();
            let [counts, taken_away] = race(mirrored, &worker, [Worker::go_on, Worker::look]);
            worker.check(counts, taken_away);
            counts
        });
        assert_eq!(seen, BTreeSet::from([false, true]));
    }
}
