//! What operators see: topics, groups, consumers.

use crate::support::*;
use rocklet::{DrivenClock, Edge, Error, GroupSettings, Message, Mode, Permission, ResetTo};
use rocklet::{TopicConfig, Window};
use std::time::Duration;

fn driven() -> (Scene, DrivenClock) {
    let clock = DrivenClock::new(1_700_000_000_000);
    (scene_with(|builder| builder.clock(&clock)), clock)
}

#[test]
fn ops_1_a_topic_has_offsets_and_the_time_of_its_last_message() {
    let (scene, clock) = driven();
    scene.broker.create_topic("t", 3).unwrap();
    assert_eq!(scene.broker.topic_stats("t").unwrap().messages(), 0);
    fill(&scene.broker, "t", 0, 0..5);
    clock.advance(Duration::from_secs(7));
    fill(&scene.broker, "t", 2, 0..2);
    let stats = scene.broker.topic_stats("t").unwrap();
    let seen: Vec<_> = stats.queues.iter().map(|q| (q.min, q.max, q.last_stored_ms)).collect();
    let begin = 1_700_000_000_000;
    assert_eq!(seen, [(0, 5, Some(begin)), (0, 0, None), (0, 2, Some(begin + 7000))]);
    assert_eq!((stats.messages(), &stats.queues[1].queue), (7, &q("t", 1)));
    scene.broker.purge("t").unwrap();
    let stats = scene.broker.topic_stats("t").unwrap();
    assert_eq!((stats.messages(), stats.queues[0].min, stats.queues[0].max), (0, 5, 5));
    assert_eq!(stats.queues[0].last_stored_ms, None, "there is none");
    let missing = scene.broker.topic_stats("u");
    assert!(matches!(missing, Err(Error::NoSuchTopic { .. })), "{missing:?}");
}

// (OPS-6)
#[test]
fn ops_6_offsets_and_times_of_a_queue() {
    let (scene, clock) = driven();
    scene.broker.create_topic("t", 1).unwrap();
    let queue = q("t", 0);
    assert_eq!(scene.broker.earliest_stored_ms(&queue).unwrap(), None);
    for nth in 0..10 {
        send_to(&scene.broker, "t", 0, nth);
        clock.advance(Duration::from_secs(1));
    }
    let begin = 1_700_000_000_000;
    assert_eq!(scene.broker.earliest_stored_ms(&queue).unwrap(), Some(begin));
    assert_eq!(scene.broker.min_offset(&queue).unwrap(), 0);
    assert_eq!(scene.broker.max_offset(&queue).unwrap(), 10);
    let edge = Edge::AtOrAfter;
    assert_eq!(scene.broker.offset_at(&queue, begin + 3000, edge).unwrap(), 3);
    scene.broker.purge("t").unwrap();
    assert_eq!(scene.broker.earliest_stored_ms(&queue).unwrap(), None);
    assert_eq!(scene.broker.min_offset(&queue).unwrap(), 10);
}

// (OPS-10)
#[test]
fn ops_10_what_was_stored_in_a_time_is_counted() {
    let (scene, clock) = driven();
    scene.broker.create_topic("t", 4).unwrap();
    let begin = 1_700_000_000_000;
    for second in 0..100 {
        send_to(&scene.broker, "t", (second % 4) as u16, second);
        send_to(&scene.broker, "u", 0, second);
        clock.advance(Duration::from_secs(1));
    }
    let messages = |times: std::ops::Range<u64>| {
        scene.broker.volume("t", begin + times.start..begin + times.end).unwrap().messages
    };
    assert_eq!(messages(0..1), 1);
    assert_eq!(messages(40_000..100_000), 60, "the last minute");
    assert_eq!(messages(40_001..100_000), 59);
    assert_eq!(messages(100_000..200_000), 0);
    assert_eq!(messages(5..5), 0, "of no time at all");
    let all = scene.broker.volume("t", ..).unwrap();
    assert_eq!(all.messages, 100);
    // Both topics have names and bodies of one length: half of the log is theirs each.
    let other = scene.broker.volume("u", ..).unwrap();
    assert_eq!(other, all);
    let log = scene.broker.stats().log_end - scene.broker.stats().log_start;
    assert!(2 * all.bytes <= log && 2 * all.bytes > log / 2, "{} of {log}", all.bytes);
}

