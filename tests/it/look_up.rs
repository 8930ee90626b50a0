//! Finding messages by key, by id and by time.

use super::support::{body, number, numbers, q, scene, scene_with, small};
use rocklet::{Broker, DrivenClock, Edge, Error, Message, MessageId};
use std::time::Duration;

fn send_keyed(broker: &Broker, topic: &str, key: &str, nth: u32) -> MessageId {
    let message = Message::new(topic, body(nth)).key(key).queue(0);
    broker.producer().send(&message).unwrap().id
}

fn find(broker: &Broker, topic: &str, key: &str) -> Vec<u32> {
    numbers(&broker.find_by_key(topic, key, .., usize::MAX).unwrap())
}

// (STORE-37)
#[test]
fn b_023_keys_and_topics_with_equal_hashes() {
    let scene = scene();
    let broker = &scene.broker;
    // Java's string hash takes "Aa" and "BB" for equal, wherever they stand.
    for (topic, key, nth) in [("x", "Aa", 1), ("y", "BB", 2), ("xAa", "k", 3), ("xBB", "other", 4)]
    {
        send_keyed(broker, topic, key, nth);
    }
    assert_eq!(find(broker, "x", "Aa"), [1]);
    assert_eq!(find(broker, "x", "BB"), [] as [u32; 0]);
    assert_eq!(find(broker, "y", "BB"), [2]);
    assert_eq!(find(broker, "y", "Aa"), [] as [u32; 0]);
    assert_eq!(find(broker, "xAa", "k"), [3]);
    assert_eq!(find(broker, "xBB", "k"), [] as [u32; 0]);
    // Now both in one topic, and in one message.
    send_keyed(broker, "x", "BB", 5);
    broker.producer().send(&Message::new("x", body(6)).key("BB").key("Aa")).unwrap();
    assert_eq!(find(broker, "x", "Aa"), [1, 6]);
    assert_eq!(find(broker, "x", "BB"), [5, 6]);
    let scene = scene.reopen();
    assert_eq!(find(&scene.broker, "x", "Aa"), [1, 6]);
    assert_eq!(find(&scene.broker, "x", "BB"), [5, 6]);
}

// (STORE-39)
#[test]
fn ops_5_the_newest_within_a_time_and_a_number_in_the_order_of_the_log() {
    let clock = DrivenClock::new(1_000);
    let scene = scene_with(|builder| builder.clock(&clock));
    let broker = &scene.broker;
    broker.create_topic("t", 4).unwrap();
    let producer = broker.producer();
    for nth in 0..40 {
        producer.send(&Message::new("t", body(nth)).key("k").key(format!("{nth}"))).unwrap();
        clock.advance(Duration::from_millis(10));
    }
    let find =
        |from: u64, to: u64, max| numbers(&broker.find_by_key("t", "k", from..=to, max).unwrap());
    assert_eq!(find(0, u64::MAX, usize::MAX), (0..40).collect::<Vec<_>>());
    assert_eq!(find(0, u64::MAX, 3), [37, 38, 39]);
    assert_eq!(find(1_100, 1_200, usize::MAX), (10..=20).collect::<Vec<_>>());
    assert_eq!(find(1_100, 1_200, 2), [19, 20]);
    assert_eq!(find(1_101, 1_109, 9), [] as [u32; 0]);
    assert_eq!(find(0, u64::MAX, 0), [] as [u32; 0]);
    assert_eq!(numbers(&broker.find_by_key("t", "k", 1_380.., 9).unwrap()), [38, 39]);
    assert_eq!(numbers(&broker.find_by_key("t", "k", ..1_020, 9).unwrap()), [0, 1]);
    let nothing = [broker.find_by_key("t", "k", ..0, 9), broker.find_by_key("t", "k", 7..7, 9)];
    assert!(nothing.iter().all(|found| found.as_ref().unwrap().is_empty()));
    assert!(matches!(broker.find_by_key("u", "k", .., 9), Err(Error::NoSuchTopic { .. })));
    broker.close().unwrap();
    assert!(matches!(broker.find_by_key("t", "k", .., 9), Err(Error::Closed)));
}

