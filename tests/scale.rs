//! Many queues, many topics, many messages: what they cost in time, memory and descriptors, each
//! measured in a process of its own. `ci/scale.sh` runs it with the full numbers, for which the
//! limits hold that the README names; `cargo test` with smaller ones.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "doors of the library")]

mod support;

use rocklet::{Broker, BrokerBuilder, DrivenClock, Filter, Flush, Message, PullStatus, QueueId};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use support::Random;
use support::held::memory;
use support::process::{LONG, Process, child_arguments, told};
use support::runner::{Ignored, argument, run};

/// Queues of a topic.
const WIDTH: u64 = 100;
const BODY: usize = 16;
const BATCH: u64 = 256;
const MIB: u64 = 1 << 20;

fn main() -> ExitCode {
    if let Some(arguments) = child_arguments() {
        let text = |nth: usize| arguments.get(nth).map_or("", String::as_str);
        let (dir, count) = (Path::new(text(1)), text(2).parse().unwrap_or(0));
        match text(0) {
            "fill" => fill(dir, count),
            "open" => open(dir, count),
            "queue" => queue(dir, count),
            "topics" => topics(dir, count),
            "delay" => delay(dir, count),
            other => panic!("no child {other:?}"),
        }
        return ExitCode::SUCCESS;
    }
    run(&[
        ("b_171_very_many_queues_are_opened_quickly", b_171_very_many_queues_are_opened_quickly),
        ("millions_of_messages_take_no_memory", millions_of_messages_take_no_memory),
        ("millions_of_delays_come_once_and_in_order", millions_of_delays_come_once_and_in_order),
        ("b_051_few_descriptors_and_many_topics", b_051_few_descriptors_and_many_topics),
    ])
}

fn child(what: &str, dir: &Path, count: u64) -> Process {
    Process::start(&[what, dir.to_str().unwrap(), &count.to_string()])
}

/// The numbers that a child says after `what`.
fn said<const N: usize>(child: &Process, what: &str) -> [u64; N] {
    let line = child.line_until(Instant::now() + 20 * LONG).expect("a line of the child");
    let (said, numbers) = line.split_once(':').unwrap_or_else(|| panic!("{line}"));
    assert_eq!(said, what, "{line}");
    let numbers: Vec<u64> = numbers.split_whitespace().map(|n| n.parse().unwrap()).collect();
    numbers.try_into().unwrap()
}

/// How many mappings and descriptors this process has.
fn held() -> (usize, usize) {
    let mappings = std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    (mappings, std::fs::read_dir("/proc/self/fd").unwrap().count())
}

fn b_171_very_many_queues_are_opened_quickly() -> Result<(), Ignored> {
    let (queues, full) = match argument("--queues") {
        Some(queues) => (queues, true),
        None => (10_000, false),
    };
    let dir = tempfile::tempdir().unwrap();
    let check = |opened: [u64; 5], how: &str| {
        let [millis, resident, anonymous, mappings, descriptors] = opened;
        println!(
            "{queues} queues with 1 message each, after a {how}: open in {millis} ms, {} MiB \
             resident, {} MiB of them anonymous, {mappings} mappings, {descriptors} descriptors",
            resident / MIB,
            anonymous / MIB,
        );
        // A recovery looks through the rest of the last log file, which has 64 MiB.
        let most = 80 * MIB + queues * (300 - 80) * MIB / 100_000;
        assert!(resident <= most, "{resident} bytes of memory after a {how}");
        assert!(mappings < 200 && descriptors < 40, "{mappings}, {descriptors}");
        if full && how == "close" {
            assert!(millis <= 1000, "{millis} ms after a {how}");
        }
    };
    let mut filled = child("fill", dir.path(), queues);
    let [millis, _] = said(&filled, "filled");
    println!("{queues} queues made and filled in {millis} ms");
    filled.kill();
    filled.wait();
    for how in ["kill", "close"] {
        let mut opened = child("open", dir.path(), queues);
        check(said(&opened, "open"), how);
        opened.hang_up();
        said::<0>(&opened, "closed");
        assert!(opened.wait().success());
    }
    Ok(())
}

/// Makes the queues, and waits to be killed.
fn fill(dir: &Path, queues: u64) {
    let began = Instant::now();
    let broker = Broker::open(dir).unwrap();
    let producer = broker.producer();
    for topic in 0..queues / WIDTH {
        let topic = format!("topic-{topic}");
        broker.create_topic(&topic, WIDTH as u16).unwrap();
        for queue in 0..WIDTH {
            let message = Message::new(topic.as_str(), queue.to_le_bytes().to_vec());
            producer.send(&message.queue(queue as u16)).unwrap();
        }
    }
    println!("filled: {} {}", began.elapsed().as_millis(), memory("RssAnon"));
    told();
}

