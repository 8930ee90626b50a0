//! Topics that change and go: what holds in memory holds after a kill, after a close, and from the
//! log alone.

use super::faulty::{Call, Faulty};
use super::*;
use crate::topic_config::{Permission, TopicConfig};
use std::io::ErrorKind;

fn get(store: &Store, name: &str) -> Arc<Topic> {
    store.topics.get(name).unwrap()
}

fn fill(store: &Store, name: &str, numbers: std::ops::Range<u64>) {
    let topic = get(store, name);
    let queues = topic.writable().unwrap().len();
    for nth in numbers {
        send(store, &topic, nth as usize % queues, nth);
    }
}

fn delete(store: &Store, name: &str) {
    store.delete_topic(name).unwrap().unwrap();
}

/// What a store says of its topics: name, incarnation, config, queues.
fn shapes(store: &Store) -> Vec<(String, u32, TopicConfig, usize)> {
    let shape = |topic: Arc<Topic>| {
        (topic.name.to_string(), topic.incarnation, topic.config, topic.queues.len())
    };
    let mut shapes: Vec<_> = store.topics.all().into_iter().map(shape).collect();
    shapes.sort_by(|a, b| a.0.cmp(&b.0));
    shapes
}

/// The directory after a kill, after a close, and after the loss of everything that is derived
/// from the log: each opens to the same topics and messages, twice.
fn comes_back(dir: &Path, store: Store) {
    let expected = (shapes(&store), contents(&store));
    let killed = copy_of(dir);
    store.close().unwrap();
    drop(store);
    let closed = copy_of(dir);
    let derived = [copy_of(killed.path()), copy_of(killed.path()), copy_of(closed.path())];
    // Without a message there is no index.
    let _ = std::fs::remove_dir_all(derived[0].path().join("index"));
    std::fs::remove_file(derived[1].path().join("meta/topics")).unwrap();
    let _ = std::fs::remove_dir_all(derived[2].path().join("index"));
    for (nth, dir) in [&killed, &closed].into_iter().chain(&derived).enumerate() {
        for _ in 0..2 {
            let store = open(dir.path());
            assert_eq!(shapes(&store), expected.0, "variant {nth}");
            assert!(contents(&store) == expected.1, "variant {nth}");
            kill(store);
        }
    }
}

#[test]
fn b_021_a_deleted_topic_stays_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for name in ["kept", "t", "empty"] {
        store.create_topic(name, 3).unwrap();
    }
    fill(&store, "t", 0..200);
    fill(&store, "kept", 0..100);
    let old = get(&store, "t");
    delete(&store, "t");
    delete(&store, "empty");
    assert!(store.topics.get("t").is_none() && store.delete_topic("t").unwrap().is_none());
    assert_eq!(store.topics.all().len(), 1);
    let gone = store.append(&old, &old.queues[0], pending(b"x"));
    assert!(matches!(gone, Err(AppendError::Gone)), "{gone:?}");
    let fetch = store.fetch(&old.queues[0], 0, 10, 1 << 20, &All).unwrap();
    assert_eq!((fetch.status, fetch.messages.len()), (FetchStatus::TooSmall, 0));
    fill(&store, "kept", 100..200);
    comes_back(dir.path(), store);
}

#[test]
fn b_021_a_topic_of_the_same_name_has_nothing_of_the_old_one() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut last = 0;
    for round in 0..5 {
        store.create_topic("t", 2 + round % 2).unwrap();
        let topic = get(&store, "t");
        assert!(topic.incarnation > last);
        last = topic.incarnation;
        let first = send(&store, &topic, 1, 1000);
        assert_eq!(first.offset, 0);
        fill(&store, "t", 0..u64::from(round) * 50);
        if round == 2 {
            // Both sides of a checkpoint.
            store.write_checkpoint(&mut store.checkpoint.lock(), None).unwrap();
        }
        if round < 4 {
            delete(&store, "t");
        }
    }
    comes_back(dir.path(), store);
}

