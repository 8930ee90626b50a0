//! Browsing queues and topics, and counting, without a group.

use crate::support::*;
use rocklet::{Browse, DrivenClock, Error, Filter, Message, Start};
use std::time::{Duration, UNIX_EPOCH};

fn found(browse: Browse) -> Vec<u32> {
    browse.map(|found| number(&found.unwrap().delivery())).collect()
}

#[test]
fn a_topic_is_browsed_queue_by_queue_and_nothing_is_consumed() {
    let scene = scene();
    scene.broker.create_topic("t", 3).unwrap();
    fill(&scene.broker, "t", 2, 20..22);
    fill(&scene.broker, "t", 0, 0..3);
    let broker = &scene.broker;
    for _ in 0..2 {
        assert_eq!(found(broker.browse("t").unwrap()), [0, 1, 2, 20, 21]);
        assert_eq!(broker.browse("t").unwrap().count_messages().unwrap(), 5);
        assert_eq!(found(broker.browse_queue(&q("t", 2)).unwrap()), [20, 21]);
        assert_eq!(found(broker.browse_queue(&q("t", 1)).unwrap()), [0; 0]);
    }
    assert_eq!(broker.stats().consumers, 0);
    assert!(matches!(broker.browse("u"), Err(Error::NoSuchTopic { .. })));
    assert!(matches!(broker.browse_queue(&q("t", 3)), Err(Error::NoSuchQueue { .. })));
}

#[test]
fn browsing_begins_at_an_offset_or_a_time() {
    let clock = DrivenClock::new(1_000);
    let scene = scene_with(|builder| builder.clock(&clock));
    let broker = &scene.broker;
    broker.create_topic("t", 2).unwrap();
    for nth in 0..5 {
        send_to(broker, "t", 0, nth);
        send_to(broker, "t", 1, 10 + nth);
        clock.advance(Duration::from_secs(1));
    }
    let browse = || broker.browse("t").unwrap();
    assert_eq!(found(browse().start_at(3)), [3, 4, 13, 14]);
    for behind in [5, 99, i64::MAX as u64, u64::MAX] {
        assert_eq!(found(browse().start_at(behind)), [0; 0]);
    }
    assert_eq!(
        found(browse().start_from(Start::Time(UNIX_EPOCH - Duration::from_secs(1)))).len(),
        10
    );
    let time = |ms| Start::Time(UNIX_EPOCH + Duration::from_millis(ms));
    assert_eq!(found(browse().start_from(time(4_000))), [3, 4, 13, 14]);
    assert_eq!(found(browse().start_from(time(4_001))), [4, 14]);
    assert_eq!(found(browse().start_from(time(9_000))), [0; 0]);
    assert_eq!(found(browse().start_from(Start::First)).len(), 10);
    assert_eq!(found(browse().start_from(Start::Last)), [0; 0]);
}

#[test]
fn browsing_filters_and_counts() {
    let scene = scene();
    let broker = &scene.broker;
    broker.create_topic("t", 1).unwrap();
    for nth in 0..3000 {
        let message = Message::new("t", body(nth)).tag(if nth % 2 == 0 { "even" } else { "odd" });
        broker.producer().send(&message.property("a", nth.to_string())).unwrap();
    }
    let sparse = Filter::tags("odd").unwrap().and(Filter::sql("a > 2990").unwrap());
    let browse = || broker.browse("t").unwrap().filter(sparse.clone()).unwrap();
    assert_eq!(found(browse()), [2991, 2993, 2995, 2997, 2999]);
    assert_eq!(browse().count_messages().unwrap(), 5);
    let mut some = browse();
    assert_eq!(number(&some.next().unwrap().unwrap().delivery()), 2991);
    assert_eq!(some.count_messages().unwrap(), 4, "what is left");
    let mut runs = browse();
    assert_eq!(numbers(&runs.read(2).unwrap()), [2991, 2993]);
    assert_eq!(numbers(&runs.read(9).unwrap()), [2995, 2997, 2999]);
    assert!(runs.read(9).unwrap().is_empty() && runs.read(9).unwrap().is_empty());
    assert_eq!(broker.browse("t").unwrap().filter("even").unwrap().count_messages().unwrap(), 1500);
    assert!(matches!(broker.browse("t").unwrap().filter("||"), Err(Error::Filter { .. })));
}

