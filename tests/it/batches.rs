//! Listeners of batches, and what a listener is told of a message.

use crate::support::*;
use rocklet::{Batch, BatchOutcome, Delivery, DrivenClock, Mode, Outcome, ReturnType};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The numbers of the batches, in the order of the calls.
type Calls = Arc<Mutex<Vec<Vec<u32>>>>;

fn numbers_of(batch: &Batch<'_>) -> Vec<u32> {
    batch.iter().map(|delivery| number(&delivery)).collect()
}

// (CONC-1, CONC-3, CONC-11)
#[test]
fn conc_1_what_was_read_together_is_handed_out_in_batches_in_order() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    fill(&scene.broker, "t", 0, 0..100);
    let calls = Calls::default();
    let noted = calls.clone();
    let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
    let builder = builder.threads(1).pull_batch(20).listener_batch(8);
    let consumer = builder
        .start_batch(move |batch: &Batch<'_>| {
            assert_eq!((batch.len(), batch.iter().len()), (batch.into_iter().count(), batch.len()));
            assert_eq!(batch.get(0).map(|first| first.queue_id()), Some(batch.queue_id()));
            assert!(!batch.is_empty() && batch.get(batch.len()).is_none());
            noted.lock().unwrap().push(numbers_of(batch));
        })
        .unwrap();
    wait_for("commit of all", || committed(&scene.broker, "g", "t") == 100);
    consumer.shutdown();
    let calls = calls.lock().unwrap();
    let sizes: Vec<_> = calls.iter().map(Vec::len).collect();
    assert_eq!(sizes, [8, 8, 4].repeat(5));
    assert_eq!(calls.concat(), (0..100).collect::<Vec<_>>());
    assert_eq!(scene.broker.stats().delivered, 100);
}

#[test]
fn conc_1_a_listener_of_single_messages_gets_them_singly_whatever_the_batch() {
    let scene = scene();
    fill(&scene.broker, "t", 0, 0..50);
    let seen = Seen::default();
    let noted = seen.clone();
    let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
    let _consumer =
        builder.listener_batch(16).start(move |delivery| noted.note(number(delivery))).unwrap();
    wait_for("commit of all", || committed(&scene.broker, "g", "t") == 50);
    seen.assert_each_once(0..50);
}

#[test]
fn batches_of_a_run_are_consumed_by_all_workers_at_the_same_time() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    fill(&scene.broker, "t", 0, 0..32);
    let (seen, door) = (Seen::default(), Door::default());
    let (noted, inside) = (seen.clone(), door.clone());
    let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
    let _consumer = builder
        .threads(4)
        .listener_batch(8)
        .start_batch(move |batch: &Batch<'_>| {
            inside.pass();
            batch.iter().for_each(|delivery| noted.note(number(&delivery)));
        })
        .unwrap();
    wait_for("all workers", || door.waiting() == 4);
    door.open();
    wait_for("commit of all", || committed(&scene.broker, "g", "t") == 32);
    seen.assert_each_once(0..32);
}

// (CONC-2)
#[test]
fn conc_2_what_nobody_has_begun_of_a_revoked_queue_is_left_to_its_next_owner() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    fill(&scene.broker, "t", 0, 0..100);
    let (first, second, door) = (Seen::default(), Seen::default(), Door::default());
    let (noted, inside) = (first.clone(), door.clone());
    let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
    let builder = builder.threads(1).listener_batch(10);
    let listener = move |batch: &Batch<'_>| {
        inside.pass();
        batch.iter().for_each(|delivery| noted.note(number(&delivery)));
    };
    let leaving = builder.clone().start_batch(listener).unwrap();
    wait_for("a batch", || door.waiting() == 1);
    leaving.shutdown_within(Duration::ZERO).unwrap_err();
    door.open();
    let noted = second.clone();
    let next = move |batch: &Batch<'_>| {
        batch.iter().for_each(|delivery| noted.note(number(&delivery)));
    };
    let _next = builder.start_batch(next).unwrap();
    wait_for("commit of all", || committed(&scene.broker, "g", "t") == 100);
    first.assert_each_once(0..10);
    second.assert_each_once(10..100);
}

// (CONC-4, CONC-8, CONC-9)
#[test]
fn conc_8_what_is_acknowledged_is_done_with_and_the_rest_is_failed() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    fill(&scene.broker, "t", 0, 0..12);
    let calls = Calls::default();
    let noted = calls.clone();
    let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
    let builder = builder.threads(1).listener_batch(4).mode(Mode::Broadcasting).name("m");
    let consumer = builder
        .start_batch(move |batch: &Batch<'_>| {
            noted.lock().unwrap().push(numbers_of(batch));
            let failed = Outcome::Failed("planted".to_owned());
            match batch.get(0).map(|first| number(&first)) {
                Some(0) => BatchOutcome::acknowledge(3, failed),
                Some(4) => BatchOutcome::acknowledge(0, failed),
                _ => BatchOutcome::acknowledge(100, failed),
            }
        })
        .unwrap();
    let committed = || scene.broker.committed_by("g", "m", &q("t", 0)).unwrap();
    wait_for("commit of all", || committed() == Some(12));
    consumer.shutdown();
    // In broadcasting what has failed is dropped, so the counts are those of one attempt (CONC-9).
    let stats = scene.broker.stats();
    assert_eq!((stats.delivered, stats.failed, stats.dropped), (7, 5, 5));
    assert_eq!(calls.lock().unwrap().concat(), (0..12).collect::<Vec<_>>());
}

