//! Reading a directory that another process has open: nothing is changed, and what is seen is a
//! prefix of what the owner has sent.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "doors of the library")]

mod support;

use rocklet::{Broker, Error, Message, PullStatus, QueueId, Reader};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;
use support::content::Identity;
use support::process::{Process, child_arguments};
use support::runner::{Ignored, run};

const SEGMENT: u64 = 64 << 10;
const QUEUES: u16 = 2;

fn main() -> ExitCode {
    if let Some(arguments) = child_arguments() {
        own(Path::new(&arguments[0]));
        return ExitCode::SUCCESS;
    }
    run(&[
        ("a_reader_changes_nothing", changes_nothing),
        ("a_reader_follows_growth_roll_and_new_topics", follows),
        ("a_reader_survives_what_the_owner_drops_and_recycles", survives_dropping),
        ("a_reader_sees_topics_come_and_go", sees_topics_come_and_go),
        ("a_reader_sees_a_prefix_while_the_owner_sends", sees_a_prefix),
        ("a_reader_outlives_a_killed_owner_and_its_successor", outlives_the_owner),
        ("what_is_not_a_store_is_refused", refuses),
    ])
}

/// The child: has the directory open and does what it is told, a line each.
fn own(dir: &Path) {
    let broker = Broker::builder(dir).segment_bytes(SEGMENT).open().unwrap();
    let producer = broker.producer();
    println!("open");
    let mut sequence = 0;
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<_> = line.split(' ').collect();
        match words[..] {
            ["topic", name] => broker.create_topic(name, QUEUES).unwrap(),
            ["send", topic, count] => {
                for _ in 0..count.parse::<u32>().unwrap() {
                    let batch = Identity::batch(0, 0, sequence, 1 + (sequence % 3) as u16);
                    let queue = (sequence % u32::from(QUEUES)) as u16;
                    let batch = batch.iter().map(|identity| identity.message(topic).queue(queue));
                    producer.send_batch(&batch.collect::<Vec<_>>()).unwrap();
                    sequence += 1;
                }
            }
            ["delete", name] => broker.delete_topic(name).unwrap(),
            ["purge", name] => drop(broker.purge(name).unwrap()),
            ["drop"] => drop(broker.drop_before(broker.stats().log_end).unwrap()),
            ["close"] => broker.close().unwrap(),
            _ => panic!("{line}"),
        }
        println!("{}", broker.stats().log_end);
    }
}

struct Owner(Process);

impl Owner {
    fn start(dir: &Path) -> Self {
        let owner = Process::start(&[dir]);
        assert_eq!(owner.line(), "open");
        Self(owner)
    }

    /// Has a command done; returns the end of the log behind it.
    fn tell(&mut self, line: &str) -> u64 {
        self.0.say(line);
        self.0.line().parse().unwrap()
    }
}

/// Checks every message that the reader sees; returns how many there are, by queue.
fn read(reader: &Reader, topic: &str) -> BTreeMap<QueueId, u64> {
    let mut counts = BTreeMap::new();
    for queue in reader.queues(topic).unwrap() {
        let (min, max) = (reader.min_offset(&queue).unwrap(), reader.max_offset(&queue).unwrap());
        let (mut offset, mut last) = (min, None);
        while offset < max {
            let pull = reader.pull(&queue, offset, 17).unwrap();
            assert_eq!(pull.status, PullStatus::Found);
            assert_eq!((pull.min, pull.max), (min, max));
            for delivery in &pull.messages {
                assert_eq!(delivery.offset(), offset);
                let identity = Identity::check(&delivery).unwrap();
                let expected = last.map_or(identity, |last: Identity| match last {
                    Identity { nth, of, .. } if nth + 1 < of => Identity { nth: nth + 1, ..last },
                    Identity { sequence, .. } => {
                        let sequence = sequence + u32::from(QUEUES);
                        let of = 1 + (sequence % 3) as u16;
                        Identity { sequence, nth: 0, of, ..last }
                    }
                });
                assert_eq!(identity, expected, "{queue} at {offset}");
                (last, offset) = (Some(identity), offset + 1);
            }
            assert_eq!(pull.next, offset);
        }
        // The log that is seen ends with a whole batch.
        assert!(last.is_none_or(|last| last.nth + 1 == last.of), "part of a batch is seen");
        counts.insert(queue, offset);
    }
    counts
}

