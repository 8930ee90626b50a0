//! Dead letters: looking at them, driving them again, purging them.

use crate::support::*;
use rocklet::{
    BackOff, Broker, Delivery, DrivenClock, Error, Filter, Flush, GroupSettings, Message,
    PushConsumer,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A group that gives a message up after its second failure.
fn impatient(broker: &Broker, group: &str) {
    let back_off = BackOff::table([Duration::from_millis(1)]);
    broker.create_group(group, GroupSettings::new().max_retries(1).back_off(back_off)).unwrap();
}

/// What a group has seen, and whether it fails.
#[derive(Clone, Default)]
struct Group {
    seen: Seen,
    failing: Arc<AtomicBool>,
}

impl Group {
    fn failing() -> Self {
        Self { failing: Arc::new(AtomicBool::new(true)), ..Self::default() }
    }

    fn heal(&self) {
        self.failing.store(false, Ordering::SeqCst);
    }

    fn start(&self, broker: &Broker, group: &str) -> PushConsumer {
        let Self { seen, failing } = self.clone();
        let builder = broker.push_consumer(group).subscribe("t", "*").unwrap();
        let listener = move |delivery: &Delivery<'_>| {
            seen.note(number(delivery));
            if failing.load(Ordering::SeqCst) { Err("planted") } else { Ok(()) }
        };
        builder.start(listener).unwrap()
    }
}

fn count(broker: &Broker, group: &str) -> u64 {
    broker.dead_letters(group).unwrap().count().unwrap()
}

