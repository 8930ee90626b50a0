//! A small store, what was sent to it, and whether a copy of it that was damaged is still right.

use rocklet::{
    Broker, BrokerBuilder, Delivery, Error, Filter, Flush, LoweredOffset, Message, PullConsumer,
    QueueId, Reader, Recovery,
};
use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// Topic, queue, offset.
type Place = (String, u16, u64);

/// A store at rest, closed or left behind by a killed process, in a folder of its own.
#[derive(Debug)]
pub(crate) struct Sample {
    folder: TempDir,
    clean: bool,
    sent: BTreeMap<Place, Sent>,
    /// All that a group ever committed in a queue, oldest first.
    committed: BTreeMap<(&'static str, QueueId), Vec<u64>>,
    /// The bytes of the log that the last append takes.
    last: Range<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Sent {
    position: u64,
    body: Vec<u8>,
}

/// What was done to a copy.
#[derive(Debug)]
pub(crate) struct Damage {
    /// The file, relative to the store.
    pub(crate) file: String,
    pub(crate) what: String,
    /// The bytes of the file that were changed; all for a file that is gone.
    pub(crate) bytes: Range<u64>,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outcome {
    /// Open said what is damaged, and changed nothing.
    Refused,
    /// Everything is there.
    Whole,
    /// A read said what is damaged.
    Unreadable,
    /// The last append was taken for torn.
    Cut,
    /// What was in a deleted file is not there.
    Gone,
    /// An older commit counts, or none.
    OlderCommit,
    /// The damaged bytes themselves were delivered: a read does not check them.
    Changed,
}

pub(crate) const SEGMENT: u64 = 64 << 10;
const TOPICS: [&str; 2] = ["orders", "payments"];
const GROUPS: [&str; 2] = ["billing", "audit"];

/// Files in memory where that can be had: thousands of copies are opened.
pub(crate) fn folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

impl Sample {
    /// A store that was closed, and the same as a kill would have left it.
    pub(crate) fn closed_and_killed() -> [Self; 2] {
        let work = folder();
        let broker = open(work.path()).unwrap();
        let mut sent = BTreeMap::new();
        let mut committed = BTreeMap::<_, Vec<u64>>::new();
        broker.create_topic(TOPICS[0], 3).unwrap();
        for nth in 0..160 {
            if nth == 60 {
                broker.flush().unwrap();
            }
            if nth == 50 || nth == 100 {
                commit(&broker, &GROUPS, &mut committed);
            }
            let topic = TOPICS[usize::from(nth % 4 == 3)];
            let body = format!("{nth} ").repeat(1 + nth % 7 * 60).into_bytes();
            let queue = (nth / 4 % 2) as u16 + u16::from(nth % 4 == 1);
            let message = Message::new(topic, &body[..]).queue(queue);
            let message = message.key("k").property("name", "value");
            let message = if nth % 2 == 0 { message.tag("even") } else { message };
            let receipt = broker.producer().send(&message).unwrap();
            let place = (topic.to_owned(), receipt.queue, receipt.offset);
            sent.insert(place, Sent { position: receipt.position, body: body.clone() });
        }
        commit(&broker, &GROUPS[..1], &mut committed);
        let bodies: Vec<_> = (0..3).map(|nth| format!("last {nth}").into_bytes()).collect();
        let batch: Vec<_> =
            bodies.iter().map(|body| Message::new(TOPICS[0], &body[..]).queue(1)).collect();
        let receipts = broker.producer().send_batch(&batch).unwrap();
        for (receipt, body) in receipts.iter().zip(&bodies) {
            let place = (TOPICS[0].to_owned(), receipt.queue, receipt.offset);
            sent.insert(place, Sent { position: receipt.position, body: body.clone() });
        }
        let last = receipts[0].position..broker.stats().log_end;
        let killed = folder();
        copy(work.path(), killed.path());
        broker.close().unwrap();
        let sample = |folder, clean| {
            let (sent, committed, last) = (sent.clone(), committed.clone(), last.clone());
            Self { folder, clean, sent, committed, last }
        };
        [sample(work, true), sample(killed, false)]
    }

    /// The files of the store, and their content.
    pub(crate) fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let mut files = contents(self.folder.path());
        files.remove("LOCK");
        files
    }

    /// Opens a copy of the store that `change` has damaged, and checks what comes of it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn damaged(
        &self,
        damage: &Damage,
        change: impl FnOnce(&Path),
    ) -> Result<Outcome, String> {
        let copied = folder();
        copy(self.folder.path(), copied.path());
        let path = copied.path().join(&damage.file);
        change(&path);
        let before = contents(copied.path());
        let examined = catch_unwind(AssertUnwindSafe(|| match open(copied.path()) {
            Ok(broker) => self.examine(broker, copied.path(), damage),
            Err(error) => {
                assert_names_a_file(&error, copied.path());
                let changed = changed(&before, &contents(copied.path()));
                // The index was to be made anew, and the clean mark goes first.
                let begun = damage.file.starts_with("index/") && changed == ["CLEAN"];
                assert!(begun || changed.is_empty(), "{changed:?} changed, after {error}");
                Outcome::Refused
            }
        }));
        examined.map_err(|panic| {
            let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
            let state = if self.clean { "closed" } else { "killed" };
            format!("{} of a {state} store, {}: {text}", damage.file, damage.what)
        })
    }

    /// Salvages a copy of the store that `change` has damaged: what was not hit is there, what is
    /// missing was reported, and afterwards nothing is wrong with it. Returns how many messages
    /// are lost.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn salvaged(
        &self,
        damage: &Damage,
        change: impl FnOnce(&Path),
    ) -> Result<usize, String> {
        let copied = folder();
        let dir = copied.path();
        copy(self.folder.path(), dir);
        change(&dir.join(&damage.file));
        let salvaged = catch_unwind(AssertUnwindSafe(|| {
            let broker = match builder(dir).recovery(Recovery::Salvage).open() {
                Ok(broker) => broker,
                // Another version is not for this one to put right.
                Err(Error::Version { .. }) => return 0,
                Err(error) => panic!("{error}"),
            };
            let found = found(&broker);
            for (place, read) in &found {
                assert_eq!(self.sent.get(place), Some(read), "{place:?}");
            }
            let lost = broker.recovery_report().lost;
            let missing = self.sent.iter().filter(|(place, _)| !found.contains_key(place));
            let mut count = 0;
            for (place, sent) in missing {
                count += 1;
                let in_batch = self.last.contains(&sent.position);
                let batch_is_hit = self.sent.values().any(|sent| {
                    self.last.contains(&sent.position) && self.hits(damage, sent.position)
                });
                let hit = self.hits(damage, sent.position) || in_batch && batch_is_hit;
                assert!(hit, "{place:?} was not damaged, and is lost");
                let (topic, queue, offset) = place;
                let known = lost.iter().any(|lost| {
                    (&lost.topic, lost.queue) == (topic, *queue)
                        && (lost.from..lost.to).contains(offset)
                });
                // Behind the last checkpoint nothing says what was at the end.
                assert!(known || !self.clean, "{place:?} is lost, and nobody says so");
            }
            broker.close().unwrap();
            let checked = Reader::verify(dir).unwrap();
            assert!(checked.is_sound(), "{checked}");
            let broker = open(dir).unwrap();
            assert!(broker.recovery_report().clean);
            assert_eq!(self::found(&broker), found);
            count
        }));
        salvaged.map_err(|panic| {
            let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
            let state = if self.clean { "closed" } else { "killed" };
            format!("{} of a {state} store, {}: {text}", damage.file, damage.what)
        })
    }

