//! SQL92 filters and predicates end to end.

use crate::support::*;
use rocklet::{
    AssignStrategy, Assignment, Averagely, Broker, Delivery, DrivenClock, Error, Filter,
    LabelledQueue, Message, PullStatus,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

fn sql(expression: &str) -> Filter {
    Filter::sql(expression).unwrap()
}

/// Sends numbered messages with the property `a`, and without where the value is empty.
fn send_values(broker: &Broker, topic: &str, values: &[&str]) {
    for (nth, value) in (0..).zip(values) {
        let message = Message::new(topic, body(nth)).queue(0).tag("T").key("k-1").key("k-2");
        let message = if value.is_empty() { message } else { message.property("a", *value) };
        broker.producer().send(&message).unwrap();
    }
}

/// What gets through by push, poll, pull, browse and `passes`, which must be the same.
fn through(scene: &Scene, topic: &str, filter: &Filter) -> Vec<u32> {
    let broker = &scene.broker;
    let browsed: Vec<u32> = {
        let browse = broker.browse(topic).unwrap().filter(filter.clone()).unwrap();
        browse.map(|found| number(&found.unwrap().delivery())).collect()
    };
    let all = broker.browse_queue(&q(topic, 0)).unwrap().read(1024).unwrap();
    let passing: Vec<u32> =
        all.iter().filter(|delivery| filter.passes(delivery)).map(|d| number(&d)).collect();
    assert_eq!(browsed, passing, "browsed, and passing");

    let builder = broker.pull_consumer("pull").subscribe(topic, filter.clone()).unwrap();
    let mut pull = builder.batch(1024).start().unwrap();
    assert_eq!(numbers(&pull.pull(&q(topic, 0), 0, 1024).unwrap().messages), browsed, "pulled");
    assert_eq!(numbers(&pull.poll(Duration::ZERO).unwrap()), browsed, "polled");
    pull.commit().unwrap();
    assert_eq!(committed(broker, "pull", topic), stored(broker, topic));

    let seen = Seen::default();
    let noted = seen.clone();
    let builder = broker.push_consumer("push").subscribe(topic, filter.clone()).unwrap();
    let push = builder.start(move |delivery| noted.note(number(delivery))).unwrap();
    wait_for("commit of all", || committed(broker, "push", topic) == stored(broker, topic));
    push.shutdown();
    assert_eq!(browsed.iter().filter(|nth| seen.has(**nth)).count(), seen.len(), "pushed");
    assert_eq!(seen.len(), browsed.len(), "pushed");
    browsed
}

#[test]
fn b_154_an_sql_filter_and_types() {
    let values = ["10", "9", "abc", "1e3", "true", ""];
    for (nth, (expression, expected)) in [
        ("a > 9", vec![0]),
        ("a > 9.0", vec![0, 3]),
        ("a = '10'", vec![0]),
        ("a = TRUE", vec![4]),
        ("a BETWEEN 9 AND 10", vec![0, 1]),
        ("a IS NULL", vec![5]),
        ("a <> 'abc'", vec![0, 1, 3, 4]),
        ("a NOT IN ('10', '9')", vec![2, 3, 4]),
        ("a LIKE '1%'", vec![0, 3]),
    ]
    .into_iter()
    .enumerate()
    {
        let scene = scene();
        let topic = format!("t{nth}");
        scene.broker.create_topic(&topic, 1).unwrap();
        send_values(&scene.broker, &topic, &values);
        assert_eq!(through(&scene, &topic, &sql(expression)), expected, "{expression}");
    }
    // A property without a value there is none.
    let scene = scene();
    let empty = Message::new("t", b"x").property("a", "");
    assert!(matches!(scene.broker.producer().send(&empty), Err(Error::Property { .. })));
}

#[test]
fn b_154_a_bad_expression_is_refused_at_subscribe_with_its_place() {
    let scene = scene();
    let subscribe = |expression: &str| {
        let filter = Filter::sql(expression);
        filter.and_then(|filter| scene.broker.push_consumer("g").subscribe("t", filter))
    };
    assert!(subscribe("a > 1").is_ok());
    let Err(Error::Sql { line, column, position, .. }) = subscribe("a > 1 AND") else { panic!() };
    assert_eq!((line.as_str(), column, position), ("a > 1 AND", 9, 9));
    for bad in ["a >", "(((", "a = 1 b", &"(".repeat(100_000), &"a OR ".repeat(1 << 18)] {
        assert!(matches!(subscribe(bad), Err(Error::Sql { .. })), "{:.20}", bad);
    }
}

#[test]
fn sql_16_tags_and_keys_are_properties() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    send_values(&scene.broker, "t", &["1", "2"]);
    send_to(&scene.broker, "t", 0, 2);
    for (expression, expected) in [
        ("TAGS = 'T'", vec![0, 1]),
        ("TAGS IS NOT NULL AND a = '2'", vec![1]),
        ("TAGS IS NULL", vec![2]),
        ("KEYS = 'k-1 k-2'", vec![0, 1]),
        ("KEYS CONTAINS 'k-2' AND a = '1'", vec![0]),
    ] {
        let filter = sql(expression);
        let browse = scene.broker.browse("t").unwrap().filter(filter).unwrap();
        let found: Vec<u32> = browse.map(|found| number(&found.unwrap().delivery())).collect();
        assert_eq!(found, expected, "{expression}");
    }
}