/// Opens the directory with nothing of it in the page cache, and reads a few of the messages.
fn open(dir: &Path, queues: u64) {
    forget_pages(dir);
    let began = Instant::now();
    let broker = Broker::open(dir).unwrap();
    let millis = began.elapsed().as_millis();
    let (mappings, descriptors) = held();
    let (resident, anonymous) = (memory("VmRSS"), memory("RssAnon"));
    println!("open: {millis} {resident} {anonymous} {mappings} {descriptors}");
    assert_eq!(broker.stats().topics as u64, queues / WIDTH);
    let pull = broker.pull_consumer("g").start().unwrap();
    for topic in (0..queues / WIDTH).step_by(37) {
        let queue = QueueId::new(format!("topic-{topic}"), (topic % WIDTH) as u16);
        let pulled = pull.pull(&queue, 0, 10).unwrap();
        let bodies: Vec<_> = pulled.messages.iter().map(|message| message.body()).collect();
        assert_eq!(bodies, [(topic % WIDTH).to_le_bytes()]);
    }
    told();
    drop(pull);
    broker.close().unwrap();
    println!("closed:");
}

/// Has the kernel drop the pages of all files, as far as it will.
fn forget_pages(dir: &Path) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            forget_pages(&path);
        } else if let Ok(file) = std::fs::File::open(&path) {
            let _ = file.sync_all();
            let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
        }
    }
}

fn millions_of_messages_take_no_memory() -> Result<(), Ignored> {
    let messages = argument("--messages").unwrap_or(200_000);
    let dir = tempfile::tempdir().unwrap();
    let mut queued = child("queue", dir.path(), messages);
    for how in ["sent", "opened", "read"] {
        let [millis, anonymous] = said(&queued, how);
        println!(
            "{messages} queued messages of {BODY} bytes, {how} in {millis} ms: {:.1} MiB anonymous",
            anonymous as f64 / MIB as f64
        );
        assert!(anonymous <= 64 * MIB, "{anonymous} bytes once they were {how}");
    }
    queued.hang_up();
    assert!(queued.wait().success());
    Ok(())
}

/// Queues messages that nobody consumes, opens the directory again, and reads them.
fn queue(dir: &Path, messages: u64) {
    let mut began = Instant::now();
    let mut say = |how: &str| {
        println!("{how}: {} {}", began.elapsed().as_millis(), memory("RssAnon"));
        began = Instant::now();
    };
    let broker = Broker::open(dir).unwrap();
    broker.create_topic("t", 4).unwrap();
    let producer = broker.producer();
    let batch: Vec<_> = (0..BATCH).map(|_| Message::new("t", [7; BODY].to_vec())).collect();
    for _ in 0..messages / BATCH {
        producer.send_batch(&batch).unwrap();
    }
    say("sent");
    broker.close().unwrap();
    drop((producer, broker));
    let broker = Broker::open(dir).unwrap();
    say("opened");
    let pull = broker.pull_consumer("g").start().unwrap();
    let mut count = 0;
    for queue in broker.queues("t").unwrap() {
        let mut next = 0;
        loop {
            let pulled = pull.pull(&queue, next, 1024).unwrap();
            if pulled.status != PullStatus::Found {
                break;
            }
            count += pulled.messages.iter().filter(|message| message.body() == [7; BODY]).count();
            next = pulled.next;
        }
    }
    assert_eq!(count as u64, messages / BATCH * BATCH);
    say("read");
    told();
}

/// Messages that are due at random times within the next hour of a clock that is driven.
fn millions_of_delays_come_once_and_in_order() -> Result<(), Ignored> {
    let (messages, full) = match argument("--delays") {
        Some(messages) => (messages, true),
        None => (20_000, false),
    };
    let dir = tempfile::tempdir().unwrap();
    let mut delayed = child("delay", dir.path(), messages);
    for how in ["delayed", "opened after a kill", "opened after a close", "delivered"] {
        let [millis, anonymous, most] = said(&delayed, how);
        println!(
            "{messages} messages with a delay, {how} in {millis} ms: {:.1} MiB anonymous, at most \
             {:.1} MiB meanwhile",
            anonymous as f64 / MIB as f64,
            most as f64 / MIB as f64
        );
        assert!(most <= 64 * MIB, "{most} bytes at most until they were {how}");
        let to_open = match how {
            "opened after a close" => 1000,
            "opened after a kill" => 5000,
            _ => u64::MAX,
        };
        assert!(!full || millis <= to_open, "{millis} ms until they were {how}");
    }
    delayed.hang_up();
    assert!(delayed.wait().success());
    Ok(())
}

/// The hour begins here.
const START_MS: u64 = 1_700_000_000_000;
const HOUR_MS: u64 = 3_600_000;