// (OPS-2, OPS-11)
#[test]
fn ops_2_lag_is_told_in_messages_bytes_and_time() {
    let (scene, clock) = driven();
    scene.broker.create_topic("t", 3).unwrap();
    let begin = 1_700_000_000_000;
    for nth in 0..10 {
        send_to(&scene.broker, "t", 0, nth);
        clock.advance(Duration::from_secs(1));
    }
    send_to(&scene.broker, "t", 1, 10);
    let builder = scene.broker.pull_consumer("g").subscribe("t", "*").unwrap();
    let mut pull = builder.name("m").batch(4).start().unwrap();
    assert_eq!(scene.broker.group_progress("g").unwrap().lag(), 11);
    while scene.broker.committed("g", &q("t", 0)).unwrap() < Some(4) {
        pull.seek(&q("t", 1), 0).unwrap();
        assert!(!pull.poll(SOON).unwrap().is_empty());
        pull.commit().unwrap();
    }
    pull.seek(&q("t", 0), 4).unwrap();
    pull.seek(&q("t", 1), 0).unwrap();
    pull.commit().unwrap();
    clock.advance(Duration::from_secs(5));

    let progress = scene.broker.group_progress("g").unwrap();
    let [first, second, third] = &progress.queues[..] else { panic!("{progress:?}") };
    assert_eq!((first.min, first.max, first.committed, first.lag), (0, 10, Some(4), 6));
    assert_eq!(first.last_consumed_ms, Some(begin + 3000));
    assert_eq!(first.oldest_age, Some(Duration::from_secs(11)), "it was stored at 4 of 15 seconds");
    assert_eq!((second.committed, second.lag, second.missed), (Some(0), 1, 0));
    assert_eq!((second.last_consumed_ms, second.oldest_age), (None, Some(Duration::from_secs(5))));
    assert!(second.behind_bytes > 0 && first.behind_bytes > 6 * second.behind_bytes);
    assert_eq!((third.lag, third.oldest_age, third.behind_bytes), (0, None, 0));
    assert_eq!((progress.lag(), progress.oldest_age()), (7, first.oldest_age));
    let owner = vec!["m".to_owned()];
    assert!(progress.owners().values().all(|owners| *owners == owner));
    assert_eq!(progress.owners().len(), 3);

    // What is dropped before it is consumed stays behind, and is told apart.
    scene.broker.purge("t").unwrap();
    let progress = scene.broker.group_progress("g").unwrap();
    assert_eq!((progress.queues[0].lag, progress.queues[0].missed), (6, 6));
    assert_eq!(progress.oldest_age(), None);

    // Without members: all topics in which something was committed.
    drop(pull);
    let progress = scene.broker.group_progress("g").unwrap();
    assert_eq!((progress.queues.len(), progress.queues[0].owner.clone()), (3, None));
    let missing = scene.broker.group_progress("nobody");
    assert!(matches!(missing, Err(Error::NoSuchGroup { .. })), "{missing:?}");
}

// (OPS-2)
#[test]
fn ops_2_topics_that_running_members_do_not_subscribe_to_are_left_out() {
    let scene = scene();
    fill(&scene.broker, "a", 0, 0..3);
    fill(&scene.broker, "b", 0, 0..3);
    let both = scene.broker.pull_consumer("g").subscribe("a", "*").unwrap();
    drop(both.subscribe("b", "*").unwrap().start().unwrap());
    let topics = |scene: &Scene| {
        let progress = scene.broker.group_progress("g").unwrap();
        let mut topics: Vec<_> =
            progress.queues.iter().map(|queue| queue.queue.topic().to_owned()).collect();
        topics.dedup();
        (topics, progress.lag())
    };
    assert_eq!(topics(&scene), (vec!["a".to_owned(), "b".to_owned()], 6));
    let one = scene.broker.pull_consumer("g").subscribe("b", "*").unwrap().start().unwrap();
    assert_eq!(topics(&scene), (vec!["b".to_owned()], 3));
    drop(one);
}

// (OPS-2, OPS-11)
#[test]
fn ops_11_in_broadcasting_every_member_has_every_queue_and_its_own_progress() {
    let scene = scene();
    scene.broker.create_topic("t", 2).unwrap();
    let join = |name: &str| {
        let builder = scene.broker.pull_consumer("g").subscribe("t", "*").unwrap().name(name);
        builder.mode(Mode::Broadcasting).start().unwrap()
    };
    let (mut a, _b) = (join("a"), join("b"));
    fill(&scene.broker, "t", 0, 0..4);
    assert_eq!(a.poll(SOON).unwrap().len(), 4);
    a.commit().unwrap();
    let progress = scene.broker.group_progress("g").unwrap();
    let seen = progress
        .queues
        .iter()
        .map(|queue| (queue.queue.queue(), queue.member.as_deref().unwrap_or(""), queue.lag));
    let seen: Vec<_> = seen.collect();
    assert_eq!(seen, [(0, "a", 0), (0, "b", 4), (1, "a", 0), (1, "b", 0)]);
    assert!(progress.queues.iter().all(|queue| queue.owner == queue.member));
    assert_eq!(progress.owners()[&q("t", 0)], ["a", "b"]);
}

