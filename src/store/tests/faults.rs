//! Calls that fail: no panic, no false acknowledgement, and sending goes on where it can.

use super::faulty::{Call, Faulty};
use super::*;
use std::io::ErrorKind;

/// A use of the store that calls everything: what it acknowledged, and what it may have stored.
fn script(store: &Store, acknowledged: &mut Vec<u64>) -> Result<()> {
    store.create_topic("t", 1)?;
    let topic = store.topics.get("t").unwrap();
    for nth in 0..70 {
        let sent = if nth % 10 == 0 {
            let batch = [sized(nth, 3000), sized(1000 + nth, 2000)];
            send_batch(store, &topic, 0, &batch)
        } else {
            send_body(store, &topic, 0, &sized(nth, 2000))
        };
        if let Ok(sent) = sent
            && (nth % 8 > 0 || store.wait_durable(sent.end).is_ok())
        {
            acknowledged.push(nth);
            // What nobody waits for is left to early write-back.
            if nth % 5 == 0 {
                store.want_durable(sent.end);
            }
        }
        if nth % 3 == 0 {
            store.flush_wanted();
        }
        match nth {
            20 | 45 => drop(store.drop_before(SEGMENT * (nth / 20))),
            30 => {
                let number = store.groups.number("g")?;
                let key = OffsetKey { group: number, incarnation: topic.incarnation, queue: 0 };
                drop(store.offsets.set(key, 5));
            }
            35 => store.checkpoint_step(),
            40 => store.allocate_step(),
            50 => drop(store.flush_step()),
            _ => {}
        }
    }
    store.close()
}

/// Everything acknowledged from the minimum on is there, in order, and the store goes on.
fn check(dir: &Path, acknowledged: &[u64], context: &str) {
    {
        let store = open(dir);
        let Some(topic) = store.topics.get("t") else {
            assert!(acknowledged.is_empty(), "{context}");
            return;
        };
        let bodies = read(&store, &topic, 0);
        let number = |body: &Vec<u8>| u64::from_le_bytes(body[..8].try_into().unwrap());
        let found: Vec<_> = bodies.iter().map(number).collect();
        for (body, nth) in bodies.iter().zip(&found) {
            assert_eq!(*body, sized(*nth, body.len()), "{context}");
        }
        let first = found.iter().copied().find(|nth| *nth < 1000);
        for nth in acknowledged {
            // What retention has dropped stands before everything that is left.
            let dropped = topic.queues[0].min() > 0 && first.is_none_or(|first| *nth < first);
            assert!(dropped || found.contains(nth), "{context}: {nth} is lost");
        }
        for pair in found.windows(2) {
            let next = if pair[0] < 1000 && pair[0] % 10 == 0 {
                pair[0] + 1000
            } else {
                pair[0] % 1000 + 1
            };
            assert!(pair[1] == next || (pair[1] > next && pair[1] < 1000), "{context}: {pair:?}");
        }
        send(&store, &topic, 0, 2000);
        kill(store);
    }
    let store = open(dir);
    let topic = store.topics.get("t").unwrap();
    assert_eq!(read(&store, &topic, 0).last().unwrap(), &body(2000), "{context}");
}

#[test]
fn every_call_may_fail_once_or_for_ever() {
    let mut failures = 0;
    for (kind, times) in [
        (ErrorKind::Other, 1),
        (ErrorKind::Other, u64::MAX),
        (ErrorKind::StorageFull, 1),
        (ErrorKind::StorageFull, u64::MAX),
    ] {
        // Every call fails once; of the other ways every seventh.
        let step = if (kind, times) == (ErrorKind::Other, 1) { 1 } else { 7 };
        for nth in (0..).step_by(step) {
            let dir = tempfile::tempdir().unwrap();
            let faulty = Faulty::new(dir.path());
            faulty.fail(None, nth, times, kind);
            let mut acknowledged = Vec::new();
            // So little may await a flush that every send meets the bound, and starts write-back.
            let config = StoreConfig { max_unflushed: 8 << 10, ..config(Flush::EveryMessage) };
            if let Ok(store) = Store::open(faulty.clone(), config, Clock::system()) {
                let _ = script(&store, &mut acknowledged);
            }
            faulty.unlock();
            if !faulty.has_failed() {
                let count = faulty.count(Call::WriteBack);
                assert!(count > 3, "write-back is among the calls: {count}");
                break;
            }
            failures += 1;
            check(dir.path(), &acknowledged, &format!("{kind:?}, call {nth}, {times} times"));
        }
    }
    assert!(failures > 200, "only {failures} failures");
}

