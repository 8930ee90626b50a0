//! Sends that do not lead their flush: they want it, and await it later; the flusher leads for them.
//!
//! The flusher sleeps unless it is rung: by the first want, and by whoever ends a flush that left a
//! want open. So no handle waits for ever, beside senders that lead [B-163], when the store is
//! poisoned, or when it is closed; and a handle that was told of a failure is never durable later.
//! A close ends the flush in progress before it gives the files away.
//!
//! Planted bugs: broken_want_silent, broken_want_left, broken_fail_silent, broken_shut_early
//! Fails with: deadlock; threads =
//! Fails with: a file is synced after the close

use super::{ORDERS, explore, race};
use crate::clock::Clock;
use crate::error::Result;
use crate::store::model::FlushGate;
use crate::sync::{Arc, Mutex, Rank};
use std::collections::BTreeSet;

struct Log {
    gate: FlushGate,
    disk: Mutex<Disk>,
}

#[derive(Default)]
struct Disk {
    committed: u64,
    durable: u64,
    syncs: u64,
    /// The files belong to somebody else.
    closed: bool,
    /// The flusher is to end.
    ended: bool,
}

impl Log {
    fn new() -> Arc<Self> {
        let disk = Mutex::new(Rank::Append, Disk::default());
        Arc::new(Self { gate: FlushGate::new(Clock::system(), 0), disk })
    }

    fn append(&self) -> u64 {
        let mut disk = self.disk.lock();
        disk.committed += 1;
        disk.committed
    }

    /// Sends with a handle and waits for it: whether it became durable.
    fn send_pending(&self) -> bool {
        let target = self.append();
        self.gate.want(target);
        let awaited = self.gate.await_durable(target, None);
        self.check(target, awaited.is_ok())
    }

    /// Sends, and leads a flush if nobody else does.
    fn send(&self) -> bool {
        let target = self.append();
        let flushed = self.lead(target);
        self.check(target, flushed)
    }

    fn lead(&self, target: u64) -> bool {
        let committed = || self.disk.lock().committed;
        self.gate.wait(target, committed, |_, to| self.sync(to)).is_ok()
    }

    fn check(&self, target: u64, told: bool) -> bool {
        let durable = self.disk.lock().durable >= target;
        assert_eq!(told, durable, "what a sender was told is not so");
        told
    }

    fn sync(&self, to: u64) -> Result<()> {
        let check = |disk: &Disk| assert!(!disk.closed, "a file is synced after the close");
        let mut disk = self.disk.lock();
        check(&disk);
        disk.syncs += 1;
        drop(disk);
        loom::thread::yield_now();
        let mut disk = self.disk.lock();
        check(&disk);
        disk.durable = to;
        Ok(())
    }

    /// The flusher, until it is told to end.
    fn flush(&self) -> bool {
        loop {
            self.gate.flusher.wait(&Clock::system(), None);
            if let Some(target) = self.gate.open_want() {
                self.lead(target);
            }
            if self.disk.lock().ended {
                return false;
            }
        }
    }

    fn poison(&self) -> bool {
        self.gate.fail("planted");
        false
    }

    /// Closes a store that is poisoned: there is no last flush.
    fn close(&self) -> bool {
        self.gate.shut("closed");
        self.disk.lock().closed = true;
        false
    }

    fn syncs(&self) -> u64 {
        self.disk.lock().syncs
    }

    fn end_flusher(&self) {
        self.disk.lock().ended = true;
        self.gate.flusher.ring();
    }
}

/// Runs two threads beside a flusher.
fn beside_flusher(mirrored: bool, log: &Arc<Log>, threads: [fn(&Log) -> bool; 2]) -> [bool; 2] {
    let flusher = {
        let log = log.clone();
        loom::thread::spawn(move || log.flush())
    };
    let told = race(mirrored, log, threads);
    log.end_flusher();
    flusher.join().unwrap();
    told
}

#[test]
fn handles_beside_the_flusher() {
    for mirrored in ORDERS {
        let seen = explore(2, move || {
            let log = Log::new();
            let told = beside_flusher(mirrored, &log, [Log::send_pending, Log::send_pending]);
            assert_eq!(told, [true; 2]);
            log.syncs()
        });
        assert_eq!(seen, BTreeSet::from([1, 2]));
    }
}

#[test]
fn a_handle_beside_a_sender_that_leads() {
    for mirrored in ORDERS {
        let seen = explore(2, move || {
            let log = Log::new();
            let told = beside_flusher(mirrored, &log, [Log::send_pending, Log::send]);
            assert_eq!(told, [true; 2]);
            log.syncs()
        });
        assert_eq!(seen, BTreeSet::from([1, 2]));
    }
}

#[test]
fn waiters_beside_poison() {
    for mirrored in ORDERS {
        let seen = explore(2, move || {
            let log = Log::new();
            // Nobody flushes but the one that leads: the handle is told by him or by the poison.
            let threads = [Log::send_pending, Log::send, Log::poison];
            let [handle, leader, _] = race(mirrored, &log, threads);
            (handle, leader)
        });
        let all = [(false, false), (false, true), (true, true)];
        assert_eq!(seen, BTreeSet::from(all), "the leader is covered whenever the handle is");
    }
}

#[test]
fn waiters_beside_a_close() {
    for mirrored in ORDERS {
        let seen = explore(2, move || {
            let log = Log::new();
            let threads = [Log::send_pending, Log::send, Log::close];
            let [handle, leader, _] = race(mirrored, &log, threads);
            (handle, leader)
        });
        let all = [(false, false), (false, true), (true, true)];
        assert_eq!(seen, BTreeSet::from(all));
    }
}
