//! What becomes of failed messages: retry topics, back-offs, limits.

use crate::support::*;
use rocklet::{
    BackOff, Batch, Broker, ByConfig, Delivery, DrivenClock, Error, Filter, Flush, GroupSettings,
    Message, Outcome, PushConsumer, ResetTo, Start,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);
const START_MS: u64 = 1_700_000_000_000;

/// The first attempts and the wall times of what a listener was called with.
type Calls = Arc<Mutex<Vec<(u32, u64)>>>;

/// A broker whose time stands still, and whose background work is done by whoever moves it.
fn stepped(seed: u64) -> (Scene, DrivenClock) {
    let clock = DrivenClock::with_steps(START_MS, seed);
    (scene_with(|builder| builder.clock(&clock)), clock)
}

/// A consumer of `t` in the group `g`.
fn consume(
    broker: &Broker,
    listener: impl Fn(&Delivery<'_>) -> Outcome + Send + Sync + 'static,
) -> PushConsumer {
    broker.push_consumer("g").subscribe("t", "*").unwrap().start(listener).unwrap()
}

fn fail() -> Outcome {
    Outcome::Failed("planted".to_owned())
}

/// (CONC-15, CONC-16, CONC-17, CONC-18)
#[test]
fn vec_8_conc_17_b_128_seventeen_deliveries_by_the_table_and_then_one_dead_letter() {
    let table = [10, 30].into_iter().chain((1..=10).map(|minutes| 60 * minutes));
    let table: Vec<u64> = table.chain([1200, 1800, 3600, 7200]).collect();
    let (scene, clock) = stepped(1);
    let broker = &scene.broker;
    broker.create_topic("t", 1).unwrap();
    let (calls, healed) = (Calls::default(), Arc::new(Mutex::new(false)));
    let (noted, now, well) = (calls.clone(), clock.clone(), healed.clone());
    let consumer = consume(broker, move |delivery| {
        noted.lock().unwrap().push((delivery.attempt(), now.wall_ms()));
        if *well.lock().unwrap() { Outcome::Success } else { fail() }
    });
    let sent = send_to(broker, "t", 0, 7);
    for (nth, delay) in table.iter().map(|seconds| Duration::from_secs(*seconds)).enumerate() {
        let nth = nth as u64;
        wait_for("what is sent back", || broker.stats().retries == nth + 1);
        clock.advance(delay - MS);
        assert_eq!(stored(broker, "%RETRY%g"), nth, "not early");
        clock.advance(MS);
        assert_eq!(stored(broker, "%RETRY%g"), nth + 1, "in time");
    }
    wait_for("a dead letter", || broker.stats().dead_letters == 1);
    clock.advance(100 * HOUR);
    let noted = calls.lock().unwrap().clone();
    let mut due = START_MS;
    let mut expected = vec![(0, due)];
    for (nth, seconds) in table.iter().enumerate() {
        due += 1000 * seconds;
        expected.push((nth as u32 + 1, due));
    }
    assert_eq!(noted, expected);
    let stats = broker.stats();
    assert_eq!((stats.failed, stats.retries, stats.delivered), (17, 16, 0));
    assert_eq!((committed(broker, "g", "t"), committed(broker, "g", "%RETRY%g")), (1, 16));

    let dead = broker.dead_letters("g").unwrap();
    let letters: Vec<_> = dead.iter().unwrap().map(Result::unwrap).collect();
    let [letter] = &*letters else { panic!("{letters:?}") };
    assert_eq!((letter.id(), letter.attempts(), letter.reason()), (sent.id, 17, "planted"));
    assert_eq!((letter.origin(), letter.failed_ms()), (Some((q("t", 0), 0)), due));
    assert_eq!((letter.delivery().topic(), number(&letter.delivery())), ("t", 7));

    *healed.lock().unwrap() = true;
    assert_eq!(dead.redrive_all().unwrap(), 1);
    wait_for("the dead letter", || broker.stats().delivered == 1);
    assert_eq!(calls.lock().unwrap().last().map(|(attempt, _)| *attempt), Some(0));
    assert_eq!((dead.count().unwrap(), dead.redrive_all().unwrap()), (0, 0));
    drop(consumer);
}

/// (B-128)
#[test]
fn conc_19_b_128_an_answer_overrides_one_delay_and_may_give_up_at_once() {
    let (scene, clock) = stepped(2);
    let broker = &scene.broker;
    broker.create_topic("t", 1).unwrap();
    let settings = GroupSettings::new().back_off(BackOff::exponential(HOUR, 3 * HOUR));
    broker.create_group("g", settings).unwrap();
    let answers = [
        fail(),
        Outcome::RetryAfter(Duration::from_secs(7)),
        Outcome::RetryAfter(Duration::ZERO),
        fail(),
        Outcome::DeadLetter("enough".to_owned()),
    ];
    let calls = Calls::default();
    let (noted, now) = (calls.clone(), clock.clone());
    let consumer = consume(broker, move |delivery| {
        noted.lock().unwrap().push((delivery.attempt(), now.wall_ms()));
        answers[delivery.attempt() as usize].clone()
    });
    send_to(broker, "t", 0, 0);
    for nth in 1..=4 {
        wait_for("what is sent back", || broker.stats().retries == nth);
        while stored(broker, "%RETRY%g") < nth {
            clock.advance(Duration::from_secs(1));
        }
    }
    wait_for("the end", || broker.stats().dead_letters == 1);
    let calls = calls.lock().unwrap().clone();
    let gaps: Vec<_> = calls.windows(2).map(|pair| (pair[1].1 - pair[0].1) / 1000).collect();
    assert_eq!(gaps[..2], [3600, 7]);
    assert!(gaps[2] <= 1, "at once, but for the step of the clock");
    // After the fourth failure the exponential delay has come to its cap.
    assert_eq!(gaps[3], 3 * 3600);
    let dead = broker.dead_letters("g").unwrap();
    let letter = dead.iter().unwrap().next().unwrap().unwrap();
    assert_eq!((letter.attempts(), letter.reason()), (5, "enough"));
    drop(consumer);
}

/// A retried message has everything that it was sent with (CONC-3, MODEL-14).
#[test]
fn conc_16_a_retry_looks_as_the_message_did_and_stands_elsewhere() {
    let scene = scene();
    let broker = &scene.broker;
    broker.create_topic("t", 1).unwrap();
    retry_at_once(broker, "g");
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let noted = seen.clone();
    let consumer = consume(broker, move |delivery| {
        let keys: Vec<_> = delivery.keys().collect();
        let properties: Vec<_> = delivery.properties().collect();
        let whole = format!(
            "{} {} {:?} {:?} {keys:?} {properties:?} {} {} {}",
            delivery.topic(),
            delivery.id(),
            delivery.body(),
            delivery.tag(),
            delivery.flag(),
            delivery.born_ms(),
            delivery.property("RETRY_TOPIC").is_none(),
        );
        noted.lock().unwrap().push(whole);
        let topics = ["t", "%RETRY%g", "%RETRY%g"];
        assert_eq!(delivery.queue_id().topic(), topics[delivery.attempt() as usize]);
        let message = delivery.to_message();
        assert_eq!((message.topic(), message.body()), ("t", delivery.body()));
        if delivery.attempt() < 2 { fail() } else { Outcome::Success }
    });
    let born_ms = send_to(broker, "other", 0, 0).store_ms - 5000;
    let message = Message::new("t", b"paid").tag("a").key("k-1").key("k-2").flag(-3);
    let message = message.born_ms(born_ms);
    let sent = broker.producer().send(&message.property("p", "v").property("q", "w")).unwrap();
    wait_for("success", || broker.stats().delivered == 1);
    let seen = seen.lock().unwrap().clone();
    assert_eq!(seen.len(), 3);
    assert!(seen.iter().all(|whole| *whole == seen[0]), "{seen:#?}");
    assert!(seen[0].contains(&sent.id.to_string()));
    drop(consumer);
}

/// (B-057)
#[test]
fn conc_15_b_057_a_message_at_every_limit_is_sent_back_and_becomes_a_dead_letter() {
    let scene = scene();
    let broker = &scene.broker;
    broker.create_topic("t", 1).unwrap();
    let back_off = BackOff::table([MS]);
    broker.create_group("g", GroupSettings::new().max_retries(2).back_off(back_off)).unwrap();
    let producer = broker.producer();
    let limit = match producer.send(&Message::new("t", vec![7; 2 << 20])) {
        Err(Error::TooLarge { limit, .. }) => limit,
        other => panic!("{other:?}"),
    };
    let body: Vec<u8> = (0..limit).map(|nth| (nth % 251) as u8).collect();
    let value = "v".repeat(32_767 - "p".len() - 1);
    let sent = producer.send(&Message::new("t", &*body).property("p", &*value)).unwrap();
    let whole = move |delivery: &Delivery<'_>| {
        delivery.body() == body
            && delivery.property("p") == Some(&*value)
            && delivery.id() == sent.id
    };
    let expected = whole.clone();
    let consumer = consume(broker, move |delivery| {
        assert!(expected(delivery));
        Outcome::Failed("\u{1}\u{2}\n \u{e9}".repeat(10_000))
    });
    wait_for("a dead letter", || broker.stats().dead_letters == 1);
    let stats = broker.stats();
    assert_eq!((stats.retries, stats.panicked, stats.failed_send_backs), (2, 0, 0));
    let dead = broker.dead_letters("g").unwrap();
    let letter = dead.iter().unwrap().next().unwrap().unwrap();
    assert!(whole(&letter.delivery()));
    assert!((500..=512).contains(&letter.reason().len()), "{}", letter.reason().len());
    drop(consumer);
}

