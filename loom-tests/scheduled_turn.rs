//! The gate of a scheduled queue: a call of the callback against the loss of the queue.
//!
//! The queue is given back exactly once: by whoever takes it away if no call is going on, else by
//! the worker that is in it. Once it is given back no call is inside, and none begins.
//!
//! Planted bugs: broken_turn_torn, broken_turn_of_a_lost_queue
//! Fails with: nobody gives the queue back
//! Fails with: a call for a lost queue
//! Fails with: given back twice

use super::{ORDERS, explore, race};
use crate::consumer::schedule::turn_gate::TurnGate;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicBool, Ordering};
use std::collections::BTreeSet;

struct Queue {
    gate: TurnGate,
    given_back: AtomicBool,
}

/// Whether a call has begun, and who has given the queue back.
type Did = (bool, bool);

impl Queue {
    fn take_turn(&self) -> Did {
        if !self.gate.begin() {
            return (false, false);
        }
        assert!(!self.given_back.load(Ordering::Acquire), "a call for a lost queue");
        self.gate.go_on(5);
        let given_back = self.gate.end().is_some_and(|next| {
            assert_eq!(next, 5);
            self.give_back();
            true
        });
        (true, given_back)
    }

    fn revoke(&self) -> Did {
        let given_back = self.gate.revoke().is_some();
        if given_back {
            self.give_back();
        }
        (false, given_back)
    }

    fn give_back(&self) {
        assert!(!self.given_back.swap(true, Ordering::AcqRel), "given back twice");
    }
}

#[test]
fn scheduled_turn() {
    for mirrored in ORDERS {
        let seen = explore(3, move || {
            let gate = TurnGate::new(0);
            let queue = Arc::new(Queue { gate, given_back: AtomicBool::new(false) });
            let [turn, lost] = race(mirrored, &queue, [Queue::take_turn, Queue::revoke]);
            assert!(turn.1 || lost.1, "nobody gives the queue back");
            (turn, lost.1)
        });
        let before = ((false, false), true);
        let (during, after) = (((true, true), false), ((true, false), true));
        assert_eq!(seen, BTreeSet::from([before, during, after]));
    }
}
