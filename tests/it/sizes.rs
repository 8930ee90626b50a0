//! Odd sizes and odd texts: carried exactly, or refused before anything is stored.

use crate::support::*;
use rocklet::{Broker, Delivery, Error, Message, MessageId};
use std::collections::HashSet;

/// A property whose encoding has so many bytes: name, separator, value.
fn with_properties(bytes: usize) -> Message<'static> {
    Message::new("t", "x".as_bytes()).property("p", "v".repeat(bytes - 2))
}

/// What a message carries beside its body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Texts {
    tag: Option<String>,
    keys: Vec<String>,
    properties: Vec<(String, String)>,
}

impl Texts {
    fn property(mut self, name: &str, value: &str) -> Self {
        self.properties.push((name.to_owned(), value.to_owned()));
        self
    }

    fn key(mut self, key: &str) -> Self {
        self.keys.push(key.to_owned());
        self
    }

    fn tag(self, tag: &str) -> Self {
        Self { tag: Some(tag.to_owned()), ..self }
    }

    fn message(&self) -> Message<'_> {
        let mut message = Message::new("t", "x".as_bytes());
        if let Some(tag) = &self.tag {
            message = message.tag(&**tag);
        }
        for key in &self.keys {
            message = message.key(&**key);
        }
        for (name, value) in &self.properties {
            message = message.property(&**name, &**value);
        }
        message
    }

    fn of(delivery: &Delivery<'_>) -> Self {
        let properties = delivery.properties();
        Self {
            tag: delivery.tag().map(str::to_owned),
            keys: delivery.keys().map(str::to_owned).collect(),
            properties: properties.map(|(n, v)| (n.to_owned(), v.to_owned())).collect(),
        }
    }
}

fn read_all(broker: &Broker, topic: &str) -> Vec<Texts> {
    let reader = broker.pull_consumer("reading").start().unwrap();
    let mut all = Vec::new();
    for queue in broker.queues(topic).unwrap_or_default() {
        let mut offset = 0;
        while offset < broker.max_offset(&queue).unwrap() {
            let pull = reader.pull(&queue, offset, 100).unwrap();
            all.extend(pull.messages.iter().map(|delivery| Texts::of(&delivery)));
            offset = pull.next;
        }
    }
    all
}

#[test]
fn b_058_properties_at_their_limit_come_back_and_beyond_it_nothing_is_stored() {
    let scene = scene();
    let producer = scene.broker.producer();
    producer.send(&with_properties(32_767)).unwrap();
    producer.send_batch(&[with_properties(10), with_properties(32_767)]).unwrap();
    let end = scene.broker.stats().log_end;
    for bytes in [32_768, 65_535, 65_536] {
        let refused = [
            producer.send(&with_properties(bytes)).unwrap_err(),
            producer.send_batch(&[with_properties(10), with_properties(bytes)]).unwrap_err(),
        ];
        for error in refused {
            let Error::TooLarge { what: "properties", length, limit } = error else {
                panic!("{error}")
            };
            assert_eq!((length, limit), (bytes, 32_767));
        }
    }
    assert_eq!(scene.broker.stats().log_end, end);
    let lengths = |broker: &Broker| {
        let read = read_all(broker, "t");
        let mut lengths: Vec<_> = read.iter().map(|texts| texts.properties[0].1.len()).collect();
        lengths.sort_unstable();
        lengths
    };
    let expected = [8, 32_765, 32_765];
    assert_eq!(lengths(&scene.broker), expected);
    let scene = scene.reopen();
    assert_eq!(lengths(&scene.broker), expected);
}

#[test]
fn b_059_odd_text_comes_back_exactly_or_is_refused() {
    let odd = [
        "\u{1}",
        "\u{2}",
        "a\u{1}b",
        "a\u{2}b\u{1}c",
        "\n",
        "a\nb",
        "\u{0}",
        "a\u{0}",
        "=",
        "a=b",
        "",
        " ",
        " lead",
        "trail ",
        "\u{1f680}",
        "DELAY\u{1}3",
        "x\u{2}DELAY\u{1}3",
        "a||b",
        "a b",
        "a  b",
    ];
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    let texts = || Texts::default().property("guard", "g");
    let mut stored = Vec::new();
    for text in odd {
        for sent in [
            texts().property("name", text),
            texts().property(text, "value"),
            texts().tag(text),
            texts().key(text),
            texts().key("first").key(text).key("last"),
        ] {
            let result = scene.broker.producer().send(&sent.message());
            match result {
                Ok(_) => stored.push(sent),
                Err(Error::Property { .. }) => {}
                Err(other) => panic!("{text:?}: {other}"),
            }
        }
    }
    assert!(stored.len() > odd.len(), "{} are taken", stored.len());
    let scene = scene.reopen();
    assert_eq!(read_all(&scene.broker, "t"), stored);
}

