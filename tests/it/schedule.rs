//! Scheduled pulls: a callback for each queue, again and again.

use crate::support::*;
use rocklet::{
    Broker, DrivenClock, Error, GroupSettings, PullSchedule, PullTurn, QueueId, ServiceState,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);

/// Pulls a few, notes and commits them; again at once if there may be more.
fn consume(turn: &PullTurn<'_>, seen: &Seen, idle: Duration) -> rocklet::NextTurn {
    let pulled = turn.pull(7)?;
    numbers(&pulled.messages).into_iter().for_each(|number| seen.note(number));
    turn.commit(pulled.next)?;
    Ok(if pulled.messages.is_empty() { idle } else { Duration::ZERO })
}

fn consumer(broker: &Broker, name: &str, seen: &Seen) -> PullSchedule {
    let seen = seen.clone();
    let builder = broker.pull_schedule("g").subscribe("t", "*").unwrap().name(name).threads(2);
    builder.start(move |turn| consume(turn, &seen, MS)).unwrap()
}

fn driven() -> (Scene, DrivenClock) {
    let clock = DrivenClock::new(1_000_000);
    (scene_with(|builder| builder.clock(&clock)), clock)
}

#[test]
fn pc_9_every_queue_is_consumed_and_progress_is_kept() {
    let scene = scene();
    scene.broker.create_topic("t", 4).unwrap();
    send(&scene.broker.producer(), "t", 0..400);
    let seen = Seen::default();
    let schedule = consumer(&scene.broker, "a", &seen);
    assert_eq!((schedule.state(), schedule.name()), (ServiceState::Running, "a"));
    assert_eq!(schedule.assignment().len(), 4);
    wait_for("all", || committed(&scene.broker, "g", "t") == 400);
    send(&scene.broker.producer(), "t", 400..500);
    wait_for("the next", || committed(&scene.broker, "g", "t") == 500);
    schedule.shutdown();
    schedule.shutdown();
    assert_eq!((schedule.state(), scene.broker.stats().consumers), (ServiceState::Shutdown, 0));
    assert!(schedule.assignment().is_empty());
    drop(schedule);
    let scene = scene.reopen();
    send(&scene.broker.producer(), "t", 500..600);
    let _schedule = consumer(&scene.broker, "a", &seen);
    wait_for("the rest", || committed(&scene.broker, "g", "t") == 600);
    seen.assert_each_once(0..600);
}

#[test]
fn pc_9_a_callback_is_called_again_after_the_time_that_it_says_and_not_before() {
    let (scene, clock) = driven();
    scene.broker.create_topic("t", 2).unwrap();
    let times: Arc<Mutex<BTreeMap<QueueId, Vec<u64>>>> = Arc::default();
    let (noted, now) = (times.clone(), clock.clone());
    let builder = scene.broker.pull_schedule("g").subscribe("t", "*").unwrap();
    let _schedule = builder
        .start(move |turn| {
            noted.lock().unwrap().entry(turn.queue().clone()).or_default().push(now.wall_ms());
            Ok(if turn.queue().queue() == 0 { HOUR } else { HOUR / 6 })
        })
        .unwrap();
    let calls = |queue| times.lock().unwrap().get(&q("t", queue)).map_or(0, Vec::len);
    wait_for("the first calls", || calls(0) == 1 && calls(1) == 1);
    wait_for("three hours of calls", || {
        clock.advance(HOUR / 120);
        calls(0) == 4
    });
    let times = times.lock().unwrap();
    for (queue, delay) in [(0, HOUR), (1, HOUR / 6)] {
        let between = times[&q("t", queue)].windows(2).map(|pair| pair[1] - pair[0]);
        assert!(between.map(Duration::from_millis).all(|passed| passed >= delay), "{times:?}");
    }
    assert!(times[&q("t", 1)].len() > 4, "each in its own time: {times:?}");
}

#[test]
fn pc_9_after_an_error_or_a_panic_the_callback_is_called_again_in_a_second() {
    let (scene, clock) = driven();
    scene.broker.create_topic("t", 1).unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let builder = scene.broker.pull_schedule("g").subscribe("t", "*").unwrap();
    let schedule = builder
        .start(move |_| match counted.fetch_add(1, Ordering::SeqCst) {
            0 => Err("planted".into()),
            1 => panic!("planted, too"),
            2 => std::panic::panic_any(Bomb),
            _ => Ok(HOUR),
        })
        .unwrap();
    let failures = [
        "t/0: planted",
        "t/0: the callback panicked: planted, too",
        "t/0: the callback panicked: a panic without text",
    ];
    for (nth, failure) in failures.into_iter().enumerate() {
        wait_for("the failure", || schedule.last_failure().as_deref() == Some(failure));
        assert_eq!(calls.load(Ordering::SeqCst), nth + 1);
        // Once its next turn is in the timer, time that has passed counts.
        wait_for("the next call", || {
            let due = calls.load(Ordering::SeqCst) == nth + 2;
            if !due {
                clock.advance(Duration::from_millis(100));
            }
            due
        });
        assert!(clock.wall_ms() >= 1_001_000 + 1000 * nth as u64);
    }
}

