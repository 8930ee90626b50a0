//! Opening what a crash or worse has left: salvage, rebuilding, checking, copying.

use crate::support::*;
use rocklet::{
    Broker, Damage, Delivery, Error, Filter, Flush, LostMessages, Message, PullStatus, Reader,
    Receipt, Recovery,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Ten messages in one queue, in a directory that was closed.
fn ten() -> (tempfile::TempDir, Vec<Receipt>) {
    let dir = tempfile::tempdir().unwrap();
    let broker = small(dir.path()).flush(Flush::EveryMessage).open().unwrap();
    broker.create_topic("t", 1).unwrap();
    let sent = (0..10).map(|nth| send_to(&broker, "t", 0, nth)).collect();
    broker.close().unwrap();
    (dir, sent)
}

fn change(path: &Path, at: u64, change: impl FnOnce(&mut [u8])) {
    let mut bytes = std::fs::read(path).unwrap();
    change(&mut bytes[at as usize..]);
    std::fs::write(path, bytes).unwrap();
}

fn files(dir: &Path, folder: &str) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = std::fs::read_dir(dir.join(folder)).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

fn all(broker: &Broker, group: &str) -> Vec<u32> {
    let mut consumer =
        broker.pull_consumer(group).subscribe("t", Filter::ALL).unwrap().start().unwrap();
    let mut all = Vec::new();
    loop {
        let polled = consumer.poll(Duration::ZERO).unwrap();
        if polled.is_empty() {
            consumer.commit().unwrap();
            return all;
        }
        all.extend(numbers(&polled));
    }
}

#[test]
fn b_003_consumers_pass_over_what_a_salvage_has_cut_out() {
    let (dir, sent) = ten();
    change(&dir.path().join("commitlog/00000000000000000000"), sent[4].position + 70, |rest| {
        rest[0] ^= 1;
    });
    let broker = small(dir.path()).recovery(Recovery::Salvage).open().unwrap();
    let report = broker.recovery_report();
    assert_eq!(report.damage, Damage::Corrupt);
    let [LostMessages { topic, queue, from, to, .. }] = &report.lost[..] else {
        panic!("{report}")
    };
    assert_eq!((topic.as_str(), *queue, *from, *to), ("t", 0, 4, 5));
    assert!(report.to_string().contains("1 messages lost"), "{report}");
    let queue = q("t", 0);
    assert_eq!(broker.min_offset(&queue).unwrap(), 0);
    assert_eq!(broker.max_offset(&queue).unwrap(), 10);
    let expected: Vec<u32> = (0..10).filter(|nth| *nth != 4).collect();
    assert_eq!(all(&broker, "pull"), expected);
    assert_eq!(broker.committed("pull", &queue).unwrap(), Some(10));
    let seen = Seen::default();
    let noted = seen.clone();
    let push = broker.push_consumer("push").subscribe("t", Filter::ALL).unwrap();
    let push = push.start(move |delivery: &Delivery<'_>| noted.note(number(delivery))).unwrap();
    wait_for("commit", || broker.committed("push", &queue).unwrap() == Some(10));
    assert_eq!(seen.len(), 9);
    push.shutdown();
    // In the gap there is nothing, and it leads to what stands behind it.
    let reader = broker.pull_consumer("gap").subscribe("none", Filter::ALL).unwrap();
    let reader = reader.start().unwrap();
    let pull = reader.pull(&queue, 4, 1).unwrap();
    assert_eq!((pull.status, numbers(&pull.messages)), (PullStatus::Found, vec![5]));
    assert_eq!((pull.messages.get(0).unwrap().offset(), pull.next), (5, 6));
    assert_eq!(send_to(&broker, "t", 0, 10).offset, 10);
    broker.close().unwrap();
    let broker = small(dir.path()).open().unwrap();
    assert!(broker.recovery_report().clean && broker.recovery_report().lost.is_empty());
    assert_eq!(all(&broker, "later"), [&expected[..], &[10]].concat());
}

#[test]
fn b_007_an_index_that_is_gone_or_cut_is_rebuilt_exactly() {
    let (dir, _) = ten();
    let index = files(dir.path(), "index");
    let damage: [&dyn Fn(); 3] = [
        &|| std::fs::remove_file(index.keys().next_back().unwrap()).unwrap(),
        &|| std::fs::remove_dir_all(dir.path().join("index")).unwrap(),
        // Half an entry.
        &|| {
            let (path, bytes) = index.first_key_value().unwrap();
            std::fs::write(path, &bytes[..64 + 32 + 10 * 16 - 8]).unwrap();
        },
    ];
    for (nth, damage) in damage.into_iter().enumerate() {
        damage();
        let broker = small(dir.path()).open().unwrap();
        assert!(broker.recovery_report().index_rebuilt.is_some());
        assert_eq!(broker.max_offset(&q("t", 0)).unwrap(), 10);
        assert_eq!(broker.min_offset(&q("t", 0)).unwrap(), 0);
        assert_eq!(all(&broker, &format!("group-{nth}")), (0..10).collect::<Vec<_>>());
        broker.close().unwrap();
    }
}

#[test]
fn b_009_a_log_is_not_emptied_because_the_index_looks_empty() {
    let (dir, _) = ten();
    let log = files(dir.path(), "commitlog");
    for filling in [0u8, 0x5a, 0xb7] {
        for (path, bytes) in files(dir.path(), "index") {
            let noise = bytes.iter().enumerate().map(|(at, _)| filling.wrapping_mul(at as u8 | 1));
            std::fs::write(path, noise.collect::<Vec<_>>()).unwrap();
        }
        let broker = small(dir.path()).open().unwrap();
        assert_eq!(broker.max_offset(&q("t", 0)).unwrap(), 10);
        assert!(files(dir.path(), "commitlog") == log, "the log was changed");
        broker.close().unwrap();
    }
    // With nothing in the log that can be read, what is there is kept before it is cut.
    let (path, bytes) = log.first_key_value().unwrap();
    std::fs::remove_dir_all(dir.path().join("index")).unwrap();
    std::fs::write(path, [&bytes[..64], &vec![0x77; bytes.len() - 64]].concat()).unwrap();
    let strict = small(dir.path()).open().unwrap_err();
    assert!(matches!(strict, Error::Corrupt { .. }), "{strict}");
    let broker = small(dir.path()).recovery(Recovery::Salvage).open().unwrap();
    let report = broker.recovery_report();
    assert_eq!(std::fs::read(&report.kept[0]).unwrap(), vec![0x77; bytes.len() - 64]);
    assert_eq!(report.lost[0].to, 10);
    assert_eq!(send_to(&broker, "t", 0, 10).offset, 10);
}

#[test]
fn a_check_finds_what_is_wrong_and_changes_nothing() {
    let (dir, sent) = ten();
    let whole = |dir: &Path| ["commitlog", "index", "meta"].map(|folder| files(dir, folder));
    let before = whole(dir.path());
    let found = Reader::verify(dir.path()).unwrap();
    assert!(found.is_sound(), "{found}");
    assert_eq!((found.records, found.queues, found.index_entries), (11, 1, 10));
    let log = dir.path().join("commitlog/00000000000000000000");
    change(&log, sent[3].position + 68, |rest| rest[0] ^= 1);
    let found = Reader::verify(dir.path()).unwrap();
    let [fault] = &found.faults[..] else { panic!("{found}") };
    assert_eq!((&fault.file, fault.position), (&log, sent[3].position));
    assert!(found.to_string().contains("fails its checksum"), "{found}");
    change(&log, sent[3].position + 68, |rest| rest[0] ^= 1);
    // An entry of the index, a commit, a head.
    let index = before[1].keys().next().unwrap();
    let entries = before[1][index].windows(4).position(|four| four == b"blck").unwrap() + 32;
    change(index, entries as u64 + 2 * 16 + 8, |rest| rest[0] ^= 1);
    let found = Reader::verify(dir.path()).unwrap();
    assert_eq!((found.faults.len(), found.faults[0].position), (1, sent[2].position), "{found}");
    std::fs::write(index, &before[1][index]).unwrap();
    for name in ["meta/checkpoint", "meta/next_base", "meta/flushed", "meta/groups", "meta/store"] {
        let path = dir.path().join(name);
        let bytes = std::fs::read(&path).unwrap();
        change(&path, 30, |rest| rest[0] ^= 1);
        let found = Reader::verify(dir.path()).unwrap();
        assert!(found.faults.iter().any(|fault| fault.file == path), "{name}: {found}");
        std::fs::write(&path, bytes).unwrap();
    }
    assert!(whole(dir.path()) == before);
    assert!(Reader::verify(dir.path()).unwrap().is_sound());
    let error = Reader::verify(dir.path().join("none")).unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error}");
}

#[test]
fn an_open_broker_is_checked_while_producers_go_on() {
    let Scene { broker, dir } = scene();
    let producer = broker.producer();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let body = vec![7; 2000];
            for _ in 0..3000 {
                producer.send(&Message::new("t", &body[..])).unwrap();
            }
        });
        for round in 0..6 {
            wait_for("messages", || stored(&broker, "t") > round * 500);
            let before = stored(&broker, "t");
            let found = broker.verify().unwrap();
            assert!(found.is_sound(), "{found}");
            let queues = broker.queues("t").unwrap();
            let gone = |queue| broker.min_offset(queue).unwrap();
            let gone: u64 = queues.iter().map(gone).sum();
            assert!(found.records >= before - gone, "{found}");
            if round % 3 == 2 {
                broker.drop_before(broker.stats().log_end / 2).unwrap();
            }
        }
    });
    broker.close().unwrap();
    assert!(matches!(broker.verify(), Err(Error::Closed)));
    assert!(Reader::verify(dir.path()).unwrap().is_sound());
}

