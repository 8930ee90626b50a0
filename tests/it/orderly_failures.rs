//! Failing in order: limits, dead letters, batches, hooks, and direct calls.

use crate::orderly_scene::*;
use crate::support::*;
use rocklet::{
    Batch, Broker, ConsumeHook, Consumed, Delivery, DrivenClock, Filter, Mode, OrderlyOutcome,
    Pause, Permission, ReturnType,
};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Numbers and attempts, call by call.
#[derive(Clone, Default)]
struct Calls(Arc<Mutex<Vec<Call>>>);

type Call = Vec<(u32, u32)>;

impl Calls {
    fn note(&self, batch: &Batch<'_>) -> Call {
        let call: Vec<_> =
            batch.iter().map(|message| (number(&message), message.attempt())).collect();
        self.0.lock().unwrap().push(call.clone());
        call
    }

    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    fn all(&self) -> Vec<Call> {
        self.0.lock().unwrap().clone()
    }
}

#[track_caller]
fn wait_for_commit(scene: &Scene, clock: &DrivenClock, offset: u64) {
    wait_for("the commit", || {
        clock.advance(100 * MS);
        committed(&scene.broker, "g", "t") == offset
    });
}

/// Numbers, attempts and reasons of the dead letters.
fn dead(broker: &Broker) -> Vec<(u32, u32, String)> {
    let letters = broker.dead_letters("g").unwrap();
    let each = letters.iter().unwrap().map(|letter| {
        let letter = letter.unwrap();
        (number(&letter.delivery()), letter.attempts(), letter.reason().to_owned())
    });
    each.collect()
}

// (ORD-16)
#[test]
fn b_105_a_message_that_fails_too_often_is_a_dead_letter_once_and_the_next_one_follows() {
    let (scene, clock) = driven();
    fill(&scene.broker, "t", 0, 0..3);
    let calls = Calls::default();
    let noted = calls.clone();
    let _consumer = builder(&scene.broker)
        .orderly_retries(3)
        .start_orderly_listener(move |batch: &Batch<'_>| match noted.note(batch)[0].0 {
            1 => Err("poison"),
            _ => Ok(()),
        })
        .unwrap();
    wait_for_commit(&scene, &clock, 3);
    let expected = [(0, 0), (1, 0), (1, 1), (1, 2), (1, 3), (2, 0)];
    assert_eq!(calls.all().concat(), expected);
    assert_eq!(dead(&scene.broker), [(1, 4, "poison".to_owned())]);
    let stats = scene.broker.stats();
    assert_eq!((stats.dead_letters, stats.retries, stats.suspended), (1, 0, 3));
    let scene = scene.reopen();
    assert_eq!((dead(&scene.broker).len(), committed(&scene.broker, "g", "t")), (1, 3));
}

#[test]
fn ord_16_dead_letters_are_left_out_when_the_rest_of_their_batch_comes_again() {
    let (scene, clock) = driven();
    fill(&scene.broker, "t", 0, 0..2);
    let calls = Calls::default();
    let noted = calls.clone();
    let _consumer = builder(&scene.broker)
        .orderly_retries(1)
        .listener_batch(3)
        .start_orderly_listener(move |batch: &Batch<'_>| {
            noted.note(batch);
            OrderlyOutcome::Suspend(Pause::because("never"))
        })
        .unwrap();
    wait_for("the suspension", || scene.broker.stats().suspended == 1);
    fill(&scene.broker, "t", 0, 2..3);
    wait_for_commit(&scene, &clock, 3);
    let calls = calls.all();
    assert_eq!(calls, [vec![(0, 0), (1, 0)], vec![(0, 1), (1, 1), (2, 0)], vec![(2, 1)]]);
    let numbers: Vec<u32> = dead(&scene.broker).iter().map(|letter| letter.0).collect();
    assert_eq!(numbers, [0, 1, 2], "each once");
}

