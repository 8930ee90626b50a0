//! Files that rocklet did not leave so: an error that names file and position, or what can be
//! derived is derived again. Never a panic, and nothing is changed before it is decided.

use super::*;

/// A store of several log files, all flushed; then a few messages that are not.
fn with_flushed_files() -> (tempfile::TempDir, Vec<Appended>) {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let topic = topic(&store, 2);
    store.create_topic("empty", 2).unwrap();
    let group = store.groups.number("g").unwrap();
    store.offsets.set(OffsetKey { group, incarnation: 1, queue: 1 }, 3).unwrap();
    let send = |nth| send_body(&store, &topic, nth as usize % 2, &sized(nth, 490)).unwrap();
    let mut sent: Vec<_> = (0..400).map(send).collect();
    store.flush().unwrap();
    sent.extend((400..410).map(send));
    assert!(store.log.files().len() >= 3);
    kill(store);
    (dir, sent)
}

#[test]
fn b_003_damage_in_the_middle_is_refused_with_its_place() {
    let (dir, sent) = with_flushed_files();
    // The checkpoint is at the start: everything is read. Below the flushed mark, and above it
    // with sound records behind: a killed process leaves neither.
    for nth in [0, 1, 200, 397, 399, 400, 405, 408] {
        for k in [0, 4, 8, 9, 16, 24, 40, 63, 64, 70] {
            let copy = copy_of(dir.path());
            let (file, at) = place_of(copy.path(), sent[nth].position + k);
            change(&file, at, |rest| rest[0] ^= 0x11);
            let (named, position, _) = refused(copy.path());
            assert_eq!((named, position), (file, sent[nth].position), "record {nth}, byte {k}");
        }
    }
}

#[test]
fn durable_records_that_are_gone_are_missed() {
    let (dir, sent) = with_flushed_files();
    let (file, at) = place_of(dir.path(), sent[399].position);
    change(&file, at, |rest| rest.fill(0));
    assert_eq!(refused(dir.path()).1, sent[399].position);
}

#[test]
fn b_043_a_missing_log_file_is_refused_however_the_store_was_closed() {
    let (dir, _) = with_flushed_files();
    let closed = copy_of(dir.path());
    open(closed.path()).close().unwrap();
    let checkpointed = copy_of(dir.path());
    kill(open(checkpointed.path()));
    for from in [dir.path(), closed.path(), checkpointed.path()] {
        let names: Vec<_> = log_in(from).into_keys().collect();
        // The last one may be empty and wait for the tail.
        for name in &names[..names.len() - 1] {
            let copy = copy_of(from);
            std::fs::remove_file(copy.path().join(name)).unwrap();
            refused(copy.path());
            std::fs::remove_dir_all(copy.path().join("index")).unwrap();
            refused(copy.path());
        }
        let copy = copy_of(from);
        std::fs::remove_dir_all(copy.path().join("commitlog")).unwrap();
        std::fs::create_dir(copy.path().join("commitlog")).unwrap();
        refused(copy.path());
    }
}

// (STORE-15)
#[test]
fn a_log_file_of_another_length_is_refused() {
    let (dir, sent) = with_flushed_files();
    for clean in [true, false] {
        if clean {
            open(dir.path()).close().unwrap();
        }
        for nth in [0, 399] {
            let (file, at) = place_of(dir.path(), sent[nth].position);
            let whole = std::fs::read(&file).unwrap();
            for len in [0, 1, 63, 64, 65, at, at + 30, whole.len() - 1, whole.len() + 1] {
                let copy = copy_of(dir.path());
                let mut bytes = whole.clone();
                bytes.resize(len, 0);
                let (file, _) = place_of(copy.path(), sent[nth].position);
                std::fs::write(&file, bytes).unwrap();
                refused(copy.path());
            }
        }
    }
}

#[test]
fn a_damaged_head_of_a_log_file_is_refused() {
    let (dir, sent) = with_flushed_files();
    for nth in [0, 399, 409] {
        for k in 0..64 {
            let copy = copy_of(dir.path());
            let (file, _) = place_of(copy.path(), sent[nth].position);
            change(&file, k, |rest| rest[0] ^= 4);
            match try_open(copy.path()) {
                Err(Error::Corrupt { file: named, .. } | Error::Version { file: named, .. }) => {
                    assert_eq!(named, file);
                }
                other => panic!("byte {k}: {other:?}"),
            }
        }
    }
}