/// A copy that power loss could take back is waited for: the commit may be on the disk (CONC-16).
#[test]
fn conc_16_what_is_sent_back_is_durable_before_the_message_is_passed() {
    let clock = DrivenClock::new(START_MS);
    let scene = scene_with(|builder| builder.clock(&clock).flush(Flush::EveryMessage));
    let broker = &scene.broker;
    broker.create_topic("t", 1).unwrap();
    broker.create_group("g", GroupSettings::new().max_retries(1)).unwrap();
    send(&broker.producer(), "t", 0..20);
    let builder = broker.push_consumer("g").subscribe("t", "*").unwrap();
    let (listened, watched) = (broker.clone(), Arc::new(Mutex::new(0)));
    let noted = watched.clone();
    let consumer = builder
        .threads(1)
        .listener_batch(4)
        .start_batch(move |batch: &Batch<'_>| {
            // All that was failed before is below the commit by now, and durable.
            let first = batch.get(0).map_or(0, |first| first.offset());
            assert_eq!(listened.committed("g", &q("t", 0)).unwrap().unwrap_or(0), first);
            assert_eq!(listened.stats().unflushed, 0);
            *noted.lock().unwrap() += batch.len();
            fail()
        })
        .unwrap();
    wait_for("commit of all", || committed(broker, "g", "t") == 20);
    assert_eq!((*watched.lock().unwrap(), broker.stats().retries), (20, 20));
    assert_eq!((broker.stats().panicked, broker.stats().unflushed), (0, 0));
    drop(consumer);
}

