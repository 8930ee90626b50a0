//! What is refused before anything is written.

use crate::support::*;
use rocklet::{Broker, Error, Message};

#[track_caller]
fn refused(broker: &Broker, message: &Message<'_>) -> Error {
    let before = broker.stats().log_end;
    let topics = broker.topics();
    let error = broker.producer().send(message).unwrap_err();
    let batch = [Message::new(message.topic().to_owned(), "x".as_bytes()), message.clone()];
    let in_batch = broker.producer().send_batch(&batch).unwrap_err();
    let kind = std::mem::discriminant::<Error>;
    assert_eq!(kind(&error), kind(&in_batch), "{error} / {in_batch}");
    assert_eq!(broker.stats().log_end, before, "something was written: {error}");
    assert_eq!(broker.topics(), topics, "a topic was made: {error}");
    error
}

#[test]
fn model_7_the_body_has_one_byte_up_to_the_limit() {
    let scene = scene_with(|builder| builder.max_body_bytes(1000));
    let (broker, producer) = (&scene.broker, scene.broker.producer());
    assert!(matches!(refused(broker, &Message::new("t", Vec::new())), Error::EmptyBody));
    match refused(broker, &Message::new("t", vec![1; 1001])) {
        Error::TooLarge { what: "body", length: 1001, limit: 1000 } => {}
        other => panic!("{other}"),
    }
    for length in [1, 1000] {
        producer.send(&Message::new("t", vec![7; length])).unwrap();
    }
}

#[test]
fn model_7_a_body_that_no_segment_can_hold_is_refused_with_the_limit() {
    let scene = scene_with(|builder| builder.segment_bytes(64 << 10));
    let error = refused(&scene.broker, &Message::new("t", vec![7; 64 << 10]));
    let Error::TooLarge { what: "body", limit, .. } = error else { panic!("{error}") };
    // With every other part of the record as large as it may be.
    let topic = "t".repeat(127);
    let message = Message::new(topic, vec![7; limit]).property("p", "v".repeat(32_767 - 2));
    assert_eq!(scene.broker.producer().send(&message).unwrap().offset, 0);
}

#[test]
fn model_8_properties_have_32767_bytes_at_most() {
    let scene = scene();
    let message =
        |bytes: usize| Message::new("t", "x".as_bytes()).property("p", "v".repeat(bytes - 2));
    match refused(&scene.broker, &message(32_768)) {
        Error::TooLarge { what: "properties", length: 32_768, limit: 32_767 } => {}
        other => panic!("{other}"),
    }
    scene.broker.producer().send(&message(32_767)).unwrap();
    let pull = scene.broker.pull_consumer("g").start().unwrap();
    let queue = scene.broker.queues("t").unwrap().into_iter();
    let stored: Vec<usize> = queue
        .flat_map(|queue| {
            let messages = pull.pull(&queue, 0, 10).unwrap().messages;
            messages.iter().map(|d| d.property("p").unwrap().len()).collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(stored, [32_765]);
}

/// (MODEL-12)
#[test]
fn model_9_properties_that_would_be_lost_are_refused() {
    let scene = scene();
    let message = || Message::new("t", "x".as_bytes());
    for message in [
        message().property("", "v"),
        message().property("p", ""),
        message().property("p", " "),
        message().property("a\u{1}b", "v"),
        message().property("p", "a\u{2}b"),
        message().property("TAGS", "v"),
        message().property("DELAY", "3"),
        message().tag(""),
        message().tag(" a"),
        message().tag("a||b"),
        message().tag("a\u{1}"),
        message().key(""),
        message().key("a b"),
    ] {
        let error = refused(&scene.broker, &message);
        assert!(matches!(error, Error::Property { .. }), "{error}");
    }
}

/// (MODEL-5, MODEL-15, MODEL-16, MODEL-17)
#[test]
fn prod_4_topics_that_users_may_not_send_to() {
    let scene = scene();
    let long = "t".repeat(128);
    for topic in [
        "",
        " ",
        "a b",
        "a/b",
        "../x",
        "\u{e9}",
        &long,
        "TBW102",
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "%RETRY%g",
        "%DLQ%g",
    ] {
        let error = refused(&scene.broker, &Message::new(topic, "x".as_bytes()));
        assert!(matches!(error, Error::Name { what: "topic", .. }), "{topic}: {error}");
        let created = scene.broker.create_topic(topic, 1).unwrap_err();
        assert!(matches!(created, Error::Name { what: "topic", .. }), "{topic}: {created}");
        let subscribed = scene.broker.pull_consumer("g").subscribe(topic, "*").unwrap_err();
        assert!(matches!(subscribed, Error::Name { what: "topic", .. }), "{topic}: {subscribed}");
    }
}

/// (STORE-56)
#[test]
fn prod_15_a_batch_is_bounded_by_a_log_file() {
    let scene = scene_with(|builder| builder.segment_bytes(64 << 10));
    scene.broker.create_topic("t", 1).unwrap();
    let before = scene.broker.stats().log_end;
    let many = vec![Message::new("t", vec![1; 4000]); 17];
    let error = scene.broker.producer().send_batch(&many).unwrap_err();
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
    assert_eq!((scene.broker.stats().log_end, stored(&scene.broker, "t")), (before, 0));
    assert_eq!(scene.broker.producer().send_batch(&many[..15]).unwrap().len(), 15);
}

#[test]
fn settings_out_of_range_are_refused_by_name() {
    let scene = scene();
    let push = || scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
    let errors = [
        push().threads(0).start(|_| ()).unwrap_err(),
        push().threads(1001).start(|_| ()).unwrap_err(),
        push().pull_batch(0).start(|_| ()).unwrap_err(),
        push().pull_batch(1025).start(|_| ()).unwrap_err(),
        push().local_retry_delay(std::time::Duration::ZERO).start(|_| ()).unwrap_err(),
        push().local_retry_delay(std::time::Duration::MAX).start(|_| ()).unwrap_err(),
        scene.broker.pull_consumer("g").batch(0).start().unwrap_err(),
        scene.broker.create_topic("t", 0).unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, Error::Setting { .. }), "{error}");
    }
    for bytes in [100_000, 32 << 10, 2 << 30] {
        let dir = tempfile::tempdir().unwrap();
        let error = small(dir.path()).segment_bytes(bytes).open().unwrap_err().to_string();
        let rule = "it must be a power of two from 65536 to 1073741824";
        assert_eq!(error, format!("segment_bytes is {bytes}, {rule}"));
    }
    for group in ["", "a b", "DEFAULT_CONSUMER", &"g".repeat(121)] {
        let error = scene.broker.push_consumer(group).start(|_| ()).unwrap_err();
        assert!(matches!(error, Error::Name { what: "group", .. }), "{error}");
    }
    let error = push().name("a b").start(|_| ()).unwrap_err();
    assert!(matches!(error, Error::Name { what: "consumer", .. }), "{error}");
    assert_eq!(scene.broker.stats().consumers, 0);
}
