//! Committed offsets after a crash, and when their files are damaged.

use crate::support::*;
use rocklet::{Broker, Error, Flush, PullConsumer, Receipt, Recovery, Start};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

const FILE: &str = "meta/offsets-0000";

fn consumer(broker: &Broker, group: &str, batch: usize) -> PullConsumer {
    let builder = broker.pull_consumer(group).subscribe("t", "*").unwrap();
    builder.batch(batch).start_from(Start::Last).start().unwrap()
}

/// Zeroes the log from the message on, as if it had never reached the disk.
fn lose_from(dir: &Path, message: &Receipt) {
    let log = std::fs::read_dir(dir.join("commitlog")).unwrap();
    let log = log.map(|file| file.unwrap().path()).min().unwrap();
    let mut bytes = std::fs::read(&log).unwrap();
    bytes[usize::try_from(message.position).unwrap()..].fill(0);
    std::fs::write(log, bytes).unwrap();
}

fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let folders = ["", "meta", "commitlog"];
    let entries =
        folders.into_iter().flat_map(|folder| std::fs::read_dir(dir.join(folder)).unwrap());
    let files = entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    files.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

#[test]
fn b_008_a_commit_beyond_the_end_of_the_log_is_lowered_and_reported() {
    let hour = Flush::Every(Duration::from_secs(3600));
    for flush in [hour, Flush::EveryMessage] {
        let scene = scene_with(|builder| builder.flush(flush));
        scene.broker.create_topic("t", 1).unwrap();
        let mut member = consumer(&scene.broker, "g", 10);
        let sent: Vec<_> = (0..10).map(|nth| send_to(&scene.broker, "t", 0, nth)).collect();
        assert_eq!(member.poll(SOON).unwrap().len(), 10);
        member.commit().unwrap();
        let copy = copy_of(scene.dir.path());
        lose_from(copy.path(), &sent[5]);
        if flush == Flush::EveryMessage {
            // Flushed offsets are never given again: the loss is damage, and nothing is changed.
            let before = files(copy.path());
            let refused = small(copy.path()).open();
            assert!(matches!(refused, Err(Error::Corrupt { .. })), "{refused:?}");
            assert!(files(copy.path()) == before);
            continue;
        }
        let broker = small(copy.path()).open().unwrap();
        let [lowered] = &broker.recovery_report().lowered[..] else {
            panic!("{}", broker.recovery_report())
        };
        assert_eq!((&*lowered.topic, lowered.queue, lowered.from, lowered.to), ("t", 0, 10, 5));
        assert_eq!(broker.committed("g", &q("t", 0)).unwrap(), Some(5));
        let mut member = consumer(&broker, "g", 10);
        for nth in 100..105 {
            assert_eq!(u64::from(nth - 95), send_to(&broker, "t", 0, nth).offset);
            let lag =
                broker.max_offset(&q("t", 0)).unwrap().checked_sub(committed(&broker, "g", "t"));
            assert_eq!(lag, Some(u64::from(nth - 99)));
        }
        assert_eq!(numbers(&member.poll(SOON).unwrap()), [100, 101, 102, 103, 104]);
        member.commit().unwrap();
        drop(member);
        broker.close().unwrap();
        let broker = small(copy.path()).open().unwrap();
        assert_eq!(broker.recovery_report().lowered, []);
        assert_eq!(committed(&broker, "g", "t"), 10);
    }
}

/// A directory in which a group that began at the end has committed 10, 20 and 30, as a kill leaves
/// it; and where the two copies of its offset are, the newest first.
fn three_commits() -> (tempfile::TempDir, [usize; 2]) {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    let mut member = consumer(&scene.broker, "g", 10);
    consumer(&scene.broker, "away", 10).close();
    fill(&scene.broker, "t", 0, 0..40);
    let path = scene.dir.path().join(FILE);
    let mut images = vec![std::fs::read(&path).unwrap()];
    for committed in [10, 20, 30] {
        assert_eq!(member.poll(SOON).unwrap().len(), 10);
        member.commit().unwrap();
        assert_eq!(scene.broker.committed("g", &q("t", 0)).unwrap(), Some(committed));
        images.push(std::fs::read(&path).unwrap());
    }
    let changed = |nth: usize| {
        (0..images[nth].len()).find(|at| images[nth - 1][*at] != images[nth][*at]).unwrap()
    };
    let copies = [changed(3), changed(2)];
    assert_eq!(copies[0].abs_diff(copies[1]), 32, "in turn");
    (copy_of(scene.dir.path()), copies)
}

fn flip(dir: &Path, at: usize) {
    let mut bytes = std::fs::read(dir.join(FILE)).unwrap();
    bytes[at] ^= 0x10;
    std::fs::write(dir.join(FILE), bytes).unwrap();
}

