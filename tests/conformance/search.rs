//! Reading a queue from an offset, and finding an offset by time.

use super::{Store, Vectors, recorded};
use rocklet::{DrivenClock, Edge, Error, Filter, Message, PullConsumer, PullStatus, QueueId};
use serde_json::Value;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

const UNSIGNED: &str = "offsets and times are unsigned: the type refuses what is negative";

// (STORE-25, STORE-27, STORE-29, STORE-30, STORE-32)
#[test]
fn store_28_get_message_status() {
    const UNKNOWN: &str = "a queue that does not exist is an error, and is not made [STORE-25]";
    const NONE: &str = "a maximum of 0 messages is refused, where it means 1 [PC-3]";
    const CAPS: &str =
        "the caller's limits hold, no others: more than 32 messages or 256 KiB at once [STORE-30]";
    const HASHES: &str = "tags are compared exactly, not by their hashes alone [STORE-22, B-152]";
    let fixture = Fixture::new();
    Vectors::read("get_message_status.json").run(|case| {
        let (topic, queue) = (case["topic"].as_str().unwrap(), case["queue_id"].as_u64().unwrap());
        let Some(offset) = case["offset"].as_u64() else { return Some(UNSIGNED) };
        let max = usize::try_from(case["max_msg_nums"].as_u64().unwrap()).unwrap();
        let expression = case["subscription"].as_str().unwrap_or("*");
        let expected = &case["expected"];

        let name = format!("{topic}/{queue}");
        let queue = QueueId::new(topic, u16::try_from(queue).unwrap());
        let consumer = fixture.consumer(topic, expression);
        let pulled = consumer.pull(&queue, offset, max.max(1));
        let Some(messages) = fixture.queues.get(&name) else {
            assert!(
                matches!(pulled, Err(Error::NoSuchTopic { .. } | Error::NoSuchQueue { .. })),
                "{case}"
            );
            assert_eq!(expected["status"], "NO_MESSAGE_IN_QUEUE", "{case}");
            return Some(UNKNOWN);
        };
        if max == 0 {
            let refused = consumer.pull(&queue, offset, max);
            assert!(matches!(refused, Err(Error::Setting { .. })), "{case}");
        }
        let read = Read { messages, offset, max: max.max(1), expression };
        let (matches_hash, matches_tag) = (Tags::ByHash, Tags::Exactly);
        let recorded = read.scan(matches_hash, fixture.caps);
        let plain = read.scan(matches_tag, Caps::NONE);

        let pulled = pulled.unwrap();
        let status = match expected["status"].as_str().unwrap() {
            "FOUND" | "NO_MATCHED_MESSAGE" if plain.0.is_empty() => PullStatus::NoMatchedMessage,
            "FOUND" | "NO_MATCHED_MESSAGE" => PullStatus::Found,
            "MESSAGE_WAS_REMOVING" => PullStatus::NoMatchedMessage,
            "NO_MESSAGE_IN_QUEUE" | "NO_MATCHED_LOGIC_QUEUE" if offset != 0 => {
                PullStatus::OffsetIllegal
            }
            "NO_MESSAGE_IN_QUEUE" | "NO_MATCHED_LOGIC_QUEUE" => PullStatus::NoNewMessage,
            "OFFSET_FOUND_NULL" | "OFFSET_OVERFLOW_ONE" => PullStatus::NoNewMessage,
            "OFFSET_OVERFLOW_BADLY" | "OFFSET_TOO_SMALL" => PullStatus::OffsetIllegal,
            other => panic!("{other}: {case}"),
        };
        assert_eq!(pulled.status, status, "{case}");
        assert_eq!(pulled.min, expected["min_offset"], "{case}");
        assert_eq!(pulled.max, expected["max_offset"], "{case}");
        let offsets: Vec<u64> = pulled.messages.iter().map(|message| message.offset()).collect();
        let inside = (pulled.min..pulled.max).contains(&offset);
        if !inside {
            assert_eq!(pulled.next, expected["next_begin_offset"], "{case}");
            assert_eq!(offsets, [] as [u64; 0], "{case}");
            return (max == 0).then_some(NONE);
        }
        assert_eq!((offsets, pulled.next), plain, "{case}");
        // The same scan with RocketMQ's limits and its comparison of tags gives what it gave.
        let expected: Vec<u64> = serde_json::from_value(expected["queue_offsets"].clone()).unwrap();
        assert_eq!(recorded, (expected, case["expected"]["next_begin_offset"].as_u64().unwrap()));
        if max == 0 {
            Some(NONE)
        } else if recorded == plain {
            None
        } else if recorded == read.scan(matches_hash, Caps::NONE) {
            Some(HASHES)
        } else {
            Some(CAPS)
        }
    });
}