fn changes_nothing() -> Result<(), Ignored> {
    let dir = tempfile::tempdir().unwrap();
    let mut owner = Owner::start(dir.path());
    owner.tell("topic t");
    let end = owner.tell("send t 900");
    owner.0.kill();
    owner.0.wait();
    set_writable(dir.path(), false);
    let before = state(dir.path());
    let mut reader = Reader::open(dir.path()).unwrap();
    assert_eq!(reader.log_end(), end);
    assert_eq!(read(&reader, "t").values().sum::<u64>(), 1800);
    assert!(!reader.refresh().unwrap());
    assert!(Reader::verify(dir.path()).unwrap().is_sound());
    drop(reader);
    assert!(state(dir.path()) == before, "a reader has changed something");
    set_writable(dir.path(), true);
    let broker = Broker::builder(dir.path()).segment_bytes(SEGMENT).open().unwrap();
    broker.close().unwrap();
    let before = state(dir.path());
    let reader = Reader::open(dir.path()).unwrap();
    assert_eq!(read(&reader, "t").values().sum::<u64>(), 1800);
    drop(reader);
    assert!(state(dir.path()) == before);
    Ok(())
}

fn follows() -> Result<(), Ignored> {
    let dir = tempfile::tempdir().unwrap();
    let mut owner = Owner::start(dir.path());
    owner.tell("topic t");
    let mut reader = Reader::open(dir.path()).unwrap();
    assert_eq!(read(&reader, "t").values().sum::<u64>(), 0);
    let mut sent = 0;
    for round in 0..40u64 {
        // The sizes of batches repeat after three; 64 KiB are rolled over every few rounds.
        let end = owner.tell("send t 30");
        sent += 60;
        assert_eq!(reader.log_end() < end, reader.refresh().unwrap());
        assert_eq!(reader.log_end(), end);
        assert_eq!(read(&reader, "t").values().sum::<u64>(), sent);
        if round == 20 {
            owner.tell("topic u");
            reader.refresh().unwrap();
            assert_eq!((reader.topics().len(), reader.queues("u").unwrap().len()), (2, 2));
        }
    }
    assert!(reader.log_end() > 8 * SEGMENT);
    // A reader that comes late sees the same.
    let late = Reader::open(dir.path()).unwrap();
    assert_eq!(read(&late, "t"), read(&reader, "t"));
    assert!(Reader::verify(dir.path()).unwrap().is_sound());
    owner.tell("close");
    assert_eq!(read(&Reader::open(dir.path()).unwrap(), "t"), read(&reader, "t"));
    Ok(())
}

fn survives_dropping() -> Result<(), Ignored> {
    let dir = tempfile::tempdir().unwrap();
    let mut owner = Owner::start(dir.path());
    owner.tell("topic t");
    owner.tell("send t 300");
    let mut reader = Reader::open(dir.path()).unwrap();
    let mut idle = Reader::open(dir.path()).unwrap();
    let queue = QueueId::new("t", 0);
    let held = reader.pull(&queue, 0, 64).unwrap().messages;
    let bodies: Vec<_> = held.iter().map(|delivery| delivery.body().to_vec()).collect();
    for _ in 0..12 {
        owner.tell("drop");
        let end = owner.tell("send t 300");
        // What was seen stays readable until the next refresh, and what was read for good.
        assert!(reader.refresh().unwrap());
        read(&reader, "t");
        assert_eq!(reader.log_end(), end);
        assert!(reader.min_offset(&queue).unwrap() > 0);
        read(&idle, "t");
        assert!(held.iter().map(|delivery| delivery.body()).eq(&bodies));
    }
    // The one that was left behind catches up.
    idle.refresh().unwrap();
    assert_eq!(read(&idle, "t"), read(&reader, "t"));
    assert_eq!(idle.min_offset(&queue).unwrap(), reader.min_offset(&queue).unwrap());
    assert!(Reader::verify(dir.path()).unwrap().is_sound());
    Ok(())
}

