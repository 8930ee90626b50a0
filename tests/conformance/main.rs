//! Golden vectors of Apache RocketMQ, run against the public API.
//!
//! They are read from `tests/vectors/`, or from the folder that `ROCKLET_VECTORS` names. Where
//! rocklet differs on purpose, a rule over the case says so, with its reason; every test prints
//! how many cases each rule took.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test, which reports its counts")]

mod allocate;
mod delay_levels;
mod process_queue;
mod search;
mod sql;
mod store;

use rocklet::{Broker, BrokerBuilder, Error, Filter, Message, QueueId};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// Cases of one file, and what became of them.
struct Vectors {
    file: &'static str,
    cases: Vec<Value>,
    compared: usize,
    deviations: BTreeMap<&'static str, usize>,
}

impl Vectors {
    fn read(file: &'static str) -> Self {
        let cases = serde_json::from_value(recorded(file)).unwrap();
        Self { file, cases, compared: 0, deviations: BTreeMap::new() }
    }

    /// Runs `check` on every case; it returns the rule by which rocklet deviates, if one does.
    fn run(mut self, mut check: impl FnMut(&Value) -> Option<&'static str>) {
        for case in &self.cases {
            match check(case) {
                None => self.compared += 1,
                Some(rule) => *self.deviations.entry(rule).or_default() += 1,
            }
        }
        println!("{}: {} of {} cases compared", self.file, self.compared, self.cases.len());
        for (rule, count) in &self.deviations {
            println!("  {count} by rule: {rule}");
        }
        assert!(self.compared > 0, "{}: nothing was compared", self.file);
    }
}

/// What a file of the folder holds.
fn recorded(file: &str) -> Value {
    let folder = std::env::var_os("ROCKLET_VECTORS")
        .map(PathBuf::from)
        .unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests").join("vectors"));
    let path = folder.join(file);
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()));
    serde_json::from_str(&text).unwrap()
}

/// A broker in a folder of its own.
struct Store {
    broker: Broker,
    folder: tempfile::TempDir,
}

impl Store {
    fn new() -> Self {
        Self::with(|builder| builder.segment_bytes(16 << 20))
    }

    fn with(settings: impl FnOnce(BrokerBuilder) -> BrokerBuilder) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let broker = settings(Broker::builder(folder.path())).open().unwrap();
        Self { broker, folder }
    }
}

const NO_NULL: &str = "Rust has no null where this case passes one";
#[test]
fn sub_2_store_22_tag_expressions_and_hashes() {
    const TYPES: &str = "the kind of an expression is a function, not a text";
    const NO_TAG: &str =
        "an expression that names no tag is refused, where it would deliver nothing [SUB-2 QUIRK]";
    let hashes = Hashes::new();
    Vectors::read("tags.json").run(|case| {
        if case["op"] == "hashCode" {
            hashes.compare(case["string"].as_str().unwrap(), &case["expected"], case);
            return None;
        }
        match &case["type"] {
            Value::Null => {}
            Value::String(kind) if kind == "TAG" => {}
            Value::String(kind) if kind == "SQL92" => {
                let sql = Filter::sql(case["sub_string"].as_str().unwrap_or_default());
                // What RocketMQ takes here without a look, its broker refuses later (SUB-3).
                assert!(sql.is_err() || case["expected"]["error"].is_null(), "{case}");
                return None;
            }
            _ => return Some(TYPES),
        }
        let filter = Filter::tags(case["sub_string"].as_str().unwrap_or_default());
        if case["expected"]["error"].is_string() {
            assert!(matches!(filter, Err(Error::Filter { .. })), "{case}");
            return None;
        }
        let tags: BTreeSet<String> =
            serde_json::from_value(case["expected"]["tags_set"].clone()).unwrap();
        if tags.is_empty() && case["expected"]["sub_string"] != "*" {
            assert!(matches!(filter, Err(Error::Filter { .. })), "{case}");
            return Some(NO_TAG);
        }
        let filter = filter.unwrap();
        if tags.is_empty() {
            assert_eq!(filter, Filter::ALL, "{case}");
        } else {
            let shown: BTreeSet<String> =
                filter.to_string().split(" || ").map(String::from).collect();
            assert_eq!(shown, tags, "{case}");
            assert_ne!(filter, Filter::ALL, "{case}");
        }
        None
    });
}

