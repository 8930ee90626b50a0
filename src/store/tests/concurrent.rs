//! Many threads at once.

use super::faulty::{Call, Faulty};
use super::*;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

#[test]
fn b_035_every_append_that_succeeded_before_a_close_is_there_afterwards() {
    for round in 0..10 {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        let topic = topic(&store, 4);
        let done = AtomicU64::new(0);
        let (sent, closed): (Vec<Vec<u64>>, _) = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8u64)
                .map(|thread| {
                    let (store, topic, done) = (&store, &topic, &done);
                    scope.spawn(move || {
                        let mut sent = Vec::new();
                        loop {
                            let nth = thread * 1_000_000 + sent.len() as u64;
                            match send_body(store, topic, thread as usize % 4, &sized(nth, 200)) {
                                Ok(_) => sent.push(nth),
                                Err(Error::Closed) => return sent,
                                Err(other) => panic!("{other}"),
                            }
                            done.fetch_add(1, Ordering::Relaxed);
                        }
                    })
                })
                .collect();
            while done.load(Ordering::Relaxed) < 200 * (round + 1) {
                std::thread::yield_now();
            }
            store.close().unwrap();
            let closed = files_in(dir.path());
            (threads.into_iter().map(|thread| thread.join().unwrap()).collect(), closed)
        });
        assert!(files_in(dir.path()) == closed, "something is written after the close");
        let store = open(dir.path());
        assert!(store.report().clean, "round {round}");
        let topic = store.topics.get("t").unwrap();
        let mut found: Vec<u64> = (0..4)
            .flat_map(|queue| read(&store, &topic, queue))
            .map(|body| u64::from_le_bytes(body[..8].try_into().unwrap()))
            .collect();
        found.sort_unstable();
        let mut sent: Vec<u64> = sent.into_iter().flatten().collect();
        sent.sort_unstable();
        assert_eq!(found, sent, "round {round}");
    }
}

#[test]
fn eight_threads_share_their_flushes() {
    let dir = tempfile::tempdir().unwrap();
    let faulty = Faulty::new(dir.path());
    let store = open_on(faulty.clone()).unwrap();
    let topic = topic(&store, 8);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (store, topic) = (&store, &topic);
            scope.spawn(move || {
                for nth in 0..100 {
                    let sent = send(store, topic, thread, nth);
                    store.wait_durable(sent.end).unwrap();
                    assert!(store.gate.flushed() >= sent.end);
                }
            });
        }
    });
    let syncs = faulty.count(Call::SyncRange);
    assert!(syncs <= 820, "{syncs} syncs for 800 messages");
    for queue in 0..8 {
        assert_eq!(read(&store, &topic, queue), (0..100).map(body).collect::<Vec<_>>());
    }
}

#[test]
fn readers_see_whole_messages_while_writers_roll_and_retention_drops() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let topic = topic(&store, 4);
    let stop = AtomicBool::new(false);
    let total: u64 = std::thread::scope(|scope| {
        let (store, topic, stop) = (&store, &topic, &stop);
        let writers: Vec<_> = (0..4)
            .map(|queue| {
                scope.spawn(move || {
                    for nth in 0..4000 {
                        if nth % 50 == 0 {
                            let batch: Vec<_> = (nth..nth + 5).map(body).collect();
                            send_batch(store, topic, queue, &batch).unwrap();
                        } else if nth % 50 >= 5 {
                            send(store, topic, queue, nth);
                        }
                    }
                })
            })
            .collect();
        let allocator = scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                store.allocate_step();
                store.flush_step();
                std::thread::yield_now();
            }
        });
        let retention = scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                store.drop_before(store.log.committed().saturating_sub(4 * SEGMENT)).unwrap();
                std::thread::yield_now();
            }
        });
        let readers: Vec<_> =
            (0..4).map(|queue| scope.spawn(move || follow(store, topic, queue, stop))).collect();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        stop.store(true, Ordering::Relaxed);
        allocator.join().unwrap();
        retention.join().unwrap();
        readers.into_iter().map(|reader| reader.join().unwrap()).sum()
    });
    assert!(total > 0);
    let expected = contents(&store);
    kill(store);
    assert!(contents(&open(dir.path())) == expected);
}

/// Reads a queue to its end, over and over, and compares every byte; returns how many messages.
fn follow(store: &Store, topic: &Topic, queue: usize, stop: &AtomicBool) -> u64 {
    let queue = &topic.queues[queue];
    let (mut offset, mut seen) = (0, 0);
    let mut held = Vec::new();
    loop {
        let last = stop.load(Ordering::Relaxed);
        let fetch = store.fetch(queue, offset, 16, 1 << 20, &All).unwrap();
        for message in &fetch.messages {
            // The n-th message of a queue has the n-th body.
            assert_eq!(message.body(), body(message.offset()), "at {}", message.offset());
            seen += 1;
        }
        offset = fetch.next;
        if seen % 7 == 0 {
            held.push(fetch.messages);
        }
        if held.len() > 20 {
            for message in
                held.drain(..).flat_map(|m| m.iter().map(|d| d.detach()).collect::<Vec<_>>())
            {
                assert_eq!(message.delivery().body(), body(message.delivery().offset()));
            }
        }
        if last && offset >= queue.max() {
            return seen;
        }
    }
}

#[test]
fn a_topic_that_many_create_is_created_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let made: usize = std::thread::scope(|scope| {
        let create = || {
            let created =
                (0..50).filter_map(|nth| store.create_topic(&format!("t{nth}"), 3).unwrap());
            created.count()
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(create)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(made, 50);
    let mut incarnations: Vec<_> = store.topics.all().iter().map(|t| t.incarnation).collect();
    kill(store);
    let store = open(dir.path());
    let mut again: Vec<_> = store.topics.all().iter().map(|t| t.incarnation).collect();
    incarnations.sort_unstable();
    again.sort_unstable();
    assert_eq!((incarnations.len(), &incarnations), (50, &again));
    assert_eq!(incarnations.windows(2).filter(|pair| pair[0] == pair[1]).count(), 0);
}
