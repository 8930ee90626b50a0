//! Messages that are delivered for a limited time.

use crate::support::*;
use rocklet::{BackOff, Broker, DrivenClock, Error, GroupSettings, Message, PullStatus};
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
