//! Consuming in order: outcomes, pauses, commits, and who may work on a queue.

use crate::support::*;
use rocklet::{Broker, Delivery, DrivenClock, Filter, OrderlyOutcome, Pause, PushConsumerBuilder};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

/// What a listener was called with: numbers, in the order of the calls.
#[derive(Clone, Default)]
struct Calls(Arc<Mutex<Vec<(u32, u32)>>>);

impl Calls {
    fn note(&self, delivery: &Delivery<'_>) -> (u32, u32) {
        let call = (number(delivery), delivery.attempt());
        self.0.lock().unwrap().push(call);
        call
    }

    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    fn all(&self) -> Vec<(u32, u32)> {
        self.0.lock().unwrap().clone()
    }
}

fn driven() -> (Scene, DrivenClock) {
    let clock = DrivenClock::new(1_700_000_000_000);
    let scene = scene_with(|builder| builder.clock(&clock));
    scene.broker.create_topic("t", 1).unwrap();
    (scene, clock)
}

fn builder(broker: &Broker) -> PushConsumerBuilder {
    broker.push_consumer("g").subscribe("t", Filter::ALL).unwrap().threads(2)
}

fn settled(scene: &Scene) -> u64 {
    committed(&scene.broker, "g", "t")
}

/// Waits for `calls` calls, while the time passes.
#[track_caller]
fn wait_for_calls(calls: &Calls, count: usize, clock: &DrivenClock) {
    wait_for("calls", || {
        clock.advance(10 * MS);
        calls.len() >= count
    });
}

// (ORD-7, ORD-8)
#[test]
fn ord_7_one_queue_is_consumed_in_order_however_many_threads_there_are() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    fill(&scene.broker, "t", 0, 0..500);
    let (calls, inside) = (Calls::default(), AtomicU32::new(0));
    let noted = calls.clone();
    let listener = move |delivery: &Delivery<'_>| {
        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at once");
        noted.note(delivery);
        std::thread::yield_now();
        inside.fetch_sub(1, Ordering::SeqCst);
    };
    let consumer = builder(&scene.broker).threads(8).start_orderly(listener).unwrap();
    fill(&scene.broker, "t", 0, 500..1000);
    wait_for("commit of all", || settled(&scene) == 1000);
    assert_eq!(calls.all(), (0..1000).map(|nth| (nth, 0)).collect::<Vec<_>>());
    assert_eq!(scene.broker.stats().panicked, 0, "{:?}", consumer.last_failure());
}

#[test]
fn b_098_a_suspended_message_comes_before_the_next_one_over_a_restart_too() {
    let mut scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    fill(&scene.broker, "t", 0, 0..10);
    let start = |scene: &Scene, calls: &Calls, works: &Arc<AtomicBool>| {
        let (calls, works) = (calls.clone(), works.clone());
        let listener = move |delivery: &Delivery<'_>| {
            calls.note(delivery);
            if number(delivery) == 3 && !works.load(Ordering::SeqCst) { Err("no") } else { Ok(()) }
        };
        builder(&scene.broker).suspend_time(10 * MS).start_orderly(listener).unwrap()
    };
    let (calls, works) = (Calls::default(), Arc::new(AtomicBool::new(false)));
    let consumer = start(&scene, &calls, &works);
    wait_for("some attempts", || calls.len() > 8);
    assert_eq!(settled(&scene), 3);
    consumer.shutdown();
    assert!(calls.all().iter().skip(3).all(|(number, _)| *number == 3), "{:?}", calls.all());
    scene = scene.reopen();
    let calls = Calls::default();
    let _consumer = start(&scene, &calls, &works);
    wait_for("some attempts", || calls.len() > 3);
    assert_eq!((settled(&scene), calls.all()[0]), (3, (3, 0)), "counted anew (ORD-18)");
    works.store(true, Ordering::SeqCst);
    wait_for("commit of all", || settled(&scene) == 10);
    let numbers: Vec<u32> = calls.all().iter().map(|(number, _)| *number).collect();
    assert!(numbers.is_sorted() && numbers.ends_with(&[3, 4, 5, 6, 7, 8, 9]), "{numbers:?}");
}

// (ORD-13, ORD-15, ORD-18)
#[test]
fn ord_15_a_suspended_message_is_delivered_again_after_its_pause_and_counts_its_attempts() {
    let (scene, clock) = driven();
    fill(&scene.broker, "t", 0, 0..2);
    let calls = Calls::default();
    let noted = calls.clone();
    let consumer = builder(&scene.broker)
        .suspend_time(700 * MS)
        .start_orderly(move |delivery: &Delivery<'_>| match noted.note(delivery) {
            (0, 0) => OrderlyOutcome::Suspend(Pause::because("busy")),
            (0, 1) => OrderlyOutcome::Suspend(Pause::default().lasting(Duration::from_secs(99))),
            _ => OrderlyOutcome::Success,
        })
        .unwrap();
    for (attempts, pause) in [(1, 700 * MS), (2, Duration::from_secs(30))] {
        wait_for("the suspension", || scene.broker.stats().suspended == attempts);
        let begun = clock.wall_ms();
        wait_for_calls(&calls, attempts as usize + 1, &clock);
        assert!(clock.wall_ms() - begun >= pause.as_millis() as u64, "not before its time");
    }
    wait_for("commit of all", || settled(&scene) == 2);
    assert_eq!(calls.all(), [(0, 0), (0, 1), (0, 2), (1, 0)]);
    assert_eq!((scene.broker.stats().failed, scene.broker.stats().delivered), (2, 2));
    assert!(consumer.last_failure().unwrap().contains("the listener suspended the queue"));
}