#[test]
fn store_22_tag_codes() {
    let hashes = Hashes::new();
    Vectors::read("tags_code.json").run(|case| match case["tags"].as_str() {
        Some(tag) => {
            hashes.compare(tag, &case["code"], case);
            None
        }
        None => Some(NO_NULL),
    });
}

#[test]
fn model_5_model_7_names_and_messages() {
    const LONG_GROUP: &str =
        "a group of 121 characters or more is refused, as its retry topic would not fit [MODEL-6]";
    const SYSTEM: &str =
        "a system or group topic is refused by create, send and subscribe alike [B-063, MODEL-15]";
    const SYSTEM_GROUP: &str = "a group of the system is refused [SUB-6]";
    let store = Store::new();
    let broker = &store.broker;
    broker.create_topic("t", 1).unwrap();
    Vectors::read("topic_validation.json").run(|case| {
        if case["op"] == "check_message" {
            let (Some(topic), Some(length)) = (case["topic"].as_str(), case["body_len"].as_u64())
            else {
                return Some(NO_NULL);
            };
            assert_eq!(case["max_message_size"], 4 << 20, "the default of both: {case}");
            let body = vec![0; usize::try_from(length).unwrap()];
            let sent = broker.producer().send(&Message::new(topic, body));
            let system = is_system_topic(topic);
            let refused = match sent {
                Ok(_) => false,
                Err(Error::Name { .. } | Error::EmptyBody | Error::TooLarge { .. }) => true,
                Err(other) => panic!("{other}: {case}"),
            };
            assert_eq!(refused, system || case["check_message"]["error"].is_string(), "{case}");
            return (system && case["check_message"]["ok"] == true).then_some(SYSTEM);
        }
        let Some(name) = case["name"].as_str() else {
            return Some(NO_NULL);
        };

        let legal_group = case["check_group"]["ok"] == true;
        let (long, internal) = (name.len() > 120, name.starts_with("CID_RMQ_SYS_"));
        let group = broker.pull_consumer(name).subscribe("t", Filter::ALL).and_then(|c| c.start());
        assert_eq!(accepted(group), legal_group && !long && !internal, "group: {case}");

        let legal_topic = case["check_topic"]["ok"] == true;
        assert_eq!(legal_topic, case["broker_validate"]["ok"]["valid"] == true, "{case}");
        let system = is_system_topic(name);
        assert!(system || case["is_system_topic"]["ok"] == false, "{case}");
        let expected = legal_topic && !system;
        assert_eq!(accepted(broker.create_topic(name, 1)), expected, "create: {case}");
        let sent = broker.producer().send(&Message::new(name, b"x"));
        assert_eq!(accepted(sent), expected, "send: {case}");
        let subscribed =
            broker.pull_consumer("g").subscribe(name, Filter::ALL).and_then(|c| c.start());
        assert_eq!(accepted(subscribed), expected, "subscribe: {case}");

        if legal_topic && system {
            Some(SYSTEM)
        } else if legal_group && long {
            Some(LONG_GROUP)
        } else if legal_group && internal {
            Some(SYSTEM_GROUP)
        } else {
            None
        }
    });
}

