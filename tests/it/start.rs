//! Where a group begins, and where it goes on.

use crate::support::*;
use rocklet::{Broker, Start};
use std::time::{Duration, UNIX_EPOCH};

/// Starts a member that notes what it gets.
fn member(broker: &Broker, group: &str, start: Start) -> (rocklet::PushConsumer, Seen) {
    let seen = Seen::default();
    let noted = seen.clone();
    let builder = broker.push_consumer(group).subscribe("t", "*").unwrap().start_from(start);
    (builder.start(move |delivery| noted.note(number(delivery))).unwrap(), seen)
}

fn offsets(broker: &Broker, group: &str) -> Vec<Option<u64>> {
    let queues = broker.queues("t").unwrap();
    queues.iter().map(|queue| broker.committed(group, queue).unwrap()).collect()
}

// (REB-11, REB-15)
#[test]
fn reb_11_first_last_and_time() {
    let clock = rocklet::DrivenClock::new(1_000_000);
    let scene = scene_with(|builder| builder.clock(&clock));
    scene.broker.create_topic("t", 1).unwrap();
    for nth in 0..10 {
        assert_eq!(send_to(&scene.broker, "t", 0, nth).store_ms, 1_000_000 + u64::from(nth) * 10);
        clock.advance(Duration::from_millis(10));
    }
    let at = |ms| Start::Time(UNIX_EPOCH + Duration::from_millis(ms));
    let cases = [
        (Start::First, 0),
        (Start::Last, 10),
        (at(0), 0),
        (at(1_000_000), 0),
        (at(1_000_001), 1),
        (at(1_000_050), 5),
        (at(1_000_090), 9),
        (at(1_000_091), 10),
        (at(1 << 42), 10),
    ];
    for (nth, (start, expected)) in cases.into_iter().enumerate() {
        let group = format!("g{nth}");
        let (consumer, _) = member(&scene.broker, &group, start);
        drop(consumer);
        // Whatever a later member says: the group has begun.
        let pull = scene.broker.pull_consumer(&format!("p{nth}")).subscribe("t", "*").unwrap();
        let mut pull = pull.start_from(start).start().unwrap();
        assert_eq!(offsets(&scene.broker, &format!("p{nth}")), [Some(expected)], "{start:?}");
        let found = numbers(&pull.poll(Duration::ZERO).unwrap());
        assert_eq!(found, (expected as u32..10).collect::<Vec<_>>());
    }
}

#[test]
fn reb_12_the_end_of_a_young_queue_is_its_beginning() {
    let scene = scene();
    scene.broker.create_topic("t", 3).unwrap();
    let first = send_to(&scene.broker, "t", 0, 0);
    send_to(&scene.broker, "t", 1, 1);
    let end = scene.broker.stats().log_end;
    for (bytes, expected) in [
        (u64::MAX, [0, 0, 0]),
        (end - first.position, [0, 0, 0]),
        (end - first.position - 1, [1, 0, 0]),
        (0, [1, 1, 0]),
    ] {
        let group = format!("g{bytes}");
        let builder = scene.broker.pull_consumer(&group).subscribe("t", "*").unwrap();
        drop(builder.start_from(Start::LastUnlessYoung { bytes }).start().unwrap());
        assert_eq!(offsets(&scene.broker, &group), expected.map(Some), "{bytes}");
    }
    // What has lost its beginning is not young.
    let filler = vec![0; 300 << 10];
    let message = || rocklet::Message::new("t", &filler[..]).queue(0);
    let sent: Vec<_> = (0..8).map(|_| scene.broker.producer().send(&message()).unwrap()).collect();
    assert!(scene.broker.drop_before(sent[4].position).unwrap() > 0);
    let builder = scene.broker.pull_consumer("g").subscribe("t", "*").unwrap();
    drop(builder.start_from(Start::LastUnlessYoung { bytes: u64::MAX }).start().unwrap());
    assert_eq!(offsets(&scene.broker, "g")[0], Some(9));
}

#[test]
fn b_078_the_start_is_stored_when_start_returns() {
    let scene = scene();
    scene.broker.create_topic("t", 2).unwrap();
    send(&scene.broker.producer(), "t", 0..10);
    let (consumer, _) = member(&scene.broker, "g", Start::Last);
    assert_eq!(offsets(&scene.broker, "g"), [Some(5), Some(5)]);
    drop(consumer);
    send(&scene.broker.producer(), "t", 10..20);
    let scene = scene.reopen();
    let (_consumer, seen) = member(&scene.broker, "g", Start::Last);
    wait_for("what was sent while nobody ran", || seen.len() == 10);
    assert!((10..20).all(|nth| seen.has(nth)));
}

#[test]
fn b_078_a_message_sent_right_after_start_is_delivered() {
    let scene = scene();
    scene.broker.create_topic("t", 4).unwrap();
    let producer = scene.broker.producer();
    for round in 0..500 {
        let (consumer, seen) = member(&scene.broker, &format!("g{round}"), Start::Last);
        send(&producer, "t", round..round + 1);
        wait_for("the message", || seen.has(round));
        assert_eq!(seen.len(), 1, "and nothing older");
        consumer.shutdown();
    }
}

#[test]
fn b_078_a_group_that_starts_and_stops_every_cycle_misses_nothing() {
    let scene = scene();
    scene.broker.create_topic("t", 4).unwrap();
    let all = Seen::default();
    let builder = || scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
    std::thread::scope(|scope| {
        let first = all.clone();
        let start = builder().start_from(Start::Last);
        let consumer = start.start(move |delivery| first.note(number(delivery))).unwrap();
        scope.spawn(|| send(&scene.broker.producer(), "t", 0..2000));
        drop(consumer);
        for _ in 0..50 {
            let noted = all.clone();
            let start = builder().start_from(Start::Last);
            drop(start.start(move |delivery| noted.note(number(delivery))).unwrap());
        }
    });
    let noted = all.clone();
    let _consumer = builder().start(move |delivery| noted.note(number(delivery))).unwrap();
    wait_for("commit of all", || committed(&scene.broker, "g", "t") == 2000);
    all.assert_each_once(0..2000);
}

