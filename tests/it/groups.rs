//! Who may join a group, and who gets which queue.

use crate::support::*;
use rocklet::{
    AssignStrategy, Assignment, Broker, Error, LabelledQueue, PushConsumer, QueueId, Result,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn start(broker: &Broker, name: &str) -> Result<PushConsumer> {
    broker.push_consumer("g").subscribe("t", "*")?.name(name).start(|_| ())
}

#[test]
fn a_duplicate_name_is_refused_and_registers_nothing() {
    let Scene { broker, dir: _dir } = scene();
    broker.create_topic("t", 4).unwrap();
    let running = start(&broker, "m").unwrap();
    let other = broker.clone();
    let error = returns("refused start", move || start(&other, "m").map(drop).unwrap_err());
    assert!(
        matches!(error, Error::Duplicate { ref group, ref name } if group == "g" && name == "m")
    );
    assert_eq!((broker.stats().consumers, running.assignment().len()), (1, 4));
    let second = start(&broker, "n").unwrap();
    assert_eq!((running.assignment().len(), second.assignment().len()), (2, 2));
    // The running one is as it was.
    send(&broker.producer(), "t", 0..40);
    wait_for("commit of all", || committed(&broker, "g", "t") == 40);
    returns("shutdown", move || running.shutdown());
    start(&broker, "m").unwrap().shutdown();
}

#[test]
fn a_name_is_free_again_when_its_consumer_has_stopped() {
    let scene = scene();
    for round in 0..20 {
        let consumer = start(&scene.broker, "m").unwrap();
        if round % 2 == 0 {
            consumer.shutdown()
        } else {
            drop(consumer)
        }
        let builder = scene.broker.pull_consumer("p").subscribe("t", "*").unwrap().name("m");
        let pull = builder.start().unwrap();
        if round % 2 == 0 { pull.close() } else { drop(pull) }
    }
}

// (CLI-6)
#[test]
fn a_generated_name_avoids_those_that_users_gave() {
    let scene = scene();
    let first = scene.broker.push_consumer("g").subscribe("t", "*").unwrap().start(|_| ()).unwrap();
    let taken: Vec<_> =
        (2..6).map(|nth| start(&scene.broker, &format!("consumer-{nth}")).unwrap()).collect();
    let next = scene.broker.push_consumer("g").subscribe("t", "*").unwrap().start(|_| ()).unwrap();
    assert!(taken.iter().chain([&first]).all(|consumer| consumer.name() != next.name()));
}

// (SUB-4, REB-5, REB-6)
#[test]
fn b_094_members_must_subscribe_to_the_same() {
    let Scene { broker, dir: _dir } = scene();
    broker.create_topic("t", 2).unwrap();
    broker.create_topic("u", 2).unwrap();
    let subscribe = |topics: &[(&str, &str)], name: &str| {
        let mut builder = broker.push_consumer("g").name(name);
        for (topic, filter) in topics {
            builder = builder.subscribe(topic, *filter)?;
        }
        builder.start(|_| ())
    };
    let running = subscribe(&[("t", "a || b")], "m").unwrap();
    let others: [&[(&str, &str)]; 4] =
        [&[("t", "a")], &[("t", "*")], &[("u", "a || b")], &[("t", "a || b"), ("u", "*")]];
    for other in others {
        let error = subscribe(other, "n").unwrap_err();
        assert!(matches!(error, Error::Mismatch { what: "subscription", .. }), "{error}");
    }
    let error = broker.pull_consumer("g").subscribe("t", "a || b").unwrap().start().unwrap_err();
    assert!(matches!(error, Error::Mismatch { what: "kind of consumer", .. }), "{error}");
    assert_eq!((broker.stats().consumers, running.assignment().len()), (1, 2));
    assert_eq!(broker.committed("g", &q("u", 0)).unwrap(), None, "a refused member left a start");
    // The same in other words, under the name that was refused.
    let second = subscribe(&[("t", "b||a")], "n").unwrap();
    drop((running, second));
    subscribe(&[("u", "*")], "m").unwrap().shutdown();
}

#[test]
fn b_092_members_without_a_queue_take_over_when_an_owner_stops() {
    let scene = scene();
    scene.broker.create_topic("t", 4).unwrap();
    let mut members: Vec<_> =
        (0..6).map(|nth| start(&scene.broker, &format!("m{nth}")).unwrap()).collect();
    let shares = |members: &[PushConsumer]| -> Vec<usize> {
        members.iter().map(|member| member.assignment().len()).collect()
    };
    assert_eq!(shares(&members), [1, 1, 1, 1, 0, 0]);
    members.remove(1).shutdown();
    assert_eq!(shares(&members), [1, 1, 1, 1, 0]);
    members.remove(0).shutdown();
    members.remove(0).shutdown();
    assert_eq!(shares(&members), [2, 1, 1]);
    send(&scene.broker.producer(), "t", 0..100);
    wait_for("commit of all", || committed(&scene.broker, "g", "t") == 100);
}

#[test]
fn reb_2_the_queues_of_each_topic_are_dealt_out() {
    let scene = scene();
    scene.broker.create_topic("t", 5).unwrap();
    scene.broker.create_topic("u", 3).unwrap();
    let start = |name: &str| {
        let builder = scene.broker.pull_consumer("g").subscribe("t", "*").unwrap();
        builder.subscribe("u", "*").unwrap().name(name).start().unwrap()
    };
    let (a, b) = (start("a"), start("b"));
    let mut all: Vec<QueueId> = [a.assignment(), b.assignment()].concat();
    assert_eq!((a.assignment().len(), b.assignment().len()), (3 + 2, 2 + 1));
    all.sort();
    let queues = [scene.broker.queues("t").unwrap(), scene.broker.queues("u").unwrap()];
    assert_eq!(all, queues.concat());
}

/// Does what its number says.
#[derive(Debug)]
struct Odd(Arc<AtomicUsize>);

impl AssignStrategy for Odd {
    fn name(&self) -> &str {
        "ODD"
    }

    fn assign(
        &self,
        queues: &[LabelledQueue],
        members: &[String],
        _: &Assignment,
    ) -> Result<Assignment> {
        let all = |member: &str| (member.to_owned(), queues.to_vec());
        match self.0.load(Ordering::SeqCst) {
            0 => Ok([all(&members[0])].into()),
            1 => panic!("planted"),
            2 => std::panic::panic_any(Bomb),
            3 => Ok(members.iter().map(|member| all(member)).collect()),
            4 => Ok([all("nobody")].into()),
            5 => Ok([(members[0].clone(), vec![LabelledQueue::new("t", "rocklet", 99)])].into()),
            6 => Err(Error::Strategy { reason: "planted".to_owned() }),
            _ => Ok(Assignment::new()),
        }
    }
}

#[test]
fn reb_4_a_strategy_that_fails_changes_nothing() {
    // Driven, so that a failure is tried again when something happens, and not by itself.
    let clock = rocklet::DrivenClock::new(1_700_000_000_000);
    let Scene { broker, dir: _dir } = scene_with(|builder| builder.clock(&clock));
    broker.create_topic("t", 3).unwrap();
    let mode = Arc::new(AtomicUsize::new(0));
    let join = |name: &str| {
        let builder = broker.push_consumer("g").subscribe("t", "*").unwrap().name(name);
        builder.strategy(Odd(mode.clone())).start(|_| ()).unwrap()
    };
    let running = join("m0");
    for failing in 1..=6 {
        mode.store(failing, Ordering::SeqCst);
        let before = broker.stats().failed_rebalances;
        let other = join(&format!("m{failing}"));
        assert_eq!((running.assignment().len(), other.assignment().len()), (3, 0), "{failing}");
        assert_eq!(broker.stats().failed_rebalances, before + 1);
        drop(other);
    }
    send(&broker.producer(), "t", 0..30);
    wait_for("commit of all", || committed(&broker, "g", "t") == 30);
    // Queues may stay unassigned, and come back.
    mode.store(7, Ordering::SeqCst);
    let other = join("m7");
    assert!(running.assignment().is_empty());
    mode.store(0, Ordering::SeqCst);
    drop(other);
    assert_eq!(running.assignment().len(), 3);
    let error = start(&broker, "n").unwrap_err();
    assert!(matches!(error, Error::Mismatch { what: "assignment strategy", .. }), "{error}");
    mode.store(1, Ordering::SeqCst);
    returns("shutdown", move || running.shutdown());
    assert_eq!(broker.stats().consumers, 0);
}

/// Takes its time, so that the group changes behind its back.
#[derive(Debug)]
struct Slow;

impl AssignStrategy for Slow {
    fn name(&self) -> &str {
        "SLOW"
    }

    fn assign(
        &self,
        queues: &[LabelledQueue],
        members: &[String],
        _: &Assignment,
    ) -> Result<Assignment> {
        std::thread::sleep(std::time::Duration::from_micros(300));
        let mut dealt = Assignment::new();
        for (nth, queue) in queues.iter().enumerate() {
            dealt.entry(members[nth % members.len()].clone()).or_default().push(queue.clone());
        }
        Ok(dealt)
    }
}

#[test]
fn an_assignment_that_was_overtaken_is_not_followed() {
    let scene = scene();
    scene.broker.create_topic("t", 6).unwrap();
    let join = |name: &str| {
        let builder = scene.broker.pull_consumer("g").subscribe("t", "*").unwrap();
        builder.subscribe("late", "*").unwrap().name(name).strategy(Slow).start().unwrap()
    };
    let staying = join("staying");
    std::thread::scope(|scope| {
        for thread in 0..5 {
            let join = &join;
            scope.spawn(move || {
                for round in 0..10 {
                    drop(join(&format!("m{thread}-{round}")));
                }
            });
        }
        scope.spawn(|| send(&scene.broker.producer(), "late", 0..1));
    });
    let all = [scene.broker.queues("late").unwrap(), scene.broker.queues("t").unwrap()];
    assert_eq!(staying.assignment(), all.concat());
}

/// Reaches into the broker from wherever it is called, also when it is dropped.
#[derive(Debug)]
struct Meddling(Broker);

impl AssignStrategy for Meddling {
    fn name(&self) -> &str {
        let _ = self.0.stats();
        "MEDDLING"
    }

    fn assign(
        &self,
        queues: &[LabelledQueue],
        members: &[String],
        _: &Assignment,
    ) -> Result<Assignment> {
        let _ = self.0.committed("g", queues[0].id());
        Ok([(members[0].clone(), queues.to_vec())].into())
    }
}

impl Drop for Meddling {
    fn drop(&mut self) {
        let _ = self.0.push_consumer("g").subscribe("t", "*").map(|builder| builder.start(|_| ()));
        let _ = self.0.stats();
    }
}

#[test]
fn a_strategy_is_called_and_dropped_with_no_lock_held() {
    let Scene { broker, dir } = scene();
    broker.create_topic("t", 3).unwrap();
    returns("everything", move || {
        let join = |name: &str| {
            let builder = broker.push_consumer("g").subscribe("t", "*").unwrap().name(name);
            builder.strategy(Meddling(broker.clone())).start(|_| ()).unwrap()
        };
        let (a, b) = (join("a"), join("b"));
        assert_eq!(a.assignment().len(), 3);
        drop((a, b));
        broker.close().unwrap();
        drop(dir);
    });
}

#[test]
fn groups_know_nothing_of_each_other() {
    let scene = scene();
    scene.broker.create_topic("t", 2).unwrap();
    let _push = start(&scene.broker, "m").unwrap();
    let builder = scene.broker.pull_consumer("p").subscribe("t", "none").unwrap().name("m");
    let pull = builder.start().unwrap();
    assert_eq!(pull.assignment().len(), 2);
    send(&scene.broker.producer(), "t", 0..10);
    wait_for("commit of all", || committed(&scene.broker, "g", "t") == 10);
    assert_eq!(committed(&scene.broker, "p", "t"), 0);
}
