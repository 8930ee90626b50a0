//! A directory whose files were damaged, lost, mixed up or brought back from an earlier time is
//! refused, or opened; then it works, and nothing is delivered that was not sent.

use super::bytes::{Bytes, Files, directory, files_in};
use rocklet::{Broker, Delivery, Error, Filter, Flush, Message, Reader, Recovery, Verify};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

const TOPICS: [(&str, u16); 3] = [("orders", 2), ("bills", 1), ("empty", 3)];
const FOLDERS: [&str; 5] = ["commitlog", "index", "keys", "meta", ""];
/// Changes to a directory, at most.
const CHANGES: usize = 8;

/// Damages a directory as `bytes` say and opens it.
pub(crate) fn run(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    let stages = stages();
    let mut files = stages[bytes.below(stages.len())].clone();
    for _ in 0..CHANGES {
        if bytes.is_empty() || files.is_empty() {
            break;
        }
        change(&mut bytes, &mut files, &stages[0]);
    }
    let dir = directory(&files);
    look(dir.path());
    assert!(files_in(dir.path()) == files, "a reader changes nothing");
    match open(dir.path(), Recovery::Strict) {
        Ok(broker) => use_it(&broker, dir.path()),
        Err(refused) => {
            assert_eq!(log_of(&files_in(dir.path())), log_of(&files), "{refused}: changed the log");
            if let Ok(broker) = open(dir.path(), Recovery::Salvage) {
                use_it(&broker, dir.path());
            }
        }
    }
}

/// Reads all that a reader finds, which verifies every message.
fn look(dir: &Path) {
    if let Ok(reader) = Reader::open(dir) {
        for queue in reader.topics().iter().flat_map(|topic| reader.queues(topic).unwrap()) {
            let mut offset = reader.min_offset(&queue).unwrap();
            while offset < reader.max_offset(&queue).unwrap() {
                let pulled = reader.pull(&queue, offset, 32);
                for message in pulled.iter().flat_map(|pulled| &pulled.messages) {
                    check(&message);
                }
                offset = pulled.map_or(offset + 1, |pulled| pulled.next);
            }
        }
    }
    let _ = Reader::verify(dir);
}

/// Reads everything, sends, closes and opens again.
fn use_it(broker: &Broker, dir: &Path) {
    let found = contents(broker);
    let sent = broker.producer().send(&Message::new("orders", b"afterwards").queue(0)).unwrap();
    let id = broker.message(sent.id).unwrap().unwrap();
    assert_eq!(id.delivery().body(), b"afterwards");
    // What is found by its key is what is there, or there is damage on the way.
    for key in ["k0", "k1", "k2"] {
        if let Ok(messages) = broker.find_by_key("orders", key, .., usize::MAX) {
            messages.iter().for_each(|message| check(&message));
        }
    }
    broker.close().unwrap();
    let broker = open(dir, Recovery::Strict).unwrap();
    assert!(broker.recovery_report().clean);
    let mut expected = found;
    expected.push(("orders".into(), 0, sent.offset));
    expected.sort();
    // Damage that was passed over when it was read stays where it is.
    assert_eq!(contents(&broker), expected);
}

fn change(bytes: &mut Bytes<'_>, files: &mut Files, earlier: &[(PathBuf, Vec<u8>)]) {
    let what = bytes.u8() % 8;
    let (nth, other) = (pick(bytes, files), pick(bytes, files));
    let len = files[nth].1.len();
    let at = if len == 0 { 0 } else { bytes.below(len) };
    match what {
        0 | 1 if len > 0 => files[nth].1[at] ^= bytes.u8().max(1),
        2 => files[nth].1[at..].fill(0),
        3 => files[nth].1.truncate(at),
        4 => files[nth].1.resize(len + at, bytes.u8()),
        5 => drop(files.remove(nth)),
        6 => {
            // Part of another file, or of this one from elsewhere.
            let source = files[other].1.clone();
            let from = if source.is_empty() { 0 } else { bytes.below(source.len()) };
            let count = usize::from(bytes.u16()).min(source.len() - from).min(len - at);
            files[nth].1[at..at + count].copy_from_slice(&source[from..from + count]);
        }
        7 => match earlier.iter().find(|(name, _)| *name == files[nth].0) {
            Some((_, old)) => files[nth].1.clone_from(old),
            None => files[nth].1.clear(),
        },
        _ => {}
    }
}

