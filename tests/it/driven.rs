//! Time that the test drives: nothing here waits for a real clock.

use crate::support::*;
use rocklet::{DrivenClock, Flush, Message};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

fn driven() -> (Scene, DrivenClock) {
    let clock = DrivenClock::new(1_700_000_000_000);
    (scene_with(|builder| builder.clock(&clock)), clock)
}

/// Moves the clock step by step until `condition` holds.
#[track_caller]
fn advance_until(
    clock: &DrivenClock,
    step: Duration,
    what: &str,
    mut condition: impl FnMut() -> bool,
) {
    wait_for(what, || {
        clock.advance(step);
        condition()
    });
}

#[test]
fn a_poll_times_out_by_the_clock() {
    let (scene, clock) = driven();
    let mut pull = scene.broker.pull_consumer("g").subscribe("t", "*").unwrap().start().unwrap();
    scene.broker.create_topic("t", 2).unwrap();
    let before = clock.wall_ms();
    let polling = std::thread::spawn(move || {
        let found = pull.poll(Duration::from_secs(86_400)).unwrap();
        (pull, found.len())
    });
    wait_for("a sleeping poll", || scene.broker.stats().held == 2);
    assert!(!polling.is_finished());
    advance_until(&clock, Duration::from_secs(600), "the timeout", || polling.is_finished());
    assert!(clock.wall_ms() - before >= 86_400_000);
    let (mut pull, found) = polling.join().unwrap();
    assert_eq!((found, scene.broker.stats().held), (0, 0));
    // A message ends the wait without the clock.
    let polling = std::thread::spawn(move || numbers(&pull.poll(SOON).unwrap()));
    send_to(&scene.broker, "t", 1, 5);
    assert_eq!(polling.join().unwrap(), [5]);
}

#[test]
fn pull_2_flow_control_pauses_reading_until_the_clock_has_moved() {
    let (scene, clock) = driven();
    scene.broker.create_topic("t", 2).unwrap();
    for from in (0..5000).step_by(100) {
        let message = |nth| Message::new("t", body(nth)).queue(0);
        let batch: Vec<_> = (from..from + 100).map(message).collect();
        scene.broker.producer().send_batch(&batch).unwrap();
    }
    let (seen, door) = (Seen::default(), Door::default());
    let (noted, inside) = (seen.clone(), door.clone());
    let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
    let _consumer = builder
        .threads(2)
        .start(move |delivery| {
            if number(delivery) == 0 {
                inside.pass();
            }
            noted.note(number(delivery));
        })
        .unwrap();
    // The one worker that is free takes its work in order: with the message of the other queue
    // it has seen that too much of the first one is in flight.
    wait_for("more than the span", || seen.len() > 2000 && door.waiting() == 1);
    send_to(&scene.broker, "t", 1, 5000);
    wait_for("the other queue", || seen.has(5000));
    door.open();
    // All that was read is finished, and the pull request sleeps: nothing more without the clock.
    wait_for("commit of what was read", || committed(&scene.broker, "g", "t") == seen.len() as u64);
    assert!((2001..=2033).contains(&seen.len()), "{}", seen.len());
    advance_until(&clock, 10 * MS, "commit of all", || committed(&scene.broker, "g", "t") == 5001);
    seen.assert_each_once(0..5001);
}

#[test]
fn an_interval_flush_comes_when_the_interval_has_passed() {
    let clock = DrivenClock::new(1_700_000_000_000);
    let hour = Duration::from_secs(3600);
    let scene = scene_with(|builder| builder.clock(&clock).flush(Flush::Every(hour)));
    for round in 0..3 {
        let before = clock.wall_ms();
        let receipt = send_to(&scene.broker, "t", 0, round);
        let flushed = || scene.broker.stats().flushed > receipt.position;
        assert!(!flushed());
        advance_until(&clock, Duration::from_secs(60), "the flush", flushed);
        assert!(clock.wall_ms() - before >= 3_600_000);
    }
    let receipt = send_to(&scene.broker, "t", 0, 9);
    scene.broker.flush().unwrap();
    assert!(scene.broker.stats().flushed > receipt.position, "asked for, at once");
}

#[test]
fn closing_waits_for_no_timer() {
    let (Scene { broker, dir }, _clock) = driven();
    send(&broker.producer(), "t", 0..10);
    let builder = broker.push_consumer("g").subscribe("t", "*").unwrap();
    let _consumer = builder.start(|_| Err::<(), _>("planted")).unwrap();
    wait_for("failures", || broker.stats().failed == 10);
    let mut pull = broker.pull_consumer("p").subscribe("u", "*").unwrap().start().unwrap();
    let polling = std::thread::spawn(move || pull.poll(Duration::from_secs(1)).map(|f| f.len()));
    returns("close", move || broker.close().unwrap());
    assert!(matches!(polling.join().unwrap(), Err(rocklet::Error::Closed)));
    drop(dir);
}
