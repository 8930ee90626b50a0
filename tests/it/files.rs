//! The files under a running broker: what readers see of them, and what never happens to them.

use crate::support::*;
use rocklet::{Broker, Error, Message, PullStatus, Retention};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const SEGMENT: u64 = 64 << 10;

fn files(broker: &Path) -> BTreeMap<PathBuf, (u64, u64)> {
    let mut found = BTreeMap::new();
    for folder in ["commitlog", "index"] {
        for entry in std::fs::read_dir(broker.join(folder)).into_iter().flatten() {
            // Gone meanwhile, or being made.
            let Ok(entry) = entry else { continue };
            let Ok(meta) = entry.metadata() else { continue };
            if entry.file_name() != "new" {
                found.insert(entry.path(), (meta.len(), meta.blocks()));
            }
        }
    }
    found
}

fn message(nth: u32, length: usize) -> Message<'static> {
    let mut content = body(nth);
    content.resize(length, 0);
    Message::new("t", content)
}

fn number_of(delivery: &rocklet::Delivery<'_>) -> u32 {
    u32::from_le_bytes(delivery.body()[..4].try_into().unwrap())
}

/// Mappings of this process that lead into `dir`, of files that are gone too.
fn mappings(dir: &Path) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let folder = dir.join("commitlog");
    maps.lines().filter(|line| line.contains(folder.to_str().unwrap())).count()
}

/// (STORE-51)
#[test]
fn b_042_a_held_message_stays_while_newer_files_go() {
    let dir = tempfile::tempdir().unwrap();
    let builder = Broker::builder(dir.path()).segment_bytes(SEGMENT);
    let broker = builder.retention(Retention::none().age(Duration::ZERO)).open().unwrap();
    broker.create_topic("t", 1).unwrap();
    let producer = broker.producer();
    producer.send(&message(0, 20_000)).unwrap();
    let reader = broker.pull_consumer("reading").start().unwrap();
    let held = reader.pull(&q("t", 0), 0, 1).unwrap().messages;
    let expected = held.get(0).unwrap().body().to_vec();
    for nth in 1..15 {
        producer.send(&message(nth, 20_000)).unwrap();
    }
    wait_for("the next files to go", || broker.min_offset(&q("t", 0)).unwrap() >= 9);
    assert!(!dir.path().join(format!("commitlog/{:020}", 0)).exists());
    // Others refer to a file for a moment.
    wait_for("the rest", || broker.stats().retention.held_bytes == SEGMENT);
    assert_eq!(held.get(0).unwrap().body(), expected);
    let before = mappings(dir.path());
    drop(held);
    wait_for("nobody to hold it", || broker.stats().retention.held_bytes == 0);
    assert_eq!(mappings(dir.path()), before - 1);
    // One that is behind goes on at the first that is stored.
    let pull = reader.pull(&q("t", 0), 0, 1).unwrap();
    assert_eq!(pull.next, broker.min_offset(&q("t", 0)).unwrap());
}

#[test]
fn b_043_a_log_file_that_somebody_removes_is_read_on_and_missed_at_the_next_open() {
    let dir = tempfile::tempdir().unwrap();
    let broker = Broker::builder(dir.path()).segment_bytes(SEGMENT).open().unwrap();
    broker.create_topic("t", 1).unwrap();
    for nth in 0..20 {
        broker.producer().send(&message(nth, 20_000)).unwrap();
    }
    let consumer = broker.pull_consumer("first").subscribe("t", "*").unwrap();
    let mut first = consumer.batch(10).start().unwrap();
    assert_eq!(first.poll(SOON).unwrap().len(), 10);
    std::fs::remove_file(dir.path().join(format!("commitlog/{:020}", 0))).unwrap();
    let rest = first.poll(SOON).unwrap();
    assert_eq!(number_of(&rest.get(0).unwrap()), 10);
    let consumer = broker.pull_consumer("second").subscribe("t", "*").unwrap();
    let mut second = consumer.batch(20).start().unwrap();
    let all = second.poll(SOON).unwrap();
    let numbers: Vec<_> = all.iter().map(|delivery| number_of(&delivery)).collect();
    assert_eq!(numbers, (0..20).collect::<Vec<_>>());
    drop((first, second));
    broker.close().unwrap();
    let error = Broker::open(dir.path()).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
}

/// (STORE-12, STORE-15)
#[test]
fn b_044_no_file_changes_its_length_under_readers() {
    let dir = tempfile::tempdir().unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let listed = files(dir.path());
                for (path, (length, _)) in &listed {
                    if path.starts_with(dir.path().join("commitlog")) {
                        assert_eq!(*length, SEGMENT, "{}", path.display());
                    }
                }
            }
        });
        let mut held = Vec::new();
        for round in 0..5 {
            let broker = Broker::builder(dir.path()).segment_bytes(SEGMENT).open().unwrap();
            let consumer = broker.pull_consumer("g").subscribe("t", "*").unwrap();
            let mut consumer = consumer.start().unwrap();
            for nth in 0..60 {
                broker.producer().send(&message(nth, 10_000)).unwrap();
                if nth % 3 == 0 {
                    held.push(consumer.poll(SOON).unwrap());
                    consumer.commit().unwrap();
                }
                if nth % 20 == 10 {
                    broker.drop_before(broker.stats().log_end).unwrap();
                }
            }
            if round % 2 == 0 {
                broker.close().unwrap();
            }
            for delivery in held.iter().flat_map(|deliveries| deliveries.iter()) {
                assert!(delivery.body()[4..].iter().all(|byte| *byte == 0));
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    let broker = Broker::open(dir.path()).unwrap();
    assert!(broker.stats().log_end > 0);
}

/// (STORE-13)
#[test]
fn b_045_reading_at_the_end_makes_nothing_grow() {
    let dir = tempfile::tempdir().unwrap();
    let broker = Broker::builder(dir.path()).segment_bytes(SEGMENT).open().unwrap();
    broker.create_topic("t", 1).unwrap();
    let reader = broker.pull_consumer("reading").start().unwrap();
    let poll = |count| {
        let max = broker.max_offset(&q("t", 0)).unwrap();
        let before = files(dir.path());
        for nth in 0..count {
            let pull = reader.pull(&q("t", 0), max + nth % 3, 32).unwrap();
            assert_ne!(pull.status, PullStatus::Found);
        }
        assert_eq!(files(dir.path()), before);
    };
    poll(1000);
    // Exactly to the end of a file: three records, of which the last takes what is left.
    let first = broker.producer().send(&message(0, 20_000)).unwrap();
    let second = broker.producer().send(&message(1, 20_000)).unwrap();
    let length = second.position - first.position;
    let left = SEGMENT - second.position - length;
    let last = message(2, 20_000 + (left - length) as usize);
    broker.producer().send(&last).unwrap();
    assert_eq!(broker.stats().log_end, SEGMENT, "the file is full to the last byte");
    wait_for("the next file", || broker.stats().retention.log_bytes == 2 * SEGMENT);
    poll(100_000);
    broker.producer().send(&message(3, 10)).unwrap();
    poll(1000);
    assert_eq!(broker.max_offset(&q("t", 0)).unwrap(), 4);
}