/// (STORE-54)
#[test]
fn b_038_a_full_disk_refuses_and_sending_goes_on_when_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let faulty = Faulty::new(dir.path());
    let store = open_on(faulty.clone()).unwrap();
    let topic = topic(&store, 2);
    let mut sent = 0;
    for round in 0..4 {
        faulty.fail(Some(Call::Create), round % 2, u64::MAX, ErrorKind::StorageFull);
        let error = loop {
            match send_body(&store, &topic, 0, &sized(sent, 1000)) {
                Ok(appended) => {
                    store.wait_durable(appended.end).unwrap();
                    sent += 1;
                }
                Err(error) => break error,
            }
        };
        let Error::DiskFull { file, .. } = &error else { panic!("{error}") };
        assert!(file.starts_with(dir.path()));
        // Small ones may still fit, reading goes on, and so does everything that needs no room.
        assert!(read(&store, &topic, 0).len() as u64 == sent);
        let copy = copy_of(dir.path());
        let full = Faulty::new(copy.path());
        full.fail(Some(Call::Create), 0, u64::MAX, ErrorKind::StorageFull);
        let again = open_on(full).unwrap();
        assert_eq!(read(&again, &again.topics.get("t").unwrap(), 0).len() as u64, sent);
        faulty.heal();
        send_body(&store, &topic, 0, &sized(sent, 1000)).unwrap();
        sent += 1;
    }
    let expected: Vec<_> = (0..sent).map(|nth| sized(nth, 1000)).collect();
    assert_eq!(read(&store, &topic, 0), expected);
    kill(store);
    let store = open(dir.path());
    assert_eq!(read(&store, &store.topics.get("t").unwrap(), 0), expected);
}

#[test]
fn a_failed_sync_is_never_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let faulty = Faulty::new(dir.path());
    let store = open_on(faulty.clone()).unwrap();
    let topic = topic(&store, 1);
    let sent = send(&store, &topic, 0, 0);
    store.wait_durable(sent.end).unwrap();
    faulty.fail(Some(Call::SyncRange), 0, 1, ErrorKind::Other);
    let lost = send(&store, &topic, 0, 1);
    assert!(store.wait_durable(lost.end).unwrap_err().contains("made to fail"));
    let syncs = faulty.count(Call::SyncRange);
    // What was durable before still is; nothing else ever will be, and nothing is taken.
    store.wait_durable(sent.end).unwrap();
    assert!(store.wait_durable(lost.end).is_err());
    assert!(matches!(store.flush(), Err(Error::Poisoned { .. })));
    let refused = send_body(&store, &topic, 0, b"more");
    assert!(matches!(&refused, Err(Error::Poisoned { cause }) if cause.contains("made to fail")));
    assert!(matches!(store.create_topic("u", 1), Err(Error::Poisoned { .. })));
    assert!(matches!(store.drop_before(u64::MAX), Ok(0) | Err(Error::Poisoned { .. })));
    assert_eq!(read(&store, &topic, 0), [body(0), body(1)]);
    assert!(store.close().is_err());
    assert_eq!(faulty.count(Call::SyncRange), syncs);
    assert!(!dir.path().join("CLEAN").exists());
    let store = open(dir.path());
    assert_eq!(read(&store, &store.topics.get("t").unwrap(), 0), [body(0), body(1)]);
}

/// (STORE-24)
#[test]
fn a_failed_sync_of_the_index_or_of_offsets_poisons() {
    for offsets in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let faulty = Faulty::new(dir.path());
        let store = open_on(faulty.clone()).unwrap();
        let topic = topic(&store, 1);
        let end = send(&store, &topic, 0, 0).end;
        store.wait_durable(end).unwrap();
        let call = if offsets {
            let group = store.groups.number("g").unwrap();
            store.offsets.set(OffsetKey { group, incarnation: 1, queue: 0 }, 1).unwrap();
            Call::Sync
        } else {
            for nth in 0..400 {
                send(&store, &topic, 0, nth);
            }
            store.flush().unwrap();
            Call::SyncRange
        };
        faulty.fail(Some(call), 0, 1, ErrorKind::Other);
        let checkpoint = dir.path().join("meta/checkpoint");
        let before = std::fs::read(&checkpoint).unwrap();
        store.flush_step();
        assert!(faulty.has_failed());
        assert!(matches!(send_body(&store, &topic, 0, b"x"), Err(Error::Poisoned { .. })));
        // What the sync has lost is not vouched for by a later one that succeeds.
        store.flush_step();
        store.allocate_step();
        assert!(matches!(store.flush(), Err(Error::Poisoned { .. })));
        let expected = contents(&store);
        assert!(matches!(store.close(), Err(Error::Poisoned { .. })));
        assert!(!dir.path().join("CLEAN").exists());
        assert!(std::fs::read(&checkpoint).unwrap() == before);
        let store = open(dir.path());
        assert!(!store.report().clean);
        assert!(contents(&store) == expected);
    }
}

