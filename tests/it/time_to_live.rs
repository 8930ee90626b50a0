//! Messages that are delivered for a limited time.

use crate::support::*;
use rocklet::{
    BackOff, Broker, DrivenClock, Error, GroupSettings, Message, Mode, Permission, PullStatus,
    TopicConfig, Window,
};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn driven() -> (Scene, DrivenClock) {
    let clock = DrivenClock::new(1_000_000);
    let scene = scene_with(|builder| builder.clock(&clock));
    scene.broker.create_topic("t", 1).unwrap();
    (scene, clock)
}

/// Sends a message that lives for `seconds`, or for ever.
fn send_mortal(broker: &Broker, nth: u32, seconds: Option<u32>) {
    let message = Message::new("t", body(nth)).queue(0);
    let message = match seconds {
        Some(seconds) => message.time_to_live(seconds * SECOND),
        None => message,
    };
    broker.producer().send(&message).unwrap();
}

/// What a new group gets of the topic by polls, all of it committed.
fn polled(broker: &Broker, group: &str) -> Vec<u32> {
    let mut pull = broker.pull_consumer(group).subscribe("t", "*").unwrap().start().unwrap();
    let found = numbers(&pull.poll(Duration::ZERO).unwrap());
    pull.commit().unwrap();
    found
}

fn kept_in(broker: &Broker, topic: &str) -> Vec<u32> {
    let browsed = broker.browse(topic).unwrap();
    browsed.map(|message| number(&message.unwrap().delivery())).collect()
}

#[test]
fn a_message_is_delivered_until_its_time_is_over_and_not_from_then_on() {
    let (scene, clock) = driven();
    let broker = &scene.broker;
    send_mortal(broker, 0, Some(10));
    send_mortal(broker, 1, None);
    clock.advance(5 * SECOND);
    send_mortal(broker, 2, Some(5));
    send_mortal(broker, 3, Some(5));
    clock.advance(5 * SECOND - MS);
    assert_eq!(polled(broker, "early"), [0, 1, 2, 3]);
    assert_eq!(kept_in(broker, "t"), [0, 1, 2, 3]);
    let reader = broker.pull_consumer("r").start().unwrap();
    let pulled = |offset| {
        let pull = reader.pull(&q("t", 0), offset, 10).unwrap();
        (pull.status, numbers(&pull.messages), pull.next)
    };
    assert_eq!(pulled(0), (PullStatus::Found, vec![0, 1, 2, 3], 4));
    clock.advance(MS);
    assert_eq!(polled(broker, "late"), [1]);
    assert_eq!(kept_in(broker, "t"), [1]);
    assert_eq!(broker.browse("t").unwrap().with_expired().count_messages().unwrap(), 4);
    assert_eq!(pulled(0), (PullStatus::Found, vec![1], 4));
    assert_eq!(pulled(2), (PullStatus::NoMatchedMessage, vec![], 4));

    let seen = Seen::default();
    let noted = seen.clone();
    let builder = broker.push_consumer("push").subscribe("t", "*").unwrap();
    let _push = builder.start(move |delivery| noted.note(number(delivery))).unwrap();
    wait_for("progress", || committed(broker, "push", "t") == 4);
    seen.assert_each_once(1..2);

    assert_eq!(committed(broker, "late", "t"), 4, "passed by");
    // Counted for each group that had to pass them by, and not for who only looks.
    let expired = |group| broker.pull_stats(group).unwrap().expired;
    assert_eq!(["early", "late", "push", "r"].map(expired), [0, 3, 3, 0]);
    assert_eq!(broker.stats().pulls.expired, 6);
    clock.advance(Duration::from_secs(60));
    let rates = broker.group_rates("late", Window::Minute).unwrap();
    assert_eq!(rates["t"].expired, 3, "and by topic");
}

#[test]
fn a_message_whose_time_ends_while_it_waits_for_its_turn_is_not_delivered() {
    for batch in [1, 2, 16] {
        let (scene, clock) = driven();
        let broker = &scene.broker;
        let (seen, door) = (Seen::default(), Door::default());
        let (noted, inside) = (seen.clone(), door.clone());
        for (nth, seconds) in [10, 10, 11, 10, 20, 10].into_iter().enumerate() {
            send_mortal(broker, nth as u32, Some(seconds));
        }
        let builder = broker.push_consumer("g").subscribe("t", "*").unwrap().threads(1);
        let _push = builder
            .listener_batch(batch)
            .start_batch(move |messages| {
                inside.pass();
                messages.iter().for_each(|message| noted.note(number(&message)));
            })
            .unwrap();
        // All of them have been read together; the first batch is in hand.
        wait_for("a busy listener", || door.waiting() == 1);
        clock.advance(10 * SECOND);
        door.open();
        wait_for("progress", || committed(broker, "g", "t") == 6);
        let expected: Vec<u32> = match batch {
            1 => vec![0, 2, 4],
            2 => vec![0, 1, 2, 4],
            _ => (0..6).collect(),
        };
        assert_eq!((0..6).filter(|nth| seen.has(*nth)).collect::<Vec<_>>(), expected);
        assert_eq!(broker.pull_stats("g").unwrap().expired, 6 - expected.len() as u64);
    }
}