#[test]
fn b_063_a_topic_is_taken_or_refused_alike_and_leaves_no_file_outside() {
    let outer = tempfile::tempdir().unwrap();
    let dir = outer.path().join("store");
    let broker = Broker::builder(&dir).segment_bytes(1 << 20).open().unwrap();
    let long = "t".repeat(128);
    let names = [
        "",
        "../x",
        "a/b",
        "/abs",
        ".",
        "..",
        "CON",
        "a\u{0}b",
        "\u{e9}",
        "a b",
        "%RETRY%g",
        "%DLQ%g",
        "TBW102",
        "SCHEDULE_TOPIC_XXXX",
        &long,
        "orders",
        "Orders",
        "ORDERS",
    ];
    for name in names {
        let message = Message::new(name, name.as_bytes().first().map_or(vec![1], |b| vec![*b]));
        let sent = broker.producer().send(&message).map(drop);
        let subscribed = broker.pull_consumer("g").subscribe(name, "*").map(drop);
        // Made by the send already, if that was taken.
        let created = match broker.create_topic(name, 1) {
            Err(Error::TopicExists { .. }) => Ok(()),
            created => created,
        };
        for result in [&subscribed, &created] {
            let kind = |result: &rocklet::Result<()>| {
                result.as_ref().err().map(std::mem::discriminant::<Error>)
            };
            assert_eq!(kind(result), kind(&sent), "{name:?}: {result:?} / {sent:?}");
        }
        let fine = ["CON", "orders", "Orders", "ORDERS"].contains(&name);
        assert_eq!(sent.is_ok(), fine, "{name:?}: {sent:?}");
    }
    for name in ["orders", "Orders", "ORDERS"] {
        assert_eq!(stored(&broker, name), 1, "{name}");
        assert_eq!(read_all(&broker, name).len(), 1);
    }
    broker.close().unwrap();
    let outside: Vec<_> = std::fs::read_dir(outer.path()).unwrap().collect();
    assert_eq!(outside.len(), 1, "{outside:?}");
    let broker = Broker::open(&dir).unwrap();
    assert_eq!(broker.topics(), ["CON", "ORDERS", "Orders", "orders"]);
}

#[test]
fn b_064_no_id_is_given_twice() {
    let clock = rocklet::DrivenClock::new(1_700_000_000_000);
    let scene = scene_with(|builder| builder.clock(&clock));
    let mut ids: HashSet<MessageId> = HashSet::new();
    let mut send = |broker: &Broker| {
        let senders: Vec<_> = (0..8)
            .map(|_| {
                let producer = broker.producer();
                std::thread::spawn(move || -> Vec<MessageId> {
                    let batch = vec![Message::new("t", "x".as_bytes()); 50];
                    let batches = (0..40).flat_map(|_| producer.send_batch(&batch).unwrap());
                    let singles = (0..2000).map(|_| producer.send(&batch[0]).unwrap());
                    batches.collect::<Vec<_>>().into_iter().chain(singles).map(|r| r.id).collect()
                })
            })
            .collect();
        for sender in senders {
            for id in sender.join().unwrap() {
                assert!(ids.insert(id), "{id} was given twice");
            }
        }
    };
    send(&scene.broker);
    clock.set_wall_ms(1_700_000_000_000 - 3_600_000);
    send(&scene.broker);
    // In the same millisecond, and in another directory.
    let Scene { broker, dir } = scene;
    broker.close().unwrap();
    send(&small(dir.path()).clock(&clock).open().unwrap());
    send(&scene_with(|builder| builder.clock(&clock)).broker);
    assert_eq!(ids.len(), 4 * 8 * 4000);
}
