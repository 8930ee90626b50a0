//! Consuming in order: outcomes, pauses, commits, and who may work on a queue.

use crate::orderly_scene::*;
use crate::support::*;
use rocklet::{
    Delivery, DrivenClock, Error, Filter, Mode, OrderlyOutcome, Pause, PushConsumer, ResetTo,
};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

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
    let clock = DrivenClock::with_steps(1_700_000_000_000, 1);
    let scene = scene_with(|builder| builder.clock(&clock));
    scene.broker.create_topic("t", 1).unwrap();
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
        clock.advance(pause - MS);
        // The timer has nothing to do yet.
        assert_eq!(calls.len() as u64, attempts);
        clock.advance(MS);
        wait_for("the next attempt", || calls.len() as u64 > attempts);
    }
    wait_for("commit of all", || settled(&scene) == 2);
    assert_eq!(calls.all(), [(0, 0), (0, 1), (0, 2), (1, 0)]);
    assert_eq!((scene.broker.stats().failed, scene.broker.stats().delivered), (2, 2));
    assert!(consumer.last_failure().unwrap().contains("the listener suspended the queue"));
}

#[test]
fn b_104_a_queue_that_is_suspended_for_longer_than_the_pull_expiry_goes_on_by_itself() {
    let clock = DrivenClock::with_steps(1_700_000_000_000, 1);
    let scene = scene_with(|builder| builder.clock(&clock));
    scene.broker.create_topic("t", 1).unwrap();
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
    for nth in 1..=6 {
        wait_for("the suspension", || scene.broker.stats().suspended == nth);
        clock.advance(Duration::from_secs(30));
    }
    wait_for("commit of all", || settled(&scene) == 3);
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
fn b_165_a_queue_whose_listener_takes_long_is_not_read_until_it_returns() {
    let (scene, clock) = driven();
    fill(&scene.broker, "t", 0, 0..1);
    let (seen, door) = (Seen::default(), Door::default());
    let (noted, inside) = (seen.clone(), door.clone());
    let listener = move |delivery: &Delivery<'_>| {
        noted.note(number(delivery));
        if number(delivery) == 0 {
            inside.pass();
        }
    };
    let _consumer = builder(&scene.broker).start_orderly(listener).unwrap();
    wait_for("a listener inside", || door.waiting() == 1);
    let reads = || scene.broker.pull_stats("g").unwrap().found;
    let before = reads();
    for nth in 0..10 {
        fill(&scene.broker, "t", 0, 1 + nth * 100..101 + nth * 100);
        clock.advance(Duration::from_secs(3));
    }
    assert_eq!((reads(), scene.broker.stats().held, seen.len()), (before, 0, 1));
    door.open();
    // The time stands still.
    wait_for("commit of all", || settled(&scene) == 1001);
    seen.assert_each_once(0..1001);
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
            (nth, 0) if nth.is_multiple_of(20) => std::panic::panic_any(Bomb),
            (nth, 0) if nth.is_multiple_of(10) => panic!("planted"),
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

// (ORD-15, PQ-8)
#[test]
fn ord_15_with_manual_commit_successes_are_kept_until_a_commit_or_a_rollback() {
    let (scene, clock) = driven();
    fill(&scene.broker, "t", 0, 0..6);
    let calls = Calls::default();
    let noted = calls.clone();
    let consumer = builder(&scene.broker)
        .manual_commit()
        .pull_batch(2)
        .suspend_time(Duration::from_secs(20))
        .start_orderly(move |delivery: &Delivery<'_>| {
            let first = noted.0.lock().unwrap().iter().all(|call| call.0 != number(delivery));
            match noted.note(delivery) {
                (2, _) | (5, 1) => OrderlyOutcome::Commit,
                (4, _) if first => OrderlyOutcome::Rollback(Pause::because("a gap")),
                (5, 0) => OrderlyOutcome::Suspend(Pause::because("a lock")),
                _ => OrderlyOutcome::Success,
            }
        })
        .unwrap();
    wait_for("the rollback", || scene.broker.stats().suspended == 1);
    assert_eq!((calls.len(), settled(&scene)), (5, 3));
    assert!(consumer.last_failure().unwrap().ends_with("was rolled back: a gap"));
    wait_for_calls(&calls, 8, &clock);
    wait_for("the suspension", || scene.broker.stats().suspended == 2);
    assert_eq!((calls.len(), settled(&scene)), (8, 3));
    wait_for("commit of all", || {
        clock.advance(100 * MS);
        settled(&scene) == 6
    });
    let again = [(3, 0), (4, 0), (5, 0), (5, 1)];
    assert_eq!(calls.all(), [&[(0, 0), (1, 0), (2, 0), (3, 0), (4, 0)][..], &again].concat());
    let stats = scene.broker.stats();
    assert_eq!((stats.delivered, stats.failed), (7, 1), "a rollback is neither");
}