#[test]
fn a_message_whose_time_ends_while_those_before_it_are_consumed_in_order_is_not_delivered() {
    let (scene, clock) = driven();
    let broker = &scene.broker;
    let seen: Arc<Mutex<Vec<u32>>> = Arc::default();
    let (noted, door) = (seen.clone(), Door::default());
    let inside = door.clone();
    for (nth, seconds) in [10, 10, 11, 10, 20, 10].into_iter().enumerate() {
        send_mortal(broker, nth as u32, Some(seconds));
    }
    let builder = broker.push_consumer("g").subscribe("t", "*").unwrap();
    let _push = builder
        .start_orderly(move |delivery| {
            inside.pass();
            noted.lock().unwrap().push(number(delivery));
        })
        .unwrap();
    wait_for("a busy listener", || door.waiting() == 1);
    clock.advance(10 * SECOND);
    door.open();
    wait_for("progress", || committed(broker, "g", "t") == 6);
    assert_eq!(*seen.lock().unwrap(), [0, 2, 4]);
    assert_eq!(broker.pull_stats("g").unwrap().expired, 3);
}

#[test]
fn a_failure_does_not_prolong_the_time_of_a_message() {
    let (scene, clock) = driven();
    let broker = &scene.broker;
    let back_off = BackOff::table([4 * SECOND]);
    broker.create_group("g", GroupSettings::new().back_off(back_off)).unwrap();
    send_mortal(broker, 0, Some(10));
    let attempts: Arc<Mutex<Vec<_>>> = Arc::default();
    let noted = attempts.clone();
    let builder = broker.push_consumer("g").subscribe("t", "*").unwrap();
    let _push = builder
        .start(move |delivery| {
            noted.lock().unwrap().push((delivery.attempt(), delivery.expires_ms()));
            Err::<(), _>("planted")
        })
        .unwrap();
    wait_for("the end of its time", || {
        clock.advance(SECOND / 10);
        broker.pull_stats("g").unwrap().expired == 1
    });
    let attempts = attempts.lock().unwrap().clone();
    let expected: Vec<_> = (0..attempts.len() as u32).map(|nth| (nth, Some(1_010_000))).collect();
    assert_eq!(attempts, expected);
    assert!((1..=3).contains(&attempts.len()), "{attempts:?}");
}

#[test]
fn an_expired_message_is_kept_in_the_topic_that_a_group_names_for_it() {
    let (scene, clock) = driven();
    let broker = &scene.broker;
    broker.create_group("keeps", GroupSettings::new().expired_to("over")).unwrap();
    let message = Message::new("t", body(0)).tag("a").key("k").property("p", "v").flag(7);
    let sent = broker.producer().send(&message.time_to_live(SECOND)).unwrap();
    for nth in 1..40 {
        send_mortal(broker, nth, Some(1));
    }
    clock.advance(SECOND);
    assert_eq!(polled(broker, "drops").len(), 0);
    assert!(matches!(broker.browse("over"), Err(Error::NoSuchTopic { .. })));
    assert_eq!(polled(broker, "keeps").len(), 0);
    clock.advance(1000 * SECOND);
    assert_eq!(kept_in(broker, "over"), (0..40).collect::<Vec<_>>(), "in order, and for good");
    // With all that it had.
    let kept = broker.browse("over").unwrap().next().unwrap().unwrap();
    let kept = kept.delivery();
    assert_eq!((kept.id(), kept.topic(), kept.expires_ms()), (sent.id, "over", None));
    assert_eq!((kept.tag(), kept.flag(), kept.property("p")), (Some("a"), 7, Some("v")));
    assert_eq!(kept.keys().collect::<Vec<_>>(), ["k"]);
    assert_eq!(kept.expired_from(), Some((q("t", 0), 0)));
    assert_eq!(broker.find_by_key("over", "k", .., 9).unwrap().len(), 1);
    // Broadcasting members, who would all keep it, keep nothing.
    let builder = broker.pull_consumer("keeps").subscribe("t", "*").unwrap();
    let mut member = builder.mode(Mode::Broadcasting).name("m").start().unwrap();
    assert!(member.poll(Duration::ZERO).unwrap().is_empty());
    assert_eq!(stored(broker, "over"), 40);
    let settings = broker.group_settings("keeps").unwrap();
    assert_eq!(settings.expired_topic(), Some("over"));
    let refused = broker.create_group("g", GroupSettings::new().expired_to("%DLQ%g"));
    assert!(matches!(refused, Err(Error::Name { .. })));
}

