//! Pull consumers: explicit pulls, and poll and commit over assigned queues.

use crate::support::*;
use rocklet::{Error, Message, Pull, PullConsumer, PullStatus, Start};
use std::collections::BTreeMap;
use std::time::Duration;

fn outcome(pull: &Pull) -> (PullStatus, Vec<u32>, u64, u64, u64) {
    (pull.status, numbers(&pull.messages), pull.next, pull.min, pull.max)
}

fn puller(scene: &Scene, topic: &str, filter: &str) -> PullConsumer {
    scene.broker.pull_consumer("g").subscribe(topic, filter).unwrap().start().unwrap()
}

/// Polls until nothing is left.
fn drain(consumer: &mut PullConsumer) -> Vec<u32> {
    let mut all = Vec::new();
    loop {
        let found = consumer.poll(Duration::ZERO).unwrap();
        if found.is_empty() {
            return all;
        }
        all.extend(numbers(&found));
    }
}

#[test]
fn store_28_32_an_empty_queue() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    let pull = puller(&scene, "t", "*");
    let at = |offset| outcome(&pull.pull(&q("t", 0), offset, 10).unwrap());
    assert_eq!(at(0), (PullStatus::NoNewMessage, vec![], 0, 0, 0));
    for offset in [1, 7, u64::MAX] {
        assert_eq!(at(offset), (PullStatus::OffsetIllegal, vec![], 0, 0, 0));
    }
}

#[test]
fn store_28_32_inside_at_the_end_and_beyond() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    send(&scene.broker.producer(), "t", 0..10);
    let pull = puller(&scene, "t", "*");
    let at = |offset, most| outcome(&pull.pull(&q("t", 0), offset, most).unwrap());
    assert_eq!(at(0, 3), (PullStatus::Found, vec![0, 1, 2], 3, 0, 10));
    assert_eq!(at(8, 65_535), (PullStatus::Found, vec![8, 9], 10, 0, 10));
    assert_eq!(at(10, 3), (PullStatus::NoNewMessage, vec![], 10, 0, 10));
    for offset in [11, 1000, u64::MAX] {
        assert_eq!(at(offset, 3), (PullStatus::OffsetIllegal, vec![], 10, 0, 10));
    }
}

#[test]
fn store_28_32_an_offset_that_is_too_small() {
    let scene = scene_with(|builder| builder.segment_bytes(64 << 10));
    scene.broker.create_topic("t", 1).unwrap();
    for _ in 0..30 {
        scene.broker.producer().send(&Message::new("t", vec![7; 8000])).unwrap();
    }
    let pull = puller(&scene, "t", "*");
    let position = pull.pull(&q("t", 0), 20, 1).unwrap().messages.get(0).unwrap().position();
    assert!(scene.broker.drop_before(position).unwrap() > 0);
    let min = scene.broker.min_offset(&q("t", 0)).unwrap();
    assert!(min > 0);
    for offset in [0, min - 1] {
        let expected = (PullStatus::OffsetIllegal, vec![], min, min, 30);
        assert_eq!(outcome(&pull.pull(&q("t", 0), offset, 5).unwrap()), expected);
    }
    assert_eq!(pull.pull(&q("t", 0), min, 1).unwrap().status, PullStatus::Found);
    // A cursor that retention has overtaken goes on at the first stored message.
    let mut pull = pull;
    assert_eq!(pull.poll(SOON).unwrap().get(0).unwrap().offset(), min);
}

#[test]
fn store_29_a_window_without_a_match_says_so_and_goes_on() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    for _ in 0..20 {
        let batch = vec![Message::new("t", body(0)).tag("b"); 100];
        scene.broker.producer().send_batch(&batch).unwrap();
    }
    send_tagged(&scene.broker, "t", "a", 1);
    send_tagged(&scene.broker, "t", "b", 2);
    let pull = puller(&scene, "t", "a");
    let (mut next, mut windows) = (0, 0);
    let found = loop {
        let pull = pull.pull(&q("t", 0), next, 10).unwrap();
        assert!(pull.next > next && (pull.min, pull.max) == (0, 2002));
        next = pull.next;
        match pull.status {
            PullStatus::NoMatchedMessage => assert!(pull.messages.is_empty()),
            PullStatus::Found => break numbers(&pull.messages),
            other => panic!("{other:?}"),
        }
        windows += 1;
    };
    assert_eq!((found, next), (vec![1], 2002));
    assert!(windows > 0, "the scan is bounded");
    assert_eq!(pull.pull(&q("t", 0), 2001, 10).unwrap().status, PullStatus::NoMatchedMessage);
    assert_eq!(pull.pull(&q("t", 0), 2002, 10).unwrap().status, PullStatus::NoNewMessage);
}