#[test]
fn a_sync_that_meets_a_full_disk_poisons_too() {
    let dir = tempfile::tempdir().unwrap();
    let faulty = Faulty::new(dir.path());
    let store = open_on(faulty.clone()).unwrap();
    let topic = topic(&store, 1);
    for nth in 0..400 {
        send(&store, &topic, 0, nth);
    }
    store.flush().unwrap();
    faulty.fail(Some(Call::SyncRange), 0, 1, ErrorKind::StorageFull);
    store.flush_step();
    assert!(faulty.has_failed());
    assert!(matches!(store.close(), Err(Error::Poisoned { .. })));
}

#[test]
fn b_012_an_append_that_was_left_in_the_middle_ends_all_appends() {
    for close in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        let topic = topic(&store, 1);
        let end = send(&store, &topic, 0, 0).end;
        let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            store.log.with_tail(|tail| {
                tail.leave_in_the_middle();
                panic!("inside the append lock");
            })
        }));
        assert!(unwound.is_err());
        assert!(matches!(send_body(&store, &topic, 0, b"x"), Err(Error::Poisoned { .. })));
        assert_eq!(read(&store, &topic, 0), [body(0)]);
        assert_eq!(store.log.committed(), end);
        store.flush_step();
        if close {
            assert!(matches!(store.close(), Err(Error::Poisoned { .. })));
            assert!(!dir.path().join("CLEAN").exists());
        } else {
            kill(store);
        }
        // Once more without an index: the whole log is read.
        for index in [true, false] {
            if !index {
                std::fs::remove_dir_all(dir.path().join("index")).unwrap();
            }
            let store = open(dir.path());
            assert_eq!(read(&store, &store.topics.get("t").unwrap(), 0), [body(0)]);
            kill(store);
        }
    }
}

#[test]
fn b_012_a_batch_that_fails_is_whole_or_gone_and_what_follows_is_kept_or_refused() {
    for call in [Call::SyncRange, Call::Create] {
        let dir = tempfile::tempdir().unwrap();
        let faulty = Faulty::new(dir.path());
        let store = open_on(faulty.clone()).unwrap();
        let topic = topic(&store, 1);
        let batches =
            (0..).map(|nth| vec![sized(3 * nth, 5000), sized(3 * nth + 1, 9000), body(7)]);
        let mut stored = Vec::new();
        for batch in batches {
            if call == Call::SyncRange || store.log.with_tail(|tail| tail.filling().next.is_none())
            {
                faulty.fail(Some(call), 0, 1, ErrorKind::Other);
            }
            match send_batch(&store, &topic, 0, &batch) {
                Ok(sent) => {
                    stored.extend(batch);
                    if store.wait_durable(sent.end).is_err() {
                        break;
                    }
                }
                Err(Error::Io { .. }) => break,
                Err(other) => panic!("{other}"),
            }
        }
        assert!(faulty.has_failed());
        faulty.heal();
        let later = send_body(&store, &topic, 0, &body(9));
        match (call, &later) {
            (Call::Create, Ok(sent)) => {
                store.wait_durable(sent.end).unwrap();
                stored.push(body(9));
            }
            (Call::SyncRange, Err(Error::Poisoned { .. })) => {}
            _ => panic!("{call:?}: {later:?}"),
        }
        assert_eq!(read(&store, &topic, 0), stored);
        kill(store);
        let store = open(dir.path());
        assert_eq!(read(&store, &store.topics.get("t").unwrap(), 0), stored);
    }
}

#[test]
fn b_012_an_append_that_unwinds_on_either_way_ends_all_appends() {
    for clear in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        let topic = topic(&store, 1);
        for nth in 0..50 {
            send(&store, &topic, 0, nth);
        }
        let target = Some(topic.target(&topic.queues[0]));
        let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            store.log.with_tail(|tail| {
                // It has no room for its header: writing it panics.
                let mut drafts = [Draft::blank(&topic.outline)];
                if !clear {
                    tail.set_flusher_alarm(0);
                    drop(tail.append(target, &mut drafts, 0));
                }
                assert!(tail.append_clear(target, &mut drafts, 0).is_some(), "nothing was clear");
            })
        }));
        let message = unwound.unwrap_err();
        assert!(message.downcast_ref::<&str>().is_none_or(|text| !text.contains("clear")));
        assert!(matches!(send_body(&store, &topic, 0, b"x"), Err(Error::Poisoned { .. })));
        assert!(matches!(store.close(), Err(Error::Poisoned { .. })));
    }
}

