//! Queues that a pull consumer has because it says so, and not by a rebalance.

use crate::support::*;
use rocklet::{Broker, ByConfig, Error, Filter, Mode, PullConsumer, QueueId, QueuesChanged, Start};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A topic of four queues, with ten messages in each: 0, 1, .. in the first, 10, 11, .. in the next.
fn four_queues() -> Scene {
    let scene = scene();
    scene.broker.create_topic("t", 4).unwrap();
    for queue in 0..4 {
        fill(&scene.broker, "t", queue, u32::from(queue) * 10..u32::from(queue) * 10 + 10);
    }
    scene
}

fn queues(numbers: &[u16]) -> Vec<QueueId> {
    numbers.iter().map(|number| q("t", *number)).collect()
}

fn assigned(broker: &Broker, numbers: &[u16]) -> PullConsumer {
    let builder = broker.pull_consumer("g").assign(queues(numbers), Filter::ALL).unwrap();
    builder.batch(4).start().unwrap()
}

fn polled(consumer: &mut PullConsumer) -> Vec<u32> {
    numbers(&consumer.poll(Duration::ZERO).unwrap())
}

fn drain(consumer: &mut PullConsumer) -> Vec<u32> {
    let rounds = std::iter::repeat_with(|| polled(consumer));
    let mut all: Vec<_> = rounds.take_while(|found| !found.is_empty()).flatten().collect();
    all.sort_unstable();
    all
}

#[track_caller]
fn assert_refused<T>(result: rocklet::Result<T>) {
    match result {
        Err(error @ Error::Assignment { .. }) => {
            assert!(error.to_string().starts_with("the consumer's queues cannot be chosen"));
        }
        other => panic!("{:?}", other.map(drop)),
    }
}

#[test]
fn lite_1_a_consumer_subscribes_or_is_assigned_queues() {
    let scene = four_queues();
    let broker = &scene.broker;
    let both = broker.pull_consumer("g").subscribe("t", "*").unwrap();
    assert_refused(both.assign(queues(&[0]), "*").unwrap().start());
    let both = broker.pull_consumer("g").assign(queues(&[0]), "*").unwrap();
    assert_refused(both.subscribe("t", "*").unwrap().start());
    assert_refused(broker.pull_consumer("g").assign([], "*").unwrap().start());
    assert_eq!((broker.stats().consumers, broker.groups().len()), (0, 1), "{:?}", broker.groups());

    let mut subscriber = broker.pull_consumer("g").subscribe("t", "*").unwrap().start().unwrap();
    assert_refused(subscriber.assign(queues(&[0]), "*"));
    let mut other = assigned(broker, &[0]);
    assert_refused(other.subscribe("t", "*"));
    assert_refused(other.unsubscribe("t"));
    assert_refused(other.assign([], "*"));
    assert_eq!((subscriber.assignment().len(), other.assignment()), (4, queues(&[0])));
}

#[test]
fn lite_2_assigned_queues_are_those_and_no_member_is_disturbed() {
    let scene = four_queues();
    let broker = &scene.broker;
    let builder = || broker.pull_consumer("g").subscribe("t", "*").unwrap();
    let mut member = builder().name("m").start().unwrap();
    member.seek(&q("t", 1), 3).unwrap();
    member.commit().unwrap();
    // Neither its name, nor what it wants, nor what it has, is an affair of the group.
    let guest = broker.pull_consumer("g").assign(queues(&[1, 3]), Filter::ALL).unwrap();
    let mut guest = guest.name("m").start().unwrap();
    assert_eq!(guest.assignment(), queues(&[1, 3]));
    assert_eq!((member.assignment().len(), broker.stats().consumers), (4, 2));
    let expected: Vec<_> = (13..20).chain(30..40).collect();
    assert_eq!(drain(&mut guest), expected, "from where the group stands");
    let others = builder().name("n").start().unwrap();
    assert_eq!(guest.assignment(), queues(&[1, 3]), "rebalances are for members");
    drop(others);
    assert_eq!(drain(&mut member).len(), 37);
    guest.commit().unwrap();
    assert_eq!(committed(broker, "g", "t"), 20);

    drop(member);
    assert!(matches!(broker.delete_group("g"), Err(Error::GroupInUse { members: 1, .. })));
    guest.close();
    broker.delete_group("g").unwrap();
}

