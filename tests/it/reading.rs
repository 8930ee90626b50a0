//! How push consumers read: delays, offsets that a queue does not have, what is counted.

use crate::support::*;
use rocklet::{
    Broker, DrivenClock, Error, Filter, GroupSettings, Message, OffsetStore, PushConsumer,
    PushConsumerBuilder, QueueId,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

/// One queue, under a clock that stands still.
fn driven() -> (Scene, DrivenClock) {
    let clock = DrivenClock::new(1_700_000_000_000);
    let scene = scene_with(|builder| builder.clock(&clock));
    scene.broker.create_topic("t", 1).unwrap();
    (scene, clock)
}

fn member(broker: &Broker) -> PushConsumerBuilder {
    broker.push_consumer("g").subscribe("t", "*").unwrap()
}

/// Starts a consumer that notes what it gets.
fn start(builder: PushConsumerBuilder) -> (PushConsumer, Seen) {
    let seen = Seen::default();
    let noted = seen.clone();
    (builder.start(move |delivery| noted.note(number(delivery))).unwrap(), seen)
}

/// What takes a real clock a moment has not happened yet, and does not while the driven one stands.
#[track_caller]
fn assert_waits(what: &str, done: impl Fn() -> bool) {
    std::thread::sleep(SHORT);
    assert!(!done(), "{what}");
}

#[test]
fn pull_2_what_a_group_may_not_read_is_read_when_the_error_delay_is_over() {
    let (scene, clock) = driven();
    let broker = &scene.broker;
    let (_consumer, seen) = start(member(broker).error_delay(300 * MS));
    wait_for("a waiting consumer", || broker.stats().held == 1);
    broker.update_group("g", GroupSettings::new().forbid_consuming()).unwrap();
    send_to(broker, "t", 0, 0);
    wait_for("the refusal", || broker.stats().pulls.failed == 1);
    broker.update_group("g", GroupSettings::new()).unwrap();
    clock.advance(299 * MS);
    assert_waits("too early", || seen.has(0));
    clock.advance(MS);
    wait_for("the message", || seen.has(0));
}

#[test]
fn pull_11_the_pull_interval_lies_between_two_reads_that_found_something() {
    let (scene, clock) = driven();
    let broker = &scene.broker;
    fill(broker, "t", 0, 0..3);
    let (_consumer, seen) = start(member(broker).pull_batch(1).pull_interval(100 * MS));
    for nth in 0..3 {
        wait_for("the message", || seen.has(nth));
        assert_waits("too early", || seen.has(nth + 1));
        clock.advance(99 * MS);
        assert_waits("too early", || seen.has(nth + 1));
        clock.advance(MS);
    }
    // At the end it waits for a message, not for an interval.
    wait_for("a waiting consumer", || broker.stats().held == 1);
    send_to(broker, "t", 0, 3);
    wait_for("the message", || seen.has(3));
}

#[test]
fn pull_4_a_queue_that_is_throttled_or_paused_does_not_expire() {
    let clock = DrivenClock::new(1_700_000_000_000);
    let look = Duration::from_secs(1);
    let scene = scene_with(|builder| builder.clock(&clock).rebalance_interval(look));
    let broker = &scene.broker;
    broker.create_topic("t", 1).unwrap();
    fill(broker, "t", 0, 0..20);
    let door = Door::default();
    let inside = door.clone();
    let builder = member(broker).threads(8).pull_batch(1).max_span(2);
    let consumer = builder.start(move |_| inside.pass()).unwrap();
    wait_for("a throttled queue", || broker.stats().pulls.paused_for_span == 1);
    wait_for("listeners", || door.waiting() == 3);
    for round in 1..5 {
        clock.advance(Duration::from_secs(121));
        wait_for("another look", || broker.stats().pulls.paused_for_span > round);
    }
    consumer.pause().unwrap();
    door.open();
    wait_for("commit of what was read", || committed(broker, "g", "t") == 3);
    for _ in 0..5 {
        clock.advance(Duration::from_secs(121));
        assert_waits("begun anew", || broker.stats().expired > 0);
    }
    consumer.resume().unwrap();
    wait_for("commit of all", || {
        clock.advance(50 * MS);
        committed(broker, "g", "t") == 20
    });
    assert_eq!(broker.stats().expired, 0);
}

// (PULL-9, PULL-11)
#[test]
fn pull_9_progress_waits_for_no_further_read() {
    let (scene, _clock) = driven();
    let (_consumer, _) = start(member(&scene.broker));
    for sent in 1..=50 {
        send_to(&scene.broker, "t", 0, sent);
        wait_for("the commit", || committed(&scene.broker, "g", "t") == u64::from(sent));
        // What was committed is in the directory: a kill of the process keeps it.
        if sent % 10 == 0 {
            let copy = copy_of(scene.dir.path());
            let killed = small(copy.path()).open().unwrap();
            assert_eq!(committed(&killed, "g", "t"), u64::from(sent));
        }
    }
}

#[test]
fn pull_10_what_reaches_a_listener_has_passed_the_exact_tag_and_then_the_predicate() {
    let (scene, _clock) = driven();
    let asked: Arc<Mutex<Vec<u32>>> = Arc::default();
    let noted = asked.clone();
    // "Aa" and "BB" have one hash.
    let even = Filter::predicate(move |delivery| {
        noted.lock().unwrap().push(number(delivery));
        number(delivery).is_multiple_of(2)
    });
    let filter = Filter::tags("Aa").unwrap().and(even);
    let (_consumer, seen) = start(scene.broker.push_consumer("g").subscribe("t", filter).unwrap());
    let tags = ["Aa", "BB", "Aa", "other", "BB", "Aa"];
    for (nth, tag) in (0..).zip(tags) {
        send_tagged(&scene.broker, "t", tag, nth);
    }
    send_to(&scene.broker, "t", 0, 6);
    wait_for("commit of all", || committed(&scene.broker, "g", "t") == 7);
    assert_eq!((seen.len(), seen.count(0), seen.count(2)), (2, 1, 1));
    assert_eq!(*asked.lock().unwrap(), [0, 2, 5], "each once, of the wanted tag alone");
}

// (PULL-12, PULL-13)
#[test]
fn pull_12_what_was_dropped_before_it_was_read_is_told_and_passed_at_once() {
    let (scene, _clock) = driven();
    let broker = &scene.broker;
    send_to(broker, "t", 0, 0);
    let (seen, door) = (Seen::default(), Door::default());
    let (noted, inside) = (seen.clone(), door.clone());
    let consumer = member(broker)
        .threads(2)
        .start(move |delivery| {
            if delivery.offset() == 0 {
                inside.pass();
            }
            noted.note(delivery.offset() as u32);
        })
        .unwrap();
    wait_for("a message in flight", || door.waiting() == 1 && broker.stats().held == 1);
    consumer.pause().unwrap();
    let large = vec![0; 100 << 10];
    for _ in 0..40 {
        broker.producer().send(&Message::new("t", &large[..])).unwrap();
    }
    assert!(broker.drop_before(broker.stats().log_end).unwrap() > 0);
    let (min, max) = (broker.min_offset(&q("t", 0)).unwrap(), 41);
    assert!(min > 1 && min < max);
    consumer.resume().unwrap();
    // No clock moves: nothing waits for ten seconds.
    wait_for("all that is left", || seen.len() as u64 == max - min);
    let pulls = broker.pull_stats("g").unwrap();
    assert_eq!((pulls.illegal, pulls.missed), (1, min - 1));
    let told = format!("t/0 has no offset 1: reading goes on at {min}");
    assert_eq!(consumer.last_failure(), Some(told));
    assert_eq!(committed(broker, "g", "t"), 0, "the first one is in flight");
    door.open();
    wait_for("commit of all", || committed(broker, "g", "t") == max);
    assert_eq!(seen.count(0), 1);
    seen.assert_each_once_of((0..1).chain(min as u32..max as u32));
}

/// Progress of another history.
#[derive(Default)]
struct Foreign(Mutex<BTreeMap<QueueId, u64>>);

impl OffsetStore for Foreign {
    fn read(&self, queue: &QueueId) -> Result<Option<u64>, String> {
        Ok(self.0.lock().unwrap().get(queue).copied())
    }

    fn store(&self, queue: &QueueId, offset: u64) -> Result<(), String> {
        self.0.lock().unwrap().insert(queue.clone(), offset);
        Ok(())
    }
}

#[test]
fn pull_12_an_offset_beyond_the_end_is_lowered_and_what_was_sent_since_the_opening_is_read() {
    let (scene, _clock) = driven();
    fill(&scene.broker, "t", 0, 0..5);
    let scene = scene.reopen();
    let broker = &scene.broker;
    fill(broker, "t", 0, 5..8);
    // Made since, with messages and without.
    for topic in ["new", "empty"] {
        broker.create_topic(topic, 1).unwrap();
    }
    fill(broker, "new", 0, 10..12);
    let store = Arc::new(Foreign::default());
    let topics = ["t", "new", "empty"];
    store.0.lock().unwrap().extend(topics.map(|topic| (q(topic, 0), 1000)));
    let mut builder = broker.push_consumer("g").offset_store(store.clone());
    for topic in topics {
        builder = builder.subscribe(topic, "*").unwrap();
    }
    let (consumer, seen) = start(builder);
    wait_for("waiting queues", || broker.stats().held == 3);
    assert_eq!(broker.stats().pulls.illegal, 3);
    assert_eq!(broker.stats().pulls.missed, 0);
    send_to(broker, "empty", 0, 20);
    wait_for("the message", || seen.has(20));
    consumer.shutdown();
    seen.assert_each_once_of((5..8).chain(10..12).chain(20..21));
    let stored = topics.map(|topic| store.0.lock().unwrap()[&q(topic, 0)]);
    assert_eq!(stored, [8, 2, 1]);
}

// (PULL-11, PULL-15)
#[test]
fn pull_15_reads_are_counted_by_outcome_and_group() {
    let scene = scene();
    let broker = &scene.broker;
    broker.create_topic("t", 1).unwrap();
    send_tagged(broker, "t", "other", 0);
    let start = |group: &str| {
        let builder = broker.push_consumer(group).subscribe("t", "wanted").unwrap();
        builder.start(|_| ()).unwrap()
    };
    let (_g, _h) = (start("g"), start("h"));
    wait_for("two that wait", || broker.stats().held == 2);
    // Passed by while they wait, by whoever sends it.
    send_tagged(broker, "t", "other", 1);
    send_tagged(broker, "t", "wanted", 2);
    for group in ["g", "h"] {
        wait_for("the end", || broker.pull_stats(group).unwrap().held == 2);
        let pulls = broker.pull_stats(group).unwrap();
        assert_eq!((pulls.found, pulls.messages), (1, 1));
        assert_eq!((pulls.none_matched, pulls.no_new, pulls.woken), (1, 2, 1));
        assert_eq!((pulls.illegal, pulls.missed, pulls.failed), (0, 0, 0));
        assert_eq!((pulls.paused_for_size, pulls.paused_for_span), (0, 0));
        assert!(pulls.found_time > Duration::ZERO);
    }
    let all = broker.stats().pulls;
    assert_eq!((all.found, all.none_matched, all.no_new, all.held, all.woken), (2, 2, 4, 4, 2));
    assert!(matches!(broker.pull_stats("unknown"), Err(Error::NoSuchGroup { .. })));
}

#[test]
fn pull_15_polls_are_counted_as_well() {
    let scene = scene();
    let broker = &scene.broker;
    broker.create_topic("t", 1).unwrap();
    let mut pull = broker.pull_consumer("p").subscribe("t", "wanted").unwrap().start().unwrap();
    let pulls = || broker.pull_stats("p").unwrap();
    assert!(pull.poll(Duration::ZERO).unwrap().is_empty());
    assert_eq!((pulls().no_new, pulls().held), (1, 0));
    send_tagged(broker, "t", "other", 0);
    assert!(pull.poll(Duration::ZERO).unwrap().is_empty());
    assert_eq!(pulls().none_matched, 1);
    send_tagged(broker, "t", "wanted", 1);
    assert_eq!(numbers(&pull.poll(Duration::ZERO).unwrap()), [1]);
    assert_eq!((pulls().found, pulls().messages), (1, 1));
    let polling = std::thread::spawn(move || (numbers(&pull.poll(SOON).unwrap()), pull));
    wait_for("a sleeping poll", || broker.stats().held == 1 && pulls().held > 0);
    send_tagged(broker, "t", "wanted", 2);
    let (found, mut pull) = polling.join().unwrap();
    assert_eq!((found, pulls().woken, pulls().messages), (vec![2], 1, 2));
    pull.pause(&[q("t", 0)]).unwrap();
    let large = vec![0; 100 << 10];
    for _ in 0..40 {
        broker.producer().send(&Message::new("t", &large[..])).unwrap();
    }
    broker.drop_before(broker.stats().log_end).unwrap();
    pull.resume(&[q("t", 0)]).unwrap();
    assert!(pull.poll(Duration::ZERO).unwrap().is_empty());
    let min = broker.min_offset(&q("t", 0)).unwrap();
    assert_eq!((pulls().illegal, pulls().missed, pulls().failed), (1, min - 3, 0));
}

// (HOLD-1, HOLD-2)
#[test]
fn hold_2_short_polling_looks_at_its_interval_and_parks_nobody() {
    let (scene, clock) = driven();
    let broker = &scene.broker;
    let (consumer, seen) = start(member(broker).short_poll(250 * MS));
    for nth in 0..5 {
        wait_for("a look at the end", || broker.stats().pulls.no_new == u64::from(nth) + 1);
        send_to(broker, "t", 0, nth);
        clock.advance(249 * MS);
        assert_waits("too early", || seen.has(nth));
        clock.advance(MS);
        wait_for("the message", || seen.has(nth));
    }
    let pulls = broker.stats().pulls;
    assert_eq!((pulls.held, pulls.woken, broker.stats().held), (0, 0, 0));
    returns("shutdown", move || consumer.shutdown());
}

// (HOLD-5, HOLD-6)
#[test]
fn hold_6_a_waiter_that_a_filter_keeps_asleep_makes_progress_and_reads_again_when_woken() {
    let (scene, _clock) = driven();
    let broker = &scene.broker;
    let (_consumer, seen) = start(broker.push_consumer("g").subscribe("t", "Aa").unwrap());
    wait_for("a waiting consumer", || broker.stats().held == 1);
    for nth in 0..5 {
        send_tagged(broker, "t", "other", nth);
        assert_eq!(committed(broker, "g", "t"), u64::from(nth) + 1, "by whoever sends");
    }
    assert_eq!((broker.stats().pulls.woken, broker.stats().pulls.none_matched), (0, 0));
    // Its hash is that of the wanted tag: it wakes, and is then found to be another one.
    send_tagged(broker, "t", "BB", 5);
    wait_for("a waiting consumer", || broker.stats().pulls.held == 2);
    assert_eq!((broker.stats().pulls.woken, broker.stats().pulls.none_matched), (1, 1));
    assert_eq!(committed(broker, "g", "t"), 6);
    assert_eq!(seen.len(), 0);
}