#[test]
fn what_has_expired_before_a_damaged_message_is_kept_once() {
    let (scene, clock) = driven();
    let broker = &scene.broker;
    broker.create_group("g", GroupSettings::new().expired_to("over")).unwrap();
    (0..2).for_each(|nth| send_mortal(broker, nth, Some(1)));
    let damaged = send_to(broker, "t", 0, 2);
    clock.advance(SECOND);
    // What the log says about itself is checked with every read.
    let mut files: Vec<_> =
        std::fs::read_dir(scene.dir.path().join("commitlog")).unwrap().flatten().collect();
    files.sort_by_key(|file| file.file_name());
    let log = std::fs::OpenOptions::new().write(true).open(files[0].path()).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&log, &[0xff; 16], damaged.position).unwrap();
    let mut pull = broker.pull_consumer("g").subscribe("t", "*").unwrap().start().unwrap();
    assert!(pull.poll(Duration::ZERO).unwrap().is_empty());
    for _ in 0..3 {
        assert!(matches!(pull.poll(Duration::ZERO), Err(Error::Corrupt { .. })));
    }
    assert_eq!((kept_in(broker, "over"), committed(broker, "g", "t")), (vec![0, 1], 2));
}

#[test]
fn the_largest_message_can_be_kept() {
    let (scene, clock) = driven();
    let broker = &scene.broker;
    broker.create_group("g", GroupSettings::new().expired_to("over")).unwrap();
    let fill = "p".repeat(32_700);
    let of = |bytes: usize| {
        let message = Message::new("t", vec![7; bytes]).property("p", &*fill);
        broker.producer().send(&message.time_to_live(SECOND))
    };
    let largest = (0..1 << 20).rev().step_by(100).find(|bytes| of(*bytes).is_ok()).unwrap();
    assert!(largest > 900_000, "{largest}");
    clock.advance(SECOND);
    assert_eq!(polled(broker, "g").len(), 0);
    let kept = broker.browse("over").unwrap().next().unwrap().unwrap();
    assert_eq!(kept.delivery().body().len(), largest);
}

#[test]
fn a_kill_makes_no_second_copy_of_an_expired_message() {
    let (scene, clock) = driven();
    let broker = &scene.broker;
    for group in ["push", "pull"] {
        broker
            .create_group(group, GroupSettings::new().expired_to(&format!("over-{group}")))
            .unwrap();
    }
    send_mortal(broker, 0, None);
    (1..9).for_each(|nth| send_mortal(broker, nth, Some(1)));
    clock.advance(SECOND);
    // What is unfinished holds the commit up: the expired ones behind it are above it.
    let door = Door::default();
    let inside = door.clone();
    let builder = broker.push_consumer("push").subscribe("t", "*").unwrap().threads(2);
    let push = builder.start(move |_| inside.pass()).unwrap();
    let mut pull = broker.pull_consumer("pull").subscribe("t", "*").unwrap().start().unwrap();
    assert_eq!(numbers(&pull.poll(Duration::ZERO).unwrap()), [0]);
    let both = |broker: &Broker| ["over-push", "over-pull"].map(|topic| stored(broker, topic));
    wait_for("all copies", || both(broker) == [8, 8]);
    let killed = copy_of(scene.dir.path());
    assert_eq!((committed(broker, "push", "t"), committed(broker, "pull", "t")), (0, 0));
    door.open();
    drop((push, pull));

    let broker = small(killed.path()).clock(&clock).open().unwrap();
    send_mortal(&broker, 9, Some(1));
    clock.advance(SECOND);
    let seen = Seen::default();
    let noted = seen.clone();
    let builder = broker.push_consumer("push").subscribe("t", "*").unwrap();
    let _push = builder.start(move |delivery| noted.note(number(delivery))).unwrap();
    wait_for("progress", || committed(&broker, "push", "t") == 10);
    assert_eq!(polled(&broker, "pull"), [0]);
    assert_eq!(both(&broker), [9, 9], "the one that is new");
    seen.assert_each_once(0..1);
}

