//! Topics: made explicitly, or by their first use.

use crate::support::*;
use rocklet::{Error, Flush, Message};
use std::sync::Barrier;

#[test]
fn model_18_a_topic_is_made_by_the_first_send() {
    let scene = scene();
    assert!(scene.broker.topics().is_empty());
    send(&scene.broker.producer(), "t", 0..1);
    assert_eq!(scene.broker.queues("t").unwrap().len(), 4);
    let scene = scene_with(|builder| builder.auto_create_queues(9));
    scene.broker.producer().send_batch(&[Message::new("t", "x".as_bytes())]).unwrap();
    assert_eq!(scene.broker.queues("t").unwrap().len(), 9);
}

#[test]
fn model_18_without_automatic_creation_a_send_to_an_unknown_topic_fails() {
    let scene = scene_with(|builder| builder.auto_create_queues(0));
    let producer = scene.broker.producer();
    let message = Message::new("t", "x".as_bytes());
    for error in [
        producer.send(&message).unwrap_err(),
        producer.send_batch(std::slice::from_ref(&message)).unwrap_err(),
    ] {
        assert!(matches!(error, Error::NoSuchTopic { ref topic } if topic == "t"), "{error}");
    }
    assert!(scene.broker.topics().is_empty());
    scene.broker.create_topic("t", 1).unwrap();
    producer.send(&message).unwrap();
}

#[test]
fn model_18_subscribing_and_asking_make_no_topic() {
    let scene = scene();
    let mut pull = scene.broker.pull_consumer("g").subscribe("t", "*").unwrap().start().unwrap();
    assert!(pull.poll(SHORT).unwrap().is_empty());
    assert!(matches!(pull.pull(&q("t", 0), 0, 1), Err(Error::NoSuchTopic { .. })));
    assert!(matches!(scene.broker.queues("t"), Err(Error::NoSuchTopic { .. })));
    assert!(matches!(scene.broker.max_offset(&q("t", 0)), Err(Error::NoSuchTopic { .. })));
    assert!(matches!(scene.broker.committed("g", &q("t", 0)), Err(Error::NoSuchTopic { .. })));
    assert!(scene.broker.topics().is_empty());
}

#[test]
fn model_18_concurrent_first_sends_make_a_topic_once() {
    let scene = scene();
    for round in 0..20 {
        let topic = format!("t{round}");
        let start = Barrier::new(8);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let producer = scene.broker.producer();
                    start.wait();
                    send(&producer, &topic, 0..10);
                });
            }
        });
        assert_eq!(scene.broker.queues(&topic).unwrap().len(), 4);
        assert_eq!(stored(&scene.broker, &topic), 80);
    }
    assert_eq!(scene.broker.topics().len(), 20);
    let scene = scene.reopen();
    assert!((0..20).all(|round| stored(&scene.broker, &format!("t{round}")) == 80));
}

#[test]
fn model_1_a_topic_is_made_once_with_its_queues() {
    let scene = scene();
    scene.broker.create_topic("b", 3).unwrap();
    scene.broker.create_topic("a", 1).unwrap();
    assert!(matches!(scene.broker.create_topic("b", 3), Err(Error::TopicExists { .. })));
    assert_eq!(scene.broker.topics(), ["a", "b"]);
    let expected: Vec<_> = (0..3).map(|queue| q("b", queue)).collect();
    assert_eq!(scene.broker.queues("b").unwrap(), expected);
    assert!(matches!(
        scene.broker.max_offset(&q("b", 3)),
        Err(Error::NoSuchQueue { queue: 3, queues: 3, .. })
    ));
    let scene = scene.reopen();
    assert_eq!(scene.broker.topics(), ["a", "b"]);
    assert_eq!(scene.broker.queues("b").unwrap(), expected);
}

#[test]
fn model_18_a_topic_with_the_most_queues() {
    let scene = scene_with(|builder| builder.flush(Flush::EveryMessage));
    scene.broker.create_topic("t", u16::MAX).unwrap();
    assert_eq!(send_to(&scene.broker, "t", u16::MAX - 1, 1).offset, 0);
    assert_eq!(scene.broker.queues("t").unwrap().len(), 65_535);
}
