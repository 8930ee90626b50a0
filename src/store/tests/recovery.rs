//! Opening after a kill: nothing acknowledged is missing, nothing torn comes back.

use super::faulty::{Call, Faulty};
use super::*;

// All that has to be loaded comes back, in the order that its parts need (STORE-42, STORE-48).
#[test]
fn messages_are_there_after_a_close_and_after_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let mut sent = 0;
    for round in 0..6 {
        let store = open(dir.path());
        let topic = topic(&store, 3);
        assert_eq!(topic.queues.len(), 3);
        for queue in 0..3 {
            let expected: Vec<_> = (0..sent).filter(|n| n % 3 == queue as u64).map(body).collect();
            assert_eq!(read(&store, &topic, queue), expected, "round {round}");
        }
        for _ in 0..500 {
            send(&store, &topic, (sent % 3) as usize, sent);
            sent += 1;
        }
        if round % 2 == 0 { store.close().unwrap() } else { kill(store) }
    }
}

// Read on from the checkpoint, and nothing is behind before an open returns (STORE-45, STORE-47).
#[test]
fn a_copy_taken_at_any_moment_opens_with_everything_sent_until_then() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let topic = topic(&store, 2);
    let mut bases = Vec::new();
    for nth in 0..600 {
        send(&store, &topic, (nth % 2) as usize, nth);
        match nth {
            150 => store.flush().unwrap(),
            250 => assert!(store.drop_before(store.log.committed()).is_ok()),
            350 => store.allocate_step(),
            450 => store.checkpoint_step(),
            _ => {}
        }
        if nth % 29 == 0 {
            let copy = copy_of(dir.path());
            let expected = contents(&store);
            for _ in 0..2 {
                let again = open(copy.path());
                assert!(contents(&again) == expected, "after {nth}");
                assert_eq!(again.report().cut_at, None);
                assert_eq!(again.report().index_rebuilt, None, "after {nth}");
                kill(again);
            }
            let again = open(copy.path());
            let topic = again.topics.get("t").unwrap();
            let sent = send(&again, &topic, 0, 1);
            bases.push(sent.position);
            again.close().unwrap();
            assert!(open(copy.path()).report().clean);
        }
    }
    assert!(bases.is_sorted());
}

// (STORE-2)
#[test]
fn a_second_opener_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    assert!(matches!(try_open(dir.path()), Err(Error::Locked { .. })));
    store.close().unwrap();
    let store = open(dir.path());
    assert!(matches!(try_open(dir.path()), Err(Error::Locked { .. })));
    drop(store);
}

#[test]
fn after_a_close_nothing_is_taken_and_a_second_close_does_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let topic = topic(&store, 1);
    send(&store, &topic, 0, 0);
    store.close().unwrap();
    let owner = open(dir.path());
    let before = files_in(dir.path());
    assert!(matches!(send_body(&store, &topic, 0, b"x"), Err(Error::Closed)));
    assert!(matches!(store.create_topic("u", 1), Err(Error::Closed)));
    assert!(matches!(store.make_file(), Err(Error::Closed)));
    assert!(matches!(store.drop_before(u64::MAX), Err(Error::Closed)));
    let key = OffsetKey { group: 0, incarnation: 1, queue: 0 };
    assert!(matches!(store.offsets.begin(key, 1), Err(Error::Closed)));
    assert!(matches!(store.groups.number("g"), Err(Error::Closed)));
    store.allocate_step();
    store.flush_step();
    store.close().unwrap();
    let read = store.fetch(&topic.queues[0], 0, 1, 1, &All);
    assert!(matches!(read, Err(Error::Closed)), "{read:?}");
    assert!(files_in(dir.path()) == before, "a closed store has changed a file");
    assert!(matches!(try_open(dir.path()), Err(Error::Locked { .. })), "or given back a lock");
    kill(owner);
}

/// A store whose last append is a batch of `size` records; nothing of it has been flushed.
pub(super) fn with_last_batch(size: u64) -> (tempfile::TempDir, Vec<Vec<u8>>, Appended) {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let topic = topic(&store, 1);
    let mut sent: Vec<_> = (0..20).map(body).collect();
    for nth in 0..20 {
        send(&store, &topic, 0, nth);
    }
    let batch: Vec<_> = (100..100 + size).map(|nth| sized(nth, 40 + nth as usize % 9)).collect();
    let last = send_batch(&store, &topic, 0, &batch).unwrap();
    sent.extend(batch);
    kill(store);
    (dir, sent, last)
}

