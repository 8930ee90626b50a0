//! Dropping the front of the log, and what becomes of the files.

use super::*;

#[test]
fn drop_before_frees_files_and_keeps_numbers_and_held_messages() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let topic = topic(&store, 1);
    for nth in 0..2000 {
        send(&store, &topic, 0, nth);
    }
    let queue = &topic.queues[0];
    let held = store.fetch(queue, 0, 5, 1 << 20, &All).unwrap().messages;
    let detached = held.get(3).unwrap().detach();
    let committed = store.log.committed();
    assert!(store.drop_before(committed - 2 * SEGMENT).unwrap() > 3);
    let min = queue.min();
    assert!(min > 0 && min < 2000);
    assert_eq!(read(&store, &topic, 0), (min..2000).map(body).collect::<Vec<_>>());
    assert_eq!(held.get(4).unwrap().body(), body(4));
    // The freed files are used again.
    for nth in 2000..4000 {
        send(&store, &topic, 0, nth);
    }
    assert_eq!(read(&store, &topic, 0), (min..4000).map(body).collect::<Vec<_>>());
    for nth in 0..5 {
        assert_eq!(held.get(nth).unwrap().body(), body(nth as u64));
    }
    drop(held);
    assert_eq!(detached.delivery().body(), body(3));
    kill(store);
    let store = open(dir.path());
    let topic = store.topics.get("t").unwrap();
    assert_eq!(topic.queues[0].min(), min);
    assert_eq!(read(&store, &topic, 0), (min..4000).map(body).collect::<Vec<_>>());
    assert_eq!(detached.delivery().body(), body(3));
}

#[test]
fn b_042_a_held_file_is_not_used_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let topic = topic(&store, 1);
    let mut held = Vec::new();
    for nth in 0..4000 {
        send(&store, &topic, 0, nth);
        if nth % 100 == 0 {
            held.push((nth, store.fetch(&topic.queues[0], nth, 1, 1, &All).unwrap().messages));
            store.drop_before(store.log.committed()).unwrap();
        }
        if nth % 700 == 0 {
            held.truncate(held.len() / 2);
        }
    }
    for (nth, messages) in held {
        assert_eq!(messages.get(0).unwrap().body(), body(nth));
    }
}

#[test]
fn at_most_two_dropped_files_are_kept_and_all_are_gone_at_the_next_open() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let topic = topic(&store, 1);
    let spares = || {
        let is_spare = |name: &PathBuf| name.to_string_lossy().contains("spare");
        files_in(dir.path()).into_keys().filter(is_spare).count()
    };
    for round in 0..4 {
        for nth in 0..1000 {
            send(&store, &topic, 0, nth);
        }
        let files = log_in(dir.path()).len();
        let dropped = store.drop_before(store.log.committed()).unwrap();
        assert!(dropped >= 3, "round {round}");
        assert_eq!(spares(), 2);
        assert_eq!(log_in(dir.path()).len(), files - dropped + spares());
    }
    let expected = contents(&store);
    kill(store);
    let store = open(dir.path());
    assert_eq!(spares(), 0);
    assert!(contents(&store) == expected);
}

#[test]
fn a_file_of_an_earlier_life_is_never_used_again() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path());
    let queue = topic(&first, 1).queues[0].clone();
    for nth in 0..1000 {
        send(&first, &topic(&first, 1), 0, nth);
    }
    // Lent by a broker that is closed: the next one knows nothing of it.
    let held = first.fetch(&queue, 0, 32, 1 << 20, &All).unwrap().messages;
    let detached = held.get(3).unwrap().detach();
    first.close().unwrap();
    let second = open(dir.path());
    let topic = topic(&second, 1);
    for round in 1..4 {
        assert!(second.drop_before(u64::MAX).unwrap() > 0);
        for nth in 0..1000 {
            send(&second, &topic, 0, round * 1000 + nth);
        }
        for nth in 0..32 {
            assert_eq!(held.get(nth).unwrap().body(), body(nth as u64), "round {round}");
        }
        assert_eq!(detached.delivery().body(), body(3));
    }
}