#[test]
fn pc_3_what_a_pull_refuses() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    let pull = puller(&scene, "t", "*");
    for most in [0, 65_536, usize::MAX] {
        assert!(matches!(pull.pull(&q("t", 0), 0, most), Err(Error::Setting { .. })));
    }
    assert!(matches!(pull.pull(&q("t", 1), 0, 1), Err(Error::NoSuchQueue { .. })));
    assert!(matches!(pull.pull(&q("u", 0), 0, 1), Err(Error::NoSuchTopic { .. })));
    scene.broker.close().unwrap();
    assert!(matches!(pull.pull(&q("t", 0), 0, 1), Err(Error::Closed)));
}

#[test]
fn pc_3_a_pull_moves_nothing_for_the_group() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    scene.broker.create_topic("unsubscribed", 1).unwrap();
    send(&scene.broker.producer(), "t", 0..10);
    send(&scene.broker.producer(), "unsubscribed", 0..10);
    let mut pull = puller(&scene, "t", "*");
    assert_eq!(pull.pull(&q("t", 0), 0, 10).unwrap().messages.len(), 10);
    assert_eq!(pull.pull(&q("unsubscribed", 0), 4, 10).unwrap().messages.len(), 6);
    pull.commit().unwrap();
    assert_eq!(pull.committed(&q("t", 0)).unwrap(), Some(0));
    assert_eq!(pull.committed(&q("unsubscribed", 0)).unwrap(), None);
    assert_eq!(drain(&mut pull), (0..10).collect::<Vec<_>>());
}

#[test]
fn b_119_one_cursor_per_queue() {
    for start in [Start::First, Start::Last, Start::Time(std::time::UNIX_EPOCH)] {
        let scene = scene();
        scene.broker.create_topic("t", 3).unwrap();
        let old = if start == Start::Last { 0 } else { 3 };
        for (queue, count) in [(0, 1), (1, 10), (2, 100)] {
            fill(&scene.broker, "t", queue, 1000..1003);
            if start == Start::Last {
                continue;
            }
            fill(&scene.broker, "t", queue, 0..count);
        }
        let builder = scene.broker.pull_consumer("g").subscribe("t", "*").unwrap();
        let mut pull = builder.start_from(start).batch(7).start().unwrap();
        if start == Start::Last {
            for (queue, count) in [(0, 1), (1, 10), (2, 100)] {
                fill(&scene.broker, "t", queue, 0..count);
            }
        }
        let mut next: BTreeMap<u16, u64> = (0..3).map(|queue| (queue, 3 - old)).collect();
        let mut polled = 0;
        loop {
            let found = pull.poll(Duration::ZERO).unwrap();
            if found.is_empty() {
                break;
            }
            assert!(found.len() <= 7);
            for delivery in &found {
                let next = next.get_mut(&delivery.queue()).unwrap();
                assert_eq!(delivery.offset(), *next);
                *next += 1;
                polled += 1;
            }
            pull.commit().unwrap();
            for (queue, next) in &next {
                assert_eq!(pull.committed(&q("t", *queue)).unwrap(), Some(*next));
            }
        }
        assert_eq!(polled, 111 + 3 * old);
    }
}

#[test]
fn b_119_what_was_not_handed_out_is_not_committed() {
    let scene = scene();
    scene.broker.create_topic("t", 3).unwrap();
    (0..3).for_each(|queue| fill(&scene.broker, "t", queue, 0..10));
    let builder = scene.broker.pull_consumer("g").subscribe("t", "*").unwrap();
    let mut pull = builder.batch(4).start().unwrap();
    assert_eq!(pull.poll(SOON).unwrap().len(), 4);
    pull.commit().unwrap();
    assert_eq!(committed(&scene.broker, "g", "t"), 4);
    assert_eq!(pull.poll(SOON).unwrap().len(), 4);
    drop(pull);
    assert_eq!(committed(&scene.broker, "g", "t"), 4, "dropped without a commit");
    let mut pull = puller(&scene, "t", "*");
    assert_eq!(drain(&mut pull).len(), 26);
}

