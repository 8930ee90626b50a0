//! Moving a group to another offset while the old owner of a queue still commits.
//!
//! The offset is set and frozen first: whatever the old owner commits after that is ignored. Then,
//! under the lock of the group, it is noted for the hand-over; whoever ends the ownership takes
//! commits again, and begins the next one there. So the next owner begins at the new offset, and so
//! would a process that is started after a kill at any point.
//!
//! Planted bugs: broken_frozen_ignored
//! Fails with: progress of the old owner came back

use super::fixture::{Memory, STORE};
use super::{ORDERS, explore, race};
use crate::store::model::{OffsetKey, Offsets};
use crate::sync::{Arc, Mutex, Rank};
use std::collections::BTreeSet;

const KEY: OffsetKey = OffsetKey { group: 0, incarnation: 1, queue: 0 };
const OLD: u64 = 5;
const NEW: u64 = 2;

struct Store {
    offsets: Offsets,
    group: Mutex<Group>,
}

#[derive(Default)]
struct Group {
    /// The old owner has given the queue back.
    released: bool,
    /// Where the next owner is to begin instead.
    reset: Option<u64>,
    left: Option<u64>,
}

impl Store {
    fn new() -> Arc<Self> {
        let (offsets, _) = Offsets::open(&Memory::counting(&Arc::default()), STORE, 0).unwrap();
        offsets.set(KEY, 4).unwrap();
        Arc::new(Self { offsets, group: Mutex::new(Rank::Coordinator, Group::default()) })
    }

    /// The old owner finishes its work.
    fn finish(&self) -> bool {
        self.offsets.raise(KEY, OLD).unwrap();
        let mut group = self.group.lock();
        group.released = true;
        let reset = group.reset.take();
        if reset.is_some() {
            self.offsets.thaw(KEY);
        }
        group.left = Some(reset.unwrap_or(OLD));
        reset.is_some()
    }

    fn reset(&self) -> bool {
        self.offsets.freeze(KEY, NEW).unwrap();
        assert_eq!(self.offsets.get(KEY), Some(NEW), "progress of the old owner came back");
        let mut group = self.group.lock();
        if group.released {
            group.left = None;
            self.offsets.thaw(KEY);
        } else {
            group.reset = Some(NEW);
        }
        group.released
    }

    fn check(&self) {
        assert_eq!(self.offsets.get(KEY), Some(NEW), "progress of the old owner came back");
        let begin = self.group.lock().left.unwrap_or(NEW);
        assert_eq!(begin, NEW, "progress of the old owner came back");
        self.offsets.raise(KEY, 3).unwrap();
        assert_eq!(self.offsets.get(KEY), Some(3), "the next owner commits");
    }
}

#[test]
fn offset_reset() {
    for mirrored in ORDERS {
        let seen = explore(3, move || {
            let store = Store::new();
            let [handed_over, too_late] = race(mirrored, &store, [Store::finish, Store::reset]);
            assert_ne!(handed_over, too_late);
            store.check();
            handed_over
        });
        assert_eq!(seen, BTreeSet::from([false, true]));
    }
}
