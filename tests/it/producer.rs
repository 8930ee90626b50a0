//! What `send` and `send_batch` promise.

use crate::support::*;
use rocklet::{Error, Flush, Message, MessageId};
use std::collections::HashSet;

/// (STORE-11)
#[test]
fn prod_7_a_receipt_says_where_the_message_is() {
    let scene = scene();
    scene.broker.create_topic("t", 2).unwrap();
    let pull = scene.broker.pull_consumer("g").start().unwrap();
    let mut ids = HashSet::new();
    for nth in 0..50 {
        let receipt = send_to(&scene.broker, "t", (nth % 2) as u16, nth);
        assert_eq!((u32::from(receipt.queue), receipt.offset), (nth % 2, u64::from(nth / 2)));
        assert!(ids.insert(receipt.id));
        assert_eq!(receipt.id.to_string().parse::<MessageId>().unwrap(), receipt.id);
        let found = pull.pull(&q("t", receipt.queue), receipt.offset, 1).unwrap().messages;
        let delivery = found.get(0).unwrap();
        assert_eq!(number(&delivery), nth);
        assert_eq!((delivery.id(), delivery.position()), (receipt.id, receipt.position));
        assert_eq!((delivery.queue(), delivery.offset()), (receipt.queue, receipt.offset));
        assert_eq!(delivery.store_ms(), receipt.store_ms);
    }
}

/// (MODEL-14, PROD-17)
#[test]
fn model_10_what_is_sent_is_received() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let born_ms = now.as_millis() as u64 - 12_345;
    let message = Message::new("t", "body".as_bytes())
        .tag("tag")
        .key("k1")
        .key("k2")
        .property("name", "value")
        .property("colour", "blue")
        .property("name", "other")
        .flag(-7)
        .born_ms(born_ms);
    let receipt = scene.broker.producer().send(&message).unwrap();
    let plain = scene.broker.producer().send(&Message::new("t", "x".as_bytes())).unwrap();
    let pull = scene.broker.pull_consumer("g").start().unwrap();
    let found = pull.pull(&q("t", 0), 0, 10).unwrap().messages;
    let delivery = found.get(0).unwrap();
    assert_eq!((delivery.topic(), delivery.body()), ("t", "body".as_bytes()));
    assert_eq!(delivery.tag(), Some("tag"));
    assert_eq!(delivery.keys().collect::<Vec<_>>(), ["k1", "k2"]);
    assert_eq!(delivery.property("name"), Some("other"));
    assert_eq!((delivery.property("TAGS"), delivery.property("none")), (None, None));
    assert_eq!(delivery.properties().collect::<Vec<_>>(), [("name", "other"), ("colour", "blue")]);
    assert_eq!((delivery.flag(), delivery.born_ms(), delivery.attempt()), (-7, born_ms, 0));
    let other = found.get(1).unwrap();
    assert_eq!((other.tag(), other.keys().count(), other.properties().count()), (None, 0, 0));
    assert_eq!((other.flag(), other.born_ms()), (0, plain.store_ms));
    // The id is kept wherever a copy of the delivery goes, and dies with a new send.
    let detached = delivery.detach();
    assert_eq!(detached.delivery().id(), receipt.id);
    let again = scene.broker.producer().send(&delivery.to_message()).unwrap();
    assert_ne!(again.id, receipt.id);
}

/// (STORE-55)
#[test]
fn prod_15_a_batch_is_one_append_to_one_queue() {
    let scene = scene();
    scene.broker.create_topic("t", 4).unwrap();
    let batch: Vec<_> = (0..10).map(|nth| Message::new("t", body(nth))).collect();
    let receipts = scene.broker.producer().send_batch(&batch).unwrap();
    let queue = receipts[0].queue;
    for (nth, receipt) in receipts.iter().enumerate() {
        assert_eq!((receipt.queue, receipt.offset), (queue, nth as u64));
    }
    assert!(receipts.windows(2).all(|pair| pair[0].position < pair[1].position));
    assert_eq!(receipts.iter().map(|r| r.id).collect::<HashSet<_>>().len(), 10);
    let pull = scene.broker.pull_consumer("g").start().unwrap();
    let found = pull.pull(&q("t", queue), 0, 100).unwrap().messages;
    assert_eq!(numbers(&found), (0..10).collect::<Vec<_>>());
    assert!(found.iter().zip(&receipts).all(|(d, r)| (d.id(), d.position()) == (r.id, r.position)));
    assert!(scene.broker.producer().send_batch(&[]).unwrap().is_empty());
}

#[test]
fn prod_15_a_batch_that_breaks_a_rule_stores_nothing() {
    let scene = scene();
    scene.broker.create_topic("t", 4).unwrap();
    let before = scene.broker.stats().log_end;
    let message = || Message::new("t", "x".as_bytes());
    let other_topic = [message(), Message::new("u", "x".as_bytes())];
    let other_queue = [message().queue(1), message().queue(2)];
    let hidden_queue = [message(), message().queue(1), message(), message().queue(2)];
    // "a" and "b" follow each other in Java's hash, so they never share one of four queues.
    let other_key = [message().order_by("a"), message().order_by("b")];
    let key_and_queue = [message().order_by("a"), message().queue(97 % 4 + 1)];
    let selected = [message().queue(1), message().select(|queues| queues.last().cloned())];
    for batch in
        [&other_topic[..], &other_queue, &hidden_queue, &other_key, &key_and_queue, &selected]
    {
        let error = scene.broker.producer().send_batch(batch).unwrap_err();
        assert!(matches!(error, Error::Batch { .. }), "{error}");
    }
    let one_empty = [message(), Message::new("t", Vec::new())];
    assert!(matches!(scene.broker.producer().send_batch(&one_empty), Err(Error::EmptyBody)));
    let beyond = [message(), message().queue(4)];
    let error = scene.broker.producer().send_batch(&beyond).unwrap_err();
    assert!(matches!(error, Error::NoSuchQueue { .. }), "{error}");
    assert_eq!((scene.broker.stats().log_end, stored(&scene.broker, "t")), (before, 0));
}

