//! Listeners that are slow or stuck, and what they must not hold up.

use crate::support::*;
use rocklet::{Batch, Broker, Delivery, Message};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

#[test]
fn a_stuck_listener_holds_its_own_message_and_the_commit_of_its_queue() {
    let scene = scene();
    scene.broker.create_topic("t", 2).unwrap();
    for nth in 0..300 {
        send_to(&scene.broker, "t", (nth % 2) as u16, nth);
    }
    let (seen, door) = (Seen::default(), Door::default());
    let (noted, inside) = (seen.clone(), door.clone());
    let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
    let _consumer = builder
        .threads(2)
        .start(move |delivery| {
            if number(delivery) == 14 {
                inside.pass();
            }
            noted.note(number(delivery));
        })
        .unwrap();
    wait_for("all others", || seen.len() == 299 && door.waiting() == 1);
    let committed = |queue| scene.broker.committed("g", &q("t", queue)).unwrap();
    wait_for("commit of the other queue", || committed(1) == Some(150));
    wait_for("commit below the stuck one", || committed(0) == Some(7));
    door.open();
    wait_for("commit of all", || committed(0) == Some(150));
    seen.assert_each_once(0..300);
}

#[test]
fn b_107_delivery_runs_ahead_of_a_stuck_message_by_a_bounded_span() {
    let scene = scene();
    let broker = &scene.broker;
    broker.create_topic("t", 2).unwrap();
    for from in (0..10_000).step_by(100) {
        let batch: Vec<_> =
            (from..from + 100).map(|nth| Message::new("t", body(nth)).queue(0)).collect();
        broker.producer().send_batch(&batch).unwrap();
    }
    let (seen, door) = (Seen::default(), Door::default());
    let (noted, inside) = (seen.clone(), door.clone());
    let member = |broker: &Broker| broker.push_consumer("g").subscribe("t", "*").unwrap();
    let consumer = member(broker)
        .threads(2)
        .max_span(100)
        .start(move |delivery| {
            if number(delivery) == 10 {
                inside.pass();
            }
            noted.note(number(delivery));
        })
        .unwrap();
    // A read that begins at the limit goes one pull batch beyond it.
    let bound = 10 + 100 + 32;
    wait_for("the span", || seen.len() >= 110 && broker.stats().pulls.paused_for_span > 2);
    // The other queue goes on, and meanwhile nothing more of the first one comes.
    fill(broker, "t", 1, 20_000..20_100);
    wait_for("the other queue", || seen.has(20_099));
    wait_for("its commit", || broker.committed("g", &q("t", 1)).unwrap() == Some(100));
    assert!((bound..10_000).all(|nth| !seen.has(nth)));
    assert_eq!(broker.committed("g", &q("t", 0)).unwrap(), Some(10));

    // After a kill no more than that comes again.
    let copy = copy_of(scene.dir.path());
    let killed = small(copy.path()).open().unwrap();
    let again = Seen::default();
    let noted = again.clone();
    let second = member(&killed).start(move |delivery| noted.note(number(delivery))).unwrap();
    wait_for("commit of all", || committed(&killed, "g", "t") == 10_100);
    second.shutdown();
    again.assert_each_once(10..10_000);

    door.open();
    wait_for("commit of all", || committed(broker, "g", "t") == 10_100);
    consumer.shutdown();
    assert_eq!(seen.len(), 10_100);
}

