//! One broker a directory: whoever comes second is told at once, whatever the owner is doing, and
//! nothing holds the directory after it was closed.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "doors of the library")]

mod support;

use rocklet::{Broker, Delivery, Error, Filter, Flush, Message, PullStatus};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use support::process::{LONG, Process, child_arguments, told};
use support::runner::{Ignored, run};

const TOPIC: &str = "t";

fn main() -> ExitCode {
    if let Some(arguments) = child_arguments() {
        own(Path::new(&arguments[0]));
        return ExitCode::SUCCESS;
    }
    run(&[
        ("a_second_opener_is_refused_in_the_same_process", refused_in_the_same_process),
        ("a_second_opener_is_refused_in_another_process", refused_in_another_process),
        ("the_lock_ends_with_close_and_with_the_last_handle", lock_ends_with_the_broker),
        ("the_lock_ends_with_a_killed_owner", lock_ends_with_a_killed_owner),
        ("b_048_a_stopped_owner_keeps_its_lock", b_048_stopped_owner),
        ("b_054_nothing_stays_open_after_close", b_054_nothing_stays_open),
        ("b_035_append_racing_with_close", b_035_append_racing_with_close),
    ])
}

/// The child: has the directory open, sends a message a line, closes at the end of its input.
fn own(dir: &Path) {
    let broker = Broker::open(dir).unwrap();
    let producer = broker.producer();
    println!("open");
    while told() {
        let receipt = producer.send(&Message::new(TOPIC, b"of the owner").queue(0)).unwrap();
        println!("{}", receipt.offset);
    }
    broker.close().unwrap();
    println!("closed");
    // Its handles, and the process, are still there.
    told();
}

fn start_owner(dir: &Path) -> Process {
    let owner = Process::start(&[dir]);
    assert_eq!(owner.line(), "open");
    owner
}

fn send(broker: &Broker) -> u64 {
    broker.producer().send(&Message::new(TOPIC, b"ours").queue(0)).unwrap().offset
}

/// At once, and without a trace.
fn assert_locked(dir: &Path) {
    let start = Instant::now();
    let error = Broker::open(dir).unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(5), "refused after {:?}", start.elapsed());
    let Error::Locked { dir: named } = &error else { panic!("{error}") };
    assert_eq!(named, dir);
    assert!(error.to_string().contains("is open in another broker"), "{error}");
}

fn refused_in_the_same_process() -> Result<(), Ignored> {
    let dir = tempfile::tempdir().unwrap();
    let first = Broker::open(dir.path()).unwrap();
    assert_eq!(send(&first), 0);
    for next in 1..20 {
        assert_locked(dir.path());
        // The refused one has not taken the lock away, nor changed anything.
        assert_eq!(send(&first), next);
    }
    first.close().unwrap();
    let second = Broker::open(dir.path()).unwrap();
    assert!(second.recovery_report().clean);
    assert_eq!(send(&second), 20);
    // Closing the first again does not end the lock of the second.
    first.close().unwrap();
    drop(first);
    assert_locked(dir.path());
    Ok(())
}

fn refused_in_another_process() -> Result<(), Ignored> {
    let dir = tempfile::tempdir().unwrap();
    let mut owner = start_owner(dir.path());
    for offset in 0..5 {
        assert_locked(dir.path());
        owner.say("send");
        assert_eq!(owner.line(), offset.to_string());
    }
    owner.hang_up();
    assert_eq!(owner.line(), "closed");
    let broker = Broker::open(dir.path()).unwrap();
    assert!(broker.recovery_report().clean);
    assert_eq!(send(&broker), 5);
    Ok(())
}