// (ORD-15): what is given up is kept until a commit, like what succeeds.
#[test]
fn ord_15_with_manual_commit_a_dead_letter_is_committed_with_the_others() {
    let (scene, clock) = driven();
    fill(&scene.broker, "t", 0, 0..3);
    let door = Door::default();
    let listener = |door: Door| {
        move |batch: &Batch<'_>| match number(&batch.get(0).unwrap()) {
            0 => OrderlyOutcome::Suspend(Pause::because("poison")),
            1 => OrderlyOutcome::Success,
            _ => {
                door.pass();
                OrderlyOutcome::Commit
            }
        }
    };
    let _consumer = builder(&scene.broker)
        .manual_commit()
        .orderly_retries(0)
        .start_orderly_listener(listener(door.clone()))
        .unwrap();
    wait_for("a listener inside", || door.waiting() == 1);
    assert_eq!((dead(&scene.broker).len(), committed(&scene.broker, "g", "t")), (1, 0));
    // A kill leaves the dead letter, and it is not delivered again, nor given up again.
    let copy = copy_of(scene.dir.path());
    let reopened = small(copy.path()).open().unwrap();
    let calls = Calls::default();
    let noted = calls.clone();
    let consumer = builder(&reopened)
        .start_orderly_listener(move |batch: &Batch<'_>| {
            noted.note(batch);
        })
        .unwrap();
    wait_for("commit of all", || committed(&reopened, "g", "t") == 3);
    assert_eq!((calls.all().concat(), dead(&reopened).len()), (vec![(1, 0), (2, 0)], 1));
    drop(consumer);
    door.open();
    wait_for_commit(&scene, &clock, 3);
    assert_eq!(scene.broker.stats().suspended, 0);
}

// (ORD-19, CONC-9)
#[test]
fn ord_16_in_broadcasting_what_is_given_up_is_dropped() {
    let (scene, clock) = driven();
    fill(&scene.broker, "t", 0, 0..3);
    let calls = Calls::default();
    let noted = calls.clone();
    let consumer = builder(&scene.broker)
        .mode(Mode::Broadcasting)
        .orderly_retries(2)
        .start_orderly_listener(move |batch: &Batch<'_>| match noted.note(batch)[0].0 {
            1 => Err("no"),
            _ => Ok(()),
        })
        .unwrap();
    wait_for("all", || {
        clock.advance(100 * MS);
        scene.broker.committed_by("g", &consumer.name(), &q("t", 0)).unwrap() == Some(3)
    });
    assert_eq!(calls.all().concat(), [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0)]);
    assert_eq!((scene.broker.stats().dropped, scene.broker.stats().dead_letters), (1, 0));
}

#[test]
fn a_dead_letter_that_is_driven_again_comes_to_the_group_in_order() {
    let (scene, clock) = driven();
    fill(&scene.broker, "t", 0, 0..2);
    let (calls, works) = (Calls::default(), Arc::new(AtomicBool::new(false)));
    let (noted, succeeds) = (calls.clone(), works.clone());
    let _consumer = builder(&scene.broker)
        .orderly_retries(0)
        .start_orderly_listener(move |batch: &Batch<'_>| {
            noted.note(batch);
            if succeeds.load(Ordering::SeqCst) { Ok(()) } else { Err("no") }
        })
        .unwrap();
    wait_for_commit(&scene, &clock, 2);
    works.store(true, Ordering::SeqCst);
    assert_eq!(scene.broker.dead_letters("g").unwrap().redrive_all().unwrap(), 2);
    wait_for("both again", || calls.len() == 4);
    let numbers: Vec<u32> = calls.all().concat().iter().map(|call| call.0).collect();
    assert_eq!(numbers, [0, 1, 0, 1]);
    assert_eq!(dead(&scene.broker), []);
}

