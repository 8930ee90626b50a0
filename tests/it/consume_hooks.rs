//! Consume hooks (CONC-3, CONC-5, CONC-6).

use crate::support::*;
use rocklet::{Batch, ConsumeHook, Consumed, Delivery, Outcome, ReturnType};
use std::sync::{Arc, Mutex};
use std::time::Duration;

type Log = Arc<Mutex<Vec<String>>>;

/// Notes every call.
#[derive(Clone, Debug)]
struct Noting(&'static str, Log);

impl Noting {
    fn note(&self, batch: &Batch<'_>, what: String) {
        let first = batch.get(0).map(|first| number(&first)).unwrap();
        self.1.lock().unwrap().push(format!("{} {what} {first}+{}", self.0, batch.len()));
    }
}

impl ConsumeHook for Noting {
    fn before(&self, batch: &Batch<'_>) {
        assert_eq!(batch.get(0).unwrap().consume_start_ms(), None, "it is not called yet");
        self.note(batch, "before".to_owned());
    }

    fn after(&self, batch: &Batch<'_>, consumed: &Consumed) {
        let Consumed { return_type, acknowledged, .. } = consumed;
        self.note(batch, format!("after {return_type:?} {acknowledged} of"));
    }
}

/// Panics, in the nastiest way.
#[derive(Debug)]
struct Panicking;

impl ConsumeHook for Panicking {
    fn before(&self, _: &Batch<'_>) {
        panic!("planted");
    }

    fn after(&self, _: &Batch<'_>, _: &Consumed) {
        std::panic::panic_any(Bomb);
    }
}

// (CONC-5, CONC-6)
#[test]
fn conc_5_hooks_stand_around_every_call_and_are_told_how_it_ended() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    fill(&scene.broker, "t", 0, 0..3);
    let log = Log::default();
    let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
    let builder = builder.threads(1).hook(Panicking).hook(Noting("a", log.clone()));
    let consumer = builder
        .hook(Noting("b", log.clone()))
        .start(|delivery: &Delivery<'_>| match number(delivery) {
            0 => Outcome::Success,
            1 => Outcome::Failed("planted".to_owned()),
            _ => panic!("planted"),
        })
        .unwrap();
    wait_for("all", || scene.broker.stats().failed == 2);
    consumer.shutdown();
    let expected = [
        "a before 0+1",
        "b before 0+1",
        "a after Success 1 of 0+1",
        "b after Success 1 of 0+1",
        "a before 1+1",
        "b before 1+1",
        "a after Failed 0 of 1+1",
        "b after Failed 0 of 1+1",
        "a before 2+1",
        "b before 2+1",
        "a after Panicked 0 of 2+1",
        "b after Panicked 0 of 2+1",
    ];
    assert_eq!(*log.lock().unwrap(), expected);
    // A hook that panics is counted, harms nobody, and hides nothing.
    let stats = scene.broker.stats();
    assert_eq!((stats.panicked_hooks, stats.delivered, stats.panicked), (6, 1, 1));
}

/// How often each hook was called, and what the last one was told.
#[derive(Clone, Debug, Default)]
struct Pairs(Arc<Mutex<(usize, Vec<ReturnType>)>>);

impl Pairs {
    fn before(&self) -> usize {
        self.0.lock().unwrap().0
    }

    fn after(&self) -> Vec<ReturnType> {
        self.0.lock().unwrap().1.clone()
    }
}

impl ConsumeHook for Pairs {
    fn before(&self, _: &Batch<'_>) {
        self.0.lock().unwrap().0 += 1;
    }

    fn after(&self, _: &Batch<'_>, consumed: &Consumed) {
        self.0.lock().unwrap().1.push(consumed.return_type);
    }
}

// (CONC-7)
#[test]
fn conc_7_the_after_hook_is_called_although_the_result_is_discarded() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    send_to(&scene.broker, "t", 0, 0);
    let (pairs, door) = (Pairs::default(), Door::default());
    let inside = door.clone();
    let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
    let builder = builder.take_over_after(Duration::from_millis(1)).hook(pairs.clone());
    let consumer = builder.name("a").start(move |_| inside.pass()).unwrap();
    wait_for("a hanging listener", || door.waiting() == 1);
    consumer.shutdown_within(Duration::ZERO).unwrap_err();
    wait_for("the queue to be given away", || scene.broker.stats().taken_over == 1);
    assert_eq!((pairs.before(), pairs.after()), (1, vec![]));
    door.open();
    wait_for("the hook", || pairs.after() == [ReturnType::Success]);
    wait_for("the late result", || scene.broker.stats().late == 1);
    assert_eq!((pairs.before(), scene.broker.stats().delivered), (1, 0));
    assert_eq!(committed(&scene.broker, "g", "t"), 0);
}

#[test]
fn hooks_are_paired_whatever_the_listener_does() {
    let scene = scene();
    fill(&scene.broker, "t", 0, 0..200);
    let pairs = Pairs::default();
    let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
    let builder = builder.threads(3).listener_batch(5).hook(pairs.clone());
    let consumer = builder
        .start_batch(|batch: &Batch<'_>| match number(&batch.get(0).unwrap()) % 3 {
            0 => panic!("planted"),
            1 => Err("planted"),
            _ => Ok(()),
        })
        .unwrap();
    wait_for("much", || pairs.before() > 30);
    consumer.shutdown();
    let after = pairs.after();
    assert_eq!(pairs.before(), after.len());
    for wanted in [ReturnType::Success, ReturnType::Failed, ReturnType::Panicked] {
        assert!(after.contains(&wanted), "no {wanted:?}");
    }
}
