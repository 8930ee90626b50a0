//! Queues that change hands: never two owners, nothing twice, nothing lost.

use crate::support::*;
use rocklet::{Delivery, Message, PushConsumer};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Sees every listener from outside: whose it is, and in which queue.
#[derive(Clone, Default)]
struct Observer {
    inside: Arc<Mutex<BTreeMap<u16, (usize, u32)>>>,
    violations: Arc<Mutex<Vec<String>>>,
    seen: Seen,
}

impl Observer {
    fn enter(&self, member: usize, delivery: &Delivery<'_>) {
        let mut inside = self.inside.lock().unwrap();
        let (owner, count) = inside.entry(delivery.queue()).or_insert((member, 0));
        if *owner != member && *count > 0 {
            let text = format!("queue {} of {owner} and of {member}", delivery.queue());
            self.violations.lock().unwrap().push(text);
        }
        *owner = member;
        *count += 1;
        drop(inside);
        self.seen.note(number(delivery));
    }

    fn leave(&self, delivery: &Delivery<'_>) {
        self.inside.lock().unwrap().get_mut(&delivery.queue()).unwrap().1 -= 1;
    }

    #[track_caller]
    fn assert_sound(&self, messages: u32) {
        let violations = self.violations.lock().unwrap();
        assert!(violations.is_empty(), "two owners at once: {violations:?}");
        self.seen.assert_each_once(0..messages);
    }
}

/// A member whose listener takes a little time, differently for every message.
fn member(scene: &Scene, observer: &Observer, number: usize, threads: usize) -> PushConsumer {
    let observer = observer.clone();
    let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
    let builder = builder.threads(threads).pull_batch(1 + number % 40);
    builder
        .start(move |delivery| {
            observer.enter(number, delivery);
            if delivery.offset() % 16 == 0 {
                std::thread::sleep(Duration::from_micros(delivery.offset() % 400));
            }
            observer.leave(delivery);
        })
        .unwrap()
}

#[test]
fn reb_16_a_rebalance_storm_delivers_everything_once_and_no_queue_has_two_owners() {
    let scene = scene();
    scene.broker.create_topic("t", 7).unwrap();
    let observer = Observer::default();
    let (sent, stop) = (AtomicU32::new(0), AtomicBool::new(false));
    let (scene, observer, sent, stop) = (&scene, &observer, &sent, &stop);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while !stop.load(Ordering::Acquire) && sent.load(Ordering::Relaxed) < 200_000 {
                let from = sent.load(Ordering::Relaxed);
                send(&scene.broker.producer(), "t", from..from + 20);
                sent.store(from + 20, Ordering::Relaxed);
                std::thread::sleep(Duration::from_micros(500));
            }
        });
        for thread in 0..4 {
            scope.spawn(move || {
                let mut round = 0;
                while begun.elapsed() < Duration::from_millis(2500) {
                    let first = member(scene, observer, thread + 10 * round, 1 + round % 3);
                    std::thread::sleep(Duration::from_micros(300 * (round as u64 % 7)));
                    let second = member(scene, observer, thread + 10 * round + 5, 2);
                    std::thread::sleep(Duration::from_millis(round as u64 % 3));
                    if round % 2 == 0 {
                        drop((first, second))
                    } else {
                        drop((second, first))
                    }
                    round += 1;
                }
                stop.store(true, Ordering::Release);
                assert!(round > 5, "the storm was a breeze");
            });
        }
    });
    let sent = sent.load(Ordering::Relaxed);
    let last = member(scene, observer, 1_000_000, 2);
    wait_for("commit of all", || committed(&scene.broker, "g", "t") == u64::from(sent));
    last.shutdown();
    observer.assert_sound(sent);
}

