//! Closing while others call in (B-161), and what a close leaves behind.

use crate::support::*;
use rocklet::{
    AssignStrategy, Assignment, Broker, Error, Filter, GroupSettings, LabelledQueue, Message,
    ResetTo, Result,
};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Nothing but `Closed` may go wrong.
fn open_still<T>(result: Result<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(Error::Closed) => None,
        Err(other) => panic!("{other}"),
    }
}

fn keep_sending(broker: &Broker, sent: &AtomicU64, batch: bool) {
    let producer = broker.producer();
    let messages = [Message::new("t", body(1)).tag("a"), Message::new("t", body(2))];
    loop {
        let count = if batch {
            open_still(producer.send_batch(&messages)).map(|receipts| receipts.len())
        } else {
            open_still(producer.send(&messages[0])).map(|_| 1)
        };
        let Some(count) = count else { return };
        sent.fetch_add(count as u64, Ordering::Relaxed);
    }
}

fn keep_joining(broker: &Broker, group: &str) {
    loop {
        let builder = broker.push_consumer(group).subscribe("t", "*").unwrap().threads(1);
        if open_still(builder.start(|_| ())).is_none() {
            return;
        }
    }
}

fn keep_polling(broker: &Broker) {
    loop {
        let builder = broker.pull_consumer("p").subscribe("t", "a").unwrap();
        let Some(mut pull) = open_still(builder.start()) else { return };
        for _ in 0..3 {
            let polled = open_still(pull.poll(Duration::from_micros(100)));
            if polled.is_none() || open_still(pull.commit()).is_none() {
                return;
            }
            for queue in pull.assignment() {
                let _ = open_still(pull.pull(&queue, 0, 10));
                match pull.seek(&queue, 0) {
                    Ok(()) | Err(Error::Closed | Error::NotAssigned { .. }) => {}
                    Err(other) => panic!("{other}"),
                }
            }
        }
    }
}

/// Polls what it was assigned, with automatic commits, and waits for messages of any queue.
fn keep_waiting(broker: &Broker) {
    loop {
        let assigned = broker.pull_consumer("a").assign([q("t", 0), q("t", 1)], "a").unwrap();
        let mut pull = match assigned.auto_commit(Duration::from_secs(1)).start() {
            Ok(pull) => pull,
            Err(Error::NoSuchTopic { .. }) => continue,
            Err(Error::Closed) => return,
            Err(other) => panic!("{other}"),
        };
        for nth in 0..3 {
            let queue = q("t", nth);
            let limit = Duration::from_micros(100);
            let waited = open_still(pull.pull_within(&queue, "b", 0, 10, limit));
            let stored = open_still(pull.commit_offset(&queue, 0));
            if waited.and(stored).is_none() || open_still(pull.poll(limit)).is_none() {
                return;
            }
            if open_still(pull.assign([queue], "*")).is_none() {
                return;
            }
        }
    }
}

fn keep_scheduling(broker: &Broker) {
    loop {
        let builder = broker.pull_schedule("s").subscribe("t", "*").unwrap().threads(2);
        let schedule = builder.start(|turn| {
            turn.commit(turn.pull(10)?.next)?;
            Ok(Duration::from_micros(50))
        });
        if open_still(schedule).is_none() {
            return;
        }
    }
}

/// Changes a group that runs: what it subscribes to, where it is, what it may do.
fn keep_changing(broker: &Broker) {
    loop {
        let builder = broker.push_consumer("c").subscribe("t", "*").unwrap().threads(1);
        let Some(consumer) = open_still(builder.start(|_| ())) else { return };
        for times in 0..3 {
            let settings = GroupSettings::new().max_retries(times);
            let changed = consumer
                .subscribe("u", "*")
                .and_then(|()| consumer.pause())
                .and_then(|()| consumer.unsubscribe("u"))
                .and_then(|()| consumer.resume())
                .and_then(|()| broker.update_group("c", settings));
            let moved = match broker.reset_offsets("c", "t", ResetTo::First) {
                Err(Error::NoSuchTopic { .. }) => Ok(()),
                moved => moved.map(drop),
            };
            if open_still(changed.and(moved)).is_none() {
                return;
            }
        }
    }
}