#[test]
fn ops_4_a_message_is_viewed_by_its_id() {
    let scene = scene();
    let broker = &scene.broker;
    let sent: Vec<MessageId> = (0..50).map(|nth| send_keyed(broker, "t", "k", nth)).collect();
    for (nth, id) in (0..).zip(&sent) {
        let message = broker.message(*id).unwrap().unwrap();
        let message = message.delivery();
        assert_eq!((number(&message), message.id()), (nth, *id));
    }
    // Between two messages, in the topic's own record, before and behind the log, elsewhere.
    let text = sent[1].to_string();
    let id_at =
        |position: u64| -> MessageId { format!("{position:016x}{}", &text[16..]).parse().unwrap() };
    let end = broker.stats().log_end;
    for position in
        [0, 1, 64, sent[1].position() + 8, sent[1].position() + 1, end, end + 8, u64::MAX]
    {
        assert!(broker.message(id_at(position)).unwrap().is_none(), "at {position}");
    }
    let foreign: MessageId = format!("{}{:016x}", &text[..16], 7).parse().unwrap();
    assert!(broker.message(foreign).unwrap().is_none());
    broker.close().unwrap();
    assert!(matches!(broker.message(sent[0]), Err(Error::Closed)));
}

#[test]
fn ops_4_a_copy_of_a_record_in_a_body_is_no_message() {
    let scene = scene();
    let broker = &scene.broker;
    // A record that says that it stands where the body of the one that carries it will be.
    let first = send_keyed(broker, "t", "k", 7);
    let log = std::fs::read_dir(scene.dir.path().join("commitlog")).unwrap();
    let file = log.map(|file| file.unwrap().path()).min().unwrap();
    let bytes = std::fs::read(file).unwrap();
    let at = usize::try_from(first.position()).unwrap();
    let length =
        usize::try_from(u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())).unwrap();
    let mut copy = bytes[at..at + length].to_vec();
    // The carrier begins at the end of the log; its body is aligned by a topic of eight bytes.
    broker.create_topic("carriers", 1).unwrap();
    let inside = broker.stats().log_end + 64 + 8;
    copy[16..24].copy_from_slice(&inside.to_le_bytes());
    let carrier = broker.producer().send(&Message::new("carriers", copy)).unwrap();
    assert_eq!(carrier.position + 72, inside);
    let id = format!("{inside:016x}{}", &first.to_string()[16..]);
    assert!(broker.message(id.parse().unwrap()).unwrap().is_none());
    assert!(broker.message(carrier.id).unwrap().is_some());
}

#[test]
fn messages_that_were_dropped_are_not_found() {
    let scene = scene_with(|builder| builder.segment_bytes(64 << 10));
    let broker = &scene.broker;
    let first = send_keyed(broker, "t", "k", 0);
    for nth in 1..300 {
        let message = Message::new("t", vec![nth as u8; 1000]).key("filler").queue(0);
        broker.producer().send(&message).unwrap();
    }
    let held = broker.message(first).unwrap().unwrap();
    assert_eq!(find(broker, "t", "k"), [0]);
    assert!(broker.drop_before(u64::MAX).unwrap() > 0);
    assert!(broker.message(first).unwrap().is_none());
    assert_eq!(find(broker, "t", "k"), [] as [u32; 0]);
    let found = broker.find_by_key("t", "filler", .., usize::MAX).unwrap();
    let min = broker.min_offset(&q("t", 0)).unwrap();
    let offsets: Vec<u64> = found.iter().map(|message| message.offset()).collect();
    assert_eq!(offsets, (min..300).collect::<Vec<_>>());
    assert_eq!(number(&held.delivery()), 0);
}

