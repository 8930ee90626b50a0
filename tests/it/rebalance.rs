//! Rebalancing: the periodic look, queues that nobody reads, and storms of members.

use crate::support::*;
use rocklet::{AssignStrategy, Assignment, DrivenClock, Error, LabelledQueue, Result};
use rocklet::{ByConfig, MachineRoom, PushConsumer, QueueId, Sticky};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Gives everything to the member with this number, or fails.
#[derive(Debug)]
struct Pointer(Arc<AtomicUsize>);

impl AssignStrategy for Pointer {
    fn name(&self) -> &str {
        "POINTER"
    }

    fn assign(
        &self,
        queues: &[LabelledQueue],
        members: &[String],
        _: &Assignment,
    ) -> Result<Assignment> {
        match members.get(self.0.load(Ordering::SeqCst)) {
            Some(member) => Ok([(member.clone(), queues.to_vec())].into()),
            None => Err(Error::Strategy { reason: "planted".to_owned() }),
        }
    }
}

#[test]
fn reb_1_groups_are_looked_at_now_and_then_and_sooner_after_a_failure() {
    let clock = DrivenClock::new(1_700_000_000_000);
    let scene = scene_with(|builder| builder.clock(&clock));
    scene.broker.create_topic("t", 2).unwrap();
    let pointer = Arc::new(AtomicUsize::new(0));
    let join = |name: &str| {
        let builder = scene.broker.pull_consumer("g").subscribe("t", "*").unwrap().name(name);
        builder.strategy(Pointer(pointer.clone())).start().unwrap()
    };
    let (a, b) = (join("a"), join("b"));
    // Nothing has happened but the time.
    for (chosen, has, has_not) in [(1, &b, &a), (0, &a, &b)] {
        pointer.store(chosen, Ordering::SeqCst);
        let before = clock.wall_ms();
        wait_for("the look", || {
            clock.advance(Duration::from_secs(1));
            has.assignment().len() == 2
        });
        assert!(has_not.assignment().is_empty());
        assert!(clock.wall_ms() - before <= 600_000, "looking is not for ever");
    }
    pointer.store(9, Ordering::SeqCst);
    let c = join("c");
    let failed = scene.broker.stats().failed_rebalances;
    assert!(failed >= 1 && c.assignment().is_empty());
    wait_for("the next try", || {
        clock.advance(Duration::from_secs(1));
        scene.broker.stats().failed_rebalances > failed
    });
    pointer.store(2, Ordering::SeqCst);
    wait_for("a try that succeeds", || {
        clock.advance(Duration::from_secs(1));
        c.assignment().len() == 2
    });
}

// (REB-7, PQ-11)
#[test]
fn reb_7_pq_11_queues_that_nobody_reads_are_begun_anew_and_repeat_nothing() {
    let clock = DrivenClock::new(1_700_000_000_000);
    let scene = scene_with(|builder| builder.clock(&clock));
    scene.broker.create_topic("t", 2).unwrap();
    let (seen, door) = (Seen::default(), Door::default());
    let (noted, inside) = (seen.clone(), door.clone());
    let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
    let _consumer = builder
        .threads(1)
        .start(move |delivery| {
            if number(delivery) == 3 {
                inside.pass();
            }
            noted.note(number(delivery));
        })
        .unwrap();
    // A queue that waits for messages counts as read.
    wait_for("waiting queues", || scene.broker.stats().held == 2);
    (0..100).for_each(|_| clock.advance(Duration::from_secs(10)));
    fill(&scene.broker, "t", 0, 0..20);
    wait_for("a stuck worker", || door.waiting() == 1);
    assert_eq!(scene.broker.stats().expired, 0);
    fill(&scene.broker, "t", 1, 20..40);
    wait_for("expiry of both", || {
        clock.advance(Duration::from_secs(10));
        scene.broker.stats().expired >= 2
    });
    door.open();
    wait_for("commit of all", || {
        clock.advance(Duration::from_millis(50));
        committed(&scene.broker, "g", "t") == 40
    });
    seen.assert_each_once(0..40);
}