/// (STORE-52, STORE-25)
#[test]
fn a_queue_whose_messages_are_all_gone_keeps_its_numbering() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let topic = topic(&store, 2);
    for nth in 0..150 {
        send(&store, &topic, 0, nth);
    }
    for round in 0..2 {
        for nth in 0..1000 {
            send(&store, &topic, 1, nth);
        }
        store.drop_before(store.log.committed()).unwrap();
        assert_eq!((topic.queues[0].min(), topic.queues[0].max()), (150, 150), "round {round}");
    }
    let killed = copy_of(dir.path());
    store.close().unwrap();
    for from in [dir.path(), killed.path()] {
        for index in [true, false] {
            let copy = copy_of(from);
            if !index {
                std::fs::remove_dir_all(copy.path().join("index")).unwrap();
            }
            for round in 0..3 {
                let store = open(copy.path());
                let topic = store.topics.get("t").unwrap();
                let queue = &topic.queues[0];
                assert_eq!((queue.min(), queue.max()), (150, 150 + round));
                assert_eq!(send(&store, &topic, 0, round).offset, 150 + round);
                kill(store);
            }
            // Twice without an index in between.
            std::fs::remove_dir_all(copy.path().join("index")).unwrap();
            let store = open(copy.path());
            let topic = store.topics.get("t").unwrap();
            let all: Vec<_> = (0..3).map(body).collect();
            assert_eq!((topic.queues[0].min(), read(&store, &topic, 0)), (150, all));
        }
    }
}

// (STORE-26)
#[test]
fn dropping_at_any_position_keeps_whole_files_and_exact_minima() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let topic = topic(&store, 3);
    let sent: Vec<_> = (0..1200).map(|nth| send(&store, &topic, nth as usize % 3, nth)).collect();
    let mut dropped = 0;
    for position in [0, 1, SEGMENT - 1, SEGMENT, SEGMENT + 1, 3 * SEGMENT - 1, 3 * SEGMENT, 1] {
        dropped += store.drop_before(position).unwrap() as u64;
        assert_eq!(store.log.min_position(), dropped * SEGMENT, "at {position}");
        for queue in 0..3 {
            let left = (0..1200u64).filter(|nth| {
                *nth as usize % 3 == queue && sent[*nth as usize].position >= dropped * SEGMENT
            });
            assert_eq!(read(&store, &topic, queue), left.map(body).collect::<Vec<_>>());
        }
        let copy = copy_of(dir.path());
        let again = open(copy.path());
        assert!(contents(&again) == contents(&store));
        assert_eq!(again.log.min_position(), dropped * SEGMENT);
    }
    assert_eq!(dropped, 3);
    store.drop_before(u64::MAX).unwrap();
    assert_eq!(store.log.files().iter().filter(|f| f.base <= store.log.committed()).count(), 1);
}

#[test]
fn index_blocks_that_a_reader_held_are_used_again_when_he_lets_go() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let topic = topic(&store, 1);
    let queue = &topic.queues[0];
    let index = || std::fs::read_dir(dir.path().join("index")).unwrap().count();
    let mut warm = None;
    for round in 0..30 {
        // As a reader does who looks something up while its blocks are given back.
        let held = queue.blocks();
        for nth in 0..700 {
            send(&store, &topic, 0, round * 700 + nth);
        }
        store.drop_before(store.log.committed()).unwrap();
        drop(held);
        if round == 5 {
            warm = Some(index());
        }
    }
    assert_eq!(Some(index()), warm);
}

#[test]
fn index_blocks_that_a_reader_held_are_taken_back_at_the_next_open() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let topic = topic(&store, 1);
    let queue = &topic.queues[0];
    for round in 0..6 {
        let held = queue.blocks();
        for nth in 0..700 {
            send(&store, &topic, 0, round * 700 + nth);
        }
        store.drop_before(store.log.committed()).unwrap();
        if round % 2 == 0 {
            drop(held);
        } else {
            std::mem::forget(held);
        }
    }
    let expected = contents(&store);
    let killed = copy_of(dir.path());
    store.close().unwrap();
    for from in [dir.path(), killed.path()] {
        let store = open(from);
        assert_eq!(store.report().index_rebuilt, None);
        assert!(contents(&store) == expected);
    }
}
