//! Flushes that are slow, fail, or are waited for.

use super::faulty::{Call, Faulty};
use super::*;
use crate::sync::atomic::{AtomicU64, Ordering};
use std::io::ErrorKind;

const MAX: u64 = 64 << 10;

/// A store of which so many bytes may await a flush.
fn bounded(storage: Arc<dyn Storage>, segment_bytes: u64, max_unflushed: u64) -> Store {
    let flush = Flush::Every(Duration::from_secs(1));
    let config = StoreConfig { segment_bytes, max_unflushed, ..config(flush) };
    Store::open(storage, config, Clock::system()).unwrap()
}

fn unflushed(store: &Store) -> u64 {
    store.log.committed() - store.flushed()
}

#[test]
fn what_awaits_a_flush_is_bounded_and_sending_goes_on_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let faulty = Faulty::new(dir.path());
    let store = bounded(faulty.clone(), 1 << 20, MAX);
    let topic = topic(&store, 2);
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for round in 0..3 {
            faulty.hold(Call::SyncRange);
            for queue in 0..2 {
                let (store, topic, done) = (&store, &topic, &done);
                scope.spawn(move || {
                    for nth in round * 100..(round + 1) * 100 {
                        send_body(store, topic, queue, &sized(nth, 1000)).unwrap();
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                });
            }
            // Whoever comes to the bound makes room himself; nobody else is there to do it.
            until(|| faulty.waiting() == 1);
            until(|| unflushed(&store) > MAX - 2000);
            assert!(unflushed(&store) <= MAX, "{} bytes await a flush", unflushed(&store));
            assert_eq!(done.load(Ordering::Relaxed), 2 * round);
            faulty.release();
            until(|| done.load(Ordering::Relaxed) == 2 * (round + 1));
            store.flush().unwrap();
        }
    });
    let expected: Vec<_> = (0..300).map(|nth| sized(nth, 1000)).collect();
    assert_eq!((read(&store, &topic, 0), read(&store, &topic, 1)), (expected.clone(), expected));
    // One that is longer than the bound goes alone.
    send(&store, &topic, 0, 1);
    let large = send_body(&store, &topic, 0, &sized(7, 3 * MAX as usize)).unwrap();
    assert_eq!(store.flushed(), large.position);
}

#[test]
fn who_waits_for_room_is_told_of_a_failure_and_of_a_close() {
    for close in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let faulty = Faulty::new(dir.path());
        let store = bounded(faulty.clone(), 1 << 20, MAX);
        let topic = topic(&store, 4);
        faulty.hold(Call::SyncRange);
        let sent: Vec<_> = std::thread::scope(|scope| {
            let (store, topic) = (&store, &topic);
            let send_on = |queue| {
                let mut sent = Vec::new();
                while sent.len() < 1000 {
                    let body = sized(sent.len() as u64, 1000);
                    match send_body(store, topic, queue, &body) {
                        Ok(_) => sent.push(body),
                        Err(error) => return (sent, error),
                    }
                }
                panic!("nothing has stopped the sender");
            };
            let senders: Vec<_> = (0..4).map(|queue| scope.spawn(move || send_on(queue))).collect();
            until(|| faulty.waiting() == 1);
            if close {
                let closing = scope.spawn(|| store.close());
                until(|| store.log.with_tail(|tail| tail.accepts().is_err()));
                faulty.release();
                closing.join().unwrap().unwrap();
            } else {
                faulty.fail(Some(Call::SyncRange), 0, 1, ErrorKind::Other);
                faulty.release();
            }
            senders.into_iter().map(|sender| sender.join().unwrap()).collect()
        });
        for (queue, (sent, error)) in sent.into_iter().enumerate() {
            match error {
                Error::Closed if close => {}
                Error::Poisoned { cause } if !close && cause.contains("made to fail") => {}
                other => panic!("{other}"),
            }
            if close {
                let again = open(dir.path());
                assert_eq!(read(&again, &again.topics.get("t").unwrap(), queue), sent);
                kill(again);
            } else {
                assert_eq!(read(&store, &topic, queue), sent);
            }
        }
    }
}

#[test]
fn handles_are_served_by_the_flusher_and_told_of_poison() {
    let dir = tempfile::tempdir().unwrap();
    let faulty = Faulty::new(dir.path());
    let store = open_on(faulty.clone()).unwrap();
    let topic = topic(&store, 1);
    let first = send(&store, &topic, 0, 0);
    store.want_durable(first.end);
    assert_eq!(store.gate.open_want(), Some(first.end));
    // Nobody flushes here: the wait ends at its deadline, and can be repeated.
    let soon = store.clock.moment().plus(Duration::from_millis(1));
    assert_eq!(store.await_durable(first.end, Some(soon)), Ok(false));
    faulty.hold(Call::SyncRange);
    std::thread::scope(|scope| {
        let (store, topic) = (&store, &topic);
        let flusher = scope.spawn(|| store.flush_wanted());
        until(|| faulty.waiting() == 1);
        let second = send(store, topic, 0, 1);
        store.want_durable(second.end);
        let late = Some(store.clock.moment().plus(Duration::from_secs(30)));
        let waiter = scope.spawn(move || store.await_durable(second.end, late));
        store.poison("planted");
        faulty.release();
        flusher.join().unwrap();
        // The flush in progress ended well, and it was the last.
        assert_eq!(store.await_durable(first.end, late), Ok(true));
        assert_eq!(waiter.join().unwrap(), Err("planted".to_owned()));
        assert_eq!(store.wait_durable(second.end), Err("planted".to_owned()));
    });
    let syncs = faulty.count(Call::SyncRange);
    store.flush_wanted();
    store.flush_step();
    assert!(matches!(store.flush(), Err(Error::Poisoned { .. })));
    assert_eq!(read(&store, &topic, 0), [body(0), body(1)]);
    assert!(matches!(store.close(), Err(Error::Poisoned { .. })));
    assert_eq!(faulty.count(Call::SyncRange), syncs);
}