/// Groups that were told to: a limit of none, and no queues at all (CONC-15, CONC-18).
#[test]
fn conc_15_conc_18_without_retries_a_failure_is_a_dead_letter_and_without_queues_nothing() {
    let scene = scene();
    let broker = &scene.broker;
    let no_retries = GroupSettings::new().max_retries(0);
    broker.create_group("dead", no_retries).unwrap();
    broker.create_group("gone", GroupSettings::new().retry_queues(0)).unwrap();
    send(&broker.producer(), "t", 0..10);
    let failing = |group: &str| {
        let builder = broker.push_consumer(group).subscribe("t", "*").unwrap();
        builder.start(|delivery: &Delivery<'_>| match number(delivery) {
            3 => panic!("planted: three"),
            _ => Err("planted"),
        })
    };
    let consumers = [failing("dead").unwrap(), failing("gone").unwrap()];
    for group in ["dead", "gone"] {
        wait_for("commit of all", || committed(broker, group, "t") == 10);
    }
    let stats = broker.stats();
    assert_eq!((stats.failed, stats.panicked, stats.delivered), (20, 2, 0));
    assert_eq!((stats.retries, stats.dead_letters, stats.discarded), (0, 10, 10));
    let count = |group: &str| broker.dead_letters(group).unwrap().count().unwrap();
    assert_eq!((count("dead"), count("gone"), count("none")), (10, 0, 0));
    let reasons = broker.dead_letters("dead").unwrap().iter().unwrap();
    let reasons = reasons.map(|letter| letter.unwrap().reason().to_owned());
    let mut reasons: Vec<_> = reasons.collect();
    reasons.sort_unstable();
    reasons.dedup();
    assert_eq!(reasons, ["planted", "the listener panicked: planted: three"]);
    drop(consumers);
}

