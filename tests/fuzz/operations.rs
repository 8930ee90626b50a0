//! A sequence of calls to a broker does what it does to a model in memory, with closing, killing
//! and reopening in between.

use super::bytes::{Bytes, directory, files_in};
use rocklet::{
    Broker, DrivenClock, Edge, Error, Filter, Flush, Message, PullConsumer, PullStatus, QueueId,
    Receipt,
};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

const TOPICS: [&str; 3] = ["t0", "t1", "t2"];
const QUEUES: u16 = 2;
const TAGS: [Option<&str>; 4] = [None, Some("a"), Some("Aa"), Some("BB")];
const KEYS: [&[&str]; 5] = [&[], &["k"], &["Aa"], &["BB", "k"], &["Aa", "BB", "Aa"]];
const GROUP: &str = "g";
/// Calls, at most.
const CALLS: usize = 80;

/// Makes the calls that `bytes` say.
pub(crate) fn run(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    let flush = match bytes.u8() % 2 {
        0 => Flush::EveryMessage,
        _ => Flush::Every(Duration::from_millis(500)),
    };
    let mut pair = Pair::new(flush);
    for _ in 0..CALLS {
        if bytes.is_empty() {
            break;
        }
        pair.step(&mut bytes);
    }
    pair.compare();
    pair.close_and_reopen();
    pair.compare();
}

/// A broker, and what it should hold.
struct Pair {
    dir: tempfile::TempDir,
    flush: Flush,
    clock: DrivenClock,
    broker: Broker,
    consumer: Option<PullConsumer>,
    queues: BTreeMap<QueueId, Queue>,
    last_ms: u64,
}

#[derive(Default)]
struct Queue {
    messages: Vec<Sent>,
    /// Below it messages were dropped.
    min: usize,
    /// Where the group goes on, once it has polled here in this life of the broker.
    polled: Option<usize>,
    committed: Option<u64>,
}

struct Sent {
    body: Vec<u8>,
    tag: Option<&'static str>,
    keys: &'static [&'static str],
    receipt: Receipt,
}

