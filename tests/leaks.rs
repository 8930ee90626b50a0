//! Starting and stopping leaves nothing behind: no thread, no descriptor, no mapping.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "doors of the library")]

mod support;

use rocklet::{Broker, Delivery, Error, Message, Mode, OffsetStore, QueueId, ResetTo};
use std::process::ExitCode;
use std::time::Duration;
use support::held::Held;
use support::runner::{Ignored, run};

const ROUNDS: u32 = 1000;
const WARM: u32 = 50;

fn main() -> ExitCode {
    run(&[
        ("b_160_a_thousand_consumers_leave_nothing_behind", consumers),
        ("b_160_a_hundred_brokers_leave_nothing_behind", brokers),
    ])
}

/// All mappings, those of threads and of the allocator included.
fn all_mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}

fn consumers() -> Result<(), Ignored> {
    let dir = tempfile::tempdir().unwrap();
    let broker = Broker::builder(dir.path()).segment_bytes(1 << 20).open().unwrap();
    broker.create_topic("t", 4).unwrap();
    send(&broker);
    (0..WARM).for_each(|round| start_and_stop(&broker, round));
    let (before, all) = (Held::now(dir.path()), all_mappings());
    for round in WARM..WARM + ROUNDS {
        start_and_stop(&broker, round);
        if round % 100 == 0 {
            before.expect(dir.path(), round);
        }
    }
    before.expect(dir.path(), ROUNDS);
    println!("{ROUNDS} rounds: {before:?}, {all} mappings before, {} after", all_mappings());
    assert!(all_mappings() <= all + 16, "{all} mappings have become {}", all_mappings());
    assert_eq!(broker.stats().consumers, 0);
    broker.close().unwrap();
    Ok(())
}

fn send(broker: &Broker) {
    for _ in 0..20 {
        broker.producer().send(&Message::new("t", b"x")).unwrap();
    }
}

/// Keeps nothing.
struct Nowhere;

impl OffsetStore for Nowhere {
    fn read(&self, _queue: &QueueId) -> Result<Option<u64>, String> {
        Ok(None)
    }

    fn store(&self, _queue: &QueueId, _offset: u64) -> Result<(), String> {
        Err("planted".to_owned())
    }
}

fn start_and_stop(broker: &Broker, round: u32) {
    let listener = |_: &Delivery<'_>| ();
    let builder = |group: &str| broker.push_consumer(group).subscribe("t", "*").unwrap().threads(2);
    let push = builder("push").name("m").start(listener).unwrap();
    let duplicate = builder("push").name("m").start(listener);
    assert!(matches!(duplicate, Err(Error::Duplicate { .. })));
    assert!(builder("push").threads(0).start(listener).is_err());
    let all = builder("all").mode(Mode::Broadcasting).start(listener).unwrap();
    let own = builder("own").offset_store(Nowhere).start(listener).unwrap();
    // The same messages again: the log is not to grow.
    if broker.groups().iter().any(|group| group == "pull") {
        broker.reset_offsets("pull", "t", ResetTo::First).unwrap();
        broker.reset_offsets("push", "t", ResetTo::First).unwrap();
    }
    let mut pull = broker.pull_consumer("pull").subscribe("t", "*").unwrap().start().unwrap();
    let guest = broker.pull_consumer("pull").assign([QueueId::new("t", 0)], "*").unwrap();
    let mut guest = guest.start().unwrap();
    guest.poll(Duration::ZERO).unwrap();
    let turns = broker.pull_schedule("turns").subscribe("t", "*").unwrap().threads(2);
    let turns = turns.start(|turn| {
        turn.commit(turn.pull(9)?.next)?;
        Ok(Duration::from_secs(3600))
    });
    drop((guest, turns.unwrap()));
    push.pause().unwrap();
    assert!(!pull.poll(Duration::from_secs(30)).unwrap().is_empty());
    pull.commit().unwrap();
    match round % 3 {
        0 => drop((push, all, own, pull)),
        1 => {
            pull.shutdown();
            [&own, &all, &push].iter().for_each(|consumer| consumer.shutdown());
        }
        _ => {
            let limit = Duration::from_secs(30);
            [&push, &own, &all].iter().for_each(|c| c.shutdown_within(limit).unwrap());
        }
    }
}

fn brokers() -> Result<(), Ignored> {
    let dir = tempfile::tempdir().unwrap();
    let open = |round| {
        let broker = Broker::builder(dir.path()).segment_bytes(1 << 20).open().unwrap();
        if round == 0 {
            send(&broker);
        }
        start_and_stop(&broker, round);
        let _running =
            broker.push_consumer("last").subscribe("t", "*").unwrap().start(|_| ()).unwrap();
        broker.close().unwrap();
    };
    (0..10).for_each(open);
    let before = Held::now(dir.path());
    for round in 10..110 {
        open(round);
        before.expect(dir.path(), round);
    }
    println!("100 brokers: {before:?}");
    assert_eq!(before.mappings, 0);
    Ok(())
}