// (OPS-3)
#[test]
fn ops_3_a_consumer_tells_what_it_has_in_flight() {
    let (scene, clock) = driven();
    scene.broker.create_topic("t", 2).unwrap();
    let door = Door::default();
    let inside = door.clone();
    let builder = scene.broker.push_consumer("g").subscribe("t", "a || b").unwrap();
    let consumer =
        builder.name("m").threads(2).max_span(77).build(move |delivery: &rocklet::Delivery<'_>| {
            if number(delivery) == 1 {
                inside.pass();
            }
        });
    let refused = consumer.running_info().unwrap_err();
    assert!(matches!(refused, Error::State { .. }), "{refused:?}");
    consumer.start().unwrap();
    for nth in 0..5 {
        send_tagged(&scene.broker, "t", "a", nth);
    }
    wait_for("all but the second", || {
        door.waiting() == 1 && scene.broker.stats().delivered == 4 && scene.broker.stats().held == 2
    });
    clock.advance(Duration::from_secs(9));
    let info = consumer.running_info().unwrap();
    assert_eq!((&*info.group, &*info.name, info.mode), ("g", "m", Mode::Clustering));
    assert_eq!((info.paused, info.age), (false, Duration::from_secs(9)));
    assert_eq!(info.threads, 2);
    assert!(info.settings.contains("max_span: 77"), "{}", info.settings);
    assert_eq!(info.subscriptions["t"].to_string(), "a || b");
    let [first, second] = &info.queues[..] else { panic!("{info:?}") };
    assert_eq!(first.queue, q("t", 0));
    assert_eq!((first.committed, first.next, first.in_flight), (1, 5, Some((1, 1))));
    assert_eq!((first.messages, first.bytes, first.retrying), (1, 4, 0));
    assert_eq!((first.draining, first.waiting), (false, true));
    assert_eq!((first.last_read, first.leased), (Some(Duration::from_secs(9)), None));
    assert_eq!(first.last_consumed, Some(Duration::from_secs(9)));
    assert_eq!((second.in_flight, second.last_consumed), (None, None));
    door.open();
    wait_for("commit of all", || committed(&scene.broker, "g", "t") == 5);
    consumer.pause().unwrap();
    assert!(consumer.running_info().unwrap().paused);
    consumer.shutdown();
    assert!(consumer.running_info().is_err());
}

// (OPS-3)
#[test]
fn ops_3_pull_consumers_and_consumers_in_order_tell_it_too() {
    let scene = scene();
    scene.broker.create_topic("t", 2).unwrap();
    fill(&scene.broker, "t", 1, 0..5);
    let builder = scene.broker.pull_consumer("p").subscribe("t", "*").unwrap().name("m");
    let mut pull = builder.batch(3).start().unwrap();
    assert_eq!(pull.poll(SOON).unwrap().len(), 3);
    let info = pull.running_info().unwrap();
    assert_eq!((&*info.group, &*info.name, info.threads), ("p", "m", 0));
    let [first, second] = &info.queues[..] else { panic!("{info:?}") };
    assert_eq!((first.committed, first.next, first.in_flight), (0, 0, None));
    assert_eq!((second.committed, second.next, second.in_flight), (0, 3, Some((0, 2))));
    pull.commit().unwrap();
    pull.pause(&[q("t", 0)]).unwrap();
    let info = pull.running_info().unwrap();
    assert_eq!(
        (info.queues[0].waiting, info.queues[1].in_flight, info.paused),
        (true, None, false)
    );
    pull.shutdown();
    assert!(pull.running_info().is_err());

    let builder = scene.broker.push_consumer("o").subscribe("t", "*").unwrap();
    let ordered = builder.start_orderly(|_| ()).unwrap();
    wait_for("commit of all", || committed(&scene.broker, "o", "t") == 5);
    let info = ordered.running_info().unwrap();
    assert!(info.queues.iter().all(|queue| queue.leased == Some(true)), "{info:?}");
}