/// (B-126)
#[test]
fn conc_20_b_126_retries_belong_to_the_group_and_are_not_filtered_again() {
    let scene = scene();
    let broker = &scene.broker;
    ["a", "b", "other"].into_iter().for_each(|group| retry_at_once(broker, group));
    let (seen, others) = (Seen::default(), Seen::default());
    let start = |group: &str, filter: Filter, seen: &Seen| {
        let noted = seen.clone();
        let builder = broker.push_consumer(group).subscribe("t", filter).unwrap();
        let listener = move |delivery: &Delivery<'_>| {
            noted.note(number(delivery));
            if delivery.attempt() == 0 { Err("planted") } else { Ok(()) }
        };
        builder.subscribe("u", "A").unwrap().start(listener).unwrap()
    };
    let consumers = [
        start("a", Filter::tags("A || B").unwrap(), &seen),
        start("b", Filter::sql("color = 'red'").unwrap(), &seen),
        start("other", Filter::tags("Z").unwrap(), &others),
    ];
    for (nth, (topic, tag)) in [("t", "A"), ("t", "B"), ("u", "A")].into_iter().enumerate() {
        let message = Message::new(topic, body(nth as u32)).tag(tag).property("color", "red");
        broker.producer().send(&message).unwrap();
    }
    // Twice each in the groups `a` and `b`, and in `other` the message of the other topic.
    wait_for("all", || broker.stats().delivered == 7);
    assert_eq!([0, 1, 2].map(|nth| seen.count(nth)), [4, 4, 4]);
    assert_eq!((others.len(), others.count(2)), (1, 2));
    drop(consumers);
}

/// With SQL on the properties with which it was sent (FILT-4).
#[test]
fn filt_4_retries_are_filtered_as_their_topic_is_now_if_that_is_asked_for() {
    for filtered in [false, true] {
        let (scene, clock) = stepped(3);
        let broker = &scene.broker;
        broker.create_topic("t", 1).unwrap();
        let sql = |expression: &str| Filter::sql(expression).unwrap();
        let builder = broker.push_consumer("g").subscribe("t", sql("n < 3")).unwrap();
        let builder = if filtered { builder.filter_retries() } else { builder };
        let seen = Seen::default();
        let noted = seen.clone();
        let listener = move |delivery: &Delivery<'_>| {
            if delivery.attempt() == 0 {
                return Err("planted");
            }
            noted.note(number(delivery));
            Ok(())
        };
        let consumer = builder.start(listener).unwrap();
        for nth in 0..4 {
            let message = Message::new("t", body(nth)).property("n", nth.to_string());
            broker.producer().send(&message).unwrap();
        }
        wait_for("failures", || broker.stats().retries == 3);
        consumer.subscribe("t", sql("n = 1")).unwrap();
        clock.advance(Duration::from_secs(10));
        wait_for("commit of the retries", || committed(broker, "g", "%RETRY%g") == 3);
        let expected: &[u32] = if filtered { &[1] } else { &[0, 1, 2] };
        assert_eq!((seen.len(), expected.iter().all(|nth| seen.has(*nth))), (expected.len(), true));
        drop(consumer);
    }
}