#[test]
fn a_repair_builds_anew_what_is_derived() {
    let (dir, sent) = ten();
    let entries = |bytes: &[u8]| bytes.windows(4).position(|four| four == b"blck").unwrap() + 32;
    let (index, bytes) = files(dir.path(), "index").pop_first().unwrap();
    // A lie that a clean open believes.
    change(&index, entries(&bytes) as u64, |rest| rest[0] ^= 0x40);
    assert!(!Reader::verify(dir.path()).unwrap().is_sound());
    let report = small(dir.path()).repair().unwrap();
    assert_eq!((report.records_scanned, report.index_rebuilt), (11, Some("asked for")));
    assert!(Reader::verify(dir.path()).unwrap().is_sound());
    let broker = small(dir.path()).open().unwrap();
    assert!(broker.recovery_report().clean);
    assert_eq!(all(&broker, "g"), (0..10).collect::<Vec<_>>());
    assert!(matches!(small(dir.path()).repair(), Err(Error::Locked { .. })));
    broker.close().unwrap();
    let log = dir.path().join("commitlog/00000000000000000000");
    change(&log, sent[3].position + 68, |rest| rest[0] ^= 1);
    assert!(matches!(small(dir.path()).repair(), Err(Error::Corrupt { .. })));
    let report = small(dir.path()).recovery(Recovery::Salvage).repair().unwrap();
    assert_eq!((report.lost.len(), report.damage), (1, Damage::Corrupt));
    assert!(Reader::verify(dir.path()).unwrap().is_sound());
}

