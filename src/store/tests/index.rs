//! The index is derived: whatever becomes of its files, queues come back exactly.

use super::faulty::{Call, Faulty};
use super::*;

/// A store with many queues, some of them long, and messages dropped from the front.
fn busy() -> (tempfile::TempDir, Contents) {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let long = topic(&store, 3);
    store.create_topic("wide", 40).unwrap();
    let wide = store.topics.get("wide").unwrap();
    for nth in 0..1500 {
        send_body(&store, &long, (nth % 2) as usize, &sized(nth, 100)).unwrap();
        if nth % 10 == 0 {
            send(&store, &wide, (nth / 10 % 40) as usize, nth);
        }
    }
    store.drop_before(store.log.committed() / 2).unwrap();
    let expected = contents(&store);
    assert!(expected[&("t".to_owned(), 0)].0 > 0);
    kill(store);
    (dir, expected)
}

// (STORE-43)
#[test]
fn b_007_missing_and_damaged_index_files_are_rebuilt_exactly() {
    let (dir, expected) = busy();
    let closed = copy_of(dir.path());
    open(closed.path()).close().unwrap();
    for from in [dir.path(), closed.path()] {
        let mut names: Vec<_> = files_in(from).into_keys().collect();
        names.retain(|name| name.starts_with("index"));
        assert!(names.len() > 2);
        for name in &names {
            for variant in 0..6 {
                let copy = copy_of(from);
                let path = copy.path().join(name);
                let mut bytes = std::fs::read(&path).unwrap();
                match variant {
                    0 => std::fs::remove_file(&path).unwrap(),
                    1 => std::fs::write(&path, b"").unwrap(),
                    2 => std::fs::write(&path, &bytes[..bytes.len() / 2 + 3]).unwrap(),
                    3 => std::fs::write(&path, vec![0; bytes.len()]).unwrap(),
                    4 => std::fs::write(&path, vec![0x5A; bytes.len()]).unwrap(),
                    _ => {
                        // The head of a block: without it the block belongs to nobody.
                        let head = bytes.windows(4).position(|four| four == b"blck");
                        let Some(at) = head else { continue };
                        bytes[at + 9] ^= 1;
                        std::fs::write(&path, bytes).unwrap();
                    }
                }
                let store = open(copy.path());
                assert!(contents(&store) == expected, "{} {variant}", name.display());
                assert!(store.report().index_rebuilt.is_some(), "{} {variant}", name.display());
                kill(store);
                let store = open(copy.path());
                assert_eq!(store.report().index_rebuilt, None);
                assert!(contents(&store) == expected);
            }
        }
        let copy = copy_of(from);
        std::fs::remove_dir_all(copy.path().join("index")).unwrap();
        assert!(contents(&open(copy.path())) == expected);
    }
}

// The checkpoint is behind all that is derived, and entries beyond the log go (STORE-41, STORE-46).
#[test]
fn b_011_an_index_older_or_newer_than_the_log_is_put_right() {
    let dir = tempfile::tempdir().unwrap();
    let mut copies = Vec::new();
    let mut sent = 0;
    for round in 0..4 {
        let store = open(dir.path());
        let topic = topic(&store, 2);
        for _ in 0..400 {
            send(&store, &topic, sent as usize % 2, sent);
            sent += 1;
        }
        let expected = contents(&store);
        if round % 2 == 0 {
            kill(store)
        } else {
            store.close().unwrap()
        }
        copies.push((copy_of(dir.path()), expected));
    }
    for (log, expected) in &copies {
        for (index, _) in &copies {
            let copy = copy_of(log.path());
            std::fs::remove_dir_all(copy.path().join("index")).unwrap();
            std::fs::create_dir(copy.path().join("index")).unwrap();
            for (name, bytes) in files_in(index.path()) {
                if name.starts_with("index") {
                    std::fs::write(copy.path().join(name), bytes).unwrap();
                }
            }
            for _ in 0..2 {
                let store = open(copy.path());
                assert!(&contents(&store) == expected);
                kill(store);
            }
        }
    }
}

