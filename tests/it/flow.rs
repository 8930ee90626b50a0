//! How far reading runs ahead of listeners.

use crate::support::*;
use rocklet::{DrivenClock, Message, PushConsumerBuilder};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

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

#[test]
fn pull_5_the_share_of_a_queue_grows_when_others_are_given_away() {
    let clock = DrivenClock::new(1_700_000_000_000);
    let scene = scene_with(|builder| builder.clock(&clock));
    scene.broker.create_topic("t", 2).unwrap();
    let door = Door::default();
    let start = || {
        let inside = door.clone();
        let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
        let builder = builder.threads(24).pull_batch(1).topic_messages(10);
        builder.start(move |_| inside.pass()).unwrap()
    };
    let members = [start(), start()];
    let one_each = || members.iter().all(|member| member.assignment().len() == 1);
    wait_for("a queue for each", one_each);
    send(&scene.broker.producer(), "t", 0..60);
    // Both queues with one member would have six each.
    wait_for("as many", || door.waiting() >= 2 * 11);
    std::thread::sleep(SHORT);
    assert_eq!(door.waiting(), 2 * 11);
    door.open();
    drop(members);
}

#[test]
fn b_108_whatever_listeners_do_at_small_limits_the_commit_arrives_at_the_end() {
    const MESSAGES: u32 = 3000;
    let scene = scene();
    let broker = &scene.broker;
    broker.create_topic("t", 4).unwrap();
    retry_at_once(broker, "g");
    let (seen, calm) = (Seen::default(), Arc::new(AtomicBool::new(false)));
    let calls = Arc::new(AtomicU32::new(0));
    let start = || {
        let (noted, calm, calls) = (seen.clone(), calm.clone(), calls.clone());
        let builder = broker.push_consumer("g").subscribe("t", "*").unwrap();
        let builder = builder.queue_messages(5).max_span(9).pull_batch(3).threads(3);
        let builder = builder.flow_delay(MS).error_delay(MS);
        builder
            .start(move |delivery| {
                noted.note(number(delivery));
                let dice = calls.fetch_add(1, Ordering::Relaxed).wrapping_mul(2_654_435_761) >> 24;
                match dice {
                    _ if calm.load(Ordering::Relaxed) => Ok(()),
                    0..16 => Err("planted"),
                    16..24 => panic!("planted"),
                    24..64 => {
                        std::thread::sleep(MS * (dice % 3));
                        Ok(())
                    }
                    _ => Ok(()),
                }
            })
            .unwrap()
    };
    let members = [start(), start()];
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| send(&broker.producer(), "t", 0..MESSAGES));
        while !sending.is_finished() || seen.len() < MESSAGES as usize / 2 {
            members.iter().for_each(|member| member.pause().unwrap());
            let passing = start();
            std::thread::sleep(SHORT / 4);
            members.iter().for_each(|member| member.resume().unwrap());
            std::thread::sleep(SHORT / 4);
            passing.shutdown();
        }
    });
    calm.store(true, Ordering::Relaxed);
    wait_for("commit of all", || committed(broker, "g", "t") == u64::from(MESSAGES));
    let limited = broker.pull_stats("g").unwrap();
    let paused = limited.paused_for_size + limited.paused_for_span;
    assert!(paused > 0 && limited.failed == 0, "{limited:?}");
    assert!((0..MESSAGES).all(|nth| seen.has(nth)));
    // Nothing is in flight: every queue waits for its next message.
    wait_for("queues that wait", || broker.stats().held >= 4);
}