/// The numbers that a group still gets.
fn rest_of(broker: &Broker, group: &str) -> Vec<u32> {
    numbers(&consumer(broker, group, 100).poll(SHORT).unwrap())
}

fn rest(broker: &Broker) -> Vec<u32> {
    rest_of(broker, "g")
}

#[test]
fn b_080_a_damaged_commit_leaves_the_one_before() {
    let (dir, [newest, _]) = three_commits();
    flip(dir.path(), newest);
    let broker = small(dir.path()).open().unwrap();
    assert_eq!(broker.committed("g", &q("t", 0)).unwrap(), Some(20));
    assert_eq!(broker.recovery_report().unreadable_offsets, 0);
    assert_eq!(rest(&broker), (20..40).collect::<Vec<_>>());
}

#[test]
fn b_079_an_offset_of_which_no_copy_is_left_is_reported_and_loses_no_message() {
    let (dir, copies) = three_commits();
    copies.into_iter().for_each(|copy| flip(dir.path(), copy));
    let broker = small(dir.path()).open().unwrap();
    let report = broker.recovery_report();
    assert_eq!(report.unreadable_offsets, 1);
    assert!(report.to_string().contains("1 committed offsets unreadable"), "{report}");
    assert_eq!(broker.committed("g", &q("t", 0)).unwrap(), None);
    // The group began at the end once; now that would lose what it has not consumed.
    assert_eq!(rest(&broker), (0..40).collect::<Vec<_>>());
    // A group that is new begins where it is told.
    assert_eq!(rest_of(&broker, "new"), []);
}

#[test]
fn b_079_a_damaged_or_missing_file_of_offsets_is_told_and_nothing_is_changed() {
    type Damage = fn(Vec<u8>) -> Option<Vec<u8>>;
    let variants: [(&str, Damage); 5] = [
        ("missing", |_| None),
        ("empty", |_| Some(Vec::new())),
        ("zeros", |bytes| Some(vec![0; bytes.len()])),
        ("half of it", |bytes| Some(bytes[..bytes.len() / 2].to_vec())),
        ("half of its head", |mut bytes| {
            bytes[32..64].fill(0);
            Some(bytes)
        }),
    ];
    let (dir, _) = three_commits();
    let path = dir.path().join(FILE);
    let sound = std::fs::read(&path).unwrap();
    for (what, damage) in variants {
        match damage(sound.clone()) {
            Some(bytes) => std::fs::write(&path, bytes).unwrap(),
            None => std::fs::remove_file(&path).unwrap(),
        }
        let before = files(dir.path());
        match small(dir.path()).open() {
            Err(Error::Corrupt { file, .. }) => assert_eq!(file, path, "{what}"),
            other => panic!("{what}: {other:?}"),
        }
        assert!(files(dir.path()) == before, "{what}");
        let copy = copy_of(dir.path());
        let broker = small(copy.path()).recovery(Recovery::Salvage).open().unwrap();
        let report = broker.recovery_report();
        assert_eq!((report.lost_offset_files, report.unreadable_offsets), (1, 0), "{what}");
        assert!(report.to_string().contains("1 files of committed offsets lost"), "{report}");
        let kept = std::fs::read(copy.path().join("meta/lost-offsets-0000")).ok();
        assert!(kept == damage(sound.clone()), "{what}");
        assert_eq!(rest(&broker), (0..40).collect::<Vec<_>>(), "{what}");
        broker.close().unwrap();
        // Who was away meanwhile is not taken for new either.
        let broker = small(copy.path()).open().unwrap();
        assert_eq!(broker.recovery_report().lost_offset_files, 1);
        assert_eq!(rest_of(&broker, "away"), (0..40).collect::<Vec<_>>(), "{what}");
    }
    std::fs::write(&path, &sound).unwrap();
    let broker = small(dir.path()).open().unwrap();
    assert_eq!(rest(&broker), (30..40).collect::<Vec<_>>());
}

#[test]
fn b_087_what_is_acknowledged_survives_a_kill_too() {
    let scene = scene();
    scene.broker.create_topic("t", 4).unwrap();
    send(&scene.broker.producer(), "t", 0..200);
    let builder = scene.broker.pull_consumer("g").subscribe("t", "*").unwrap();
    let mut member = builder.batch(20).start().unwrap();
    let seen = Seen::default();
    for _ in 0..5 {
        numbers(&member.poll(SOON).unwrap()).into_iter().for_each(|nth| seen.note(nth));
        member.commit().unwrap();
    }
    assert_eq!(seen.len(), 100);
    let copy = copy_of(scene.dir.path());
    let broker = small(copy.path()).open().unwrap();
    assert!(!broker.recovery_report().clean);
    let mut member = consumer(&broker, "g", 1000);
    while seen.len() < 200 {
        numbers(&member.poll(SOON).unwrap()).into_iter().for_each(|nth| seen.note(nth));
    }
    seen.assert_each_once(0..200);
}