fn sees_topics_come_and_go() -> Result<(), Ignored> {
    let dir = tempfile::tempdir().unwrap();
    let mut owner = Owner::start(dir.path());
    owner.tell("topic t");
    owner.tell("send t 30");
    let mut reader = Reader::open(dir.path()).unwrap();
    let queue = QueueId::new("t", 0);
    let max = reader.max_offset(&queue).unwrap();
    owner.tell("purge t");
    reader.refresh().unwrap();
    assert_eq!(
        (reader.min_offset(&queue).unwrap(), reader.max_offset(&queue).unwrap()),
        (max, max)
    );
    owner.tell("send t 6");
    reader.refresh().unwrap();
    let pull = reader.pull(&queue, 0, 1).unwrap();
    assert_eq!((pull.status, pull.next), (PullStatus::OffsetIllegal, max));
    assert_eq!(reader.pull(&queue, max, 1).unwrap().messages.get(0).unwrap().offset(), max);
    owner.tell("delete t");
    reader.refresh().unwrap();
    assert_eq!(reader.topics(), Vec::<String>::new());
    assert!(matches!(reader.pull(&queue, 0, 1), Err(Error::NoSuchTopic { .. })));
    // Another topic of the same name begins at 0.
    owner.tell("topic t");
    owner.tell("send t 3");
    for reader in [&mut reader, &mut Reader::open(dir.path()).unwrap()] {
        reader.refresh().unwrap();
        let pull = reader.pull(&queue, 0, 1).unwrap();
        assert_eq!((pull.status, pull.min), (PullStatus::Found, 0));
    }
    let found = Reader::verify(dir.path()).unwrap();
    assert!(found.is_sound(), "{found}");
    owner.tell("close");
    let found = Reader::verify(dir.path()).unwrap();
    assert!(found.is_sound(), "{found}");
    let reader = Reader::open(dir.path()).unwrap();
    assert_eq!(reader.min_offset(&queue).unwrap(), 0);
    Ok(())
}

fn sees_a_prefix() -> Result<(), Ignored> {
    let dir = tempfile::tempdir().unwrap();
    let mut owner = Owner::start(dir.path());
    owner.tell("topic t");
    let mut reader = Reader::open(dir.path()).unwrap();
    let (mut last, mut looks) = (0, 0);
    for round in 1..=50 {
        owner.0.say("send t 300");
        // The batches have one, two and three messages.
        while last < round * 600 {
            reader.refresh().unwrap();
            let seen = read(&reader, "t").values().sum();
            assert!(seen >= last);
            looks += u64::from(seen > last && seen < round * 600);
            last = seen;
        }
        if looks > 2 {
            return Ok(());
        }
    }
    panic!("the owner was never watched at work");
}

fn outlives_the_owner() -> Result<(), Ignored> {
    let dir = tempfile::tempdir().unwrap();
    let mut owner = Owner::start(dir.path());
    owner.tell("topic t");
    let end = owner.tell("send t 300");
    let mut reader = Reader::open(dir.path()).unwrap();
    owner.0.kill();
    owner.0.wait();
    reader.refresh().unwrap();
    assert_eq!(reader.log_end(), end);
    let before = read(&reader, "t");
    let broker = Broker::builder(dir.path()).segment_bytes(SEGMENT).open().unwrap();
    let sent = broker.producer().send(&Message::new("new", b"of the successor").queue(1)).unwrap();
    reader.refresh().unwrap();
    assert_eq!(read(&reader, "t"), before);
    let pull = reader.pull(&QueueId::new("new", 1), 0, 1).unwrap();
    assert_eq!(pull.messages.get(0).unwrap().body(), b"of the successor");
    assert_eq!(pull.messages.get(0).unwrap().position(), sent.position);
    Ok(())
}

fn refuses() -> Result<(), Ignored> {
    let dir = tempfile::tempdir().unwrap();
    for path in [dir.path().to_owned(), dir.path().join("none")] {
        let error = Reader::open(&path).unwrap_err();
        assert!(matches!(error, Error::Io { .. }), "{error}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    Broker::open(dir.path()).unwrap().close().unwrap();
    let reader = Reader::open(dir.path()).unwrap();
    assert_eq!(reader.topics(), Vec::<String>::new());
    let none = QueueId::new("none", 0);
    assert!(matches!(reader.pull(&none, 0, 1), Err(Error::NoSuchTopic { .. })));
    Ok(())
}

/// Content and time of change of every file.
fn state(dir: &Path) -> BTreeMap<PathBuf, (Vec<u8>, SystemTime)> {
    let mut files = BTreeMap::new();
    for folder in ["", "commitlog", "index", "meta"] {
        for entry in std::fs::read_dir(dir.join(folder)).unwrap() {
            let entry = entry.unwrap();
            let meta = entry.metadata().unwrap();
            let content = std::fs::read(entry.path()).unwrap_or_default();
            files.insert(entry.path(), (content, meta.modified().unwrap()));
        }
    }
    files
}

/// Takes the right to write to all files and folders, or gives it back.
fn set_writable(dir: &Path, writable: bool) {
    let mode = |folder: bool| match (writable, folder) {
        (true, true) => 0o755,
        (true, false) => 0o644,
        (false, true) => 0o555,
        (false, false) => 0o444,
    };
    for (path, _) in state(dir) {
        let permissions = std::fs::Permissions::from_mode(mode(path.is_dir()));
        std::fs::set_permissions(path, permissions).unwrap();
    }
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(mode(true))).unwrap();
}
