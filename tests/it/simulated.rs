//! A broker on a simulated storage, with its background work as steps.

use crate::support::*;
use rocklet::{
    BackOff, Broker, Change, Delivery, DrivenClock, Error, Fate, FaultPlan, Filter, Flush,
    GroupSettings, Message, SimulatedStorage, StorageCall, StorageFault, Verify,
};
use std::collections::BTreeMap;
use std::time::Duration;

const INTERVAL: Duration = Duration::from_millis(500);

fn open(storage: &SimulatedStorage, clock: &DrivenClock) -> Broker {
    let builder = Broker::builder("simulated").storage(storage).clock(clock);
    builder.flush(Flush::Every(INTERVAL)).segment_bytes(64 << 10).open().unwrap()
}

fn new(seed: u64) -> (SimulatedStorage, DrivenClock, Broker) {
    let storage = SimulatedStorage::new(seed);
    let clock = DrivenClock::with_steps(1_700_000_000_000, seed);
    let broker = open(&storage, &clock);
    (storage, clock, broker)
}

/// A run with everything that goes on behind the scenes, and what it leaves.
fn run(seed: u64) -> (u64, BTreeMap<String, Option<Vec<u8>>>) {
    let (storage, clock, broker) = new(seed);
    for nth in 0..60 {
        let body = vec![nth as u8; 1 + nth * 97];
        broker.producer().send(&Message::new("t", &body[..])).unwrap();
        if nth % 7 == 0 {
            clock.step();
        }
        if nth % 11 == 0 {
            clock.advance(INTERVAL);
        }
    }
    let mut consumer = broker.pull_consumer("g").subscribe("t", "*").unwrap().start().unwrap();
    assert!(!consumer.poll(INTERVAL).unwrap().is_empty());
    consumer.commit().unwrap();
    drop(consumer);
    broker.close().unwrap();
    let files = storage.files().into_iter().map(|file| (file.clone(), storage.read(&file)));
    (storage.calls(), files.collect())
}

#[test]
fn a_run_is_a_function_of_its_seed() {
    let first = run(5);
    assert!(first.1.len() > 10 && first.0 > 100);
    let again = run(5);
    let differ = |file: &&String| first.1.get(*file) != again.1.get(*file);
    let different: Vec<_> = first.1.keys().filter(differ).collect();
    assert_eq!((again.0, different), (first.0, vec![]), "another run");
    assert!((6..10).any(|seed| run(seed).1 != first.1), "the seed decides nothing");
}

#[test]
fn what_the_interval_has_flushed_survives_a_loss_of_power() {
    let (storage, clock, broker) = new(1);
    send_to(&broker, "t", 0, 0);
    clock.advance(INTERVAL);
    send_to(&broker, "t", 0, 1);
    let (lost, kept) = (storage.crash().with(|_| Fate::Lost), storage.crash().with(|_| Fate::Kept));
    for (storage, expected) in [(lost, 1), (kept, 2), (storage.kill(), 2)] {
        let broker = open(&storage, &clock);
        let queue = &broker.queues("t").unwrap()[0];
        assert_eq!(broker.max_offset(queue).unwrap(), expected);
    }
}

#[test]
fn commits_of_a_new_group_are_synced_though_nothing_is_sent() {
    let storage = SimulatedStorage::new(1);
    let clock = DrivenClock::with_steps(1_700_000_000_000, 1);
    let builder = Broker::builder("simulated").storage(&storage).clock(&clock);
    let broker = builder.flush(Flush::EveryMessage).segment_bytes(64 << 10).open().unwrap();
    send_to(&broker, "t", 0, 0);
    let mut consumer = broker.pull_consumer("g").subscribe("t", "*").unwrap().start().unwrap();
    assert_eq!(consumer.poll(INTERVAL).unwrap().len(), 1);
    consumer.commit().unwrap();
    clock.advance(INTERVAL);
    let crashed = storage.crash().with(|_| Fate::Lost);
    assert_eq!(committed(&open(&crashed, &clock), "g", "t"), 1);
}

#[test]
fn a_topic_that_power_took_leaves_no_commit_to_the_next_one() {
    let (storage, clock, broker) = new(1);
    send_to(&broker, "t", 0, 0);
    let mut consumer = broker.pull_consumer("g").subscribe("t", "*").unwrap().start().unwrap();
    assert_eq!(consumer.poll(INTERVAL).unwrap().len(), 1);
    consumer.commit().unwrap();
    // The log is lost, what the group has committed is not.
    let of_offsets =
        |change: &Change| matches!(change, Change::Page { file, .. } if file.contains("offsets"));
    let crashed = storage.crash().with(|c| if of_offsets(c) { Fate::Kept } else { Fate::Lost });
    let broker = open(&crashed, &clock);
    assert_eq!(broker.topics(), [""; 0]);
    send_to(&broker, "t", 0, 7);
    let mut consumer = broker.pull_consumer("g").subscribe("t", "*").unwrap().start().unwrap();
    assert_eq!(numbers(&consumer.poll(INTERVAL).unwrap()), [7], "passed over");
}

