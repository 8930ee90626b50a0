//! The hand-off of a pull request: exactly one for a queue, in the channel, with a worker, or held.
//!
//! The worker that takes it reads; what it finds it registers, and hands the request back before it
//! works. At the end of the queue it parks the request in the hold table: it stands there before it
//! looks at the maximum again, so that either it sees a message or the message's producer finds it.
//! Both may: whoever takes it out of the table wakes it, the other does not, even if it has come back
//! to the table since. A queue that is revoked meanwhile leaves nothing in the table.
//!
//! Planted bugs: broken_park_blind, broken_watch_late, broken_wake_uncancelled, broken_wake_any_stay
//! Fails with: deadlock; threads =
//! Fails with: two pull requests for one queue
//! Fails with: the pull request is lost
//! Fails with: a message was consumed twice

use super::fixture::{Log, RECORD};
use super::{ORDERS, explore, race};
use crate::broker::hold::{Arrival, HoldTable, Waiter};
use crate::broker::process_queue::{ProcessQueue, Progress};
use crate::broker::run::{Place, Run};
use crate::store::model::HEAD;
use crate::sync::{Arc, Receiver, Sender, channel};
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

struct Consumer {
    log: Log,
    hold: HoldTable,
    window: Arc<ProcessQueue<()>>,
    waiter: Arc<dyn Waiter>,
    work: Sender<Work>,
    received: Receiver<Work>,
    seen: Arc<Seen>,
    plan: Plan,
}

/// What is sent, and to how many workers.
#[derive(Clone, Copy)]
struct Plan {
    workers: usize,
    messages: u64,
    /// The first message is not wanted.
    filtered: bool,
}

/// What the model watches; not part of the protocol, and not visible to loom.
#[derive(Default)]
struct Seen {
    pulling: AtomicBool,
    woken: AtomicBool,
    skipped: AtomicBool,
    committed: AtomicU64,
    consumed: Mutex<Vec<u64>>,
}

impl Seen {
    fn commit(&self, progress: Progress) {
        self.committed.fetch_max(progress.commit.unwrap_or(0), Ordering::Relaxed);
    }
}

enum Work {
    Pull(u64),
    Stop,
}

/// Waits for the next message of the queue.
struct Woken {
    work: Sender<Work>,
    window: Arc<ProcessQueue<()>>,
    seen: Arc<Seen>,
}

impl Waiter for Woken {
    fn wants(&self, message: Arrival) -> bool {
        message.tag_hash == WANTED
    }

    fn skipped(&self, _: u64, next: u64) {
        self.seen.skipped.store(true, Ordering::Relaxed);
        self.seen.commit(self.window.skip(next));
    }

    fn wake(&self, next: u64) {
        self.work.send(Work::Pull(next));
    }
}

const WANTED: i32 = 1;
const UNWANTED: i32 = 2;

impl Consumer {
    fn new(plan: Plan) -> Arc<Self> {
        let (work, received) = channel();
        work.send(Work::Pull(0));
        let window = Arc::new(ProcessQueue::new(0));
        let seen = Arc::new(Seen::default());
        let waiter = Woken { work: work.clone(), window: window.clone(), seen: seen.clone() };
        Arc::new(Self {
            log: Log::new(HEAD + 2 * RECORD),
            hold: HoldTable::new(),
            window,
            waiter: Arc::new(waiter),
            work,
            received,
            seen,
            plan,
        })
    }

    fn wanted(&self, offset: u64) -> bool {
        !self.plan.filtered || offset > 0
    }

    fn send(&self) {
        let appended = self.log.append(b'a');
        if appended.watched {
            self.seen.woken.store(true, Ordering::Relaxed);
            let tag_hash = if self.wanted(appended.offset) { WANTED } else { UNWANTED };
            let message = Arrival { tag_hash, position: appended.position };
            self.hold.arrived(&self.log.queue, appended.offset, std::iter::once(message));
        }
    }

    fn work(&self) {
        while let Some(Work::Pull(next)) = self.received.recv() {
            let twice = self.seen.pulling.swap(true, Ordering::Relaxed);
            assert!(!twice, "two pull requests for one queue");
            self.pull(next);
        }
    }

