//! The store as a whole, on a real directory.

use super::*;
use crate::clock::Clock;
use crate::storage::Directory;
use std::path::Path;

const SEGMENT: u64 = 64 << 10;

struct All;

impl Select for All {
    fn by_hash(&self, _: i32) -> bool {
        true
    }
    fn by_record(&self, _: &record::Record<'_>) -> bool {
        true
    }
}

fn open(dir: &Path) -> Store {
    try_open(dir).unwrap()
}

fn try_open(dir: &Path) -> Result<Store> {
    let storage = Arc::new(Directory::new(dir).unwrap());
    let config = StoreConfig { segment_bytes: SEGMENT, flush: Flush::EveryMessage };
    Store::open(storage, config, Clock::system())
}

fn body(nth: u64) -> Vec<u8> {
    let mut body = nth.to_le_bytes().to_vec();
    body.resize(8 + (nth % 700) as usize, nth as u8);
    body
}

fn send(store: &Store, topic: &Topic, queue: usize, nth: u64) -> Appended {
    let body = body(nth);
    let message = Pending { tag_hash: 0, born_ms: None, properties: &[], body: &body };
    match store.append(topic, &topic.queues[queue], message) {
        Ok(appended) => appended,
        Err(error) => panic!("{error:?}"),
    }
}

/// The bodies of a queue from its minimum on.
fn read(store: &Store, topic: &Topic, queue: usize) -> Vec<Vec<u8>> {
    let queue = &topic.queues[queue];
    let mut bodies = Vec::new();
    let mut offset = queue.min();
    while offset < queue.max() {
        let fetch = store.fetch(queue, offset, 32, 1 << 20, &All).unwrap();
        bodies.extend(fetch.messages.iter().map(|message| message.body().to_vec()));
        offset = fetch.next;
    }
    bodies
}

#[test]
fn messages_are_there_after_a_close_and_after_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let mut sent = 0;
    for round in 0..6 {
        let store = open(dir.path());
        store.create_topic("t", 3).unwrap();
        let topic = store.topics.get("t").unwrap();
        assert_eq!(topic.queues.len(), 3);
        for queue in 0..3 {
            let expected: Vec<_> = (0..sent).filter(|n| n % 3 == queue as u64).map(body).collect();
            assert_eq!(read(&store, &topic, queue), expected, "round {round}");
        }
        for _ in 0..500 {
            send(&store, &topic, (sent % 3) as usize, sent);
            sent += 1;
        }
        if round % 2 == 0 {
            store.close().unwrap();
        } else {
            store.storage.unlock();
        }
    }
}

#[test]
fn drop_before_frees_files_and_keeps_numbers_and_held_messages() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.create_topic("t", 1).unwrap();
    let topic = store.topics.get("t").unwrap();
    (0..2000).for_each(|nth| drop(send(&store, &topic, 0, nth)));
    let queue = &topic.queues[0];
    let held = store.fetch(queue, 0, 5, 1 << 20, &All).unwrap().messages;
    let committed = store.log.committed();
    assert!(store.drop_before(committed - 2 * SEGMENT).unwrap() > 3);
    let min = queue.min();
    assert!(min > 0 && min < 2000);
    assert_eq!(read(&store, &topic, 0), (min..2000).map(body).collect::<Vec<_>>());
    assert_eq!(held.get(4).unwrap().body(), body(4));
    // The freed files are used again.
    (2000..4000).for_each(|nth| drop(send(&store, &topic, 0, nth)));
    assert_eq!(read(&store, &topic, 0), (min..4000).map(body).collect::<Vec<_>>());
    assert_eq!(held.get(4).unwrap().body(), body(4));
    store.storage.unlock();
    let again = open(dir.path());
    let topic = again.topics.get("t").unwrap();
    assert_eq!(topic.queues[0].min(), min);
    assert_eq!(read(&again, &topic, 0), (min..4000).map(body).collect::<Vec<_>>());
}
