//! The hand-off of a pull request in order: the worker that reads a run keeps it until the run is
//! done with or given back, so that the queue is never with two.
//!
//! What is given back is read again, from its first message on. Others may look at the queue
//! meanwhile: a producer that tells late what it has passed while the request was held does not pass
//! what is to be read again. A queue that is revoked while a worker is inside goes on to the next
//! owner when that one is through, whether it has finished or given back.
//!
//! Planted bugs: broken_skip_again, broken_give_back_silent
//! Fails with: a message was passed that is to come again
//! Fails with: the queue was not handed on

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
}

enum Work {
    Pull(u64),
    Stop,
}

/// What the model watches; not part of the protocol, and not visible to loom.
#[derive(Default)]
struct Seen {
    inside: AtomicBool,
    committed: AtomicU64,
    drained: AtomicBool,
    skipped: AtomicBool,
    given_back: AtomicBool,
    consumed: Mutex<Vec<u64>>,
}

impl Seen {
    fn note(&self, progress: Progress) {
        if let Some(offset) = progress.commit {
            let consumed = self.consumed.lock().unwrap();
            let done = |message: u64| message >= offset || consumed.contains(&message);
            assert!(done(0) && done(2), "a message was passed that is to come again");
            self.committed.fetch_max(offset, Ordering::Relaxed);
        }
        if progress.drained {
            let twice = self.drained.swap(true, Ordering::Relaxed);
            assert!(!twice, "the queue was handed on twice");
        }
    }
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
        self.seen.note(self.window.skip_held(next));
    }

    fn wake(&self, next: u64) {
        self.work.send(Work::Pull(next));
    }
}

const WANTED: i32 = 1;
const UNWANTED: i32 = 2;

impl Consumer {
    fn new() -> Arc<Self> {
        let (work, received) = channel();
        let window = Arc::new(ProcessQueue::new(0));
        let seen = Arc::new(Seen::default());
        let waiter = Woken { work: work.clone(), window: window.clone(), seen: seen.clone() };
        let waiter = Arc::new(waiter);
        let log = Log::new(HEAD + 3 * RECORD);
        Arc::new(Self { log, hold: HoldTable::new(), window, waiter, work, received, seen })
    }

    /// One whose first message was delivered and is kept until a commit, with its request held.
    fn with_one_kept() -> Arc<Self> {
        let consumer = Self::new();
        consumer.log.append(b'a');
        let run = Arc::new(Run::new((), vec![Place { offset: 0, size: 1 }], 1));
        assert!(consumer.window.register(&run, 1) && run.claims().claim().is_some());
        assert_eq!(consumer.window.keep(1), Progress::default());
        consumer.park(1);
        consumer
    }

    fn park(&self, next: u64) {
        let queue = &self.log.queue;
        self.hold.park_unless(queue, next, &self.waiter, || self.log.log.exact_max(queue));
        if self.window.is_revoked() {
            self.hold.cancel(queue, &self.waiter);
        }
    }

    /// The second message of the log is not wanted, the others are.
    fn send(&self) {
        let appended = self.log.append(b'b');
        if appended.watched {
            let tag_hash = if appended.offset == 1 { UNWANTED } else { WANTED };
            let message = Arrival { tag_hash, position: appended.position };
            self.hold.arrived(&self.log.queue, appended.offset, std::iter::once(message));
        }
    }

    /// A worker whose listener rolls back once, and commits after that.
    fn work(&self) {
        while let Some(Work::Pull(next)) = self.received.recv() {
            self.pull(next);
        }
    }

    fn pull(&self, next: u64) {
        if self.window.is_revoked() {
            return;
        }
        let end = self.log.queue.max();
        if end <= next {
            return self.park(next);
        }
        let wanted = (next..end).filter(|offset| *offset != 1);
        let places: Vec<_> = wanted.map(|offset| Place { offset, size: 1 }).collect();
        if places.is_empty() {
            self.seen.note(self.window.skip(end));
            return self.work.send(Work::Pull(end));
        }
        let run = Arc::new(Run::new((), places, 1));
        if self.window.register(&run, end) {
            let next = self.consume(&run).unwrap_or(end);
            self.work.send(Work::Pull(next));
        }
    }

    /// Returns from where on messages were given back.
    fn consume(&self, run: &Run<()>) -> Option<u64> {
        while let Some(batch) = run.claims().claim() {
            let batch = &run.places()[batch];
            let two = self.seen.inside.swap(true, Ordering::Relaxed);
            assert!(!two, "two listeners in one queue");
            loom::thread::yield_now();
            self.seen.inside.store(false, Ordering::Relaxed);
            let offset = batch[0].offset;
            if offset == 2 && !self.seen.given_back.swap(true, Ordering::Relaxed) {
                let kept = [Place { offset: 0, size: 1 }];
                self.seen.note(self.window.give_back(&kept, run, batch));
                return Some(0);
            }
            self.seen.consumed.lock().unwrap().push(offset);
            self.seen.note(self.window.commit(&[], batch));
            if offset == 2 {
                self.work.send(Work::Stop);
            }
        }
        None
    }

    fn revoke(&self) {
        loom::thread::yield_now();
        self.seen.note(self.window.revoke());
        self.hold.cancel(&self.log.queue, &self.waiter);
        self.work.send(Work::Stop);
    }
}

#[test]
fn orderly_hand_off_of_what_is_given_back() {
    for mirrored in ORDERS {
        let seen = explore(2, move || {
            let consumer = Consumer::with_one_kept();
            race(mirrored, &consumer, [Consumer::work, Consumer::send, Consumer::send]);
            let seen = &consumer.seen;
            let consumed = seen.consumed.lock().unwrap();
            assert_eq!(*consumed, [0, 2], "a message was passed that is to come again");
            assert_eq!(seen.committed.load(Ordering::Relaxed), 3, "progress is missing");
            seen.skipped.load(Ordering::Relaxed)
        });
        assert_eq!(seen, BTreeSet::from([false, true]), "read past, and passed by");
    }
}

#[test]
fn orderly_hand_off_of_a_revoked_queue() {
    for mirrored in ORDERS {
        let seen = explore(2, move || {
            let consumer = Consumer::with_one_kept();
            consumer.log.append(b'b');
            race(mirrored, &consumer, [Consumer::work, Consumer::send, Consumer::revoke]);
            let seen = &consumer.seen;
            assert!(seen.drained.load(Ordering::Relaxed), "the queue was not handed on");
            let consumed = seen.consumed.lock().unwrap();
            let expected: &[u64] = &[0, 2][..consumed.len()];
            assert_eq!(*consumed, expected, "a message was passed that is to come again");
            assert_eq!(consumer.hold.len(), 0, "a revoked queue is left in the hold table");
            (seen.given_back.load(Ordering::Relaxed), consumed.len())
        });
        assert!(seen.contains(&(false, 0)) && seen.contains(&(true, 0)), "{seen:?}");
    }
}
