//! The gate of a paused consumer: pull requests come while it is closed and opened.
//!
//! A request that finds it closed waits inside; whoever opens it sends on what has waited. So a
//! request is never lost, and never there twice, whenever the consumer is paused and resumed.
//!
//! Planted bugs: broken_gate_opened_twice
//! Fails with: a pull request is lost

use super::{ORDERS, explore, race};
use crate::consumer::pause_gate::PauseGate;
use crate::sync::{Arc, Mutex, Rank};
use std::collections::BTreeSet;

struct Consumer {
    gate: PauseGate<u32>,
    passed: Mutex<Vec<u32>>,
}

impl Consumer {
    fn new(paused: bool) -> Arc<Self> {
        let gate = PauseGate::new();
        if paused {
            gate.close();
        }
        Arc::new(Self { gate, passed: Mutex::new(Rank::ProcessQueue, Vec::new()) })
    }

    /// One turn; true if the request was kept.
    fn pull(&self) -> bool {
        match self.gate.pass(1, |_| false) {
            Some(request) => {
                self.passed.lock().push(request);
                false
            }
            None => true,
        }
    }

    fn pause(&self) -> bool {
        self.gate.close();
        false
    }

    fn resume(&self) -> bool {
        let waited = self.gate.open();
        let any = !waited.is_empty();
        self.passed.lock().extend(waited);
        any
    }

    fn check(&self) {
        self.resume();
        assert_eq!(*self.passed.lock(), [1], "a pull request is lost");
    }
}

#[test]
fn pause_gate() {
    for mirrored in ORDERS {
        let seen = explore(3, move || {
            let consumer = Consumer::new(true);
            let [kept, sent_on] = race(mirrored, &consumer, [Consumer::pull, Consumer::resume]);
            consumer.check();
            (kept, sent_on)
        });
        assert_eq!(seen, BTreeSet::from([(false, false), (true, true)]));
    }
}

#[test]
fn pause_gate_that_is_closed_meanwhile() {
    for mirrored in ORDERS {
        let seen = explore(3, move || {
            let consumer = Consumer::new(false);
            let threads = [Consumer::pull, Consumer::pause, Consumer::resume];
            let [kept, _, sent_on] = race(mirrored, &consumer, threads);
            consumer.check();
            (kept, sent_on)
        });
        assert_eq!(seen, BTreeSet::from([(false, false), (true, false), (true, true)]));
    }
}