/// Delays messages, opens their directory again, and lets the hour pass.
fn delay(dir: &Path, messages: u64) {
    let clock = DrivenClock::with_steps(START_MS, 1);
    // An hour has too many of the usual intervals, each with a sync that takes real time.
    let flush = Flush::Every(Duration::from_secs(60));
    let builder = |dir: &Path| -> BrokerBuilder { Broker::builder(dir).clock(&clock).flush(flush) };
    let (mut began, mut most) = (Instant::now(), 0);
    let say = |how: &str, began: Instant, most: u64| {
        let anonymous = memory("RssAnon");
        println!("{how}: {} {anonymous} {}", began.elapsed().as_millis(), anonymous.max(most));
    };
    let broker = builder(dir).open().unwrap();
    broker.create_topic("t", 1).unwrap();
    let (producer, mut random) = (broker.producer(), Random(1));
    for nth in 0..messages {
        let delay = 1 + random.below(HOUR_MS);
        let body = [nth.to_le_bytes(), (START_MS + delay).to_le_bytes()].concat();
        let message = Message::new("t", body).delay(Duration::from_millis(delay));
        producer.send(&message).unwrap();
        if nth % 4096 == 0 {
            // The background work of what has been sent.
            while clock.step() {}
            most = most.max(memory("RssAnon"));
        }
    }
    say("delayed", began, most);
    broker.flush().unwrap();
    let killed = tempfile::tempdir().unwrap();
    copy_all(dir, killed.path());
    drop(producer);
    broker.close().unwrap();
    drop(broker);
    for (dir, how) in [(killed.path(), "opened after a kill"), (dir, "opened after a close")] {
        began = Instant::now();
        let broker = builder(dir).open().unwrap();
        assert_eq!(broker.stats().delayed as u64, messages);
        say(how, began, 0);
    }
    let broker = builder(dir).open().unwrap();
    (began, most) = (Instant::now(), 0);
    let pull = broker.pull_consumer("g").start().unwrap();
    let queue = QueueId::new("t", 0);
    let (mut seen, mut next, mut last) = (vec![0_u64; messages as usize / 64 + 1], 0, 0);
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    for second in 0..HOUR_MS / 1000 {
        clock.advance(Duration::from_secs(1));
        loop {
            let pulled = pull.pull(&queue, next, 1024).unwrap();
            if pulled.status != PullStatus::Found {
                break;
            }
            for message in &pulled.messages {
                let (nth, due) = (word(&message.body()[..8]), word(&message.body()[8..]));
                assert!(due <= message.store_ms(), "{nth} is early");
                assert!(message.store_ms() <= due + 1, "{nth} is late");
                assert!(last <= due, "{nth} is out of order");
                let (word, bit) = (&mut seen[nth as usize / 64], 1 << (nth % 64));
                assert!(*word & bit == 0, "{nth} has come twice");
                *word |= bit;
                last = due;
            }
            next = pulled.next;
        }
        if second % 60 == 0 {
            most = most.max(memory("RssAnon"));
        }
    }
    let count: u32 = seen.iter().map(|word| word.count_ones()).sum();
    assert_eq!((u64::from(count), next, broker.stats().delayed), (messages, messages, 0));
    say("delivered", began, most);
    told();
}

fn copy_all(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir(&target).unwrap();
            copy_all(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// The smallest limit under which the broker and the test harness fit many times over.
fn b_051_few_descriptors_and_many_topics() -> Result<(), Ignored> {
    let (topics, dir) = (5000, tempfile::tempdir().unwrap());
    let mut used = child("topics", dir.path(), topics);
    let [millis, mappings, descriptors] = said(&used, "consumed");
    println!(
        "{topics} topics made and consumed with 256 descriptors in {millis} ms: {mappings} \
         mappings, {descriptors} descriptors"
    );
    assert!(used.wait().success());
    Ok(())
}

fn topics(dir: &Path, count: u64) {
    let limit = Rlimit { current: Some(256), maximum: Some(256) };
    setrlimit(Resource::Nofile, limit).unwrap();
    let began = Instant::now();
    let broker = Broker::builder(dir).segment_bytes(64 << 10).open().unwrap();
    let producer = broker.producer();
    for nth in 0..count {
        let message = Message::new(format!("topic-{nth}"), nth.to_le_bytes().to_vec());
        producer.send(&message).unwrap();
    }
    let mut builder = broker.pull_consumer("g").batch(1024);
    for nth in 0..count {
        builder = builder.subscribe(&format!("topic-{nth}"), Filter::ALL).unwrap();
    }
    let mut consumer = builder.start().unwrap();
    let mut numbers = Vec::new();
    while (numbers.len() as u64) < count {
        let polled = consumer.poll(Duration::from_secs(10)).unwrap();
        assert!(!polled.is_empty(), "{} of {count}", numbers.len());
        let number = |body: &[u8]| u64::from_le_bytes(body.try_into().unwrap());
        numbers.extend(polled.iter().map(|delivery| number(delivery.body())));
        consumer.commit().unwrap();
    }
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..count));
    let (mappings, descriptors) = held();
    drop(consumer);
    broker.close().unwrap();
    println!("consumed: {} {mappings} {descriptors}", began.elapsed().as_millis());
}