#[test]
fn cli_4_conc_20_waiting_retries_survive_a_restart_and_are_consumed_from_the_first_on() {
    let clock = DrivenClock::new(START_MS);
    let Scene { broker, dir } = scene_with(|builder| builder.clock(&clock));
    broker.create_topic("t", 4).unwrap();
    send(&broker.producer(), "t", 0..100);
    broker.create_group("g", GroupSettings::new().retry_queues(3)).unwrap();
    let consumer = consume(&broker, |_| fail());
    wait_for("failures", || broker.stats().retries == 100);
    drop(consumer);
    broker.close().unwrap();
    drop(broker);

    clock.advance(HOUR);
    let broker = small(dir.path()).clock(&clock).open().unwrap();
    wait_for("all in their topic", || {
        clock.advance(MS);
        stored(&broker, "%RETRY%g") == 100
    });
    assert_eq!(broker.queues("%RETRY%g").unwrap().len(), 3);
    let seen = Seen::default();
    let members: Vec<_> = (0..2)
        .map(|_| {
            let noted = seen.clone();
            let builder = broker.push_consumer("g").subscribe("t", "*").unwrap();
            let builder = builder.start_from(Start::Last);
            builder
                .start(move |delivery: &Delivery<'_>| {
                    assert_eq!((delivery.topic(), delivery.attempt()), ("t", 1));
                    noted.note(number(delivery));
                })
                .unwrap()
        })
        .collect();
    wait_for("commit of all", || committed(&broker, "g", "%RETRY%g") == 100);
    seen.assert_each_once(0..100);
    assert!(members.iter().all(|member| !member.assignment().is_empty()));
    drop(members);
}

/// (CONC-21, DELAY-5)
#[test]
fn conc_21_what_delayed_a_message_once_delays_no_retry_and_no_dead_letter() {
    let (scene, clock) = stepped(4);
    let broker = &scene.broker;
    broker.create_topic("t", 1).unwrap();
    let seven = Duration::from_secs(7);
    let settings = GroupSettings::new().max_retries(1).back_off(BackOff::table([seven]));
    broker.create_group("g", settings).unwrap();
    let consumer = consume(broker, |_| fail());
    let messages =
        [Message::new("t", body(0)).delay(HOUR), Message::new("t", body(1)).delay_level(17)];
    let sent = messages.map(|message| broker.producer().send(&message).unwrap().id);
    clock.advance(HOUR);
    for driven in 0..2 {
        wait_for("failures", || broker.stats().retries == 2 * driven + 2);
        clock.advance(seven - MS);
        assert_eq!(stored(broker, "%RETRY%g"), 4 * driven);
        clock.advance(MS);
        assert_eq!(stored(broker, "%RETRY%g"), 4 * driven + 2);
        // At once: the clock stands still.
        wait_for("dead letters", || broker.stats().dead_letters == 2 * driven + 2);
        assert_eq!(stored(broker, "%DLQ%g"), 2 * driven + 2);
        let dead = broker.dead_letters("g").unwrap();
        let mut ids: Vec<_> = dead.iter().unwrap().map(|letter| letter.unwrap().id()).collect();
        ids.sort_unstable();
        assert_eq!(ids, sent);
        assert_eq!(dead.redrive_all().unwrap(), 2);
        assert_eq!(stored(broker, "%RETRY%g"), 4 * driven + 4);
    }
    drop(consumer);
}