/// What a failed sync has left behind as clean is not made durable by a later one that succeeds.
#[test]
fn after_a_failed_sync_the_next_process_writes_again() {
    for call in [StorageCall::SyncRange, StorageCall::Sync] {
        let (storage, clock, broker) = new(1);
        send_to(&broker, "t", 0, 0);
        let mut consumer = broker.pull_consumer("g").subscribe("t", "*").unwrap().start().unwrap();
        assert_eq!(consumer.poll(INTERVAL).unwrap().len(), 1);
        consumer.commit().unwrap();
        drop(consumer);
        storage.fail(FaultPlan::new(StorageFault::Io).only(call).once());
        clock.advance(INTERVAL);
        assert_eq!(storage.faults(), 1);
        assert!(matches!(broker.close(), Err(Error::Poisoned { .. })), "{call:?}");
        drop(broker);
        let broker = open(&storage, &clock);
        broker.flush().unwrap();
        clock.advance(INTERVAL);
        let broker = open(&storage.crash().with(|_| Fate::Lost), &clock);
        assert_eq!(broker.max_offset(&q("t", 0)).unwrap(), 1, "{call:?}");
        assert_eq!(committed(&broker, "g", "t"), 1, "{call:?}");
    }
}

#[test]
fn a_topic_that_comes_back_with_the_power_has_what_was_committed_in_it() {
    let (storage, clock, broker) = new(1);
    send_to(&broker, "t", 0, 0);
    let mut consumer = broker.pull_consumer("g").subscribe("t", "*").unwrap().start().unwrap();
    assert_eq!(consumer.poll(INTERVAL).unwrap().len(), 1);
    consumer.commit().unwrap();
    drop(consumer);
    clock.advance(INTERVAL);
    let before = storage.calls();
    broker.delete_topic("t").unwrap();
    clock.advance(INTERVAL);
    let calls = storage.calls() - before;
    // Again, with a loss of power in the midst of it.
    for call in 0..=calls {
        let (storage, clock, broker) = new(1);
        send_to(&broker, "t", 0, 0);
        let mut consumer = broker.pull_consumer("g").subscribe("t", "*").unwrap().start().unwrap();
        assert_eq!(consumer.poll(INTERVAL).unwrap().len(), 1);
        consumer.commit().unwrap();
        drop(consumer);
        clock.advance(INTERVAL);
        storage.cut_power_after(before + call);
        let _ = broker.delete_topic("t");
        clock.advance(INTERVAL);
        for fate in [Fate::Lost, Fate::Kept] {
            let of_offsets = |change: &Change| matches!(change, Change::Page { file, .. } if file.contains("offsets"));
            // The offsets by themselves, and all but them.
            let crash = storage.crash();
            let storage = crash.with(|change| match of_offsets(change) {
                true => Fate::Kept,
                false => fate,
            });
            let broker = open(&storage, &clock);
            if broker.topics() == ["t"] {
                assert_eq!(committed(&broker, "g", "t"), 1, "call {call}");
            }
        }
    }
}

/// Recovery cuts the log in its first file and removes the later ones; power goes in the midst.
#[test]
fn b_010_files_behind_a_cut_go_from_the_last_one_on() {
    let (storage, clock, broker) = new(1);
    let body = vec![7; 20_000];
    broker.producer().send(&Message::new("t", &body[..]).queue(0)).unwrap();
    clock.advance(INTERVAL);
    for _ in 0..10 {
        broker.producer().send(&Message::new("t", &body[..]).queue(0)).unwrap();
    }
    let first = |change: &Change| {
        let name = format!("commitlog/{:020}", 0);
        matches!(change, Change::Page { file, .. } if *file == name)
    };
    // Of the first file nothing was synced that came after the first message.
    let crash = storage.crash();
    let crashed = || crash.with(|c| if first(c) { Fate::Lost } else { Fate::Kept });
    let mut removals = 0;
    for call in 0.. {
        let storage = crashed();
        storage.cut_power_after(call);
        let builder = Broker::builder("simulated").storage(&storage).clock(&clock);
        let opened = builder.segment_bytes(64 << 10).open();
        let again = storage.crash();
        let removed = |change: &Change| matches!(change, Change::Removed { .. });
        let count = again.changes().filter(|change| removed(change)).count();
        removals = removals.max(count);
        for kept in 0..1_u32 << count {
            let mut nth = 0;
            let storage = again.with(|change| {
                nth += u32::from(removed(change));
                let keep = removed(change) && kept >> (nth - 1) & 1 == 1;
                if keep { Fate::Kept } else { Fate::Lost }
            });
            assert_eq!(open(&storage, &clock).max_offset(&q("t", 0)).unwrap(), 1, "call {call}");
        }
        if opened.is_ok() {
            break;
        }
    }
    assert!(removals > 0);
}

