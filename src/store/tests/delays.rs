//! Messages that wait, while the front of the log goes.

use super::*;
use crate::delay::Due;
use crate::store::draft::Copy;
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);

fn send_later(store: &Store, topic: &Topic, nth: u64) -> u64 {
    let body = sized(nth, 100);
    let copy = Copy { message: pending(&body), reconsumed: 0, origin: 0 };
    failed(store.append_later(topic, 0, &copy, Due::After(HOUR))).unwrap().position
}

fn end(store: &Store) -> u64 {
    store.log.with_tail(|tail| tail.committed())
}

/// Whether a message waited, and does no more.
fn cancel(store: &Store, first: u64) -> bool {
    store.find_delayed(first).is_some_and(|ticket| store.append_done(&ticket).unwrap().is_some())
}

#[test]
fn b_137_what_was_carried_forward_is_cancelled_while_its_old_file_stands() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let topic = topic(&store, 1);
    let ids: Vec<u64> = (0..6).map(|nth| send_later(&store, &topic, nth)).collect();
    assert!(cancel(&store, ids[0]));
    store.carry_delays(ids[4]).unwrap();
    // Nothing was dropped: there was no room for the checkpoint, or it comes next.
    assert!(cancel(&store, ids[1]) && !cancel(&store, ids[1]), "it waits elsewhere");
    assert!(!cancel(&store, ids[0]), "it waited no more");
    assert!(cancel(&store, ids[4]) && !cancel(&store, ids[4]), "it stands where it was");
    assert_eq!(store.waiting(), 3);
    store.carry_delays(end(&store)).unwrap();
    kill(store);
    let store = open(dir.path());
    assert!(!cancel(&store, ids[0]) && !cancel(&store, ids[4]));
    assert!(cancel(&store, ids[2]) && !cancel(&store, ids[2]), "carried before the kill, twice");
    assert!(cancel(&store, ids[5]));
    assert_eq!(store.waiting(), 1);
}

#[test]
fn after_one_search_what_has_come_is_known_not_to_be_carried() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let topic = topic(&store, 1);
    let ids: Vec<u64> = (0..6).map(|nth| send_later(&store, &topic, nth)).collect();
    assert!(cancel(&store, ids[3]));
    store.carry_delays(ids[2]).unwrap();
    kill(store);
    let store = open(dir.path());
    assert!(store.delays.lock().carried().to > ids[5], "not known yet");
    assert!(!cancel(&store, ids[3]));
    assert_eq!(store.delays.lock().carried().to, ids[1] + 1);
    assert!(cancel(&store, ids[1]) && cancel(&store, ids[5]));
}