/// Opens a directory whose last append is torn, twice, with appends and closes in between: the
/// rest is there, and what was cut never comes back.
fn torn_append_is_gone(dir: &Path, rest: &[Vec<u8>], last: Appended) {
    let mut expected = rest.to_vec();
    for round in 0..3 {
        let store = open(dir);
        let topic = store.topics.get("t").unwrap();
        assert_eq!(read(&store, &topic, 0), expected);
        assert_eq!(topic.queues[0].max(), expected.len() as u64);
        let new = body(1000 + round);
        let sent = send_body(&store, &topic, 0, &new).unwrap();
        if round == 0 && store.report().cut_at.is_some() {
            assert_eq!(store.report().cut_at, Some(last.position));
            assert!(sent.position >= last.end, "a position of the cut was used again");
        }
        expected.push(new);
        if round == 1 { store.close().unwrap() } else { kill(store) }
    }
}

#[test]
fn a_last_record_cut_anywhere_disappears() {
    let (dir, sent, last) = with_last_batch(1);
    for cut in (last.position..last.end).step_by(3) {
        let copy = copy_of(dir.path());
        let (file, at) = place_of(copy.path(), cut);
        // Padding and zeroes of the body may make a cut invisible.
        let whole = std::fs::read(&file).unwrap();
        change(&file, at, |rest| rest.fill(0));
        if std::fs::read(&file).unwrap() != whole {
            torn_append_is_gone(copy.path(), &sent[..20], last);
        }
    }
}

#[test]
fn a_last_record_garbled_anywhere_disappears() {
    let (dir, sent, last) = with_last_batch(1);
    for at in (last.position..last.end).step_by(5) {
        let copy = copy_of(dir.path());
        let (file, at) = place_of(copy.path(), at);
        change(&file, at, |rest| rest[0] ^= 0x20);
        torn_append_is_gone(copy.path(), &sent[..20], last);
    }
}

#[test]
fn a_batch_torn_in_any_record_disappears_as_a_whole() {
    let (dir, sent, last) = with_last_batch(6);
    let length = (last.end - last.position) as usize;
    for at in (0..length).step_by(23) {
        for cut in [true, false] {
            let copy = copy_of(dir.path());
            let (file, start) = place_of(copy.path(), last.position);
            change(&file, start + at, |rest| if cut { rest.fill(0) } else { rest[0] ^= 0x20 });
            torn_append_is_gone(copy.path(), &sent[..20], last);
        }
    }
}

#[test]
fn a_cut_is_kept_aside() {
    let (dir, _, last) = with_last_batch(6);
    let (file, at) = place_of(dir.path(), last.end - 3);
    change(&file, at, |rest| rest[0] ^= 1);
    let (file, at) = place_of(dir.path(), last.position);
    let torn = std::fs::read(file).unwrap()[at..].to_vec();
    kill(open(dir.path()));
    let kept = std::fs::read(dir.path().join(format!("cut/{:020}", last.position))).unwrap();
    assert_eq!(kept, torn[..kept.len()]);
    assert!(torn[kept.len()..].iter().all(|byte| *byte == 0));
    assert!(kept.len() as u64 >= last.end - last.position - 8);
}

#[test]
fn a_torn_append_alone_is_cut_on_a_full_disk() {
    let (dir, sent, last) = with_last_batch(1);
    let (file, at) = place_of(dir.path(), last.end - 16);
    change(&file, at, |rest| rest[0] ^= 1);
    let full = Faulty::new(dir.path());
    full.fail(Some(Call::Create), 0, u64::MAX, std::io::ErrorKind::StorageFull);
    let store = open_on(full).unwrap();
    assert_eq!(store.report().cut_at, Some(last.position));
    assert_eq!(read(&store, &store.topics.get("t").unwrap(), 0), sent[..20]);
    assert!(!dir.path().join("cut").exists());
}

#[test]
fn lives_that_do_not_know_their_boot_are_not_the_same() {
    for known in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let opened =
            |dir: &Path| open_on(if known { Faulty::new(dir) } else { Faulty::without_boot(dir) });
        let store = opened(dir.path()).unwrap();
        let topic = topic(&store, 1);
        let sent: Vec<_> = (0..10).map(|nth| send(&store, &topic, 0, nth)).collect();
        kill(store);
        // As after a loss of power: a hole that nothing flushed lies behind.
        let (file, at) = place_of(dir.path(), sent[5].position);
        change(&file, at, |rest| rest[..100].fill(0));
        let store = opened(dir.path());
        if known {
            assert!(matches!(store, Err(Error::Corrupt { .. })));
        } else {
            let store = store.unwrap();
            assert_eq!(read(&store, &store.topics.get("t").unwrap(), 0).len(), 5);
        }
    }
}