/// A suspended queue is read again and again.
#[test]
fn what_is_read_again_in_order_expires_once() {
    let (scene, clock) = driven();
    let broker = &scene.broker;
    broker.create_group("g", GroupSettings::new().expired_to("over")).unwrap();
    for (nth, seconds) in [None, Some(60), Some(1), None, Some(1)].into_iter().enumerate() {
        send_mortal(broker, nth as u32, seconds);
    }
    clock.advance(SECOND);
    let (healed, seen) = (Arc::new(Mutex::new(false)), Seen::default());
    let (well, noted) = (healed.clone(), seen.clone());
    let builder = broker.push_consumer("g").subscribe("t", "*").unwrap();
    let _push = builder
        .start_orderly(move |delivery| {
            noted.note(number(delivery));
            if *well.lock().unwrap() { Ok(()) } else { Err("planted") }
        })
        .unwrap();
    let suspended = |times| {
        wait_for("suspensions", || {
            clock.advance(SECOND / 10);
            broker.stats().suspended >= times
        });
    };
    let expired = || (kept_in(broker, "over"), broker.pull_stats("g").unwrap().expired);
    suspended(5);
    assert_eq!(expired(), (vec![2, 4], 2));
    // One that stands before them lives longer.
    clock.advance(60 * SECOND);
    suspended(broker.stats().suspended + 5);
    assert_eq!(expired(), (vec![2, 4, 1], 3));
    *healed.lock().unwrap() = true;
    wait_for("progress", || {
        clock.advance(SECOND / 10);
        committed(broker, "g", "t") == 5
    });
    assert_eq!((expired(), seen.count(3)), ((vec![2, 4, 1], 3), 1));
    assert!(!seen.has(2) && !seen.has(4));
}

#[test]
fn groups_that_keep_what_has_expired_in_one_topic_keep_a_copy_each() {
    let (scene, clock) = driven();
    let broker = &scene.broker;
    let settings = GroupSettings::new().expired_to("over");
    for group in ["g1", "g2"] {
        broker.create_group(group, settings.clone()).unwrap();
    }
    send_mortal(broker, 0, Some(1));
    clock.advance(SECOND);
    for (group, copies) in [("g1", 1), ("g2", 2)] {
        assert_eq!(polled(broker, group), [0_u32; 0]);
        assert_eq!(kept_in(broker, "over").len(), copies);
        assert_eq!(broker.pull_stats(group).unwrap().expired, 1);
    }
    let kept = broker.browse("over").unwrap().next().unwrap().unwrap();
    assert_eq!(kept.delivery().expired_from(), Some((q("t", 0), 0)));
}

#[test]
fn an_expired_message_that_cannot_be_kept_is_not_passed() {
    let (scene, clock) = driven();
    let broker = &scene.broker;
    let closed = TopicConfig::new(1).permission(Permission::ReadOnly);
    broker.create_topic("over", closed).unwrap();
    broker.create_group("g", GroupSettings::new().expired_to("over")).unwrap();
    send_mortal(broker, 0, None);
    send_mortal(broker, 1, Some(1));
    send_mortal(broker, 2, None);
    clock.advance(SECOND);
    let mut pull = broker.pull_consumer("g").subscribe("t", "*").unwrap().start().unwrap();
    assert_eq!(numbers(&pull.poll(Duration::ZERO).unwrap()), [0], "what stands before it");
    for _ in 0..3 {
        let refused = pull.poll(Duration::ZERO);
        assert!(matches!(refused, Err(Error::NotPermitted { .. })));
    }
    pull.commit().unwrap();
    assert_eq!(committed(broker, "g", "t"), 1);
    drop(pull);

    // A push consumer tries again and again.
    let seen = Seen::default();
    let noted = seen.clone();
    let builder = broker.push_consumer("g").subscribe("t", "*").unwrap();
    let push = builder.start(move |delivery| noted.note(number(delivery))).unwrap();
    wait_for("failures", || {
        clock.advance(SECOND);
        broker.stats().failed_reads >= 3
    });
    assert!(push.last_failure().unwrap().contains("may not be sent to"));
    assert_eq!((committed(broker, "g", "t"), seen.len()), (1, 0));
    broker.update_topic("over", TopicConfig::new(1)).unwrap();
    wait_for("progress", || {
        clock.advance(SECOND);
        committed(broker, "g", "t") == 3
    });
    assert_eq!((kept_in(broker, "over"), seen.len()), (vec![1], 1));
    assert_eq!(broker.pull_stats("g").unwrap().expired, 1);
}