#[test]
fn a_log_file_of_another_store_is_refused() {
    let (dir, sent) = with_flushed_files();
    let (other, _) = with_flushed_files();
    let names: Vec<_> = log_in(dir.path()).into_keys().collect();
    for name in &names {
        let copy = copy_of(dir.path());
        std::fs::copy(other.path().join(name), copy.path().join(name)).unwrap();
        let (file, position, _) = refused(copy.path());
        assert_eq!(file, copy.path().join(name));
        assert!(position % SEGMENT < 64);
    }
    // A further one at the end is not thrown away either.
    let copy = copy_of(dir.path());
    let (first, _) = place_of(other.path(), 0);
    std::fs::copy(first, copy.path().join(format!("commitlog/{:020}", 40 * SEGMENT))).unwrap();
    refused(copy.path());
    // Nor is a record of another store accepted.
    let (file, at) = place_of(dir.path(), sent[0].position);
    let (foreign, _) = place_of(other.path(), sent[0].position);
    let foreign = std::fs::read(foreign).unwrap();
    change(&file, at, |rest| {
        let length = (sent[0].end - sent[0].position) as usize;
        rest[..length].copy_from_slice(&foreign[at..at + length]);
    });
    assert_eq!(refused(dir.path()).1, sent[0].position);
}

#[test]
fn an_end_that_leaves_no_room_for_a_filler_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let topic = topic(&store, 1);
    let mut position = store.log.committed();
    while SEGMENT - position > 2000 {
        position = send_body(&store, &topic, 0, &sized(1, 500)).unwrap().end;
    }
    // As by another version: a sound record behind which 24 bytes are left.
    let content = sized(2, (SEGMENT - position) as usize - 24 - record::HEADER - 1);
    let draft = draft(&topic, &content);
    let mut bytes = vec![0; draft.length()];
    let offset = topic.queues[0].max();
    draft.write(record::Place { position, offset, store_ms: 0 }, &mut bytes);
    assert_eq!(position + bytes.len() as u64, SEGMENT - 24);
    let closed = copy_of(dir.path());
    kill(store);
    open(closed.path()).close().unwrap();
    for from in [dir.path(), closed.path()] {
        let (file, at) = place_of(from, position);
        change(&file, at, |rest| rest[..bytes.len()].copy_from_slice(&bytes));
        let (named, at, _) = refused(from);
        assert_eq!((named, at), (file, SEGMENT - 24));
    }
}

#[test]
fn impossible_numbers_are_damage() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let topic = topic(&store, 1);
    let end = send(&store, &topic, 0, 0).end;
    let draft = draft(&topic, b"body");
    let mut bytes = vec![0; draft.length()];
    let place = record::Place { position: end, offset: u64::MAX, store_ms: 0 };
    draft.write(place, &mut bytes);
    kill(store);
    let (file, at) = place_of(dir.path(), end);
    change(&file, at, |rest| rest[..bytes.len()].copy_from_slice(&bytes));
    let store = open(dir.path());
    assert_eq!(store.report().cut_at, Some(end));
    assert_eq!(read(&store, &store.topics.get("t").unwrap(), 0), [body(0)]);
}

#[test]
fn a_missing_offsets_file_is_refused_however_the_store_was_closed() {
    let (dir, _) = with_flushed_files();
    let store = open(dir.path());
    let group = store.groups.find("g").unwrap();
    for incarnation in 1..1200 {
        store.offsets.set(OffsetKey { group, incarnation, queue: 9 }, 3).unwrap();
    }
    assert_eq!(store.offsets.files(), 2);
    let killed = copy_of(dir.path());
    store.close().unwrap();
    kill(open(killed.path()));
    for from in [dir.path(), killed.path()] {
        for name in ["meta/offsets-0000", "meta/offsets-0001"] {
            let copy = copy_of(from);
            std::fs::remove_file(copy.path().join(name)).unwrap();
            refused(copy.path());
        }
    }
}

#[test]
fn names_that_are_not_ours_are_left_alone() {
    let (dir, _) = with_flushed_files();
    let strange = ["notes.txt", "99999999999999999999", "18446744073709551615", "123"];
    for name in strange {
        let copy = copy_of(dir.path());
        let path = copy.path().join("commitlog").join(name);
        std::fs::write(&path, b"mine").unwrap();
        match try_open(copy.path()) {
            Ok(store) => kill(store),
            Err(Error::Corrupt { file, .. }) => assert_eq!(file, path),
            Err(other) => panic!("{other}"),
        }
        assert_eq!(std::fs::read(path).unwrap(), b"mine");
    }
}