#[test]
fn lite_2_other_queues_leave_those_that_stay_where_they_are() {
    let scene = four_queues();
    let mut pull = assigned(&scene.broker, &[0, 1]);
    assert_eq!(polled(&mut pull), [0, 1, 2, 3]);
    assert_eq!(polled(&mut pull), [10, 11, 12, 13]);
    pull.pause(&[q("t", 1)]).unwrap();
    pull.assign(queues(&[1, 2]), "*").unwrap();
    assert_eq!((pull.assignment(), pull.paused()), (queues(&[1, 2]), queues(&[1])));
    pull.resume(&[q("t", 1)]).unwrap();
    let expected: Vec<_> = (14..20).chain(20..30).collect();
    assert_eq!(drain(&mut pull), expected);
    pull.commit().unwrap();
    assert_eq!(pull.committed(&q("t", 0)).unwrap(), Some(0), "polled and given up");
    // What is not there is refused, and changes nothing.
    assert!(matches!(pull.assign(queues(&[0, 4]), "*"), Err(Error::NoSuchQueue { .. })));
    assert!(matches!(pull.assign([q("u", 0)], "*"), Err(Error::NoSuchTopic { .. })));
    assert!(matches!(pull.assign(queues(&[0]), "||"), Err(Error::Filter { .. })));
    assert_eq!(pull.assignment(), queues(&[1, 2]));
    pull.assign(queues(&[0, 0, 1]), "*").unwrap();
    assert_eq!(drain(&mut pull), (0..10).collect::<Vec<_>>());

    let builder = scene.broker.pull_consumer("g").assign([q("u", 0)], "*").unwrap();
    assert!(matches!(builder.start(), Err(Error::NoSuchTopic { .. })));
    drop(pull);
    scene.broker.delete_group("g").unwrap();
}

#[test]
fn lite_2_the_filter_of_an_assignment_is_all_that_is_looked_at() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    for nth in 0..20 {
        send_tagged(&scene.broker, "t", if nth % 2 == 0 { "even" } else { "odd" }, nth);
    }
    let builder = scene.broker.pull_consumer("g").assign(queues(&[0]), "even").unwrap();
    let mut pull = builder.batch(3).start().unwrap();
    assert_eq!(polled(&mut pull), [0, 2, 4]);
    assert_eq!(numbers(&pull.pull(&q("t", 0), 0, 2).unwrap().messages), [0, 2]);
    pull.assign(queues(&[0]), "odd").unwrap();
    assert_eq!(drain(&mut pull), [5, 7, 9, 11, 13, 15, 17, 19]);
    pull.commit().unwrap();
    assert_eq!(committed(&scene.broker, "g", "t"), 20);
}

#[test]
fn lite_2_a_new_group_begins_where_it_is_told_and_a_known_one_where_it_stands() {
    let scene = four_queues();
    let start = |numbers: &[u16]| {
        let builder = scene.broker.pull_consumer("g").assign(queues(numbers), "*").unwrap();
        builder.start_from(Start::Last).start().unwrap()
    };
    let mut pull = start(&[0, 1]);
    assert!(drain(&mut pull).is_empty());
    fill(&scene.broker, "t", 0, 50..52);
    assert_eq!(drain(&mut pull), [50, 51]);
    drop(pull);
    // What the group has not met it reads from the beginning, as members do.
    let expected: Vec<_> = (20..30).chain(50..52).collect();
    assert_eq!(drain(&mut start(&[0, 2])), expected);

    // Broadcasting: progress is kept under the member's name.
    let member = |name: &str| {
        let builder = scene.broker.pull_consumer("b").assign(queues(&[3]), "*").unwrap();
        builder.mode(Mode::Broadcasting).name(name).start().unwrap()
    };
    let mut pull = member("a");
    assert_eq!(drain(&mut pull).len(), 10);
    pull.commit().unwrap();
    assert_eq!(scene.broker.committed_by("b", "a", &q("t", 3)).unwrap(), Some(10));
    assert_eq!((drain(&mut member("a")).len(), drain(&mut member("b")).len()), (0, 10));
}

// (REB-15)
#[test]
fn lite_2_progress_of_an_assignment_survives_a_kill() {
    let scene = four_queues();
    let mut pull = assigned(&scene.broker, &[0, 1]);
    assert_eq!(polled(&mut pull).len() + polled(&mut pull).len(), 8);
    pull.commit().unwrap();
    assert_eq!(polled(&mut pull).len(), 4);
    let killed = copy_of(scene.dir.path());
    let broker = small(killed.path()).open().unwrap();
    let expected: Vec<_> = (4..10).chain(14..20).collect();
    assert_eq!(drain(&mut assigned(&broker, &[0, 1])), expected);
}

