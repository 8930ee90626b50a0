//! A run of a script on a simulated storage: what the broker has promised, and whether a storage
//! keeps it.

use crate::script::{INTERVAL, Op, Script};
use crate::support::Random;
use rocklet::{
    Broker, DrivenClock, Error, Filter, Flush, Message, PullConsumer, QueueId, Receipt,
    SimulatedStorage, Verify,
};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) const SEGMENT: u64 = 64 << 10;
const START_MS: u64 = 1_700_000_000_000;

/// What is in the log, in its order.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    Topic { name: &'static str, queues: u16 },
    Message { topic: &'static str, queue: u16, offset: u64, body: Vec<u8>, more: bool },
}

/// Which queue of which group.
type Key = (&'static str, &'static str, u16);

/// All that a broker was told and has answered.
#[derive(Clone, Debug)]
pub(crate) struct World {
    flush: Flush,
    entries: Vec<Entry>,
    /// The positions of the entries, where that is known.
    positions: Vec<Option<u64>>,
    /// So many of them survive a loss of power.
    durable: usize,
    /// All that a group may have committed, oldest first.
    commits: BTreeMap<Key, Vec<u64>>,
    /// Of those, which are durable, or later ones.
    durable_commits: BTreeMap<Key, usize>,
    /// A commit failed: which of the last ones counts is not known.
    unsure: BTreeSet<Key>,
    /// What lies below may have been dropped.
    dropped: u64,
    said: u64,
}

/// How a storage has come about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// The process was killed.
    Process,
    /// Power went.
    Power,
}

impl World {
    pub(crate) fn new(flush: Flush) -> Self {
        Self {
            flush,
            entries: Vec::new(),
            positions: Vec::new(),
            durable: 0,
            commits: BTreeMap::new(),
            durable_commits: BTreeMap::new(),
            unsure: BTreeSet::new(),
            dropped: 0,
            said: 0,
        }
    }

    /// Runs a script until its end, or until power is cut. Calls may fail; what comes of them is
    /// noted. The broker is left open, if it is.
    pub(crate) fn run(
        script: &Script,
        storage: &SimulatedStorage,
        seed: u64,
    ) -> (Self, Option<Broker>) {
        let mut world = Self::new(script.flush);
        let clock = DrivenClock::with_steps(START_MS, seed);
        let mut random = Random(seed);
        let mut broker = open(storage, &clock, script.flush).ok();
        for op in &script.ops {
            let Some(opened) = &broker else { break };
            if *op == Op::Reopen {
                world.close(storage, opened);
                // Gone before the next one comes.
                broker = None;
                broker = broker.or_else(|| open(storage, &clock, script.flush).ok());
                continue;
            }
            world.call(*op, opened, &clock, storage);
            while random.one_in(2) && clock.step() {}
            world.note_flushed(opened);
            if storage.power_is_cut() {
                break;
            }
        }
        (world, broker)
    }

    fn call(&mut self, op: Op, broker: &Broker, clock: &DrivenClock, storage: &SimulatedStorage) {
        match op {
            Op::Create(topic, queues) => self.create(broker, topic, queues),
            Op::Send(topic, queue, bytes) => {
                let body = self.body(bytes);
                self.make_topic(broker, topic);
                let message = Message::new(topic, &body[..]).queue(queue);
                let sent = broker.producer().send(&message).map(|receipt| vec![receipt]);
                drop(message);
                self.note_sent(topic, queue, vec![body], sent);
            }
            Op::Batch(topic, queue, bytes, count) => {
                let bodies: Vec<_> = (0..count).map(|_| self.body(bytes)).collect();
                self.make_topic(broker, topic);
                let batch = bodies.iter().map(|body| Message::new(topic, &body[..]).queue(queue));
                let sent = broker.producer().send_batch(&batch.collect::<Vec<_>>());
                self.note_sent(topic, queue, bodies, sent);
            }
            Op::Flush => {
                let all = self.entries.len();
                if broker.flush().is_ok() {
                    self.durable = self.durable.max(all);
                }
            }
            Op::Interval => {
                let commits = self.last_commits();
                let faults = storage.faults();
                clock.advance(INTERVAL * 2);
                if !storage.power_is_cut() && storage.faults() == faults {
                    self.note_durable_commits(commits);
                }
            }
            Op::Step => drop(clock.step()),
            Op::Commit(group, topic, queue, offset) => {
                let _ = self.commit(broker, (group, topic, queue), offset);
            }
            Op::DropAllBut(files) => {
                let limit = broker.stats().log_end.saturating_sub(files * SEGMENT);
                self.dropped = self.dropped.max(limit);
                let _ = broker.drop_before(limit);
            }
            Op::Reopen => {}
        }
    }