#[test]
fn b_129_a_dead_letter_goes_back_to_its_group_alone_with_a_fresh_count() {
    let scene = scene();
    let broker = &scene.broker;
    broker.create_topic("t", 2).unwrap();
    impatient(broker, "g1");
    let (failing, other) = (Group::failing(), Group::default());
    let consumers = [failing.start(broker, "g1"), other.start(broker, "g2")];
    let message = Message::new("t", body(5)).queue(1).tag("a").property("p", "v");
    let sent = broker.producer().send(&message).unwrap();
    wait_for("a dead letter", || broker.stats().dead_letters == 1);
    wait_for("the other group", || other.seen.len() == 1);
    assert_eq!((failing.seen.count(5), other.seen.count(5)), (2, 1));
    assert_eq!(
        (count(broker, "g1"), count(broker, "g2")),
        (1, 0),
        "of the group, not of the topic"
    );

    // It fails again: one new copy, with the history of the message.
    assert!(broker.dead_letters("g1").unwrap().redrive(sent.id).unwrap());
    wait_for("a dead letter again", || broker.stats().dead_letters == 2);
    assert_eq!((failing.seen.count(5), other.seen.count(5)), (4, 1));
    let letters = broker.dead_letters("g1").unwrap().iter().unwrap();
    let letters: Vec<_> = letters.map(Result::unwrap).collect();
    let [letter] = &*letters else { panic!("{letters:?}") };
    assert_eq!((letter.id(), letter.attempts(), letter.reason()), (sent.id, 2, "planted"));
    assert_eq!(letter.origin(), Some((q("t", 1), sent.offset)));
    let delivery = letter.delivery();
    assert_eq!(
        (delivery.topic(), delivery.tag(), delivery.property("p")),
        ("t", Some("a"), Some("v"))
    );

    // By two at once, and healed.
    failing.heal();
    let driven: u64 = std::thread::scope(|scope| {
        let drive = || scope.spawn(|| broker.dead_letters("g1").unwrap().redrive_all().unwrap());
        [drive(), drive(), drive()].into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(driven, 1);
    wait_for("success", || failing.seen.count(5) == 5);
    wait_for("commit of all retries", || committed(broker, "g1", "%RETRY%g1") == 4);
    assert_eq!((count(broker, "g1"), other.seen.count(5)), (0, 1));
    drop(consumers);
}

#[test]
fn dead_letters_are_driven_again_by_id_by_filter_and_all_and_each_once() {
    let scene = scene();
    let broker = &scene.broker;
    impatient(broker, "g");
    let group = Group::failing();
    let consumer = group.start(broker, "g");
    let sent: Vec<_> = (0..30)
        .map(|nth| {
            let tag = if nth % 3 == 0 { "three" } else { "other" };
            let message = Message::new("t", body(nth)).tag(tag).property("n", nth.to_string());
            broker.producer().send(&message).unwrap()
        })
        .collect();
    wait_for("dead letters", || broker.stats().dead_letters == 30);
    group.heal();
    let dead = broker.dead_letters("g").unwrap();
    let ids: Vec<_> = dead.iter().unwrap().map(|letter| letter.unwrap().id()).collect();
    assert_eq!(ids.len(), 30);
    assert_eq!(
        (dead.redrive(sent[4].id).unwrap(), dead.redrive(sent[4].id).unwrap()),
        (true, false)
    );
    assert_eq!((dead.count().unwrap(), dead.redrive_matching("three").unwrap()), (29, 10));
    let sql = Filter::sql("n < 10").unwrap();
    assert_eq!(
        (dead.redrive_matching(sql.clone()).unwrap(), dead.redrive_matching(sql).unwrap()),
        (5, 0)
    );
    assert!(dead.redrive_matching(" || ").is_err());
    assert_eq!((dead.redrive_all().unwrap(), dead.count().unwrap()), (14, 0));
    wait_for("all", || broker.stats().delivered == 30);
    assert!((0..30).all(|nth| group.seen.count(nth) == 3));

    // Those that were driven again are still there to be looked at, until they are purged.
    assert_eq!(broker.browse("%DLQ%g").unwrap().count_messages().unwrap(), 30);
    assert_eq!((dead.purge().unwrap(), dead.purge().unwrap()), (30, 0));
    assert_eq!((dead.count().unwrap(), dead.redrive_all().unwrap()), (0, 0));
    drop(consumer);
}

#[test]
fn a_dead_letter_that_was_driven_again_stays_so_after_a_kill_and_none_is_lost() {
    let scene = scene();
    let broker = &scene.broker;
    impatient(broker, "g");
    let group = Group::failing();
    let consumer = group.start(broker, "g");
    send(&broker.producer(), "t", 0..10);
    wait_for("dead letters", || broker.stats().dead_letters == 10);
    drop(consumer);
    let dead = broker.dead_letters("g").unwrap();
    let some = dead.iter().unwrap().take(4).map(|letter| letter.unwrap().id());
    for id in some.collect::<Vec<_>>() {
        assert!(dead.redrive(id).unwrap());
    }
    let killed = copy_of(scene.dir.path());
    let broker = small(killed.path()).open().unwrap();
    assert_eq!(count(&broker, "g"), 6);
    group.heal();
    let consumer = group.start(&broker, "g");
    wait_for("those that were driven again", || broker.stats().delivered == 4);
    assert_eq!(broker.dead_letters("g").unwrap().redrive_all().unwrap(), 6);
    wait_for("all", || broker.stats().delivered == 10);
    assert!((0..10).all(|nth| group.seen.count(nth) == 3));
    drop(consumer);
}

#[test]
fn dead_letters_wait_for_a_consumer_and_may_be_purged_before() {
    let scene = scene();
    let broker = &scene.broker;
    impatient(broker, "g");
    let group = Group::failing();
    drop(group.start(broker, "g"));
    let dead = broker.dead_letters("g").unwrap();
    assert_eq!(
        (dead.count().unwrap(), dead.redrive_all().unwrap(), dead.purge().unwrap()),
        (0, 0, 0)
    );
    assert!(broker.dead_letters("no group").is_err());
    let consumer = group.start(broker, "g");
    send(&broker.producer(), "t", 0..3);
    wait_for("dead letters", || broker.stats().dead_letters == 3);
    drop(consumer);
    assert_eq!((dead.purge().unwrap(), dead.count().unwrap()), (3, 0));
    let consumer = group.start(broker, "g");
    send(&broker.producer(), "t", 3..5);
    wait_for("dead letters", || broker.stats().dead_letters == 5);
    drop(consumer);
    assert_eq!(dead.redrive_all().unwrap(), 2);
    let scene = scene.reopen();
    group.heal();
    let _consumer = group.start(&scene.broker, "g");
    wait_for("all", || scene.broker.stats().delivered == 2);
    assert_eq!([0, 1, 2, 3, 4].map(|nth| group.seen.count(nth)), [2, 2, 2, 3, 3]);
}

/// Makes a group with so many dead letters.
fn with_dead_letters(broker: &Broker, letters: u32) {
    broker.create_group("g", GroupSettings::new().max_retries(0)).unwrap();
    let consumer = Group::failing().start(broker, "g");
    send(&broker.producer(), "t", 0..letters);
    wait_for("dead letters", || broker.stats().dead_letters == u64::from(letters));
    drop(consumer);
}

#[test]
fn a_group_that_was_deleted_leaves_no_dead_letter_that_was_driven_again() {
    let scene = scene();
    let broker = &scene.broker;
    with_dead_letters(broker, 4);
    let dead = broker.dead_letters("g").unwrap();
    let first = dead.iter().unwrap().next().unwrap().unwrap().id();
    assert!(dead.redrive(first).unwrap());
    broker.delete_group("g").unwrap();
    assert!(matches!(dead.redrive_all(), Err(Error::NoSuchGroup { .. })));
    // One of them was, but which one is not known any more.
    broker.create_group("g", GroupSettings::new()).unwrap();
    assert_eq!((dead.count().unwrap(), dead.redrive_all().unwrap()), (4, 4));
    broker.delete_group("g").unwrap();
    broker.create_group("g", GroupSettings::new()).unwrap();
    assert_eq!((dead.count().unwrap(), dead.redrive_all().unwrap()), (0, 0));
}

#[test]
fn what_was_driven_again_before_an_error_is_durable() {
    let clock = DrivenClock::new(1_000_000);
    let scene = scene_with(|builder| builder.clock(&clock).flush(Flush::EveryMessage));
    let broker = &scene.broker;
    with_dead_letters(broker, 3);
    let dead = broker.dead_letters("g").unwrap();
    let third = dead.iter().unwrap().nth(2).unwrap().unwrap().delivery().position();
    let log = scene.dir.path().join("commitlog/00000000000000000000");
    let log = std::fs::OpenOptions::new().write(true).open(log).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&log, &[0xff; 16], third).unwrap();
    assert!(matches!(dead.redrive_all(), Err(Error::Corrupt { .. })));
    assert_eq!((stored(broker, "%RETRY%g"), broker.stats().unflushed), (2, 0));
}

/// Its predicates run in nobody's turn.
#[test]
fn a_filter_of_dead_letters_may_drive_them_again_itself() {
    let scene = scene();
    let broker = &scene.broker;
    with_dead_letters(broker, 6);
    let dead = broker.dead_letters("g").unwrap();
    let inner = dead.clone();
    let filter = Filter::predicate(move |letter: &Delivery<'_>| {
        if number(letter).is_multiple_of(2) {
            inner.redrive(letter.id()).unwrap();
        }
        true
    });
    let outer = dead.clone();
    let driven = returns("driving", move || outer.redrive_matching(filter).unwrap());
    assert_eq!((driven, dead.count().unwrap(), stored(broker, "%RETRY%g")), (3, 0, 6));
}