#[test]
fn pc_9_a_lost_queue_has_no_further_call_and_changes_hands_behind_the_one_that_goes_on() {
    let scene = scene();
    scene.broker.create_topic("t", 2).unwrap();
    (0..2).for_each(|queue| fill(&scene.broker, "t", queue, 0..10));
    let (door, calls) = (Door::default(), Arc::new(AtomicUsize::new(0)));
    let (inside, counted) = (door.clone(), calls.clone());
    let last = Arc::new(Mutex::new(None));
    let told = last.clone();
    let builder = scene.broker.pull_schedule("g").subscribe("t", "*").unwrap().name("a");
    let schedule = builder
        .threads(2)
        .start(move |turn| {
            if turn.queue().queue() == 1 {
                counted.fetch_add(1, Ordering::SeqCst);
                inside.pass();
                turn.commit(turn.committed() + 4)?;
                *told.lock().unwrap() = Some(turn.is_last());
            }
            Ok(Duration::ZERO)
        })
        .unwrap();
    wait_for("a call that goes on", || door.waiting() == 1);
    let mut other = scene.broker.pull_consumer("g").subscribe("t", "*").unwrap();
    other = other.name("b");
    let mut other = other.start().unwrap();
    assert!(other.assignment().is_empty(), "the call has not returned");
    assert_eq!(scene.broker.stats().draining, 1);
    door.open();
    wait_for("the queue", || other.assignment() == [q("t", 1)]);
    assert_eq!(*last.lock().unwrap(), Some(true));
    assert_eq!(numbers(&other.poll(SOON).unwrap()), [4, 5, 6, 7, 8, 9]);
    assert_eq!((calls.load(Ordering::SeqCst), schedule.assignment()), (1, vec![q("t", 0)]));
    // It comes back, and is called for at once.
    other.close();
    wait_for("the queue again", || calls.load(Ordering::SeqCst) > 1);
}

#[test]
fn pc_9_members_come_and_go_and_every_message_is_pulled_once() {
    let scene = scene();
    scene.broker.create_topic("t", 8).unwrap();
    let seen = Seen::default();
    let _stays = consumer(&scene.broker, "a", &seen);
    for round in 0..20 {
        let others = ["0", "b"].map(|name| consumer(&scene.broker, name, &seen));
        send(&scene.broker.producer(), "t", round * 50..round * 50 + 50);
        drop(others);
    }
    wait_for("all", || committed(&scene.broker, "g", "t") == 1000);
    seen.assert_each_once(0..1000);
}

#[test]
fn pc_9_what_a_schedule_and_its_turns_refuse() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    fill(&scene.broker, "t", 0, 0..5);
    let builder = || scene.broker.pull_schedule("g").subscribe("t", "*").unwrap().name("m");
    for threads in [0, 1001] {
        let refused = builder().threads(threads).start(|_| Ok(HOUR));
        assert!(matches!(refused, Err(Error::Setting { name: "threads", .. })));
    }
    let (sender, told) = std::sync::mpsc::channel();
    let _schedule = builder()
        .start(move |turn| {
            let refused = [0, 65_536].map(|max| turn.pull(max).is_err());
            let beyond = matches!(turn.commit(6), Err(Error::OffsetRange { offset: 6, .. }));
            sender.send((refused, beyond, turn.committed()))?;
            Ok(HOUR)
        })
        .unwrap();
    assert_eq!(told.recv_timeout(SOON).unwrap(), ([true; 2], true, 0));
    let refused = builder().start(|_| Ok(HOUR));
    assert!(matches!(refused, Err(Error::Duplicate { .. })));
    assert_eq!(scene.broker.stats().consumers, 1);
}

#[test]
fn pull_15_the_pulls_of_a_schedule_are_counted_as_well() {
    let scene = scene();
    let broker = &scene.broker;
    broker.create_topic("t", 1).unwrap();
    send_tagged(broker, "t", "other", 0);
    let (sender, told) = std::sync::mpsc::channel();
    let inside = broker.clone();
    let _schedule = broker
        .pull_schedule("g")
        .subscribe("t", "wanted")
        .unwrap()
        .start(move |turn| {
            turn.commit(turn.pull(7)?.next)?;
            turn.pull(7)?;
            send_tagged(&inside, "t", "wanted", 1);
            turn.pull(7)?;
            let settings = GroupSettings::new().forbid_consuming();
            inside.update_group("g", settings)?;
            sender.send(turn.pull(7).is_err())?;
            Ok(HOUR)
        })
        .unwrap();
    assert!(told.recv_timeout(SOON).unwrap());
    let pulls = broker.pull_stats("g").unwrap();
    assert_eq!((pulls.none_matched, pulls.no_new, pulls.failed), (1, 1, 1));
    assert_eq!((pulls.found, pulls.messages), (1, 1));
}

#[test]
fn pc_9_a_callback_may_close_the_broker_or_drop_its_schedule() {
    let scene = scene();
    scene.broker.create_topic("t", 4).unwrap();
    let broker = scene.broker.clone();
    let closing = scene.broker.pull_schedule("g").subscribe("t", "*").unwrap();
    // Not before it has started: that would be refused.
    let door = Door::default();
    let started = door.clone();
    let _schedule = closing
        .start(move |_| {
            started.pass();
            broker.close()?;
            Ok(Duration::ZERO)
        })
        .unwrap();
    door.open();
    let broker = scene.broker.clone();
    returns("close", move || broker.close().unwrap());

    let scene = self::scene();
    scene.broker.create_topic("t", 4).unwrap();
    let place: Arc<Mutex<Option<PullSchedule>>> = Arc::default();
    let own = place.clone();
    let builder = scene.broker.pull_schedule("g").subscribe("t", "*").unwrap();
    let schedule = builder
        .start(move |_| {
            drop(own.lock().unwrap().take());
            Ok(MS)
        })
        .unwrap();
    *place.lock().unwrap() = Some(schedule);
    wait_for("the end of the schedule", || {
        place.lock().unwrap().is_none() && scene.broker.stats().consumers == 0
    });
    returns("close", move || scene.broker.close().unwrap());
}
