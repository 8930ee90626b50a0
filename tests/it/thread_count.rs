//! The number of threads of a push consumer, while it runs (CLI-13).

use crate::support::*;
use rocklet::{Error, PushConsumer};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

// (CLI-13, OPS-8)
#[test]
fn cli_13_the_number_of_threads_is_changed_and_read_while_it_runs() {
    let scene = scene();
    let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
    let consumer = builder.name("count").threads(3).build(|_: &rocklet::Delivery<'_>| ());
    assert_eq!(consumer.threads(), 3);
    assert!(matches!(consumer.set_threads(4), Err(Error::State { .. })), "it does not run");
    consumer.start().unwrap();
    let runs = |count| wait_for("threads", || threads("rocklet-count") == count);
    runs(3);
    consumer.set_threads(7).unwrap();
    runs(7);
    assert_eq!(consumer.add_threads(-5).unwrap(), 2);
    runs(2);
    assert_eq!((consumer.add_threads(1).unwrap(), consumer.threads()), (3, 3));
    runs(3);
    for wrong in [0, 1001] {
        match consumer.set_threads(wrong) {
            Err(Error::Setting { name: "threads", value, min: 1, max: 1000, .. }) => {
                assert_eq!(value, wrong as u64);
            }
            other => panic!("{wrong}: {other:?}"),
        }
    }
    assert!(consumer.add_threads(isize::MIN).is_err());
    assert!(consumer.add_threads(isize::MAX).is_err());
    assert_eq!(consumer.threads(), 3, "a refused change changes nothing");
    consumer.shutdown();
    assert_eq!(consumer.threads(), 0);
    // The system lists a thread for a moment after it was joined.
    runs(0);
    assert!(matches!(consumer.add_threads(1), Err(Error::State { .. })));
}

#[test]
fn cli_13_threads_come_and_go_without_a_message_lost_or_repeated() {
    let scene = scene();
    scene.broker.create_topic("t", 6).unwrap();
    let seen = Seen::default();
    let noted = seen.clone();
    let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
    let consumer = builder
        .name("storm")
        .threads(1)
        .start(move |delivery| {
            if number(delivery).is_multiple_of(16) {
                std::thread::sleep(Duration::from_micros(100));
            }
            noted.note(number(delivery));
        })
        .unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| send(&scene.broker.producer(), "t", 0..20_000));
        for round in 0..200_usize {
            consumer.set_threads(1 + round * 7 % 9).unwrap();
            if round.is_multiple_of(10) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        consumer.set_threads(4).unwrap();
    });
    wait_for("commit of all", || committed(&scene.broker, "g", "t") == 20_000);
    wait_for("four threads", || threads("rocklet-storm") == 4);
    consumer.shutdown();
    seen.assert_each_once(0..20_000);
    wait_for("no threads", || threads("rocklet-storm") == 0);
}

/// What the pool can do is what it says: as many are inside at once, and never more.
#[test]
fn b_114_a_changed_concurrency_is_reached_and_not_exceeded() {
    let scene = scene();
    scene.broker.create_topic("t", 2).unwrap();
    send(&scene.broker.producer(), "t", 0..1000);
    let (seen, door) = (Seen::default(), Door::default());
    let (noted, inside) = (seen.clone(), door.clone());
    let most = Arc::new(AtomicUsize::new(0));
    let highest = most.clone();
    let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
    let consumer = builder
        .threads(2)
        .start(move |delivery| {
            inside.pass();
            highest.fetch_max(inside.waiting(), Ordering::SeqCst);
            noted.note(number(delivery));
        })
        .unwrap();
    wait_for("two", || door.waiting() == 2);
    consumer.set_threads(5).unwrap();
    wait_for("five", || door.waiting() == 5);
    // Fewer, and then more again, before anybody could leave: it is the last word that counts.
    consumer.set_threads(1).unwrap();
    consumer.set_threads(6).unwrap();
    wait_for("six", || door.waiting() == 6);
    door.open();
    wait_for("commit of all", || committed(&scene.broker, "g", "t") == 1000);
    assert!(most.load(Ordering::SeqCst) <= 6);
    seen.assert_each_once(0..1000);
    assert_eq!(consumer.threads(), 6);
}

#[test]
fn a_listener_may_change_the_number_of_its_own_threads() {
    let scene = scene();
    send(&scene.broker.producer(), "t", 0..100);
    let own: Arc<std::sync::OnceLock<Arc<PushConsumer>>> = Arc::default();
    let inner = own.clone();
    let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
    let consumer = builder
        .name("own")
        .threads(2)
        .start(move |delivery| {
            if let Some(consumer) = inner.get() {
                consumer.set_threads(1 + number(delivery) as usize % 3).unwrap();
            }
        })
        .unwrap();
    let consumer = Arc::new(consumer);
    own.set(consumer.clone()).unwrap();
    send(&scene.broker.producer(), "t", 100..400);
    wait_for("commit of all", || committed(&scene.broker, "g", "t") == 400);
    consumer.shutdown();
    wait_for("no threads", || threads("rocklet-own") == 0);
}
