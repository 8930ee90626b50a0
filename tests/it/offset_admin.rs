//! Moving groups to other offsets.

use crate::support::*;
use rocklet::{Broker, DrivenClock, Error, PullConsumer, ResetTo, Start};
use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

fn offsets(broker: &Broker, group: &str) -> Vec<Option<u64>> {
    let queues = broker.queues("t").unwrap();
    queues.iter().map(|queue| broker.committed(group, queue).unwrap()).collect()
}

/// A group that stands at the end of ten messages in each of two queues, 10 ms apart.
fn consumed() -> (Scene, DrivenClock) {
    let clock = DrivenClock::new(1_000_000);
    let scene = scene_with(|builder| builder.clock(&clock));
    scene.broker.create_topic("t", 2).unwrap();
    for nth in 0..10 {
        send_to(&scene.broker, "t", 0, nth);
        send_to(&scene.broker, "t", 1, nth + 10);
        clock.advance(Duration::from_millis(10));
    }
    let builder = scene.broker.pull_consumer("g").subscribe("t", "*").unwrap();
    drop(builder.start_from(Start::Last).start().unwrap());
    (scene, clock)
}

// (OFF-9, OFF-11)
#[test]
fn off_9_off_11_a_group_without_members_is_moved_to_a_time_an_offset_or_an_end() {
    let (scene, _clock) = consumed();
    let broker = &scene.broker;
    let at = |ms| ResetTo::Time(UNIX_EPOCH + Duration::from_millis(ms));
    let cases = [
        (ResetTo::First, 0),
        (ResetTo::Last, 10),
        (ResetTo::Offset(7), 7),
        (ResetTo::Offset(99), 10),
        (at(0), 0),
        (at(1_000_050), 5),
        (at(1_000_051), 6),
        (at(1 << 42), 10),
    ];
    for (target, expected) in cases {
        let moved = broker.reset_offsets("g", "t", target).unwrap();
        assert_eq!(moved, BTreeMap::from([0, 1].map(|queue| (q("t", queue), expected))));
        assert_eq!(offsets(broker, "g"), [Some(expected); 2], "{target:?}");
    }
    broker.reset_offsets("g", "t", ResetTo::Offset(4)).unwrap();
    for (target, expected) in [(ResetTo::Last, 4), (ResetTo::Offset(5), 4), (ResetTo::Offset(3), 3)]
    {
        broker.rewind_offsets("g", "t", target).unwrap();
        assert_eq!(offsets(broker, "g"), [Some(expected); 2], "only backwards: {target:?}");
    }
    let unknown = broker.reset_offsets("h", "t", ResetTo::First);
    assert!(matches!(unknown, Err(Error::NoSuchGroup { .. })));
    let unknown = broker.reset_offsets("g", "u", ResetTo::First);
    assert!(matches!(unknown, Err(Error::NoSuchTopic { .. })));
    // A group that never consumed the topic stands at its beginning.
    broker.create_group("n", rocklet::GroupSettings::new()).unwrap();
    broker.rewind_offsets("n", "t", ResetTo::Last).unwrap();
    assert_eq!(offsets(broker, "n"), [Some(0); 2]);
    let scene = scene.reopen();
    assert_eq!(offsets(&scene.broker, "g"), [Some(3); 2]);
    let mut pull = scene.broker.pull_consumer("g").subscribe("t", "*").unwrap().start().unwrap();
    assert_eq!(pull.poll(SOON).unwrap().len(), 14);
}

#[test]
fn off_10_members_that_run_go_on_at_the_new_offset() {
    let (scene, _clock) = consumed();
    let broker = &scene.broker;
    let seen = [(); 2].map(|()| Seen::default());
    let members: Vec<_> = seen
        .iter()
        .map(|seen| {
            let noted = seen.clone();
            let builder = broker.push_consumer("g").subscribe("t", "*").unwrap();
            builder.start(move |delivery| noted.note(number(delivery))).unwrap()
        })
        .collect();
    assert!(members.iter().all(|member| member.assignment().len() == 1));
    for round in 1..=20 {
        broker.reset_offsets("g", "t", ResetTo::Offset(5)).unwrap();
        wait_for("commit of all", || offsets(broker, "g") == [Some(10); 2]);
        let again = |nth| seen.iter().map(|seen| seen.count(nth)).sum::<u32>();
        assert!((5..10).chain(15..20).all(|nth| again(nth) == round), "round {round}");
        assert!((0..5).chain(10..15).all(|nth| again(nth) == 0));
    }
    // Forwards it skips, and what comes is delivered.
    broker.reset_offsets("g", "t", ResetTo::Last).unwrap();
    send_to(broker, "t", 0, 50);
    send_to(broker, "t", 1, 51);
    wait_for("commit of all", || offsets(broker, "g") == [Some(11); 2]);
    assert!(seen.iter().all(|seen| seen.len() == 6));
}