    /// A body that no other message has.
    fn body(&mut self, bytes: usize) -> Vec<u8> {
        self.said += 1;
        let mut random = Random(self.said);
        let mut body: Vec<u8> = self.said.to_le_bytes().to_vec();
        while body.len() < bytes {
            body.extend_from_slice(&random.next().to_le_bytes());
        }
        body.truncate(bytes.max(4));
        body
    }

    /// A topic that a first send would make is made before, so that its outcome is known.
    fn make_topic(&mut self, broker: &Broker, topic: &'static str) {
        if broker.queues(topic).is_err() {
            self.create(broker, topic, 2);
        }
    }

    fn create(&mut self, broker: &Broker, name: &'static str, queues: u16) {
        let created = broker.create_topic(name, queues);
        if broker.queues(name).is_ok() && !self.has_topic(name) {
            self.entries.push(Entry::Topic { name, queues });
            self.positions.push(None);
        }
        if created.is_ok() && self.flush == Flush::EveryMessage {
            self.durable = self.entries.len();
        }
    }

    fn has_topic(&self, topic: &str) -> bool {
        let named = |entry: &Entry| matches!(entry, Entry::Topic { name, .. } if *name == topic);
        self.entries.iter().any(named)
    }

    fn note_sent(
        &mut self,
        topic: &'static str,
        queue: u16,
        bodies: Vec<Vec<u8>>,
        sent: Result<Vec<Receipt>, Error>,
    ) {
        let (position, acknowledged) = match &sent {
            Ok(receipts) => (receipts[0].position, true),
            Err(Error::NotDurable { receipt, .. }) => (receipt.position, false),
            // Nothing is stored.
            Err(_) => return,
        };
        let first = self.end_of(topic, queue);
        if let Ok(receipts) = &sent {
            let offsets: Vec<u64> = receipts.iter().map(|receipt| receipt.offset).collect();
            let expected: Vec<u64> = (first..first + bodies.len() as u64).collect();
            assert_eq!(offsets, expected, "offsets of {topic} {queue}");
        }
        let last = bodies.len() - 1;
        for (nth, body) in bodies.into_iter().enumerate() {
            let offset = first + nth as u64;
            self.entries.push(Entry::Message { topic, queue, offset, body, more: nth < last });
            self.positions.push(Some(position));
        }
        if acknowledged && self.flush == Flush::EveryMessage {
            self.durable = self.entries.len();
        }
    }

    fn end_of(&self, topic: &str, queue: u16) -> u64 {
        let of_queue = |entry: &&Entry| matches!(entry, Entry::Message { topic: t, queue: q, .. } if *t == topic && *q == queue);
        self.entries.iter().filter(of_queue).count() as u64
    }

    /// What a flush of its own has made durable.
    fn note_flushed(&mut self, broker: &Broker) {
        let flushed = broker.stats().flushed;
        // A batch has one position for all of its entries: it is flushed as a whole.
        let below = |position: &Option<u64>| position.is_some_and(|at| at < flushed);
        let flushed = self.positions.iter().rposition(below).map_or(0, |last| last + 1);
        self.durable = self.durable.max(flushed);
    }

    fn commit(&mut self, broker: &Broker, key: Key, offset: u64) -> Result<(), Error> {
        let (group, topic, queue) = key;
        let id = broker.queues(topic)?[usize::from(queue)].clone();
        let builder = broker.pull_consumer(group).subscribe(topic, Filter::ALL)?;
        let mut consumer = builder.start()?;
        let history = self.commits.entry(key).or_default();
        if history.is_empty() {
            // Where a new group begins.
            history.push(broker.min_offset(&id)?);
        }
        consumer.seek(&id, offset)?;
        history.push(offset);
        let committed = consumer.commit();
        match committed {
            Ok(()) => self.unsure.remove(&key),
            Err(_) => self.unsure.insert(key),
        };
        committed
    }

    fn last_commits(&self) -> BTreeMap<Key, usize> {
        let sure = self.commits.iter().filter(|(key, _)| !self.unsure.contains(*key));
        sure.map(|(key, history)| (*key, history.len())).collect()
    }

    /// `commits` were stored when a sync began that has succeeded.
    fn note_durable_commits(&mut self, commits: BTreeMap<Key, usize>) {
        self.durable_commits.extend(commits);
    }

