//! Subscribing while members run: for the whole group, at once.

use crate::support::*;
use rocklet::{Broker, Error, Filter, Message, PullConsumer, PushConsumer, QueuesChanged};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn member(broker: &Broker, name: &str, topics: &[&str], seen: &Seen) -> PushConsumer {
    let noted = seen.clone();
    let mut builder = broker.push_consumer("g").name(name);
    for topic in topics {
        builder = builder.subscribe(topic, "*").unwrap();
    }
    builder.start(move |delivery| noted.note(number(delivery))).unwrap()
}

// (CLI-12, SUB-5)
#[test]
fn cli_12_sub_5_a_topic_comes_to_all_members_and_goes_from_all() {
    let scene = scene();
    let broker = &scene.broker;
    broker.create_topic("t", 4).unwrap();
    broker.create_topic("u", 4).unwrap();
    let seen = Seen::default();
    send(&broker.producer(), "u", 100..140);
    let (a, b) = (member(broker, "a", &["t"], &seen), member(broker, "b", &["t"], &seen));
    a.subscribe("u", "*").unwrap();
    assert_eq!((a.assignment().len(), b.assignment().len()), (4, 4));
    send(&broker.producer(), "t", 0..100);
    wait_for("commit of all", || committed(broker, "g", "t") + committed(broker, "g", "u") == 140);
    seen.assert_each_once(0..140);
    // Whoever joins has to agree with what the group has now.
    let old = broker.push_consumer("g").subscribe("t", "*").unwrap().start(|_| ());
    assert!(matches!(old, Err(Error::Mismatch { what: "subscription", .. })));
    let c = member(broker, "c", &["u", "t"], &seen);

    b.unsubscribe("t").unwrap();
    let topics = || [&a, &b, &c].map(PushConsumer::assignment).concat();
    assert!(topics().iter().all(|queue| queue.topic() == "u") && topics().len() == 4);
    send(&broker.producer(), "t", 140..150);
    assert!(matches!(b.unsubscribe("t"), Err(Error::NotSubscribed { .. })));
    // It goes on where it was.
    c.subscribe("t", "*").unwrap();
    wait_for("commit of all", || committed(broker, "g", "t") == 110);
    seen.assert_each_once(0..150);
}

#[test]
fn cli_12_another_filter_holds_from_the_next_message_that_is_read() {
    let scene = scene();
    let broker = &scene.broker;
    broker.create_topic("t", 1).unwrap();
    let seen = Seen::default();
    let noted = seen.clone();
    let builder = broker.push_consumer("g").subscribe("t", "a").unwrap();
    let consumer = builder.start(move |delivery| noted.note(number(delivery))).unwrap();
    let mut nth = 0;
    for (round, filter) in ["b", "a || b", "none", "*", "a"].into_iter().enumerate() {
        for tag in ["a", "b", "c"] {
            send_tagged(broker, "t", tag, nth);
            nth += 1;
        }
        wait_for("commit of the round", || committed(broker, "g", "t") == 3 * (round as u64 + 1));
        consumer.subscribe("t", filter).unwrap();
    }
    let numbers = [0, 4, 6, 7, 12, 13, 14];
    assert!(numbers.iter().all(|nth| seen.has(*nth)) && seen.len() == numbers.len());
    let generation = consumer.assignment();
    consumer.subscribe("t", "a").unwrap();
    assert_eq!(consumer.assignment(), generation, "the same again changes nothing");
    assert!(matches!(consumer.subscribe("no topic", "*"), Err(Error::Name { .. })));
}

#[test]
fn sub_3_an_sql_expression_is_compiled_when_it_is_given() {
    let scene = scene();
    let broker = &scene.broker;
    broker.create_topic("t", 1).unwrap();
    for wrong in ["", " ", "amount >", "amount > 1 AND"] {
        assert!(matches!(Filter::sql(wrong), Err(Error::Sql { .. })), "{wrong:?}");
    }
    let seen = Seen::default();
    let noted = seen.clone();
    let builder = broker.push_consumer("g").subscribe("t", "*").unwrap();
    let consumer = builder.start(move |delivery| noted.note(number(delivery))).unwrap();
    consumer.subscribe("t", Filter::sql("amount > 1").unwrap()).unwrap();
    for nth in 0..4 {
        let message = Message::new("t", body(nth)).property("amount", nth.to_string());
        broker.producer().send(&message).unwrap();
    }
    wait_for("commit of all", || committed(broker, "g", "t") == 4);
    assert!(seen.len() == 2 && seen.has(2) && seen.has(3));
}

#[test]
fn reb_14_what_is_in_flight_of_an_unsubscribed_topic_is_finished_and_committed() {
    let scene = scene();
    let broker = &scene.broker;
    broker.create_topic("t", 1).unwrap();
    fill(broker, "t", 0, 0..10);
    let (seen, door) = (Seen::default(), Door::default());
    let (noted, inside) = (seen.clone(), door.clone());
    let builder = broker.push_consumer("g").subscribe("t", "*").unwrap().threads(1);
    let consumer = builder
        .start(move |delivery| {
            inside.pass();
            noted.note(number(delivery));
        })
        .unwrap();
    wait_for("a busy listener", || door.waiting() == 1);
    consumer.unsubscribe("t").unwrap();
    door.open();
    wait_for("an empty hand", || consumer.assignment().is_empty());
    assert_eq!((committed(broker, "g", "t"), seen.len()), (1, 1), "and no more than that");
    consumer.subscribe("t", "*").unwrap();
    wait_for("commit of all", || committed(broker, "g", "t") == 10);
    seen.assert_each_once(0..10);
}