fn lock_ends_with_the_broker() -> Result<(), Ignored> {
    let dir = tempfile::tempdir().unwrap();
    let broker = Broker::open(dir.path()).unwrap();
    let producer = broker.producer();
    broker.close().unwrap();
    // The handles are still there.
    let second = Broker::open(dir.path()).unwrap();
    let refused = producer.send(&Message::new(TOPIC, b"late")).unwrap_err();
    assert!(matches!(refused, Error::Closed), "{refused}");
    let (clone, producer) = (second.clone(), second.producer());
    let consumer = second.pull_consumer("g").subscribe(TOPIC, Filter::ALL).unwrap();
    let consumer = consumer.start().unwrap();
    drop(second);
    assert_locked(dir.path());
    drop(clone);
    assert_locked(dir.path());
    drop(producer);
    assert_locked(dir.path());
    drop(consumer);
    assert!(Broker::open(dir.path()).unwrap().recovery_report().clean);
    Ok(())
}

fn lock_ends_with_a_killed_owner() -> Result<(), Ignored> {
    let dir = tempfile::tempdir().unwrap();
    let mut owner = start_owner(dir.path());
    owner.say("send");
    assert_eq!(owner.line(), "0");
    assert_locked(dir.path());
    owner.kill();
    owner.wait();
    let broker = Broker::open(dir.path()).unwrap();
    assert!(!broker.recovery_report().clean);
    assert_eq!(send(&broker), 1);
    Ok(())
}

fn b_048_stopped_owner() -> Result<(), Ignored> {
    let dir = tempfile::tempdir().unwrap();
    let mut owner = start_owner(dir.path());
    owner.say("send");
    assert_eq!(owner.line(), "0");
    signal("STOP", owner.id());
    wait_for_state(owner.id(), |state| state == 'T');
    let stopped = Instant::now();
    while stopped.elapsed() < Duration::from_secs(2) {
        assert_locked(dir.path());
        std::thread::sleep(Duration::from_millis(50));
    }
    signal("CONT", owner.id());
    for offset in 1..4 {
        assert_locked(dir.path());
        owner.say("send");
        assert_eq!(owner.line(), offset.to_string());
    }
    owner.hang_up();
    assert_eq!(owner.line(), "closed");
    let broker = Broker::open(dir.path()).unwrap();
    assert_eq!(send(&broker), 4);
    let consumer = broker.pull_consumer("g").subscribe(TOPIC, Filter::ALL).unwrap();
    let mut consumer = consumer.start().unwrap();
    let read = consumer.poll(LONG).unwrap();
    let bodies: Vec<_> = read.iter().map(|delivery| delivery.body().to_vec()).collect();
    assert_eq!(bodies[..4], vec![b"of the owner".to_vec(); 4]);
    assert_eq!(bodies[4..], [b"ours"]);
    Ok(())
}

fn signal(name: &str, process: u32) {
    let sent = Command::new("kill").args([&format!("-{name}"), &process.to_string()]).status();
    assert!(sent.unwrap().success());
}