#[test]
fn reb_16_a_storm_of_pull_consumers_delivers_everything_once() {
    let scene = scene();
    scene.broker.create_topic("t", 5).unwrap();
    send(&scene.broker.producer(), "t", 0..20_000);
    let seen = Seen::default();
    std::thread::scope(|scope| {
        for thread in 0..4_u32 {
            let (scene, seen) = (&scene, seen.clone());
            scope.spawn(move || {
                for round in 0..40 {
                    let builder = scene.broker.pull_consumer("g").subscribe("t", "*").unwrap();
                    let mut pull =
                        builder.batch(1 + (thread * round) as usize % 50).start().unwrap();
                    for _ in 0..5 {
                        let found = pull.poll(Duration::from_micros(200)).unwrap();
                        numbers(&found).into_iter().for_each(|nth| seen.note(nth));
                        pull.commit().unwrap();
                    }
                }
            });
        }
    });
    let mut pull = scene.broker.pull_consumer("g").subscribe("t", "*").unwrap().start().unwrap();
    while committed(&scene.broker, "g", "t") < 20_000 {
        numbers(&pull.poll(SOON).unwrap()).into_iter().for_each(|nth| seen.note(nth));
        pull.commit().unwrap();
    }
    seen.assert_each_once(0..20_000);
}

#[test]
fn a_queue_waits_for_the_listener_that_is_inside_and_start_waits_for_nobody() {
    let scene = scene();
    scene.broker.create_topic("t", 2).unwrap();
    fill(&scene.broker, "t", 1, 0..20);
    let (seen, door) = (Seen::default(), Door::default());
    let start = |name: &str| {
        let (seen, door) = (seen.clone(), door.clone());
        let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap().name(name);
        let listener = move |delivery: &Delivery<'_>| {
            if number(delivery) == 3 {
                door.pass();
            }
            seen.note(number(delivery));
        };
        // One thread: nothing behind the stuck message is begun.
        builder.threads(1).start(listener).unwrap()
    };
    let a = start("a");
    wait_for("a stuck listener", || door.waiting() == 1);
    let b = start("b");
    // It was revoked and has not drained: b has to wait, a still has it.
    assert_eq!((a.assignment(), b.assignment()), (vec![q("t", 0), q("t", 1)], vec![]));
    assert_eq!(scene.broker.committed("g", &q("t", 1)).unwrap(), Some(3));
    door.open();
    wait_for("the hand-over", || b.assignment() == [q("t", 1)]);
    wait_for("commit of all", || committed(&scene.broker, "g", "t") == 20);
    assert_eq!(a.assignment(), [q("t", 0)]);
    drop((a, b));
    seen.assert_each_once(0..20);
}

#[test]
fn a_stuck_member_does_not_keep_others_from_coming_and_going() {
    let scene = scene();
    scene.broker.create_topic("t", 4).unwrap();
    let door = Door::default();
    let inside = door.clone();
    let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap().name("a");
    let stuck = builder.start(move |_| inside.pass()).unwrap();
    send_to(&scene.broker, "t", 0, 0);
    wait_for("a stuck listener", || door.waiting() == 1);
    for round in 0..20 {
        let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
        let other = builder.name(format!("b{round}")).start(|_| ()).unwrap();
        assert_eq!(other.assignment().len(), 2);
        send_to(&scene.broker, "t", 3, round);
        wait_for("commit", || {
            scene.broker.committed("g", &q("t", 3)).unwrap() == Some(u64::from(round) + 1)
        });
        drop(other);
    }
    door.open();
    stuck.shutdown();
    assert_eq!(committed(&scene.broker, "g", "t"), 21);
}

#[test]
fn b_097_a_hundred_rebalances_leave_no_thread_and_no_waiter_behind() {
    let scene = scene();
    scene.broker.create_topic("t", 8).unwrap();
    let start = |name: String| {
        let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
        builder.name(name).threads(2).start(|_| ()).unwrap()
    };
    let staying = start("b97-stays".to_owned());
    for round in 0..100_u32 {
        let passing = start(format!("b97-{round}"));
        send(&scene.broker.producer(), "t", 0..3);
        // A queue on its way is nobody's for a moment.
        wait_for("all queues", || staying.assignment().len() + passing.assignment().len() == 8);
        if round % 3 == 0 { passing.shutdown() } else { drop(passing) }
    }
    wait_for("commit of all", || committed(&scene.broker, "g", "t") == 300);
    // The system lists a thread for a moment after it has been joined.
    wait_for("the end of their threads", || threads("rocklet-b97") == 2);
    assert_eq!(staying.assignment().len(), 8);
    wait_for("one waiter a queue", || scene.broker.stats().held == 8);
    staying.shutdown();
    assert_eq!(scene.broker.stats().held, 0);
    wait_for("the end of all threads", || threads("rocklet-b97") == 0);
}

