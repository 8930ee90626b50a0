//! The index of keys: what it finds, and what becomes of its files.

use super::faulty::{Call, Faulty};
use super::*;
use std::io::ErrorKind;

/// Sends a numbered message with keys, to one of two queues.
fn send_keyed(store: &Store, topic: &Topic, nth: u64, keys: &str, len: usize) -> Appended {
    let properties = format!("TAGS\x01x\x02KEYS\x01{keys}");
    let body = sized(nth, len);
    let properties = Source::Encoded(properties.as_bytes());
    let message = Pending { properties, ..pending(&body) };
    let queue = &topic.queues[nth as usize % 2];
    failed(store.append(topic, queue, message)).unwrap()
}

/// The keys of message `nth`: one of its own, one of a few, every tenth time another with an
/// equal hash.
fn keys(nth: u64) -> String {
    let few = nth % 7;
    if nth.is_multiple_of(10) {
        format!("own-{nth} Aa-{few} BB-{few}")
    } else {
        format!("own-{nth} Aa-{few}")
    }
}

/// Sends the messages of `numbers`, every other one of them without keys.
fn fill(store: &Store, topic: &Topic, numbers: std::ops::Range<u64>) {
    for nth in numbers {
        send_keyed(store, topic, nth, &keys(nth), 60 + (nth % 90) as usize);
        send_body(store, topic, 0, &sized(u64::MAX, 100)).unwrap();
    }
}

fn number(delivery: &Delivery<'_>) -> u64 {
    u64::from_le_bytes(delivery.body()[..8].try_into().unwrap())
}

fn find(store: &Store, topic: &Topic, key: &str) -> Result<Vec<u64>> {
    let found = store.find_by_key(topic, key, 0..=u64::MAX, usize::MAX)?;
    Ok(found.iter().map(|delivery| number(&delivery)).collect())
}

/// That exactly the messages of `numbers` are found by their keys.
fn check(store: &Store, numbers: std::ops::Range<u64>) {
    let topic = store.topics.get("t").unwrap();
    for few in 0..7 {
        let with = |pick: &dyn Fn(u64) -> bool| -> Vec<u64> {
            numbers.clone().filter(|nth| nth % 7 == few && pick(*nth)).collect()
        };
        assert_eq!(find(store, &topic, &format!("Aa-{few}")).unwrap(), with(&|_| true));
        let tenth = with(&|nth| nth.is_multiple_of(10));
        assert_eq!(find(store, &topic, &format!("BB-{few}")).unwrap(), tenth);
    }
    for nth in numbers.clone().step_by(11) {
        assert_eq!(find(store, &topic, &format!("own-{nth}")).unwrap(), [nth]);
    }
    for nth in [numbers.start.wrapping_sub(1), numbers.end] {
        assert!(find(store, &topic, &format!("own-{nth}")).unwrap().is_empty());
    }
}

fn key_files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = files_in(dir);
    files.retain(|name, _| name.starts_with("keys"));
    files
}

/// Where a key file ends, by its name.
fn end_of(name: &Path) -> u64 {
    name.to_str().unwrap().rsplit('-').next().unwrap().parse().unwrap()
}

/// Where the key files end.
fn covered(dir: &Path) -> u64 {
    key_files(dir).keys().map(|name| end_of(name)).max().unwrap_or(0)
}

#[test]
fn store_38_every_key_of_a_message_finds_it_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let topic = topic(&store, 2);
    send_keyed(&store, &topic, 0, "a  b a c b", 10);
    send_keyed(&store, &topic, 1, "b", 10);
    // Properties that say KEYS count only with the mark of the record, which goes with them.
    for (key, expected) in [("a", vec![0]), ("b", vec![0, 1]), ("c", vec![0]), ("", vec![])] {
        assert_eq!(find(&store, &topic, key).unwrap(), expected, "{key:?}");
    }
    for round in 0..3 {
        fill(&store, &topic, 2 + round * 300..302 + round * 300);
        check(&store, 2..302 + round * 300);
        store.index_keys();
        check(&store, 2..302 + round * 300);
    }
}