#[test]
fn a_flush_whose_mark_cannot_be_written_has_failed() {
    let dir = tempfile::tempdir().unwrap();
    let faulty = Faulty::new(dir.path());
    let store = open_on(faulty.clone()).unwrap();
    let topic = topic(&store, 1);
    let end = send(&store, &topic, 0, 0).end;
    faulty.fail(Some(Call::Write), 0, 1, ErrorKind::StorageFull);
    assert!(store.wait_durable(end).unwrap_err().contains("meta/flushed"));
    assert!(matches!(send_body(&store, &topic, 0, b"x"), Err(Error::Poisoned { .. })));
    kill(store);
    let store = open(dir.path());
    assert_eq!(read(&store, &store.topics.get("t").unwrap(), 0), [body(0)]);
}

#[test]
fn a_close_that_fails_waits_for_the_flush_in_progress() {
    let dir = tempfile::tempdir().unwrap();
    let faulty = Faulty::new(dir.path());
    let store = open_on(faulty.clone()).unwrap();
    let topic = topic(&store, 1);
    let end = send(&store, &topic, 0, 0).end;
    faulty.hold(Call::SyncRange);
    std::thread::scope(|scope| {
        let store = &store;
        let leader = scope.spawn(move || store.wait_durable(end));
        until(|| faulty.waiting() == 1);
        store.poison("planted");
        let closing = scope.spawn(|| store.close());
        until(|| store.checkpoint.lock().closed);
        // The directory is not anybody else's yet.
        assert!(!Faulty::new(dir.path()).lock().unwrap());
        faulty.release();
        assert_eq!(leader.join().unwrap(), Ok(()));
        assert!(matches!(closing.join().unwrap(), Err(Error::Poisoned { .. })));
        assert!(Faulty::new(dir.path()).lock().unwrap());
    });
}

#[test]
fn write_back_starts_early_and_poisons_if_it_fails() {
    let dir = tempfile::tempdir().unwrap();
    let faulty = Faulty::new(dir.path());
    let store = bounded(faulty.clone(), 64 << 10, 256 << 10);
    let topic = topic(&store, 1);
    let count = || faulty.count(Call::WriteBack);
    let fill = |bytes: u64| {
        for nth in 0..bytes / 1000 {
            send_body(&store, &topic, 0, &sized(nth, 900)).unwrap();
        }
    };
    fill(100_000);
    store.flush_wanted();
    assert_eq!(count(), 0, "less than half of what may await a flush");
    fill(40_000);
    store.flush_wanted();
    assert_eq!(count(), 3, "a call for each file");
    // What was started is not started again.
    store.flush_wanted();
    fill(50_000);
    store.flush_wanted();
    assert_eq!(count(), 3);
    store.flush().unwrap();
    fill(100_000);
    store.flush_wanted();
    assert_eq!(count(), 3, "what is durable needs no write-back");
    fill(40_000);
    faulty.fail(Some(Call::WriteBack), 0, 1, ErrorKind::StorageFull);
    store.flush_wanted();
    assert!(matches!(send_body(&store, &topic, 0, b"x"), Err(Error::Poisoned { .. })));
    assert!(matches!(store.flush(), Err(Error::Poisoned { .. })));
}

#[test]
fn an_append_wakes_the_flusher_when_there_is_something_to_write_back() {
    let dir = tempfile::tempdir().unwrap();
    let store = bounded(Arc::new(Directory::new(dir.path()).unwrap()), 1 << 20, MAX);
    let topic = topic(&store, 1);
    let rung = || {
        let now = store.clock.moment();
        store.flusher().wait(&store.clock, Some(now))
    };
    assert!(rung(), "by the record of the topic");
    store.flush_wanted();
    for nth in 0..30 {
        send_body(&store, &topic, 0, &sized(nth, 1000)).unwrap();
        assert!(!rung());
    }
    for nth in 0..5 {
        send_body(&store, &topic, 0, &sized(nth, 1000)).unwrap();
    }
    assert!(rung(), "32 KiB have come");
    store.flush_wanted();
    send_body(&store, &topic, 0, b"x").unwrap();
    assert!(!rung());
    store.flush_step();
    send_body(&store, &topic, 0, b"x").unwrap();
    assert!(rung(), "by the first one after a flush");
}