/// (STORE-9)
#[test]
fn store_8_put_statuses() {
    const ASCII: &str =
        "a topic has characters of A-Z a-z 0-9 % | _ - only, for every caller [MODEL-5]";
    const EMPTY: &str =
        "a message without a body is refused, by the store as by the client [MODEL-7]";
    Vectors::read("put_status.json").run(|case| {
        let number = |name: &str| usize::try_from(case[name].as_u64().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let builder = Broker::builder(folder.path()).segment_bytes(1 << 20);
        let broker = builder.max_body_bytes(number("max_message_size")).open().unwrap();
        let (topic, body) = (case["topic"].as_str().unwrap(), vec![b'x'; number("body_len")]);
        let mut message = Message::new(topic, &body[..]);
        // One property `k`: its name, a separator, and a value that takes up the rest.
        if let Some(length) = number("properties_utf8_len").checked_sub(2) {
            assert_eq!(case["properties_chars"], case["properties_utf8_len"], "{case}");
            message = message.property("k", "v".repeat(length));
        }
        let status = match broker.producer().send(&message) {
            Ok(receipt) => {
                assert_eq!(broker.max_offset(&QueueId::new(topic, receipt.queue)).unwrap(), 1);
                "PUT_OK"
            }
            Err(Error::Name { .. } | Error::TooLarge { .. } | Error::EmptyBody) => {
                assert!(broker.topics().is_empty(), "nothing is stored: {case}");
                "MESSAGE_ILLEGAL"
            }
            Err(other) => panic!("{other}: {case}"),
        };
        let deviation = match () {
            () if !topic.is_ascii() => Some(ASCII),
            () if body.is_empty() => Some(EMPTY),
            () => None,
        };
        assert_eq!(status == case["status"], deviation.is_none(), "{status}: {case}");
        deviation
    });
}

#[test]
fn model_9_properties_as_delivered() {
    const DECODER: &str =
        "no public call writes raw property text; a unit test of the decoder compares it";
    const REFUSED: &str =
        "a blank or reserved part or a separator is refused, not lost [MODEL-9, MODEL-12]";
    let store = Store::new();
    store.broker.create_topic("t", 1).unwrap();
    let consumer =
        store.broker.pull_consumer("g").subscribe("t", Filter::ALL).unwrap().start().unwrap();
    Vectors::read("properties_encoding.json").run(|case| {
        if case["op"] == "decode" {
            return Some(DECODER);
        }
        let pairs: Vec<(Option<String>, Option<String>)> =
            serde_json::from_value(case["pairs"].clone()).unwrap_or_default();
        let mut message = Message::new("t", b"x");
        for pair in &pairs {
            let (Some(name), Some(value)) = pair else {
                return Some(NO_NULL);
            };
            message = message.property(name, value);
        }
        let lossy = pairs.iter().flat_map(|(name, value)| [name, value]).flatten().any(|text| {
            text.trim_matches(|c| c <= ' ').is_empty() || text.contains(['\u{1}', '\u{2}'])
        });
        let receipt = match store.broker.producer().send(&message) {
            Err(Error::Property { .. }) if lossy => return Some(REFUSED),
            sent => sent.unwrap(),
        };
        assert!(!lossy, "{case}");
        let pull = consumer.pull(&QueueId::new("t", receipt.queue), receipt.offset, 1).unwrap();
        let delivery = pull.messages.iter().next().unwrap();
        let found: BTreeMap<_, _> = delivery.properties().collect();
        let expected: BTreeMap<String, String> =
            serde_json::from_value(case["decoded"].clone()).unwrap();
        let expected: BTreeMap<_, _> =
            expected.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(found, expected, "{case}");
        None
    });
}

/// Shows hashes through the queue that `order_by` chooses: `|hash mod queues|` [PROD-12].
struct Hashes {
    store: Store,
}

impl Hashes {
    /// Primes without a common factor, which together tell almost all hashes apart.
    const QUEUES: [u16; 3] = [7, 1009, 4093];

    fn new() -> Self {
        let store = Store::new();
        for queues in Self::QUEUES {
            store.broker.create_topic(&format!("t{queues}"), queues).unwrap();
        }
        Self { store }
    }

    fn compare(&self, text: &str, hash: &Value, case: &Value) {
        let hash = hash.as_i64().unwrap();
        for queues in Self::QUEUES {
            let message = Message::new(format!("t{queues}"), b"x").order_by(text);
            let receipt = self.store.broker.producer().send(&message).unwrap();
            let expected = (hash % i64::from(queues)).unsigned_abs();
            assert_eq!(u64::from(receipt.queue), expected, "{queues} queues: {case}");
        }
    }
}

/// Whether a name was taken. Topics are met again, as cases repeat names.
fn accepted<T>(result: rocklet::Result<T>) -> bool {
    match result {
        Ok(_) | Err(Error::TopicExists { .. }) => true,
        Err(Error::Name { .. }) => false,
        Err(other) => panic!("{other}"),
    }
}

/// MODEL-15 and MODEL-17, less the names of cluster and broker, of which there are none.
fn is_system_topic(name: &str) -> bool {
    let system = [
        "TBW102",
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "RMQ_SYS_TRACE_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "OFFSET_MOVED_EVENT",
        "SELF_TEST_TOPIC",
        "BenchmarkTest",
    ];
    system.contains(&name)
        || ["%RETRY%", "%DLQ%", "rmq_sys_"].iter().any(|prefix| name.starts_with(prefix))
}