#[test]
fn b_025_the_key_index_survives_a_kill_at_any_time() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let topic = topic(&store, 2);
    let mut killed = Vec::new();
    for round in 0..12 {
        fill(&store, &topic, round * 100..round * 100 + 100);
        store.flush().unwrap();
        if round % 3 < 2 {
            store.checkpoint_step();
        }
        killed.push((round * 100 + 100, copy_of(dir.path())));
    }
    assert!(store.log.files().len() > 4);
    let before = key_files(dir.path());
    assert!(before.len() > 2, "{} key files", before.len());
    assert!(covered(dir.path()) > 3 * SEGMENT);
    for (sent, copy) in &killed {
        let there = key_files(copy.path());
        let store = open(copy.path());
        check(&store, 0..*sent);
        store.close().unwrap();
        // The last one may have become part of a longer one; nothing else has gone.
        let after = key_files(copy.path());
        assert!(there.iter().rev().skip(1).all(|(name, bytes)| after.get(name) == Some(bytes)));
        check(&open(copy.path()), 0..*sent);
    }
}

#[test]
fn what_a_key_file_covers_is_not_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let topic = topic(&store, 2);
    let first = send_keyed(&store, &topic, 0, "old", 20);
    let second = send_keyed(&store, &topic, 1, "lost", 20);
    fill(&store, &topic, 2..1000);
    store.flush().unwrap();
    store.index_keys();
    store.close().unwrap();
    assert_eq!(covered(dir.path()), store.log.committed());
    // Whoever walks along here gets stuck.
    let (file, at) = place_of(dir.path(), second.position);
    change(&file, at, |bytes| bytes[..64].fill(0xee));
    let store = open(dir.path());
    let topic = store.topics.get("t").unwrap();
    assert_eq!(find(&store, &topic, "old").unwrap(), [0]);
    assert_eq!(find(&store, &topic, "own-999").unwrap(), [999]);
    assert!(matches!(find(&store, &topic, "lost"), Err(Error::Corrupt { position, .. })
        if position == second.position));
    assert!(store.message_at(first.position).unwrap().is_some());
    assert!(matches!(store.message_at(second.position), Err(Error::Corrupt { .. })));
}

#[test]
fn what_a_salvage_has_cut_out_is_not_found_and_the_rest_is() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let topic = topic(&store, 2);
    fill(&store, &topic, 0..300);
    let lost = send_keyed(&store, &topic, 300, "lost own-300", 50);
    fill(&store, &topic, 301..600);
    kill(store);
    let (file, at) = place_of(dir.path(), lost.position);
    let length = (lost.end - lost.position) as usize;
    for rebuild in [false, true] {
        for early in [false, true] {
            let copy = copy_of(dir.path());
            if early {
                // Everything is in key files before the damage is found.
                let store = open(copy.path());
                store.flush().unwrap();
                (0..3).for_each(|_| store.index_keys());
                assert!(covered(copy.path()) > lost.position);
                kill(store);
                std::fs::remove_file(copy.path().join("meta/checkpoint")).unwrap();
            }
            let file = copy.path().join(file.strip_prefix(dir.path()).unwrap());
            change(&file, at, |bytes| bytes[..length].fill(0xee));
            let config =
                StoreConfig { recovery: Recovery::Salvage, rebuild, ..config(Flush::EveryMessage) };
            let storage = Arc::new(Directory::new(copy.path()).unwrap());
            let store = Store::open(storage, config, Clock::system()).unwrap();
            let lost: u64 = store.report().lost.iter().map(|lost| lost.to - lost.from).sum();
            assert_eq!(lost, 1, "{}", store.report());
            let topic = store.topics.get("t").unwrap();
            for key in ["lost", "own-300"] {
                assert!(find(&store, &topic, key).unwrap().is_empty());
            }
            for nth in [0, 299, 301, 599] {
                assert_eq!(find(&store, &topic, &format!("own-{nth}")).unwrap(), [nth]);
            }
        }
    }
}