/// The queues of `get_message_fixture.json` in a broker.
struct Fixture {
    store: Store,
    queues: BTreeMap<String, Vec<Stored>>,
    caps: Caps,
    consumers: RefCell<BTreeMap<(String, String), &'static PullConsumer>>,
}

struct Stored {
    tag: Option<String>,
    body: usize,
    /// Of RocketMQ's record.
    size: u64,
}

/// Limits of what is handed out at once.
#[derive(Clone, Copy)]
struct Caps {
    messages: usize,
    bytes: u64,
}

#[derive(Clone, Copy, PartialEq)]
enum Tags {
    Exactly,
    ByHash,
}

struct Read<'a> {
    messages: &'a [Stored],
    offset: u64,
    max: usize,
    expression: &'a str,
}

impl Fixture {
    fn new() -> Self {
        let recorded = recorded("get_message_fixture.json");
        let store = Store::with(|builder| builder.segment_bytes(1 << 20));
        let stored = |message: &Value| Stored {
            tag: message["tag"].as_str().map(String::from),
            body: usize::try_from(message["body_len"].as_u64().unwrap()).unwrap().max(1),
            size: message["record_size"].as_u64().unwrap(),
        };
        let queues = recorded["queues"].as_object().unwrap().iter();
        let queues: BTreeMap<String, Vec<Stored>> = queues
            .map(|(name, queue)| {
                (name.clone(), queue.as_array().unwrap().iter().map(stored).collect())
            })
            .collect();
        let mut topics = BTreeMap::<&str, u16>::new();
        for name in queues.keys() {
            let (topic, number) = name.split_once('/').unwrap();
            let count = topics.entry(topic).or_default();
            *count = (*count).max(number.parse::<u16>().unwrap() + 1);
        }
        for (topic, count) in topics {
            store.broker.create_topic(topic, count).unwrap();
        }
        // What is below the minimum goes with its log files, before the rest comes.
        let min = |name: &str| {
            usize::try_from(recorded["min_logic_offset"][name].as_u64().unwrap_or(0)).unwrap()
        };
        queues.iter().for_each(|(name, queue)| store.fill(name, &queue[..min(name)]));
        store.drop_all();
        queues.iter().for_each(|(name, queue)| store.fill(name, &queue[min(name)..]));
        let number = |name: &str| recorded[name].as_u64().unwrap();
        let caps = Caps {
            messages: usize::try_from(number("max_transfer_count_on_message_in_memory")).unwrap(),
            bytes: number("max_transfer_bytes_on_message_in_memory"),
        };
        Self { store, queues, caps, consumers: RefCell::default() }
    }

    /// A consumer that pulls with this subscription.
    fn consumer(&self, topic: &str, expression: &str) -> &'static PullConsumer {
        let mut consumers = self.consumers.borrow_mut();
        let group = format!("g{}", consumers.len());
        let started = || {
            let builder = self.store.broker.pull_consumer(&group);
            let subscribed = builder.subscribe(topic, Filter::tags(expression).unwrap()).unwrap();
            &*Box::leak(Box::new(subscribed.start().unwrap()))
        };
        consumers.entry((topic.to_owned(), expression.to_owned())).or_insert_with(started)
    }
}

impl Store {
    /// Sends to the queue named `topic/number`.
    fn fill(&self, name: &str, messages: &[Stored]) {
        let (topic, number) = name.split_once('/').unwrap();
        for stored in messages {
            let message = Message::new(topic, vec![0; stored.body]).queue(number.parse().unwrap());
            let message = match &stored.tag {
                Some(tag) => message.tag(tag),
                None => message,
            };
            self.broker.producer().send(&message).unwrap();
        }
    }

    /// Drops every message that was sent before: rolls over to a new log file.
    fn drop_all(&self) {
        let before = self.broker.stats().log_end;
        while self.broker.stats().log_start < before {
            self.broker.producer().send(&Message::new("filler", vec![0; 30_000])).unwrap();
            self.broker.drop_before(u64::MAX).unwrap();
        }
    }
}

impl Caps {
    const NONE: Self = Self { messages: usize::MAX, bytes: u64::MAX };
}