#[test]
fn a_hand_over_with_failures_loses_nothing() {
    let scene = scene();
    scene.broker.create_topic("t", 3).unwrap();
    retry_at_once(&scene.broker, "g");
    send(&scene.broker.producer(), "t", 0..3000);
    let (seen, calls) = (Seen::default(), Arc::new(AtomicU32::new(0)));
    let start = || {
        let (seen, calls) = (seen.clone(), calls.clone());
        let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
        builder
            .start(move |delivery| {
                if calls.fetch_add(1, Ordering::Relaxed) % 7 == 0 {
                    return Err("planted");
                }
                seen.note(number(delivery));
                Ok(())
            })
            .unwrap()
    };
    let _staying = start();
    while committed(&scene.broker, "g", "t") < 3000 {
        let passing = start();
        std::thread::sleep(Duration::from_millis(2));
        drop(passing);
    }
    wait_for("all", || seen.len() == 3000);
}

#[test]
fn a_topic_that_is_made_during_a_storm_is_consumed() {
    let scene = scene();
    let seen = Seen::default();
    let start = || {
        let seen = seen.clone();
        let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
        builder.start(move |delivery| seen.note(number(delivery))).unwrap()
    };
    let staying = start();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..50 {
                drop(start());
            }
        });
        for nth in 0..200 {
            scene.broker.producer().send(&Message::new("t", body(nth))).unwrap();
        }
    });
    wait_for("commit of all", || committed(&scene.broker, "g", "t") == 200);
    staying.shutdown();
    seen.assert_each_once(0..200);
}

#[test]
fn progress_that_cannot_be_stored_is_handed_over_all_the_same() {
    let scene = scene();
    // As many queues as the first file of offsets has cells; no second one can be made.
    scene.broker.create_topic("a", 1023).unwrap();
    let seen = Seen::default();
    let start = |name: &str| {
        let noted = seen.clone();
        let builder = scene.broker.push_consumer("g").subscribe("a", "*").unwrap();
        let builder = builder.subscribe("t", "*").unwrap().name(name);
        builder.start(move |delivery: &Delivery<'_>| noted.note(number(delivery))).unwrap()
    };
    let (owner, other) = (start("m1"), start("m2"));
    let obstacle = scene.dir.path().join("meta/offsets-0001.new");
    std::fs::create_dir(&obstacle).unwrap();
    scene.broker.create_topic("t", 1).unwrap();
    fill(&scene.broker, "t", 0, 0..10);
    wait_for("delivery", || scene.broker.stats().delivered == 10);
    assert!(owner.assignment().contains(&q("t", 0)));
    wait_for("a failed commit", || scene.broker.stats().failed_commits > 0);
    wait_for("its reason", || owner.last_failure().is_some());
    assert!(owner.last_failure().unwrap().starts_with("progress of t/0: "));
    owner.shutdown();
    fill(&scene.broker, "t", 0, 10..20);
    wait_for("delivery", || scene.broker.stats().delivered >= 20);
    assert_eq!(scene.broker.committed("g", &q("t", 0)).unwrap(), None);
    // A group that is left by all of its members goes on there, too, and stores it when it can.
    other.shutdown();
    std::fs::remove_dir(&obstacle).unwrap();
    let third = start("m3");
    assert_eq!(scene.broker.committed("g", &q("t", 0)).unwrap(), Some(20));
    fill(&scene.broker, "t", 0, 20..21);
    wait_for("delivery", || scene.broker.stats().delivered >= 21);
    third.shutdown();
    seen.assert_each_once(0..21);
}