fn keep_asking(broker: &Broker) {
    for nth in 0.. {
        let _ = broker.stats();
        if nth < 20 && open_still(broker.create_topic(&format!("t{nth}"), 3)).is_none() {
            return;
        }
        if open_still(broker.flush()).is_none() {
            return;
        }
    }
}

#[test]
fn b_161_close_while_others_call_in() {
    close_in_between(200);
}

#[test]
#[ignore = "takes minutes: ci/storms.sh all"]
fn b_161_close_while_others_call_in_a_thousand_times() {
    close_in_between(1000);
}

fn close_in_between(rounds: u64) {
    returns_in("all rounds", rounds as u32 * SOON / 60, move || {
        for round in 0..rounds {
            let dir = tempfile::tempdir().unwrap();
            let open = || Broker::builder(dir.path()).segment_bytes(64 << 10).open().unwrap();
            let (broker, sent) = (open(), AtomicU64::new(0));
            std::thread::scope(|scope| {
                let broker = &broker;
                scope.spawn(|| keep_sending(broker, &sent, false));
                scope.spawn(|| keep_sending(broker, &sent, true));
                scope.spawn(|| keep_joining(broker, "g"));
                scope.spawn(|| keep_joining(broker, "h"));
                scope.spawn(|| keep_polling(broker));
                scope.spawn(|| keep_waiting(broker));
                scope.spawn(|| keep_scheduling(broker));
                scope.spawn(|| keep_changing(broker));
                scope.spawn(|| keep_asking(broker));
                std::thread::sleep(Duration::from_micros(round * 37 % 4000));
                if round % 5 == 0 {
                    scope.spawn(|| broker.close().unwrap());
                }
                broker.close().unwrap();
                // Closed means closed: whoever still holds a handle holds nobody up.
                assert!(open().recovery_report().clean);
            });
            assert_eq!((broker.stats().consumers, broker.stats().held), (0, 0));
            let reopened = open();
            assert!(reopened.recovery_report().clean, "round {round}");
            assert_eq!(stored(&reopened, "t"), sent.load(Ordering::Relaxed));
        }
    });
}