#[test]
fn b_021_committed_offsets_die_with_the_topic() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let group = store.groups.number("g").unwrap();
    let key = |topic: &Topic, queue| OffsetKey { group, incarnation: topic.incarnation, queue };
    for _ in 0..3000 {
        store.create_topic("t", 2).unwrap();
        let topic = get(&store, "t");
        for queue in 0..2 {
            assert_eq!(store.offsets.get(key(&topic, queue)), None);
            store.offsets.set(key(&topic, queue), 7).unwrap();
        }
        delete(&store, "t");
        store.forget_offsets(&topic);
        assert_eq!(store.offsets.get(key(&topic, 1)), None);
        // By a consumer that has not heard of it.
        store.offsets.raise(key(&topic, 0), 8).unwrap();
        assert_eq!(store.offsets.get(key(&topic, 0)), None);
    }
    assert_eq!(store.offsets.files(), 1, "cells are used again");
    store.create_topic("t", 1).unwrap();
    let topic = get(&store, "t");
    store.offsets.set(key(&topic, 0), 0).unwrap();
    // The process is killed before the offsets are told.
    store.create_topic("u", 1).unwrap();
    let gone = get(&store, "u");
    store.offsets.set(key(&gone, 0), 5).unwrap();
    delete(&store, "u");
    kill(store);
    let store = open(dir.path());
    assert_eq!(store.offsets.get(key(&topic, 0)), Some(0));
    assert_eq!(store.offsets.get(key(&gone, 0)), None);
}

#[test]
fn b_095_queues_are_added_and_given_up_and_come_back_as_they_were() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.create_topic("t", 4).unwrap();
    fill(&store, "t", 0..40);
    let old = get(&store, "t");
    let config = TopicConfig::new(2).read_queues(3);
    let topic = store.update_topic("t", config).unwrap().unwrap();
    assert_eq!((topic.config, topic.queues.len()), (config, 4));
    assert_eq!((topic.writable().unwrap().len(), topic.ids().len()), (2, 3));
    assert!(!old.is_current() && topic.is_current());
    for queue in 2..4 {
        for topic in [&old, &topic] {
            let refused = store.append(topic, &topic.queues[queue], pending(b"x"));
            assert!(matches!(refused, Err(AppendError::Gone)), "{refused:?}");
        }
    }
    assert_eq!(read(&store, &topic, 3).len(), 10, "what is there can be read");
    let numbers = |behind: bool| -> Vec<u16> {
        topic.readable(|_| behind).iter().map(crate::QueueId::queue).collect()
    };
    assert_eq!((numbers(false), numbers(true)), (vec![0, 1, 2], vec![0, 1, 2, 3]));
    fill(&store, "t", 40..60);
    store.update_topic("t", TopicConfig::new(6)).unwrap().unwrap();
    let topic = get(&store, "t");
    assert_eq!(send(&store, &topic, 3, 60).offset, 10, "its numbering goes on");
    assert_eq!(send(&store, &topic, 5, 61).offset, 0);
    let unchanged = store.log.committed();
    store.update_topic("t", TopicConfig::new(6)).unwrap().unwrap();
    assert_eq!(store.log.committed(), unchanged);
    assert!(store.update_topic("unknown", TopicConfig::new(1)).unwrap().is_none());
    let read_only = TopicConfig::new(1).permission(Permission::ReadOnly);
    store.update_topic("t", read_only).unwrap().unwrap();
    let topic = get(&store, "t");
    assert!(matches!(topic.writable(), Err(Error::NotPermitted { action: "sent to", .. })));
    let refused = store.append(&topic, &topic.queues[0], pending(b"x"));
    assert!(matches!(refused, Err(AppendError::Gone)), "{refused:?}");
    comes_back(dir.path(), store);
}

#[test]
fn purged_messages_are_gone_and_the_queues_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.create_topic("t", 2).unwrap();
    store.create_topic("other", 1).unwrap();
    assert_eq!(store.purge_topic("t").unwrap(), Some(0));
    assert_eq!(store.purge_topic("unknown").unwrap(), None);
    for round in 0..4_u64 {
        fill(&store, "t", 0..round * 120);
        fill(&store, "other", 0..10);
        if round == 2 {
            store.write_checkpoint(&mut store.checkpoint.lock(), None).unwrap();
        }
        assert_eq!(store.purge_topic("t").unwrap(), Some(round * 120));
    }
    let topic = get(&store, "t");
    let queue = &topic.queues[0];
    assert_eq!((queue.min(), queue.max()), (360, 360));
    let status = |offset| store.fetch(queue, offset, 1, 1, &All).unwrap().status;
    assert_eq!((status(0), status(360)), (FetchStatus::TooSmall, FetchStatus::AtEnd));
    assert_eq!(send(&store, &topic, 0, 7).offset, 360);
    assert_eq!(read(&store, &topic, 0), [body(7)]);
    comes_back(dir.path(), store);
}

