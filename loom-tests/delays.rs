//! Messages that wait to be due: sent, delivered, cancelled, carried forward, and saved with a
//! checkpoint, all at once.
//!
//! Each wait ends with exactly one record, whoever comes first; the one who delivers sleeps, and
//! misses no message; and what a checkpoint says of its position is what the log says below it.
//!
//! Planted bugs: broken_wait_ended_twice, broken_wait_silent, broken_wait_begun_late
//! Planted bugs: broken_capture_early
//! Fails with: a wait has ended twice
//! Fails with: deadlock; threads =
//! Fails with: a checkpoint differs from the log

use super::fixture::{Log, STORE, TARGET, outline};
use super::{ORDERS, explore, race};
use crate::clock::Clock;
use crate::store::Appended;
use crate::store::model::{
    Copy, Delays, Draft, DueAt, HEAD, Kind, KnownDelays, Now, Outline, Pending, Refusal, Source,
    Ticket,
};
use crate::sync::{Alarm, Arc, Mutex, Rank};
use std::collections::BTreeSet;

/// What is due, is due now.
const DUE: DueAt = DueAt { ms: 0, instant: false };
const NOW: Now = Now { wall_ms: 0, steady_ms: 0 };
const RECORD: usize = 72;

struct Scene {
    log: Log,
    delays: Delays,
    /// What the last checkpoint has said: its position, and what waits.
    saved: Mutex<(u64, Vec<u64>)>,
    /// Rung when a wait has been ended by delivery.
    delivered: Alarm,
    /// Nobody sends any more, and nothing waits.
    ended: Mutex<bool>,
}

impl Scene {
    /// With one message that waits.
    fn new() -> Arc<Self> {
        let delays = Delays::new(&Clock::system(), &KnownDelays::default());
        let saved = Mutex::new(Rank::Lifecycle, (0, Vec::new()));
        let ended = Mutex::new(Rank::Timer, false);
        let scene = Self {
            log: Log::new(HEAD + 8 * RECORD),
            delays,
            saved,
            ended,
            delivered: Alarm::new(),
        };
        scene.send();
        Arc::new(scene)
    }

    fn append(&self, kind: Kind, origin: u64) -> Result<Appended, Refusal> {
        let outline = match kind {
            Kind::Done => Outline::new(STORE, kind, 1, "t"),
            _ => outline(),
        };
        let properties = Source::Encoded(&[]);
        let message = Pending { tag_hash: 0, born_ms: None, properties, body: b"message" };
        let mut drafts = [Draft::blank(&outline)];
        drafts[0].fill_copy(&outline, kind, 0, &Copy { message, reconsumed: 0, origin });
        let target = if kind == Kind::Message { Some(TARGET) } else { None };
        self.log.log.append(target, &mut drafts, 0)
    }

    fn send(&self) -> bool {
        self.delays.begin((DUE, 0), || self.append(Kind::Delayed, 0)).unwrap();
        true
    }

    /// Ends a wait; false if somebody else has.
    fn end(&self, ticket: &Ticket, kind: Kind) -> bool {
        self.delays
            .end(ticket, RECORD as u64, || self.append(kind, ticket.position))
            .unwrap()
            .is_some()
    }

    /// Cancels the first message, if it waits.
    fn cancel(&self) -> bool {
        let ticket = self.delays.lock().find(HEAD as u64, DUE);
        ticket.is_some_and(|ticket| self.end(&ticket, Kind::Done))
    }

    /// Carries the first message forward, if it waits.
    fn carry(&self) -> bool {
        let ticket = self.delays.lock().find(HEAD as u64, DUE);
        ticket.is_some_and(|ticket| {
            let again = || self.append(Kind::Delayed, ticket.position);
            self.delays.relocate(&ticket, RECORD as u64, again).unwrap().is_some()
        })
    }