/// (FILT-1, FILT-2, FILT-3)
#[test]
fn filt_2_filters_combine() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    for (nth, (tag, a)) in
        (0..).zip([("Aa", "1"), ("BB", "1"), ("Aa", "2"), ("C", "1"), ("Aa", "x")])
    {
        let message = Message::new("t", body(nth)).queue(0).tag(tag).property("a", a);
        scene.broker.producer().send(&message).unwrap();
    }
    let even = Filter::predicate(|delivery: &Delivery<'_>| number(delivery).is_multiple_of(2));
    let tags = Filter::tags("Aa || C").unwrap();
    let filter = even.and(sql("a = 1")).and(tags.clone());
    assert_eq!(filter.to_string(), "Aa || C, and a = 1, and a predicate", "the cheapest first");
    assert_eq!(through(&scene, "t", &filter), [0]);
    assert_eq!(tags.and(Filter::ALL), tags);
    assert_eq!(Filter::ALL.and(Filter::ALL), Filter::ALL);
    assert_eq!(sql("a=1").and(tags.clone()), tags.and(sql("a = 1")));
    assert_ne!(tags.and(even.clone()), tags);
    assert_eq!(even, even.clone());
    assert_ne!(
        even,
        Filter::predicate(|delivery: &Delivery<'_>| number(delivery).is_multiple_of(2))
    );
}

#[test]
fn filt_6_a_predicate_sees_the_message_and_its_panic_is_contained() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    fill(&scene.broker, "t", 0, 0..6);
    let filter = Filter::predicate(|delivery: &Delivery<'_>| match number(delivery) {
        1 => std::panic::panic_any(Bomb),
        4 => panic!("planted"),
        nth => nth != 3 && delivery.body().len() == 4 && delivery.topic() == "t",
    });
    let before = scene.broker.stats().panicked_filters;
    assert_eq!(through(&scene, "t", &filter), [0, 2, 5]);
    // By browse, pull, poll and push; `passes` has no broker to count for.
    assert_eq!(scene.broker.stats().panicked_filters - before, 2 * 4);
}

#[test]
fn filt_6_a_predicate_runs_without_a_lock_and_on_no_producers_thread() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    let producer_thread = std::thread::current().id();
    let broker = scene.broker.clone();
    let asked = Arc::new(AtomicU32::new(0));
    let filter = {
        let asked = asked.clone();
        Filter::predicate(move |delivery: &Delivery<'_>| {
            let nth = asked.fetch_add(1, Ordering::Relaxed);
            // Whatever takes a lock of the consumer or of its group.
            assert!(broker.committed("push", &delivery.queue_id()).is_ok());
            assert!(broker.stats().consumers > 0);
            broker.create_topic(&format!("seen{nth}"), 1).unwrap();
            std::thread::current().id() != producer_thread && number(delivery) == 2
        })
    };
    let mut pull =
        scene.broker.pull_consumer("pull").subscribe("t", filter.clone()).unwrap().start().unwrap();
    let seen = Seen::default();
    let noted = seen.clone();
    let push = scene.broker.push_consumer("push").subscribe("t", filter).unwrap();
    let push = push.start(move |delivery| noted.note(number(delivery))).unwrap();
    let polling = std::thread::spawn(move || numbers(&pull.poll(SOON).unwrap()));
    wait_for("parked consumers", || scene.broker.stats().held == 2);
    fill(&scene.broker, "t", 0, 0..3);
    assert_eq!(polling.join().unwrap(), [2]);
    wait_for("commit of all", || committed(&scene.broker, "push", "t") == 3);
    push.shutdown();
    assert!(seen.has(2) && seen.len() == 1);
    assert_eq!(scene.broker.stats().panicked_filters, 0);
}

