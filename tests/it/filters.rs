//! Tag filters end to end.

use crate::support::*;
use rocklet::{Message, PullStatus};
use std::time::Duration;

/// Two tags with one Java hash, both positive and both negative.
const TWINS: [(&str, &str); 2] = [("Aa", "BB"), ("zzzzAa", "zzzzBB")];

fn send_twins(scene: &Scene, wanted: &str, twin: &str) {
    scene.broker.create_topic("t", 1).unwrap();
    let untagged = || fill(&scene.broker, "t", 0, 9..10);
    untagged();
    send_tagged(&scene.broker, "t", twin, 1);
    send_tagged(&scene.broker, "t", wanted, 0);
    send_tagged(&scene.broker, "t", "other", 2);
    send_tagged(&scene.broker, "t", twin, 1);
    untagged();
}

#[test]
fn b_152_a_pull_tells_tags_with_one_hash_apart() {
    for (wanted, twin) in TWINS {
        let scene = scene();
        send_twins(&scene, wanted, twin);
        let mut pull =
            scene.broker.pull_consumer("g").subscribe("t", wanted).unwrap().start().unwrap();
        let found = pull.pull(&q("t", 0), 0, 10).unwrap();
        assert_eq!((numbers(&found.messages), found.next), (vec![0], 6));
        let collisions = pull.pull(&q("t", 0), 3, 10).unwrap();
        assert_eq!((collisions.status, collisions.next), (PullStatus::NoMatchedMessage, 6));
        assert_eq!(numbers(&pull.poll(Duration::ZERO).unwrap()), [0]);
        pull.commit().unwrap();
        assert_eq!(committed(&scene.broker, "g", "t"), 6);
    }
}

#[test]
fn b_152_a_listener_gets_the_exact_tag_and_the_commit_passes_its_twin() {
    for (wanted, twin) in TWINS {
        let scene = scene();
        let seen = Seen::default();
        let noted = seen.clone();
        scene.broker.create_topic("t", 1).unwrap();
        let _consumer = scene
            .broker
            .push_consumer("g")
            .subscribe("t", wanted)
            .unwrap()
            .start(move |delivery| noted.note(number(delivery)))
            .unwrap();
        wait_for("parked consumer", || scene.broker.stats().held == 1);
        // Its hash wakes the consumer, which then finds another tag.
        send_tagged(&scene.broker, "t", twin, 1);
        wait_for("commit past the twin", || committed(&scene.broker, "g", "t") == 1);
        send_tagged(&scene.broker, "t", wanted, 0);
        wait_for("commit of the message", || committed(&scene.broker, "g", "t") == 2);
        seen.assert_each_once(0..1);
    }
}

#[test]
fn b_086_a_filtered_range_moves_the_commit() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    for (nth, tag) in ["A", "A", "B", "A", "A", "B", "B", "B"].into_iter().enumerate() {
        send_tagged(&scene.broker, "t", tag, nth as u32);
    }
    for _ in 0..100 {
        let batch = vec![Message::new("t", body(99)).tag("B"); 100];
        scene.broker.producer().send_batch(&batch).unwrap();
    }
    let seen = Seen::default();
    let noted = seen.clone();
    let start = || {
        let noted = noted.clone();
        let builder = scene.broker.push_consumer("g").subscribe("t", "A").unwrap();
        builder.start(move |delivery| noted.note(number(delivery))).unwrap()
    };
    let consumer = start();
    wait_for("commit of all", || committed(&scene.broker, "g", "t") == 10_008);
    assert_eq!([0, 1, 3, 4].map(|nth| seen.has(nth)), [true; 4]);
    consumer.shutdown();
    assert_eq!(seen.len(), 4);
    let scene = scene.reopen();
    assert_eq!(committed(&scene.broker, "g", "t"), 10_008);
}

#[test]
fn b_086_what_is_filtered_while_a_consumer_is_parked_is_committed_at_once() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    let _push =
        scene.broker.push_consumer("push").subscribe("t", "A").unwrap().start(|_| ()).unwrap();
    let mut pull = scene.broker.pull_consumer("pull").subscribe("t", "A").unwrap().start().unwrap();
    let polling = std::thread::spawn(move || {
        let found = numbers(&pull.poll(SOON).unwrap());
        (pull, found)
    });
    wait_for("parked consumers", || scene.broker.stats().held == 2);
    for nth in 1..=100 {
        if nth % 3 == 0 {
            let batch = vec![Message::new("t", body(nth)).tag("B"); 3];
            scene.broker.producer().send_batch(&batch).unwrap();
        } else {
            send_tagged(&scene.broker, "t", "B", nth);
        }
        // By the thread that sent: committed when `send` returns, and nobody has been woken.
        let max = stored(&scene.broker, "t");
        assert_eq!(committed(&scene.broker, "push", "t"), max);
        assert_eq!(committed(&scene.broker, "pull", "t"), max);
        assert_eq!(scene.broker.stats().held, 2);
    }
    send_tagged(&scene.broker, "t", "A", 7);
    let (mut pull, found) = polling.join().unwrap();
    assert_eq!(found, [7]);
    let max = stored(&scene.broker, "t");
    assert_eq!(committed(&scene.broker, "pull", "t"), max - 1);
    pull.commit().unwrap();
    assert_eq!(committed(&scene.broker, "pull", "t"), max);
    wait_for("commit by the listener", || committed(&scene.broker, "push", "t") == max);
}

#[test]
fn b_086_messages_polled_and_not_committed_are_not_passed() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    send_tagged(&scene.broker, "t", "A", 0);
    let mut pull = scene.broker.pull_consumer("g").subscribe("t", "A").unwrap().start().unwrap();
    assert_eq!(numbers(&pull.poll(SOON).unwrap()), [0]);
    for nth in 1..11 {
        send_tagged(&scene.broker, "t", "B", nth);
    }
    assert!(pull.poll(SHORT).unwrap().is_empty());
    assert_eq!(committed(&scene.broker, "g", "t"), 0);
    pull.commit().unwrap();
    assert_eq!(committed(&scene.broker, "g", "t"), 11);
}