#[test]
fn ord_10_batches_are_up_to_as_long_as_is_set_and_never_out_of_order() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    fill(&scene.broker, "t", 0, 0..103);
    let calls = Calls::default();
    let noted = calls.clone();
    let _consumer = builder(&scene.broker)
        .listener_batch(10)
        .pull_batch(25)
        .suspend_time(10 * MS)
        .start_orderly_listener(move |batch: &Batch<'_>| match noted.note(batch)[0] {
            (10, 0) => Err("all ten again"),
            _ => Ok(()),
        })
        .unwrap();
    wait_for("commit of all", || committed(&scene.broker, "g", "t") == 103);
    let mut calls = calls.all();
    assert!(calls.iter().all(|call| call.len() <= 10));
    assert_eq!(calls.remove(1), (10..20).map(|nth| (nth, 0)).collect::<Vec<_>>());
    let attempt = |nth| u32::from((10..20).contains(&nth));
    assert_eq!(calls.concat(), (0..103).map(|nth| (nth, attempt(nth))).collect::<Vec<_>>());
    // One message at a time is for closures that take one.
    assert!(calls.iter().any(|call| call.len() == 10));
}

/// Counts how often it is called.
#[derive(Clone, Debug, Default)]
struct Pairs(Arc<Mutex<Vec<(usize, ReturnType)>>>, Arc<AtomicU32>);

impl ConsumeHook for Pairs {
    fn before(&self, batch: &Batch<'_>) {
        self.1.fetch_add(batch.len() as u32, Ordering::SeqCst);
    }

    fn after(&self, batch: &Batch<'_>, consumed: &Consumed) {
        self.1.fetch_sub(batch.len() as u32, Ordering::SeqCst);
        self.0.lock().unwrap().push((consumed.acknowledged, consumed.return_type));
    }
}

// (ORD-10, ORD-14): also when the queue was given away meanwhile.
#[test]
fn ord_14_every_call_has_its_hooks_and_they_are_told_how_it_ended() {
    let clock = DrivenClock::with_steps(1_700_000_000_000, 3);
    let scene = scene_with(|builder| builder.clock(&clock));
    scene.broker.create_topic("t", 1).unwrap();
    fill(&scene.broker, "t", 0, 0..5);
    let (pairs, door, calls) = (Pairs::default(), Door::default(), Calls::default());
    let (noted, inside) = (calls.clone(), door.clone());
    let _consumer = builder(&scene.broker)
        .hook(pairs.clone())
        .manual_commit()
        .take_over_after(Duration::from_secs(1))
        .lease_renewal(DAY)
        .start_orderly_listener(move |batch: &Batch<'_>| {
            let count = noted.0.lock().unwrap().iter().flatten().count();
            match (noted.note(batch)[0].0, count) {
                (0, _) => OrderlyOutcome::Success,
                (1, 1) => OrderlyOutcome::Suspend(Pause::default()),
                (1, 2) => panic!("planted"),
                (1, 3) => OrderlyOutcome::Rollback(Pause::default()),
                (4, 8) => {
                    inside.pass();
                    OrderlyOutcome::Commit
                }
                _ => OrderlyOutcome::Commit,
            }
        })
        .unwrap();
    for nth in 1..=3 {
        wait_for("the suspension", || scene.broker.stats().suspended == nth);
        clock.advance(Duration::from_secs(1));
    }
    wait_for("a listener inside", || door.waiting() == 1);
    // Its lease expires, and the queue is taken over.
    clock.advance(Duration::from_secs(100));
    wait_for("commit by the next owner", || committed(&scene.broker, "g", "t") == 5);
    door.open();
    wait_for("the last hook", || pairs.1.load(Ordering::SeqCst) == 0);
    use ReturnType::{Failed, Panicked, Success};
    let told = pairs.0.lock().unwrap().clone();
    let expected = [(1, Success), (0, Failed), (0, Panicked), (0, Success), (1, Success)];
    assert_eq!(told[..5], expected, "{:?}", calls.all());
    assert_eq!((told.len(), calls.len(), scene.broker.stats().late), (10, 10, 1));
}

