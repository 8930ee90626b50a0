//! Push consumers: listeners, failures, retries.

use crate::support::*;
use rocklet::{Delivery, Filter, Listener, Message, Outcome, Permission};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[test]
fn every_message_is_consumed_once_and_committed() {
    let scene = scene();
    let producer = scene.broker.producer();
    send(&producer, "t", 0..5000);
    let seen = Seen::default();
    let noted = seen.clone();
    let builder = scene.broker.push_consumer("g").subscribe("t", Filter::ALL).unwrap();
    let consumer = builder.threads(4).start(move |delivery| noted.note(number(delivery))).unwrap();
    send(&producer, "t", 5000..10_000);
    wait_for("commit of all", || committed(&scene.broker, "g", "t") == 10_000);
    seen.assert_each_once(0..10_000);
    consumer.shutdown();
    assert_eq!(scene.broker.stats().delivered, 10_000);
}

#[test]
fn every_group_gets_every_message() {
    let scene = scene();
    let seen: Vec<Seen> = (0..3).map(|_| Seen::default()).collect();
    let consumers: Vec<_> = seen
        .iter()
        .enumerate()
        .map(|(nth, seen)| {
            let seen = seen.clone();
            let builder = scene.broker.push_consumer(&format!("g{nth}"));
            let builder = builder.subscribe("t", "*").unwrap().threads(1 + nth).pull_batch(1 + nth);
            builder.start(move |delivery| seen.note(number(delivery))).unwrap()
        })
        .collect();
    send(&scene.broker.producer(), "t", 0..1000);
    wait_for("all", || seen.iter().all(|seen| seen.len() == 1000));
    consumers.into_iter().for_each(|consumer| consumer.shutdown());
    seen.iter().for_each(|seen| seen.assert_each_once(0..1000));
}

/// The attempts of every message.
type Attempts = Arc<Mutex<BTreeMap<u32, Vec<u32>>>>;

#[test]
fn b_113_a_failed_message_and_a_panic_are_delivered_again() {
    let scene = scene();
    retry_at_once(&scene.broker, "g");
    send(&scene.broker.producer(), "t", 0..100);
    let attempts = Attempts::default();
    let noted = attempts.clone();
    let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
    let builder = builder.name("b113").threads(3);
    let consumer = builder
        .start(move |delivery| {
            let (nth, attempt) = (number(delivery), delivery.attempt());
            noted.lock().unwrap().entry(nth).or_default().push(attempt);
            match (nth % 10, attempt) {
                (0, 0) => panic!("planted"),
                (1, 0 | 1) => Outcome::Failed("planted".to_owned()),
                (2, 0 | 1) => std::panic::panic_any(Bomb),
                (3, 0) => Err::<(), _>(std::fmt::Error)
                    .map_or_else(|error| Outcome::Failed(error.to_string()), |()| Outcome::Success),
                _ => Outcome::Success,
            }
        })
        .unwrap();
    wait_for("all", || scene.broker.stats().delivered == 100);
    for (nth, attempts) in &*attempts.lock().unwrap() {
        let expected: &[u32] = match nth % 10 {
            0 | 3 => &[0, 1],
            1 | 2 => &[0, 1, 2],
            _ => &[0],
        };
        assert_eq!(attempts, expected, "{nth}");
    }
    wait_for("all workers", || threads("rocklet-b113") == 3);
    let stats = scene.broker.stats();
    assert_eq!((stats.delivered, stats.failed, stats.panicked, stats.retries), (100, 60, 30, 60));
    wait_for("commit of all retries", || committed(&scene.broker, "g", "%RETRY%g") == 60);
    assert_eq!(committed(&scene.broker, "g", "t"), 100);
    consumer.shutdown();
    // Common checks again after a reopen: nothing comes back.
    let scene = scene.reopen();
    let mut pull = scene.broker.pull_consumer("g").subscribe("t", "*").unwrap().start().unwrap();
    assert!(pull.poll(Duration::ZERO).unwrap().is_empty());
}

