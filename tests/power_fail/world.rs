//! A run of a script on a simulated storage: what the broker has promised, and whether a storage
//! keeps it.

use crate::script::{INTERVAL, Op, Script, Settings};
use crate::support::Random;
use rocklet::{
    Broker, DrivenClock, Error, Filter, Flush, Message, MessageId, PullConsumer, QueueId, Receipt,
    Retention, SimulatedStorage, Verify,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub(crate) const SEGMENT: u64 = 64 << 10;
const START_MS: u64 = 1_700_000_000_000;

/// What is in the log, in its order.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    /// A topic was made, or got another number of queues.
    Topic {
        name: &'static str,
        queues: u16,
    },
    Deleted {
        name: &'static str,
    },
    Purged {
        name: &'static str,
    },
    Message(Sent),
    /// A message that comes at this wall time.
    Delayed {
        due_ms: u64,
        sent: Sent,
    },
    /// Of the delayed message with this number.
    Cancelled(usize),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Sent {
    topic: &'static str,
    queue: u16,
    offset: u64,
    /// Of its append.
    position: u64,
    body: Vec<u8>,
    key: Option<String>,
    /// Others of its batch follow.
    more: bool,
}

/// Which queue of which group, in which life of the topic.
type Key = (&'static str, &'static str, u16, usize);

/// All that a broker was told and has answered.
#[derive(Clone, Debug)]
pub(crate) struct World {
    settings: Settings,
    entries: Vec<Entry>,
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
    /// The ids of delayed messages, by number.
    delays: Vec<MessageId>,
    /// Calls that had failed when the broker was opened: after another one it may be poisoned, and
    /// syncs nothing.
    faults: u64,
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
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            settings,
            entries: Vec::new(),
            durable: 0,
            commits: BTreeMap::new(),
            durable_commits: BTreeMap::new(),
            unsure: BTreeSet::new(),
            dropped: 0,
            said: 0,
            delays: Vec::new(),
            faults: 0,
        }
    }

    /// Runs a script until its end, or until power is cut. Calls may fail; what comes of them is
    /// noted. The broker is left open, if it is.
    pub(crate) fn run(
        script: &Script,
        storage: &SimulatedStorage,
        seed: u64,
    ) -> (Self, Option<Broker>) {
        let mut world = Self::new(script.settings);
        let clock = DrivenClock::with_steps(START_MS, seed);
        let mut random = Random(seed);
        let mut broker = open(storage, &clock, script.settings).ok();
        world.faults = storage.faults();
        for op in &script.ops {
            let Some(opened) = &broker else { break };
            if *op == Op::Reopen {
                world.close(storage, opened);
                // Gone before the next one comes.
                broker = None;
                broker = broker.or_else(|| open(storage, &clock, script.settings).ok());
                world.faults = storage.faults();
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
            Op::Widen(name, queues) => {
                let changed = broker.update_topic(name, queues);
                let done = broker.queues(name).is_ok_and(|ids| ids.len() == usize::from(queues));
                self.note(done, changed.is_ok(), Entry::Topic { name, queues });
            }
            Op::Delete(name) => {
                let deleted = broker.delete_topic(name);
                self.note(broker.queues(name).is_err(), deleted.is_ok(), Entry::Deleted { name });
            }
            Op::Purge(name) => {
                let purged = broker.purge(name);
                let all_gone = |ids: Vec<QueueId>| {
                    ids.iter().all(|id| broker.min_offset(id).ok() == broker.max_offset(id).ok())
                };
                let done = broker.queues(name).is_ok_and(all_gone);
                self.note(done, purged.is_ok(), Entry::Purged { name });
            }
            Op::Send(topic, queue, bytes) => self.send(broker, topic, queue, bytes, None),
            Op::Keyed(topic, queue, bytes) => {
                let key = format!("key-{}", self.said);
                self.send(broker, topic, queue, bytes, Some(key));
            }
            Op::Batch(topic, queue, bytes, count) => {
                let bodies: Vec<_> = (0..count).map(|_| self.body(bytes)).collect();
                self.make_topic(broker, topic);
                let batch = bodies.iter().map(|body| Message::new(topic, &body[..]).queue(queue));
                let sent = broker.producer().send_batch(&batch.collect::<Vec<_>>());
                self.note_sent(topic, queue, bodies, None, sent);
            }
            Op::Delay(topic, bytes, delay_ms) => self.delay(broker, clock, topic, bytes, delay_ms),
            Op::Cancel(nth) => self.cancel(broker, nth),
            Op::Flush => {
                let all = self.entries.len();
                if broker.flush().is_ok() {
                    self.durable = self.durable.max(all);
                }
            }
            Op::Interval => {
                let commits = self.last_commits();
                clock.advance(INTERVAL * 2);
                if !storage.power_is_cut() && storage.faults() == self.faults {
                    self.note_durable_commits(commits);
                }
            }
            Op::Step => drop(clock.step()),
            Op::Commit(group, topic, queue, offset) => {
                let life = Model::of(&self.entries).lives.get(topic).copied().unwrap_or(0);
                let _ = self.commit(broker, (group, topic, queue, life), offset);
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
        let known = broker.queues(name).is_ok();
        let created = broker.create_topic(name, queues);
        let done = !known && broker.queues(name).is_ok();
        self.note(done, created.is_ok(), Entry::Topic { name, queues });
    }

    /// Notes what has happened to a topic, if it has.
    fn note(&mut self, done: bool, acknowledged: bool, entry: Entry) {
        if done {
            self.entries.push(entry);
        }
        if acknowledged && self.settings.flush == Flush::EveryMessage {
            self.durable = self.entries.len();
        }
    }

    fn send(
        &mut self,
        broker: &Broker,
        topic: &'static str,
        queue: u16,
        bytes: usize,
        key: Option<String>,
    ) {
        let body = self.body(bytes);
        self.make_topic(broker, topic);
        let message = Message::new(topic, &body[..]).queue(queue);
        let message = match &key {
            Some(key) => message.key(key.clone()),
            None => message,
        };
        let sent = broker.producer().send(&message).map(|receipt| vec![receipt]);
        drop(message);
        self.note_sent(topic, queue, vec![body], key, sent);
    }

    fn delay(
        &mut self,
        broker: &Broker,
        clock: &DrivenClock,
        topic: &'static str,
        bytes: usize,
        delay_ms: u64,
    ) {
        let body = self.body(bytes);
        self.make_topic(broker, topic);
        let due_ms = clock.wall_ms() + delay_ms;
        let delay = Duration::from_millis(delay_ms);
        let message = Message::new(topic, &body[..]).queue(0).delay(delay);
        let sent = broker.producer().send(&message);
        drop(message);
        let (receipt, acknowledged) = match sent {
            Ok(receipt) => (receipt, true),
            Err(Error::NotDurable { receipt, .. }) => (receipt, false),
            // Nothing is stored.
            Err(_) => return,
        };
        self.delays.push(receipt.id);
        let (position, key) = (receipt.position, None);
        let sent = Sent { topic, queue: 0, offset: 0, position, body, key, more: false };
        self.note(true, acknowledged, Entry::Delayed { due_ms, sent });
    }

    fn cancel(&mut self, broker: &Broker, nth: usize) {
        let Some(id) = self.delays.get(nth).copied() else { return };
        let before = broker.stats().delayed;
        let cancelled = broker.cancel(id);
        // It may be done, and not be durable.
        let done = broker.stats().delayed < before || matches!(cancelled, Ok(true));
        self.note(done, matches!(cancelled, Ok(true)), Entry::Cancelled(nth));
    }

    fn note_sent(
        &mut self,
        topic: &'static str,
        queue: u16,
        bodies: Vec<Vec<u8>>,
        key: Option<String>,
        sent: Result<Vec<Receipt>, Error>,
    ) {
        let (position, acknowledged) = match &sent {
            Ok(receipts) => (receipts[0].position, true),
            Err(Error::NotDurable { receipt, .. }) => (receipt.position, false),
            // Nothing is stored.
            Err(_) => return,
        };
        let model = Model::of(&self.entries);
        let first = model.queues.get(&(topic, queue)).map_or(0, |queue| queue.end);
        if let Ok(receipts) = &sent {
            let offsets: Vec<u64> = receipts.iter().map(|receipt| receipt.offset).collect();
            let expected: Vec<u64> = (first..first + bodies.len() as u64).collect();
            assert_eq!(offsets, expected, "offsets of {topic} {queue}");
        }
        let last = bodies.len() - 1;
        for (nth, body) in bodies.into_iter().enumerate() {
            let (offset, more, key) = (first + nth as u64, nth < last, key.clone());
            let sent = Sent { topic, queue, offset, position, body, key, more };
            self.entries.push(Entry::Message(sent));
        }
        if acknowledged && self.settings.flush == Flush::EveryMessage {
            self.durable = self.entries.len();
        }
    }

    /// What a flush of its own has made durable.
    fn note_flushed(&mut self, broker: &Broker) {
        let stats = broker.stats();
        if let Some(bytes) = self.settings.log_bytes {
            // Files count whole, and so does the one that is made ahead.
            let end = (stats.log_end / SEGMENT + 2) * SEGMENT;
            self.dropped = self.dropped.max(end.saturating_sub(bytes));
        }
        let flushed = stats.flushed;
        // A batch has one position for all of its entries: it is flushed as a whole.
        let below = |entry: &Entry| match entry {
            Entry::Message(sent) | Entry::Delayed { sent, .. } => sent.position < flushed,
            _ => false,
        };
        let flushed = self.entries.iter().rposition(below).map_or(0, |last| last + 1);
        self.durable = self.durable.max(flushed);
    }

    fn commit(&mut self, broker: &Broker, key: Key, offset: u64) -> Result<(), Error> {
        let (group, topic, queue, _) = key;
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
        if broker.close().is_ok() {
            self.durable = all;
            if storage.faults() == self.faults {
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
        let broker =
            open(storage, &clock, self.settings).map_err(|error| format!("open: {error}"))?;
        self.let_delays_come(&clock);
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
        let broker =
            open(storage, &clock, self.settings).map_err(|error| format!("open: {error}"))?;
        self.let_delays_come(&clock);
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
        let broker = open(storage, &clock, self.settings).map_err(|e| failed("open again", e))?;
        if !broker.recovery_report().clean {
            return Err(format!("not clean after a close: {}", broker.recovery_report()));
        }
        let again = Contents::read(&broker)?;
        if again != contents {
            return Err(format!("opened again it has {again:?} instead of {contents:?}"));
        }
        Ok(())
    }

    /// An hour later all messages with a delay are due.
    fn let_delays_come(&self, clock: &DrivenClock) {
        if !self.delays.is_empty() {
            clock.advance(Duration::from_millis(1));
        }
    }

    /// How many messages with a delay have not been cancelled.
    pub(crate) fn delayed(&self) -> usize {
        let count = |which: fn(&Entry) -> bool| self.entries.iter().filter(|e| which(e)).count();
        count(|entry| matches!(entry, Entry::Delayed { .. }))
            - count(|entry| matches!(entry, Entry::Cancelled(_)))
    }

    fn compare(&self, broker: &Broker, contents: &Contents, loss: Loss) -> Result<(), String> {
        let promised = if loss == Loss::Process { self.entries.len() } else { self.durable };
        // What is there has to be the beginning of what was done: as much as was promised, or more.
        let whole =
            |count: &usize| !count.checked_sub(1).is_some_and(|l| self.entries[l].goes_on());
        let counts = (promised..=self.entries.len()).rev().filter(whole);
        let mut models = counts.map(|count| Model::of(&self.entries[..count]));
        let Some(model) = models.find(|model| model.has_the_ends_of(contents)) else {
            let report = broker.recovery_report();
            let least = Model::of(&self.entries[..promised]);
            return Err(format!("{contents:?}, and not at least {least:?}; {report}"));
        };
        for (place, queue) in &model.queues {
            let found = &contents.queues[&(place.0.to_owned(), place.1)];
            let (purged, min) = (queue.purged, found.min);
            // What retention has dropped stood below the position that it was told.
            let kept =
                |(offset, sent): &&(u64, &Sent)| *offset >= purged && sent.position >= self.dropped;
            let first = queue.sent.iter().find(kept).map_or(queue.end, |(offset, _)| *offset);
            if min < purged || min > first {
                return Err(format!("{place:?} begins at {min}, purged to {purged}, kept {first}"));
            }
            for (offset, sent) in queue.sent.iter().filter(|(offset, _)| *offset >= min) {
                let body = &found.bodies[(offset - min) as usize];
                if *body != sent.body {
                    return Err(format!("{body:?} instead of {sent:?}"));
                }
            }
            self.find_by_key(broker, &queue.sent, min)?;
        }
        self.compare_commits(broker, &model, loss)
    }

    fn find_by_key(&self, broker: &Broker, sent: &[(u64, &Sent)], min: u64) -> Result<(), String> {
        let keyed = sent.iter().filter_map(|(_, sent)| Some((sent, sent.key.as_ref()?)));
        for (sent, key) in keyed {
            let found = broker.find_by_key(sent.topic, key, .., 10).map_err(|e| e.to_string())?;
            let found: Vec<_> = found.iter().map(|found| (found.queue(), found.offset())).collect();
            let expected = [(sent.queue, sent.offset)];
            let expected = if sent.offset < min { &[][..] } else { &expected[..] };
            if found != expected {
                return Err(format!("by {key} one finds {found:?}, not {expected:?}"));
            }
        }
        Ok(())
    }

    fn compare_commits(
        &self,
        broker: &Broker,
        model: &Model<'_>,
        loss: Loss,
    ) -> Result<(), String> {
        let report = broker.recovery_report();
        let places: BTreeSet<_> = self.commits.keys().map(|(g, t, q, _)| (*g, *t, *q)).collect();
        for (group, topic, number) in places {
            let Some(queue) = model.queues.get(&(topic, number)) else { continue };
            let id = &broker.queues(topic).map_err(|e| e.to_string())?[usize::from(number)];
            let found = broker.committed(group, id).map_err(|e| e.to_string())?;
            let key = (group, topic, number, model.lives[topic]);
            let none = Vec::new();
            let history = self.commits.get(&key).unwrap_or(&none);
            let lowered = report.lowered.iter().find(|lowered| {
                lowered.topic == topic && lowered.queue == number && Some(lowered.to) == found
            });
            let wrong = |what: &str| {
                Err(format!("{group} has {found:?} in {topic} {number} {what}: {history:?}"))
            };
            if found.is_some_and(|found| found > queue.end) {
                return wrong("beyond the end");
            }
            let least = self.durable_commits.get(&key).map_or(0, |count| count - 1);
            match found {
                _ if lowered.is_some_and(|low| low.to == queue.end) => {}
                None if self.durable_commits.contains_key(&key) => return wrong("lost"),
                None => {}
                Some(found) if !history.get(least..).unwrap_or_default().contains(&found) => {
                    return wrong("went back");
                }
                Some(found) => {
                    let sure = loss == Loss::Process && !self.unsure.contains(&key);
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
                Entry::Deleted { .. } | Entry::Purged { .. } => {}
                // What is there of them is looked at below.
                Entry::Delayed { .. } | Entry::Cancelled(_) => {}
                Entry::Message(Sent { topic, queue, offset, body, .. }) => {
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
        let model = Model::of(&self.entries);
        if topics.iter().any(|topic| !model.topics.contains_key(topic.as_str())) {
            return Err(format!("a topic that nobody made: {topics:?}"));
        }
        for (key, history) in &self.commits {
            let (group, topic, queue, _) = *key;
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
        let counts = (self.durable..=self.entries.len()).rev();
        let mut counts =
            counts.filter(|count| Model::of(&self.entries[..*count]).has_the_ends_of(contents));
        after.durable = counts.next().unwrap_or(self.durable);
        after.entries.truncate(after.durable);
        for ((_, topic, queue, _), history) in &mut after.commits {
            let end = contents.queues.get(&((*topic).to_owned(), *queue)).map_or(0, Queue::end);
            // It may have been lowered.
            history.push(end);
        }
        after
    }
}

/// What a log with certain entries stands for.
#[derive(Default)]
struct Model<'a> {
    topics: BTreeMap<&'static str, u16>,
    queues: BTreeMap<(&'static str, u16), ModelQueue<'a>>,
    /// How often a topic of a name was made.
    lives: BTreeMap<&'static str, usize>,
}

#[derive(Default)]
struct ModelQueue<'a> {
    /// With their offsets.
    sent: Vec<(u64, &'a Sent)>,
    purged: u64,
    end: u64,
}

impl<'a> Model<'a> {
    fn of(entries: &'a [Entry]) -> Self {
        let (mut model, mut delayed) = (Self::default(), Vec::new());
        for entry in entries {
            match entry {
                Entry::Topic { name, queues } => {
                    if model.topics.insert(name, *queues).is_none() {
                        *model.lives.entry(name).or_default() += 1;
                    }
                    for queue in 0..*queues {
                        model.queues.entry((name, queue)).or_default();
                    }
                }
                Entry::Deleted { name } => {
                    model.topics.remove(name);
                    model.queues.retain(|(topic, _), _| topic != name);
                }
                Entry::Purged { name } => {
                    let of_topic = model.queues.iter_mut().filter(|((topic, _), _)| topic == name);
                    of_topic.for_each(|(_, queue)| queue.purged = queue.end);
                }
                Entry::Message(sent) => {
                    let queue = model.queues.entry((sent.topic, sent.queue)).or_default();
                    queue.end = sent.offset + 1;
                    queue.sent.push((sent.offset, sent));
                }
                Entry::Delayed { due_ms, sent } => delayed.push(Some((*due_ms, sent))),
                Entry::Cancelled(nth) => delayed[*nth] = None,
            }
        }
        // All of them come, in the order in which they are due: whether before a crash or after.
        let mut delayed: Vec<_> = delayed.into_iter().flatten().collect();
        delayed.sort_by_key(|(due_ms, _)| *due_ms);
        for (_, sent) in delayed {
            let queue = model.queues.entry((sent.topic, sent.queue)).or_default();
            queue.sent.push((queue.end, sent));
            queue.end += 1;
        }
        model
    }

    /// Whether `contents` have the same topics and queues, with the same ends, and begin no earlier.
    fn has_the_ends_of(&self, contents: &Contents) -> bool {
        let topics = self.topics.iter().map(|(name, queues)| (*name, *queues));
        let queues = self.queues.iter().map(|((topic, queue), q)| (*topic, *queue, q.end));
        let purged = self.queues.iter().map(|((topic, queue), q)| (*topic, *queue, q.purged));
        topics.eq(contents.topics.iter().map(|(name, queues)| (name.as_str(), *queues)))
            && queues
                .eq(contents.queues.iter().map(|((t, q), queue)| (t.as_str(), *q, queue.end())))
            && contents.queues.values().zip(purged).all(|(queue, (.., purged))| queue.min >= purged)
    }
}

impl std::fmt::Debug for Model<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let queues = self.queues.iter().map(|((t, q), queue)| (t, q, queue.purged..queue.end));
        f.debug_list().entries(queues).finish()
    }
}

impl Entry {
    fn goes_on(&self) -> bool {
        matches!(self, Self::Message(sent) if sent.more)
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
    settings: Settings,
) -> Result<Broker, Error> {
    let builder = Broker::builder("simulated").storage(storage).clock(clock).segment_bytes(SEGMENT);
    let retention =
        settings.log_bytes.map_or_else(Retention::none, |bytes| Retention::none().log_bytes(bytes));
    builder.flush(settings.flush).retention(retention).verify(Verify::OnRead).open()
}
