//! A broker on a disk that is slow or fails.

use super::Broker;
use crate::clock::DrivenClock;
use crate::error::Error;
use crate::message::Message;
use crate::store::Flush;
use crate::store::tests::copy_of;
use crate::store::tests::faulty::{Call, Faulty};
use crate::sync::Arc;
use std::time::Duration;

struct Scene {
    broker: Broker,
    disk: Arc<Faulty>,
    clock: DrivenClock,
    _dir: tempfile::TempDir,
}

/// A broker on a disk that can be held up, under a clock that stands still.
fn scene(flush: Flush) -> Scene {
    let dir = tempfile::tempdir().unwrap();
    let (disk, clock) = (Faulty::new(dir.path()), DrivenClock::new(1_000_000));
    let builder = Broker::builder(dir.path()).segment_bytes(1 << 20).flush(flush).clock(&clock);
    let broker = builder.open_on(disk.clone()).unwrap();
    broker.create_topic("t", 1).unwrap();
    broker.flush().unwrap();
    Scene { broker, disk, clock, _dir: dir }
}

const MODES: [Flush; 2] = [Flush::Every(Duration::from_millis(500)), Flush::EveryMessage];

fn message(nth: u8) -> Message<'static> {
    Message::new("t", vec![nth])
}

#[track_caller]
fn until(condition: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(30), "it never happens");
        std::thread::yield_now();
    }
}

/// The bodies in queue 0, by one byte each.
fn delivered(broker: &Broker) -> Vec<u8> {
    let consumer = broker.pull_consumer("g").subscribe("t", "*").unwrap().start().unwrap();
    let pull = consumer.pull(&broker.queues("t").unwrap()[0], 0, 1000).unwrap();
    pull.messages.iter().map(|delivery| delivery.body()[0]).collect()
}