/// Which file: first a folder, of which some have many files and some have few.
fn pick(bytes: &mut Bytes<'_>, files: &[(PathBuf, Vec<u8>)]) -> usize {
    let folder = FOLDERS[bytes.below(FOLDERS.len())];
    let inside = |(name, _): &(PathBuf, Vec<u8>)| name.parent() == Some(Path::new(folder));
    let found: Vec<usize> = (0..files.len()).filter(|nth| inside(&files[*nth])).collect();
    let nth = usize::from(bytes.u8());
    if found.is_empty() { nth % files.len() } else { found[nth % found.len()] }
}

/// A store at three times of its life, each as after a kill, and closed at the end.
fn stages() -> &'static [Files] {
    static STAGES: OnceLock<Vec<Files>> = OnceLock::new();
    STAGES.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let broker = open(dir.path(), Recovery::Strict).unwrap();
        for (topic, queues) in TOPICS {
            broker.create_topic(topic, queues).unwrap();
        }
        let mut stages = Vec::new();
        for round in 0..3_u64 {
            for nth in round * 60..round * 60 + 60 {
                let queue = (nth % 2) as u16;
                send(&broker, "orders", queue, nth / 2);
                if nth % 3 == 0 {
                    send(&broker, "bills", 0, nth / 3);
                }
            }
            if round == 1 {
                broker.drop_before(1 << 16).unwrap();
            }
            let mut audit = broker
                .pull_consumer("audit")
                .subscribe("orders", Filter::ALL)
                .unwrap()
                .start()
                .unwrap();
            audit.poll(Duration::ZERO).unwrap();
            audit.commit().unwrap();
            broker.flush().unwrap();
            stages.push(settled(&broker, dir.path()));
        }
        broker.close().unwrap();
        stages.push(files_in(dir.path()));
        stages
    })
}

/// The files of a directory when the background has done what it does by itself, so that an input
/// means the same every time, or nearly.
fn settled(broker: &Broker, dir: &Path) -> Files {
    let has = |files: &Files, folder: &str| files.iter().any(|(name, _)| name.starts_with(folder));
    let mut files = Files::new();
    for _ in 0..1_000 {
        std::thread::sleep(Duration::from_millis(10));
        let before = std::mem::replace(&mut files, files_in(dir));
        if files == before && has(&files, "keys") && has(&files, "meta/checkpoint") {
            return files;
        }
    }
    panic!("no checkpoint, or no key file: {:?}", broker.stats());
}

fn open(dir: &Path, recovery: Recovery) -> rocklet::Result<Broker> {
    let builder = Broker::builder(dir).segment_bytes(64 << 10).flush(Flush::EveryMessage);
    builder.recovery(recovery).verify(Verify::OnRead).open()
}

fn send(broker: &Broker, topic: &str, queue: u16, offset: u64) {
    let key = format!("k{}", offset % 3);
    let message = Message::new(topic, body(topic, queue, offset)).queue(queue).key(key);
    let sent = broker.producer().send(&message).unwrap();
    assert_eq!(sent.offset, offset);
}

/// The body of the message at this place: no two are equal.
fn body(topic: &str, queue: u16, offset: u64) -> Vec<u8> {
    let mut body = format!("{topic} {queue} {offset} ").into_bytes();
    body.resize(900 + (offset as usize * 37) % 500, offset as u8);
    body
}

/// The message is what was sent to its place.
fn check(found: &Delivery<'_>) {
    let sent = body(found.topic(), found.queue(), found.offset());
    let known = found.body() == sent || found.body() == b"afterwards";
    assert!(known, "{found:?} was never sent");
}

/// The places of all messages that can be read.
fn contents(broker: &Broker) -> Vec<(String, u16, u64)> {
    let mut found = Vec::new();
    for topic in broker.topics() {
        let consumer = broker.pull_consumer("reader").subscribe(&topic, Filter::ALL).unwrap();
        let consumer = consumer.start().unwrap();
        for queue in broker.queues(&topic).unwrap() {
            let mut offset = broker.min_offset(&queue).unwrap();
            let max = broker.max_offset(&queue).unwrap();
            assert!(offset <= max);
            while offset < max {
                match consumer.pull(&queue, offset, 32) {
                    Ok(pulled) => {
                        pulled.messages.iter().for_each(|message| check(&message));
                        let offsets = pulled.messages.iter().map(|message| message.offset());
                        found.extend(offsets.map(|offset| (topic.clone(), queue.queue(), offset)));
                        assert!(pulled.next > offset);
                        offset = pulled.next;
                    }
                    // Damage below what was read at open.
                    Err(Error::Corrupt { .. }) => offset += 1,
                    Err(other) => panic!("{other}"),
                }
            }
        }
    }
    found.sort();
    found
}

fn log_of(files: &[(PathBuf, Vec<u8>)]) -> Vec<&(PathBuf, Vec<u8>)> {
    files.iter().filter(|(name, _)| name.starts_with("commitlog")).collect()
}