#[test]
fn index_blocks_of_topics_that_are_gone_are_used_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let index = || files_in(dir.path()).keys().filter(|name| name.starts_with("index")).count();
    let mut settled = 0;
    for round in 0..60_u64 {
        store.create_topic("t", 40).unwrap();
        fill(&store, "t", 0..800);
        if round % 2 == 0 {
            store.purge_topic("t").unwrap();
        }
        delete(&store, "t");
        store.write_checkpoint(&mut store.checkpoint.lock(), None).unwrap();
        if round == 3 {
            settled = index();
        }
    }
    assert!(settled > 0);
    assert_eq!(index(), settled);
    comes_back(dir.path(), store);
}

#[test]
fn b_021_blocks_that_were_not_freed_before_a_kill_are_freed_by_the_next_open() {
    let dir = tempfile::tempdir().unwrap();
    let mut sizes = Vec::new();
    for _ in 0..8 {
        let store = open(dir.path());
        store.create_topic("t", 100).unwrap();
        fill(&store, "t", 0..400);
        delete(&store, "t");
        kill(store);
        let index = files_in(dir.path()).into_iter().filter(|(name, _)| name.starts_with("index"));
        sizes.push(index.map(|(_, bytes)| bytes.len()).sum::<usize>());
    }
    assert_eq!(sizes[1], sizes[7], "{sizes:?}");
    let store = open(dir.path());
    assert!(store.topics.all().is_empty());
}

/// Producers, and topics that go and come under them.
#[test]
fn b_021_deletion_under_traffic() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.create_topic("t", 4).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let (sent, gone) = std::thread::scope(|scope| {
        let send = |worker: u64| {
            let (mut sent, mut gone) = (Vec::new(), 0);
            for nth in 0..20_000 {
                if stop.load(std::sync::atomic::Ordering::Relaxed) {
                    break;
                }
                let Some(topic) = store.topics.get("t") else {
                    store.topics.settle();
                    continue;
                };
                let body = sized(worker << 32 | nth, 40);
                let queue = &topic.queues[nth as usize % topic.writable().unwrap().len()];
                match store.append(&topic, queue, pending(&body)) {
                    Ok(appended) => {
                        sent.push((topic.incarnation, queue.queue, appended.offset, body));
                    }
                    Err(AppendError::Gone) => {
                        gone += 1;
                        store.topics.settle();
                    }
                    Err(AppendError::Failed(error)) => panic!("{error}"),
                }
            }
            (sent, gone)
        };
        let workers: Vec<_> = (0..3).map(|worker| scope.spawn(move || send(worker))).collect();
        for round in 0..60 {
            match round % 5 {
                0 => delete(&store, "t"),
                1 => drop(store.create_topic("t", 4).unwrap()),
                2 => drop(store.purge_topic("t").unwrap()),
                3 => drop(store.update_topic("t", TopicConfig::new(2)).unwrap()),
                _ => drop(store.write_checkpoint(&mut store.checkpoint.lock(), None)),
            }
            std::thread::yield_now();
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let ended = workers.into_iter().map(|worker| worker.join().unwrap());
        ended.fold((Vec::new(), 0), |(mut all, gone), (sent, more)| {
            all.extend(sent);
            (all, gone + more)
        })
    });
    let topic = get(&store, "t");
    let mut expected: Vec<_> =
        sent.into_iter().filter(|(incarnation, ..)| *incarnation == topic.incarnation).collect();
    expected.sort_by_key(|(_, queue, offset, _)| (*queue, *offset));
    for queue in 0..4 {
        let index = &topic.queues[usize::from(queue)];
        let of_queue = expected.iter().filter(|(_, of, ..)| *of == queue);
        let of_queue: Vec<_> = of_queue.map(|(_, _, offset, body)| (*offset, body)).collect();
        assert_eq!(of_queue.len() as u64, index.max(), "offsets are dense");
        assert!(of_queue.iter().enumerate().all(|(nth, (offset, _))| nth as u64 == *offset));
        let kept: Vec<_> =
            of_queue[index.min() as usize..].iter().map(|(_, b)| (*b).clone()).collect();
        assert!(read(&store, &topic, usize::from(queue)) == kept);
    }
    println!("{gone} appends were refused");
    comes_back(dir.path(), store);
}

/// What has become of topic `t`, as far as calls have said so.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Said {
    Nothing,
    /// So many queues to write to, and these messages in the first one, from this offset on.
    There(u16, u64, Vec<u64>),
}

/// What was said last, and what an operation that failed may have done all the same.
type Possible = Vec<Said>;