#[test]
fn b_108_whatever_listeners_and_members_have_done_the_commit_comes_to_the_end() {
    let scene = scene();
    scene.broker.create_topic("t", 6).unwrap();
    retry_at_once(&scene.broker, "g");
    let (seen, healed) = (Seen::default(), Arc::new(AtomicBool::new(false)));
    let join = |threads: usize, batch: usize| {
        let (noted, healed) = (seen.clone(), healed.clone());
        let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
        let listener = move |batch: &Batch<'_>| {
            let of = |delivery: Delivery<'_>| number(&delivery) + 7 * delivery.attempt();
            let fate = batch.iter().map(of).sum::<u32>() % 11;
            match fate {
                _ if healed.load(Ordering::Acquire) => {}
                0 => panic!("planted"),
                1 => return Err("planted"),
                2 => std::thread::sleep(Duration::from_millis(1)),
                3 => std::panic::panic_any(Bomb),
                _ => {}
            }
            batch.iter().for_each(|delivery| noted.note(number(&delivery)));
            Ok(())
        };
        builder.threads(threads).listener_batch(batch).start_batch(listener).unwrap()
    };
    std::thread::scope(|scope| {
        scope.spawn(|| send(&scene.broker.producer(), "t", 0..6000));
        for nth in 0..3_usize {
            let join = &join;
            scope.spawn(move || {
                for round in 0..12 {
                    let member = join(1 + nth, 1 + (nth + round) % 5);
                    let moment = Duration::from_millis(((3 * nth + round) % 8) as u64);
                    std::thread::sleep(moment);
                    member.pause().unwrap();
                    member.set_threads(1 + round % 4).unwrap();
                    std::thread::sleep(moment / 2);
                    member.resume().unwrap();
                    std::thread::sleep(moment);
                }
            });
        }
    });
    healed.store(true, Ordering::Release);
    let last = join(3, 4);
    let at_end = |topic: &str| committed(&scene.broker, "g", topic) == stored(&scene.broker, topic);
    wait_for("commit of all", || at_end("t") && at_end("%RETRY%g") && seen.len() == 6000);
    // Nothing is left in flight, nor has anybody been dropped with it.
    wait_for("empty windows", || {
        let queues = last.running_info().unwrap().queues;
        queues.iter().all(|queue| (queue.messages, queue.bytes, queue.retrying) == (0, 0, 0))
    });
    let stats = scene.broker.stats();
    assert!(stats.retries > 0 && stats.panicked > 0, "the storm was a breeze: {stats:?}");
    assert_eq!((stats.dead_letters, stats.late), (0, 0));
    last.shutdown();
    // No failure was a redelivery of what had succeeded.
    seen.assert_each_once(0..6000);
}

#[test]
fn b_114_the_configured_concurrency_is_reached_and_never_exceeded() {
    let scene = scene();
    scene.broker.create_topic("t", 50).unwrap();
    send(&scene.broker.producer(), "t", 0..1000);
    let (inside, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (seen, most_seen) = (Seen::default(), most.clone());
    let start = |threads, seen: Seen| {
        let (inside, most) = (inside.clone(), most.clone());
        let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
        let listener = move |delivery: &Delivery<'_>| {
            most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_micros(200));
            seen.note(number(delivery));
            inside.fetch_sub(1, Ordering::SeqCst);
        };
        builder.threads(threads).start(listener).unwrap()
    };
    let consumer = start(2, seen.clone());
    wait_for("saturation", || seen.len() >= 300 && most_seen.load(Ordering::SeqCst) == 2);
    // Stopped in the middle: what was begun is finished and committed, nothing else is lost.
    returns("shutdown", move || consumer.shutdown());
    let done = seen.len();
    assert_eq!(committed(&scene.broker, "g", "t"), done as u64);
    let consumer = start(3, seen.clone());
    wait_for("commit of all", || committed(&scene.broker, "g", "t") == 1000);
    consumer.shutdown();
    seen.assert_each_once(0..1000);
    assert!(most_seen.load(Ordering::SeqCst) <= 3);
}

#[test]
fn shutdown_waits_for_running_listeners_and_commits_what_they_finish() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    send(&scene.broker.producer(), "t", 0..100);
    let (seen, door) = (Seen::default(), Door::default());
    let (noted, inside) = (seen.clone(), door.clone());
    let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
    let consumer = builder
        .threads(2)
        .start(move |delivery| {
            inside.pass();
            noted.note(number(delivery));
        })
        .unwrap();
    wait_for("two running listeners", || door.waiting() == 2);
    let stopping = std::thread::spawn(move || consumer.shutdown());
    wait_for("revoked queue", || scene.broker.stats().consumers == 0);
    assert!(!stopping.is_finished() && committed(&scene.broker, "g", "t") == 0);
    door.open();
    stopping.join().unwrap();
    assert_eq!(committed(&scene.broker, "g", "t"), seen.len() as u64);
    seen.assert_each_once(0..seen.len() as u32);
}

#[test]
fn a_pool_that_is_stuck_as_a_whole_goes_on_when_it_is_freed() {
    let scene = scene();
    scene.broker.create_topic("t", 8).unwrap();
    send(&scene.broker.producer(), "t", 0..400);
    let (seen, door) = (Seen::default(), Door::default());
    let (noted, inside) = (seen.clone(), door.clone());
    let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
    let _consumer = builder
        .threads(3)
        .start(move |delivery| {
            inside.pass();
            noted.note(number(delivery));
        })
        .unwrap();
    wait_for("three running listeners", || door.waiting() == 3);
    assert_eq!(seen.len(), 0);
    door.open();
    wait_for("commit of all", || committed(&scene.broker, "g", "t") == 400);
    seen.assert_each_once(0..400);
}