#[test]
fn lite_2_members_go_on_where_a_guest_has_committed_or_passed_by() {
    let scene = four_queues();
    let broker = &scene.broker;
    let member = || broker.pull_consumer("g").subscribe("t", "*").unwrap().batch(4);
    let mut guest = assigned(broker, &[0]);
    let unwanted = broker.pull_consumer("g").assign(queues(&[1]), "unwanted").unwrap();
    let mut passing = unwanted.start().unwrap();
    drop(member().start().unwrap());
    assert_eq!(polled(&mut guest), [0, 1, 2, 3]);
    guest.commit().unwrap();
    assert!(polled(&mut passing).is_empty());
    let at = [0, 1].map(|queue| broker.committed("g", &q("t", queue)).unwrap());
    assert_eq!(at, [Some(4), Some(10)]);
    let mut member = member().batch(1024).start().unwrap();
    assert_eq!(drain(&mut member), (4..10).chain(20..40).collect::<Vec<_>>());
}

#[test]
fn lite_13_a_change_of_the_topic_is_told_to_whoever_has_queues_of_it() {
    let scene = four_queues();
    scene.broker.create_topic("other", 1).unwrap();
    let told: Arc<Mutex<Vec<QueuesChanged>>> = Arc::default();
    let noted = told.clone();
    let builder = scene.broker.pull_consumer("g").assign(queues(&[0]), "*").unwrap();
    let mut pull = builder
        .on_queues_changed(move |change| noted.lock().unwrap().push(change.clone()))
        .start()
        .unwrap();
    let mut told = || {
        pull.poll(Duration::ZERO).unwrap();
        let told = std::mem::take(&mut *told.lock().unwrap());
        let told = told.into_iter().map(|told| (told.topic, told.all.len(), told.mine.len()));
        told.collect::<Vec<_>>()
    };
    assert_eq!(told(), []);
    scene.broker.update_topic("t", 6).unwrap();
    assert_eq!(told(), [("t".to_owned(), 6, 1)]);
    scene.broker.update_topic("other", 3).unwrap();
    assert_eq!(told(), []);
    scene.broker.delete_topic("t").unwrap();
    assert_eq!(told(), [("t".to_owned(), 0, 1)]);
    scene.broker.create_topic("t", 2).unwrap();
    assert_eq!(told(), [("t".to_owned(), 2, 1)]);
}

#[test]
fn lite_13_a_member_is_told_of_a_change_that_leaves_its_own_share_as_it_is() {
    let scene = four_queues();
    let told: Arc<Mutex<Vec<QueuesChanged>>> = Arc::default();
    let noted = told.clone();
    let builder = scene.broker.pull_consumer("g").subscribe("t", "*").unwrap().name("a");
    let mut pull = builder
        .strategy(ByConfig::new([("a", queues(&[0, 1]))]))
        .on_queues_changed(move |change| noted.lock().unwrap().push(change.clone()))
        .start()
        .unwrap();
    for all in [4, 5] {
        scene.broker.update_topic("t", all).unwrap();
        pull.poll(Duration::ZERO).unwrap();
        let told = std::mem::take(&mut *told.lock().unwrap());
        assert_eq!((told.len(), told[0].all.len()), (1, usize::from(all)));
        assert_eq!(told[0].mine, queues(&[0, 1]));
    }
}

#[test]
fn an_assigned_consumer_ends_with_its_broker() {
    let scene = four_queues();
    let mut pull = assigned(&scene.broker, &[0]);
    assert_eq!(drain(&mut pull).len(), 10);
    let polling = std::thread::spawn(move || {
        let polled = pull.poll(SOON).map(|found| found.len());
        (polled, pull.assignment().len(), pull.commit())
    });
    wait_for("a sleeping poll", || scene.broker.stats().held == 1);
    scene.broker.close().unwrap();
    let (polled, left, committed) = polling.join().unwrap();
    assert!(matches!(polled, Err(Error::Closed)));
    assert!(left == 0 && matches!(committed, Err(Error::Closed)));
    assert_eq!((scene.broker.stats().consumers, scene.broker.stats().held), (0, 0));
}