fn change(store: &Store, step: usize, states: &mut Possible) {
    let name = "t";
    let state = states[0].clone();
    let (done, after) = match (step % 8, state) {
        (0, Said::Nothing) | (5, Said::Nothing) => {
            (store.create_topic(name, 1).map(drop), Said::There(1, 0, Vec::new()))
        }
        (1 | 3, Said::There(queues, min, mut messages)) => {
            let Some(topic) = store.topics.get(name) else { return };
            let nth = step as u64;
            let sent = store.append(&topic, &topic.queues[0], pending(&body(nth)));
            messages.push(nth);
            let sent = sent.map(drop).map_err(|error| match error {
                AppendError::Failed(error) => error,
                AppendError::Gone => panic!("nobody else changes the topic"),
            });
            (sent, Said::There(queues, min, messages))
        }
        (2, Said::There(_, min, messages)) => {
            let config = TopicConfig::new(3);
            (store.update_topic(name, config).map(drop), Said::There(3, min, messages))
        }
        (4, Said::There(..)) => (store.delete_topic(name).map(drop), Said::Nothing),
        (6, state) => {
            let checkpoint = store.write_checkpoint(&mut store.checkpoint.lock(), None);
            (checkpoint, state)
        }
        (7, Said::There(queues, min, messages)) => {
            let after = Said::There(queues, min + messages.len() as u64, Vec::new());
            (store.purge_topic(name).map(drop), after)
        }
        _ => return,
    };
    match done {
        Ok(()) => *states = vec![after],
        Err(_) => states.push(after),
    }
}

fn said(store: &Store) -> Said {
    let Some(topic) = store.topics.get("t") else { return Said::Nothing };
    let bodies = read(store, &topic, 0);
    let number = |body: Vec<u8>| u64::from_le_bytes(body[..8].try_into().unwrap());
    let messages = bodies.into_iter().map(number).collect();
    Said::There(topic.config.write_queues, topic.queues[0].min(), messages)
}

#[test]
fn b_021_every_call_may_fail_between_the_record_and_the_table() {
    let mut failures = 0;
    for (kind, times) in [(ErrorKind::Other, 1), (ErrorKind::StorageFull, 1), (ErrorKind::Other, 9)]
    {
        for nth in 0.. {
            let dir = tempfile::tempdir().unwrap();
            let faulty = Faulty::new(dir.path());
            open_on(faulty.clone()).unwrap().close().unwrap();
            faulty.fail(None, nth, times, kind);
            let mut states = vec![Said::Nothing];
            if let Ok(store) = open_on(faulty.clone()) {
                for step in 0..40 {
                    // What a failed call has left open decides what the next ones do.
                    if states.len() == 1 {
                        change(&store, step, &mut states);
                    }
                }
            }
            faulty.unlock();
            if !faulty.has_failed() {
                break;
            }
            failures += 1;
            for _ in 0..2 {
                let store = open(dir.path());
                let found = said(&store);
                assert!(states.contains(&found), "{kind:?} {nth}: {found:?} of {states:?}");
                kill(store);
            }
        }
    }
    assert!(failures > 60, "only {failures} failures");
}

#[test]
fn b_021_a_kill_after_any_change_keeps_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut states = vec![Said::Nothing];
    for step in 0..40 {
        change(&store, step, &mut states);
        let copy = copy_of(dir.path());
        for _ in 0..2 {
            let again = open(copy.path());
            assert_eq!([said(&again)], states[..], "step {step}");
            assert_eq!(again.report().index_rebuilt, None, "step {step}");
            kill(again);
        }
    }
}

#[test]
fn b_172_the_last_of_many_topics_costs_what_the_first_did() {
    let dir = tempfile::tempdir().unwrap();
    let faulty = Faulty::new(dir.path());
    let store = open_on(faulty.clone()).unwrap();
    let calls = |call| faulty.count(call);
    let mut costs = Vec::new();
    for round in 0..5 {
        let before = (store.log.committed(), faulty.bytes_written(), calls(Call::Write));
        for nth in 0..1000 {
            store.create_topic(&format!("topic-{round}-{nth:04}"), 1).unwrap();
        }
        store.write_checkpoint(&mut store.checkpoint.lock(), None).unwrap();
        let log = store.log.committed() - before.0;
        costs.push((log, faulty.bytes_written() - before.1, calls(Call::Write) - before.2));
    }
    println!("1000 topics each: bytes of log, bytes and calls of other files: {costs:?}");
    let (first, last) = (costs[0], costs[4]);
    assert!(last.0 < first.0 + first.0 / 10 && last.1 < 2 * first.1, "{costs:?}");
    // One log file more or less.
    assert!(last.2 < first.2 + 10, "{costs:?}");
    comes_back(dir.path(), store);
}