/// Messages above a stuck one are sent back, and the process is killed again and again.
#[test]
fn conc_12_retries_do_not_multiply_when_the_process_is_killed() {
    let clock = DrivenClock::new(START_MS);
    let mut scene = scene_with(|builder| builder.clock(&clock));
    scene.broker.create_topic("t", 1).unwrap();
    scene.broker.create_group("g", GroupSettings::new().back_off(BackOff::table([HOUR]))).unwrap();
    send(&scene.broker.producer(), "t", 0..21);
    // Odd messages fail in each life; message 0 never ends.
    for life in 0..3 {
        let door = Door::default();
        let stuck = door.clone();
        let attempts: Arc<Mutex<BTreeMap<u32, u32>>> = Arc::default();
        let noted = attempts.clone();
        let failed_before = scene.broker.stats().retries;
        let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap().threads(4);
        let consumer = builder
            .start(move |delivery: &Delivery<'_>| match number(delivery) {
                0 => {
                    stuck.pass();
                    Ok(())
                }
                nth if nth % 2 == 1 => {
                    noted.lock().unwrap().insert(nth, delivery.attempt());
                    Err("planted")
                }
                _ => Ok(()),
            })
            .unwrap();
        wait_for("all but the stuck one", || {
            clock.advance(MS);
            let stats = scene.broker.stats();
            (stats.retries - failed_before, stats.delivered) == (10, 10)
        });
        assert_eq!(committed(&scene.broker, "g", "t"), 0);
        let expected: BTreeMap<_, _> = (0..10).map(|nth| (2 * nth + 1, life)).collect();
        assert_eq!(*attempts.lock().unwrap(), expected, "each goes on with its retries");
        let killed = copy_of(scene.dir.path());
        door.open();
        drop(consumer);
        clock.advance(2 * HOUR);
        scene = Scene { broker: small(killed.path()).clock(&clock).open().unwrap(), dir: killed };
    }
    let seen = Seen::default();
    let noted = seen.clone();
    let consumer = consume(&scene.broker, move |delivery| {
        noted.note(number(delivery));
        Outcome::Success
    });
    wait_for("commit of all", || {
        clock.advance(MS);
        committed(&scene.broker, "g", "t") == 21 && committed(&scene.broker, "g", "%RETRY%g") == 30
    });
    seen.assert_each_once(0..21);
    drop(consumer);
}

/// The next owner begins at the one that could not be sent back (CONC-10).
#[test]
fn conc_10_a_hand_over_repeats_nothing_that_was_sent_back_behind_what_could_not_be() {
    let scene = scene();
    let broker = &scene.broker;
    broker.create_topic("t", 1).unwrap();
    refuse_send_backs(broker, "g");
    let back_off = BackOff::table([HOUR]);
    broker.update_group("g", GroupSettings::new().back_off(back_off)).unwrap();
    fill(broker, "t", 0, 0..10);
    let consumer = consume(broker, |delivery| match number(delivery) {
        0 => Outcome::DeadLetter("refused".to_owned()),
        nth if nth % 2 == 1 => fail(),
        _ => Outcome::Success,
    });
    wait_for("all", || {
        let stats = broker.stats();
        (stats.failed_send_backs, stats.retries, stats.delivered) == (1, 5, 4)
    });
    consumer.shutdown();
    assert_eq!(committed(broker, "g", "t"), 0);
    let seen = Seen::default();
    let noted = seen.clone();
    let _consumer = consume(broker, move |delivery| {
        noted.note(number(delivery));
        Outcome::Success
    });
    wait_for("commit of all", || committed(broker, "g", "t") == 10);
    assert_eq!((seen.len(), [0, 2, 4, 6, 8].map(|nth| seen.count(nth))), (5, [1; 5]));
}