#[test]
fn a_poll_that_waits_takes_no_real_time() {
    let (_storage, clock, broker) = new(1);
    let mut consumer = broker.pull_consumer("g").subscribe("t", "*").unwrap().start().unwrap();
    let before = clock.wall_ms();
    assert!(consumer.poll(Duration::from_secs(3600)).unwrap().is_empty());
    assert_eq!(clock.wall_ms() - before, 3_600_000);
}

#[test]
fn push_consumers_work_on_a_simulated_storage() {
    let (storage, clock, broker) = new(1);
    let builder = broker.push_consumer("g").subscribe("t", Filter::ALL).unwrap();
    let consumer = builder.start(|_: &Delivery<'_>| ()).unwrap();
    for nth in 0..50 {
        send_to(&broker, "t", 0, nth);
    }
    wait_for("all", || committed(&broker, "g", "t") == 50);
    drop(consumer);
    clock.advance(INTERVAL);
    let crashed = storage.crash().with(|_| Fate::Lost);
    assert_eq!(committed(&open(&crashed, &clock), "g", "t"), 50);
}

#[test]
fn a_fault_of_the_storage_reaches_the_caller() {
    let (storage, _clock, broker) = new(1);
    send_to(&broker, "t", 0, 0);
    storage.fail(FaultPlan::new(StorageFault::Io).only(StorageCall::SyncRange).once());
    assert!(matches!(broker.flush(), Err(Error::Poisoned { .. })));
    let refused = broker.producer().send(&Message::new("t", b"x"));
    assert!(matches!(refused, Err(Error::Poisoned { .. })));
    assert_eq!(storage.faults(), 1);
}

#[test]
fn a_changed_byte_is_noticed_by_a_verifying_read_and_no_other() {
    let (storage, clock, broker) = new(1);
    let body = b"the body of a message";
    broker.producer().send(&Message::new("t", body).queue(0).tag("tag")).unwrap();
    broker.close().unwrap();
    let files: Vec<_> = storage.files();
    let log = files.iter().find(|file| file.starts_with("commitlog/0")).unwrap();
    let mut content = storage.read(log).unwrap();
    let at = content.windows(body.len()).position(|window| window == body).unwrap();
    content[at] ^= 1;
    storage.write(log, content);
    for verify in [Verify::OnOpen, Verify::OnRead] {
        let builder = Broker::builder("simulated").storage(&storage).clock(&clock);
        let broker = builder.verify(verify).segment_bytes(64 << 10).open().unwrap();
        let queue = &broker.queues("t").unwrap()[0];
        let reader = broker.pull_consumer("g").subscribe("none", "*").unwrap().start().unwrap();
        match (verify, reader.pull(queue, 0, 1)) {
            (Verify::OnOpen, Ok(pull)) => {
                assert_ne!(pull.messages.iter().next().unwrap().body(), body)
            }
            (Verify::OnRead, Err(Error::Corrupt { .. })) => {}
            (verify, pull) => panic!("{verify:?}: {pull:?}"),
        }
        drop(reader);
        broker.close().unwrap();
    }
}

/// Whatever call fails or is the last one: what is to be delivered again does not outlive its group.
#[test]
fn a_group_that_is_half_deleted_is_there_to_be_deleted_again() {
    let (storage, clock, broker) = new(1);
    broker.create_group("g", GroupSettings::new().back_off(BackOff::table([INTERVAL]))).unwrap();
    let builder = broker.push_consumer("g").subscribe("t", "*").unwrap();
    let consumer = builder.start(|_: &Delivery<'_>| Err::<(), _>("planted")).unwrap();
    send_to(&broker, "t", 0, 0);
    wait_for("a failure", || broker.stats().retries == 1);
    drop(consumer);
    clock.advance(INTERVAL);
    clock.advance(INTERVAL);
    let stands = |broker: &Broker| broker.browse("%RETRY%g").is_ok();
    assert!(stands(&broker));
    let mut halves = 0;
    for calls in 0.. {
        let storage = storage.kill();
        let broker = open(&storage, &clock);
        storage.fail(FaultPlan::new(StorageFault::Io).after(calls));
        let deleted = broker.delete_group("g");
        let crash = || storage.crash();
        let lefts = [storage.kill(), crash().with(|_| Fate::Lost), crash().with(|_| Fate::Kept)];
        for left in lefts {
            let broker = open(&left, &clock);
            let is_there = broker.groups() == ["g"];
            assert!(is_there || !stands(&broker), "after {calls} calls");
            assert!(!is_there || deleted.is_err(), "after {calls} calls");
            if is_there {
                halves += u32::from(!stands(&broker));
                broker.delete_group("g").unwrap();
                assert!(!stands(&broker) && broker.groups().is_empty());
            }
        }
        if deleted.is_ok() {
            break;
        }
    }
    assert!(halves > 0, "no call failed in between");
}