    /// Closes the broker.
    pub(crate) fn close(&mut self, storage: &SimulatedStorage, broker: &Broker) {
        let (all, commits) = (self.entries.len(), self.last_commits());
        let faults = storage.faults();
        if broker.close().is_ok() {
            self.durable = all;
            if storage.faults() == faults {
                self.note_durable_commits(commits);
            }
        }
        self.note_flushed(broker);
    }

    /// Opens a storage, and checks that what was promised is there; returns what it holds.
    pub(crate) fn check(
        &self,
        storage: &SimulatedStorage,
        loss: Loss,
        seed: u64,
    ) -> Result<Contents, String> {
        let clock = DrivenClock::with_steps(START_MS + 3_600_000, seed);
        let broker = open(storage, &clock, self.flush).map_err(|error| format!("open: {error}"))?;
        let contents = Contents::read(&broker)?;
        self.compare(&broker, &contents, loss)?;
        Ok(contents)
    }

    /// As [`check`](Self::check), and that it goes on: another message, another close and open.
    pub(crate) fn check_all(
        &self,
        storage: &SimulatedStorage,
        loss: Loss,
        seed: u64,
    ) -> Result<(), String> {
        let clock = DrivenClock::with_steps(START_MS + 3_600_000, seed);
        let broker = open(storage, &clock, self.flush).map_err(|error| format!("open: {error}"))?;
        let contents = Contents::read(&broker)?;
        self.compare(&broker, &contents, loss)?;
        let topic = contents.queues.keys().next().map_or("new", |(topic, _)| topic.as_str());
        let body = [&b"goes on "[..], &seed.to_le_bytes()].concat();
        let message = Message::new(topic, &body[..]).queue(0);
        let failed = |what: &str, error: Error| format!("{what}: {error}");
        let receipt = broker.producer().send(&message).map_err(|e| failed("send", e))?;
        let end = contents.queues.get(&(topic.to_owned(), 0)).map_or(0, Queue::end);
        if receipt.offset != end {
            return Err(format!("the next offset is {}, not {end}", receipt.offset));
        }
        let contents = Contents::read(&broker)?;
        broker.close().map_err(|e| failed("close", e))?;
        drop(broker);
        let broker = open(storage, &clock, self.flush).map_err(|e| failed("open again", e))?;
        if !broker.recovery_report().clean {
            return Err(format!("not clean after a close: {}", broker.recovery_report()));
        }
        let again = Contents::read(&broker)?;
        if again != contents {
            return Err(format!("opened again it has {again:?} instead of {contents:?}"));
        }
        Ok(())
    }

    fn compare(&self, broker: &Broker, contents: &Contents, loss: Loss) -> Result<(), String> {
        let report = broker.recovery_report();
        let survives = |entry: &Entry| match entry {
            Entry::Topic { name, .. } => contents.topics.contains_key(*name),
            Entry::Message { topic, queue, offset, .. } => {
                let queue = contents.queues.get(&((*topic).to_owned(), *queue));
                queue.is_some_and(|queue| *offset < queue.end())
            }
        };
        let count = self.entries.iter().take_while(|entry| survives(entry)).count();
        if let Some(hole) = self.entries[count..].iter().find(|entry| survives(entry)) {
            return Err(format!("{hole:?} is there, but {:?} is lost", self.entries[count]));
        }
        let promised = if loss == Loss::Process { self.entries.len() } else { self.durable };
        if count < promised {
            return Err(format!("{:?} is lost, {report}", self.entries[count]));
        }
        if count.checked_sub(1).is_some_and(|last| self.entries[last].goes_on()) {
            return Err(format!("half a batch is there, up to {:?}", self.entries[count - 1]));
        }
        let mut messages = 0;
        for (entry, position) in self.entries[..count].iter().zip(&self.positions) {
            match entry {
                Entry::Topic { name, queues } => {
                    let found = contents.topics.get(*name).copied().unwrap_or(0);
                    if found != *queues {
                        return Err(format!("{name} has {found} queues, not {queues}"));
                    }
                }
                Entry::Message { topic, queue, offset, body, .. } => {
                    messages += 1;
                    let queue = &contents.queues[&((*topic).to_owned(), *queue)];
                    let nth = offset.checked_sub(queue.min).map(|nth| nth as usize);
                    match nth.map(|nth| &queue.bodies[nth]) {
                        None if position.is_some_and(|at| at < self.dropped) => {}
                        None => return Err(format!("{entry:?} was dropped")),
                        Some(found) if found == body => {}
                        Some(found) => return Err(format!("{found:?} instead of {entry:?}")),
                    }
                }
            }
        }
        if contents.queues.values().map(Queue::end).sum::<u64>() != messages {
            return Err(format!("more messages than were sent: {contents:?}"));
        }
        self.compare_commits(broker, contents, loss)
    }