#[test]
fn filt_6_a_predicate_may_delete_its_topic_and_close_its_broker() {
    for close in [false, true] {
        let scene = scene();
        let broker = &scene.broker;
        broker.create_topic("t", 1).unwrap();
        broker.create_topic("u", 1).unwrap();
        fill(broker, "t", 0, 0..5);
        fill(broker, "u", 0, 0..5);
        let ending = || {
            let broker = broker.clone();
            Filter::predicate(move |delivery: &Delivery<'_>| {
                let ended =
                    if close { broker.close() } else { broker.delete_topic(delivery.topic()) };
                ended.is_ok() || !close
            })
        };
        let browse = broker.browse("t").unwrap().filter(ending()).unwrap();
        let builder = broker.pull_consumer("pull").subscribe("u", ending()).unwrap();
        let mut pull = builder.start().unwrap();
        let polled = returns("poll", move || pull.poll(Duration::ZERO).map(|some| some.len()));
        // What is being read when a close begins is read, or is not: it is committed in neither case.
        match close {
            true => assert!(matches!(polled, Ok(0 | 5) | Err(Error::Closed)), "{polled:?}"),
            false => assert!(matches!(polled, Ok(0)), "{polled:?}"),
        }
        let count = returns("count", move || browse.count_messages());
        match close {
            true => assert!(matches!(count, Ok(5) | Err(Error::Closed)), "{count:?}"),
            false => assert_eq!(count.unwrap(), 5, "what is being read"),
        }
    }
}

#[test]
fn hold_3_an_arrival_that_sql_does_not_let_through_wakes_nobody() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    let filter = Filter::tags("T").unwrap().and(sql("a > 5"));
    let push = scene.broker.push_consumer("push").subscribe("t", filter.clone()).unwrap();
    let seen = Seen::default();
    let noted = seen.clone();
    let _push = push.start(move |delivery| noted.note(number(delivery))).unwrap();
    let mut pull =
        scene.broker.pull_consumer("pull").subscribe("t", filter).unwrap().start().unwrap();
    let polling = std::thread::spawn(move || numbers(&pull.poll(SOON).unwrap()));
    wait_for("parked consumers", || scene.broker.stats().held == 2);
    for values in [&["5"][..], &["x", "-1"], &["", "5.5"]] {
        send_values(&scene.broker, "t", values);
        let batch = values.iter().map(|_| Message::new("t", body(9)).tag("T").queue(0));
        scene.broker.producer().send_batch(&batch.collect::<Vec<_>>()).unwrap();
        // By the thread that sent: committed when `send` returns, and nobody has been woken.
        let max = stored(&scene.broker, "t");
        assert_eq!(committed(&scene.broker, "push", "t"), max);
        assert_eq!(committed(&scene.broker, "pull", "t"), max);
        assert_eq!(scene.broker.stats().held, 2);
    }
    send_values(&scene.broker, "t", &["6"]);
    assert_eq!(polling.join().unwrap(), [0]);
    wait_for("commit by the listener", || {
        committed(&scene.broker, "push", "t") == stored(&scene.broker, "t")
    });
    seen.assert_each_once(0..1);
}

#[test]
fn b_086_a_range_that_sql_or_a_predicate_filters_moves_the_commit() {
    for filter in [sql("a = 1"), Filter::predicate(|delivery| delivery.property("a") == Some("1"))]
    {
        let scene = scene();
        scene.broker.create_topic("t", 1).unwrap();
        send_values(&scene.broker, "t", &["1", "1", "2", "1", "1", "2", "2", "2"]);
        for _ in 0..100 {
            let batch = vec![Message::new("t", body(99)).property("a", "2"); 100];
            scene.broker.producer().send_batch(&batch).unwrap();
        }
        let seen = Seen::default();
        let noted = seen.clone();
        let builder = scene.broker.push_consumer("g").subscribe("t", filter.clone()).unwrap();
        let consumer = builder.start(move |delivery| noted.note(number(delivery))).unwrap();
        wait_for("commit of all", || committed(&scene.broker, "g", "t") == 10_008);
        consumer.shutdown();
        assert_eq!([0, 1, 3, 4].map(|nth| seen.has(nth)), [true; 4]);
        assert_eq!(seen.len(), 4);
        let scene = scene.reopen();
        assert_eq!(committed(&scene.broker, "g", "t"), 10_008, "a restart scans nothing again");
    }
}