fn wait_for_state(process: u32, wanted: impl Fn(char) -> bool) {
    let start = Instant::now();
    loop {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        if state.is_some_and(&wanted) {
            return;
        }
        assert!(start.elapsed() < LONG, "state {state:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn b_054_nothing_stays_open() -> Result<(), Ignored> {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store-of-b-054");
    for _ in 0..3 {
        let threads = count("/proc/self/task");
        let broker = Broker::builder(&store).segment_bytes(64 << 10).open().unwrap();
        let producer = broker.producer();
        let body = [7; 1000];
        for _ in 0..500 {
            producer.send(&Message::new(TOPIC, &body[..])).unwrap();
        }
        let pull = broker.pull_consumer("pull").subscribe(TOPIC, Filter::ALL).unwrap();
        let mut pull = pull.start().unwrap();
        let push = broker.push_consumer("push").subscribe(TOPIC, Filter::ALL).unwrap();
        let push = push.start(|_: &Delivery<'_>| ()).unwrap();
        let deliveries = pull.poll(LONG).unwrap();
        let detached = deliveries.iter().next().unwrap().detach();
        pull.commit().unwrap();
        assert!(!references(&store).is_empty(), "the check sees what is open");
        broker.close().unwrap();
        assert_eq!(count("/proc/self/task"), threads, "threads");
        drop((producer, pull, push, broker));
        // What was received lives on its own, and keeps its part of the log.
        assert_eq!(detached.delivery().body(), body);
        assert!(deliveries.iter().all(|delivery| delivery.body() == body));
        let kept = references(&store);
        assert!(kept.iter().all(|line| line.contains("/commitlog/")), "{kept:?}");
        drop((deliveries, detached));
        assert_eq!(references(&store), Vec::<String>::new());
        std::fs::remove_dir_all(&store).unwrap();
    }
    // The same by dropping alone.
    let broker = Broker::open(&store).unwrap();
    send(&broker);
    drop(broker);
    assert_eq!(references(&store), Vec::<String>::new());
    Ok(())
}

/// Descriptors and mappings of this process that lead into `dir`.
fn references(dir: &Path) -> Vec<String> {
    let dir = dir.to_str().unwrap();
    let files = std::fs::read_dir("/proc/self/fd").unwrap();
    let files = files.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    let files = files.map(|path| path.to_string_lossy().into_owned());
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    files.chain(maps.lines().map(str::to_owned)).filter(|line| line.contains(dir)).collect()
}

fn count(folder: &str) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

fn b_035_append_racing_with_close() -> Result<(), Ignored> {
    let dir = tempfile::tempdir().unwrap();
    let mut acknowledged = BTreeMap::new();
    for round in 0..20u64 {
        let flush = match round % 2 {
            0 => Flush::Every(Duration::from_millis(1)),
            _ => Flush::EveryMessage,
        };
        let broker =
            Broker::builder(dir.path()).flush(flush).segment_bytes(64 << 10).open().unwrap();
        let start = Arc::new(Barrier::new(9));
        let senders: Vec<_> = (0..8u64)
            .map(|thread| {
                let (producer, start) = (broker.producer(), start.clone());
                std::thread::spawn(move || {
                    let mut sent = Vec::new();
                    start.wait();
                    for nth in 0u64.. {
                        let body = format!("{round} {thread} {nth}").into_bytes();
                        let message = Message::new(TOPIC, &body[..]);
                        let result = if nth.is_multiple_of(3) {
                            producer.send_batch(&[message]).map(|receipts| receipts[0])
                        } else {
                            producer.send(&message)
                        };
                        match result {
                            Ok(receipt) => {
                                sent.push(((receipt.queue, receipt.offset), body.clone()))
                            }
                            Err(Error::Closed) => return sent,
                            Err(error) => panic!("{error}"),
                        }
                    }
                    sent
                })
            })
            .collect();
        start.wait();
        while broker.stats().log_end < (round + 1) * 16 * 1024 {
            std::thread::yield_now();
        }
        broker.close().unwrap();
        for sender in senders {
            for (place, body) in sender.join().unwrap() {
                assert_eq!(acknowledged.insert(place, body), None, "given again: {place:?}");
            }
        }
        drop(broker);
        let broker = Broker::open(dir.path()).unwrap();
        assert!(broker.recovery_report().clean, "{}", broker.recovery_report());
        assert_eq!(read(&broker), acknowledged);
    }
    Ok(())
}

fn read(broker: &Broker) -> BTreeMap<(u16, u64), Vec<u8>> {
    let reader = broker.pull_consumer("reading").subscribe("none", Filter::ALL).unwrap();
    let reader = reader.start().unwrap();
    let mut found = BTreeMap::new();
    for queue in broker.queues(TOPIC).unwrap() {
        let mut offset = 0;
        loop {
            let pull = reader.pull(&queue, offset, 1024).unwrap();
            if pull.status != PullStatus::Found {
                break;
            }
            found.extend(
                pull.messages.iter().map(|delivery| {
                    ((delivery.queue(), delivery.offset()), delivery.body().to_vec())
                }),
            );
            offset = pull.next;
        }
    }
    found
}