    fn compare_commits(
        &self,
        broker: &Broker,
        contents: &Contents,
        loss: Loss,
    ) -> Result<(), String> {
        let report = broker.recovery_report();
        for (key, history) in &self.commits {
            let (group, topic, number) = *key;
            let Some(queue) = contents.queues.get(&(topic.to_owned(), number)) else { continue };
            let id = &broker.queues(topic).map_err(|e| e.to_string())?[usize::from(number)];
            let found = broker.committed(group, id).map_err(|e| e.to_string())?;
            let lowered = report.lowered.iter().find(|lowered| {
                lowered.topic == topic && lowered.queue == number && Some(lowered.to) == found
            });
            let wrong = |what: &str| {
                Err(format!("{group} has {found:?} in {topic} {number} {what}: {history:?}"))
            };
            if found.is_some_and(|found| found > queue.end()) {
                return wrong("beyond the end");
            }
            if report.unreadable_offsets > 0 {
                return wrong("and there are unreadable offsets");
            }
            let least = self.durable_commits.get(key).map_or(0, |count| count - 1);
            match found {
                _ if lowered.is_some_and(|low| low.to == queue.end()) => {}
                None if self.durable_commits.contains_key(key) => return wrong("lost"),
                None => {}
                Some(found) if !history[least..].contains(&found) => return wrong("went back"),
                Some(found) => {
                    let sure = loss == Loss::Process && !self.unsure.contains(key);
                    if sure && history.last() != Some(&found) {
                        return wrong("after a kill");
                    }
                }
            }
        }
        Ok(())
    }

    /// Reads everything of a damaged store that could be opened: what is there has to be right.
    pub(crate) fn examine(&self, broker: &Broker, damage: &Damage<'_>) -> Result<Found, String> {
        let mut found = Found::Whole;
        let topics = broker.topics();
        let reader = broker.pull_consumer("reading").subscribe("none", Filter::ALL);
        let reader = reader.and_then(rocklet::PullConsumerBuilder::start);
        let reader = reader.map_err(|error| format!("reader: {error}"))?;
        // The messages of the last append, and what it would mean to lose them.
        let last = self.entries.iter().rposition(|entry| !entry.goes_on());
        let last = last.and_then(|last| self.entries[..last].iter().rposition(|e| !e.goes_on()));
        for (nth, entry) in self.entries.iter().enumerate() {
            match entry {
                Entry::Topic { name, queues } => {
                    if broker.queues(name).map_or(0, |ids| ids.len()) != usize::from(*queues) {
                        return Err(format!("{entry:?} is not among {topics:?}"));
                    }
                }
                Entry::Message { topic, queue, offset, body, .. } => {
                    let id = &broker.queues(topic).map_err(|e| e.to_string())?[usize::from(*queue)];
                    let torn = damage.killed
                        && damage.file.starts_with("commitlog/")
                        && last.is_some_and(|last| nth > last);
                    match reader.pull(id, *offset, 1) {
                        Err(Error::Corrupt { .. }) => found = found.max(Found::Unreadable),
                        Err(error) => return Err(format!("{entry:?}: {error}")),
                        Ok(pull) => match pull.messages.iter().next() {
                            Some(read) if read.offset() == *offset && read.body() == body => {}
                            Some(read) => return Err(format!("{read:?} instead of {entry:?}")),
                            None if torn && pull.max <= *offset => found = found.max(Found::Cut),
                            None => return Err(format!("{entry:?} is not there: {pull:?}")),
                        },
                    }
                }
            }
        }
        if topics.iter().any(|topic| !self.has_topic(topic)) {
            return Err(format!("a topic that nobody made: {topics:?}"));
        }
        for (key, history) in &self.commits {
            let (group, topic, queue) = *key;
            let id = &broker.queues(topic).map_err(|e| e.to_string())?[usize::from(queue)];
            let committed = broker.committed(group, id).map_err(|e| e.to_string())?;
            let unreadable = broker.recovery_report().unreadable_offsets > 0;
            match committed {
                Some(offset) if history.last() == Some(&offset) => {}
                _ if !damage.file.starts_with("meta/offsets") => {
                    return Err(format!("{group} has {committed:?}, not {history:?}"));
                }
                Some(offset) if history.contains(&offset) => found = found.max(Found::OlderCommit),
                None if unreadable => found = found.max(Found::NoCommit),
                _ => return Err(format!("{group} has {committed:?}, not {history:?}")),
            }
        }
        Ok(found)
    }