/// Whoever moves a group back wants everything once more, what was sent back included (OFF-9).
#[test]
fn off_9_a_group_that_is_moved_back_gets_again_what_it_had_sent_back() {
    let scene = scene();
    let broker = &scene.broker;
    broker.create_topic("t", 1).unwrap();
    broker.create_group("g", GroupSettings::new().max_retries(0)).unwrap();
    send(&broker.producer(), "t", 0..10);
    let consumer = consume(broker, |_| fail());
    wait_for("failures", || broker.stats().dead_letters == 10);
    drop(consumer);
    broker.reset_offsets("g", "t", ResetTo::First).unwrap();
    let scene = scene.reopen();
    let seen = Seen::default();
    let noted = seen.clone();
    let _consumer = consume(&scene.broker, move |delivery| {
        noted.note(number(delivery));
        Outcome::Success
    });
    wait_for("commit of all", || committed(&scene.broker, "g", "t") == 10);
    seen.assert_each_once(0..10);
}

#[test]
fn model_17_the_topics_of_a_group_are_not_the_users_but_may_be_looked_at() {
    let scene = scene();
    let broker = &scene.broker;
    let limits = GroupSettings::new().max_retries(1).back_off(BackOff::table([MS]));
    broker.create_group("g", limits).unwrap();
    let consumer = consume(broker, |_| fail());
    send(&broker.producer(), "t", 0..5);
    wait_for("dead letters", || broker.stats().dead_letters == 5);
    assert_eq!(broker.topics(), ["t"]);
    for topic in ["%RETRY%g", "%DLQ%g"] {
        assert_eq!(broker.browse(topic).unwrap().count_messages().unwrap(), 5);
        let refused = |error: Error| assert!(matches!(error, Error::Name { what: "topic", .. }));
        refused(broker.producer().send(&Message::new(topic, b"x")).unwrap_err());
        refused(broker.producer().send_batch(&[Message::new(topic, b"x")]).unwrap_err());
        refused(broker.create_topic(topic, 1).unwrap_err());
        refused(broker.push_consumer("h").subscribe(topic, "*").unwrap_err());
        let error = consumer.unsubscribe(topic).unwrap_err();
        assert!(matches!(error, Error::NotSubscribed { .. }), "{error}");
    }
    drop(consumer);
    // With the group go its retries, and its dead letters stay.
    broker.delete_group("g").unwrap();
    assert!(matches!(broker.queues("%RETRY%g"), Err(Error::NoSuchTopic { .. })));
    assert_eq!(broker.dead_letters("g").unwrap().count().unwrap(), 5);
    let error = broker.dead_letters("g").unwrap().redrive_all().unwrap_err();
    assert!(matches!(error, Error::NoSuchGroup { .. }), "{error}");
    // A new group of the name begins anew, whatever the old one gave up on.
    let seen = Seen::default();
    let noted = seen.clone();
    let _consumer = consume(broker, move |delivery| {
        noted.note(number(delivery));
        Outcome::Success
    });
    wait_for("commit of all", || committed(broker, "g", "t") == 5);
    seen.assert_each_once(0..5);
}

/// A strategy that knows the queues of its topics by name deals out these alone.
#[test]
fn alloc_4_what_has_failed_is_consumed_whatever_the_strategy_says() {
    let scene = scene();
    let broker = &scene.broker;
    broker.create_topic("t", 2).unwrap();
    retry_at_once(broker, "g");
    let table = [("a", [q("t", 0)]), ("b", [q("t", 1)])];
    let seen = Seen::default();
    let members = ["a", "b"].map(|name| {
        let noted = seen.clone();
        let builder = broker.push_consumer("g").subscribe("t", "*").unwrap().name(name);
        let listener = move |delivery: &Delivery<'_>| {
            if delivery.attempt() == 0 {
                return Err("planted");
            }
            noted.note(number(delivery));
            Ok(())
        };
        builder.strategy(ByConfig::new(table.clone())).start(listener).unwrap()
    });
    send(&broker.producer(), "t", 0..20);
    wait_for("all", || seen.len() == 20);
    seen.assert_each_once(0..20);
    drop(members);
}