#[test]
fn a_topic_that_is_made_after_its_group_started_is_consumed_from_the_beginning() {
    for start in [Start::First, Start::Last] {
        let scene = scene();
        let (_consumer, seen) = member(&scene.broker, "g", start);
        let builder = scene.broker.pull_consumer("p").subscribe("t", "*").unwrap();
        let mut pull = builder.start_from(start).start().unwrap();
        send(&scene.broker.producer(), "t", 0..40);
        wait_for("all", || seen.len() == 40);
        let mut found = 0;
        while found < 40 {
            found += pull.poll(SOON).unwrap().len();
        }
        seen.assert_each_once(0..40);
    }
}

#[test]
fn b_078_the_start_in_a_topic_that_is_younger_than_the_group_is_stored_too() {
    let scene = scene();
    let builder = scene.broker.pull_consumer("g").subscribe("t", "*").unwrap();
    let consumer = builder.start_from(Start::Last).start().unwrap();
    send(&scene.broker.producer(), "t", 0..40);
    assert_eq!(offsets(&scene.broker, "g"), [Some(0); 4]);
    drop(consumer);
    // The queues go on at their beginning, not at their end.
    let (_consumer, seen) = member(&scene.broker, "g", Start::Last);
    wait_for("commit of all", || committed(&scene.broker, "g", "t") == 40);
    seen.assert_each_once(0..40);
}

#[test]
fn b_087_acknowledged_messages_do_not_come_back_after_a_reopen() {
    for explicitly in [true, false] {
        let Scene { broker, dir } = scene();
        broker.create_topic("t", 4).unwrap();
        send(&broker.producer(), "t", 0..200);
        let seen = Seen::default();
        let builder = broker.pull_consumer("pull").subscribe("t", "*").unwrap();
        let mut pull = builder.batch(20).start().unwrap();
        for _ in 0..5 {
            numbers(&pull.poll(SOON).unwrap()).into_iter().for_each(|nth| seen.note(nth));
            pull.commit().unwrap();
        }
        let (push, pushed) = member(&broker, "push", Start::First);
        wait_for("commit of all", || committed(&broker, "push", "t") == 200);
        if explicitly {
            broker.close().unwrap();
        }
        drop((broker, push, pull));
        assert_eq!((seen.len(), pushed.len()), (100, 200));
        let broker = small(dir.path()).open().unwrap();
        assert!(broker.recovery_report().clean);
        let (_push, again) = member(&broker, "push", Start::First);
        let mut pull = broker.pull_consumer("pull").subscribe("t", "*").unwrap().start().unwrap();
        while seen.len() < 200 {
            numbers(&pull.poll(SOON).unwrap()).into_iter().for_each(|nth| seen.note(nth));
        }
        seen.assert_each_once(0..200);
        assert_eq!(again.len(), 0);
    }
}

#[test]
fn b_020_a_consumer_goes_on_after_a_recovery_that_cut_the_tail() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    send(&scene.broker.producer(), "t", 0..9);
    let last = send_to(&scene.broker, "t", 0, 9);
    let mut pull = scene.broker.pull_consumer("g").subscribe("t", "*").unwrap().start().unwrap();
    assert_eq!(pull.poll(SOON).unwrap().len(), 10);
    pull.commit().unwrap();
    // What a kill in the middle of the last append leaves.
    let copy = copy_of(scene.dir.path());
    let log = std::fs::read_dir(copy.path().join("commitlog")).unwrap();
    let log = log.map(|file| file.unwrap().path()).min().unwrap();
    let log = std::fs::OpenOptions::new().write(true).open(log).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&log, &[0; 64], last.position).unwrap();
    drop(log);
    let broker = small(copy.path()).open().unwrap();
    assert_eq!(broker.max_offset(&q("t", 0)).unwrap(), 9);
    assert_eq!(broker.committed("g", &q("t", 0)).unwrap(), Some(9), "lowered to what was kept");
    assert_eq!(broker.recovery_report().lowered.len(), 1);
    let mut pull = broker.pull_consumer("g").subscribe("t", "*").unwrap().start().unwrap();
    assert_eq!(send_to(&broker, "t", 0, 100).offset, 9);
    assert_eq!(numbers(&pull.poll(SOON).unwrap()), [100]);
}

#[test]
fn reb_11_a_group_that_was_away_reads_a_topic_made_meanwhile_from_its_beginning() {
    let scene = scene();
    scene.broker.create_topic("t", 2).unwrap();
    let start = |scene: &Scene, group: &str| {
        let builder = scene.broker.pull_consumer(group).subscribe("t", "*").unwrap();
        builder.subscribe("late", "*").unwrap().start_from(Start::Last).start().unwrap()
    };
    start(&scene, "known").close();
    scene.broker.create_topic("late", 2).unwrap();
    send(&scene.broker.producer(), "late", 0..10);
    let scene = scene.reopen();
    let mut known = start(&scene, "known");
    let mut seen = numbers(&known.poll(SOON).unwrap());
    while seen.len() < 10 {
        seen.extend(numbers(&known.poll(SOON).unwrap()));
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..10).collect::<Vec<_>>());
    assert!(start(&scene, "new").poll(SHORT).unwrap().is_empty());
}
