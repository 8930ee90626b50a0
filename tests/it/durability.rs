//! When a message is durable against loss of power, and who waits for that.

use crate::support::*;
use rocklet::{Error, Flush, Message, PendingSend};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const HOUR: Flush = Flush::Every(Duration::from_secs(3600));

#[test]
fn b_035_every_handle_that_was_given_out_before_a_close_is_durable_after_it() {
    for round in 0..10 {
        let flush = if round % 2 == 0 { HOUR } else { Flush::EveryMessage };
        let Scene { broker, dir } = scene_with(|builder| builder.flush(flush));
        let sent = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (producer, sent) = (broker.producer(), &sent);
                scope.spawn(move || {
                    let mut in_flight = Vec::new();
                    let error = loop {
                        match producer.send_pending(&Message::new("t", body(thread))) {
                            Ok(pending) => in_flight.push(pending),
                            Err(error) => break error,
                        }
                        sent.fetch_add(1, Ordering::Relaxed);
                    };
                    assert!(matches!(error, Error::Closed), "{error}");
                    for pending in &in_flight {
                        assert_eq!(pending.wait().unwrap(), *pending.receipt());
                    }
                });
            }
            wait_for("messages", || sent.load(Ordering::Relaxed) > 100 * round);
            broker.close().unwrap();
        });
        drop(broker);
        let broker = small(dir.path()).open().unwrap();
        assert!(broker.recovery_report().clean);
        assert_eq!(stored(&broker, "t"), sent.load(Ordering::Relaxed));
    }
}

#[test]
fn b_037_a_durable_sender_is_not_starved_by_one_that_does_not_wait() {
    for flush in [HOUR, Flush::EveryMessage] {
        let scene = scene_with(|builder| builder.flush(flush));
        scene.broker.create_topic("t", 2).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let producer = scene.broker.producer();
                let message = Message::new("t", vec![7; 300]).queue(1).wait_for_flush(false);
                while !done.load(Ordering::Relaxed) {
                    for _ in 0..30 {
                        producer.send(&message).unwrap();
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let producer = scene.broker.producer();
            for nth in 0..100 {
                let message = Message::new("t", body(nth)).queue(0);
                let pending = producer.send_pending(&message).unwrap();
                assert!(pending.wait_timeout(SOON).unwrap(), "no flush within {SOON:?}");
                if flush == Flush::EveryMessage {
                    let receipt = producer.send(&message).unwrap();
                    assert!(scene.broker.stats().flushed > receipt.position);
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        let durable = scene.broker.max_offset(&q("t", 0)).unwrap();
        assert_eq!(durable, if flush == HOUR { 100 } else { 200 });
    }
}

#[test]
fn b_163_a_sender_alone_is_flushed_once_for_each_message_and_nobody_else_is_woken_for_it() {
    let scene = scene_with(|builder| builder.flush(Flush::EveryMessage));
    scene.broker.create_topic("t", 1).unwrap();
    let before = scene.broker.stats();
    assert_eq!(before.unflushed, 0);
    for nth in 0..50 {
        send_to(&scene.broker, "t", 0, nth);
    }
    let after = scene.broker.stats();
    assert_eq!((after.flushes - before.flushes, after.unflushed), (50, 0));
    assert!(after.slowest_flush <= after.flush_time);
    assert!(after.flush_time > before.flush_time);
}

#[test]
fn b_163_many_in_flight_are_all_served() {
    for flush in [HOUR, Flush::EveryMessage] {
        let scene = scene_with(|builder| builder.flush(flush));
        std::thread::scope(|scope| {
            for thread in 0..3_u32 {
                let scene = &scene;
                scope.spawn(move || {
                    let producer = scene.broker.producer();
                    let mut window = std::collections::VecDeque::new();
                    for nth in 0..500 {
                        if window.len() == 64 >> thread {
                            window
                                .pop_front()
                                .map(|oldest: PendingSend| oldest.wait())
                                .unwrap()
                                .unwrap();
                        }
                        window.push_back(
                            producer.send_pending(&Message::new("t", body(nth))).unwrap(),
                        );
                    }
                    let last = window.back().unwrap();
                    assert_eq!(last.wait().unwrap(), *last.receipt());
                    assert!(
                        window.iter().all(PendingSend::is_durable),
                        "they are flushed in order"
                    );
                });
            }
        });
        assert_eq!((scene.broker.stats().unflushed, stored(&scene.broker, "t")), (0, 1500));
    }
}

#[test]
fn what_awaits_a_flush_is_bounded_in_bytes() {
    let least = 64 << 10;
    let refused = |bytes| {
        let dir = tempfile::tempdir().unwrap();
        let opened = small(dir.path()).max_unflushed_bytes(bytes).open();
        matches!(opened, Err(Error::Setting { name: "max_unflushed_bytes", .. }))
    };
    assert!(refused(least - 1) && refused(u64::MAX) && !refused(least));
    let scene = scene_with(|builder| builder.flush(HOUR).max_unflushed_bytes(least));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let producer = scene.broker.producer();
                for _ in 0..500 {
                    producer.send(&Message::new("t", vec![7; 1000])).unwrap();
                    // And what a message leaves over at the end of a file.
                    let unflushed = scene.broker.stats().unflushed;
                    assert!(unflushed <= least + 2000, "{unflushed} bytes");
                }
            });
        }
    });
    let stats = scene.broker.stats();
    assert_eq!(stored(&scene.broker, "t"), 1500);
    assert!(stats.flushes >= stats.log_end / least, "{} flushes", stats.flushes);
}

#[test]
fn a_hook_sees_a_pending_send_when_it_is_stored() {
    #[derive(Debug)]
    struct Count(std::sync::Arc<AtomicU64>);
    impl rocklet::SendHook for Count {
        fn after(&self, _: &Message<'_>, result: Result<&rocklet::Receipt, &Error>) {
            self.0.fetch_add(if result.is_ok() { 1 } else { 100 }, Ordering::Relaxed);
        }
    }
    let Scene { broker, dir } = scene();
    let seen = std::sync::Arc::new(AtomicU64::new(0));
    let producer = broker.producer().with_hook(Count(seen.clone()));
    let pending = producer.send_pending(&Message::new("t", body(1))).unwrap();
    assert_eq!(seen.load(Ordering::Relaxed), 1);
    drop(pending);
    assert!(matches!(
        producer.send_pending(&Message::new("t", "".as_bytes())),
        Err(Error::EmptyBody)
    ));
    assert_eq!(seen.load(Ordering::Relaxed), 101);
    // A handle does not keep the directory open.
    let pending = producer.send_pending(&Message::new("t", body(2))).unwrap();
    drop((producer, broker));
    assert!(pending.is_durable());
    small(dir.path()).open().unwrap();
}