impl Pair {
    fn new(flush: Flush) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let clock = DrivenClock::new(1_000);
        let broker = open(dir.path(), flush, &clock);
        let (consumer, queues) = (None, BTreeMap::new());
        Self { dir, flush, clock, broker, consumer, queues, last_ms: 0 }
    }

    fn step(&mut self, bytes: &mut Bytes<'_>) {
        match bytes.u8() % 20 {
            0..5 => self.send(bytes, 1),
            5 | 6 => {
                let count = bytes.below(9);
                self.send(bytes, count);
            }
            7 => self.clock.advance(Duration::from_millis(bytes.u16().into())),
            8 => self.clock.set_wall_ms(bytes.u16().into()),
            9 | 10 => self.poll(bytes.flag()),
            11 | 12 => self.pull(bytes),
            13 => self.find_by_key(bytes),
            14 => self.search_by_time(bytes),
            15 => self.view(bytes),
            16 => self.drop_before(bytes),
            17 => self.broker.flush().unwrap(),
            18 => self.close_and_reopen(),
            _ => self.kill_and_reopen(),
        }
    }

    fn send(&mut self, bytes: &mut Bytes<'_>, count: usize) {
        let topic = TOPICS[bytes.below(TOPICS.len())];
        let queue = bytes.u8() as u16 % QUEUES;
        if !self.queues.contains_key(&QueueId::new(topic, 0)) {
            self.broker.create_topic(topic, QUEUES).unwrap();
            (0..QUEUES)
                .for_each(|n| drop(self.queues.insert(QueueId::new(topic, n), Queue::default())));
        }
        let (tag, keys) = (TAGS[bytes.below(TAGS.len())], KEYS[bytes.below(KEYS.len())]);
        let len = match bytes.u8() {
            small @ 0..200 => usize::from(small) + 1,
            large => usize::from(large - 199) * 500,
        };
        let fill = bytes.u8();
        let bodies: Vec<Vec<u8>> = (0..count).map(|nth| vec![fill ^ nth as u8; len]).collect();
        let message = |body| {
            let message = Message::new(topic, body).queue(queue);
            let message = tag.into_iter().fold(message, Message::tag);
            keys.iter().fold(message, |message, key| message.key(*key))
        };
        let producer = self.broker.producer();
        let receipts = match &bodies[..] {
            [body] => vec![producer.send(&message(&body[..])).unwrap()],
            bodies => {
                let batch: Vec<_> = bodies.iter().map(|body| message(&body[..])).collect();
                match producer.send_batch(&batch) {
                    Ok(receipts) => receipts,
                    Err(Error::TooLarge { .. }) => {
                        assert!(count * len > 60_000 - count * 200);
                        return;
                    }
                    Err(other) => panic!("{other}"),
                }
            }
        };
        assert_eq!(receipts.len(), count);
        let known = self.queues.get_mut(&QueueId::new(topic, queue)).unwrap();
        for (body, receipt) in bodies.into_iter().zip(receipts) {
            assert_eq!(receipt.offset, known.messages.len() as u64);
            assert_eq!(receipt.store_ms, self.clock.wall_ms().max(self.last_ms));
            self.last_ms = receipt.store_ms;
            known.messages.push(Sent { body, tag, keys, receipt });
        }
    }

    fn poll(&mut self, commit: bool) {
        if self.consumer.is_none() {
            let builder = self.broker.pull_consumer(GROUP);
            let subscribe = |builder: rocklet::PullConsumerBuilder, topic: &&str| {
                builder.subscribe(topic, Filter::ALL)
            };
            let builder = TOPICS.iter().try_fold(builder, subscribe).unwrap();
            self.consumer = Some(builder.start().unwrap());
        }
        let Some(consumer) = &mut self.consumer else { return };
        for message in &consumer.poll(Duration::ZERO).unwrap() {
            let queue = self.queues.get_mut(&message.queue_id()).unwrap();
            let committed = queue.committed.map(|offset| offset as usize);
            let next = queue.polled.or(committed).unwrap_or(0).max(queue.min);
            assert_eq!(message.offset(), next as u64, "the next message of the queue");
            assert_eq!(message.body(), queue.messages[next].body);
            queue.polled = Some(next + 1);
        }
        if commit {
            consumer.commit().unwrap();
            for (id, queue) in self.queues.iter_mut().filter(|(_, queue)| queue.polled.is_some()) {
                queue.committed = queue.polled.map(|offset| offset as u64);
                assert_eq!(self.broker.committed(GROUP, id).unwrap(), queue.committed);
            }
        }
    }

    fn pull(&self, bytes: &mut Bytes<'_>) {
        let Some((id, queue)) = self.pick(bytes) else { return };
        let offset = bytes.below(queue.messages.len() + 3);
        let max = bytes.below(40) + 1;
        let tag = ["a", "Aa", "BB"][bytes.below(3)];
        let filter = if bytes.flag() { Filter::ALL } else { Filter::tags(tag).unwrap() };
        let wants = |sent: &Sent| filter == Filter::ALL || sent.tag == Some(tag);
        let consumer = self.broker.pull_consumer("pulls").subscribe(id.topic(), filter.clone());
        let pulled = consumer.unwrap().start().unwrap().pull(id, offset as u64, max).unwrap();
        let end = queue.messages.len();
        assert_eq!((pulled.min, pulled.max), (queue.min as u64, end as u64));
        let (status, next) = match offset {
            0 if end == 0 => (PullStatus::NoNewMessage, 0),
            _ if end == 0 => (PullStatus::OffsetIllegal, 0),
            _ if offset < queue.min => (PullStatus::OffsetIllegal, queue.min),
            _ if offset > end => (PullStatus::OffsetIllegal, end),
            _ if offset == end => (PullStatus::NoNewMessage, end),
            _ => {
                let mut wanted = (offset..end).filter(|nth| wants(&queue.messages[*nth]));
                let expected: Vec<u64> = wanted.by_ref().take(max).map(|nth| nth as u64).collect();
                let found: Vec<u64> = pulled.messages.iter().map(|found| found.offset()).collect();
                assert_eq!(found, expected);
                for found in &pulled.messages {
                    assert_eq!(found.body(), queue.messages[found.offset() as usize].body);
                }
                let last = expected.last().map_or(end, |last| *last as usize + 1);
                let next = if expected.len() == max { last } else { end };
                let status = if expected.is_empty() {
                    PullStatus::NoMatchedMessage
                } else {
                    PullStatus::Found
                };
                (status, next)
            }
        };
        assert_eq!((pulled.status, pulled.next), (status, next as u64), "{id} {offset}");
    }

    fn find_by_key(&self, bytes: &mut Bytes<'_>) {
        let topic = TOPICS[bytes.below(TOPICS.len())];
        let key = ["k", "Aa", "BB", "none"][bytes.below(4)];
        let from = u64::from(bytes.u16()).saturating_sub(1_000);
        let to = from + u64::from(bytes.u16()) * 4;
        let max = bytes.below(30);
        let found = match self.broker.find_by_key(topic, key, from..=to, max) {
            Err(Error::NoSuchTopic { .. }) => {
                assert!(!self.queues.contains_key(&QueueId::new(topic, 0)));
                return;
            }
            found => found.unwrap(),
        };
        let found: Vec<u64> = found.iter().map(|message| message.position()).collect();
        assert_eq!(found, self.with_key(topic, key, from, to, max), "{topic} {key}");
    }

    /// The positions of the newest messages with a key, ascending.
    fn with_key(&self, topic: &str, key: &str, from: u64, to: u64, max: usize) -> Vec<u64> {
        let of_topic = self.queues.iter().filter(|(id, _)| id.topic() == topic);
        let all = of_topic.flat_map(|(_, queue)| &queue.messages[queue.min..]);
        let matching = all.filter(|sent| {
            sent.keys.contains(&key) && (from..=to).contains(&sent.receipt.store_ms)
        });
        let mut positions: Vec<u64> = matching.map(|sent| sent.receipt.position).collect();
        positions.sort_unstable();
        positions.split_off(positions.len().saturating_sub(max))
    }

    fn search_by_time(&self, bytes: &mut Bytes<'_>) {
        let Some((id, queue)) = self.pick(bytes) else { return };
        let ms = u64::from(bytes.u16()) * 2;
        let stored = |nth: &usize| queue.messages[*nth].receipt.store_ms;
        let (min, end) = (queue.min, queue.messages.len());
        let after = (min..end).find(|nth| stored(nth) >= ms).unwrap_or(end);
        let before = (min..end).rev().find(|nth| stored(nth) <= ms).unwrap_or(min);
        let at = |edge| self.broker.offset_at(id, ms, edge).unwrap() as usize;
        assert_eq!((at(Edge::AtOrAfter), at(Edge::AtOrBefore)), (after, before), "{id} {ms}");
    }

    fn view(&self, bytes: &mut Bytes<'_>) {
        let Some((_, queue)) = self.pick(bytes) else { return };
        if queue.messages.is_empty() {
            return;
        }
        let nth = bytes.below(queue.messages.len());
        let sent = &queue.messages[nth];
        match self.broker.message(sent.receipt.id).unwrap() {
            Some(found) => assert_eq!(found.delivery().body(), sent.body),
            None => assert!(nth < queue.min),
        }
    }

    fn drop_before(&mut self, bytes: &mut Bytes<'_>) {
        let before = self.broker.stats();
        let position = bytes.below(before.log_end as usize + 2) as u64;
        self.broker.drop_before(position).unwrap();
        let start = self.broker.stats().log_start;
        assert!(start >= before.log_start);
        for (id, queue) in &mut self.queues {
            let dropped = |sent: &&Sent| sent.receipt.position < start;
            queue.min = queue.messages.iter().take_while(dropped).count();
            // The next file may begin behind a gap, but nothing from `position` on is gone.
            let mut gone = queue.messages[..queue.min].iter();
            assert!(
                gone.all(|sent| sent.receipt.position < position.max(before.log_start)),
                "{id}"
            );
            assert_eq!(self.broker.min_offset(id).unwrap(), queue.min as u64, "{id}");
        }
    }

    fn close_and_reopen(&mut self) {
        self.consumer = None;
        self.broker.close().unwrap();
        self.reopen(true);
    }

    fn kill_and_reopen(&mut self) {
        // What a killed process leaves is in the files already.
        let killed = directory(&files_in(self.dir.path()));
        self.consumer = None;
        self.broker.close().unwrap();
        self.dir = killed;
        self.reopen(false);
    }

    fn reopen(&mut self, clean: bool) {
        self.broker = open(self.dir.path(), self.flush, &self.clock);
        let report = self.broker.recovery_report();
        assert_eq!((report.clean, report.cut_at), (clean, None));
        assert!(report.lowered.is_empty());
        self.queues.values_mut().for_each(|queue| queue.polled = None);
        self.compare();
    }

    /// Compares all that can be asked for.
    fn compare(&self) {
        let topics: Vec<String> = self.broker.topics();
        let known =
            TOPICS.iter().filter(|topic| self.queues.contains_key(&QueueId::new(**topic, 0)));
        assert_eq!(topics, known.copied().collect::<Vec<_>>());
        for (id, queue) in &self.queues {
            let (min, end) = (queue.min as u64, queue.messages.len() as u64);
            assert_eq!(self.broker.min_offset(id).unwrap(), min, "{id}");
            assert_eq!(self.broker.max_offset(id).unwrap(), end, "{id}");
            if let Some(offset) = queue.committed {
                // A group whose place was dropped goes on at the minimum, and may have said so.
                let found = self.broker.committed(GROUP, id).unwrap().unwrap();
                assert!(found == offset || (offset..=min).contains(&found), "{id}: {found}");
            }
            let consumer = self.broker.pull_consumer("all").subscribe(id.topic(), Filter::ALL);
            let consumer = consumer.unwrap().start().unwrap();
            let mut offset = min;
            while offset < end {
                let pulled = consumer.pull(id, offset, 32).unwrap();
                assert_eq!(pulled.status, PullStatus::Found, "{id} {offset}");
                for message in &pulled.messages {
                    let sent = &queue.messages[offset as usize];
                    assert_eq!(message.offset(), offset, "{id}");
                    assert!(message.body() == sent.body, "{id} {offset}");
                    assert_eq!(message.tag(), sent.tag);
                    assert!(message.keys().eq(sent.keys.iter().copied()));
                    assert_eq!(message.store_ms(), sent.receipt.store_ms);
                    assert_eq!(message.id(), sent.receipt.id);
                    offset += 1;
                }
            }
        }
        for topic in &topics {
            for key in ["k", "Aa", "BB"] {
                let found = self.broker.find_by_key(topic, key, .., usize::MAX).unwrap();
                let found: Vec<u64> = found.iter().map(|message| message.position()).collect();
                assert_eq!(
                    found,
                    self.with_key(topic, key, 0, u64::MAX, usize::MAX),
                    "{topic} {key}"
                );
            }
        }
    }

    fn pick(&self, bytes: &mut Bytes<'_>) -> Option<(&QueueId, &Queue)> {
        let nth = bytes.u8();
        let count = self.queues.len().max(1);
        self.queues.iter().nth(usize::from(nth) % count)
    }
}

fn open(dir: &Path, flush: Flush, clock: &DrivenClock) -> Broker {
    Broker::builder(dir).segment_bytes(64 << 10).flush(flush).clock(clock).open().unwrap()
}
