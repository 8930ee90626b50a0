//! Which queue a message goes to.

use crate::support::*;
use rocklet::{Broker, Error, Message, QueueId};
use std::collections::BTreeSet;
use std::sync::Mutex;

fn four() -> Scene {
    let scene = scene();
    scene.broker.create_topic("t", 4).unwrap();
    scene
}

fn refused(broker: &Broker, message: Message<'_>) -> Error {
    let before = broker.stats().log_end;
    let error = broker.producer().send(&message).unwrap_err();
    assert_eq!(broker.stats().log_end, before, "something was written: {error}");
    error
}

/// Java's string hash, modulo as PROD-12 has it.
fn java_queue(key: &str, queues: i32) -> u16 {
    let hash =
        key.encode_utf16().fold(0_i32, |h, unit| h.wrapping_mul(31).wrapping_add(i32::from(unit)));
    (hash % queues).unsigned_abs() as u16
}

#[test]
fn prod_9_without_a_choice_queues_take_turns() {
    let scene = four();
    let producer = scene.broker.producer();
    let queues: Vec<u16> =
        (0..12).map(|nth| producer.send(&Message::new("t", body(nth))).unwrap().queue).collect();
    for pair in queues.windows(2) {
        assert_eq!((pair[0] + 1) % 4, pair[1], "{queues:?}");
    }
}

#[test]
fn prod_9_producers_begin_at_random() {
    let scene = four();
    let first = |_| scene.broker.producer().send(&Message::new("t", "x".as_bytes())).unwrap().queue;
    let begun: BTreeSet<u16> = (0..64).map(first).collect();
    assert!(begun.len() > 1, "64 producers began with the same queue");
}

#[test]
fn prod_12_order_by_is_javas_hash_of_the_key() {
    let scene = scene();
    for (topic, queues) in [("one", 1), ("seven", 7), ("many", 1000)] {
        scene.broker.create_topic(topic, queues).unwrap();
        for key in [
            "",
            "a",
            "user-7",
            "polygenelubricants",
            "f5a5a608",
            "N14228",
            "caf\u{e9}",
            "\u{1f680}",
        ] {
            let message = Message::new(topic, "x".as_bytes()).order_by(key);
            let queue = scene.broker.producer().send(&message).unwrap().queue;
            assert_eq!(queue, java_queue(key, i32::from(queues)), "{key:?} of {queues}");
        }
    }
}

#[test]
fn prod_13_messages_of_one_key_stand_in_one_queue_in_the_order_sent() {
    let scene = four();
    let producers = [scene.broker.producer(), scene.broker.producer().clone()];
    let mut last = std::collections::HashMap::new();
    for nth in 0..400_u32 {
        let key = format!("k{}", nth % 17);
        let message = Message::new("t", body(nth)).order_by(key.clone());
        let receipt = producers[nth as usize % 2].send(&message).unwrap();
        if let Some((queue, offset)) = last.insert(key, (receipt.queue, receipt.offset)) {
            assert!(queue == receipt.queue && offset < receipt.offset);
        }
    }
}

#[test]
fn model_20_a_queue_number_out_of_range_is_refused() {
    let scene = four();
    assert_eq!(send_to(&scene.broker, "t", 3, 0).queue, 3);
    for queue in [4, 5, u16::MAX] {
        match refused(&scene.broker, Message::new("t", "x".as_bytes()).queue(queue)) {
            Error::NoSuchQueue { topic, queue: asked, queues } => {
                assert_eq!((topic.as_str(), asked, queues), ("t", queue, 4));
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn prod_12_a_selector_gets_all_queues_in_order_and_its_choice_counts() {
    let scene = four();
    let shown = Mutex::new(Vec::new());
    let message = Message::new("t", "x".as_bytes()).select(|queues| {
        *shown.lock().unwrap() = queues.to_vec();
        queues.get(2).cloned()
    });
    assert_eq!(scene.broker.producer().send(&message).unwrap().queue, 2);
    drop(message);
    assert_eq!(shown.into_inner().unwrap(), scene.broker.queues("t").unwrap());
}

#[test]
fn prod_12_a_selector_that_chooses_none_or_a_foreign_queue_is_an_error() {
    let scene = four();
    scene.broker.create_topic("other", 4).unwrap();
    let message = || Message::new("t", "x".as_bytes());
    let none = refused(&scene.broker, message().select(|_| None));
    assert!(matches!(none, Error::NoQueueChosen { .. }), "{none}");
    let foreign = refused(&scene.broker, message().select(|_| Some(q("other", 1))));
    assert!(matches!(foreign, Error::NoQueueChosen { .. }), "{foreign}");
    let beyond = refused(&scene.broker, message().select(|_| Some(q("t", 4))));
    assert!(matches!(beyond, Error::NoSuchQueue { queue: 4, queues: 4, .. }), "{beyond}");
}

#[test]
fn prod_12_a_selector_that_panics_is_an_error() {
    let scene = four();
    let select = |panic: fn()| {
        Message::new("t", "x".as_bytes()).select(move |_: &[QueueId]| {
            panic();
            None
        })
    };
    for panic in [(|| panic!("planted")) as fn(), || std::panic::panic_any(Bomb)] {
        let error = refused(&scene.broker, select(panic));
        assert!(matches!(error, Error::NoQueueChosen { .. }), "{error}");
    }
    send_to(&scene.broker, "t", 0, 1);
}

#[test]
fn a_selector_may_send_and_close() {
    let Scene { broker, dir: _dir } = four();
    let inner = broker.clone();
    returns("send", move || {
        let message = Message::new("t", "x".as_bytes()).select(|queues| {
            inner.producer().send(&Message::new("t", "y".as_bytes())).unwrap();
            inner.close().unwrap();
            queues.first().cloned()
        });
        assert!(matches!(inner.producer().send(&message), Err(Error::Closed)));
    });
    assert_eq!(stored(&broker, "t"), 1);
}

#[test]
fn more_than_one_wish_is_refused() {
    let scene = four();
    let message = || Message::new("t", "x".as_bytes());
    for message in [
        message().queue(1).queue(1),
        message().queue(1).order_by("k"),
        message().order_by("k").select(|queues| queues.first().cloned()),
        message().select(|queues| queues.first().cloned()).queue(0),
    ] {
        let error = refused(&scene.broker, message);
        assert!(matches!(error, Error::NoQueueChosen { .. }), "{error}");
    }
}

#[test]
fn a_selector_left_behind_is_refused() {
    let scene = four();
    let message = Message::new("t", "x".as_bytes()).select(|queues| queues.first().cloned());
    let owned = message.into_owned();
    let error = refused(&scene.broker, owned.clone());
    assert!(matches!(error, Error::NoQueueChosen { .. }), "{error}");
    assert_eq!(scene.broker.producer().send(&owned.queue(3)).unwrap().queue, 3);
}
