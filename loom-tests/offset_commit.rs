//! Committed offsets: a commit beside the sync that makes earlier ones durable.
//!
//! A commit overwrites one copy of its cell, survives the end of the process as it returns (the copy
//! before is left for a commit that is killed in the middle: unit tests of `store/offsets.rs` kill it
//! at every byte), and is marked dirty. The sync takes the marks first and syncs the files then, so
//! that a commit that comes meanwhile is dirty again. Whoever commits what was clean calls for a
//! sync: so either a sync that began after the commit has made it durable, or one is due.
//!
//! Planted bugs: broken_offsets_clean_late, broken_commit_silent
//! Fails with: a commit was taken for durable that no sync has covered
//! Fails with: nobody calls for the sync of a commit

use super::fixture::{Memory, STORE};
use super::{ORDERS, explore, race};
use crate::store::model::{OffsetKey, Offsets};
use crate::sync::Arc;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

struct Store {
    offsets: Offsets,
    syncs: Arc<AtomicUsize>,
}

const KEYS: [OffsetKey; 2] = [
    OffsetKey { group: 0, incarnation: 1, queue: 0 },
    OffsetKey { group: 0, incarnation: 1, queue: 1 },
];

/// What a thread saw: syncs that had begun when its commit returned, and whether it calls for one.
type Seen = Option<(usize, bool)>;

impl Store {
    fn new() -> Arc<Self> {
        let syncs = Arc::new(AtomicUsize::new(0));
        let (offsets, _) = Offsets::open(&Memory::counting(&syncs), STORE, 0).unwrap();
        let called = KEYS.map(|key| offsets.set(key, 1).unwrap());
        assert_eq!(called, [true, false], "the first commit calls for a sync");
        syncs.store(0, Ordering::Relaxed);
        Arc::new(Self { offsets, syncs })
    }

    fn commit(&self) -> Seen {
        let calls = self.offsets.raise(KEYS[0], 2).unwrap();
        Some((self.syncs(), calls))
    }

    fn commit_other(&self) -> Seen {
        let calls = self.offsets.raise(KEYS[1], 3).unwrap();
        Some((self.syncs(), calls))
    }

    fn flush(&self) -> Seen {
        self.offsets.sync().unwrap();
        None
    }

    fn syncs(&self) -> usize {
        self.syncs.load(Ordering::Relaxed)
    }

    /// Every commit is covered by the syncs so far, or somebody has called for another.
    fn check(&self, seen: &[Seen]) -> usize {
        let last = self.syncs();
        let commits: Vec<_> = seen.iter().flatten().collect();
        let open = commits.iter().any(|(begun, _)| *begun == last);
        // The first commit, before the race, has called for the sync in the race.
        let called = commits.iter().any(|(_, calls)| *calls);
        assert!(!open || called, "nobody calls for the sync of a commit");
        self.offsets.sync().unwrap();
        for (begun, _) in commits {
            let covered = self.syncs() > *begun;
            assert!(covered, "a commit was taken for durable that no sync has covered");
        }
        self.syncs()
    }
}

#[test]
fn offset_commit() {
    for mirrored in ORDERS {
        let seen = explore(3, move || {
            let store = Store::new();
            let seen = race(mirrored, &store, [Store::commit, Store::flush]);
            assert_eq!(KEYS.map(|key| store.offsets.get(key)), [Some(2), Some(1)]);
            store.check(&seen)
        });
        // Before the sync in the race, or too late for it.
        assert_eq!(seen, BTreeSet::from([1, 2]));
    }
}

#[test]
fn offset_commits_of_two() {
    for mirrored in ORDERS {
        let seen = explore(2, move || {
            let store = Store::new();
            let seen = race(mirrored, &store, [Store::commit, Store::commit_other, Store::flush]);
            assert_eq!(KEYS.map(|key| store.offsets.get(key)), [Some(2), Some(3)]);
            store.check(&seen)
        });
        assert_eq!(seen, BTreeSet::from([1, 2]));
    }
}