/// As `returns`, for what takes longer.
fn returns_in(what: &str, limit: Duration, call: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(call);
    let start = std::time::Instant::now();
    while !thread.is_finished() {
        assert!(start.elapsed() < limit, "{what} did not end within {limit:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn a_second_close_and_a_drop_after_it_do_nothing() {
    let Scene { broker, dir } = scene();
    send(&broker.producer(), "t", 0..10);
    broker.close().unwrap();
    broker.close().unwrap();
    let reopened = small(dir.path()).open().unwrap();
    broker.close().unwrap();
    drop(broker);
    send(&reopened.producer(), "t", 0..10);
    assert_eq!(stored(&reopened, "t"), 20);
}

#[test]
fn closing_stops_consumers_and_starting_is_refused() {
    let Scene { broker, dir: _dir } = scene();
    send(&broker.producer(), "t", 0..100);
    let push = || broker.push_consumer("g").subscribe("t", "*").unwrap();
    let consumer = push().start(|_| ()).unwrap();
    let mut pull = broker.pull_consumer("p").subscribe("t", "*").unwrap().start().unwrap();
    broker.close().unwrap();
    assert!(consumer.assignment().is_empty());
    assert!(matches!(pull.poll(SOON), Err(Error::Closed)));
    assert!(matches!(push().start(|_| ()), Err(Error::Closed)));
    let again = broker.pull_consumer("p").subscribe("t", "*").unwrap().start();
    assert!(matches!(again, Err(Error::Closed)));
    assert_eq!((broker.stats().consumers, broker.stats().held), (0, 0));
    returns("shutdown", move || consumer.shutdown());
}

#[test]
fn a_poll_that_sleeps_is_woken_by_the_close() {
    let Scene { broker, dir: _dir } = scene();
    let mut pull = broker.pull_consumer("g").subscribe("t", "*").unwrap().start().unwrap();
    broker.create_topic("t", 3).unwrap();
    let polling = std::thread::spawn(move || pull.poll(Duration::MAX).map(|found| found.len()));
    wait_for("a sleeping poll", || broker.stats().held == 3);
    broker.close().unwrap();
    assert!(matches!(polling.join().unwrap(), Err(Error::Closed)));
    assert_eq!(broker.stats().held, 0);
}

#[test]
fn close_waits_for_a_poll_in_the_middle_of_a_read() {
    let Scene { broker, dir: _dir } = scene();
    send_to(&broker, "t", 0, 0);
    let door = Door::default();
    let inside = door.clone();
    let filter = Filter::predicate(move |_| {
        inside.pass();
        true
    });
    let mut pull = broker.pull_consumer("g").subscribe("t", filter).unwrap().start().unwrap();
    let polling = std::thread::spawn(move || pull.poll(SOON).map(|found| numbers(&found)));
    wait_for("a poll that reads", || door.waiting() == 1);
    let closing = broker.clone();
    let closing = std::thread::spawn(move || closing.close());
    // The consumer is stopped, and the files are still ours.
    wait_for("the stop", || broker.stats().consumers == 0);
    std::thread::sleep(SHORT);
    assert!(!closing.is_finished());
    door.open();
    closing.join().unwrap().unwrap();
    // It was given back when it was stopped.
    assert!(matches!(polling.join().unwrap(), Err(Error::Closed)));
}

#[test]
fn close_waits_for_running_listeners_and_commits_what_they_finish() {
    let Scene { broker, dir } = scene();
    broker.create_topic("t", 1).unwrap();
    send(&broker.producer(), "t", 0..100);
    let door = Door::default();
    let inside = door.clone();
    let builder = broker.push_consumer("g").subscribe("t", "*").unwrap();
    let _consumer = builder.threads(2).start(move |_| inside.pass()).unwrap();
    wait_for("two running listeners", || door.waiting() == 2);
    let closing = {
        let broker = broker.clone();
        std::thread::spawn(move || broker.close().unwrap())
    };
    wait_for("the end of the member", || broker.stats().consumers == 0);
    assert!(!closing.is_finished());
    assert!(matches!(small(dir.path()).open(), Err(Error::Locked { .. })));
    door.open();
    closing.join().unwrap();
    let delivered = broker.stats().delivered;
    assert!(delivered >= 2);
    assert_eq!(committed(&small(dir.path()).open().unwrap(), "g", "t"), delivered);
}

/// Closes the broker from inside a rebalance.
#[derive(Debug)]
struct Closing(Broker);

impl AssignStrategy for Closing {
    fn name(&self) -> &str {
        "CLOSING"
    }

    fn assign(
        &self,
        queues: &[LabelledQueue],
        members: &[String],
        _: &Assignment,
    ) -> Result<Assignment> {
        if members.len() > 1 {
            self.0.close()?;
        }
        Ok([(members[0].clone(), queues.to_vec())].into())
    }
}

#[test]
fn a_strategy_may_close_the_broker() {
    let Scene { broker, dir } = scene();
    broker.create_topic("t", 4).unwrap();
    returns("joining", move || {
        let join = || {
            let builder = broker.push_consumer("g").subscribe("t", "*").unwrap();
            builder.strategy(Closing(broker.clone())).start(|_| ())
        };
        let first = join().unwrap();
        assert!(matches!(join(), Err(Error::Closed)));
        assert!(first.assignment().is_empty());
        assert!(small(dir.path()).open().unwrap().recovery_report().clean);
    });
}

#[test]
fn a_closed_broker_leaves_no_thread_behind() {
    // A child of its own: threads of other tests have the same names.
    const CHILD: &str = "ROCKLET_TEST_THREADS";
    if std::env::var_os(CHILD).is_none() {
        let me = std::env::current_exe().unwrap();
        let name = "close::a_closed_broker_leaves_no_thread_behind";
        let mut child = std::process::Command::new(me);
        let child = child.args(["--exact", name, "--test-threads=1"]).env(CHILD, "1");
        let output = child.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    let open_files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open_files();
    for round in 0..30 {
        let dir = tempfile::tempdir().unwrap();
        let broker = small(dir.path()).open().unwrap();
        let inside = broker.clone();
        let builder = broker.push_consumer("g").subscribe("t", "*").unwrap();
        let consumer = builder
            .start(move |_| {
                if round % 3 == 0 {
                    inside.close().unwrap()
                } else {
                    assert_eq!(inside.stats().topics, 1)
                }
            })
            .unwrap();
        send(&broker.producer(), "t", 0..if round % 3 == 0 { 1 } else { 10 });
        match round % 3 {
            0 => wait_for("the close", || broker.flush().is_err()),
            1 => consumer.shutdown(),
            _ => broker.close().unwrap(),
        }
        broker.close().unwrap();
    }
    wait_for("the end of all threads", || threads("rocklet-") == 0);
    assert_eq!(open_files(), before);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let left: Vec<&str> = maps.lines().filter(|map| map.contains("commitlog")).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_second_close_fails_as_the_first_did() {
    let Scene { broker, dir } = scene();
    send(&broker.producer(), "t", 0..10);
    // The clean mark cannot be put where a folder is.
    let obstacle = dir.path().join("CLEAN");
    std::fs::create_dir_all(obstacle.join("x")).unwrap();
    let results: Vec<_> = std::thread::scope(|scope| {
        let closing: Vec<_> = (0..4).map(|_| scope.spawn(|| broker.close())).collect();
        closing.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let (first, others): (Vec<_>, Vec<_>) =
        results.into_iter().partition(|result| matches!(result, Err(Error::Io { .. })));
    let [Err(first)] = &first[..] else { panic!("{first:?}") };
    for other in others.into_iter().chain([broker.close()]) {
        let Err(Error::Poisoned { cause }) = other else { panic!("{other:?}") };
        assert_eq!(cause, first.to_string());
    }
    std::fs::remove_dir_all(&obstacle).unwrap();
    assert_eq!(stored(&small(dir.path()).open().unwrap(), "t"), 10);
}

#[test]
fn closing_gives_no_queue_to_a_member_that_is_about_to_stop() {
    let Scene { broker, dir: _dir } = scene();
    broker.create_topic("t", 2).unwrap();
    let (first, second, door) = (Seen::default(), Seen::default(), Door::default());
    let start = |name: &str, seen: &Seen, door: Option<Door>| {
        let noted = seen.clone();
        let builder = broker.push_consumer("g").subscribe("t", "*").unwrap();
        let builder = builder.name(name).threads(1);
        builder
            .start(move |delivery| {
                door.iter().for_each(Door::pass);
                noted.note(number(delivery));
            })
            .unwrap()
    };
    let _first = start("m1", &first, Some(door.clone()));
    let _second = start("m2", &second, None);
    fill(&broker, "t", 0, 0..50);
    wait_for("a running listener", || door.waiting() == 1);
    let closing = {
        let broker = broker.clone();
        std::thread::spawn(move || broker.close())
    };
    wait_for("the end of both members", || broker.stats().consumers == 0);
    door.open();
    closing.join().unwrap().unwrap();
    assert_eq!((first.len(), second.len()), (1, 0));
}

/// Descriptors and mappings of this process that refer to a file below `dir`.
fn references(dir: &std::path::Path) -> Vec<String> {
    let dir = dir.to_str().unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut names: Vec<_> =
        maps.lines().filter_map(|line| line.find(dir).map(|at| line[at..].to_owned())).collect();
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let target = entry.ok().and_then(|entry| std::fs::read_link(entry.path()).ok());
        names.extend(
            target.filter(|path| path.starts_with(dir)).map(|path| path.display().to_string()),
        );
    }
    names.sort();
    names
}

#[test]
fn b_054_nothing_refers_to_the_directory_after_close_but_what_was_received() {
    let scene = scene_with(|builder| builder.segment_bytes(64 << 10));
    let (broker, producer) = (scene.broker.clone(), scene.broker.producer());
    send(&producer, "t", 0..3000);
    broker.delete_topic("t").unwrap();
    send(&producer, "t", 0..3000);
    let seen = Seen::default();
    let noted = seen.clone();
    let push = broker.push_consumer("g").subscribe("t", "*").unwrap();
    let push = push.start(move |delivery| noted.note(number(delivery))).unwrap();
    let mut pull = broker.pull_consumer("p").subscribe("t", "*").unwrap().start().unwrap();
    let held = pull.poll(SOON).unwrap();
    let detached = held.get(0).unwrap().detach();
    pull.commit().unwrap();
    wait_for("deliveries", || seen.len() == 3000);
    assert!(references(scene.dir.path()).len() > 10);
    let (topics, stats) = (broker.topics(), broker.stats());
    let end = broker.max_offset(&q("t", 0)).unwrap();
    broker.close().unwrap();
    // Every handle is still there, and tells how it ended.
    let left = references(scene.dir.path());
    assert!(!left.is_empty() && left.iter().all(|name| name.contains("commitlog")), "{left:?}");
    assert!(left.len() <= 2, "{left:?}");
    assert_eq!(held.len(), held.iter().filter(|delivery| delivery.topic() == "t").count());
    drop(held);
    assert_eq!(references(scene.dir.path()).len(), 1);
    assert_eq!(detached.delivery().topic(), "t");
    drop(detached);
    assert_eq!(references(scene.dir.path()), Vec::<String>::new());
    assert_eq!((broker.topics(), broker.max_offset(&q("t", 0)).unwrap()), (topics, end));
    assert_eq!(
        (broker.stats().log_start, broker.stats().log_end),
        (stats.log_start, stats.log_end)
    );
    assert!(committed(&broker, "g", "t") == 3000);
    assert!(matches!(producer.send(&Message::new("t", body(1))), Err(Error::Closed)));
    assert!(matches!(pull.pull(&q("t", 0), 0, 1), Err(Error::Closed)));
    assert!(matches!(pull.poll(SHORT), Err(Error::Closed)));
    // The directory can be removed, and another store made there.
    std::fs::remove_dir_all(scene.dir.path()).unwrap();
    let again = Broker::open(scene.dir.path()).unwrap();
    assert_eq!(send_to(&again, "t", 0, 7).offset, 0);
    again.close().unwrap();
    drop((push, pull, producer));
}

#[test]
fn a_pull_that_is_going_on_is_waited_for() {
    for _ in 0..20 {
        let scene = scene_with(|builder| builder.segment_bytes(64 << 10));
        send(&scene.broker.producer(), "t", 0..500);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                let broker = scene.broker.clone();
                scope.spawn(move || {
                    let Some(pull) = open_still(broker.pull_consumer("p").start()) else { return };
                    while let Some(pulled) = open_still(pull.pull(&q("t", 0), 0, 100)) {
                        assert_eq!(pulled.messages.len(), 100);
                    }
                });
            }
            scene.broker.close().unwrap();
            let again = small(scene.dir.path()).segment_bytes(64 << 10).open().unwrap();
            // Blocks and files of the index are used again.
            again.delete_topic("t").unwrap();
            send(&again.producer(), "t", 0..500);
        });
    }
}
