//! A queue that is taken over while a listener is inside: a revoked queue waits for what is in
//! flight, and at some time no longer.
//!
//! Either the last worker drains it or the timer gives it up, never both: so the next owner begins
//! once. What is finished after that counts no more, even if it is what the queue waited for.
//!
//! Planted bugs: broken_late_progress
//! Fails with: a late result counts

use super::{ORDERS, explore, race};
use crate::broker::process_queue::{ProcessQueue, Progress};
use crate::broker::run::{Place, Run};
use crate::sync::{Arc, Mutex, Rank};
use std::collections::BTreeSet;

struct Queue {
    window: ProcessQueue<()>,
    group: Mutex<Group>,
}

#[derive(Default)]
struct Group {
    committed: u64,
    /// Where the next owner begins.
    begun: Option<u64>,
}

impl Queue {
    /// Two messages, both in flight.
    fn new() -> Arc<Self> {
        let window = ProcessQueue::new(0);
        let places = (0..2).map(|offset| Place { offset, size: 10 }).collect();
        let run = Arc::new(Run::new((), places, 1));
        assert!(window.register(&run, 2));
        while run.claims().claim().is_some() {}
        Arc::new(Self { window, group: Mutex::new(Rank::OffsetStore, Group::default()) })
    }

    fn finish_first(&self) -> bool {
        self.progress(self.window.finish(0, 10))
    }

    fn finish_second(&self) -> bool {
        self.progress(self.window.finish(1, 10))
    }

    /// A rebalance, and the end of patience.
    fn revoke_and_give_up(&self) -> bool {
        self.progress(self.window.revoke());
        let given_up = self.window.abandon();
        if given_up {
            self.begin(self.window.low());
        }
        given_up
    }

    fn progress(&self, progress: Progress) -> bool {
        if let Some(offset) = progress.commit {
            let mut group = self.group.lock();
            group.committed = group.committed.max(offset);
        }
        if progress.drained {
            self.begin(self.window.low());
        }
        progress.drained
    }

    fn begin(&self, offset: u64) {
        let begun = self.group.lock().begun.replace(offset);
        assert_eq!(begun, None, "two owners begin");
    }

    /// Where the next owner began.
    fn check(&self) -> u64 {
        let group = self.group.lock();
        let begun = group.begun.expect("nobody begins");
        assert!(group.committed <= begun, "a late result counts");
        assert_eq!(self.window.low(), begun, "a late result counts");
        begun
    }
}

#[test]
fn hand_over_of_a_queue_that_is_given_up() {
    for mirrored in ORDERS {
        let seen = explore(3, move || {
            let queue = Queue::new();
            let threads = [Queue::finish_first, Queue::finish_second, Queue::revoke_and_give_up];
            let [_, _, given_up] = race(mirrored, &queue, threads);
            (queue.check(), given_up)
        });
        assert_eq!(seen, BTreeSet::from([(0, true), (1, true), (2, false)]));
    }
}