    /// Checks and reads a damaged copy without changing it: whether the check notices the damage.
    /// What is read was sent.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn checked(
        &self,
        damage: &Damage,
        change: impl FnOnce(&Path),
    ) -> Result<bool, String> {
        let copied = folder();
        let dir = copied.path();
        copy(self.folder.path(), dir);
        change(&dir.join(&damage.file));
        let before = contents(dir);
        let checked = catch_unwind(AssertUnwindSafe(|| {
            if let Ok(reader) = Reader::open(dir) {
                self.compare(&reader);
            }
            let found = Reader::verify(dir);
            assert!(contents(dir) == before, "a reader has changed something");
            found.map_or(true, |found| !found.is_sound())
        }));
        checked.map_err(|panic| {
            let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
            format!("{}, {}: {text}", damage.file, damage.what)
        })
    }

    fn compare(&self, reader: &Reader) {
        for topic in reader.topics() {
            for queue in reader.queues(&topic).unwrap() {
                let mut offset = reader.min_offset(&queue).unwrap();
                while offset < reader.max_offset(&queue).unwrap() {
                    let Ok(pull) = reader.pull(&queue, offset, 1) else {
                        offset += 1;
                        continue;
                    };
                    for delivery in &pull.messages {
                        look_at_everything(&delivery);
                        let place = (topic.clone(), queue.queue(), delivery.offset());
                        let (position, body) = (delivery.position(), delivery.body().to_vec());
                        assert_eq!(self.sent.get(&place), Some(&Sent { position, body }));
                    }
                    assert!(pull.next > offset);
                    offset = pull.next;
                }
            }
        }
    }

    /// The position below which no damage can be taken for a torn append.
    pub(crate) fn last_append(&self) -> u64 {
        if self.clean { self.last.end } else { self.last.start }
    }

    fn examine(&self, broker: Broker, dir: &Path, damage: &Damage) -> Outcome {
        let outcome = self.read(&broker, dir, damage);
        let lost = matches!(outcome, Outcome::Cut | Outcome::Gone);
        let of_commits = self.compare_commits(&broker, damage, lost);
        self.start_a_group(&broker);
        // It goes on, without using a place again.
        let highest = self.sent.values().map(|sent| sent.position).max();
        for topic in broker.topics() {
            for queue in broker.queues(&topic).unwrap() {
                let max = broker.max_offset(&queue).unwrap();
                let message = Message::new(&*topic, b"new").queue(queue.queue());
                let receipt = broker.producer().send(&message).unwrap();
                assert_eq!(receipt.offset, max);
                assert!(Some(receipt.position) > highest || lost, "{receipt:?}");
            }
        }
        let state = state(&broker);
        broker.close().unwrap();
        let broker = open(dir).unwrap();
        assert!(broker.recovery_report().clean, "{}", broker.recovery_report());
        assert_eq!(self::state(&broker), state, "opened again");
        outcome.max(of_commits)
    }

    /// Reads all; whatever is read must have been sent there.
    fn read(&self, broker: &Broker, dir: &Path, damage: &Damage) -> Outcome {
        let reader = broker.pull_consumer("reading").subscribe("none", Filter::ALL).unwrap();
        let reader = reader.start().unwrap();
        let mut outcome = Outcome::Whole;
        let mut missing = self.sent.clone();
        for topic in broker.topics() {
            for queue in broker.queues(&topic).unwrap() {
                let min = broker.min_offset(&queue).unwrap();
                for offset in min..broker.max_offset(&queue).unwrap() {
                    let place = (topic.clone(), queue.queue(), offset);
                    let sent = self.sent.get(&place);
                    let sent = sent.unwrap_or_else(|| panic!("{place:?} was never sent"));
                    let hit = self.hits(damage, sent.position);
                    let read = read_one(&reader, &queue, offset);
                    missing.remove(&place);
                    match read {
                        Ok(read) if read == *sent => {}
                        Ok(_) => {
                            assert!(hit && self.clean, "wrong bytes at {place:?}");
                            outcome = outcome.max(Outcome::Changed);
                        }
                        Err(error) => {
                            // An entry of the index may lead anywhere, but never to another record.
                            let of_index = self.clean && damage.file.starts_with("index/");
                            assert!(hit || of_index, "{place:?} was not damaged: {error}");
                            assert_names_a_file(&error, dir);
                            outcome = outcome.max(Outcome::Unreadable);
                        }
                    }
                }
            }
        }
        if !missing.is_empty() {
            let last = missing.values().all(|sent| self.last.contains(&sent.position));
            let cut = last && missing.len() == 3 && damage.file.starts_with("commitlog/");
            // Above what was flushed nothing says that there was a further file.
            let gone = ["gone", "a folder"].contains(&&*damage.what)
                && missing.values().all(|sent| self.hits(damage, sent.position));
            assert!(!self.clean && (cut || gone), "lost: {:?}", missing.keys());
            outcome = if cut { Outcome::Cut } else { Outcome::Gone };
        }
        outcome
    }

    /// Whether the damage lies in the record at `position`.
    fn hits(&self, damage: &Damage, position: u64) -> bool {
        let Some(base) = damage.file.strip_prefix("commitlog/").and_then(|name| name.parse().ok())
        else {
            return false;
        };
        let next = self.sent.values().map(|sent| sent.position).filter(|next| *next > position);
        let end = next.min().unwrap_or(self.last.end);
        let damaged =
            damage.bytes.start.saturating_add(base)..damage.bytes.end.saturating_add(base);
        damaged.start < end && position < damaged.end
    }

    fn compare_commits(&self, broker: &Broker, damage: &Damage, lost: bool) -> Outcome {
        let mut outcome = Outcome::Whole;
        let unreadable = broker.recovery_report().unreadable_offsets;
        let lowered = broker.recovery_report().lowered;
        for ((group, queue), committed) in &self.committed {
            let Ok(found) = broker.committed(group, queue) else { continue };
            let last = committed.last().copied();
            if found == last {
                continue;
            }
            let of_queue =
                |low: &&LoweredOffset| low.topic == queue.topic() && low.queue == queue.queue();
            if let Some(lowered) = lowered.iter().find(of_queue).filter(|_| lost) {
                assert_eq!((Some(lowered.to), broker.max_offset(queue).ok()), (found, found));
                continue;
            }
            let of_offsets = damage.file.starts_with("meta/offsets");
            assert!(of_offsets, "{group} {queue}: {found:?} instead of {last:?}");
            match found {
                Some(found) => assert!(committed.contains(&found), "{group} {queue}: {found}"),
                None => assert!(unreadable > 0, "{group} {queue}: lost, and nobody says so"),
            }
            outcome = Outcome::OlderCommit;
        }
        outcome
    }

    /// A new group begins at the beginning, whatever the others have left.
    fn start_a_group(&self, broker: &Broker) {
        let mut builder = broker.pull_consumer("new");
        for topic in broker.topics() {
            builder = builder.subscribe(&topic, Filter::ALL).unwrap();
        }
        let consumer = builder.start().unwrap();
        for queue in consumer.assignment() {
            let min = broker.min_offset(&queue).unwrap();
            assert_eq!(consumer.committed(&queue).unwrap(), Some(min), "{queue}");
        }
    }
}