/// Damages a file of `meta` in every way and opens: refused with the name of that file, or opened
/// with everything there.
fn derived_or_refused(dir: &Path, name: &str, may_refuse: bool) {
    let expected = {
        let copy = copy_of(dir);
        contents(&open(copy.path()))
    };
    let whole = std::fs::read(dir.join(name)).unwrap();
    let mut variants =
        vec![None, Some(Vec::new()), Some(vec![0; whole.len()]), Some(vec![9; 5000])];
    variants.extend((0..whole.len().min(1200)).step_by(31).map(|k| {
        let mut bytes = whole.clone();
        bytes[k] ^= 0x41;
        Some(bytes)
    }));
    variants.extend((1..whole.len().min(1200)).step_by(101).map(|k| Some(whole[..k].to_vec())));
    for variant in variants {
        let copy = copy_of(dir);
        let path = copy.path().join(name);
        match &variant {
            Some(bytes) => std::fs::write(&path, bytes).unwrap(),
            None => std::fs::remove_file(&path).unwrap(),
        }
        let before = log_in(copy.path());
        match try_open(copy.path()) {
            Ok(store) => {
                assert!(contents(&store) == expected, "{name}");
                let group = store.groups.find("g").unwrap();
                let key = OffsetKey { group, incarnation: 1, queue: 1 };
                assert_eq!(store.offsets.get(key), Some(3));
                let topic = store.topics.get("t").unwrap();
                send(&store, &topic, 0, 7);
                kill(store);
                open(copy.path()).close().unwrap();
            }
            Err(Error::Corrupt { file, .. } | Error::Version { file, .. }) => {
                assert!(may_refuse, "{} is not needed to open", file.display());
                assert_eq!(file, path);
                assert_eq!(log_in(copy.path()), before);
            }
            Err(other) => panic!("{name}: {other}"),
        }
    }
}

#[test]
fn damaged_metadata_is_derived_again_or_refused_by_name() {
    let (dir, _) = with_flushed_files();
    let closed = copy_of(dir.path());
    open(closed.path()).close().unwrap();
    for from in [dir.path(), closed.path()] {
        derived_or_refused(from, "meta/checkpoint", true);
        derived_or_refused(from, "meta/flushed", true);
        derived_or_refused(from, "meta/next_base", true);
        derived_or_refused(from, "meta/topics", true);
        derived_or_refused(from, "meta/groups", true);
        derived_or_refused(from, "meta/store", true);
    }
    derived_or_refused(closed.path(), "CLEAN", true);
}

// After a clean close the end is named, not searched for, unless something stands there (STORE-44).
#[test]
fn a_clean_mark_that_is_out_of_date_is_no_mark() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let topic = topic(&store, 1);
    send(&store, &topic, 0, 0);
    store.close().unwrap();
    let mark = std::fs::read(dir.path().join("CLEAN")).unwrap();
    let checkpoint = std::fs::read(dir.path().join("meta/checkpoint")).unwrap();
    let store = open(dir.path());
    assert!(store.report().clean);
    let topic = store.topics.get("t").unwrap();
    send(&store, &topic, 0, 1);
    kill(store);
    std::fs::write(dir.path().join("CLEAN"), mark).unwrap();
    std::fs::write(dir.path().join("meta/checkpoint"), checkpoint).unwrap();
    let store = open(dir.path());
    assert!(!store.report().clean);
    assert_eq!(read(&store, &store.topics.get("t").unwrap(), 0), [body(0), body(1)]);
}

#[test]
fn b_020_an_index_entry_that_lies_is_found_out_when_it_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let topic = topic(&store, 2);
    for nth in 0..10 {
        send(&store, &topic, nth as usize % 2, nth);
    }
    store.close().unwrap();
    let index = dir.path().join("index/00000000");
    let whole = std::fs::read(&index).unwrap();
    // A clean open trusts the entries; every one of them is tried with every kind of lie.
    let first = whole.windows(4).position(|four| four == b"blck").unwrap() + 32;
    for entry in 0..5 {
        for lie in [0, 1, 63, 64, 65, 72, 5000, SEGMENT - 8, SEGMENT, 1 << 40, u64::MAX] {
            let mut bytes = whole.clone();
            bytes[first + entry * 16..][..8].copy_from_slice(&u64::to_le_bytes(lie));
            std::fs::write(&index, bytes).unwrap();
            let copy = copy_of(dir.path());
            let store = open(copy.path());
            let topic = store.topics.get("t").unwrap();
            for queue in &topic.queues {
                let mut offset = 0;
                while offset < 5 {
                    match store.fetch(queue, offset, 32, 1 << 20, &All) {
                        Ok(fetch) => {
                            for message in &fetch.messages {
                                let nth = message.offset() * 2 + u64::from(queue.queue);
                                assert_eq!(message.body(), body(nth));
                            }
                            offset = fetch.next;
                        }
                        Err(Error::Corrupt { .. }) => offset += 1,
                        Err(other) => panic!("{other}"),
                    }
                    let _ = store.store_ms(queue, offset);
                }
            }
        }
    }
}
