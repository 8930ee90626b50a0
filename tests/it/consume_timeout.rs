//! Listeners that take too long (PQ-12 to PQ-14). Time is driven by the tests.

use crate::support::*;
use rocklet::{
    BackOff, Batch, ConsumeHook, Consumed, DelayLevels, DrivenClock, GroupSettings, Outcome,
    PushConsumerBuilder, ReturnType,
};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

fn driven() -> (Scene, DrivenClock) {
    let clock = DrivenClock::new(1_700_000_000_000);
    let scene = scene_with(|builder| builder.clock(&clock));
    scene.broker.create_topic("t", 1).unwrap();
    (scene, clock)
}

fn consumer(scene: &Scene) -> PushConsumerBuilder {
    let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
    builder.consume_timeout(10 * SECOND)
}

fn timed_out(scene: &Scene) -> u64 {
    scene.broker.stats().timed_out
}

// (PQ-12)
#[test]
fn b_110_a_message_times_out_exactly_when_its_time_is_up() {
    for phase in [0, 1, 3500, 9999] {
        let (scene, clock) = driven();
        let (seen, door) = (Seen::default(), Door::default());
        let (noted, inside) = (seen.clone(), door.clone());
        let _consumer = consumer(&scene)
            .threads(2)
            .start(move |delivery| {
                noted.note(number(delivery));
                if number(delivery) == 1 && delivery.attempt() == 0 {
                    inside.pass();
                }
            })
            .unwrap();
        // Another call begins the time, which is up at some point of the second one.
        send_to(&scene.broker, "t", 0, 0);
        wait_for("the first", || scene.broker.stats().delivered == 1);
        clock.advance(phase * MS);
        send_to(&scene.broker, "t", 0, 1);
        wait_for("a hanging listener", || door.waiting() == 1);
        // What comes later is not held up, and goes by its own time.
        clock.advance(10 * SECOND - MS);
        send_to(&scene.broker, "t", 0, 2);
        wait_for("the next one", || scene.broker.stats().delivered == 2);
        assert_eq!(timed_out(&scene), 0, "not yet, phase {phase}");
        clock.advance(MS);
        wait_for("the end of its time", || timed_out(&scene) == 1);
        wait_for("its failure", || scene.broker.stats().failed == 1);
        assert_eq!(scene.broker.stats().late, 0);
        door.open();
        wait_for("the late return", || scene.broker.stats().late == 1);
    }
}

#[test]
fn pq_12_a_message_that_timed_out_comes_again_after_the_third_delay_level() {
    let clock = DrivenClock::new(1_700_000_000_000);
    let levels = DelayLevels::parse("1h 2h 3s").unwrap();
    let scene = scene_with(|builder| builder.clock(&clock).delay_levels(levels));
    scene.broker.create_topic("t", 1).unwrap();
    let (attempts, door) = (Arc::new(Mutex::new(Vec::new())), Door::default());
    let (noted, inside, now) = (attempts.clone(), door.clone(), clock.clone());
    // Whatever the group has been told to do with failures.
    let settings = GroupSettings::new().back_off(BackOff::table([3600 * SECOND]));
    scene.broker.create_group("g", settings).unwrap();
    let _consumer = consumer(&scene)
        .threads(2)
        .start(move |delivery| {
            noted.lock().unwrap().push((delivery.attempt(), now.wall_ms(), delivery.id()));
            if delivery.attempt() == 0 {
                inside.pass();
            }
        })
        .unwrap();
    let sent = send_to(&scene.broker, "t", 0, 0);
    wait_for("a hanging listener", || door.waiting() == 1);
    let start = clock.wall_ms();
    clock.advance(10 * SECOND);
    wait_for("commit past it", || committed(&scene.broker, "g", "t") == 1);
    clock.advance(3 * SECOND - MS);
    // Something else is delivered, and it is not.
    send_to(&scene.broker, "t", 0, 1);
    wait_for("the other one", || door.waiting() == 2);
    assert_eq!(attempts.lock().unwrap().len(), 2);
    clock.advance(MS);
    door.open();
    wait_for("the second attempt", || attempts.lock().unwrap().len() == 3);
    let again = attempts.lock().unwrap()[2];
    assert_eq!(again, (1, start + 13_000, sent.id));
    wait_for("the late return", || scene.broker.stats().late == 1);
}

// (PQ-13)
#[test]
fn b_111_only_time_inside_the_listener_counts() {
    let (scene, clock) = driven();
    let (seen, moved) = (Seen::default(), clock.clone());
    let noted = seen.clone();
    fill(&scene.broker, "t", 0, 0..40);
    // One worker; each takes most of the time, so that the last waits for many times that.
    let _consumer = consumer(&scene)
        .threads(1)
        .start(move |delivery| {
            noted.note(number(delivery));
            moved.advance(9 * SECOND);
        })
        .unwrap();
    wait_for("commit of all", || committed(&scene.broker, "g", "t") == 40);
    seen.assert_each_once(0..40);
    let stats = scene.broker.stats();
    assert_eq!((stats.timed_out, stats.late, stats.failed), (0, 0, 0));
}

#[derive(Clone, Debug, Default)]
struct Told(Arc<Mutex<Vec<ReturnType>>>);

impl ConsumeHook for Told {
    fn after(&self, _: &Batch<'_>, consumed: &Consumed) {
        self.0.lock().unwrap().push(consumed.return_type);
    }
}

