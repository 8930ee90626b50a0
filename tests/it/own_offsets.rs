//! Progress in a store of the user's.

use crate::support::*;
use rocklet::{Broker, Error, Mode, OffsetStore, PushConsumerBuilder, QueueId, Start};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A store that tells what was done with it, and fails or waits when it is to.
#[derive(Default)]
struct Notebook {
    offsets: Mutex<BTreeMap<QueueId, u64>>,
    loads: AtomicUsize,
    stores: AtomicUsize,
    reads_fail: AtomicBool,
    stores_fail: AtomicBool,
    /// Whoever touches queue 0 waits here.
    door: Option<Door>,
}

impl Notebook {
    fn wait(&self, queue: &QueueId) {
        if let (Some(door), 0) = (&self.door, queue.queue()) {
            door.pass();
        }
    }

    fn get(&self, queue: u16) -> Option<u64> {
        self.offsets.lock().unwrap().get(&q("t", queue)).copied()
    }
}

impl OffsetStore for Notebook {
    fn load(&self) -> Result<(), String> {
        self.loads.fetch_add(1, Ordering::SeqCst);
        if self.reads_fail.load(Ordering::SeqCst) { Err("planted".to_owned()) } else { Ok(()) }
    }

    fn read(&self, queue: &QueueId) -> Result<Option<u64>, String> {
        self.wait(queue);
        if self.reads_fail.load(Ordering::SeqCst) {
            return Err("planted".to_owned());
        }
        Ok(self.offsets.lock().unwrap().get(queue).copied())
    }

    fn store(&self, queue: &QueueId, offset: u64) -> Result<(), String> {
        self.wait(queue);
        self.stores.fetch_add(1, Ordering::SeqCst);
        if self.stores_fail.load(Ordering::SeqCst) {
            panic!("planted");
        }
        let before = self.offsets.lock().unwrap().insert(queue.clone(), offset);
        assert!(before.is_none_or(|before| before <= offset), "only upwards");
        Ok(())
    }
}

fn member(broker: &Broker, store: &Arc<Notebook>) -> PushConsumerBuilder {
    let builder = broker.push_consumer("g").subscribe("t", "*").unwrap();
    builder.offset_store(store.clone()).threads(3)
}

// (CLI-5, OFF-4, OFF-6, REB-9)
#[test]
fn cli_5_off_4_off_6_progress_goes_to_the_store_at_the_interval_and_at_shutdown() {
    let clock = rocklet::DrivenClock::new(1_700_000_000_000);
    let scene = scene_with(|builder| builder.clock(&clock));
    let broker = &scene.broker;
    broker.create_topic("t", 2).unwrap();
    let store = Arc::<Notebook>::default();
    store.offsets.lock().unwrap().insert(q("t", 0), 3);
    fill(broker, "t", 0, 0..10);
    fill(broker, "t", 1, 10..20);
    let seen = Seen::default();
    let noted = seen.clone();
    let consumer = member(broker, &store).start(move |d| noted.note(number(d))).unwrap();
    wait_for("all but what is done", || seen.len() == 17);
    assert!((0..3).all(|nth| !seen.has(nth)));
    wait_for("progress", || broker.stats().delivered == 17);
    assert_eq!((store.get(0), store.get(1)), (Some(3), None), "not before the interval");
    wait_for("the interval", || {
        clock.advance(Duration::from_secs(5));
        (store.get(0), store.get(1)) == (Some(10), Some(10))
    });
    assert_eq!(store.stores.load(Ordering::SeqCst), 2, "once for each queue");
    fill(broker, "t", 0, 20..25);
    wait_for("the rest", || broker.stats().delivered == 22);
    consumer.shutdown();
    assert_eq!((store.get(0), store.get(1)), (Some(15), Some(10)));
    assert_eq!(store.loads.load(Ordering::SeqCst), 1);
    assert_eq!(broker.committed("g", &q("t", 0)).unwrap(), Some(0), "where the group began");
}

#[test]
fn cli_1_a_store_that_cannot_be_loaded_fails_the_start() {
    let scene = scene();
    let store = Arc::<Notebook>::default();
    store.reads_fail.store(true, Ordering::SeqCst);
    let error = member(&scene.broker, &store).start(|_| ()).unwrap_err();
    assert!(matches!(error, Error::OffsetStore { action: "load", .. }), "{error}");
    assert_eq!(scene.broker.stats().consumers, 0);
    let _plain =
        scene.broker.push_consumer("g").subscribe("t", "*").unwrap().start(|_| ()).unwrap();
    store.reads_fail.store(false, Ordering::SeqCst);
    let error = member(&scene.broker, &store).start(|_| ()).unwrap_err();
    assert!(matches!(error, Error::Mismatch { what: "offset store", .. }), "{error}");
}

// (REB-8, OFF-2)
#[test]
fn reb_8_off_2_a_queue_whose_offset_cannot_be_read_waits_and_is_asked_for_again() {
    let clock = rocklet::DrivenClock::new(1_700_000_000_000);
    let scene = scene_with(|builder| builder.clock(&clock));
    let broker = &scene.broker;
    let store = Arc::<Notebook>::default();
    let seen = Seen::default();
    let noted = seen.clone();
    let builder = member(broker, &store).start_from(Start::First);
    let consumer = builder.start(move |d| noted.note(number(d))).unwrap();
    store.reads_fail.store(true, Ordering::SeqCst);
    broker.create_topic("t", 1).unwrap();
    fill(broker, "t", 0, 0..5);
    wait_for("a failed read", || broker.stats().failed_reads > 0);
    let told = "t/0: the offset store cannot read: planted";
    assert_eq!(consumer.last_failure().as_deref(), Some(told));
    assert_eq!(seen.len(), 0);
    store.reads_fail.store(false, Ordering::SeqCst);
    wait_for("all", || {
        clock.advance(Duration::from_secs(1));
        seen.len() == 5
    });
}

