//! Group commit: whoever waits for a position to be durable leads a sync for all, or waits for one.
//!
//! A wait that returns is covered by a sync that began after its commit, two syncs never run at the
//! same time, leave no gap and have something to do, no waiter sleeps for ever [B-163], and a sync that failed fails
//! everybody who is not covered, now and later, and is not tried again.
//!
//! Planted bugs: broken_flush_silent, broken_flush_end_late, broken_flush_retry, broken_flush_twice
//! Fails with: deadlock; threads =
//! Fails with: a send returned before a sync that began after its commit
//! Fails with: a failed sync was tried again
//! Fails with: a sync had nothing to do

use super::{ORDERS, explore, race};
use crate::clock::Clock;
use crate::error::{Error, Result};
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
    syncing: bool,
    syncs: u64,
    /// Which sync fails, counted from 1.
    fails: Option<u64>,
    failed: bool,
}

impl Log {
    fn new(fails: Option<u64>) -> Arc<Self> {
        let disk = Disk { fails, ..Disk::default() };
        let disk = Mutex::new(Rank::Append, disk);
        Arc::new(Self { gate: FlushGate::new(Clock::system(), 0), disk })
    }

    /// Commits a message and waits for it; true if it became durable.
    fn send(&self) -> bool {
        let target = {
            let mut disk = self.disk.lock();
            disk.committed += 1;
            disk.committed
        };
        let committed = || self.disk.lock().committed;
        let flushed = self.gate.wait(target, committed, |from, to| self.sync(from, to));
        if flushed.is_ok() {
            let covered = self.disk.lock().durable >= target;
            assert!(covered, "a send returned before a sync that began after its commit");
        }
        flushed.is_ok()
    }

    fn sync(&self, from: u64, to: u64) -> Result<()> {
        let mut disk = self.disk.lock();
        assert!(!disk.failed, "a failed sync was tried again");
        assert!(!disk.syncing, "two syncs run at the same time");
        assert_eq!(from, disk.durable, "a sync leaves a gap");
        assert!(from < to, "a sync had nothing to do");
        disk.syncing = true;
        disk.syncs += 1;
        // What comes while it runs is not covered.
        let covered = to.min(disk.committed);
        drop(disk);
        loom::thread::yield_now();
        let mut disk = self.disk.lock();
        disk.syncing = false;
        disk.failed = disk.fails == Some(disk.syncs);
        if disk.failed {
            return Err(Error::Closed);
        }
        disk.durable = covered;
        Ok(())
    }

    fn syncs(&self) -> u64 {
        self.disk.lock().syncs
    }
}

#[test]
fn group_commit() {
    for mirrored in ORDERS {
        let seen = explore(2, move || {
            let log = Log::new(None);
            assert_eq!(race(mirrored, &log, [Log::send; 3]), [true; 3]);
            log.syncs()
        });
        // One sync for all, for some, for each.
        assert_eq!(seen, BTreeSet::from([1, 2, 3]));
    }
}

#[test]
fn group_commit_after_a_failure() {
    for mirrored in ORDERS {
        let seen = explore(2, move || {
            let log = Log::new(Some(1));
            let [a, b] = race(mirrored, &log, [Log::send; 2]);
            assert!(!log.send(), "a send succeeded after a failed sync");
            (a, b, log.syncs())
        });
        assert_eq!(seen, BTreeSet::from([(false, false, 1)]), "the failure reaches all");
    }
}

#[test]
fn group_commit_before_and_after_a_failure() {
    for mirrored in ORDERS {
        let seen = explore(2, move || {
            let log = Log::new(Some(2));
            let durable = race(mirrored, &log, [Log::send; 3]);
            (durable.into_iter().filter(|durable| *durable).count(), log.syncs())
        });
        // What the first sync covered stays durable.
        assert_eq!(seen, BTreeSet::from([(1, 2), (2, 2), (3, 1)]));
    }
}
