//! The lease of a queue that is consumed in order: its owner is slow, somebody renews it for him, and
//! the next owner takes it if it has expired.
//!
//! Whoever takes it does so before he looks where to go on. From then on the one before him commits
//! nothing: his commit compares the generation under the lock under which it is taken. A renewal
//! that comes too late does not bring it back.
//!
//! Planted bugs: broken_lease_taken_early, broken_lease_unfenced, broken_lease_renewed_foreign
//! Fails with: two have the lease
//! Fails with: a late commit counts

use super::{ORDERS, explore, race};
use crate::broker::lease::{Lease, Leases};
use crate::clock::{Clock, Moment};
use crate::store::OffsetKey;
use crate::sync::{Arc, Mutex, Rank};
use std::collections::BTreeSet;
use std::sync::Mutex as Plain;
use std::time::Duration;

const EXPIRY: Duration = Duration::from_secs(60);
const KEY: OffsetKey = OffsetKey { group: 0, incarnation: 0, queue: 0 };

struct Queue {
    leases: Leases,
    first: Lease,
    /// So long after the lease was taken that it has expired.
    late: Moment,
    committed: Mutex<u64>,
    seen: Plain<Seen>,
}

/// What the model watches; not part of the protocol, and not visible to loom.
#[derive(Default)]
struct Seen {
    renewed: Option<bool>,
    taken: Option<bool>,
    committed: bool,
    begun: Option<u64>,
}

impl Queue {
    fn new() -> Arc<Self> {
        let leases = Leases::new(EXPIRY);
        let now = Clock::system().moment();
        let first = leases.take(KEY, "a", now).expect("nobody has it");
        let committed = Mutex::new(Rank::OffsetStore, 0);
        let late = now.plus(2 * EXPIRY);
        Arc::new(Self { leases, first, late, committed, seen: Plain::default() })
    }

    /// The first owner finishes what he had begun when his lease was fresh.
    fn finish(&self) {
        let commit = || *self.committed.lock() = 1;
        let committed = self.leases.fenced(self.first, commit).is_some();
        self.seen.lock().unwrap().committed = committed;
    }

    /// His timer, late.
    fn renew(&self) {
        let held = self.leases.renew(&[self.first], self.late);
        self.seen.lock().unwrap().renewed = Some(!held.is_empty());
    }

    /// The next owner, who works on two messages from where he finds the queue.
    fn take(&self) {
        loom::thread::yield_now();
        let Some(lease) = self.leases.take(KEY, "b", self.late) else {
            self.seen.lock().unwrap().taken = Some(false);
            return;
        };
        let begun = *self.committed.lock();
        self.leases.fenced(lease, || *self.committed.lock() = begun + 2);
        let mut seen = self.seen.lock().unwrap();
        (seen.taken, seen.begun) = (Some(true), Some(begun));
    }

    /// Whether it was renewed and taken, and what the first owner has committed.
    fn check(&self) -> (bool, bool, bool) {
        let seen = self.seen.lock().unwrap();
        let (renewed, taken) = (seen.renewed.unwrap(), seen.taken.unwrap());
        if let Some(begun) = seen.begun {
            assert_eq!(*self.committed.lock(), begun + 2, "a late commit counts");
        }
        assert!(!taken || !renewed, "two have the lease");
        assert!(taken || renewed, "nobody has the lease");
        (renewed, taken, seen.committed)
    }
}

#[test]
fn orderly_lease_against_expiry_and_hand_over() {
    for mirrored in ORDERS {
        let seen = explore(3, move || {
            let queue = Queue::new();
            race(mirrored, &queue, [Queue::finish, Queue::renew, Queue::take]);
            queue.check()
        });
        let expected = [(true, false, true), (false, true, true), (false, true, false)];
        assert_eq!(seen, BTreeSet::from(expected), "renewed in time, taken before and after");
    }
}
