//! Explicit pulls that wait for a message.

use crate::support::*;
use rocklet::{DrivenClock, Error, PullConsumer, PullStatus};
use std::time::Duration;

fn one_queue() -> (Scene, PullConsumer) {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    let pull = scene.broker.pull_consumer("g").start().unwrap();
    (scene, pull)
}

#[test]
fn pc_4_a_pull_sleeps_until_a_message_comes_that_it_wants() {
    let (scene, pull) = one_queue();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| pull.pull_within(&q("t", 0), "a", 0, 10, SOON).unwrap());
        wait_for("a waiting pull", || scene.broker.stats().held == 1);
        for nth in 0..100 {
            send_tagged(&scene.broker, "t", "b", nth);
        }
        assert_eq!(scene.broker.stats().held, 1, "it is not woken by what it does not want");
        send_tagged(&scene.broker, "t", "a", 100);
        let found = waiting.join().unwrap();
        assert_eq!((found.status, numbers(&found.messages)), (PullStatus::Found, vec![100]));
        assert_eq!((found.next, found.min), (101, 0));
    });
    assert_eq!(scene.broker.stats().held, 0);
    // What is there is returned at once, and nothing moves for the group.
    let found = pull.pull_within(&q("t", 0), "b", 40, 2, SOON).unwrap();
    assert_eq!((numbers(&found.messages), found.next), (vec![40, 41], 42));
    assert_eq!(pull.committed(&q("t", 0)).unwrap(), None);
}

#[test]
fn pc_4_a_pull_that_waits_in_vain_says_how_far_it_has_looked() {
    let clock = DrivenClock::new(1_000_000);
    let scene = scene_with(|builder| builder.clock(&clock));
    scene.broker.create_topic("t", 1).unwrap();
    let send = |range: std::ops::Range<u32>| {
        for nth in range {
            send_tagged(&scene.broker, "t", "b", nth);
        }
    };
    send(0..5);
    let pull = scene.broker.pull_consumer("g").start().unwrap();
    let limit = Duration::from_secs(20);
    // Without time it does not wait.
    let at_once = pull.pull_within(&q("t", 0), "a", 0, 10, Duration::ZERO).unwrap();
    assert_eq!((at_once.status, at_once.next), (PullStatus::NoMatchedMessage, 5));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| pull.pull_within(&q("t", 0), "a", 0, 10, limit).unwrap());
        wait_for("a waiting pull", || scene.broker.stats().held == 1);
        send(5..9);
        clock.advance(limit - Duration::from_millis(1));
        assert_eq!(scene.broker.stats().held, 1, "there is a millisecond left");
        clock.advance(Duration::from_millis(1));
        let found = waiting.join().unwrap();
        assert_eq!((found.status, found.next, found.max), (PullStatus::NoNewMessage, 9, 9));
        assert!(found.messages.is_empty());
    });
    assert_eq!(scene.broker.stats().held, 0);
    // An offset outside is told at once.
    let outside = pull.pull_within(&q("t", 0), "a", 10, 10, SOON).unwrap();
    assert_eq!((outside.status, outside.next), (PullStatus::OffsetIllegal, 9));
}

#[test]
fn pc_4_several_threads_wait_at_a_time_and_no_arrival_is_missed() {
    let (scene, pull) = one_queue();
    let (pull, scene) = (&pull, &scene);
    std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(move || {
                    let (mut next, mut found) = (0, Vec::new());
                    while found.len() < 500 {
                        let pulled = pull.pull_within(&q("t", 0), "*", next, 7, SOON).unwrap();
                        assert_eq!(pulled.status, PullStatus::Found);
                        found.extend(numbers(&pulled.messages));
                        next = pulled.next;
                    }
                    found
                })
            })
            .collect();
        fill(&scene.broker, "t", 0, 0..500);
        for waiting in waiting {
            assert_eq!(waiting.join().unwrap(), (0..500).collect::<Vec<_>>());
        }
    });
    assert_eq!(scene.broker.stats().held, 0);
}

// (PC-4, PC-5)
#[test]
fn pc_4_what_ends_a_wait_besides_messages_and_time() {
    let (scene, pull) = one_queue();
    let pull = &pull;
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| pull.pull_within(&q("t", 0), "*", 0, 1, SOON).map(drop));
        wait_for("a waiting pull", || scene.broker.stats().held == 1);
        scene.broker.delete_topic("t").unwrap();
        assert!(matches!(waiting.join().unwrap(), Err(Error::NoSuchTopic { .. })));
        scene.broker.create_topic("t", 1).unwrap();
        let waiting = scope.spawn(|| pull.pull_within(&q("t", 0), "*", 0, 1, SOON).map(drop));
        wait_for("a waiting pull", || scene.broker.stats().held == 1);
        scene.broker.close().unwrap();
        assert!(matches!(waiting.join().unwrap(), Err(Error::Closed)));
    });
    for most in [0, 65_536] {
        let refused = pull.pull_within(&q("t", 0), "*", 0, most, SOON);
        assert!(matches!(refused, Err(Error::Setting { name: "max", .. })));
    }
    assert!(matches!(pull.pull_within(&q("t", 0), "||", 0, 1, SOON), Err(Error::Filter { .. })));
}