#[test]
fn a_result_tells_the_outcome() {
    let scene = scene();
    retry_at_once(&scene.broker, "g");
    send(&scene.broker.producer(), "t", 0..10);
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
    let _consumer = builder
        .start(move |delivery: &Delivery<'_>| {
            counted.fetch_add(1, Ordering::Relaxed);
            if delivery.attempt() == 0 { Err("not yet") } else { Ok(()) }
        })
        .unwrap();
    wait_for("all", || scene.broker.stats().delivered == 10);
    assert_eq!(calls.load(Ordering::Relaxed), 20);
}

#[test]
fn a_type_may_be_the_listener() {
    struct Counting(Seen);
    impl Listener for Counting {
        fn consume(&self, delivery: &Delivery<'_>) -> Outcome {
            self.0.note(number(delivery));
            Outcome::Success
        }
    }
    let scene = scene();
    send(&scene.broker.producer(), "t", 0..10);
    let seen = Seen::default();
    let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
    let _consumer = builder.start_listener(Counting(seen.clone())).unwrap();
    wait_for("all", || seen.len() == 10);
}

/// A message that cannot be sent back stays in flight (CONC-10).
#[test]
fn pq_5_conc_10_conc_11_what_cannot_be_sent_back_pins_the_commit_and_nothing_else() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    refuse_send_backs(&scene.broker, "g");
    send(&scene.broker.producer(), "t", 0..200);
    let attempts = Attempts::default();
    let noted = attempts.clone();
    let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
    let consumer = builder
        .local_retry_delay(Duration::from_millis(1))
        .start(move |delivery| {
            let (nth, attempt) = (number(delivery), delivery.attempt());
            noted.lock().unwrap().entry(nth).or_default().push(attempt);
            if nth == 50 { Err("planted") } else { Ok(()) }
        })
        .unwrap();
    wait_for("all others", || attempts.lock().unwrap().len() == 200);
    wait_for("commit up to the failing one", || committed(&scene.broker, "g", "t") == 50);
    wait_for("many attempts", || scene.broker.stats().failed_send_backs > 20);
    assert_eq!(committed(&scene.broker, "g", "t"), 50);
    let failure = consumer.last_failure().unwrap();
    assert!(failure.starts_with("t/0 at 50"), "{failure}");
    forbid_dead_letters(&scene.broker, "g", Permission::ReadWrite);
    wait_for("commit of all", || committed(&scene.broker, "g", "t") == 200);
    // The first one was made before.
    assert_eq!(scene.broker.stats().dead_letters, 2);
    for (nth, attempts) in &*attempts.lock().unwrap() {
        let times = if *nth == 50 { attempts.len() as u32 } else { 1 };
        assert_eq!(*attempts, (0..times).collect::<Vec<_>>(), "{nth}: counted by each attempt");
    }
}

#[test]
fn a_listener_may_send_to_its_own_topic() {
    let scene = scene();
    send(&scene.broker.producer(), "t", 0..1);
    let seen = Seen::default();
    let (noted, producer) = (seen.clone(), scene.broker.producer());
    let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
    let _consumer = builder
        .start(move |delivery| {
            let nth = number(delivery);
            noted.note(nth);
            if nth < 500 {
                producer.send(&Message::new("t", body(nth + 1)))?;
            }
            Ok::<(), rocklet::Error>(())
        })
        .unwrap();
    wait_for("all", || seen.len() == 501);
    seen.assert_each_once(0..501);
}

#[test]
fn a_listener_goes_on_behind_what_retention_has_dropped() {
    let scene = scene_with(|builder| builder.segment_bytes(64 << 10));
    scene.broker.create_topic("t", 1).unwrap();
    let receipts: Vec<_> = (0..40)
        .map(|nth| {
            let message = Message::new("t", body(nth)).property("p", "v".repeat(8000));
            scene.broker.producer().send(&message).unwrap()
        })
        .collect();
    let builder = || scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
    // Where the group begins is stored.
    drop(scene.broker.pull_consumer("g").subscribe("t", "*").unwrap().start().unwrap());
    assert!(scene.broker.drop_before(receipts[30].position).unwrap() > 0);
    let min = scene.broker.min_offset(&q("t", 0)).unwrap();
    let seen = Seen::default();
    let noted = seen.clone();
    let _consumer = builder().start(move |delivery| noted.note(number(delivery))).unwrap();
    wait_for("commit of all", || committed(&scene.broker, "g", "t") == 40);
    assert_eq!(seen.len() as u64, 40 - min);
}

