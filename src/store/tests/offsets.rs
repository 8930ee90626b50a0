//! Committed offsets on a disk that fails while their file is made.

use super::faulty::{Call, Faulty};
use super::*;
use std::io::ErrorKind;

/// Cells of one file of offsets.
const CELLS: u16 = 1023;

#[test]
fn b_079_a_file_of_offsets_that_cannot_be_made_leaves_those_before() {
    let calls = [Call::Create, Call::Write, Call::Sync, Call::Rename, Call::SyncFolder, Call::Map];
    for call in calls {
        for kill_at_once in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let faulty = Faulty::new(dir.path());
            let store = open_on(faulty.clone()).unwrap();
            topic(&store, 1);
            let group = store.groups.number("g").unwrap();
            // Queue 0 is there, and has no message.
            let key = |queue: u16| OffsetKey { group, incarnation: 1, queue: queue + 1 };
            for queue in 0..CELLS {
                store.offsets.set(key(queue), 10 + u64::from(queue)).unwrap();
            }
            assert_eq!(store.offsets.files(), 1);
            faulty.fail(Some(call), 0, 1, ErrorKind::Other);
            let refused = store.offsets.set(key(CELLS), 7);
            assert!(matches!(refused, Err(Error::Io { .. })), "{call:?}: {refused:?}");
            // The others go on meanwhile.
            store.offsets.set(key(0), 11).unwrap();
            if !kill_at_once {
                store.offsets.set(key(CELLS), 7).unwrap();
            }
            kill(store);
            let store = open(dir.path());
            assert_eq!(store.report().unreadable_offsets, 0);
            for queue in 1..CELLS {
                assert_eq!(store.offsets.get(key(queue)), Some(10 + u64::from(queue)), "{call:?}");
            }
            assert_eq!(store.offsets.get(key(0)), Some(11));
            let last = store.offsets.get(key(CELLS));
            assert_eq!(last, (!kill_at_once).then_some(7), "{call:?}");
            store.offsets.set(key(CELLS), 8).unwrap();
        }
    }
}

#[test]
fn b_051_a_file_of_offsets_holds_no_descriptor_and_is_synced_when_one_is_to_be_had() {
    let dir = tempfile::tempdir().unwrap();
    let faulty = Faulty::new(dir.path());
    let store = open_on(faulty.clone()).unwrap();
    let topic = topic(&store, 1);
    let group = store.groups.number("g").unwrap();
    store.offsets.set(OffsetKey { group, incarnation: 1, queue: 0 }, 0).unwrap();
    faulty.fail(Some(Call::Open), 0, 1, ErrorKind::Other);
    assert!(matches!(store.offsets.sync(), Err(Error::Io { action: "open", .. })));
    // The flusher meets it without poisoning anything.
    faulty.fail(Some(Call::Open), 0, 1, ErrorKind::Other);
    store.flush_step();
    assert!(faulty.has_failed());
    send(&store, &topic, 0, 0);
    let synced = faulty.count(Call::Sync);
    store.offsets.sync().unwrap();
    assert_eq!(faulty.count(Call::Sync), synced + 1);
    store.offsets.sync().unwrap();
    assert_eq!(faulty.count(Call::Sync), synced + 1, "there was nothing left to sync");
    store.close().unwrap();
}