#[test]
fn b_104_a_queue_that_is_suspended_for_longer_than_the_pull_expiry_goes_on_by_itself() {
    let (scene, clock) = driven();
    fill(&scene.broker, "t", 0, 0..3);
    let calls = Calls::default();
    let noted = calls.clone();
    let _consumer = builder(&scene.broker)
        .pull_expiry(Duration::from_secs(3))
        .suspend_time(Duration::from_secs(30))
        .start_orderly(move |delivery: &Delivery<'_>| match noted.note(delivery) {
            (0, 0..6) => Err("not yet"),
            _ => Ok(()),
        })
        .unwrap();
    wait_for("commit of all", || {
        clock.advance(100 * MS);
        settled(&scene) == 3
    });
    // Had the queue been begun anew, the attempts would have been counted anew.
    assert_eq!(scene.broker.stats().expired, 0);
    let attempts: Vec<_> = (0..7).map(|nth| (0, nth)).chain([(1, 0), (2, 0)]).collect();
    assert_eq!(calls.all(), attempts);
    let scene = scene.reopen();
    assert_eq!(settled(&scene), 3);
}

// (ORD-16): without a limit nothing is given up.
#[test]
fn b_106_suspending_writes_nothing() {
    let (scene, clock) = driven();
    fill(&scene.broker, "t", 0, 0..2);
    let (topics, end) = (scene.broker.topics(), scene.broker.stats().log_end);
    let calls = Calls::default();
    let noted = calls.clone();
    let listener = move |delivery: &Delivery<'_>| match noted.note(delivery) {
        (0, 0..100) => Err("no"),
        _ => Ok(()),
    };
    let _consumer = builder(&scene.broker).start_orderly(listener).unwrap();
    wait_for("commit of all", || {
        clock.advance(100 * MS);
        settled(&scene) == 2
    });
    assert_eq!(calls.len(), 102);
    assert_eq!((scene.broker.topics(), scene.broker.stats().log_end), (topics, end));
}

// (PULL-2): the pull request waits with the message.
#[test]
fn b_165_a_suspended_queue_is_not_looked_at_until_its_time_and_then_goes_on_at_once() {
    let (scene, clock) = driven();
    fill(&scene.broker, "t", 0, 0..1);
    let (calls, works) = (Calls::default(), Arc::new(AtomicBool::new(false)));
    let (noted, succeeds) = (calls.clone(), works.clone());
    let _consumer = builder(&scene.broker)
        .suspend_time(Duration::from_secs(30))
        .start_orderly(move |delivery: &Delivery<'_>| {
            noted.note(delivery);
            if succeeds.load(Ordering::SeqCst) { Ok(()) } else { Err("no") }
        })
        .unwrap();
    wait_for("the suspension", || scene.broker.stats().suspended == 1);
    fill(&scene.broker, "t", 0, 1..1001);
    clock.advance(Duration::from_secs(29));
    // Neither held, where every message would wake it, nor delivered again.
    assert_eq!((scene.broker.stats().held, calls.len()), (0, 1));
    works.store(true, Ordering::SeqCst);
    clock.advance(Duration::from_secs(1));
    // The time stands still from here on.
    wait_for("commit of all", || settled(&scene) == 1001);
    assert_eq!(calls.len(), 1002);
}

#[test]
fn b_113_a_panic_suspends_the_queue_and_nothing_else_suffers() {
    let scene = scene();
    scene.broker.create_topic("t", 3).unwrap();
    send(&scene.broker.producer(), "t", 0..300);
    let calls = Calls::default();
    let noted = calls.clone();
    let consumer = builder(&scene.broker)
        .name("pan")
        .suspend_time(10 * MS)
        .start_orderly(move |delivery: &Delivery<'_>| match noted.note(delivery) {
            (nth, 0) if nth % 20 == 0 => std::panic::panic_any(Bomb),
            (nth, 0) if nth % 10 == 0 => panic!("planted"),
            _ => (),
        })
        .unwrap();
    wait_for("commit of all", || settled(&scene) == 300);
    assert_eq!((calls.len(), scene.broker.stats().panicked), (330, 30));
    assert!(consumer.last_failure().unwrap().contains("panic"));
    assert_eq!(threads("rocklet-pan-"), 2, "the workers are still there");
    drop(consumer);
    assert_eq!(settled(&scene.reopen()), 300);
}
