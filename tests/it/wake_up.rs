//! Sleeping until a message arrives: nobody polls, and no wake-up is lost.

use crate::support::*;
use rocklet::Message;
use std::sync::Barrier;
use std::time::Duration;

#[test]
fn b_167_several_waiters_on_one_queue_are_all_woken() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    let seen = [Seen::default(), Seen::default()];
    let _consumers = [0, 1].map(|nth| {
        let noted = seen[nth].clone();
        let builder = scene.broker.push_consumer(&format!("g{nth}")).subscribe("t", "*").unwrap();
        builder.start(move |delivery| noted.note(number(delivery))).unwrap()
    });
    // It waits on two queues at once.
    scene.broker.create_topic("idle", 1).unwrap();
    let builder = scene.broker.pull_consumer("p").subscribe("t", "*").unwrap();
    let mut pull = builder.subscribe("idle", "*").unwrap().start().unwrap();
    for round in (0..400).step_by(2) {
        let start = Barrier::new(2);
        let (scene, start) = (&scene, &start);
        std::thread::scope(|scope| {
            let polling = scope.spawn(|| {
                let mut found = Vec::new();
                while found.len() < 2 {
                    found.extend(numbers(&pull.poll(SOON).unwrap()));
                }
                found
            });
            if round % 4 == 0 {
                wait_for("three waiters", || scene.broker.stats().held == 4);
            }
            // Two that arrive together.
            if round % 8 == 0 {
                let batch = [Message::new("t", body(round)), Message::new("t", body(round + 1))];
                scene.broker.producer().send_batch(&batch).unwrap();
            } else {
                scope.spawn(move || {
                    start.wait();
                    send_to(&scene.broker, "t", 0, round);
                });
                start.wait();
                send_to(&scene.broker, "t", 0, round + 1);
            }
            let mut found = polling.join().unwrap();
            found.sort_unstable();
            assert_eq!(found, [round, round + 1]);
        });
        wait_for("both groups", || seen.iter().all(|seen| seen.len() == round as usize + 2));
    }
    seen.iter().for_each(|seen| seen.assert_each_once(0..400));
}

#[test]
fn b_167_a_poll_that_times_out_as_it_is_woken_loses_nothing() {
    let scene = scene();
    scene.broker.create_topic("t", 2).unwrap();
    let mut pull = scene.broker.pull_consumer("g").subscribe("t", "*").unwrap().start().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for nth in 0..3000 {
                send_to(&scene.broker, "t", (nth % 2) as u16, nth);
                if nth % 7 == 0 {
                    std::thread::sleep(Duration::from_micros(50));
                }
            }
        });
        let seen = Seen::default();
        let start = std::time::Instant::now();
        while seen.len() < 3000 {
            assert!(start.elapsed() < SOON, "{} arrived", seen.len());
            let timeout = Duration::from_micros(seen.len() as u64 % 120);
            numbers(&pull.poll(timeout).unwrap()).into_iter().for_each(|nth| seen.note(nth));
        }
        seen.assert_each_once(0..3000);
    });
    assert_eq!(scene.broker.stats().held, 0, "no waiter is left behind");
}

#[test]
fn hold_7_messages_that_arrive_while_a_queue_is_being_parked_are_found() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    let seen = Seen::default();
    let noted = seen.clone();
    let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
    let _consumer = builder.start(move |delivery| noted.note(number(delivery))).unwrap();
    for nth in 0..3000 {
        send_to(&scene.broker, "t", 0, nth);
        // Each is sent as the consumer of the one before goes to sleep.
        wait_for("the message", || seen.has(nth));
    }
    wait_for("a parked consumer", || scene.broker.stats().held == 1);
}

#[test]
fn hold_4_a_parked_consumer_is_woken_by_what_passes_its_filter_alone() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    let seen = Seen::default();
    let noted = seen.clone();
    let builder = scene.broker.push_consumer("g").subscribe("t", "wanted").unwrap();
    let _consumer = builder.start(move |delivery| noted.note(number(delivery))).unwrap();
    for round in 0..200 {
        wait_for("a parked consumer", || scene.broker.stats().held == 1);
        send_tagged(&scene.broker, "t", "other", 9999);
        assert_eq!(scene.broker.stats().held, 1);
        send_tagged(&scene.broker, "t", "wanted", round);
        wait_for("the message", || seen.has(round));
    }
    seen.assert_each_once(0..200);
}

#[test]
fn hold_8_a_stopped_consumer_waits_for_nothing() {
    let scene = scene();
    scene.broker.create_topic("t", 16).unwrap();
    for _ in 0..20 {
        let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
        let consumer = builder.start(|_| ()).unwrap();
        wait_for("a waiter a queue", || scene.broker.stats().held == 16);
        consumer.shutdown();
        assert_eq!(scene.broker.stats().held, 0);
    }
}

#[test]
fn a_poll_that_sleeps_is_woken_by_an_assignment() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    send_to(&scene.broker, "t", 0, 7);
    let builder = || scene.broker.pull_consumer("g").subscribe("t", "*").unwrap();
    let owner = builder().name("a").start().unwrap();
    let mut idle = builder().name("b").start().unwrap();
    let polling = std::thread::spawn(move || numbers(&idle.poll(SOON).unwrap()));
    owner.close();
    assert_eq!(polling.join().unwrap(), [7]);
}

#[test]
fn a_poll_waits_for_a_topic_that_is_yet_to_be_made() {
    let scene = scene();
    let mut pull = scene.broker.pull_consumer("g").subscribe("t", "*").unwrap().start().unwrap();
    let polling = std::thread::spawn(move || numbers(&pull.poll(SOON).unwrap()));
    send(&scene.broker.producer(), "t", 7..8);
    assert_eq!(polling.join().unwrap(), [7]);
}

/// An append is made under one lock, so no place of the log is given away before it is written: that
/// a producer stalls is that the others wait. The model `roll` has the roll in every interleaving.
#[test]
fn b_168_readers_pass_over_nothing_while_producers_race_over_the_ends_of_files() {
    const PRODUCERS: u32 = 4;
    const EACH: u32 = 30;
    let scene = scene();
    let broker = &scene.broker;
    broker.create_topic("t", 2).unwrap();
    let start = |group: &str| broker.pull_consumer(group).subscribe("t", "*").unwrap().start();
    let read_all = |group: &str| {
        let mut pull = start(group).unwrap();
        let (mut next, mut seen) = ([0; 2], Seen::default());
        let begun = std::time::Instant::now();
        while seen.len() < (PRODUCERS * EACH) as usize {
            assert!(begun.elapsed() < SOON, "{} arrived", seen.len());
            for delivery in &pull.poll(SHORT).unwrap() {
                let next = &mut next[usize::from(delivery.queue_id().queue())];
                assert_eq!(delivery.offset(), *next, "passed over a message");
                *next += 1;
                seen.note(u32::from_le_bytes(delivery.body()[..4].try_into().unwrap()));
            }
        }
        std::mem::take(&mut seen).assert_each_once(0..PRODUCERS * EACH);
    };
    std::thread::scope(|scope| {
        for producer in 0..PRODUCERS {
            scope.spawn(move || {
                for nth in producer * EACH..(producer + 1) * EACH {
                    // From a few bytes to most of a file of 1 MiB.
                    let mut large = body(nth);
                    large.resize(4 + (nth as usize * 7919 % 800) * 1024, 0);
                    broker.producer().send(&Message::new("t", large)).unwrap();
                }
            });
        }
        scope.spawn(|| read_all("live"));
    });
    assert!(broker.stats().log_end > 20 << 20, "many files were filled");
    read_all("fresh");
}