#[test]
fn cli_12_a_pull_consumer_keeps_what_it_polled_of_a_topic_until_it_commits() {
    let scene = scene();
    let broker = &scene.broker;
    broker.create_topic("t", 1).unwrap();
    broker.create_topic("u", 1).unwrap();
    fill(broker, "t", 0, 0..5);
    fill(broker, "u", 0, 5..10);
    let mut pull = broker.pull_consumer("p").subscribe("t", "*").unwrap().start().unwrap();
    assert_eq!(numbers(&pull.poll(SOON).unwrap()), [0, 1, 2, 3, 4]);
    pull.unsubscribe("t").unwrap();
    pull.subscribe("u", "*").unwrap();
    assert_eq!(numbers(&pull.poll(SOON).unwrap()), [5, 6, 7, 8, 9]);
    pull.commit().unwrap();
    assert_eq!((committed(broker, "p", "t"), committed(broker, "p", "u")), (5, 5));
    assert_eq!(pull.assignment(), [q("u", 0)]);
    pull.subscribe("u", "none").unwrap();
    assert_eq!(pull.pull(&q("u", 0), 0, 10).unwrap().messages.len(), 0, "the group's filter");
}

/// The last change that was told of each topic.
type Told = Arc<Mutex<Vec<QueuesChanged>>>;

#[test]
fn reb_10_the_listener_for_changed_queues_is_told_what_a_member_has_in_the_end() {
    let scene = scene();
    let broker = &scene.broker;
    broker.create_topic("t", 4).unwrap();
    let last = |told: &Told, topic: &str| {
        let told = told.lock().unwrap();
        told.iter().rev().find(|change| change.topic == topic).map(|change| change.mine.clone())
    };
    let told = Told::default();
    let noted = told.clone();
    let builder = broker.push_consumer("g").subscribe("t", "*").unwrap().name("a");
    let builder = builder.on_queues_changed(move |change| {
        assert_eq!(change.all.len(), 4);
        noted.lock().unwrap().push(change.clone());
        panic!("planted");
    });
    let consumer = builder.start(|_| ()).unwrap();
    wait_for("the first change", || last(&told, "t") == Some(consumer.assignment()));
    for round in 0..10 {
        let others: Vec<_> = (0..3)
            .map(|nth| member(broker, &format!("b{nth}"), &["t"], &Seen::default()))
            .collect();
        wait_for("a share", || last(&told, "t") == Some(vec![q("t", 0)]));
        drop(others);
        wait_for("all queues again", || last(&told, "t").is_some_and(|mine| mine.len() == 4));
        if round == 5 {
            consumer.subscribe("u", "*").unwrap();
            broker.create_topic("u", 4).unwrap();
            wait_for("the new topic", || last(&told, "u").is_some_and(|mine| mine.len() == 4));
            consumer.unsubscribe("u").unwrap();
            wait_for("the end of the topic", || last(&told, "u") == Some(vec![]));
        }
    }
    let panicked = "the listener for changed queues panicked: planted";
    assert_eq!(consumer.last_failure().as_deref(), Some(panicked));

    let told = Told::default();
    let noted = told.clone();
    let builder = broker.pull_consumer("p").subscribe("t", "*").unwrap();
    let builder =
        builder.on_queues_changed(move |change| noted.lock().unwrap().push(change.clone()));
    let mut pull = builder.start().unwrap();
    assert_eq!(last(&told, "t"), None, "by whoever polls");
    pull.poll(SHORT).unwrap();
    assert_eq!(last(&told, "t"), Some(pull.assignment()));
}

#[test]
fn sub_5_what_was_read_by_an_earlier_filter_passes_nothing_that_the_present_one_wants() {
    let scene = scene();
    let broker = &scene.broker;
    broker.create_topic("t", 1).unwrap();
    send_tagged(broker, "t", "wanted", 0);
    // While the first filter looks at the message, another member replaces it.
    let other: Arc<Mutex<Option<PullConsumer>>> = Arc::default();
    let inside = other.clone();
    let first = Filter::predicate(move |_| {
        let other = inside.lock().unwrap().take();
        other.into_iter().for_each(|mut other| other.subscribe("t", "wanted").unwrap());
        false
    });
    let builder = || broker.pull_consumer("g").subscribe("t", first.clone()).unwrap();
    let mut pull = builder().name("a").start().unwrap();
    *other.lock().unwrap() = Some(builder().name("b").start().unwrap());
    assert_eq!(pull.assignment().len(), 1);
    let found: Vec<_> = (0..2).flat_map(|_| numbers(&pull.poll(Duration::ZERO).unwrap())).collect();
    assert_eq!((found, committed(broker, "g", "t")), (vec![0], 0));
}