#[test]
fn browsing_ends_at_the_end_that_a_queue_has_when_its_turn_comes() {
    let scene = scene();
    let broker = &scene.broker;
    broker.create_topic("t", 2).unwrap();
    fill(broker, "t", 0, 0..2);
    let mut browse = broker.browse("t").unwrap();
    assert_eq!(number(&browse.next().unwrap().unwrap().delivery()), 0);
    fill(broker, "t", 0, 2..4);
    fill(broker, "t", 1, 10..12);
    assert_eq!(found(browse), [1, 10, 11]);
}

#[test]
fn browsing_passes_what_was_dropped_and_keeps_what_it_returned() {
    let scene = scene();
    let broker = &scene.broker;
    broker.create_topic("t", 1).unwrap();
    let mut last = 0;
    for nth in 0..12 {
        let body = [body(nth), vec![7; 300_000]].concat();
        last = broker.producer().send(&Message::new("t", body)).unwrap().position;
    }
    let first = |delivery: &rocklet::Delivery<'_>| delivery.body()[0];
    let mut browse = broker.browse("t").unwrap();
    let kept = browse.read(2).unwrap();
    assert!(broker.drop_before(last).unwrap() > 0);
    let min = broker.min_offset(&q("t", 0)).unwrap();
    assert!(min > 2, "{min}");
    assert_eq!(kept.iter().map(|delivery| first(&delivery)).collect::<Vec<_>>(), [0, 1]);
    let left: Vec<u8> = browse.map(|found| first(&found.unwrap().delivery())).collect();
    assert_eq!(left, (min as u8..12).collect::<Vec<_>>());
}

#[test]
fn browsing_a_closed_broker_fails_once_and_ends() {
    let scene = scene();
    fill(&scene.broker, "t", 0, 0..2);
    let mut browse = scene.broker.browse("t").unwrap();
    scene.broker.close().unwrap();
    assert!(matches!(browse.next(), Some(Err(Error::Closed))));
    assert!(browse.next().is_none());
}

#[test]
fn browsing_a_topic_that_is_deleted_meanwhile_ends_and_sees_nothing_of_its_successor() {
    let scene = scene();
    let broker = &scene.broker;
    broker.create_topic("t", 1).unwrap();
    fill(broker, "t", 0, 0..1000);
    let mut begun = broker.browse("t").unwrap();
    let untouched = broker.browse("t").unwrap();
    assert_eq!(number(&begun.next().unwrap().unwrap().delivery()), 0);
    broker.delete_topic("t").unwrap();
    broker.create_topic("t", 1).unwrap();
    fill(broker, "t", 0, 5000..5003);
    // What has been read already lives on its own; the rest is gone.
    let rest = found(begun);
    assert!(rest.len() < 1000 && rest.iter().all(|nth| *nth < 1000), "{rest:?}");
    assert_eq!(untouched.count_messages().unwrap(), 0);
    assert_eq!(broker.browse("t").unwrap().count_messages().unwrap(), 3);
}

#[test]
fn counting_ends_although_every_message_that_is_counted_makes_another_one() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    fill(&scene.broker, "t", 0, 0..10);
    let producer = scene.broker.producer();
    let multiplying =
        Filter::predicate(move |_| producer.send(&Message::new("t", body(9))).is_ok());
    let browse = scene.broker.browse("t").unwrap().filter(multiplying).unwrap();
    assert_eq!(returns("count", move || browse.count_messages().unwrap()), 10);
    assert_eq!(stored(&scene.broker, "t"), 20);
}