/// (STORE-8, STORE-17)
#[test]
fn b_036_a_slow_flush_is_told_apart_from_a_failed_one() {
    for mode in MODES {
        let Scene { broker, disk, clock, _dir } = scene(mode);
        let producer = broker.producer();
        disk.hold(Call::SyncRange);
        let sent = producer.send_pending(&message(7)).unwrap();
        until(|| disk.waiting() == 1);
        // The caller's limit is over before the flush: stored, not confirmed.
        assert!(!sent.wait_timeout(Duration::ZERO).unwrap());
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| sent.wait_timeout(Duration::from_secs(3)));
            while !waiter.is_finished() {
                clock.advance(Duration::from_secs(1));
                std::thread::yield_now();
            }
            assert!(!waiter.join().unwrap().unwrap());
        });
        assert!(!sent.is_durable());
        assert_eq!(delivered(&broker), [7]);
        // And it can still be learned how it ended.
        disk.release();
        assert_eq!(sent.wait().unwrap(), *sent.receipt());
        assert!(sent.is_durable() && sent.wait_timeout(Duration::ZERO).unwrap());
        // The flush is over before the caller's limit.
        let sent = producer.send_pending(&message(8)).unwrap();
        assert!(sent.wait_timeout(Duration::from_secs(3600)).unwrap());
        // It fails.
        disk.fail(Some(Call::SyncRange), 0, 1, std::io::ErrorKind::Other);
        let lost = producer.send_pending(&message(9)).unwrap();
        for waited in [lost.wait().map(drop), lost.wait_timeout(Duration::ZERO).map(drop)] {
            match waited {
                Err(Error::NotDurable { receipt, cause }) => {
                    assert_eq!(receipt, *lost.receipt());
                    assert!(cause.contains("made to fail"), "{cause}");
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(!lost.is_durable());
        assert!(matches!(producer.send_pending(&message(1)), Err(Error::Poisoned { .. })));
        assert!(sent.wait().is_ok(), "what was durable stays so");
        assert_eq!(delivered(&broker), [7, 8, 9]);
        let closed = broker.close().unwrap_err().to_string();
        assert!(closed.contains("made to fail"), "{closed}");
        assert_eq!(broker.close().unwrap_err().to_string(), closed, "told once more, not wrapped");
        assert!(matches!(lost.wait(), Err(Error::NotDurable { .. })));
    }
}

#[test]
fn b_163_what_is_sent_while_a_flush_runs_shares_the_next_one() {
    for mode in MODES {
        let Scene { broker, disk, clock: _, _dir } = scene(mode);
        let producer = broker.producer();
        let (flushes, syncs) = (broker.stats().flushes, disk.count(Call::SyncRange));
        disk.hold(Call::SyncRange);
        let first = producer.send_pending(&message(0)).unwrap();
        until(|| disk.waiting() == 1);
        let rest: Vec<_> =
            (1..64).map(|nth| producer.send_pending(&message(nth)).unwrap()).collect();
        assert!(!first.is_durable() && rest.iter().all(|sent| !sent.is_durable()));
        disk.release();
        // The last one first: they are durable together.
        rest.iter().rev().chain([&first]).for_each(|sent| assert!(sent.wait().is_ok()));
        assert_eq!(broker.stats().flushes, flushes + 2);
        assert_eq!(disk.count(Call::SyncRange), syncs + 2);
        assert_eq!(broker.stats().unflushed, 0);
        assert_eq!(delivered(&broker).len(), 64);
    }
}

#[test]
fn store_17_a_message_may_decline_to_wait_for_its_flush() {
    let Scene { broker, disk, clock, _dir } = scene(Flush::EveryMessage);
    let producer = broker.producer();
    disk.hold(Call::SyncRange);
    let careless = message(1).wait_for_flush(false);
    let sent = producer.send(&careless).unwrap();
    let batch = producer.send_batch(&[careless.clone(), careless.clone()]).unwrap();
    assert_eq!(broker.stats().flushed, sent.position);
    assert_eq!(delivered(&broker), [1, 1, 1]);
    let mixed = producer.send_batch(&[message(2), careless.into_owned()]);
    assert!(matches!(mixed, Err(Error::Batch { .. })));
    // The flusher comes for them when its interval has passed.
    until(|| {
        clock.advance(Duration::from_millis(500));
        disk.waiting() == 1
    });
    disk.release();
    until(|| broker.stats().flushed > batch[1].position);
}

#[test]
fn store_18_the_flusher_comes_when_its_interval_has_passed_however_little_there_is() {
    let Scene { broker, disk, clock, _dir } = scene(Flush::Every(Duration::from_secs(60)));
    for nth in 0..3 {
        let syncs = disk.count(Call::SyncRange);
        let receipt = broker.producer().send(&message(nth)).unwrap();
        assert_eq!(
            (broker.stats().flushed, broker.stats().unflushed > 0),
            (receipt.position, true)
        );
        assert_eq!(disk.count(Call::SyncRange), syncs);
        until(|| {
            clock.advance(Duration::from_secs(30));
            broker.stats().unflushed == 0
        });
    }
    // With nothing to do it does nothing.
    let (syncs, flushes) = (disk.count(Call::SyncRange), broker.stats().flushes);
    (0..100).for_each(|_| clock.advance(Duration::from_secs(60)));
    assert_eq!((disk.count(Call::SyncRange), broker.stats().flushes), (syncs, flushes));
}

#[test]
fn store_17_a_message_that_waits_makes_those_durable_that_did_not() {
    let Scene { broker, disk: _, clock: _, _dir } = scene(Flush::EveryMessage);
    let producer = broker.producer();
    let careless = producer.send(&message(1).wait_for_flush(false)).unwrap();
    assert!(broker.stats().flushed <= careless.position);
    let waited = producer.send(&message(2)).unwrap();
    assert!(broker.stats().flushed > waited.position);
    assert!(waited.position > careless.position);
}

#[test]
fn b_035_handles_are_durable_after_a_close_and_after_the_last_drop() {
    for close in [false, true] {
        for mode in MODES {
            let Scene { broker, disk, clock: _, _dir } = scene(mode);
            disk.hold(Call::SyncRange);
            let producer = broker.producer();
            let sent: Vec<_> =
                (0..10).map(|nth| producer.send_pending(&message(nth)).unwrap()).collect();
            until(|| disk.waiting() == 1);
            std::thread::scope(|scope| {
                let waiters: Vec<_> = sent.iter().map(|sent| scope.spawn(|| sent.wait())).collect();
                let closing = scope.spawn(move || {
                    if close {
                        broker.close().unwrap();
                    }
                    drop((broker, producer));
                });
                disk.release();
                closing.join().unwrap();
                for (waiter, sent) in waiters.into_iter().zip(&sent) {
                    assert_eq!(waiter.join().unwrap().unwrap(), *sent.receipt());
                    assert!(sent.is_durable());
                }
            });
        }
    }
}

#[test]
fn b_081_offsets_keep_their_values_while_a_recovery_takes_its_time() {
    let Scene { broker, disk: _, clock: _, _dir: dir } = scene(MODES[0]);
    broker.producer().send_batch(&[message(0), message(1), message(2)]).unwrap();
    let mut consumer =
        broker.pull_consumer("g").subscribe("t", "*").unwrap().batch(2).start().unwrap();
    assert_eq!(consumer.poll(Duration::from_secs(30)).unwrap().len(), 2);
    consumer.commit().unwrap();
    // As after a kill: nothing is closed.
    let dir = copy_of(dir.path());
    let stored = || std::fs::read(dir.path().join("meta/offsets-0000")).unwrap();
    let before = stored();
    let (slow, clock) = (Faulty::new(dir.path()), DrivenClock::new(2_000_000));
    slow.hold(Call::Map);
    std::thread::scope(|scope| {
        let opening = scope.spawn(|| {
            let builder = Broker::builder(dir.path()).segment_bytes(1 << 20).clock(&clock);
            builder.open_on(slow.clone())
        });
        until(|| slow.waiting() == 1);
        for _ in 0..100 {
            clock.advance(Duration::from_secs(1));
            std::thread::yield_now();
        }
        assert_eq!((stored() == before, slow.waiting()), (true, 1));
        slow.release();
        let again = opening.join().unwrap().unwrap();
        assert!(stored() == before);
        let queue = &again.queues("t").unwrap()[0];
        assert_eq!(again.committed("g", queue).unwrap(), Some(2));
        let mut consumer = again.pull_consumer("g").subscribe("t", "*").unwrap().start().unwrap();
        let rest = consumer.poll(Duration::from_secs(30)).unwrap();
        assert_eq!(rest.iter().map(|delivery| delivery.body()[0]).collect::<Vec<_>>(), [2]);
    });
}