// (ORD-21)
#[test]
fn ord_21_a_direct_call_tells_the_outcome_and_does_nothing_else() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    let receipt = send_to(&scene.broker, "t", 0, 7);
    let message = scene.broker.message(receipt.id).unwrap().unwrap();
    let outcome = Arc::new(Mutex::new(OrderlyOutcome::Success));
    let answers = outcome.clone();
    let consumer = builder(&scene.broker)
        .manual_commit()
        .start_orderly(move |_: &Delivery<'_>| answers.lock().unwrap().clone())
        .unwrap();
    wait_for("the delivery", || scene.broker.stats().delivered == 1);
    let pause = || Pause::because("why");
    for (answer, expected) in [
        (OrderlyOutcome::Success, (ReturnType::Success, 1, None)),
        (OrderlyOutcome::Commit, (ReturnType::Success, 1, None)),
        (OrderlyOutcome::Rollback(pause()), (ReturnType::Success, 0, Some("why"))),
        (OrderlyOutcome::Suspend(pause()), (ReturnType::Failed, 0, Some("why"))),
    ] {
        *outcome.lock().unwrap() = answer;
        let told = consumer.consume_directly(&message.delivery()).unwrap();
        assert_eq!((told.return_type, told.acknowledged, told.reason.as_deref()), expected);
    }
    let stats = scene.broker.stats();
    assert_eq!((stats.delivered, stats.failed, committed(&scene.broker, "g", "t")), (1, 0, 0));
}

// (FILT-4)
#[test]
fn filt_4_what_was_suspended_is_not_filtered_again_unless_that_is_asked_for() {
    for again in [false, true] {
        let scene = scene();
        scene.broker.create_topic("t", 1).unwrap();
        fill(&scene.broker, "t", 0, 0..4);
        // Passes each message once.
        let looks = Seen::default();
        let looked = looks.clone();
        let filter = Filter::predicate(move |message| {
            looked.note(number(message));
            looked.count(number(message)) == 1
        });
        let calls = Calls::default();
        let noted = calls.clone();
        let builder = scene.broker.push_consumer("g").subscribe("t", filter).unwrap();
        let mut builder = builder.suspend_time(10 * MS).pull_batch(1);
        if again {
            builder = builder.filter_retries();
        }
        let listener = move |batch: &Batch<'_>| match noted.note(batch)[0] {
            (2, 0) => Err("once"),
            _ => Ok(()),
        };
        let _consumer = builder.start_orderly_listener(listener).unwrap();
        wait_for("commit of all", || committed(&scene.broker, "g", "t") == 4);
        let calls = calls.all().concat();
        assert_eq!(calls.contains(&(2, 1)), !again, "{calls:?}");
    }
}

// (ORD-16)
#[test]
fn ord_16_what_cannot_be_stored_as_a_dead_letter_stays_suspended_and_counts_on() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    refuse_send_backs(&scene.broker, "g");
    fill(&scene.broker, "t", 0, 0..2);
    let before = dead(&scene.broker).len();
    let calls = Calls::default();
    let noted = calls.clone();
    let consumer = builder(&scene.broker)
        .orderly_retries(0)
        .suspend_time(10 * MS)
        .start_orderly_listener(move |batch: &Batch<'_>| match noted.note(batch)[0].0 {
            0 => Err("poison"),
            _ => Ok(()),
        })
        .unwrap();
    wait_for("many attempts", || scene.broker.stats().failed_send_backs > 5);
    assert_eq!(committed(&scene.broker, "g", "t"), 0);
    assert!(consumer.last_failure().unwrap().contains("to be a dead letter"));
    forbid_dead_letters(&scene.broker, "g", Permission::ReadWrite);
    wait_for("commit of both", || committed(&scene.broker, "g", "t") == 2);
    let calls = calls.all().concat();
    let (last, attempts) = calls.split_last().unwrap();
    assert_eq!(*last, (1, 0));
    assert_eq!(attempts, (0..attempts.len() as u32).map(|nth| (0, nth)).collect::<Vec<_>>());
    assert_eq!(dead(&scene.broker).len(), before + 1);
}
