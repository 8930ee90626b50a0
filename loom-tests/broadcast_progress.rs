//! The first offset of a broadcasting member: where it begins beside progress that it has made.
//!
//! Whoever finds no offset of a member stores where it begins; that never replaces what was stored
//! meanwhile (B-150).
//!
//! Planted bugs: broken_begin_blind
//! Fails with: progress was replaced by a beginning

use super::fixture::{Memory, STORE};
use super::{ORDERS, explore, race};
use crate::store::model::{OffsetKey, Offsets};
use crate::sync::Arc;
use std::collections::BTreeSet;

const KEY: OffsetKey = OffsetKey { group: 1, incarnation: 1, queue: 0 };

fn begin(offsets: &Offsets) -> Option<u64> {
    offsets.begin(KEY, 0).unwrap();
    offsets.get(KEY)
}

fn commit(offsets: &Offsets) -> Option<u64> {
    offsets.raise(KEY, 7).unwrap();
    offsets.get(KEY)
}

#[test]
fn broadcast_progress() {
    for mirrored in ORDERS {
        let seen = explore(3, move || {
            let (offsets, _) = Offsets::open(&Memory::counting(&Arc::default()), STORE, 0).unwrap();
            let offsets = Arc::new(offsets);
            let [begun, committed] = race(mirrored, &offsets, [begin, commit]);
            let after = [committed, offsets.get(KEY)];
            assert_eq!(after, [Some(7); 2], "progress was replaced by a beginning");
            begun
        });
        assert_eq!(seen, BTreeSet::from([Some(0), Some(7)]));
    }
}