#[test]
fn a_backup_of_a_busy_broker_has_all_that_was_sent_before() {
    let Scene { broker, dir } = scene_with(|builder| builder.segment_bytes(256 << 10));
    broker.create_topic("t", 2).unwrap();
    let copies = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for queue in 0..2 {
            let broker = &broker;
            scope.spawn(move || {
                for nth in 0..3000 {
                    send_to(broker, "t", queue, nth);
                    if nth % 64 == 0 {
                        // A body that makes files roll.
                        let batch: Vec<_> = (0..8)
                            .map(|_| Message::new("other", vec![1; 3000]).queue(queue))
                            .collect();
                        broker.producer().send_batch(&batch).unwrap();
                    }
                }
            });
        }
        let mut consumer =
            broker.pull_consumer("g").subscribe("t", Filter::ALL).unwrap().start().unwrap();
        for round in 0..4u64 {
            wait_for("messages", || stored(&broker, "t") > round * 1500);
            assert!(!consumer.poll(SOON).unwrap().is_empty());
            consumer.commit().unwrap();
            let sent: Vec<_> = (0..2).map(|n| broker.max_offset(&q("t", n)).unwrap()).collect();
            let committed = committed(&broker, "g", "t");
            let to = copies.path().join(format!("copy-{round}"));
            broker.backup(&to).unwrap();
            let refused = broker.backup(&to).unwrap_err();
            assert!(matches!(refused, Error::Io { .. }), "{refused}");
            assert!(Reader::verify(&to).unwrap().is_sound());
            let copy = small(&to).segment_bytes(256 << 10).open().unwrap();
            assert!(copy.recovery_report().clean, "{}", copy.recovery_report());
            for (queue, sent) in (0..2).zip(sent) {
                let max = copy.max_offset(&q("t", queue)).unwrap();
                assert!(max >= sent && max <= broker.max_offset(&q("t", queue)).unwrap(), "{max}");
            }
            assert_eq!(self::committed(&copy, "g", "t"), committed);
            let numbers = all(&copy, "new");
            assert!(numbers.len() as u64 >= round * 1500);
            let max = copy.max_offset(&q("t", 0)).unwrap();
            assert_eq!(send_to(&copy, "t", 0, 1).offset, max);
            if round == 2 {
                broker.drop_before(broker.stats().log_end / 8).unwrap();
            }
        }
    });
    let mut names: Vec<_> = std::fs::read_dir(copies.path()).unwrap().collect();
    names.retain(|entry| entry.as_ref().unwrap().path().to_string_lossy().contains("partial"));
    assert!(names.is_empty(), "{names:?}");
    broker.close().unwrap();
    assert!(matches!(broker.backup(copies.path().join("late")), Err(Error::Closed)));
    drop(dir);
}

