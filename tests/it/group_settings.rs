//! What operators decide about groups.

use crate::support::*;
use rocklet::{BackOff, Error, GroupSettings, Mode};

#[test]
fn sub_6_groups_are_created_changed_and_deleted_and_survive_a_restart() {
    let scene = scene();
    let broker = &scene.broker;
    let back_off = BackOff::table([1, 5, 60].map(std::time::Duration::from_secs));
    let settings = GroupSettings::new().forbid_broadcasting().retry_queues(3).max_retries(5);
    let settings = settings.back_off(back_off);
    broker.create_group("a", settings.clone()).unwrap();
    assert!(matches!(broker.create_group("a", settings.clone()), Err(Error::GroupExists { .. })));
    let wrong = GroupSettings::new().retry_queues(1025);
    assert!(matches!(broker.create_group("b", wrong.clone()), Err(Error::Setting { .. })));
    assert!(matches!(broker.update_group("a", wrong), Err(Error::Setting { .. })));
    assert!(matches!(broker.create_group("a b", settings.clone()), Err(Error::Name { .. })));
    for missing in [
        broker.update_group("b", settings.clone()),
        broker.delete_group("b"),
        broker.group_settings("b").map(drop),
    ] {
        assert!(matches!(missing, Err(Error::NoSuchGroup { .. })));
    }
    drop(broker.push_consumer("c").subscribe("t", "*").unwrap().start(|_| ()).unwrap());
    assert_eq!(broker.groups(), ["a", "c"]);
    assert_eq!(broker.group_settings("c").unwrap(), GroupSettings::new());
    broker.update_group("c", settings.clone()).unwrap();
    let scene = scene.reopen();
    assert_eq!(scene.broker.groups(), ["a", "c"]);
    assert_eq!(scene.broker.group_settings("a").unwrap(), settings);
    assert_eq!(scene.broker.group_settings("c").unwrap(), settings);
    scene.broker.delete_group("a").unwrap();
    let scene = scene.reopen();
    assert_eq!(scene.broker.groups(), ["c"]);
    scene.broker.close().unwrap();
    assert!(matches!(scene.broker.create_group("d", settings), Err(Error::Closed)));
    assert!(matches!(scene.broker.delete_group("c"), Err(Error::Closed)));
}

#[test]
fn sub_6_a_deleted_group_begins_anew_and_one_in_use_is_not_deleted() {
    let scene = scene();
    let broker = &scene.broker;
    broker.create_topic("t", 2).unwrap();
    send(&broker.producer(), "t", 0..10);
    let seen = Seen::default();
    let start = |mode: Mode| {
        let noted = seen.clone();
        let builder = broker.push_consumer("g").subscribe("t", "*").unwrap().mode(mode);
        builder.start(move |delivery| noted.note(number(delivery))).unwrap()
    };
    let consumer = start(Mode::Clustering);
    wait_for("commit of all", || committed(broker, "g", "t") == 10);
    assert!(matches!(broker.delete_group("g"), Err(Error::GroupInUse { members: 1, .. })));
    drop(consumer);
    broker.delete_group("g").unwrap();
    assert_eq!(broker.committed("g", &q("t", 0)).unwrap(), None);
    let consumer = start(Mode::Clustering);
    wait_for("commit of all", || committed(broker, "g", "t") == 10);
    drop(consumer);
    let consumer = start(Mode::Broadcasting);
    let by_default = || broker.committed_by("g", "default", &q("t", 0)).unwrap();
    wait_for("commit of the member", || by_default() == Some(5));
    drop(consumer);
    broker.delete_group("g").unwrap();
    assert_eq!(by_default(), None);
    assert_eq!(broker.groups(), [""; 0]);
}

#[test]
fn pull_8_a_group_that_may_not_consume_is_refused_and_stops_until_it_may() {
    let clock = rocklet::DrivenClock::new(1_700_000_000_000);
    let scene = scene_with(|builder| builder.clock(&clock));
    let broker = &scene.broker;
    broker.create_topic("t", 1).unwrap();
    let seen = Seen::default();
    let noted = seen.clone();
    let builder = broker.push_consumer("g").subscribe("t", "*").unwrap();
    let consumer = builder.start(move |delivery| noted.note(number(delivery))).unwrap();
    let mut pull = broker.pull_consumer("p").subscribe("t", "*").unwrap().start().unwrap();
    wait_for("a waiting consumer", || broker.stats().held == 1);
    for group in ["g", "p"] {
        broker.update_group(group, GroupSettings::new().forbid_consuming()).unwrap();
        let error = broker.pull_consumer(group).subscribe("t", "*").unwrap().start().unwrap_err();
        assert!(matches!(error, Error::GroupForbids { what: "consuming", .. }), "{error}");
    }
    fill(broker, "t", 0, 0..5);
    assert!(matches!(pull.poll(SHORT), Err(Error::GroupForbids { .. })));
    let told = "group \"g\" forbids consuming; allow it with update_group";
    wait_for("the refusal", || consumer.last_failure().as_deref() == Some(told));
    assert_eq!(seen.len(), 0);
    for group in ["g", "p"] {
        broker.update_group(group, GroupSettings::new()).unwrap();
    }
    assert_eq!(numbers(&pull.poll(SOON).unwrap()), [0, 1, 2, 3, 4]);
    wait_for("commit of all", || {
        clock.advance(std::time::Duration::from_secs(1));
        committed(broker, "g", "t") == 5
    });
    seen.assert_each_once(0..5);
}

#[test]
fn sub_6_groups_may_have_to_be_created_first() {
    let scene = scene_with(|builder| builder.require_groups());
    let start = || {
        let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
        builder.start(|_| ())
    };
    assert!(matches!(start(), Err(Error::NoSuchGroup { .. })));
    assert_eq!(scene.broker.groups(), [""; 0]);
    scene.broker.create_group("g", GroupSettings::new()).unwrap();
    let consumer = start().unwrap();
    drop(consumer);
    scene.broker.delete_group("g").unwrap();
    assert!(matches!(start(), Err(Error::NoSuchGroup { .. })));
}