// (STORE-35)
#[test]
fn b_076_many_messages_with_one_time() {
    // Blocks of the index end behind 14 entries, and behind 62 more.
    for (before, count) in [(0, 1), (0, 100), (1, 13), (7, 14), (14, 62), (13, 100), (60, 200)] {
        let clock = DrivenClock::new(1_000);
        let scene = scene_with(|builder| builder.clock(&clock));
        let broker = &scene.broker;
        let send = |count: u64| {
            let batch = vec![Message::new("t", b"x").queue(0); usize::try_from(count).unwrap()];
            broker.producer().send_batch(&batch).unwrap();
        };
        let queue = q("t", 0);
        broker.create_topic("t", 1).unwrap();
        send(before);
        clock.set_wall_ms(2_000);
        send(count);
        clock.set_wall_ms(3_000);
        send(5);
        let end = before + count + 5;
        let at = |ms| {
            [Edge::AtOrAfter, Edge::AtOrBefore]
                .map(|edge| broker.offset_at(&queue, ms, edge).unwrap())
        };
        let last = before.saturating_sub(1);
        assert_eq!(at(0), [0, 0]);
        assert_eq!(at(1_999), [before, last]);
        assert_eq!(at(2_000), [before, before + count - 1], "{before} and {count}");
        assert_eq!(at(2_001), [before + count, before + count - 1]);
        assert_eq!(at(3_000), [before + count, end - 1]);
        assert_eq!(at(u64::MAX), [end, end - 1]);
    }
}

// (STORE-7)
#[test]
fn b_175_a_search_by_time_after_the_clock_was_set_back() {
    const DAY: u64 = 86_400_000;
    let clock = DrivenClock::new(10 * DAY);
    let scene = scene_with(|builder| builder.clock(&clock));
    let broker = &scene.broker;
    broker.create_topic("t", 1).unwrap();
    let queue = q("t", 0);
    let mut times = Vec::new();
    let mut send = |broker: &Broker| {
        times.push(broker.producer().send(&Message::new("t", b"x")).unwrap().store_ms);
    };
    (0..20).for_each(|_| send(broker));
    clock.set_wall_ms(9 * DAY);
    (0..20).for_each(|_| send(broker));
    broker.close().unwrap();
    let broker = small(scene.dir.path()).clock(&clock).open().unwrap();
    (0..20).for_each(|_| send(&broker));
    clock.set_wall_ms(11 * DAY);
    (0..20).for_each(|_| send(&broker));
    assert!(times.is_sorted(), "{times:?}");
    for ms in [0, 9 * DAY, 10 * DAY - 1, 10 * DAY, 10 * DAY + 1, 11 * DAY, 12 * DAY] {
        let first = times.iter().position(|time| *time >= ms).unwrap_or(times.len());
        let found = broker.offset_at(&queue, ms, Edge::AtOrAfter).unwrap();
        assert_eq!(found, first as u64, "at {ms}");
        let last = times.iter().rposition(|time| *time <= ms).unwrap_or(0);
        let found = broker.offset_at(&queue, ms, Edge::AtOrBefore).unwrap();
        assert_eq!(found, last as u64, "at {ms}");
    }
}

#[test]
fn ops_6_a_search_in_queues_that_hold_nothing() {
    let scene = scene_with(|builder| builder.segment_bytes(64 << 10));
    let broker = &scene.broker;
    broker.create_topic("t", 2).unwrap();
    let at = |queue: u16, ms| {
        [Edge::AtOrAfter, Edge::AtOrBefore]
            .map(|edge| broker.offset_at(&q("t", queue), ms, edge).unwrap())
    };
    assert_eq!((at(0, 0), at(0, u64::MAX)), ([0, 0], [0, 0]));
    for _ in 0..3 {
        broker.producer().send(&Message::new("t", b"x").queue(0)).unwrap();
    }
    for _ in 0..300 {
        broker.producer().send(&Message::new("t", vec![1; 1000]).queue(1)).unwrap();
    }
    broker.drop_before(u64::MAX).unwrap();
    assert_eq!((at(0, 0), at(0, u64::MAX)), ([3, 3], [3, 3]), "all of it was dropped");
    let min = broker.min_offset(&q("t", 1)).unwrap();
    assert!(min > 0);
    assert_eq!((at(1, 0), at(1, u64::MAX)), ([min, min], [300, 299]));
    assert!(matches!(
        broker.offset_at(&q("u", 0), 0, Edge::AtOrAfter),
        Err(Error::NoSuchTopic { .. })
    ));
    assert!(matches!(
        broker.offset_at(&q("t", 2), 0, Edge::AtOrAfter),
        Err(Error::NoSuchQueue { .. })
    ));
    broker.close().unwrap();
    assert!(matches!(broker.offset_at(&q("t", 0), 0, Edge::AtOrAfter), Err(Error::Closed)));
}