#[test]
fn conc_8_only_the_rest_of_a_batch_is_delivered_again() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    retry_at_once(&scene.broker, "g");
    fill(&scene.broker, "t", 0, 0..100);
    let seen = Seen::default();
    let noted = seen.clone();
    let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
    let builder = builder.threads(3).pull_batch(20).listener_batch(10);
    let consumer = builder
        .start_batch(move |batch: &Batch<'_>| {
            batch.iter().for_each(|delivery| noted.note(number(&delivery)));
            let again = batch.iter().all(|delivery| delivery.attempt() > 0);
            match batch.iter().next().map(|first| number(&first) / 10 % 3) {
                _ if again => BatchOutcome::from(Outcome::Success),
                Some(0) => BatchOutcome::acknowledge(7, Outcome::Failed("planted".to_owned())),
                Some(1) => panic!("planted"),
                _ => BatchOutcome::from(Outcome::Success),
            }
        })
        .unwrap();
    wait_for("all", || scene.broker.stats().delivered == 100);
    consumer.shutdown();
    for nth in 0..100 {
        let failed = match nth / 10 % 3 {
            0 => nth % 10 >= 7,
            1 => true,
            _ => false,
        };
        assert_eq!(seen.count(nth), 1 + u32::from(failed), "{nth}");
    }
    let stats = scene.broker.stats();
    assert_eq!((stats.delivered, stats.failed, stats.panicked), (100, 12 + 30, 30));
}

// (CONC-3, PULL-10)
#[test]
fn conc_3_pull_10_a_delivery_shows_the_ends_of_its_queue_and_when_the_listener_was_called() {
    let clock = DrivenClock::new(1_700_000_000_000);
    let scene = scene_with(|builder| builder.clock(&clock));
    scene.broker.create_topic("t", 1).unwrap();
    fill(&scene.broker, "t", 0, 0..3);
    let shown = Arc::new(Mutex::new(Vec::new()));
    let (noted, moved) = (shown.clone(), clock.clone());
    let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
    let _consumer = builder
        .threads(1)
        .start(move |delivery| {
            noted.lock().unwrap().push((delivery.stored_offsets(), delivery.consume_start_ms()));
            moved.advance(Duration::from_millis(7));
        })
        .unwrap();
    wait_for("commit of all", || committed(&scene.broker, "g", "t") == 3);
    let started = |nth: u64| Some(1_700_000_000_000 + 7 * nth);
    let expected: Vec<_> = (0..3).map(|nth| (Some(0..3), started(nth))).collect();
    assert_eq!(*shown.lock().unwrap(), expected);
    // Read by nobody's listener, and not read from a queue at all.
    let mut pull = scene.broker.pull_consumer("p").subscribe("t", "*").unwrap().start().unwrap();
    let found = pull.poll(Duration::ZERO).unwrap();
    let first = found.get(0).unwrap();
    assert_eq!((first.stored_offsets(), first.consume_start_ms()), (Some(0..3), None));
    assert_eq!(first.detach().delivery().stored_offsets(), Some(0..3));
    let alone = scene.broker.message(first.id()).unwrap().unwrap();
    assert_eq!(alone.delivery().stored_offsets(), None);
}

// (CONC-22)
#[test]
fn conc_22_a_message_consumed_directly_changes_nothing() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    let seen = Seen::default();
    let noted = seen.clone();
    let builder = scene.broker.push_consumer("g").subscribe("u", "*").unwrap();
    let consumer = builder
        .start(move |delivery: &Delivery<'_>| {
            noted.note(number(delivery));
            assert!(delivery.consume_start_ms().is_some());
            match number(delivery) {
                1 => Outcome::Failed("planted".to_owned()),
                2 => panic!("planted"),
                _ => Outcome::Success,
            }
        })
        .unwrap();
    fill(&scene.broker, "t", 0, 0..3);
    let mut pull = scene.broker.pull_consumer("p").subscribe("t", "*").unwrap().start().unwrap();
    let messages = pull.poll(SOON).unwrap();
    let told: Vec<_> = messages
        .iter()
        .map(|message| consumer.consume_directly(&message).unwrap())
        .map(|consumed| (consumed.return_type, consumed.acknowledged, consumed.reason))
        .collect();
    let expected = [
        (ReturnType::Success, 1, None),
        (ReturnType::Failed, 0, Some("planted".to_owned())),
        (ReturnType::Panicked, 0, Some("the listener panicked: planted".to_owned())),
    ];
    assert_eq!(told, expected);
    seen.assert_each_once(0..3);
    let stats = scene.broker.stats();
    assert_eq!((stats.delivered, stats.failed, stats.panicked), (0, 0, 0));
    assert_eq!(scene.broker.committed("g", &q("t", 0)).unwrap(), None);
    consumer.shutdown();
    let stopped = consumer.consume_directly(&messages.get(0).unwrap());
    assert!(matches!(stopped, Err(rocklet::Error::State { action: "consume", .. })));
}
