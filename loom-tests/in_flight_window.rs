//! The in-flight window: workers finish messages while the queue is revoked.
//!
//! What is claimed is finished and committed, the rest is left to the next owner, who begins
//! exactly once, after the last piece of work, at the lowest offset that is not consumed: nothing
//! is lost, and nothing that was consumed is delivered again. Every piece of progress is committed
//! outside the lock of the window, by whoever made it, so a commit may come late.
//!
//! Planted bugs: broken_register_revoked, broken_drained_silent
//! Fails with: delivered by two owners
//! Fails with: the queue was released twice
//! Fails with: the next owner begins elsewhere

use super::{ORDERS, explore, race};
use crate::broker::process_queue::{ProcessQueue, Progress};
use crate::broker::run::{Place, Run};
use crate::sync::{Arc, Mutex, Rank};
use std::collections::BTreeSet;

struct Queue {
    window: ProcessQueue<()>,
    run: Arc<Run<()>>,
    /// The offset whose listener fails.
    fails: Option<u64>,
    group: Mutex<Group>,
}

#[derive(Default)]
struct Group {
    committed: u64,
    consumed: BTreeSet<u64>,
    /// Where the next owner begins.
    begun: Option<u64>,
}

impl Queue {
    /// A window with a run of two messages that is not registered yet.
    fn new(fails: Option<u64>) -> Arc<Self> {
        let places = (0..2).map(|offset| Place { offset, size: 10 }).collect();
        Arc::new(Self {
            window: ProcessQueue::new(0),
            run: Arc::new(Run::new((), places, 1)),
            fails,
            group: Mutex::new(Rank::OffsetStore, Group::default()),
        })
    }

    fn registered(fails: Option<u64>) -> Arc<Self> {
        let queue = Self::new(fails);
        assert!(queue.window.register(&queue.run, 2));
        queue
    }

    fn work(&self) {
        while let Some(batch) = self.run.claims().claim() {
            for Place { offset, size } in &self.run.places()[batch] {
                self.progress(if self.consume(*offset) {
                    self.window.finish(*offset, *size)
                } else {
                    self.window.wait_for_retry()
                });
            }
        }
    }

    fn consume(&self, offset: u64) -> bool {
        let mut group = self.group.lock();
        assert_eq!(group.begun, None, "delivered by two owners");
        self.fails != Some(offset) && group.consumed.insert(offset)
    }

    fn register_and_work(&self) {
        if self.window.register(&self.run, 2) {
            self.work();
        }
    }

    fn revoke(&self) {
        self.progress(self.window.revoke());
    }

    fn progress(&self, progress: Progress) {
        if let Some(offset) = progress.commit {
            let mut group = self.group.lock();
            group.committed = group.committed.max(offset);
        }
        if progress.drained {
            let mut group = self.group.lock();
            assert_eq!(group.begun, None, "the queue was released twice");
            group.begun = Some(group.committed);
        }
    }

    /// How many were consumed before the next owner began.
    fn check(&self) -> usize {
        let group = self.group.lock();
        let first_left = (0..).find(|offset| !group.consumed.contains(offset));
        assert_eq!(group.begun, first_left, "the next owner begins elsewhere");
        group.consumed.len()
    }
}

#[test]
fn in_flight_window() {
    for mirrored in ORDERS {
        let seen = explore(3, move || {
            let queue = Queue::registered(None);
            race(mirrored, &queue, [Queue::work, Queue::work, Queue::revoke]);
            queue.check()
        });
        assert_eq!(seen, BTreeSet::from([0, 1, 2]));
    }
}

#[test]
fn in_flight_window_with_a_failed_message() {
    for mirrored in ORDERS {
        let seen = explore(3, move || {
            let queue = Queue::registered(Some(1));
            race(mirrored, &queue, [Queue::work, Queue::work, Queue::revoke]);
            queue.check()
        });
        assert_eq!(seen, BTreeSet::from([0, 1]));
    }
}

#[test]
fn in_flight_window_that_is_registered_late() {
    for mirrored in ORDERS {
        let seen = explore(4, move || {
            let queue = Queue::new(None);
            race(mirrored, &queue, [Queue::register_and_work, Queue::revoke]);
            queue.check()
        });
        assert_eq!(seen, BTreeSet::from([0, 1, 2]));
    }
}