#[test]
fn a_waiting_retry_is_left_to_the_next_start() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    refuse_send_backs(&scene.broker, "g");
    send(&scene.broker.producer(), "t", 0..10);
    let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
    let consumer = builder
        .local_retry_delay(Duration::from_secs(86_400))
        .start(|delivery| if number(delivery) == 4 { Err("planted") } else { Ok(()) })
        .unwrap();
    wait_for("all others", || scene.broker.stats().delivered == 9);
    returns("shutdown", move || consumer.shutdown());
    assert_eq!(committed(&scene.broker, "g", "t"), 4);
    let seen = Seen::default();
    let noted = seen.clone();
    let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
    let _consumer = builder.start(move |delivery| noted.note(number(delivery))).unwrap();
    wait_for("commit of all", || committed(&scene.broker, "g", "t") == 10);
    assert!(seen.has(4) && !seen.has(3));
}

#[test]
fn a_stopped_consumer_leaves_no_message_in_the_timer() {
    let scene = scene_with(|builder| builder.segment_bytes(64 << 10));
    scene.broker.create_topic("t", 1).unwrap();
    refuse_send_backs(&scene.broker, "g");
    let message = Message::new("t", vec![7; 8000]);
    let producer = scene.broker.producer();
    let positions: Vec<u64> = (0..40).map(|_| producer.send(&message).unwrap().position).collect();
    let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
    let builder = builder.local_retry_delay(Duration::from_secs(86_400));
    let consumer = builder.start(|_| Err::<(), _>("planted")).unwrap();
    wait_for("failures", || scene.broker.stats().failed_send_backs == 40);
    consumer.shutdown();
    // A file that nobody holds is kept for another life when it is dropped.
    assert!(scene.broker.drop_before(positions[30]).unwrap() > 0);
    let files = std::fs::read_dir(scene.dir.path().join("commitlog")).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    assert!(names.into_iter().any(|name| name.starts_with("spare")));
}

#[test]
fn the_reason_of_the_last_failure_can_be_asked_for() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    retry_at_once(&scene.broker, "g");
    let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
    let consumer = builder
        .start(|delivery: &Delivery<'_>| match (number(delivery), delivery.attempt()) {
            (0, 0) => Err("no stock"),
            (1, 0) => panic!("planted"),
            _ => Ok(()),
        })
        .unwrap();
    assert_eq!(consumer.last_failure(), None);
    for (nth, reason) in
        [(0, "t/0 at 0: no stock"), (1, "t/0 at 1: the listener panicked: planted")]
    {
        send_to(&scene.broker, "t", 0, nth);
        wait_for("the second attempt", || scene.broker.stats().delivered > u64::from(nth));
        assert_eq!(consumer.last_failure().as_deref(), Some(reason));
    }
}

#[test]
fn pull_11_a_record_that_cannot_be_read_is_counted_and_told() {
    let scene = scene();
    let receipt = send_to(&scene.broker, "t", 0, 0);
    let mut log = std::fs::read_dir(scene.dir.path().join("commitlog")).unwrap();
    let log = log.find_map(|file| Some(file.unwrap().path()).filter(|p| p.ends_with(FIRST)));
    let log = std::fs::OpenOptions::new().write(true).open(log.unwrap()).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&log, &[0; 64], receipt.position).unwrap();
    let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
    let consumer = builder.start(|_: &Delivery<'_>| ()).unwrap();
    wait_for("a failed read", || scene.broker.stats().failed_reads > 0);
    let reason = consumer.last_failure().unwrap();
    assert!(reason.starts_with("t/0 from 0 on: ") && reason.contains("is damaged"), "{reason}");
    returns("close", move || scene.broker.close().unwrap());
}

const FIRST: &str = "00000000000000000000";