#[test]
fn close_vouches_for_nothing_after_an_append_was_left_in_the_middle() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let topic = topic(&store, 1);
    send(&store, &topic, 0, 0);
    let before = std::fs::read(dir.path().join("meta/checkpoint")).unwrap();
    // Nobody comes between: the close is the first to see it.
    store.log.with_tail(Tail::leave_in_the_middle);
    assert!(matches!(store.close(), Err(Error::Poisoned { .. })));
    assert!(!dir.path().join("CLEAN").exists());
    assert!(std::fs::read(dir.path().join("meta/checkpoint")).unwrap() == before);
    let store = open(dir.path());
    assert_eq!(read(&store, &store.topics.get("t").unwrap(), 0), [body(0)]);
}

#[test]
fn a_file_that_cannot_be_placed_leaves_nothing_behind() {
    for call in [Call::Create, Call::Write, Call::Sync, Call::Map, Call::Rename, Call::SyncFolder] {
        for spare in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let faulty = Faulty::new(dir.path());
            let store = open_on(faulty.clone()).unwrap();
            let topic = topic(&store, 1);
            for nth in 0..if spare { 1000 } else { 10 } {
                send(&store, &topic, 0, nth);
            }
            if spare {
                store.drop_before(store.log.committed()).unwrap();
            }
            while store.log.with_tail(|tail| tail.filling().next.is_some()) {
                send(&store, &topic, 0, 1);
            }
            let before: Vec<_> = log_in(dir.path()).into_keys().collect();
            // The slots of `next_base` are written and synced first.
            let after = u64::from(matches!(call, Call::Write | Call::Sync));
            faulty.fail(Some(call), after, 1, ErrorKind::Other);
            let grown = store.make_file();
            assert_eq!(grown.is_err(), faulty.has_failed(), "{call:?}");
            faulty.heal();
            if grown.is_err() {
                let left: Vec<_> = log_in(dir.path()).into_keys().collect();
                assert!(left.iter().all(|name| before.contains(name)), "{call:?}: {left:?}");
                store.make_file().unwrap();
            }
            for nth in 0..400 {
                send(&store, &topic, 0, nth);
            }
            let expected = contents(&store);
            kill(store);
            assert!(contents(&open(dir.path())) == expected, "{call:?}");
        }
    }
}

#[test]
fn a_file_that_cannot_be_dropped_goes_at_the_next_open() {
    for call in [Call::Unlink, Call::Rename, Call::SyncFolder] {
        for times in [1, 2, 100] {
            let dir = tempfile::tempdir().unwrap();
            let faulty = Faulty::new(dir.path());
            let store = open_on(faulty.clone()).unwrap();
            let topic = topic(&store, 1);
            for nth in 0..1500 {
                send(&store, &topic, 0, nth);
            }
            // The checkpoint renames and syncs a folder first.
            let after = u64::from(call != Call::Unlink);
            faulty.fail(Some(call), after, times, ErrorKind::Other);
            let dropped = store.drop_before(store.log.committed());
            // A file that cannot be kept for another life is removed.
            assert_eq!(dropped.is_err(), call != Call::Rename);
            assert!(faulty.has_failed());
            faulty.heal();
            for nth in 1500..2500 {
                send(&store, &topic, 0, nth);
            }
            store.drop_before(store.log.committed() - 2 * SEGMENT).unwrap();
            let expected = contents(&store);
            let copy = copy_of(dir.path());
            store.close().unwrap();
            for from in [dir.path(), copy.path()] {
                let store = open(from);
                assert!(contents(&store) == expected, "{call:?}");
                let files = log_in(from).len();
                assert_eq!(files, store.log.files().len(), "{call:?}, {times} times");
            }
        }
    }
}

#[test]
fn a_group_gets_one_number_even_if_its_first_sync_fails() {
    let dir = tempfile::tempdir().unwrap();
    let faulty = Faulty::new(dir.path());
    let store = open_on(faulty.clone()).unwrap();
    faulty.fail(Some(Call::Sync), 0, 1, ErrorKind::Other);
    assert!(store.groups.number("first").is_err());
    assert_eq!(store.groups.number("first").unwrap(), 0);
    assert_eq!(store.groups.number("second").unwrap(), 1);
    kill(store);
    let store = open(dir.path());
    assert_eq!((store.groups.find("first"), store.groups.find("second")), (Some(0), Some(1)));
}