impl Read<'_> {
    /// The offsets handed out and the one to go on at: STORE-29 and STORE-30.
    fn scan(&self, tags: Tags, caps: Caps) -> (Vec<u64>, u64) {
        let wanted: BTreeSet<&str> = self.expression.split("||").map(str::trim).collect();
        let matches = |tag: &Option<String>| match tag {
            _ if self.expression == "*" => true,
            None => false,
            Some(tag) if tags == Tags::Exactly => wanted.contains(tag.as_str()),
            Some(tag) => wanted.iter().any(|wanted| java_hash(wanted) == java_hash(tag)),
        };
        let (mut found, mut bytes, mut next) = (Vec::new(), 0, self.offset);
        for stored in self.messages.iter().skip(usize::try_from(self.offset).unwrap()) {
            let full = found.len() >= self.max
                || found.len() >= caps.messages
                || bytes + stored.size > caps.bytes;
            if full && !found.is_empty() {
                break;
            }
            if matches(&stored.tag) {
                found.push(next);
                bytes += stored.size;
            }
            next += 1;
        }
        (found, next)
    }
}

fn java_hash(text: &str) -> i32 {
    text.encode_utf16().fold(0, |hash: i32, unit| hash.wrapping_mul(31).wrapping_add(unit.into()))
}

// (STORE-34)
#[test]
fn store_35_offset_by_timestamp() {
    const EQUAL: &str = "of several messages with the time asked for the edge says which one, where any may be \
                         returned [STORE-34, B-076]";
    const DECREASING: &str = "store times never decrease, whatever the clock does [STORE-7, B-175]";
    let mut stores = BTreeMap::new();
    Vectors::read("offset_by_timestamp.json").run(|case| {
        let numbers = |list: &Value| serde_json::from_value::<Vec<u64>>(list.clone());
        let Ok(times) = numbers(&case["store_timestamps"]) else { return Some(UNSIGNED) };
        if !times.is_sorted() {
            return Some(DECREASING);
        }
        let min = case["min_offset"].as_u64().unwrap_or(0);
        let store = stores.entry((times.clone(), min)).or_insert_with(|| at_times(&times, min));
        let queue = QueueId::new("t", 0);
        if case["op"] == "getMessageStoreTimeStamp" {
            let Some(offset) = case["queue_offset"].as_u64() else { return Some(UNSIGNED) };
            let consumer = store.broker.pull_consumer("g").subscribe("t", Filter::ALL).unwrap();
            let pulled = consumer.start().unwrap().pull(&queue, offset, 1).unwrap();
            let time = pulled.messages.iter().next().map(|message| message.store_ms());
            assert_eq!(time, case["timestamp"].as_u64(), "{case}");
            return None;
        }
        // A time before 1970 is before all messages, unless one has the very first.
        let asked = case["query"].as_i64().unwrap();
        if asked < 0 && times.first() == Some(&0) {
            return Some(UNSIGNED);
        }
        let asked = u64::try_from(asked).unwrap_or(0);
        let at = |edge| store.broker.offset_at(&queue, asked, edge).unwrap();
        let time = |offset: u64| times.get(usize::try_from(offset).unwrap()).copied();

        let (after, before) = (at(Edge::AtOrAfter), at(Edge::AtOrBefore));
        let (right, left) = (time(after), time(before).filter(|time| *time <= asked));
        let expected = case["offset"].as_u64().unwrap();
        if right == Some(asked) && after != before {
            assert!((after..=before).contains(&expected), "{case}");
            return Some(EQUAL);
        }
        // RocketMQ 4 returns the nearer one, and of two equally near the earlier.
        let nearest = match (left, right) {
            (Some(left), Some(right)) if asked - left > right - asked => after,
            (Some(_), _) => before,
            (None, _) => after,
        };
        assert_eq!(nearest, expected, "{case}");
        // And each edge is what it says.
        let inside = usize::try_from(min).unwrap()..times.len();
        let first = inside.clone().find(|nth| times[*nth] >= asked).unwrap_or(times.len());
        let last = inside.clone().rev().find(|nth| times[*nth] <= asked).unwrap_or(inside.start);
        assert_eq!((after, before), (first as u64, last as u64), "{case}");
        None
    });
}

/// A queue with messages of these store times, of which those below `min` were dropped.
fn at_times(times: &[u64], min: u64) -> Store {
    let clock = DrivenClock::new(0);
    let store = Store::with(|builder| builder.segment_bytes(64 << 10).clock(&clock));
    store.broker.create_topic("t", 1).unwrap();
    for (nth, ms) in times.iter().enumerate() {
        if nth as u64 == min && min > 0 {
            store.drop_all();
        }
        clock.set_wall_ms(*ms);
        store.broker.producer().send(&Message::new("t", b"x")).unwrap();
    }
    assert_eq!(store.broker.min_offset(&QueueId::new("t", 0)).unwrap(), min);
    store
}
