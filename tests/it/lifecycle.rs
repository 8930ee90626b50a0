//! Handles: who keeps the broker open, and stopping and dropping in every order and place.

use crate::support::*;
use rocklet::{Broker, Error, Message, Producer, PullConsumer, PushConsumer};
use std::sync::{Arc, Mutex, mpsc};

struct Clients {
    broker: Option<Broker>,
    producer: Option<Producer>,
    push: Option<PushConsumer>,
    other: Option<PushConsumer>,
    pull: Option<PullConsumer>,
}

fn clients(dir: &std::path::Path, seen: &Seen) -> Clients {
    let broker = small(dir).open().unwrap();
    let push = |group: &str| {
        // It keeps nothing open: it goes with its consumer.
        let (seen, captured) = (seen.clone(), broker.clone());
        let builder = broker.push_consumer(group).subscribe("t", "*").unwrap();
        let listener = move |delivery: &rocklet::Delivery<'_>| {
            let _ = captured.stats();
            seen.note(number(delivery));
        };
        builder.start(listener).unwrap()
    };
    Clients {
        producer: Some(broker.producer()),
        push: Some(push("g1")),
        other: Some(push("g2")),
        pull: Some(broker.pull_consumer("g3").subscribe("t", "*").unwrap().start().unwrap()),
        broker: Some(broker),
    }
}

impl Clients {
    fn drop_nth(&mut self, nth: usize) {
        match nth {
            0 => drop(self.broker.take()),
            1 => drop(self.producer.take()),
            2 => drop(self.push.take()),
            3 => drop(self.other.take()),
            _ => drop(self.pull.take()),
        }
    }

    /// Whoever is left goes on.
    fn use_those_left(&mut self, seen: &Seen, nth: u32) {
        let sent = self.producer.as_ref().map(|p| p.send(&Message::new("t", body(nth))).unwrap());
        if sent.is_some() && (self.push.is_some() || self.other.is_some()) {
            wait_for("delivery", || seen.has(nth));
        }
        if let (Some(_), Some(pull)) = (sent, &mut self.pull) {
            // Behind what was sent before while nobody polled.
            while !numbers(&pull.poll(SOON).unwrap()).contains(&nth) {}
            pull.commit().unwrap();
        }
        if let Some(broker) = &self.broker {
            assert!(broker.stats().topics <= 1);
        }
    }
}

#[test]
fn b_160_handles_are_dropped_in_every_order() {
    let orders: Vec<Vec<usize>> = (0..120)
        .map(|mut nth| {
            let mut left: Vec<usize> = (0..5).collect();
            (1..=5)
                .rev()
                .map(|n| {
                    let at = nth % n;
                    nth /= n;
                    left.remove(at)
                })
                .collect()
        })
        .collect();
    let dir = tempfile::tempdir().unwrap();
    returns("dropping", move || {
        for (round, order) in orders.iter().enumerate() {
            let seen = Seen::default();
            let mut clients = clients(dir.path(), &seen);
            for (step, nth) in order.iter().enumerate() {
                clients.use_those_left(&seen, (round * 10 + step) as u32);
                assert!(matches!(small(dir.path()).open(), Err(Error::Locked { .. })), "{order:?}");
                clients.drop_nth(*nth);
            }
            // The last one closed it.
            let broker = small(dir.path()).open().unwrap();
            assert!(broker.recovery_report().clean, "{order:?}");
        }
    });
}

#[test]
fn b_160_consumers_stop_from_different_threads_at_once() {
    let scene = scene();
    send(&scene.broker.producer(), "t", 0..1000);
    for _ in 0..20 {
        let consumers: Vec<_> = (0..6)
            .map(|nth| {
                let group = format!("g{}", nth % 3);
                let builder = scene.broker.push_consumer(&group).subscribe("t", "*").unwrap();
                builder.start(|_| ()).unwrap()
            })
            .collect();
        let threads: Vec<_> = consumers
            .into_iter()
            .map(|consumer| std::thread::spawn(move || consumer.shutdown()))
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(scene.broker.stats().consumers, 0);
    }
}

#[test]
fn a_consumer_keeps_the_broker_open() {
    let dir = tempfile::tempdir().unwrap();
    let broker = small(dir.path()).open().unwrap();
    let mut pull = broker.pull_consumer("g").subscribe("t", "*").unwrap().start().unwrap();
    send(&broker.producer(), "t", 0..10);
    drop(broker);
    assert!(matches!(small(dir.path()).open(), Err(Error::Locked { .. })));
    let mut found = 0;
    while found < 10 {
        found += pull.poll(SOON).unwrap().len();
    }
    pull.commit().unwrap();
    drop(pull);
    let broker = small(dir.path()).open().unwrap();
    assert_eq!(committed(&broker, "g", "t"), 10);
}

#[test]
fn a_listener_that_holds_the_broker_does_not_keep_it_open() {
    let dir = tempfile::tempdir().unwrap();
    let broker = small(dir.path()).open().unwrap();
    let captured = broker.clone();
    let builder = broker.push_consumer("g").subscribe("t", "*").unwrap();
    let consumer = builder.start(move |_| assert_eq!(captured.stats().topics, 1)).unwrap();
    send(&broker.producer(), "t", 0..10);
    wait_for("commit of all", || committed(&broker, "g", "t") == 10);
    drop(broker);
    drop(consumer);
    assert!(small(dir.path()).open().unwrap().recovery_report().clean);
}

