//! The life of a consumer: what it can do in which state, pausing, and shutting down in time.

use crate::support::*;
use rocklet::{Delivery, DrivenClock, Error, PullConsumer, Result, ServiceState, Start};
use std::time::Duration;

#[track_caller]
fn assert_state<T>(result: Result<T>, expected: ServiceState) {
    match result {
        Err(error @ Error::State { state, .. }) => {
            assert_eq!(state, expected);
            assert!(error.to_string().contains(&expected.to_string()), "{error}");
        }
        other => panic!("{:?}", other.map(drop)),
    }
}

#[test]
fn cli_1_cli_10_a_push_consumer_is_started_once_and_stopped_once() {
    let scene = scene();
    scene.broker.create_topic("t", 2).unwrap();
    let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap().name("m");
    let consumer = builder.build(|_: &Delivery<'_>| ());
    assert_eq!((consumer.state(), &*consumer.name()), (ServiceState::Created, "m"));
    consumer.shutdown();
    assert_eq!(consumer.state(), ServiceState::Created, "stopping changes nothing");
    assert_state(consumer.pause(), ServiceState::Created);
    assert!(consumer.assignment().is_empty());
    consumer.start().unwrap();
    assert_eq!((consumer.state(), consumer.assignment().len()), (ServiceState::Running, 2));
    assert_state(consumer.start(), ServiceState::Running);
    assert_state(consumer.rename("n"), ServiceState::Running);
    consumer.shutdown();
    consumer.shutdown();
    assert_eq!((consumer.state(), scene.broker.stats().consumers), (ServiceState::Shutdown, 0));
    assert_state(consumer.start(), ServiceState::Shutdown);
    assert_state(consumer.resume(), ServiceState::Shutdown);
    assert_state(consumer.subscribe("u", "*"), ServiceState::Shutdown);
    assert_state(consumer.unsubscribe("t"), ServiceState::Shutdown);
}

#[test]
fn cli_1_cli_10_a_pull_consumer_is_started_once_and_stopped_once() {
    let scene = scene();
    scene.broker.create_topic("t", 2).unwrap();
    let mut consumer = scene.broker.pull_consumer("g").subscribe("t", "*").unwrap().build();
    consumer.shutdown();
    assert_does_nothing(&mut consumer, ServiceState::Created);
    consumer.start().unwrap();
    assert_eq!((consumer.state(), consumer.assignment().len()), (ServiceState::Running, 2));
    assert_state(consumer.start(), ServiceState::Running);
    assert_state(consumer.rename("n"), ServiceState::Running);
    consumer.shutdown();
    consumer.shutdown();
    assert_eq!((consumer.state(), scene.broker.stats().consumers), (ServiceState::Shutdown, 0));
    assert_state(consumer.start(), ServiceState::Shutdown);
    assert_does_nothing(&mut consumer, ServiceState::Shutdown);
}

#[track_caller]
fn assert_does_nothing(consumer: &mut PullConsumer, state: ServiceState) {
    let queue = q("t", 0);
    assert_state(consumer.queues("t"), state);
    assert_state(consumer.poll(SHORT), state);
    assert_state(consumer.commit(), state);
    assert_state(consumer.commit_offset(&queue, 0), state);
    assert_state(consumer.seek(&queue, 0), state);
    assert_state(consumer.seek_to(&queue, Start::First), state);
    assert_state(consumer.pause(&[]), state);
    assert_state(consumer.resume(&[]), state);
    assert_state(consumer.pull(&queue, 0, 1), state);
    assert_state(consumer.pull_within(&queue, "*", 0, 1, SHORT), state);
    assert_state(consumer.assign([queue], "*"), state);
    assert_state(consumer.subscribe("t", "*"), state);
    assert_state(consumer.unsubscribe("t"), state);
    assert!(consumer.assignment().is_empty() && consumer.paused().is_empty());
}

#[test]
fn pc_2_the_queues_of_a_topic_and_those_that_a_member_has() {
    let scene = scene();
    scene.broker.create_topic("t", 4).unwrap();
    let builder = || scene.broker.pull_consumer("g").subscribe("t", "*").unwrap();
    let (a, b) = (builder().name("a").start().unwrap(), builder().name("b").start().unwrap());
    assert_eq!(a.queues("t").unwrap().len(), 4);
    assert!(matches!(a.queues("u"), Err(Error::NoSuchTopic { .. })));
    let all = [a.assignment(), b.assignment()].concat();
    assert_eq!(all, a.queues("t").unwrap());
}

#[test]
fn cli_2_cli_3_a_start_that_failed_is_the_last_one() {
    let scene = scene();
    let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
    let consumer = builder.threads(1001).build(|_: &Delivery<'_>| ());
    let error = consumer.start().unwrap_err();
    assert_eq!(error.to_string(), "threads is 1001, it must be a number from 1 to 1000");
    assert_state(consumer.start(), ServiceState::StartFailed);
    consumer.shutdown();
    assert_eq!(consumer.state(), ServiceState::StartFailed);
    let builder = scene.broker.pull_consumer("g").subscribe("t", "*").unwrap();
    let mut pull = builder.batch(0).build();
    assert!(matches!(pull.start(), Err(Error::Setting { name: "batch", value: 0, .. })));
    assert_state(pull.start(), ServiceState::StartFailed);
    assert_eq!((scene.broker.stats().consumers, scene.broker.groups().len()), (0, 0));
}

// (CLI-2, CLI-7)
#[test]
fn cli_2_cli_7_a_refused_duplicate_may_start_under_another_name() {
    let scene = scene();
    scene.broker.create_topic("t", 4).unwrap();
    let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap().name("m");
    let running = builder.clone().start(|_| ()).unwrap();
    let second = builder.build(|_: &Delivery<'_>| ());
    for _ in 0..3 {
        assert!(matches!(second.start(), Err(Error::Duplicate { .. })));
        assert_eq!(second.state(), ServiceState::Created);
        assert_eq!((scene.broker.stats().consumers, running.assignment().len()), (1, 4));
    }
    second.rename("n").unwrap();
    second.start().unwrap();
    assert_eq!((running.assignment().len(), second.assignment().len()), (2, 2));

    let builder = scene.broker.pull_consumer("p").subscribe("t", "*").unwrap().name("m");
    let _running = builder.clone().start().unwrap();
    let mut second = builder.build();
    assert!(matches!(second.start(), Err(Error::Duplicate { .. })));
    second.rename("n").unwrap();
    second.start().unwrap();
    assert_eq!(second.assignment().len(), 2);
}

#[test]
fn cli_3_an_empty_subscription_is_legal() {
    let scene = scene();
    let consumer = scene.broker.push_consumer("g").start(|_| ()).unwrap();
    assert!(consumer.assignment().is_empty());
    send(&scene.broker.producer(), "t", 0..8);
    consumer.subscribe("t", "*").unwrap();
    wait_for("commit of all", || committed(&scene.broker, "g", "t") == 8);
}

#[test]
fn a_consumer_of_a_closed_broker_is_shut_down() {
    let scene = scene();
    let push = scene.broker.push_consumer("g").subscribe("t", "*").unwrap().start(|_| ()).unwrap();
    let pull = scene.broker.pull_consumer("p").subscribe("t", "*").unwrap().start().unwrap();
    let late = scene.broker.push_consumer("l").build(|_: &Delivery<'_>| ());
    scene.broker.close().unwrap();
    assert_eq!([push.state(), pull.state()], [ServiceState::Shutdown; 2]);
    assert!(matches!(late.start(), Err(Error::Closed)));
    assert_state(late.start(), ServiceState::StartFailed);
}

#[test]
fn cli_9_shutting_down_waits_for_listeners_no_longer_than_it_is_told_to() {
    let scene = scene();
    scene.broker.create_topic("t", 2).unwrap();
    let start = |name: &str, listener: Box<dyn Fn(u32) + Send + Sync>| {
        let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap().name(name);
        builder.threads(2).start(move |delivery| listener(number(delivery))).unwrap()
    };
    let (door, seen) = (Door::default(), Seen::default());
    let inside = door.clone();
    let stuck = start(
        "a",
        Box::new(move |nth| {
            if nth == 0 {
                inside.pass()
            }
        }),
    );
    send_to(&scene.broker, "t", 0, 0);
    wait_for("a stuck listener", || door.waiting() == 1);
    let late = stuck.shutdown_within(SHORT);
    assert!(matches!(late, Err(Error::NotDrained { queues: 1 })), "{late:?}");
    assert_eq!((stuck.state(), scene.broker.stats().consumers), (ServiceState::Shutdown, 0));
    returns("a second shutdown, and the end", move || {
        stuck.shutdown();
        drop(stuck);
    });
    // The other queue is free, and this one as soon as its listener returns.
    let noted = seen.clone();
    let next = start("b", Box::new(move |nth| noted.note(nth)));
    assert_eq!(next.assignment(), [q("t", 1)]);
    fill(&scene.broker, "t", 1, 1..10);
    fill(&scene.broker, "t", 0, 10..20);
    wait_for("the other queue", || seen.len() == 9);
    door.open();
    wait_for("commit of all", || committed(&scene.broker, "g", "t") == 20);
    seen.assert_each_once(1..20);
    next.shutdown_within(SOON).unwrap();
}

#[test]
fn cli_11_what_was_read_is_consumed_while_paused_and_nothing_more_until_resumed() {
    let clock = DrivenClock::new(1_700_000_000_000);
    let scene = scene_with(|builder| builder.clock(&clock));
    scene.broker.create_topic("t", 1).unwrap();
    fill(&scene.broker, "t", 0, 0..20);
    let (seen, door) = (Seen::default(), Door::default());
    let (noted, inside) = (seen.clone(), door.clone());
    let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
    // The second read waits for the clock.
    let consumer = builder.threads(2).pull_batch(4).pull_interval(Duration::from_secs(60));
    let consumer = consumer
        .start(move |delivery| {
            inside.pass();
            noted.note(number(delivery));
        })
        .unwrap();
    wait_for("busy workers", || door.waiting() == 2);
    consumer.pause().unwrap();
    assert!(consumer.is_paused());
    door.open();
    wait_for("what was read", || seen.len() == 4);
    clock.advance(Duration::from_secs(60));
    // Others read on: by then this one would have, too.
    let other = Seen::default();
    let noted = other.clone();
    let builder = scene.broker.push_consumer("o").subscribe("t", "*").unwrap();
    let _other = builder.start(move |delivery| noted.note(number(delivery))).unwrap();
    wait_for("all of another group", || other.len() == 20);
    assert_eq!((seen.len(), consumer.assignment().len()), (4, 1));
    consumer.resume().unwrap();
    wait_for("the rest", || {
        clock.advance(Duration::from_secs(60));
        seen.len() == 20
    });
    assert!(!consumer.is_paused());
    wait_for("commit of all", || committed(&scene.broker, "g", "t") == 20);
    seen.assert_each_once(0..20);
}

#[test]
fn cli_11_pausing_at_any_time_loses_no_pull_request() {
    let scene = scene();
    scene.broker.create_topic("t", 4).unwrap();
    let seen = Seen::default();
    let noted = seen.clone();
    let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
    let consumer = builder.start(move |delivery| noted.note(number(delivery))).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| send(&scene.broker.producer(), "t", 0..4000));
        scope.spawn(|| {
            for _ in 0..500 {
                consumer.pause().unwrap();
                std::thread::yield_now();
                consumer.resume().unwrap();
            }
        });
    });
    wait_for("commit of all", || committed(&scene.broker, "g", "t") == 4000);
    seen.assert_each_once(0..4000);
    // Paused at the end: its queues go to others all the same, and it stops.
    consumer.pause().unwrap();
    send(&scene.broker.producer(), "t", 4000..4010);
    consumer.shutdown();
    let noted = seen.clone();
    let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
    let _next = builder.start(move |delivery| noted.note(number(delivery))).unwrap();
    wait_for("commit of all", || committed(&scene.broker, "g", "t") == 4010);
    seen.assert_each_once(0..4010);
}