#[test]
fn pull_11_a_sparse_filter_keeps_a_poll_no_longer_than_it_asked_for() {
    let clock = DrivenClock::new(1_000_000);
    let scene = scene_with(|builder| builder.clock(&clock));
    scene.broker.create_topic("t", 1).unwrap();
    for _ in 0..40 {
        let batch = vec![Message::new("t", body(9)).property("a", "2"); 250];
        scene.broker.producer().send_batch(&batch).unwrap();
    }
    send_values(&scene.broker, "t", &["1"]);
    let looked = Arc::new(AtomicU32::new(0));
    let filter = {
        let (looked, clock) = (looked.clone(), clock.clone());
        Filter::predicate(move |delivery: &Delivery<'_>| {
            looked.fetch_add(1, Ordering::Relaxed);
            clock.advance(Duration::from_millis(1));
            delivery.property("a") == Some("1")
        })
    };
    let mut pull = scene.broker.pull_consumer("g").subscribe("t", filter).unwrap().start().unwrap();
    // 10 000 looks of a millisecond each, in steps of 800 or fewer.
    assert!(pull.poll(Duration::ZERO).unwrap().is_empty());
    assert_eq!(looked.swap(0, Ordering::Relaxed), 800);
    assert!(pull.poll(Duration::from_secs(2)).unwrap().is_empty());
    assert_eq!(looked.swap(0, Ordering::Relaxed), 2400, "the first step that ends behind 2 s");
    assert_eq!(
        committed(&scene.broker, "g", "t"),
        3200,
        "what was passed by is not looked at again"
    );
    assert_eq!(numbers(&pull.poll(Duration::from_secs(100)).unwrap()), [0]);
    assert_eq!(looked.load(Ordering::Relaxed), 10_001 - 3200);
    // A pull takes one step, and says where to go on.
    let once = pull.pull(&q("t", 0), 0, 32).unwrap();
    assert_eq!((once.status, once.next), (PullStatus::NoMatchedMessage, 800));
}

#[test]
fn pull_11_a_sparse_filter_neither_blocks_a_listener_nor_a_shutdown() {
    let scene = scene();
    scene.broker.create_topic("t", 2).unwrap();
    for _ in 0..40 {
        let batch = vec![Message::new("t", body(9)).property("a", "2").queue(0); 250];
        scene.broker.producer().send_batch(&batch).unwrap();
    }
    let door = Door::default();
    let filter = {
        let door = door.clone();
        // Stands still in the middle of queue 0's backlog.
        Filter::predicate(move |delivery: &Delivery<'_>| {
            if delivery.queue() == 0 && delivery.offset() == 5000 {
                door.pass();
            }
            delivery.queue() == 1
        })
    };
    let seen = Seen::default();
    let noted = seen.clone();
    let builder = scene.broker.push_consumer("g").subscribe("t", filter).unwrap().threads(2);
    let consumer = builder.start(move |delivery| noted.note(number(delivery))).unwrap();
    wait_for("the predicate", || door.waiting() == 1);
    send_to(&scene.broker, "t", 1, 1);
    wait_for("queue 1 is consumed meanwhile", || seen.has(1));
    let stopping = std::thread::spawn(move || consumer.shutdown());
    wait_for("stopping", || scene.broker.stats().consumers == 0);
    door.open();
    returns("shutdown", move || stopping.join().unwrap());
    // It left after the step that it was at, not at the end of the backlog.
    let commit = scene.broker.committed("g", &q("t", 0)).unwrap();
    assert!(commit < Some(10_000), "{commit:?}");
}

#[test]
fn filt_4_a_failed_message_is_delivered_again_unfiltered_unless_told_otherwise() {
    for filtered in [false, true] {
        let scene = scene();
        scene.broker.create_topic("t", 1).unwrap();
        let attempts = Arc::new(AtomicU32::new(0));
        // The filter wants a message until it has failed once.
        let filter = {
            let attempts = attempts.clone();
            Filter::predicate(move |_: &Delivery<'_>| attempts.load(Ordering::Relaxed) == 0)
        };
        let mut builder = scene.broker.push_consumer("g").subscribe("t", filter).unwrap();
        if filtered {
            builder = builder.filter_retries();
        }
        let counted = attempts.clone();
        let listener = move |_: &Delivery<'_>| {
            if counted.fetch_add(1, Ordering::Relaxed) == 0 { Err("planted") } else { Ok(()) }
        };
        retry_at_once(&scene.broker, "g");
        let _consumer = builder.start(listener).unwrap();
        send_to(&scene.broker, "t", 0, 0);
        wait_for("the failure", || scene.broker.stats().retries == 1);
        wait_for("commit of the retry", || committed(&scene.broker, "g", "%RETRY%g") == 1);
        assert_eq!(attempts.load(Ordering::Relaxed), if filtered { 1 } else { 2 });
    }
}