    /// One turn of the pull request; it is with this worker until `handed_on`.
    fn pull(&self, next: u64) {
        let handed_on = || self.seen.pulling.store(false, Ordering::Relaxed);
        if self.window.is_revoked() {
            return handed_on();
        }
        let queue = &self.log.queue;
        let end = queue.max();
        if end == next {
            handed_on();
            self.hold.park_unless(queue, next, &self.waiter, || self.log.log.exact_max(queue));
            if self.window.is_revoked() {
                self.hold.cancel(queue, &self.waiter);
            }
            return;
        }
        let places: Vec<_> = (next..end)
            .filter(|offset| self.wanted(*offset))
            .map(|offset| Place { offset, size: 1 })
            .collect();
        if places.is_empty() {
            self.seen.commit(self.window.skip(end));
            handed_on();
            return self.work.send(Work::Pull(end));
        }
        let run = Arc::new(Run::new((), places, 1));
        let registered = self.window.register(&run, end);
        handed_on();
        if registered {
            self.work.send(Work::Pull(end));
            self.consume(&run);
        }
    }

    fn consume(&self, run: &Run<()>) {
        while let Some(batch) = run.claims().claim() {
            for Place { offset, size } in &run.places()[batch] {
                self.seen.consumed.lock().unwrap().push(*offset);
                self.seen.commit(self.window.finish(*offset, *size));
            }
        }
        let wanted = self.plan.messages - u64::from(self.plan.filtered);
        if self.seen.consumed.lock().unwrap().len() as u64 == wanted {
            (0..self.plan.workers).for_each(|_| self.work.send(Work::Stop));
        }
    }

    fn revoke(&self) {
        loom::thread::yield_now();
        self.window.revoke();
        self.hold.cancel(&self.log.queue, &self.waiter);
        self.work.send(Work::Stop);
    }

    /// Whether the request is held when all is done.
    fn held(&self) -> bool {
        let consumed = self.seen.consumed.lock().unwrap();
        let once: BTreeSet<_> = consumed.iter().collect();
        assert_eq!(once.len(), consumed.len(), "a message was consumed twice");
        assert!(self.hold.len() <= 1, "two pull requests for one queue");
        self.hold.len() == 1
    }

    fn check(&self) -> (bool, bool) {
        assert!(self.held(), "the pull request is lost");
        let committed = self.seen.committed.load(Ordering::Relaxed);
        assert_eq!(committed, self.plan.messages, "progress is missing");
        (self.seen.woken.load(Ordering::Relaxed), self.seen.skipped.load(Ordering::Relaxed))
    }
}

// (PULL-1, HOLD-7)
#[test]
fn pull_request_handoff() {
    let plan = Plan { workers: 2, messages: 1, filtered: false };
    for mirrored in ORDERS {
        let seen = explore(2, move || {
            let consumer = Consumer::new(plan);
            race(mirrored, &consumer, [Consumer::work, Consumer::work, Consumer::send]);
            consumer.check()
        });
        assert_eq!(seen, BTreeSet::from([(false, false), (true, false)]), "found, and woken");
    }
}

#[test]
fn pull_request_handoff_with_two_producers() {
    let plan = Plan { workers: 1, messages: 2, filtered: false };
    for mirrored in ORDERS {
        let seen = explore(2, move || {
            let consumer = Consumer::new(plan);
            race(mirrored, &consumer, [Consumer::work, Consumer::send, Consumer::send]);
            consumer.check()
        });
        assert_eq!(seen, BTreeSet::from([(false, false), (true, false)]), "found, and woken");
    }
}

#[test]
fn pull_request_handoff_past_an_unwanted_message() {
    let plan = Plan { workers: 1, messages: 2, filtered: true };
    for mirrored in ORDERS {
        let seen = explore(2, move || {
            let consumer = Consumer::new(plan);
            race(mirrored, &consumer, [Consumer::work, Consumer::send, Consumer::send]);
            consumer.check()
        });
        let expected = [(false, false), (true, false), (true, true)];
        assert_eq!(seen, BTreeSet::from(expected), "found, woken, and passed by");
    }
}

#[test]
fn pull_request_handoff_of_a_revoked_queue() {
    // More messages than are sent: the revocation alone ends the worker.
    let plan = Plan { workers: 1, messages: 2, filtered: false };
    for mirrored in ORDERS {
        let seen = explore(2, move || {
            let consumer = Consumer::new(plan);
            race(mirrored, &consumer, [Consumer::work, Consumer::send, Consumer::revoke]);
            assert!(!consumer.held(), "a revoked queue is left in the hold table");
            let seen = &consumer.seen;
            (seen.woken.load(Ordering::Relaxed), seen.committed.load(Ordering::Relaxed))
        });
        assert!(seen.contains(&(true, 1)) && seen.contains(&(false, 0)), "{seen:?}");
    }
}