#[test]
fn an_open_after_a_kill_syncs_only_what_was_not_flushed() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let topic = topic(&store, 1);
    for nth in 0..3000 {
        send(&store, &topic, 0, nth);
    }
    store.flush().unwrap();
    send(&store, &topic, 0, 3000);
    assert!(store.log.files().len() > 15);
    kill(store);
    let faulty = Faulty::new(dir.path());
    let store = open_on(faulty.clone()).unwrap();
    // The last log file, and those of the index.
    let index = std::fs::read_dir(dir.path().join("index")).unwrap().count() as u64;
    assert!(index < 10);
    assert!(faulty.count(Call::SyncRange) <= index + 2, "{}", faulty.count(Call::SyncRange));
    let (_, end, flushed) = store.extent();
    assert_eq!(flushed, end);
}

#[test]
fn b_005_stray_bytes_at_the_tail_are_written_over() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let topic = topic(&store, 1);
    let end = (0..5).map(|nth| send(&store, &topic, 0, nth).end).max().unwrap();
    let killed = copy_of(dir.path());
    store.close().unwrap();
    for from in [dir.path(), killed.path()] {
        for k in (1..64).step_by(4) {
            let copy = copy_of(from);
            let (file, at) = place_of(copy.path(), end);
            change(&file, at, |rest| rest[..k].fill(0xB7));
            let store = open(copy.path());
            let topic = store.topics.get("t").unwrap();
            send(&store, &topic, 0, 5);
            store.flush().unwrap();
            store.close().unwrap();
            let store = open(copy.path());
            let expected: Vec<_> = (0..6).map(body).collect();
            assert_eq!(read(&store, &store.topics.get("t").unwrap(), 0), expected, "k = {k}");
        }
    }
}

#[test]
fn b_018_a_file_whose_creation_was_not_finished_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let topic = topic(&store, 1);
    let sent: Vec<_> = (0..30).map(body).collect();
    for nth in 0..30 {
        send(&store, &topic, 0, nth);
    }
    let next = SEGMENT;
    let killed = copy_of(dir.path());
    store.close().unwrap();
    for from in [dir.path(), killed.path()] {
        for len in [0, 1, 32, 64, 100, SEGMENT as usize] {
            for unplaced in [true, false] {
                let copy = copy_of(from);
                let name =
                    if unplaced { "commitlog/new".into() } else { format!("commitlog/{next:020}") };
                std::fs::write(copy.path().join(name), vec![0; len]).unwrap();
                std::fs::write(copy.path().join("commitlog/spare-0"), vec![7; len]).unwrap();
                let store = open(copy.path());
                let topic = store.topics.get("t").unwrap();
                assert_eq!(read(&store, &topic, 0), sent);
                let more: Vec<_> = (0..60).map(|nth| sized(nth, 3000)).collect();
                for body in &more {
                    send_body(&store, &topic, 0, body).unwrap();
                }
                kill(store);
                let store = open(copy.path());
                let all = read(&store, &store.topics.get("t").unwrap(), 0);
                assert_eq!(all, [sent.clone(), more].concat());
            }
        }
    }
}

#[test]
fn b_029_an_empty_last_file_is_where_the_log_goes_on() {
    for (clean, flushed) in [(true, true), (false, true), (false, false)] {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        let topic = topic(&store, 1);
        let mut sent: Vec<_> = (0..7).map(body).collect();
        for nth in 0..7 {
            send(&store, &topic, 0, nth);
        }
        store.make_file().unwrap();
        // Rolls over, and then finds that no page of the new file is there.
        let large = sized(0, 65_000);
        let mut drafts = [draft(&topic, &large)];
        let refusal = store.log.append(Some(topic.target(&topic.queues[0])), &mut drafts, 0);
        assert!(matches!(refusal, Err(tail::Refusal::Pages(..))), "{refusal:?}");
        assert_eq!(store.log.committed(), SEGMENT + files::HEAD as u64);
        if flushed {
            store.flush().unwrap();
        }
        if clean {
            store.close().unwrap()
        } else {
            kill(store)
        }
        for index in [true, false] {
            if !index {
                std::fs::remove_dir_all(dir.path().join("index")).unwrap();
            }
            let store = open(dir.path());
            let topic = store.topics.get("t").unwrap();
            assert_eq!(read(&store, &topic, 0), sent);
            let next = sent.len() as u64;
            assert!(send(&store, &topic, 0, next).position > SEGMENT);
            sent.push(body(next));
            kill(store);
        }
    }
}