#[test]
fn the_time_of_a_delayed_message_begins_when_it_is_due() {
    let (scene, clock) = driven();
    let broker = &scene.broker;
    let message = Message::new("t", body(0)).queue(0).time_to_live(5 * SECOND);
    broker.producer().send(&message.delay(10 * SECOND)).unwrap();
    clock.advance(10 * SECOND);
    wait_for("the message", || stored(broker, "t") == 1);
    clock.advance(5 * SECOND - MS);
    assert_eq!(polled(broker, "early"), [0]);
    clock.advance(MS);
    assert_eq!(polled(broker, "late"), [0_u32; 0]);
}

#[test]
fn a_dead_letter_has_no_end_and_a_retry_that_has_expired_is_kept_under_its_first_place() {
    let (scene, clock) = driven();
    let broker = &scene.broker;
    let settings = GroupSettings::new().back_off(BackOff::table([10 * SECOND]));
    broker.create_group("g", settings.expired_to("over")).unwrap();
    send_mortal(broker, 0, None);
    send_mortal(broker, 1, Some(10));
    let builder = broker.push_consumer("g").subscribe("t", "*").unwrap();
    let _push = builder
        .start(|delivery| if number(delivery) == 1 { Err("planted") } else { Ok(()) })
        .unwrap();
    wait_for("a failure", || broker.stats().retries == 1);
    wait_for("the end of its time", || {
        clock.advance(SECOND);
        broker.pull_stats("g").unwrap().expired == 1
    });
    let kept = broker.browse("over").unwrap().next().unwrap().unwrap();
    let kept = kept.delivery();
    assert_eq!((kept.expired_from(), number(&kept)), (Some((q("t", 0), 1)), 1));
    assert_eq!((kept.topic(), kept.attempt()), ("over", 1));

    // What a group gives up is for people to look at, and to be driven again.
    broker.create_group("d", GroupSettings::new().max_retries(0)).unwrap();
    broker.create_topic("u", 1).unwrap();
    let message = Message::new("u", body(1)).time_to_live(10 * SECOND);
    broker.producer().send(&message).unwrap();
    let builder = broker.push_consumer("d").subscribe("u", "*").unwrap();
    let push = builder.start(move |_| Err::<(), _>("planted")).unwrap();
    wait_for("a dead letter", || broker.stats().dead_letters == 1);
    push.shutdown();
    clock.advance(100 * SECOND);
    let dead = broker.dead_letters("d").unwrap();
    assert_eq!(dead.count().unwrap(), 1);
    assert_eq!(dead.redrive_all().unwrap(), 1);
    let seen = Seen::default();
    let noted = seen.clone();
    let builder = broker.push_consumer("d").subscribe("u", "*").unwrap();
    let _push = builder.start(move |delivery| noted.note(number(delivery))).unwrap();
    wait_for("the message again", || seen.has(1));
}

#[test]
fn a_time_to_live_is_a_millisecond_to_ten_years_and_survives_reopening() {
    let (scene, clock) = driven();
    let producer = scene.broker.producer();
    let most = 3660 * 86_400 * SECOND;
    for time in [Duration::ZERO, Duration::from_micros(999), most + MS, Duration::MAX] {
        let refused = producer.send(&Message::new("t", b"x").time_to_live(time)).unwrap_err();
        assert!(refused.to_string().starts_with("time_to_live in ms is "), "{refused}");
        let batch = [Message::new("t", b"x"), Message::new("t", b"x").time_to_live(time)];
        assert!(matches!(producer.send_batch(&batch), Err(Error::Setting { max, .. }) if max > 0));
    }
    assert_eq!(stored(&scene.broker, "t"), 0);
    let message = |nth| Message::new("t", body(nth)).queue(0);
    producer.send_batch(&[message(0).time_to_live(MS), message(1).time_to_live(most)]).unwrap();
    drop(producer);
    scene.broker.close().unwrap();
    let broker = small(scene.dir.path()).clock(&clock).open().unwrap();
    let ends = || {
        let browse = broker.browse("t").unwrap();
        browse.map(|message| message.unwrap().delivery().expires_ms()).collect::<Vec<_>>()
    };
    let most_ms = most.as_millis() as u64;
    assert_eq!(ends(), [Some(1_000_001), Some(1_000_000 + most_ms)]);
    let browsed = broker.browse("t").unwrap().next().unwrap().unwrap();
    clock.advance(MS);
    assert_eq!(ends(), [Some(1_000_000 + most_ms)]);
    // A message that was received can be sent again as it was.
    broker.producer().send(&browsed.delivery().to_message()).unwrap();
    assert_eq!(ends(), [Some(1_000_000 + most_ms), Some(1_000_002)]);
    clock.advance(MS);
    assert_eq!(ends().len(), 1);
}