/// What the hung listener returns in the end changes nothing: its message is not sent back, as it
/// is not its own any more (CONC-7, CONC-13).
#[test]
fn a_queue_waits_for_a_hung_listener_until_it_is_taken_over() {
    let clock = DrivenClock::new(1_700_000_000_000);
    let scene = scene_with(|builder| builder.clock(&clock));
    scene.broker.create_topic("t", 2).unwrap();
    let (seen, door) = (Seen::default(), Door::default());
    let start = |name: &str, hangs: bool| {
        let (noted, inside) = (seen.clone(), door.clone());
        let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap().name(name);
        let builder = builder.threads(2).take_over_after(Duration::from_secs(60));
        let listener = move |delivery: &rocklet::Delivery<'_>| {
            noted.note(number(delivery));
            if hangs && number(delivery) == 20 {
                inside.pass();
                return Err("too late");
            }
            Ok(())
        };
        builder.start(listener).unwrap()
    };
    let first = start("a", true);
    fill(&scene.broker, "t", 0, 0..10);
    fill(&scene.broker, "t", 1, 20..30);
    wait_for("all but what hangs", || door.waiting() == 1 && scene.broker.stats().delivered == 19);
    let second = start("b", false);
    assert_eq!((second.assignment().len(), scene.broker.stats().draining), (0, 1));
    (0..59).for_each(|_| clock.advance(Duration::from_secs(1)));
    fill(&scene.broker, "t", 0, 10..20);
    wait_for("the other queue", || committed(&scene.broker, "g", "t") == 20);
    assert!(second.assignment().is_empty(), "it waits");
    wait_for("the end of patience", || {
        clock.advance(Duration::from_secs(1));
        second.assignment() == [q("t", 1)]
    });
    wait_for("commit of all", || committed(&scene.broker, "g", "t") == 30);
    assert_eq!(first.assignment(), [q("t", 0)]);
    let stats = scene.broker.stats();
    assert_eq!((stats.draining, stats.taken_over, stats.late), (0, 1, 0));
    assert_eq!(first.last_failure().unwrap(), "t/1 was given away, though 0 is not finished");
    door.open();
    wait_for("the late end", || scene.broker.stats().late == 1);
    assert_eq!(committed(&scene.broker, "g", "t"), 30);
    assert_eq!((scene.broker.stats().failed, scene.broker.stats().retries), (0, 0));
    // Behind the hung one all of its queue was finished, and is delivered again with it.
    assert!((20..30).all(|nth| seen.count(nth) == 2) && (0..20).all(|nth| seen.count(nth) == 1));
}

/// Listeners fail, panic and hang while members come and go, so many times.
fn failing_storm(rounds: u32) {
    let scene = scene();
    scene.broker.create_topic("t", 8).unwrap();
    retry_at_once(&scene.broker, "g");
    let (seen, hung) = (Seen::default(), AtomicU32::new(0));
    let hung = Arc::new(hung);
    let join = |name: &str| {
        let (noted, hung) = (seen.clone(), hung.clone());
        let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap().name(name);
        let builder = builder.threads(1).take_over_after(Duration::from_millis(5));
        let builder = builder.max_span(1);
        let listener = move |delivery: &rocklet::Delivery<'_>| {
            let nth = number(delivery);
            noted.note(nth);
            match nth % 50 {
                7 if noted.count(nth) == 1 => panic!("planted"),
                19 if noted.count(nth) == 1 => return Err("planted"),
                31 if noted.count(nth) == 1 => {
                    hung.fetch_add(1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(15));
                }
                _ => {}
            }
            Ok(())
        };
        builder.start(listener).unwrap()
    };
    let messages = 130 * rounds;
    std::thread::scope(|scope| {
        scope.spawn(|| send(&scene.broker.producer(), "t", 0..messages));
        for nth in 0..4_u32 {
            let join = &join;
            scope.spawn(move || {
                for round in 0..rounds {
                    let member = join(&format!("m{nth}-{round}"));
                    std::thread::sleep(Duration::from_millis(u64::from(nth * 7 + round) % 30));
                    drop(member);
                }
            });
        }
    });
    let _last = join("last");
    let total = u64::from(messages);
    wait_for("commit of all", || committed(&scene.broker, "g", "t") == total);
    let retried = || scene.broker.stats().retries == committed(&scene.broker, "g", "%RETRY%g");
    wait_for("commit of all retries", retried);
    let stats = scene.broker.stats();
    assert!((0..messages).all(|nth| seen.has(nth)), "nothing is lost");
    let deliveries: u64 = (0..messages).map(|nth| u64::from(seen.count(nth))).sum();
    println!("{} taken over, {} late, {} failed", stats.taken_over, stats.late, stats.failed);
    // One worker, a span of one: of each queue that was taken over at most a run was in flight.
    let most = total + stats.failed + 32 * stats.taken_over;
    assert!((total..=most).contains(&deliveries), "{deliveries} deliveries, at most {most}");
    assert!(stats.late <= stats.taken_over);
    assert!(hung.load(Ordering::SeqCst) > 0 && stats.panicked > 0, "{stats:?}");
    assert!(rounds < 100 || stats.taken_over > 0, "{stats:?}");
    assert_eq!(scene.broker.group_progress("g").unwrap().lag(), 0);
}

#[test]
fn reb_16_a_storm_with_failures_loses_nothing_and_repeats_only_what_was_in_flight() {
    failing_storm(15);
}

#[test]
#[ignore = "takes 20 s: ci/storms.sh"]
fn long_storm_with_failures() {
    failing_storm(600);
}

