//! Leases of queues that are consumed in order: renewal, lapse, expiry, and who is late.

use crate::support::*;
use rocklet::{Delivery, DrivenClock, Error, Filter, PushConsumerBuilder};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

/// A broker whose timer runs when the test moves the time.
fn stepped() -> (Scene, DrivenClock) {
    let clock = DrivenClock::with_steps(1_700_000_000_000, 7);
    let scene = scene_with(|builder| builder.clock(&clock));
    scene.broker.create_topic("t", 1).unwrap();
    (scene, clock)
}

fn builder(scene: &Scene) -> PushConsumerBuilder {
    scene.broker.push_consumer("g").subscribe("t", Filter::ALL).unwrap().threads(2)
}

#[track_caller]
fn wait_for_commit(scene: &Scene, offset: u64) {
    wait_for("the commit", || committed(&scene.broker, "g", "t") == offset);
}

#[test]
fn ord_4_a_consumer_that_has_nothing_to_do_keeps_its_leases() {
    let (scene, clock) = stepped();
    let _consumer = builder(&scene).start_orderly(|_: &Delivery<'_>| ()).unwrap();
    for nth in 0..20 {
        // 29 s after a renewal at the latest.
        clock.advance(41 * SECOND);
        send_to(&scene.broker, "t", 0, nth);
        wait_for_commit(&scene, u64::from(nth) + 1);
    }
    assert_eq!((scene.broker.stats().lapsed, scene.broker.stats().expired), (0, 0));
}

// (ORD-5, ORD-11, PULL-2)
#[test]
fn ord_11_a_lease_that_has_lapsed_is_taken_up_again_before_anything_is_read() {
    let (scene, clock) = stepped();
    let seen = Seen::default();
    let noted = seen.clone();
    let builder = builder(&scene).lease_renewal(DAY);
    let listener = move |delivery: &Delivery<'_>| noted.note(number(delivery));
    let _consumer = builder.start_orderly(listener).unwrap();
    // The first renewal.
    clock.advance(SECOND);
    for (nth, lapses) in [(0, 0), (1, 1), (2, 2)] {
        clock.advance(30 * SECOND + Duration::from_millis(nth));
        send_to(&scene.broker, "t", 0, nth as u32);
        wait_for_commit(&scene, nth + 1);
        assert_eq!(scene.broker.stats().lapsed, lapses);
    }
    seen.assert_each_once(0..3);
}

// (ORD-10): rows 4 and 5.
#[test]
fn ord_10_a_lease_that_lapses_during_a_run_ends_it_and_nothing_is_repeated() {
    let (scene, clock) = stepped();
    fill(&scene.broker, "t", 0, 0..5);
    let (seen, door) = (Seen::default(), Door::default());
    let (noted, inside) = (seen.clone(), door.clone());
    let _consumer = builder(&scene)
        .lease_renewal(DAY)
        .start_orderly(move |delivery: &Delivery<'_>| {
            noted.note(number(delivery));
            if number(delivery) == 2 {
                inside.pass();
            }
        })
        .unwrap();
    wait_for("a listener inside", || door.waiting() == 1);
    clock.advance(SECOND);
    clock.advance(31 * SECOND);
    door.open();
    wait_for_commit(&scene, 3);
    wait_for("the end of the run", || {
        clock.advance(Duration::from_millis(1));
        scene.broker.stats().lapsed == 1
    });
    wait_for_commit(&scene, 5);
    seen.assert_each_once(0..5);
}

// (ORD-1): by default the queue waits for the listener.
#[test]
fn ord_1_an_expired_lease_takes_no_queue_from_a_listener_that_is_inside() {
    let (scene, clock) = stepped();
    fill(&scene.broker, "t", 0, 0..10);
    let (seen, door) = (Seen::default(), Door::default());
    let start = |name: &str| {
        let (noted, inside) = (seen.clone(), door.clone());
        let listener = move |delivery: &Delivery<'_>| {
            noted.note(number(delivery));
            if number(delivery) == 4 {
                inside.pass();
            }
        };
        builder(&scene).name(name).lease_renewal(DAY).start_orderly(listener).unwrap()
    };
    let (_a, _b) = (start("a"), start("b"));
    wait_for("a listener inside", || door.waiting() == 1);
    clock.advance(600 * SECOND);
    let stats = scene.broker.stats();
    assert_eq!((stats.expired, stats.draining, stats.taken_over), (1, 1, 0));
    assert_eq!((seen.len(), committed(&scene.broker, "g", "t")), (5, 4));
    door.open();
    wait_for_commit(&scene, 10);
    seen.assert_each_once(0..10);
    assert_eq!((scene.broker.stats().late, scene.broker.stats().failed_commits), (0, 0));
}

// (ORD-1): with `take_over_after` it does not, and the late result counts no more.
#[test]
fn ord_1_an_owner_that_is_overtaken_changes_nothing_any_more() {
    let (scene, clock) = stepped();
    fill(&scene.broker, "t", 0, 0..10);
    let (seen, door) = (Seen::default(), Door::default());
    let (noted, inside) = (seen.clone(), door.clone());
    let consumer = builder(&scene)
        .lease_renewal(DAY)
        .take_over_after(5 * SECOND)
        .start_orderly(move |delivery: &Delivery<'_>| {
            noted.note(number(delivery));
            if number(delivery) == 4 && noted.count(4) == 1 {
                inside.pass();
                return Err("late");
            }
            Ok(())
        })
        .unwrap();
    wait_for("a listener inside", || door.waiting() == 1);
    clock.advance(100 * SECOND);
    wait_for("all by the next owner", || {
        clock.advance(Duration::from_millis(10));
        committed(&scene.broker, "g", "t") == 10
    });
    let stats = scene.broker.stats();
    assert_eq!((stats.expired, stats.taken_over, stats.late), (1, 1, 0));
    door.open();
    wait_for("the late result", || scene.broker.stats().late == 1);
    assert_eq!((committed(&scene.broker, "g", "t"), scene.broker.stats().suspended), (10, 0));
    assert_eq!((seen.count(4), seen.len()), (2, 10));
    assert!(consumer.last_failure().unwrap().contains("was given away"));
}

#[test]
fn the_expiry_of_leases_is_checked_against_its_range() {
    for (ms, fits) in [(1, false), (2, true), (86_400_000, true), (86_400_001, false)] {
        let dir = tempfile::tempdir().unwrap();
        let opened = small(dir.path()).lease_expiry(Duration::from_millis(ms)).open();
        match opened.err() {
            None => assert!(fits, "{ms}"),
            Some(Error::Setting { name: "lease_expiry in ms", .. }) => assert!(!fits, "{ms}"),
            Some(other) => panic!("{ms}: {other}"),
        }
    }
}