#[test]
fn missing_damaged_and_foreign_key_files_are_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let topic = topic(&store, 2);
    fill(&store, &topic, 0..1100);
    store.close().unwrap();
    let whole = key_files(dir.path());
    assert!(whole.len() > 2);
    let other = tempfile::tempdir().unwrap();
    let store = open(other.path());
    fill(&store, &super::topic(&store, 2), 5000..6100);
    store.close().unwrap();
    for (nth, name) in whole.keys().enumerate().step_by(2) {
        let damages: [&dyn Fn(&Path); 8] = [
            &|path| std::fs::remove_file(path).unwrap(),
            &|path| std::fs::write(path, b"").unwrap(),
            &|path| std::fs::write(path, [7; 4096]).unwrap(),
            &|path| change(path, 4, |bytes| bytes[0] ^= 1),
            &|path| change(path, 70, |bytes| bytes[0] ^= 1),
            &|path| {
                change(path, 64 + 24, |entries| entries.iter_mut().for_each(|byte| *byte ^= 1));
            },
            &|path| {
                let bytes = std::fs::read(path).unwrap();
                std::fs::write(path, &bytes[..bytes.len() - 8]).unwrap();
            },
            &|path| {
                let foreign = std::fs::read(key_file_path(other.path(), nth)).unwrap();
                std::fs::write(path, foreign).unwrap();
            },
        ];
        for damage in damages {
            let copy = copy_of(dir.path());
            damage(&copy.path().join(name));
            let store = open(copy.path());
            check(&store, 0..1100);
            store.close().unwrap();
            check(&open(copy.path()), 0..1100);
        }
    }
    // Without the folder, with strangers in it, and with one that was joined to another.
    let copy = copy_of(dir.path());
    std::fs::remove_dir_all(copy.path().join("keys")).unwrap();
    let store = open(copy.path());
    check(&store, 0..1100);
    store.close().unwrap();
    std::fs::write(copy.path().join("keys/new"), b"half").unwrap();
    std::fs::write(copy.path().join("keys/1-2"), b"x").unwrap();
    let (name, bytes) = whole.iter().next().unwrap();
    let end = end_of(name);
    for (start, end) in [(0, end / 2), (end / 2, end), (0, u64::MAX), (end * 9, end * 10)] {
        std::fs::write(copy.path().join(format!("keys/{start:020}-{end:020}")), bytes).unwrap();
    }
    check(&open(copy.path()), 0..1100);
}

fn key_file_path(dir: &Path, nth: usize) -> PathBuf {
    let files = key_files(dir);
    dir.join(files.keys().nth(nth % files.len()).unwrap())
}

#[test]
fn store_52_key_files_go_with_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let topic = topic(&store, 2);
    let mut most = 0;
    for round in 0..20 {
        fill(&store, &topic, round * 200..round * 200 + 200);
        store.flush().unwrap();
        store.checkpoint_step();
        store.drop_before(store.log.committed()).unwrap();
        let files = key_files(dir.path());
        most = most.max(files.values().map(Vec::len).sum::<usize>());
        let min = store.log.min_position();
        assert!(files.keys().all(|name| end_of(name) > min), "round {round}");
    }
    assert!(most < 4 * 500 * 8, "{most} bytes of key files");
    let min = oldest_left(&store);
    check(&store, min..4000);
    kill(store);
    check(&open(dir.path()), min..4000);
}

fn oldest_left(store: &Store) -> u64 {
    let topic = store.topics.get("t").unwrap();
    let all = (0..2).flat_map(|queue| read(store, &topic, queue));
    let numbers = all.map(|body| u64::from_le_bytes(body[..8].try_into().unwrap()));
    numbers.min().unwrap()
}