    /// The world after a first recovery has returned: what it found is durable.
    pub(crate) fn after(&self, contents: &Contents) -> Self {
        let mut after = self.clone();
        let survives = |entry: &Entry| match entry {
            Entry::Topic { name, .. } => contents.topics.contains_key(*name),
            Entry::Message { topic, queue, offset, .. } => {
                let queue = contents.queues.get(&((*topic).to_owned(), *queue));
                queue.is_some_and(|queue| *offset < queue.end())
            }
        };
        after.durable = self.entries.iter().take_while(|entry| survives(entry)).count();
        after.entries.truncate(after.durable);
        after.positions.truncate(after.durable);
        for ((_, topic, queue), history) in &mut after.commits {
            let end = contents.queues.get(&((*topic).to_owned(), *queue)).map_or(0, Queue::end);
            // It may have been lowered.
            history.push(end);
        }
        after
    }
}

impl Entry {
    fn goes_on(&self) -> bool {
        matches!(self, Self::Message { more: true, .. })
    }
}

/// What was done to a file of a store.
#[derive(Debug)]
pub(crate) struct Damage<'a> {
    pub(crate) file: &'a str,
    /// The store was left behind by a killed process: the last append may be torn.
    pub(crate) killed: bool,
}

/// What comes of a damaged store, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Found {
    /// Everything is there.
    Whole,
    /// An older commit counts, as after a commit that was torn.
    OlderCommit,
    /// A commit is lost, and the report says so.
    NoCommit,
    /// The last append is taken for torn.
    Cut,
    /// A read says what is damaged.
    Unreadable,
    /// Open says it.
    Refused,
}

/// All that can be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Contents {
    topics: BTreeMap<String, u16>,
    queues: BTreeMap<(String, u16), Queue>,
}

#[derive(Clone, Default, PartialEq, Eq)]
struct Queue {
    min: u64,
    bodies: Vec<Vec<u8>>,
}

impl Queue {
    fn end(&self) -> u64 {
        self.min + self.bodies.len() as u64
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}..{}", self.min, self.end())
    }
}

impl Contents {
    /// Reads every message of every queue; every entry of the index has to lead to one.
    fn read(broker: &Broker) -> Result<Self, String> {
        let mut contents = Self::default();
        let topics = broker.topics();
        if topics.is_empty() {
            return Ok(contents);
        }
        let reader = broker.pull_consumer("reading").subscribe("none", Filter::ALL);
        let reader = reader.and_then(rocklet::PullConsumerBuilder::start);
        let reader = reader.map_err(|error| format!("reader: {error}"))?;
        for topic in topics {
            let queues = broker.queues(&topic).map_err(|error| error.to_string())?;
            contents.topics.insert(topic.clone(), queues.len() as u16);
            for id in queues {
                let queue = read_queue(&reader, &id).map_err(|error| format!("{id}: {error}"))?;
                contents.queues.insert((topic.clone(), id.queue()), queue);
            }
        }
        Ok(contents)
    }
}

fn read_queue(reader: &PullConsumer, id: &QueueId) -> Result<Queue, String> {
    let pull = |offset| reader.pull(id, offset, 64).map_err(|error| error.to_string());
    let (min, max) = pull(0).map(|first| (first.min, first.max))?;
    let mut queue = Queue { min, bodies: Vec::new() };
    while queue.end() < max {
        let read = pull(queue.end())?;
        for delivery in &read.messages {
            if delivery.offset() != queue.end() {
                return Err(format!("offset {} instead of {}", delivery.offset(), queue.end()));
            }
            queue.bodies.push(delivery.body().to_vec());
        }
        if read.next != queue.end() || read.messages.is_empty() {
            return Err(format!("nothing at {}: {:?}", queue.end(), read.status));
        }
    }
    Ok(queue)
}

pub(crate) fn open(
    storage: &SimulatedStorage,
    clock: &DrivenClock,
    flush: Flush,
) -> Result<Broker, Error> {
    let builder = Broker::builder("simulated").storage(storage).clock(clock).segment_bytes(SEGMENT);
    builder.flush(flush).verify(Verify::OnRead).open()
}
