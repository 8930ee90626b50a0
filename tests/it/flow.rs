//! How far reading runs ahead of listeners.

use crate::support::*;
use rocklet::{DrivenClock, Message, PushConsumerBuilder};

/// That many of ten messages in each of two queues come to listeners that do not return, with more
/// than enough threads.
#[track_caller]
fn assert_in_flight(
    expected: usize,
    settings: impl FnOnce(PushConsumerBuilder) -> PushConsumerBuilder,
) {
    let clock = DrivenClock::new(1_700_000_000_000);
    let scene = scene_with(|builder| builder.clock(&clock));
    scene.broker.create_topic("t", 2).unwrap();
    let door = Door::default();
    let inside = door.clone();
    let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
    let builder = settings(builder.threads(24).pull_batch(1));
    let consumer = builder.start(move |_| inside.pass()).unwrap();
    // A member that has one queue only, for a moment, need not share.
    wait_for("both queues", || consumer.assignment().len() == 2);
    let large = vec![0; 700 << 10];
    for nth in 0..20 {
        scene.broker.producer().send(&Message::new("t", &large[..]).queue(nth % 2)).unwrap();
    }
    wait_for("as many", || door.waiting() >= expected);
    // Reading pauses until the clock moves: however long that takes, no more will come.
    std::thread::sleep(SHORT);
    assert_eq!(door.waiting(), expected);
    door.open();
    drop(consumer);
}

#[test]
fn pull_3_reading_pauses_strictly_above_a_limit() {
    assert_in_flight(20, |builder| builder);
    assert_in_flight(2 * 4, |builder| builder.queue_messages(3));
    assert_in_flight(2 * 3, |builder| builder.max_span(2));
    // Twice 700 KiB is one whole MiB, three times is two.
    assert_in_flight(2 * 3, |builder| builder.queue_mib(1));
}

#[test]
fn pull_5_the_limits_of_a_topic_are_shared_by_its_queues() {
    assert_in_flight(2 * 6, |builder| builder.topic_messages(10));
    assert_in_flight(2 * 2, |builder| builder.topic_messages(1).queue_messages(9));
    assert_in_flight(2 * 3, |builder| builder.topic_mib(2));
    // Less than one MiB for each is one.
    assert_in_flight(2 * 3, |builder| builder.topic_mib(1));
}