#[test]
fn next_base_never_goes_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut last = 0;
    let mut used = std::collections::BTreeSet::new();
    for round in 0..8 {
        let store = open(dir.path());
        let topic = topic(&store, 1);
        let mut end = last;
        for nth in 0..40 {
            let sent = send_body(&store, &topic, 0, &sized(nth, 4000)).unwrap();
            assert!(used.insert(sent.position), "position {} was used twice", sent.position);
            assert!(sent.position >= end);
            end = sent.end;
        }
        last = end;
        let committed = store.log.committed();
        if round % 2 == 0 {
            kill(store)
        } else {
            store.close().unwrap()
        }
        if round % 4 == 0 {
            // Tear the last record: its file is sealed.
            let (file, at) = place_of(dir.path(), committed - 100);
            change(&file, at, |rest| rest[..50].fill(0xEE));
        }
    }
}

#[test]
fn b_010_recovery_that_is_killed_begins_anew() {
    let (dir, sent, last) = with_last_batch(6);
    let (file, at) = place_of(dir.path(), last.end - 30);
    change(&file, at, |rest| rest[0] ^= 1);
    // What an earlier life had begun and not finished.
    for name in
        ["meta/checkpoint.new", "meta/topics.new", "CLEAN.new", "commitlog/new", "index/new"]
    {
        std::fs::write(dir.path().join(name), b"half").unwrap();
    }
    let mut steps = 0;
    loop {
        let copy = copy_of(dir.path());
        let faulty = Faulty::new(copy.path());
        faulty.fail(None, steps, u64::MAX, std::io::ErrorKind::Other);
        let opened = open_on(faulty.clone());
        let done = !faulty.has_failed();
        drop(opened);
        faulty.unlock();
        torn_append_is_gone(copy.path(), &sent[..20], last);
        if done {
            break;
        }
        steps += 1;
    }
    assert!(steps > 50, "only {steps} steps");
}

#[test]
fn half_of_a_new_index_never_passes_for_that_of_a_clean_close() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let topic = topic(&store, 1);
    for nth in 0..20 {
        send(&store, &topic, 0, nth);
    }
    store.close().unwrap();
    let index = files_in(&dir.path().join("index"));
    let faulty = Faulty::new(dir.path());
    faulty.fail(Some(Call::Unlink), 1, u64::MAX, std::io::ErrorKind::Other);
    let config = StoreConfig { rebuild: true, ..config(Flush::EveryMessage) };
    assert!(Store::open(faulty.clone(), config, Clock::system()).is_err());
    assert!(faulty.has_failed());
    assert!(!dir.path().join("CLEAN").exists(), "it goes before the index does");
    assert!(files_in(&dir.path().join("index")) == index);
    let store = open(dir.path());
    assert_eq!(read(&store, &store.topics.get("t").unwrap(), 0).len(), 20);
}

#[test]
fn b_008_offsets_beyond_the_end_of_their_queue_are_lowered_and_reported() {
    let (dir, _, last) = with_last_batch(5);
    let key = |queue| OffsetKey { group: 0, incarnation: 1, queue };
    let store = open(dir.path());
    assert_eq!(store.groups.number("g").unwrap(), 0);
    store.offsets.set(key(0), 25).unwrap();
    kill(store);
    // The loss of power takes the batch: another boot, and nothing flushed.
    for name in ["meta/flushed", "meta/checkpoint"] {
        std::fs::remove_file(dir.path().join(name)).unwrap();
    }
    let (file, at) = place_of(dir.path(), last.position);
    change(&file, at, |rest| rest.fill(0));
    let store = open(dir.path());
    assert_eq!(store.offsets.get(key(0)), Some(20));
    let lowered = store.report().lowered.clone();
    let expected = LoweredOffset { topic: "t".into(), queue: 0, from: 25, to: 20 };
    assert_eq!(lowered, [expected]);
    kill(store);
    let store = open(dir.path());
    assert_eq!((store.offsets.get(key(0)), store.report().lowered.len()), (Some(20), 0));
}