fn open(dir: &Path) -> rocklet::Result<Broker> {
    builder(dir).open()
}

fn builder(dir: &Path) -> BrokerBuilder {
    let builder = Broker::builder(dir).segment_bytes(SEGMENT).auto_create_queues(2);
    builder.flush(Flush::Every(Duration::from_secs(3600)))
}

/// All that is there, with gaps passed over.
fn found(broker: &Broker) -> BTreeMap<Place, Sent> {
    let reader = broker.pull_consumer("reading").subscribe("none", Filter::ALL).unwrap();
    let reader = reader.start().unwrap();
    let mut found = BTreeMap::new();
    for topic in broker.topics() {
        for queue in broker.queues(&topic).unwrap() {
            let mut offset = broker.min_offset(&queue).unwrap();
            while offset < broker.max_offset(&queue).unwrap() {
                let pull = reader.pull(&queue, offset, 32).unwrap();
                for delivery in &pull.messages {
                    look_at_everything(&delivery);
                    let place = (topic.clone(), queue.queue(), delivery.offset());
                    let (position, body) = (delivery.position(), delivery.body().to_vec());
                    found.insert(place, Sent { position, body });
                }
                assert!(pull.next > offset);
                offset = pull.next;
            }
        }
    }
    found
}

fn commit(
    broker: &Broker,
    groups: &[&'static str],
    committed: &mut BTreeMap<(&'static str, QueueId), Vec<u64>>,
) {
    for group in groups {
        let mut builder = broker.pull_consumer(group).batch(30);
        for topic in TOPICS {
            builder = builder.subscribe(topic, Filter::ALL).unwrap();
        }
        let mut consumer = builder.start().unwrap();
        assert!(!consumer.poll(Duration::from_secs(60)).unwrap().is_empty());
        consumer.commit().unwrap();
        for queue in consumer.assignment() {
            let offset = consumer.committed(&queue).unwrap().unwrap();
            let all = committed.entry((group, queue)).or_insert_with(|| vec![0]);
            all.push(offset);
        }
    }
}

fn read_one(reader: &PullConsumer, queue: &QueueId, offset: u64) -> Result<Sent, Error> {
    let pull = reader.pull(queue, offset, 1)?;
    let delivery = pull.messages.iter().next().unwrap_or_else(|| panic!("{pull:?}"));
    assert_eq!(delivery.offset(), offset);
    look_at_everything(&delivery);
    Ok(Sent { position: delivery.position(), body: delivery.body().to_vec() })
}

/// Nothing of a damaged message may panic.
fn look_at_everything(delivery: &Delivery<'_>) {
    let text = format!("{delivery:?} {:?} {}", delivery.to_message(), delivery.id());
    let properties: Vec<_> =
        delivery.properties().chain(delivery.keys().map(|key| (key, ""))).collect();
    let rest = (delivery.property("name"), delivery.born_ms(), delivery.flag(), delivery.attempt());
    assert!(!format!("{text} {properties:?} {rest:?} {:?}", delivery.detach()).is_empty());
}

/// All that is readable, by its place.
fn state(broker: &Broker) -> BTreeMap<Place, Option<Sent>> {
    let reader = broker.pull_consumer("reading").subscribe("none", Filter::ALL).unwrap();
    let reader = reader.start().unwrap();
    let mut state = BTreeMap::new();
    for topic in broker.topics() {
        for queue in broker.queues(&topic).unwrap() {
            for offset in broker.min_offset(&queue).unwrap()..broker.max_offset(&queue).unwrap() {
                let place = (topic.clone(), queue.queue(), offset);
                state.insert(place, read_one(&reader, &queue, offset).ok());
            }
        }
    }
    state
}

fn assert_names_a_file(error: &Error, dir: &Path) {
    let text = error.to_string();
    let file: &PathBuf = match error {
        Error::Corrupt { file, position, .. } => {
            assert!(text.contains(&format!(" at {position}")), "no position: {text}");
            file
        }
        Error::Version { file, .. } | Error::Io { file, .. } => file,
        _ => panic!("not about a file: {error:?}"),
    };
    assert!(file.starts_with(dir) && file != dir, "{error:?}");
    assert!(text.contains(file.to_str().unwrap()), "no file: {text}");
}

/// What was there and is not any more as it was.
fn changed<'a>(
    before: &'a BTreeMap<String, Vec<u8>>,
    after: &BTreeMap<String, Vec<u8>>,
) -> Vec<&'a str> {
    // The index is derived: as much of it as was repaired before the refusal is no loss.
    let names = before.keys().filter(|name| *name != "LOCK" && !name.starts_with("index/"));
    names.filter(|name| before.get(*name) != after.get(*name)).map(String::as_str).collect()
}

fn copy(from: &Path, to: &Path) {
    for (name, bytes) in contents(from) {
        let path = to.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
}

/// The files below `dir` by their relative names.
fn contents(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(dir).unwrap().to_str().unwrap().to_owned();
                files.insert(name, std::fs::read(path).unwrap());
            }
        }
    }
    files
}
