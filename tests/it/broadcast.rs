//! Broadcasting: every member gets every message, and keeps its own progress.

use crate::support::*;
use rocklet::{Broker, Error, Mode, PushConsumer, Start};

fn member(broker: &Broker, name: &str, start: Start, seen: &Seen) -> PushConsumer {
    let noted = seen.clone();
    let builder = broker.push_consumer("g").subscribe("t", "*").unwrap().mode(Mode::Broadcasting);
    let builder = builder.name(name).start_from(start);
    builder.start(move |delivery| noted.note(number(delivery))).unwrap()
}

/// How far a member is in a topic of two queues.
fn progress(broker: &Broker, name: &str) -> u64 {
    let of = |queue| broker.committed_by("g", name, &q("t", queue)).unwrap().unwrap_or(0);
    of(0) + of(1)
}

// (REB-3, CLI-5, OFF-3)
#[test]
fn reb_3_cli_5_every_member_gets_everything_once_and_goes_on_under_its_name() {
    let scene = scene();
    scene.broker.create_topic("t", 2).unwrap();
    let names = ["a", "b", "c"];
    let seen = [(); 3].map(|()| Seen::default());
    let all = |broker: &Broker| -> Vec<_> {
        names
            .iter()
            .zip(&seen)
            .map(|(name, seen)| member(broker, name, Start::First, seen))
            .collect()
    };
    let broker = &scene.broker;
    let mut members = all(broker);
    assert!(members.iter().all(|member| member.assignment().len() == 2));
    send(&broker.producer(), "t", 0..100);
    wait_for("progress of all", || names.iter().all(|name| progress(broker, name) == 100));
    // One that is away misses nothing, and the others do not get its share twice.
    drop(members.remove(1));
    send(&broker.producer(), "t", 100..150);
    wait_for("progress of those who run", || ["a", "c"].iter().all(|n| progress(broker, n) == 150));
    assert_eq!(progress(broker, "b"), 100);
    assert_eq!(broker.committed("g", &q("t", 0)).unwrap(), None, "the group itself has none");
    drop(members);
    let scene = scene.reopen();
    let _members = all(&scene.broker);
    wait_for("what was missed", || progress(&scene.broker, "b") == 150);
    seen.iter().for_each(|seen| seen.assert_each_once(0..150));
    assert_eq!(scene.broker.groups(), ["g"]);
}

#[test]
fn reb_13_a_member_that_is_new_begins_where_it_says() {
    let scene = scene();
    let broker = &scene.broker;
    broker.create_topic("t", 2).unwrap();
    send(&broker.producer(), "t", 0..10);
    let young = Start::LastUnlessYoung { bytes: u64::MAX };
    for (name, start, expected) in
        [("a", Start::First, 0), ("b", Start::Last, 10), ("c", young, 10)]
    {
        let seen = Seen::default();
        let consumer = member(broker, name, start, &seen);
        let nth = 10 + expected;
        send_to(broker, "t", 0, nth);
        wait_for("the new message", || seen.has(nth));
        // In the other queue, too, nothing is left to come.
        drop(consumer);
        assert_eq!((0..10).any(|nth| seen.has(nth)), expected == 0, "{name}");
    }
}

// (CLI-4, CLI-7, CLI-8)
#[test]
fn cli_4_cli_8_a_group_has_one_mode_and_its_members_have_stable_names() {
    let scene = scene();
    let broker = &scene.broker;
    broker.create_topic("t", 2).unwrap();
    let builder = broker.push_consumer("g").subscribe("t", "*").unwrap();
    let first = builder.clone().mode(Mode::Broadcasting).start(|_| ()).unwrap();
    assert_eq!(first.name(), "default");
    let second = builder.clone().mode(Mode::Broadcasting).start(|_| ());
    assert!(matches!(second, Err(Error::Duplicate { ref name, .. }) if name == "default"));
    let error = builder.clone().start(|_| ()).unwrap_err();
    assert!(matches!(error, Error::Mismatch { what: "mode", .. }), "{error}");
    assert_eq!(broker.topics(), ["t"], "no topic for retries");
    drop(first);
    let forbidden = rocklet::GroupSettings::new().forbid_broadcasting();
    broker.update_group("g", forbidden).unwrap();
    let error = builder.clone().mode(Mode::Broadcasting).start(|_| ()).unwrap_err();
    assert!(matches!(error, Error::GroupForbids { what: "broadcasting", .. }), "{error}");
    builder.start(|_| ()).unwrap().shutdown();
}

/// (CONC-9)
#[test]
fn b_127_what_a_broadcasting_listener_fails_is_counted_and_does_not_come_again() {
    let scene = scene();
    scene.broker.create_topic("t", 2).unwrap();
    send(&scene.broker.producer(), "t", 0..40);
    let start = |broker: &Broker, seen: &Seen| {
        let noted = seen.clone();
        let builder = broker.push_consumer("g").subscribe("t", "*").unwrap();
        let builder = builder.mode(Mode::Broadcasting).name("a");
        let listener = move |delivery: &rocklet::Delivery<'_>| {
            noted.note(number(delivery));
            assert_eq!(delivery.attempt(), 0);
            match number(delivery) % 4 {
                0 => panic!("planted"),
                1 => Err("planted"),
                _ => Ok(()),
            }
        };
        builder.start(listener).unwrap()
    };
    let seen = Seen::default();
    let consumer = start(&scene.broker, &seen);
    wait_for("progress", || progress(&scene.broker, "a") == 40);
    seen.assert_each_once(0..40);
    let stats = scene.broker.stats();
    assert_eq!((stats.failed, stats.panicked, stats.dropped, stats.delivered), (20, 10, 20, 20));
    assert!(consumer.last_failure().unwrap().contains("planted"));
    assert_eq!((stats.retries, stats.dead_letters), (0, 0));
    assert!(scene.broker.queues("%RETRY%g").is_err(), "nothing is to be delivered again");
    drop(consumer);
    let scene = scene.reopen();
    let _consumer = start(&scene.broker, &seen);
    send(&scene.broker.producer(), "t", 40..44);
    wait_for("progress", || progress(&scene.broker, "a") == 44);
    seen.assert_each_once(0..44);
}

#[test]
fn a_broadcasting_pull_consumer_commits_for_itself() {
    let scene = scene();
    let broker = &scene.broker;
    broker.create_topic("t", 2).unwrap();
    send(&broker.producer(), "t", 0..10);
    let start = |name: &str| {
        let builder = broker.pull_consumer("g").subscribe("t", "*").unwrap();
        builder.mode(Mode::Broadcasting).name(name).start().unwrap()
    };
    let (mut a, mut b) = (start("a"), start("b"));
    for member in [&mut a, &mut b] {
        let mut found = numbers(&member.poll(SOON).unwrap());
        found.sort_unstable();
        assert_eq!(found, (0..10).collect::<Vec<_>>());
    }
    a.commit().unwrap();
    assert_eq!(
        (a.committed(&q("t", 0)).unwrap(), b.committed(&q("t", 0)).unwrap()),
        (Some(5), Some(0))
    );
    assert_eq!((progress(broker, "a"), progress(broker, "b")), (10, 0));
    drop((a, b));
    assert_eq!(numbers(&start("b").poll(SOON).unwrap()).len(), 10);
    assert_eq!(numbers(&start("a").poll(SHORT).unwrap()), [0; 0]);
}