// (OFF-10, OFF-13)
#[test]
fn off_10_off_13_what_is_in_flight_when_a_group_is_moved_counts_no_more() {
    let (scene, _clock) = consumed();
    let broker = &scene.broker;
    broker.reset_offsets("g", "t", ResetTo::Offset(2)).unwrap();
    let (seen, door) = (Seen::default(), Door::default());
    let (noted, inside) = (seen.clone(), door.clone());
    let builder = broker.push_consumer("g").subscribe("t", "*").unwrap().threads(2);
    let consumer = builder
        .start(move |delivery| {
            inside.pass();
            noted.note(number(delivery));
        })
        .unwrap();
    wait_for("busy workers", || door.waiting() == 2);
    broker.reset_offsets("g", "t", ResetTo::Offset(8)).unwrap();
    broker.reset_offsets("g", "t", ResetTo::Offset(9)).unwrap();
    assert_eq!(offsets(broker, "g"), [Some(9); 2], "at once");
    // A kill now would go on from there, too: progress of the old owner is not stored.
    let queue = q("t", 0);
    let committed = || broker.committed("g", &queue).unwrap().unwrap();
    let mut lowest = committed();
    door.open();
    wait_for("commit of all", || {
        lowest = lowest.min(committed());
        offsets(broker, "g") == [Some(10); 2]
    });
    assert!(lowest >= 9, "progress of the old owner: {lowest}");
    let counts: Vec<u32> = [2, 3, 8, 9, 12, 13, 18, 19].map(|nth| seen.count(nth)).into();
    // Claimed were one message of each queue, or two of one.
    assert_eq!(counts.iter().sum::<u32>(), 4, "{counts:?}");
    assert_eq!((seen.count(9), seen.count(19)), (1, 1));
    drop(consumer);
}

#[test]
fn off_10_a_pull_consumer_is_moved_when_it_has_committed_what_it_polled() {
    let (scene, _clock) = consumed();
    let broker = &scene.broker;
    broker.reset_offsets("g", "t", ResetTo::First).unwrap();
    let mut pull = broker.pull_consumer("g").subscribe("t", "*").unwrap().start().unwrap();
    assert_eq!(pull.poll(SOON).unwrap().len(), 20);
    broker.reset_offsets("g", "t", ResetTo::Offset(8)).unwrap();
    assert_eq!(pull.poll(Duration::ZERO).unwrap().len(), 0);
    pull.commit().unwrap();
    assert_eq!(offsets(broker, "g"), [Some(8); 2]);
    let mut found = numbers(&pull.poll(SOON).unwrap());
    found.sort_unstable();
    assert_eq!(found, [8, 9, 18, 19]);
    pull.commit().unwrap();
    assert_eq!(offsets(broker, "g"), [Some(10); 2]);
}

#[test]
fn off_10_a_consumer_with_assigned_queues_goes_on_where_its_group_was_moved() {
    let (scene, _clock) = consumed();
    let broker = &scene.broker;
    broker.reset_offsets("g", "t", ResetTo::First).unwrap();
    let builder = || broker.pull_consumer("g").assign([q("t", 0)], "*").unwrap().batch(4);
    let mut guest = builder().start().unwrap();
    let polled = |guest: &mut PullConsumer| numbers(&guest.poll(Duration::ZERO).unwrap());
    assert_eq!(polled(&mut guest), [0, 1, 2, 3]);
    // Forwards, backwards, and to where it is: what it has polled counts no more.
    for (offset, expected) in [(6, vec![6, 7, 8, 9]), (1, vec![1, 2, 3, 4]), (5, vec![5, 6, 7, 8])]
    {
        broker.reset_offsets("g", "t", ResetTo::Offset(offset)).unwrap();
        guest.commit().unwrap();
        assert_eq!(offsets(broker, "g"), [Some(offset); 2]);
        assert_eq!(polled(&mut guest), expected);
    }
    guest.commit().unwrap();
    assert_eq!(offsets(broker, "g"), [Some(9), Some(5)]);
    // One that sleeps is woken; other groups' consumers stay where they are.
    let other = broker.pull_consumer("h").assign([q("t", 0)], "*").unwrap().batch(4);
    let mut other = other.start().unwrap();
    assert_eq!(polled(&mut other), [0, 1, 2, 3]);
    assert_eq!(polled(&mut guest), [9]);
    let polling = std::thread::spawn(move || numbers(&guest.poll(SOON).unwrap()));
    wait_for("a sleeping poll", || broker.stats().held == 1);
    broker.reset_offsets("g", "t", ResetTo::Offset(2)).unwrap();
    assert_eq!(polling.join().unwrap(), [2, 3, 4, 5]);
    assert_eq!(polled(&mut other), [4, 5, 6, 7]);
}

// (OFF-8, OFF-12)
#[test]
fn off_8_off_12_offsets_are_cloned_and_the_lowest_is_found() {
    let (scene, _clock) = consumed();
    let broker = &scene.broker;
    assert_eq!(broker.min_committed(&q("t", 0)).unwrap(), Some(10));
    broker.reset_offsets("g", "t", ResetTo::Offset(6)).unwrap();
    let cloned = broker.clone_offsets("g", "copy", "t").unwrap();
    assert_eq!(cloned, BTreeMap::from([(q("t", 0), 6), (q("t", 1), 6)]));
    assert_eq!(offsets(broker, "copy"), [Some(6); 2]);
    broker.reset_offsets("g", "t", ResetTo::Offset(9)).unwrap();
    assert_eq!(offsets(broker, "copy"), [Some(6); 2], "a copy");
    assert_eq!(broker.min_committed(&q("t", 1)).unwrap(), Some(6));
    assert!(matches!(broker.clone_offsets("none", "x", "t"), Err(Error::NoSuchGroup { .. })));
    // Over a group that runs.
    let mut pull = broker.pull_consumer("copy").subscribe("t", "*").unwrap().start().unwrap();
    broker.clone_offsets("g", "copy", "t").unwrap();
    let mut found = numbers(&pull.poll(SOON).unwrap());
    found.sort_unstable();
    assert_eq!(found, [9, 19]);
    broker.create_topic("empty", 1).unwrap();
    assert_eq!(broker.min_committed(&q("empty", 0)).unwrap(), None);
    assert!(broker.clone_offsets("g", "copy", "empty").unwrap().is_empty());
}