// (STORE-40)
#[test]
fn b_028_a_full_disk_delays_key_files_and_hides_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let faulty = Faulty::new(dir.path());
    let store = open_on(faulty.clone()).unwrap();
    let topic = topic(&store, 2);
    // The blocks of the index and two log files are there.
    fill(&store, &topic, 0..250);
    store.make_file().unwrap();
    faulty.fail(Some(Call::Create), 0, u64::MAX, ErrorKind::StorageFull);
    let mut sent = 250;
    while sent < 2000 {
        let body = sized(sent, 20);
        let properties = format!("KEYS\x01{}", keys(sent));
        let properties = Source::Encoded(properties.as_bytes());
        let message = Pending { properties, ..pending(&body) };
        if store.append(&topic, &topic.queues[0], message).is_err() {
            break;
        }
        sent += 1;
    }
    assert!(sent > 800, "only {sent} on a full disk");
    store.flush().unwrap();
    for _ in 0..2 {
        check(&store, 0..sent);
        store.index_keys();
    }
    assert!(faulty.has_failed());
    assert_eq!(key_files(dir.path()).len(), 0);
    faulty.heal();
    store.index_keys();
    assert_eq!(covered(dir.path()), store.log.committed());
    check(&store, 0..sent);
}

#[test]
fn a_key_file_tells_of_nothing_that_can_be_lost() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(Flush::Every(Duration::from_secs(3600)));
    let storage = Arc::new(Directory::new(dir.path()).unwrap());
    let store = Store::open(storage, config, Clock::system()).unwrap();
    let topic = topic(&store, 2);
    fill(&store, &topic, 0..700);
    check(&store, 0..700);
    store.index_keys();
    assert_eq!(covered(dir.path()), 0, "nothing was flushed");
    store.flush().unwrap();
    store.index_keys();
    assert_eq!(covered(dir.path()), store.log.committed());
    fill(&store, &topic, 700..1400);
    check(&store, 0..1400);
    store.index_keys();
    assert!(covered(dir.path()) <= store.gate.flushed());
}

#[test]
fn a_log_without_keys_is_covered_without_being_read() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let topic = topic(&store, 2);
    for nth in 0..1500 {
        send(&store, &topic, 0, nth);
    }
    store.close().unwrap();
    assert_eq!(covered(dir.path()), store.log.committed());
    assert_eq!(key_files(dir.path()).len(), 1);
    let store = open(dir.path());
    assert!(find(&store, &store.topics.get("t").unwrap(), "a").unwrap().is_empty());
}

#[test]
fn every_call_may_fail_and_what_is_found_is_exact() {
    let mut failures = 0;
    for nth in 0.. {
        let dir = tempfile::tempdir().unwrap();
        let faulty = Faulty::new(dir.path());
        let mut store = open_on(faulty.clone()).unwrap();
        let topic = topic(&store, 2);
        fill(&store, &topic, 0..150);
        store.flush().unwrap();
        faulty.fail(None, nth, 1, ErrorKind::Other);
        store.index_keys();
        let expected: Vec<u64> = (0..150).filter(|nth| nth % 7 == 3).collect();
        for _ in 0..2 {
            if let Ok(found) = find(&store, &topic, "Aa-3") {
                assert_eq!(found, expected, "call {nth}");
            }
        }
        store.keys = KeyIndex::new(&store.storage, store.store_id);
        if let Ok(found) = find(&store, &topic, "Aa-3") {
            assert_eq!(found, expected, "call {nth}");
        }
        let failed = faulty.has_failed();
        faulty.heal();
        check(&store, 0..150);
        if !failed {
            break;
        }
        failures += 1;
    }
    assert!(failures >= 6, "only {failures}");
}

#[test]
fn whoever_asks_after_a_send_finds_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let topic = topic(&store, 2);
    let (store, topic) = (&store, &topic);
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            scope.spawn(move || {
                for round in 0..200 {
                    let nth = thread * 1000 + round;
                    send_keyed(store, topic, nth, &format!("k-{thread} n-{nth}"), 200);
                    assert_eq!(find(store, topic, &format!("n-{nth}")).unwrap(), [nth]);
                    if round % 50 == 0 {
                        store.flush().unwrap();
                        store.checkpoint_step();
                        let of_thread = find(store, topic, &format!("k-{thread}")).unwrap();
                        assert_eq!(of_thread, (thread * 1000..=nth).collect::<Vec<_>>());
                    }
                }
            });
        }
    });
}