#[test]
fn ord_15_without_manual_commit_commit_and_rollback_are_successes() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    fill(&scene.broker, "t", 0, 0..20);
    let calls = Calls::default();
    let noted = calls.clone();
    let _consumer = builder(&scene.broker)
        .start_orderly(move |delivery: &Delivery<'_>| match noted.note(delivery).0 % 3 {
            0 => OrderlyOutcome::Commit,
            1 => OrderlyOutcome::Rollback(Pause::default()),
            _ => OrderlyOutcome::Success,
        })
        .unwrap();
    wait_for("commit of all", || settled(&scene) == 20);
    assert_eq!((calls.len(), scene.broker.stats().suspended), (20, 0));
}

// (ORD-15, ORD-12): nothing of what was not committed is lost, nor is it delivered twice at once.
#[test]
fn ord_15_what_was_kept_and_not_committed_comes_to_the_next_owner() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    fill(&scene.broker, "t", 0, 0..8);
    let start = |calls: &Calls, commit: u32| {
        let noted = calls.clone();
        let listener = move |delivery: &Delivery<'_>| match noted.note(delivery).0 {
            nth if nth == commit => OrderlyOutcome::Commit,
            _ => OrderlyOutcome::Success,
        };
        builder(&scene.broker).manual_commit().start_orderly(listener).unwrap()
    };
    let (first, second) = (Calls::default(), Calls::default());
    let consumer = start(&first, 2);
    wait_for("all", || first.len() == 8);
    consumer.shutdown();
    assert_eq!(settled(&scene), 3);
    let _consumer = start(&second, 7);
    wait_for("commit of all", || settled(&scene) == 8);
    assert_eq!(second.all(), (3..8).map(|nth| (nth, 0)).collect::<Vec<_>>());
}

#[test]
fn ord_22_in_order_there_is_no_span_to_exceed() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    fill(&scene.broker, "t", 0, 0..300);
    let builder = builder(&scene.broker).manual_commit().pull_batch(7);
    let _consumer = builder
        .max_span(1)
        .queue_messages(1)
        .flow_delay(DAY)
        .start_orderly(|delivery: &Delivery<'_>| match number(delivery) {
            299 => OrderlyOutcome::Commit,
            _ => OrderlyOutcome::Success,
        })
        .unwrap();
    wait_for("commit of all", || settled(&scene) == 300);
}

// (ORD-15): RocketMQ overwrites the offset with each commit; so it does here after a reset.
#[test]
fn ord_15_a_group_that_is_moved_back_commits_from_there_on() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    fill(&scene.broker, "t", 0, 0..50);
    let calls = Calls::default();
    let noted = calls.clone();
    let _consumer = builder(&scene.broker)
        .start_orderly(move |delivery: &Delivery<'_>| {
            noted.note(delivery);
        })
        .unwrap();
    wait_for("commit of all", || settled(&scene) == 50);
    scene.broker.reset_offsets("g", "t", ResetTo::First).unwrap();
    wait_for("all again", || calls.len() == 100 && settled(&scene) == 50);
    let numbers: Vec<u32> = calls.all().iter().map(|call| call.0).collect();
    assert_eq!(numbers, (0..50).chain(0..50).collect::<Vec<_>>());
}

