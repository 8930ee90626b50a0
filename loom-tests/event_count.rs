//! The event count: whoever finds a queue empty sleeps, and the next append wakes him.
//!
//! A waiter announces himself (read-modify-write), looks at the exact maximum under the append
//! lock, and parks. A producer reads the announcements inside its critical section, so that either
//! the waiter sees the message or the append sees the waiter, and notifies after it. The signal
//! counts notifications: one that comes between the look and the park is not lost.
//!
//! Planted bugs: broken_exact_max_unlocked, broken_signal_blind, broken_watch_store
//! Fails with: deadlock; threads =

use super::fixture::{Log, RECORD};
use super::{ORDERS, explore, race};
use crate::clock::Clock;
use crate::store::model::HEAD;
use crate::sync::{Arc, Signal};
use std::collections::BTreeSet;

struct Queue {
    log: Log,
    arrived: Signal,
    clock: Clock,
}

impl Queue {
    fn new() -> Arc<Self> {
        let log = Log::new(HEAD + 2 * RECORD);
        Arc::new(Self { log, arrived: Signal::new(), clock: Clock::system() })
    }

    fn send(&self) -> &'static str {
        if self.log.append(b'a').watched {
            self.arrived.notify();
            return "woke";
        }
        "silent"
    }

    fn wait_for_one(&self) -> &'static str {
        self.wait_for(1)
    }

    fn wait_for_two(&self) -> &'static str {
        self.wait_for(2)
    }

    /// Sleeps until there are `messages`; tells whether it had to.
    fn wait_for(&self, messages: u64) -> &'static str {
        loom::thread::yield_now();
        self.log.queue.watch();
        let mut looks = 0;
        self.arrived.wait_until(&self.clock, None, || {
            looks += 1;
            self.log.log.exact_max(&self.log.queue) >= messages
        });
        self.log.queue.unwatch();
        assert_eq!(self.log.fetch().len() as u64, messages, "a waiter woke to no message");
        if looks > 1 { "slept" } else { "stayed awake" }
    }

    /// Announces himself, and gives up.
    fn give_up(&self) -> &'static str {
        self.log.queue.watch();
        self.log.queue.unwatch();
        ""
    }
}

#[test]
fn event_count() {
    for mirrored in ORDERS {
        let seen =
            explore(3, move || race(mirrored, &Queue::new(), [Queue::send, Queue::wait_for_one]));
        let expected = [["silent", "stayed awake"], ["woke", "stayed awake"], ["woke", "slept"]];
        assert_eq!(seen, BTreeSet::from(expected));
    }
}

#[test]
fn event_count_with_one_who_gives_up() {
    for mirrored in ORDERS {
        let seen = explore(2, move || {
            race(mirrored, &Queue::new(), [Queue::send, Queue::wait_for_one, Queue::give_up])
        });
        assert!(seen.iter().any(|[_, waiter, _]| *waiter == "slept"));
    }
}

#[test]
fn event_count_with_two_producers() {
    for mirrored in ORDERS {
        let seen = explore(2, move || {
            race(mirrored, &Queue::new(), [Queue::send, Queue::send, Queue::wait_for_two])
        });
        assert!(seen.contains(&["woke", "woke", "slept"]));
        assert!(seen.contains(&["silent", "silent", "stayed awake"]));
    }
}