/// Where a listener finds its own consumer.
type Slot = Arc<Mutex<Option<PushConsumer>>>;

/// Starts a consumer whose listener calls `stop` with its own consumer, once.
fn self_stopping(broker: &Broker, stop: fn(PushConsumer)) -> (Slot, mpsc::Receiver<()>) {
    let slot = Slot::default();
    let (done, stopped) = mpsc::channel();
    let inside = slot.clone();
    let builder = broker.push_consumer("g").subscribe("t", "*").unwrap().name("m");
    let consumer = builder
        .start(move |_| {
            if let Some(consumer) = inside.lock().unwrap().take() {
                stop(consumer);
                done.send(()).unwrap();
            }
        })
        .unwrap();
    *slot.lock().unwrap() = Some(consumer);
    (slot, stopped)
}

#[test]
fn stopping_from_inside_the_listener_returns_at_once_and_is_done_behind_it() {
    let shutdown = |consumer: PushConsumer| consumer.shutdown();
    for stop in [shutdown as fn(PushConsumer), drop] {
        let scene = scene();
        scene.broker.create_topic("t", 1).unwrap();
        let (_slot, stopped) = self_stopping(&scene.broker, stop);
        send(&scene.broker.producer(), "t", 0..100);
        stopped.recv_timeout(SOON).unwrap();
        wait_for("the end of the member", || scene.broker.stats().consumers == 0);
        // The name and the queue are free as soon as the listener has left.
        let mut consumer = None;
        wait_for("a free name", || {
            let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
            consumer = builder.name("m").start(|_| ()).ok();
            consumer.is_some()
        });
        wait_for("commit of all", || committed(&scene.broker, "g", "t") == 100);
    }
}

#[test]
fn the_last_handle_may_be_dropped_inside_a_listener() {
    let Scene { broker, dir } = scene();
    broker.create_topic("t", 1).unwrap();
    let (_slot, stopped) = self_stopping(&broker, drop);
    send(&broker.producer(), "t", 0..10);
    drop(broker);
    stopped.recv_timeout(SOON).unwrap();
    let mut reopened = None;
    wait_for("a closed directory", || {
        reopened = small(dir.path()).open().ok();
        reopened.is_some()
    });
    let broker = reopened.unwrap();
    assert!(broker.recovery_report().clean);
    assert!((1..=10).contains(&committed(&broker, "g", "t")), "what it was at is committed");
}

#[test]
fn b_161_closing_from_inside_a_listener_returns_at_once_and_is_done_behind_it() {
    let Scene { broker, dir } = scene();
    let (done, closed) = mpsc::channel();
    let inside = broker.clone();
    let builder = broker.push_consumer("g").subscribe("t", "*").unwrap();
    let consumer = builder
        .start(move |_| {
            inside.close().unwrap();
            let _ = done.send(());
        })
        .unwrap();
    let batch = vec![Message::new("t", body(0)); 100];
    broker.producer().send_batch(&batch).unwrap();
    closed.recv_timeout(SOON).unwrap();
    // A close from outside waits for the one that is under way.
    let outside = broker.clone();
    returns("close", move || outside.close().unwrap());
    let reopened = small(dir.path()).open().unwrap();
    assert!(reopened.recovery_report().clean);
    let message = Message::new("t", body(0));
    assert!(matches!(broker.producer().send(&message), Err(Error::Closed)));
    returns("drop", move || drop((consumer, broker)));
    reopened.producer().send(&message).unwrap();
}

#[test]
fn one_consumer_may_be_stopped_by_the_listener_of_another() {
    let scene = scene();
    send(&scene.broker.producer(), "t", 0..100);
    let builder = scene.broker.push_consumer("g1").subscribe("t", "*").unwrap();
    let victim = Mutex::new(Some(builder.start(|_| ()).unwrap()));
    let builder = scene.broker.push_consumer("g2").subscribe("t", "*").unwrap();
    let consumer = builder.start(move |_| drop(victim.lock().unwrap().take())).unwrap();
    wait_for("commit of all", || committed(&scene.broker, "g2", "t") == 100);
    assert_eq!(scene.broker.stats().consumers, 1);
    returns("shutdown", move || consumer.shutdown());
}

#[test]
fn a_panicking_drop_of_a_listener_reaches_its_owner_alone() {
    struct Captured(#[allow(dead_code)] Bomb);
    let scene = scene();
    send(&scene.broker.producer(), "t", 0..10);
    let captured = Captured(Bomb);
    let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
    let consumer = builder
        .start(move |_| {
            let _captured = &captured;
        })
        .unwrap();
    wait_for("commit of all", || committed(&scene.broker, "g", "t") == 10);
    assert!(std::thread::spawn(move || drop(consumer)).join().is_err());
    send(&scene.broker.producer(), "t", 0..1);
    scene.broker.close().unwrap();
}