// (OPS-9)
#[test]
fn ops_9_rates_come_from_samples_on_the_clock() {
    let (scene, clock) = driven();
    scene.broker.create_topic("t", 1).unwrap();
    // What fails does not come again.
    scene.broker.create_group("g", GroupSettings::new().retry_queues(0)).unwrap();
    let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
    let (now, sleeping) = (clock.clone(), Duration::from_millis(40));
    let consumer = builder
        .threads(1)
        .start(move |delivery| {
            now.advance(sleeping);
            if number(delivery) % 10 == 9 { Err("planted") } else { Ok(()) }
        })
        .unwrap();
    for nth in 0..60 {
        clock.advance(Duration::from_millis(960));
        send_to(&scene.broker, "t", 0, nth);
        let done = || scene.broker.stats().delivered + scene.broker.stats().failed;
        wait_for("one more", || done() == u64::from(nth) + 1 && scene.broker.stats().held == 1);
    }
    // It is 60 seconds since the start; the last sample was taken before the last call was counted.
    let minute = scene.broker.group_rates("g", Window::Minute).unwrap()["t"];
    assert_eq!(minute.time, Duration::from_secs(60));
    assert_eq!((minute.failed_messages, minute.consumed), (5, 54.0 / 60.0));
    assert_eq!(minute.failed, 5.0 / 60.0);
    assert_eq!(minute.consume_time, sleeping);
    assert_eq!((minute.read, minute.read_bytes), (1.0, 4.0));
    assert_eq!(minute.read_time, Duration::ZERO, "the clock stands while it reads");
    assert_eq!(scene.broker.group_rates("g", Window::Hour).unwrap()["t"].time, Duration::ZERO);

    // An hour later nobody has woken up, and the samples are those that were due.
    clock.advance(Duration::from_secs(3600));
    let status = consumer.running_info().unwrap().status["t"];
    assert_eq!((status.consumed, status.failed_messages), (0.0, 6));
    assert_eq!(status.consume_time, sleeping, "of the hour");
    let missing = scene.broker.group_rates("nobody", Window::Day);
    assert!(matches!(missing, Err(Error::NoSuchGroup { .. })), "{missing:?}");
}

// (OPS-9, OPS-10)
#[test]
fn ops_10_what_a_group_polls_is_counted_too() {
    let (scene, clock) = driven();
    scene.broker.create_topic("t", 1).unwrap();
    let mut pull = scene.broker.pull_consumer("g").subscribe("t", "*").unwrap().start().unwrap();
    fill(&scene.broker, "t", 0, 0..30);
    assert_eq!(pull.poll(SOON).unwrap().len(), 30);
    assert!(pull.poll(Duration::ZERO).unwrap().is_empty());
    clock.advance(Duration::from_secs(10));
    let rates = scene.broker.group_rates("g", Window::Minute).unwrap()["t"];
    assert_eq!((rates.time, rates.read, rates.read_bytes), (Duration::from_secs(10), 3.0, 12.0));
    assert_eq!((rates.consumed, rates.consume_time), (0.0, Duration::ZERO), "nobody listens");
}

// (OPS-7)
#[test]
fn ops_7_what_operators_do_to_topics_and_groups() {
    let scene = scene();
    let broker = &scene.broker;
    broker.create_topic("t", 2).unwrap();
    fill(broker, "t", 0, 0..10);
    let lag = |group: &str| broker.group_progress(group).unwrap().lag();
    broker.create_group("g", GroupSettings::new()).unwrap();
    broker.update_group("g", GroupSettings::new().max_retries(3)).unwrap();
    assert_eq!(broker.group_settings("g").unwrap(), GroupSettings::new().max_retries(3));
    // Reset and clone, with nobody online.
    broker.reset_offsets("g", "t", ResetTo::Offset(4)).unwrap();
    broker.clone_offsets("g", "h", "t").unwrap();
    broker.reset_offsets("g", "t", ResetTo::Last).unwrap();
    assert_eq!((lag("g"), lag("h")), (0, 6));
    // Nobody may send any more, and what is there is consumed.
    broker.update_topic("t", TopicConfig::new(2).permission(Permission::ReadOnly)).unwrap();
    let refused = broker.producer().send(&Message::new("t", b"x")).unwrap_err();
    assert!(matches!(refused, Error::NotPermitted { .. }), "{refused:?}");
    let mut pull = broker.pull_consumer("h").subscribe("t", "*").unwrap().start().unwrap();
    assert_eq!(numbers(&pull.poll(SOON).unwrap()), [4, 5, 6, 7, 8, 9]);
    pull.commit().unwrap();
    assert_eq!(lag("h"), 0);
    drop(pull);
    // A stored message is given to a listener once more, which changes nothing.
    let builder = broker.push_consumer("h").subscribe("t", "*").unwrap();
    let consumer = builder.start(|_: &rocklet::Delivery<'_>| Err::<(), _>("planted")).unwrap();
    let stored = broker.browse("t").unwrap().next().unwrap().unwrap();
    let told = consumer.consume_directly(&stored.delivery()).unwrap();
    assert_eq!(told.reason.as_deref(), Some("planted"));
    assert_eq!((lag("h"), broker.stats().failed), (0, 0));
    consumer.shutdown();
    broker.delete_topic("t").unwrap();
    assert_eq!(broker.group_progress("h").unwrap().queues, [], "its progress went with it");
    broker.delete_group("h").unwrap();
    assert!(matches!(broker.group_progress("h"), Err(Error::NoSuchGroup { .. })));
}
