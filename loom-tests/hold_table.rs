//! The hold table with several waiters on one queue: a message wakes all of them, and one that gives
//! up at that moment takes nothing from the other.
//!
//! Whoever gives up has either been woken or takes himself out, never both. Afterwards nobody is
//! watched for, so that producers pass by the table again. Each waiter belongs to another group: a
//! message is for all of them, so a notification need not be passed on.
//!
//! Planted bugs: broken_wake_one, broken_cancel_unwatches
//! Fails with: deadlock; threads =
//! Fails with: a watcher is left behind

use super::fixture::{Log, RECORD};
use super::{ORDERS, explore, race};
use crate::broker::hold::{Arrival, HoldTable, Waiter};
use crate::clock::Clock;
use crate::store::model::HEAD;
use crate::sync::{Alarm, Arc};
use std::sync::atomic::{AtomicUsize, Ordering};

struct Queue {
    log: Log,
    hold: HoldTable,
    sleeper: Arc<Sleeper>,
    quitter: Arc<Sleeper>,
    clock: Clock,
}

struct Sleeper {
    alarm: Alarm,
    woken: AtomicUsize,
}

impl Waiter for Sleeper {
    fn wants(&self, _: Arrival) -> bool {
        true
    }

    fn skipped(&self, _: u64, _: u64) {
        unreachable!("everything is wanted");
    }

    fn wake(&self, next: u64) {
        assert_eq!(next, 0);
        self.woken.fetch_add(1, Ordering::Relaxed);
        self.alarm.ring();
    }
}

impl Queue {
    fn new() -> Arc<Self> {
        let sleeper = || Arc::new(Sleeper { alarm: Alarm::new(), woken: AtomicUsize::new(0) });
        Arc::new(Self {
            log: Log::new(HEAD + 2 * RECORD),
            hold: HoldTable::new(),
            sleeper: sleeper(),
            quitter: sleeper(),
            clock: Clock::system(),
        })
    }

    fn send(&self) -> &'static str {
        let appended = self.log.append(b'a');
        if !appended.watched {
            return "silent";
        }
        let message = Arrival { tag_hash: 0, position: appended.position };
        self.hold.arrived(&self.log.queue, appended.offset, std::iter::once(message));
        "told"
    }

    /// Sleeps until there is a message.
    fn sleep(&self) -> &'static str {
        self.park(&self.sleeper);
        self.sleeper.alarm.wait(&self.clock, None);
        assert_eq!(self.log.queue.max(), 1, "woken for nothing");
        "woken"
    }

    /// Does not wait at all.
    fn give_up(&self) -> &'static str {
        let waiter = self.park(&self.quitter);
        if self.hold.cancel(&self.log.queue, &waiter) { "gave up" } else { "woken" }
    }

    fn park(&self, sleeper: &Arc<Sleeper>) -> Arc<dyn Waiter> {
        let (queue, waiter) = (&self.log.queue, sleeper.clone() as Arc<dyn Waiter>);
        self.hold.park_unless(queue, 0, &waiter, || self.log.log.exact_max(queue));
        waiter
    }

    fn check(&self, given_up: &str) {
        assert_eq!(self.hold.len(), 0, "a waiter is left behind");
        assert!(!self.log.append(b'b').watched, "a watcher is left behind");
        let woken = |sleeper: &Sleeper| sleeper.woken.load(Ordering::Relaxed);
        assert_eq!(woken(&self.sleeper), 1, "woken more than once");
        assert_eq!(woken(&self.quitter), usize::from(given_up == "woken"), "woken, or not");
    }
}

// (HOLD-4, HOLD-7)
#[test]
fn hold_table_b_167_a_waiter_that_gives_up_takes_no_wake_up_from_another() {
    for mirrored in ORDERS {
        let seen = explore(2, move || {
            let queue = Queue::new();
            let threads = [Queue::send, Queue::sleep, Queue::give_up];
            let [told, _, given_up] = race(mirrored, &queue, threads);
            queue.check(given_up);
            (told, given_up)
        });
        let expected =
            [("silent", "woken"), ("told", "gave up"), ("told", "woken"), ("silent", "gave up")];
        assert_eq!(seen, expected.into());
    }
}