    /// Takes what is due to its queue, until it is told to end.
    fn deliver(&self) {
        loop {
            let next = self.delays.lock().next(NOW);
            match next {
                Some((_, ticket)) => {
                    self.end(&ticket, Kind::Message);
                    self.delivered.ring();
                }
                None if *self.ended.lock() => return,
                None => _ = self.delays.alarm().wait(&Clock::system(), None),
            }
        }
    }

    fn checkpoint(&self) -> bool {
        let (position, waiting) = self.delays.capture(
            |schedule| schedule.all().map(|ticket| ticket.position).collect::<Vec<_>>(),
            || self.log.log.committed(),
        );
        *self.saved.lock() = (position, waiting);
        true
    }

    /// Runs two threads beside the one that delivers.
    fn beside_delivery(
        self: &Arc<Self>,
        mirrored: bool,
        threads: [fn(&Self) -> bool; 2],
    ) -> [bool; 2] {
        let delivery = {
            let scene = self.clone();
            loom::thread::spawn(move || scene.deliver())
        };
        let results = race(mirrored, self, threads);
        // Nobody else wakes the one that delivers.
        while self.delays.lock().len() > 0 {
            self.delivered.wait(&Clock::system(), None);
        }
        *self.ended.lock() = true;
        self.delays.alarm().ring();
        delivery.join().unwrap();
        results
    }

    /// Position, kind and origin of every record below a position.
    fn records(&self, end: u64) -> Vec<(u64, Kind, u64)> {
        let mut records = Vec::new();
        let end = end.min(self.log.log.committed());
        let visited = self.log.log.visit(HEAD as u64..end, |record| {
            records.push((record.position(), record.kind(), record.origin()));
            true
        });
        visited.unwrap();
        records
    }

    /// Whether each wait has one end, and the checkpoint says what the log says.
    fn check(&self) {
        let all = self.records(u64::MAX);
        for (position, ..) in all.iter().filter(|(_, kind, _)| *kind == Kind::Delayed) {
            let ends = all.iter().filter(|(.., origin)| origin == position).count();
            assert!(ends < 2, "a wait has ended twice");
            assert_eq!(ends, 1, "a wait has not ended");
        }
        let (position, saved) = &*self.saved.lock();
        let below = self.records(*position);
        let waits = |at: u64| below.iter().all(|(.., origin)| *origin != at);
        let begun = below.iter().filter(|(_, kind, _)| *kind == Kind::Delayed);
        let expected: BTreeSet<u64> = begun.map(|(at, ..)| *at).filter(|at| waits(*at)).collect();
        let saved: BTreeSet<u64> = saved.iter().copied().collect();
        assert_eq!(saved, expected, "a checkpoint differs from the log");
    }
}

#[test]
fn a_wait_ends_once_and_none_is_missed() {
    for mirrored in ORDERS {
        let seen = explore(2, move || {
            let scene = Scene::new();
            let [_, cancelled] = scene.beside_delivery(mirrored, [Scene::send, Scene::cancel]);
            scene.check();
            cancelled
        });
        assert_eq!(seen, BTreeSet::from([false, true]));
    }
}

#[test]
fn a_wait_that_is_carried_forward_ends_once_and_goes_on() {
    for mirrored in ORDERS {
        let seen = explore(2, move || {
            let scene = Scene::new();
            let results = scene.beside_delivery(mirrored, [Scene::carry, Scene::cancel]);
            scene.check();
            results
        });
        let all = [[false, false], [true, false], [false, true]];
        assert_eq!(seen, BTreeSet::from(all));
    }
}

#[test]
fn a_checkpoint_sees_the_record_and_what_it_did() {
    for mirrored in ORDERS {
        let seen = explore(2, move || {
            let scene = Scene::new();
            scene.beside_delivery(mirrored, [Scene::send, Scene::checkpoint]);
            scene.check();
            scene.saved.lock().1.len()
        });
        assert_eq!(seen, BTreeSet::from([0, 1, 2]));
    }
}