#[test]
fn b_119_no_queue_waits_for_a_full_one() {
    let scene = scene();
    scene.broker.create_topic("t", 3).unwrap();
    fill(&scene.broker, "t", 0, 0..1000);
    (1..3).for_each(|queue| fill(&scene.broker, "t", queue, 0..1));
    let builder = scene.broker.pull_consumer("g").subscribe("t", "*").unwrap();
    let mut pull = builder.batch(10).start().unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..3 {
        seen.extend(pull.poll(SOON).unwrap().iter().map(|delivery| delivery.queue()));
    }
    assert_eq!(seen.len(), 3);
}

#[test]
fn b_121_a_queue_without_messages_is_committed_as_nothing() {
    let scene = scene();
    scene.broker.create_topic("t", 4).unwrap();
    fill(&scene.broker, "t", 2, 0..5);
    let mut pull = puller(&scene, "t", "*");
    assert_eq!(drain(&mut pull), [0, 1, 2, 3, 4]);
    pull.commit().unwrap();
    pull.commit().unwrap();
    drop(pull);
    let scene = scene.reopen();
    let queues = scene.broker.queues("t").unwrap();
    let offsets: Vec<_> =
        queues.iter().map(|queue| scene.broker.committed("g", queue).unwrap()).collect();
    assert_eq!(offsets, [Some(0), Some(0), Some(5), Some(0)]);
    for (queue, nth) in [(0, 10), (1, 11), (2, 12), (3, 13)] {
        send_to(&scene.broker, "t", queue, nth);
    }
    let mut found = drain(&mut puller(&scene, "t", "*"));
    found.sort_unstable();
    assert_eq!(found, [10, 11, 12, 13]);
}

#[test]
fn several_topics_each_with_its_filter() {
    let scene = scene();
    for topic in ["t", "u", "other"] {
        scene.broker.create_topic(topic, 2).unwrap();
        for nth in 0..20 {
            let tag = if nth % 2 == 0 { "even" } else { "odd" };
            let message = Message::new(topic, body(nth)).tag(tag).queue((nth % 2) as u16);
            scene.broker.producer().send(&message).unwrap();
        }
    }
    let builder = scene.broker.pull_consumer("g").subscribe("t", "even").unwrap();
    let mut pull = builder.subscribe("u", "odd || none").unwrap().start().unwrap();
    let mut expected: Vec<_> = (0..20).collect();
    let mut found = drain(&mut pull);
    found.sort_unstable();
    assert_eq!(found, expected);
    pull.commit().unwrap();
    assert_eq!((committed(&scene.broker, "g", "t"), committed(&scene.broker, "g", "u")), (20, 20));
    // The filter of the subscription applies to an explicit pull.
    assert_eq!(pull.pull(&q("u", 0), 0, 10).unwrap().status, PullStatus::NoMatchedMessage);
    expected.retain(|nth| nth % 2 == 1);
    assert_eq!(numbers(&pull.pull(&q("u", 1), 0, 100).unwrap().messages), expected);
}

#[test]
fn a_damaged_queue_holds_up_no_other_one() {
    let Scene { broker, dir } = scene();
    broker.create_topic("t", 3).unwrap();
    let damaged = send_to(&broker, "t", 1, 100);
    fill(&broker, "t", 2, 0..10);
    fill(&broker, "t", 0, 10..20);
    // What the log says about itself is checked with every read.
    let mut files: Vec<_> = std::fs::read_dir(dir.path().join("commitlog")).unwrap().collect();
    files.sort_by_key(|file| file.as_ref().unwrap().file_name());
    let log =
        std::fs::OpenOptions::new().write(true).open(files[0].as_ref().unwrap().path()).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&log, &[0xff; 16], damaged.position).unwrap();
    let mut pull = broker.pull_consumer("g").subscribe("t", "*").unwrap().batch(3).start().unwrap();
    let mut found = Vec::new();
    let error = loop {
        match pull.poll(Duration::ZERO) {
            Ok(messages) => found.extend(numbers(&messages)),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    found.sort_unstable();
    assert_eq!(found, (0..20).collect::<Vec<_>>());
    pull.commit().unwrap();
    assert_eq!(pull.committed(&q("t", 1)).unwrap(), Some(0));
}