#[test]
fn ord_10_a_run_that_takes_too_long_makes_way_for_other_queues() {
    let clock = DrivenClock::new(1_700_000_000_000);
    let scene = scene_with(|builder| builder.clock(&clock).lease_expiry(DAY));
    scene.broker.create_topic("t", 2).unwrap();
    fill(&scene.broker, "t", 0, 0..5);
    fill(&scene.broker, "t", 1, 100..105);
    let calls = Calls::default();
    let (noted, time) = (calls.clone(), clock.clone());
    let listener = move |delivery: &Delivery<'_>| {
        noted.note(delivery);
        // Not too long, and then longer.
        time.advance(Duration::from_secs(if number(delivery).is_multiple_of(100) {
            50
        } else {
            15
        }));
    };
    let builder = builder(&scene.broker).threads(1);
    let _consumer = builder.start_orderly(listener).unwrap();
    wait_for("commit of all", || {
        clock.advance(MS);
        settled(&scene) == 10
    });
    let numbers: Vec<u32> = calls.all().iter().map(|call| call.0).collect();
    let (ahead, behind) = (numbers[0], 100 - numbers[0]);
    assert_eq!(numbers[..3], [ahead, ahead + 1, behind], "{numbers:?}");
    let of = |queue: u32| numbers.iter().filter(|nth| *nth / 100 == queue).is_sorted();
    assert!(of(0) && of(1), "{numbers:?}");
}

// (ORD-19)
#[test]
fn ord_19_in_broadcasting_each_member_consumes_all_in_order_and_suspends_for_itself() {
    let scene = scene();
    scene.broker.create_topic("t", 2).unwrap();
    fill(&scene.broker, "t", 0, 0..40);
    fill(&scene.broker, "t", 1, 100..140);
    let start = |name: &str, suspends: bool| {
        let calls = Calls::default();
        let noted = calls.clone();
        let builder = builder(&scene.broker).mode(Mode::Broadcasting).name(name);
        let listener = move |delivery: &Delivery<'_>| match noted.note(delivery) {
            (5, 0..3) if suspends => Err("no"),
            _ => Ok(()),
        };
        (calls, builder.suspend_time(10 * MS).start_orderly(listener).unwrap())
    };
    let members = [start("a", true), start("b", false)];
    for (calls, member) in &members {
        let all = || scene.broker.committed_by("g", &member.name(), &q("t", 0)).unwrap();
        wait_for("commit of all", || all() == Some(40));
        wait_for("all", || calls.len() >= 80);
        for queue in [0, 1] {
            let all = calls.all();
            let mut of = all.iter().filter(|call| call.0 / 100 == queue);
            assert!(of.by_ref().is_sorted(), "{all:?}");
        }
    }
    assert_eq!(members.each_ref().map(|(calls, _)| calls.len()), [83, 80]);
    assert_eq!(scene.broker.stats().dropped, 0);
}