#[test]
fn b_021_what_was_deleted_is_not_in_a_backup_either() {
    let Scene { broker, dir } = scene();
    let fill_and_consume = |group: &str, count| {
        broker.create_topic("t", 1).unwrap();
        fill(&broker, "t", 0, 0..count);
        assert_eq!(all(&broker, group).len(), count as usize);
    };
    fill_and_consume("g", 20);
    broker.delete_topic("t").unwrap();
    fill_and_consume("g", 5);
    let copy = dir.path().join("copy");
    broker.backup(&copy).unwrap();
    let queue = q("t", 0);
    let copied = small(&copy).open().unwrap();
    assert_eq!(
        (copied.max_offset(&queue).unwrap(), copied.committed("g", &queue).unwrap()),
        (5, Some(5))
    );
    assert_eq!(all(&copied, "new"), [0, 1, 2, 3, 4]);
    // Nothing of a topic comes back with a later one of its name, in the copy either.
    broker.delete_topic("t").unwrap();
    drop(copied);
    std::fs::remove_dir_all(&copy).unwrap();
    broker.backup(&copy).unwrap();
    let copied = small(&copy).open().unwrap();
    assert!(copied.topics().is_empty());
    copied.create_topic("t", 1).unwrap();
    fill(&copied, "t", 0, 0..3);
    assert_eq!(all(&copied, "g"), [0, 1, 2]);
    assert!(Reader::verify(dir.path()).unwrap().is_sound());
}