#[test]
fn alloc_4_alloc_5_strategies_that_leave_queues_to_nobody() {
    let scene = scene_with(|builder| builder.label("room1@a"));
    scene.broker.create_topic("t", 4).unwrap();
    let builder = scene.broker.pull_consumer("config").subscribe("t", "*").unwrap();
    let table = [("a", [q("t", 1), q("t", 3)]), ("b", [q("t", 0), q("t", 9)])];
    let builder = builder.strategy(ByConfig::new(table));
    let (a, b) = (builder.clone().name("a").start().unwrap(), builder.name("b").start().unwrap());
    assert_eq!((a.assignment(), b.assignment()), (vec![q("t", 1), q("t", 3)], vec![q("t", 0)]));
    for (room, expected) in [("room1", 4), ("room2", 0)] {
        let builder = scene.broker.pull_consumer(room).subscribe("t", "*").unwrap();
        let member = builder.strategy(MachineRoom::new([room])).start().unwrap();
        assert_eq!(member.assignment().len(), expected);
    }
}

#[test]
fn a_sticky_group_moves_what_it_must_alone() {
    let scene = scene();
    scene.broker.create_topic("t", 12).unwrap();
    let join = |name: &str| {
        let builder = scene.broker.pull_consumer("g").subscribe("t", "*").unwrap().name(name);
        builder.strategy(Sticky).start().unwrap()
    };
    let (a, b, c) = (join("a"), join("b"), join("c"));
    let before = [a.assignment(), b.assignment()];
    drop(c);
    let after = [a.assignment(), b.assignment()];
    for (before, after) in before.iter().zip(&after) {
        assert!(before.len() == 4 && after.len() == 6);
        assert!(before.iter().all(|queue| after.contains(queue)));
    }
}

/// Watches who is inside of a listener with which queue.
#[derive(Default)]
struct Observer {
    inside: Mutex<BTreeMap<QueueId, String>>,
    order: Mutex<BTreeMap<QueueId, Vec<u64>>>,
    failures: Mutex<Vec<String>>,
}

impl Observer {
    fn enter(&self, member: &str, queue: &QueueId, offset: u64) {
        if let Some(other) = self.inside.lock().unwrap().insert(queue.clone(), member.to_owned()) {
            self.failures.lock().unwrap().push(format!("{queue}: {other} and {member}"));
        }
        self.order.lock().unwrap().entry(queue.clone()).or_default().push(offset);
    }

    fn leave(&self, queue: &QueueId) {
        self.inside.lock().unwrap().remove(queue);
    }
}

/// Eight members come and go at random under load, for some time. Each has one worker, so that the
/// order of deliveries within a queue is that of its offsets.
fn storm(time: Duration) {
    const QUEUES: u16 = 16;
    let scene = scene();
    scene.broker.create_topic("t", QUEUES).unwrap();
    let observer = Arc::<Observer>::default();
    let sent = AtomicU32::new(0);
    let over = AtomicBool::new(false);
    let start = Instant::now();
    let join = |name: &str| -> PushConsumer {
        let (observer, name) = (observer.clone(), name.to_owned());
        let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap().name(&*name);
        let listener = move |delivery: &rocklet::Delivery<'_>| {
            let queue = delivery.queue_id();
            observer.enter(&name, &queue, delivery.offset());
            let micros = u64::from(number(delivery)).wrapping_mul(2_654_435_761) % 5000;
            std::thread::sleep(Duration::from_micros(micros));
            observer.leave(&queue);
        };
        builder.threads(1).start(listener).unwrap()
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                let nth = sent.fetch_add(1, Ordering::SeqCst);
                send_to(&scene.broker, "t", (nth % u32::from(QUEUES)) as u16, nth);
                std::thread::sleep(Duration::from_micros(500));
            }
        });
        let members = (0..8_u64).map(|nth| {
            let join = &join;
            scope.spawn(move || {
                let mut random = nth + 1;
                let mut rounds = 0;
                while start.elapsed() < time {
                    // xorshift
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let member = join(&format!("m{nth}"));
                    std::thread::sleep(Duration::from_millis(random % 60));
                    if random % 2 == 0 {
                        member.shutdown()
                    } else {
                        drop(member)
                    }
                    std::thread::sleep(Duration::from_millis(random % 20));
                    rounds += 1;
                }
                rounds
            })
        });
        let members: Vec<_> = members.collect();
        let rounds: u32 = members.into_iter().map(|member| member.join().unwrap()).sum();
        over.store(true, Ordering::SeqCst);
        println!("{rounds} members joined and left");
        assert!(rounds > 16);
    });
    let _last = join("last");
    let sent = u64::from(sent.load(Ordering::SeqCst));
    wait_for("commit of all", || committed(&scene.broker, "g", "t") == sent);
    println!("{sent} messages");
    let failures = observer.failures.lock().unwrap();
    assert!(failures.is_empty(), "two owners: {failures:?}");
    for (queue, offsets) in &*observer.order.lock().unwrap() {
        let end = scene.broker.max_offset(queue).unwrap();
        assert_eq!(offsets, &(0..end).collect::<Vec<_>>(), "{queue}: once each, in order");
    }
}

#[test]
fn reb_16_a_storm_of_members_keeps_the_order_of_every_queue() {
    storm(Duration::from_secs(2));
}

#[test]
#[ignore = "takes 20 s: ci/storms.sh"]
fn long_storm() {
    storm(Duration::from_secs(20));
}