#[test]
fn members_of_a_group_consume_all_in_order_or_none() {
    let scene = scene();
    let refused = |started: rocklet::Result<PushConsumer>| match started.unwrap_err() {
        Error::Mismatch { what, .. } => what,
        other => panic!("{other}"),
    };
    let first = builder(&scene.broker).start_orderly(|_: &Delivery<'_>| ()).unwrap();
    assert_eq!(refused(builder(&scene.broker).start(|_| ())), "kind of consumer");
    let _second = builder(&scene.broker).start_orderly(|_: &Delivery<'_>| ()).unwrap();
    drop((first, _second));
    let _concurrent = builder(&scene.broker).start(|_| ()).unwrap();
    let again = builder(&scene.broker).start_orderly(|_: &Delivery<'_>| ());
    assert_eq!(refused(again), "kind of consumer");
}

// (ORD-9, ORD-17, ORD-20, REB-9)
#[test]
fn ord_17_a_queue_changes_hands_when_its_listener_has_returned_and_no_sooner() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    fill(&scene.broker, "t", 0, 0..10);
    let (calls, door) = (Calls::default(), Door::default());
    let start = |name: &str| {
        let (calls, door) = (calls.clone(), door.clone());
        let listener = move |delivery: &Delivery<'_>| {
            if calls.note(delivery).0 == 3 {
                door.pass();
            }
        };
        builder(&scene.broker).name(name).start_orderly(listener).unwrap()
    };
    // Averagely gives the only queue to the first name.
    let b = start("b");
    wait_for("a listener inside", || door.waiting() == 1);
    let a = start("a");
    assert_eq!((scene.broker.stats().draining, settled(&scene)), (1, 3));
    assert_eq!((a.assignment(), b.assignment()), (vec![], vec![q("t", 0)]));
    door.open();
    wait_for("commit of all", || settled(&scene) == 10);
    assert_eq!((a.assignment(), b.assignment()), (vec![q("t", 0)], vec![]));
    // What was not begun is left to the next owner, and nothing comes twice.
    assert_eq!(calls.all(), (0..10).map(|nth| (nth, 0)).collect::<Vec<_>>());
}

#[test]
fn ord_17_a_suspended_queue_changes_hands_at_once() {
    let (scene, _clock) = driven();
    fill(&scene.broker, "t", 0, 0..10);
    let builder = || builder(&scene.broker).suspend_time(Duration::from_secs(30));
    let b = builder().name("b").start_orderly(|_: &Delivery<'_>| Err("never")).unwrap();
    wait_for("the suspension", || scene.broker.stats().suspended == 1);
    let calls = Calls::default();
    let noted = calls.clone();
    let listener = move |delivery: &Delivery<'_>| {
        noted.note(delivery);
    };
    let _a = builder().name("a").start_orderly(listener).unwrap();
    // The time stands still.
    wait_for("commit of all", || settled(&scene) == 10);
    assert_eq!(calls.all(), (0..10).map(|nth| (nth, 0)).collect::<Vec<_>>());
    b.shutdown();
}

#[test]
fn a_suspended_queue_that_is_given_up_leaves_nothing_in_the_timer() {
    let (scene, _clock) = driven();
    fill(&scene.broker, "t", 0, 0..1);
    let used = Arc::new(());
    let user = used.clone();
    let filter = Filter::predicate(move |_| Arc::strong_count(&user) > 0);
    let builder = scene.broker.push_consumer("g").subscribe("t", filter).unwrap();
    let builder = builder.suspend_time(Duration::from_secs(30));
    let consumer = builder.start_orderly(|_: &Delivery<'_>| Err("never")).unwrap();
    wait_for("the suspension", || scene.broker.stats().suspended == 1);
    consumer.shutdown();
    // The time stands still.
    wait_for("the end of the predicate", || Arc::strong_count(&used) == 1);
}

#[test]
fn b_097_revoking_a_queue_a_hundred_times_leaves_no_loop_behind() {
    let scene = scene();
    scene.broker.create_topic("t", 3).unwrap();
    let calls = Calls::default();
    let start = |name: &str| {
        let noted = calls.clone();
        let listener = move |delivery: &Delivery<'_>| match noted.note(delivery) {
            (nth, 0) if nth.is_multiple_of(7) => Err("once"),
            _ => Ok(()),
        };
        let builder = builder(&scene.broker).name(name).suspend_time(10 * MS);
        builder.start_orderly(listener).unwrap()
    };
    let stays = start("loop");
    for round in 0..100 {
        send(&scene.broker.producer(), "t", round * 6..round * 6 + 6);
        drop(start("a"));
    }
    wait_for("commit of all", || settled(&scene) == 600);
    wait_for("waiting queues", || scene.broker.stats().held == 3);
    let called = calls.len();
    assert_eq!((threads("rocklet-loop-"), threads("rocklet-a-")), (2, 0));
    stays.pause().unwrap();
    stays.resume().unwrap();
    wait_for("waiting queues", || scene.broker.stats().held == 3);
    assert_eq!((calls.len(), scene.broker.stats().consumers), (called, 1));
}
