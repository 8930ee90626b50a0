//! A copy of an open store: whole or refused, whatever call fails, and the store is none the worse.

use super::faulty::Faulty;
use super::*;
use std::io::ErrorKind;

fn filled(dir: &Path) -> (Store, Contents) {
    let store = open(dir);
    let topic = topic(&store, 2);
    for nth in 0..300 {
        send(&store, &topic, nth as usize % 2, nth);
    }
    let group = store.groups.number("g").unwrap();
    store.offsets.set(OffsetKey { group, incarnation: 1, queue: 1 }, 3).unwrap();
    store.drop_before(SEGMENT).unwrap();
    let contents = contents(&store);
    assert!(contents[&("t".to_owned(), 0)].0 > 0, "some were dropped");
    (store, contents)
}

#[test]
fn a_copy_is_the_store_at_that_moment() {
    let (dir, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (store, expected) = filled(dir.path());
    store.copy_into(&(Arc::new(Directory::new(copy.path()).unwrap()) as _)).unwrap();
    send(&store, &store.topics.get("t").unwrap(), 0, 1000);
    let copied = open(copy.path());
    assert!(copied.report().clean);
    assert!(contents(&copied) == expected);
    let group = copied.groups.find("g").unwrap();
    assert_eq!(copied.offsets.get(OffsetKey { group, incarnation: 1, queue: 1 }), Some(3));
    // It goes on by itself, behind everything of the original.
    let (_, end, _) = store.extent();
    let sent = send(&copied, &copied.topics.get("t").unwrap(), 1, 5);
    assert!(sent.position < end);
    copied.close().unwrap();
    assert!(open(copy.path()).report().clean);
}

#[test]
fn a_copy_whose_calls_fail_is_refused_and_the_store_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let (store, expected) = filled(dir.path());
    let mut steps = 0;
    loop {
        let copy = tempfile::tempdir().unwrap();
        let faulty = Faulty::new(copy.path());
        faulty.fail(None, steps, u64::MAX, ErrorKind::StorageFull);
        let copied = store.copy_into(&(faulty.clone() as _));
        let done = !faulty.has_failed();
        faulty.unlock();
        if copied.is_ok() {
            // Some files, such as those of keys, can wait for room.
            assert!(contents(&open(copy.path())) == expected, "step {steps}");
        }
        if done {
            copied.unwrap();
            break;
        }
        steps += 1;
    }
    assert!(steps > 80, "only {steps} steps");
    assert!(contents(&store) == expected);
    send(&store, &store.topics.get("t").unwrap(), 0, 1);
    store.close().unwrap();
}

#[test]
fn a_copy_of_damage_is_refused_even_by_a_store_that_would_salvage_it() {
    let (dir, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (store, _) = filled(dir.path());
    store.close().unwrap();
    let config = StoreConfig { recovery: Recovery::Salvage, ..config(Flush::EveryMessage) };
    let storage = Arc::new(Directory::new(dir.path()).unwrap());
    let store = Store::open(storage, config, Clock::system()).unwrap();
    let sent = send(&store, &store.topics.get("t").unwrap(), 0, 1);
    send(&store, &store.topics.get("t").unwrap(), 0, 2);
    let (file, at) = place_of(dir.path(), sent.end - 8);
    change(&file, at, |rest| rest[0] ^= 1);
    let copied = store.copy_into(&(Arc::new(Directory::new(copy.path()).unwrap()) as _));
    assert!(matches!(copied, Err(Error::Corrupt { .. })), "{copied:?}");
}