/// Counts how often it is asked.
#[derive(Clone, Debug, Default)]
struct Counted(Arc<AtomicU32>);

impl AssignStrategy for Counted {
    fn name(&self) -> &str {
        "COUNTED"
    }

    fn assign(
        &self,
        queues: &[LabelledQueue],
        members: &[String],
        current: &Assignment,
    ) -> rocklet::Result<Assignment> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Averagely.assign(queues, members, current)
    }
}

/// One message in two has the property `a` = 1, the others 2.
#[test]
fn filt_2_another_filter_for_a_running_group_is_one_generation() {
    const MESSAGES: u32 = 6000;
    let scene = scene();
    let broker = &scene.broker;
    broker.create_topic("t", 2).unwrap();
    let (seen, strategy) = (Seen::default(), Counted::default());
    let start = |name: &str| {
        let noted = seen.clone();
        let builder = broker.push_consumer("g").subscribe("t", sql("a = 1")).unwrap();
        let builder = builder.name(name).strategy(strategy.clone());
        builder.start(move |delivery| noted.note(number(delivery))).unwrap()
    };
    let (first, _second) = (start("m1"), start("m2"));
    let asked = strategy.0.load(Ordering::SeqCst);
    let sending = {
        let producer = broker.producer();
        std::thread::spawn(move || {
            for nth in 0..MESSAGES {
                let a = if nth / 2 % 2 == 0 { "1" } else { "2" };
                let message = Message::new("t", body(nth)).property("a", a).queue(nth as u16 % 2);
                producer.send(&message).unwrap();
            }
        })
    };
    wait_for("a good part", || committed(broker, "g", "t") > u64::from(MESSAGES) / 4);
    first.subscribe("t", sql("a = 2")).unwrap();
    assert_eq!(strategy.0.load(Ordering::SeqCst), asked + 1, "one generation");
    first.subscribe("t", sql("( a=2 )")).unwrap();
    assert_eq!(strategy.0.load(Ordering::SeqCst), asked + 1, "the same filter changes nothing");
    sending.join().unwrap();
    wait_for("commit of all", || committed(broker, "g", "t") == u64::from(MESSAGES));
    for queue in 0..2 {
        // Along a queue: all that the first filter wants, then all that the second one wants.
        let of_queue =
            |a: u32| (0..MESSAGES).filter(move |nth| nth % 2 == queue && nth / 2 % 2 == a - 1);
        let switch = of_queue(1).filter(|nth| seen.has(*nth)).max().map_or(0, |last| last + 1);
        assert!(of_queue(1).all(|nth| seen.has(nth) == (nth < switch)), "a hole before {switch}");
        let late = of_queue(2).filter(|nth| seen.has(*nth)).min().unwrap_or(MESSAGES);
        assert!(late > switch, "{late} came by the second filter, {switch} by the first");
        assert!(of_queue(2).all(|nth| seen.has(nth) == (nth >= late)), "a hole behind {late}");
        assert!(late - switch <= 5, "{switch}..{late} came by neither");
    }
}

/// Fails if it is dropped while a lock is held: the stats take those of the groups.
struct Watched {
    broker: Broker,
    dropped: Arc<AtomicU32>,
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _ = self.broker.stats();
        self.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn filt_6_a_predicate_goes_with_no_lock_held() {
    let scene = scene();
    let broker = &scene.broker;
    broker.create_topic("t", 2).unwrap();
    let dropped = Arc::new(AtomicU32::new(0));
    let watched = || {
        let watched = Watched { broker: broker.clone(), dropped: dropped.clone() };
        Filter::predicate(move |_: &Delivery<'_>| watched.dropped.load(Ordering::SeqCst) < 99)
    };
    let push = broker.push_consumer("push").subscribe("t", watched()).unwrap();
    let push = push.start(|_| ()).unwrap();
    let mut pull = broker.pull_consumer("pull").subscribe("t", watched()).unwrap().start().unwrap();
    fill(broker, "t", 0, 0..3);
    assert_eq!(pull.poll(SOON).unwrap().len(), 3);
    wait_for("parked requests", || broker.stats().held == 2);
    push.subscribe("t", watched()).unwrap();
    pull.subscribe("t", watched()).unwrap();
    pull.commit().unwrap();
    wait_for("the end of the first two", || dropped.load(Ordering::SeqCst) == 2);
    push.shutdown();
    pull.close();
    wait_for("the end of all", || dropped.load(Ordering::SeqCst) == 4);
}