// (PQ-14, CONC-13)
#[test]
fn pq_14_conc_13_what_a_late_listener_returns_is_ignored_once_and_for_all() {
    for outcome in [Outcome::Success, Outcome::Failed("late".to_owned())] {
        let (scene, clock) = driven();
        let (seen, door, told) = (Seen::default(), Door::default(), Told::default());
        let (noted, inside) = (seen.clone(), door.clone());
        fill(&scene.broker, "t", 0, 0..8);
        let builder = consumer(&scene).threads(2).listener_batch(4).hook(told.clone());
        let consumer = builder
            .start_batch(move |batch: &Batch<'_>| {
                batch.iter().for_each(|delivery| noted.note(number(&delivery)));
                let first = batch.get(0).unwrap();
                if number(&first) == 4 && first.attempt() == 0 {
                    inside.pass();
                    return outcome.clone();
                }
                Outcome::Success
            })
            .unwrap();
        wait_for("a hanging listener", || door.waiting() == 1 && seen.len() == 8);
        wait_for("commit of the others", || committed(&scene.broker, "g", "t") == 4);
        clock.advance(10 * SECOND);
        wait_for("the whole batch", || timed_out(&scene) == 4);
        wait_for("failures", || scene.broker.stats().retries == 4);
        door.open();
        wait_for("the late return", || scene.broker.stats().late == 4);
        assert_eq!(told.0.lock().unwrap().last(), Some(&ReturnType::TimedOut));
        let stats = scene.broker.stats();
        assert_eq!((stats.failed, stats.timed_out), (4, 4), "not failed twice");
        consumer.shutdown();
    }
}

/// Listeners that take longer than they may, on a clock that nobody drives.
#[test]
fn nothing_is_lost_and_every_call_that_was_late_is_counted() {
    let levels = DelayLevels::parse("1s 1s 1s").unwrap();
    let scene = scene_with(|builder| builder.delay_levels(levels));
    scene.broker.create_topic("t", 3).unwrap();
    retry_at_once(&scene.broker, "g");
    let seen = Seen::default();
    let noted = seen.clone();
    let builder = consumer(&scene).consume_timeout(5 * MS).threads(4).listener_batch(3);
    let consumer = builder
        .start_batch(move |batch: &Batch<'_>| {
            batch.iter().for_each(|delivery| noted.note(number(&delivery)));
            let first = batch.get(0).unwrap();
            match (number(&first) % 20, first.attempt()) {
                (3, 0) => std::thread::sleep(15 * MS),
                (9, 0) => return Err("planted"),
                (11, 0) => panic!("planted"),
                _ => {}
            }
            Ok(())
        })
        .unwrap();
    send(&scene.broker.producer(), "t", 0..1000);
    let stats = || scene.broker.stats();
    wait_for("all", || stats().delivered == 1000 && stats().late == stats().timed_out);
    assert_eq!(committed(&scene.broker, "g", "t"), 1000);
    consumer.shutdown();
    assert!(stats().timed_out > 0 && stats().panicked > 0);
    // Whatever the machine is busy with: who was delivered again has failed before, and nobody else.
    let deliveries: u64 = (0..1000).map(|nth| u64::from(seen.count(nth))).sum();
    assert_eq!((seen.len(), deliveries), (1000, 1000 + stats().failed));
}

#[test]
fn a_timed_out_message_does_not_keep_its_queue_from_its_next_owner() {
    let (scene, clock) = driven();
    let door = Door::default();
    let inside = door.clone();
    send_to(&scene.broker, "t", 0, 0);
    let stuck = consumer(&scene).name("a").threads(2).start(move |_| inside.pass()).unwrap();
    wait_for("a hanging listener", || door.waiting() == 1);
    stuck.shutdown_within(Duration::ZERO).unwrap_err();
    assert_eq!(scene.broker.stats().draining, 1);
    // It is sent back, and nothing else is in flight.
    clock.advance(10 * SECOND);
    wait_for("the queue", || scene.broker.stats().draining == 0);
    assert_eq!((timed_out(&scene), scene.broker.stats().taken_over), (1, 0));
    door.open();
    wait_for("the late return", || scene.broker.stats().late == 1);
}

// (CONC-7)
#[test]
fn conc_7_what_another_owner_has_by_then_is_not_sent_back() {
    let (scene, clock) = driven();
    let (seen, door) = (Seen::default(), Door::default());
    let (noted, inside) = (seen.clone(), door.clone());
    send_to(&scene.broker, "t", 0, 0);
    let builder = consumer(&scene).name("a").threads(1).take_over_after(SECOND);
    let stuck = builder.start(move |_| inside.pass()).unwrap();
    wait_for("a hanging listener", || door.waiting() == 1);
    stuck.shutdown_within(Duration::ZERO).unwrap_err();
    clock.advance(SECOND);
    wait_for("the queue to be given away", || scene.broker.stats().taken_over == 1);
    let builder = consumer(&scene).name("b");
    let next = builder.start(move |delivery| noted.note(number(delivery))).unwrap();
    wait_for("its next owner", || committed(&scene.broker, "g", "t") == 1);
    // Long after its time is up, and after anything that would have been sent back is due.
    clock.advance(100 * SECOND);
    door.open();
    wait_for("the late return", || scene.broker.stats().late == 1);
    send_to(&scene.broker, "t", 0, 1);
    wait_for("the other message", || committed(&scene.broker, "g", "t") == 2);
    next.shutdown();
    seen.assert_each_once(0..2);
    let stats = scene.broker.stats();
    assert_eq!((stats.timed_out, stats.failed, stats.retries), (0, 0, 0));
}