#[test]
fn b_096_a_slow_store_of_one_queue_holds_up_no_other_one() {
    let scene = scene();
    let broker = &scene.broker;
    broker.create_topic("t", 4).unwrap();
    let door = Door::default();
    let store = Arc::new(Notebook { door: Some(door.clone()), ..Notebook::default() });
    let seen = Seen::default();
    let noted = seen.clone();
    let builder = member(broker, &store).name("a");
    let consumer = builder.start(move |d| noted.note(number(d))).unwrap();
    wait_for("a slow read", || door.waiting() == 1);
    (1..4).for_each(|queue| {
        fill(broker, "t", queue, u32::from(queue) * 100..u32::from(queue) * 100 + 50)
    });
    wait_for("the other queues", || seen.len() == 150);
    // Nobody waits for it who does not have to.
    let consumer = returns("subscribing, and members that come and go", {
        let (broker, store) = (broker.clone(), store.clone());
        move || {
            consumer.subscribe("u", "*").unwrap();
            let builder = member(&broker, &store).subscribe("u", "*").unwrap().name("b");
            let other = builder.start(|_| ()).unwrap();
            wait_for("a share", || other.assignment() == [q("t", 2), q("t", 3)]);
            assert!(other.shutdown_within(SOON).is_ok());
            consumer
        }
    });
    let late = consumer.shutdown_within(SHORT);
    assert!(matches!(late, Err(Error::NotDrained { .. })), "{late:?}");
    // Its answer comes too late: the queue belongs to another one.
    fill(broker, "t", 0, 0..10);
    let (noted, again) = (seen.clone(), Arc::<Notebook>::default());
    let builder =
        broker.push_consumer("g").subscribe("t", "*").unwrap().subscribe("u", "*").unwrap();
    let builder = builder.offset_store(again).name("c");
    let next = builder.start(move |d| noted.note(number(d))).unwrap();
    wait_for("the slow queue, by another owner", || (0..10).all(|nth| seen.has(nth)));
    door.open();
    next.shutdown();
    assert!((0..10).all(|nth| seen.count(nth) == 1));
}

#[test]
fn b_149_a_store_that_takes_nothing_is_reported_and_a_stale_offset_is_corrected() {
    let scene = scene();
    let broker = &scene.broker;
    broker.create_topic("t", 1).unwrap();
    let store = Arc::<Notebook>::default();
    store.offsets.lock().unwrap().insert(q("t", 0), 2);
    store.stores_fail.store(true, Ordering::SeqCst);
    let filler = vec![0; 200 << 10];
    let message = || rocklet::Message::new("t", &filler[..]);
    let sent: Vec<_> = (0..20).map(|_| broker.producer().send(&message()).unwrap()).collect();
    let start = |expected: u64| {
        let count = Arc::new(AtomicUsize::new(0));
        let noted = count.clone();
        let builder = member(broker, &store).mode(Mode::Broadcasting);
        let builder = builder.persist_interval(Duration::from_millis(1));
        let consumer = builder
            .start(move |_| {
                noted.fetch_add(1, Ordering::SeqCst);
            })
            .unwrap();
        wait_for("deliveries", || count.load(Ordering::SeqCst) as u64 == expected);
        (consumer, count)
    };
    let (consumer, count) = start(18);
    wait_for("the report", || broker.stats().failed_commits > 0);
    let told = "progress of t/0: the offset store cannot store: it panicked: planted";
    wait_for("its reason", || consumer.last_failure().as_deref() == Some(told));
    // In memory it goes on.
    broker.producer().send(&message()).unwrap();
    wait_for("the next one", || count.load(Ordering::SeqCst) == 19);
    consumer.shutdown();
    assert_eq!(store.get(0), Some(2));
    // What the store says is gone: reading begins with what there is.
    assert!(broker.drop_before(sent[10].position).unwrap() > 0);
    let min = broker.min_offset(&q("t", 0)).unwrap();
    assert!(min > 2);
    store.stores_fail.store(false, Ordering::SeqCst);
    let (consumer, _) = start(21 - min);
    consumer.shutdown();
    assert_eq!(store.get(0), Some(21));
}

// (ORD-20): the store is asked when the queue is the member's own.
#[test]
fn ord_20_in_order_the_next_owner_goes_on_where_the_store_says() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    fill(&scene.broker, "t", 0, 0..20);
    let (store, seen) = (Arc::<Notebook>::default(), Seen::default());
    let start = |name: &str, fails: bool| {
        let noted = seen.clone();
        let listener = move |delivery: &rocklet::Delivery<'_>| {
            noted.note(number(delivery));
            if fails && number(delivery) == 10 { Err("never") } else { Ok(()) }
        };
        member(&scene.broker, &store).name(name).start_orderly(listener).unwrap()
    };
    let b = start("b", true);
    wait_for("the suspension", || scene.broker.stats().suspended > 0);
    // Averagely gives the only queue to the first name.
    let a = start("a", false);
    wait_for("all", || scene.broker.stats().delivered == 20);
    a.shutdown();
    assert_eq!(store.get(0), Some(20));
    assert!((0..20).filter(|nth| *nth != 10).all(|nth| seen.count(nth) == 1));
    drop(b);
}