#[test]
fn prod_15_messages_of_a_batch_that_do_not_choose_go_with_those_that_do() {
    let scene = scene();
    scene.broker.create_topic("t", 4).unwrap();
    let message = || Message::new("t", "x".as_bytes());
    let batches = [
        vec![message(), message().queue(1), message()],
        vec![message(), message(), message().order_by("a")],
        vec![
            message().queue(1),
            message().order_by("a"),
            message().select(|ids| ids.get(1).cloned()),
        ],
    ];
    for batch in batches {
        // Java's hash of "a" is 97.
        let receipts = scene.broker.producer().send_batch(&batch).unwrap();
        assert_eq!(receipts.iter().map(|r| r.queue).collect::<Vec<_>>(), [97 % 4; 3]);
    }
}

#[test]
fn prod_3_sends_from_eight_threads_keep_each_threads_order() {
    let scene = scene();
    scene.broker.create_topic("t", 3).unwrap();
    let producer = scene.broker.producer();
    std::thread::scope(|scope| {
        for thread in 0..8_u32 {
            let producer = &producer;
            scope.spawn(move || {
                for nth in 0..500 {
                    let message =
                        Message::new("t", body(thread * 1000 + nth)).queue((thread % 3) as u16);
                    if nth % 10 == 0 {
                        let follower = Message::new("t", body(thread * 1000 + 500 + nth));
                        producer.send_batch(&[message, follower]).unwrap();
                    } else {
                        producer.send(&message).unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(stored(&scene.broker, "t"), 8 * 550);
    let pull = scene.broker.pull_consumer("g").start().unwrap();
    let mut ids = HashSet::new();
    for queue in scene.broker.queues("t").unwrap() {
        let max = scene.broker.max_offset(&queue).unwrap();
        let found = pull.pull(&queue, 0, 10_000).unwrap().messages;
        assert_eq!(found.len() as u64, max);
        let mut last = [None; 8];
        let mut previous = None;
        for (offset, delivery) in found.iter().enumerate() {
            assert_eq!(delivery.offset(), offset as u64);
            assert!(ids.insert(delivery.id()));
            let (thread, nth) = (number(&delivery) / 1000, number(&delivery) % 1000);
            if nth >= 500 {
                assert_eq!(previous, Some(thread * 1000 + nth - 500), "a batch stays together");
            } else {
                let before = last[thread as usize].replace(nth);
                assert!(before.is_none_or(|before| before < nth));
            }
            previous = Some(number(&delivery));
        }
    }
    assert_eq!(ids.len(), 8 * 550);
}

#[test]
fn prod_1_a_closed_producer_says_so() {
    let scene = scene();
    let producer = scene.broker.producer();
    send(&producer, "t", 0..1);
    scene.broker.close().unwrap();
    let message = Message::new("t", "x".as_bytes());
    assert!(matches!(producer.send(&message), Err(Error::Closed)));
    assert!(matches!(producer.send_batch(&[message.clone(), message]), Err(Error::Closed)));
    let unknown = Message::new("unknown", "x".as_bytes());
    assert!(matches!(producer.send(&unknown), Err(Error::Closed)));
    assert!(matches!(producer.clone().send(&unknown), Err(Error::Closed)));
    assert!(matches!(scene.broker.producer().send(&unknown), Err(Error::Closed)));
    assert!(matches!(scene.broker.create_topic("u", 1), Err(Error::Closed)));
    assert!(matches!(scene.broker.flush(), Err(Error::Closed)));
}

#[test]
fn b_163_no_sender_that_shares_a_flush_is_forgotten() {
    let scene = scene_with(|builder| builder.flush(Flush::EveryMessage));
    std::thread::scope(|scope| {
        for thread in 0..8_u32 {
            let scene = &scene;
            scope.spawn(move || {
                let producer = scene.broker.producer();
                for nth in 0..40 {
                    // Some alone, some in a crowd, some with a pause in which the gate is idle.
                    if nth % 8 < thread {
                        std::thread::sleep(std::time::Duration::from_micros(u64::from(
                            100 * thread,
                        )));
                    }
                    let receipt = producer.send(&Message::new("t", body(nth))).unwrap();
                    assert!(scene.broker.stats().flushed > receipt.position);
                }
            });
        }
    });
    assert_eq!(stored(&scene.broker, "t"), 8 * 40);
}

#[test]
fn prod_8_with_flush_every_message_send_returns_when_the_message_is_flushed() {
    let scene = scene_with(|builder| builder.flush(Flush::EveryMessage));
    let flushed = |position| scene.broker.stats().flushed > position;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let producer = scene.broker.producer();
                for nth in 0..10 {
                    let receipt = producer.send(&Message::new("t", body(nth))).unwrap();
                    assert!(flushed(receipt.position));
                    let batch = [Message::new("t", body(nth)), Message::new("t", body(nth))];
                    let receipts = producer.send_batch(&batch).unwrap();
                    assert!(flushed(receipts[1].position));
                }
            });
        }
    });
    assert_eq!(stored(&scene.broker, "t"), 4 * 30);
}