#[test]
fn a_kill_after_blocks_and_files_were_added_keeps_the_index() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.create_topic("wide", 300).unwrap();
    let wide = store.topics.get("wide").unwrap();
    let long = topic(&store, 1);
    store.close().unwrap();
    let store = open(dir.path());
    let (wide, long) = (wide.name.clone(), long.name.clone());
    let (wide, long) = (store.topics.get(&wide).unwrap(), store.topics.get(&long).unwrap());
    for nth in 0..3000 {
        send_body(&store, &long, 0, &sized(nth, 16)).unwrap();
        if nth < 300 {
            send(&store, &wide, nth as usize, nth);
        }
    }
    // Room in advance: blocks that hold nothing yet.
    let queue = &long.queues[0];
    let batch: Vec<_> = (0..600).map(|nth| sized(nth, 8)).collect();
    store.grow_index(queue, 5000).unwrap();
    kill(copy_is_whole(dir.path(), &contents(&store)));
    send_batch(&store, &long, 0, &batch).unwrap();
    kill(copy_is_whole(dir.path(), &contents(&store)));
}

fn copy_is_whole(dir: &Path, expected: &Contents) -> Store {
    let copy = copy_of(dir);
    let store = open(copy.path());
    assert_eq!(store.report().index_rebuilt, None);
    assert!(&contents(&store) == expected);
    let topic = store.topics.get("t").unwrap();
    let max = topic.queues[0].max();
    let batch: Vec<_> = (0..700).map(|nth| sized(nth, 8)).collect();
    assert_eq!(send_batch(&store, &topic, 0, &batch).unwrap().offset, max);
    store
}

#[test]
fn thousands_of_queues_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for topic in 0..3 {
        store.create_topic(&format!("t{topic}"), 1000).unwrap();
    }
    let topics: Vec<_> = (0..3).map(|n| store.topics.get(&format!("t{n}")).unwrap()).collect();
    for nth in 0..9000 {
        send_body(&store, &topics[nth % 3], nth / 3 % 1000, &sized(nth as u64, 20)).unwrap();
    }
    let expected = contents(&store);
    let killed = copy_of(dir.path());
    store.close().unwrap();
    for from in [dir.path(), killed.path()] {
        let store = open(from);
        assert_eq!(store.report().index_rebuilt, None);
        assert!(contents(&store) == expected);
    }
    std::fs::remove_dir_all(dir.path().join("index")).unwrap();
    assert!(contents(&open(dir.path())) == expected);
}

#[test]
fn a_clean_open_reads_metadata_only() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let topic = topic(&store, 4);
    for nth in 0..3000 {
        send(&store, &topic, nth as usize % 4, nth);
    }
    store.close().unwrap();
    let faulty = Faulty::new(dir.path());
    let store = open_on(faulty.clone()).unwrap();
    let report = store.report();
    assert!(report.clean);
    assert_eq!((report.records_scanned, report.bytes_scanned), (0, 0));
    assert!(faulty.bytes_read() < 32 << 10, "{} bytes read", faulty.bytes_read());
    assert!(faulty.count(Call::Create) < 8);
    kill(store);
    // And after a kill that had flushed nothing since, only what came after the checkpoint.
    let store = open(dir.path());
    let report = store.report();
    assert!(!report.clean);
    assert_eq!(report.records_scanned, 0);
}

#[test]
fn a_busy_queue_finds_its_next_block_and_its_next_file_made() {
    let dir = tempfile::tempdir().unwrap();
    let faulty = Faulty::new(dir.path());
    let config = StoreConfig { segment_bytes: 1 << 20, ..config(Flush::EveryMessage) };
    let store = Store::open(faulty.clone(), config, Clock::system()).unwrap();
    let topic = topic(&store, 1);
    let mut made = Vec::new();
    for nth in 0..120_000 {
        let before = faulty.count(Call::Create);
        send_body(&store, &topic, 0, b"0").unwrap();
        if faulty.count(Call::Create) > before {
            made.push(nth);
        }
        if store.allocator.hear() {
            store.allocate_step();
        }
    }
    // A queue that grows takes blocks of each length, of which nothing could be known.
    assert_eq!(made, [0, 14, 80, 354, 1460, 5894]);
    assert!(files_in(&dir.path().join("index")).len() > made.len());
    // What is made and not used yet is no damage, and is used after a kill.
    let expected = contents(&store);
    kill(store);
    let store = open_on(Arc::new(Directory::new(dir.path()).unwrap())).unwrap();
    assert!(store.report().index_rebuilt.is_none() && contents(&store) == expected);
    store.close().unwrap();
    assert!(check(&store.storage).unwrap().is_sound());
    let closed = store.grow_index(&topic.queues[0], 1 << 20);
    assert!(closed.is_err(), "an index has grown after the close");
}
