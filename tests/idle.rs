//! An idle broker sleeps: the threads of a process with ten topics and ten consumers that wait, two
//! of them without a queue (B-092), are not switched to.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "doors of the library")]

mod support;

use rocklet::{Broker, Delivery, Filter, Flush, Message, PullConsumer, PushConsumer, Retention};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use support::process::{LONG, Process, child_arguments, told};
use support::runner::{Ignored, run};

const TOPICS: u64 = 10;
const MESSAGES: u64 = 100;
const MOST: u64 = 5;
const WINDOW: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    if let Some(arguments) = child_arguments() {
        be_idle(&arguments[0]);
        return ExitCode::SUCCESS;
    }
    run(&[("b_092_an_idle_broker_sleeps", an_idle_broker_sleeps)])
}

/// Both flush modes are watched at the same time.
fn an_idle_broker_sleeps() -> Result<(), Ignored> {
    let modes = ["interval", "every message"];
    let mut children = modes.map(|mode| Process::start(&[mode]));
    children.iter().for_each(|child| assert_eq!(child.line(), "ready"));
    let ids = children.each_ref().map(Process::id);
    ids.iter().for_each(|id| settle(*id));
    let before = ids.map(switches);
    std::thread::sleep(WINDOW);
    for ((mode, id), before) in modes.iter().zip(ids).zip(&before) {
        let after = switches(id);
        assert!(before.keys().eq(after.keys()), "threads come and go: {before:?} {after:?}");
        assert!(after.len() > 4, "more threads than {}", after.len());
        let names = after.iter().filter(|(thread, _)| before[*thread] != after[*thread]);
        let names: Vec<_> = names.map(|(thread, _)| name(id, thread)).collect();
        let count = after.values().sum::<u64>() - before.values().sum::<u64>();
        println!("{mode}: {count} context switches of {} threads in {WINDOW:?}", after.len());
        assert!(count <= MOST, "{count} context switches, of {names:?}");
    }
    for child in &mut children {
        child.hang_up();
        assert_eq!(child.rest(), ["closed"]);
        assert!(child.wait().success());
    }
    Ok(())
}

/// Waits until two windows one after the other see no switch.
fn settle(process: u32) {
    let start = Instant::now();
    let (mut last, mut quiet) = (switches(process), 0);
    while quiet < 2 {
        assert!(start.elapsed() < Duration::from_secs(15), "still busy: {last:?}");
        std::thread::sleep(Duration::from_millis(500));
        let now = switches(process);
        quiet = if now == last { quiet + 1 } else { 0 };
        last = now;
    }
}

/// How often each thread was switched to, by its number.
fn switches(process: u32) -> BTreeMap<String, u64> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let of = |entry: std::fs::DirEntry| {
        let status = std::fs::read_to_string(entry.path().join("status")).ok()?;
        let counts = status.lines().filter_map(|line| line.split_once("voluntary_ctxt_switches:"));
        let sum = counts.map(|(_, count)| count.trim().parse::<u64>().unwrap()).sum();
        Some((entry.file_name().into_string().unwrap(), sum))
    };
    tasks.filter_map(|entry| of(entry.unwrap())).collect()
}

fn name(process: u32, thread: &str) -> String {
    let name = std::fs::read_to_string(format!("/proc/{process}/task/{thread}/comm"));
    name.unwrap_or_default().trim().to_owned()
}

fn be_idle(mode: &str) {
    let dir = tempfile::tempdir().unwrap();
    let flush = match mode {
        "interval" => Flush::Every(Duration::from_millis(500)),
        _ => Flush::EveryMessage,
    };
    let builder = Broker::builder(dir.path()).flush(flush);
    // Nothing is full yet, so that nothing can become too old.
    let retention = Retention::none().age(Duration::from_secs(1)).keep_unconsumed();
    let broker = builder.retention(retention).open().unwrap();
    let producer = broker.producer();
    let send = |nth: u64| {
        let topic = format!("topic-{}", nth % TOPICS);
        producer.send(&Message::new(topic, nth.to_string().into_bytes())).unwrap();
    };
    (0..MESSAGES / 2 - 2).for_each(send);
    // The flusher falls asleep again, too.
    let message = Message::new("topic-8", b"handle");
    producer.send_pending(&message).unwrap().wait().unwrap();
    producer.send(&Message::new("topic-9", b"careless").wait_for_flush(false)).unwrap();
    let mut pushed: Vec<_> = ["push-1", "push-2"].map(|group| push(&broker, group)).into();
    let crowd = || broker.push_consumer("crowd").subscribe("topic-0", Filter::ALL).unwrap();
    pushed.extend((0..6).map(|_| crowd().start(|_: &Delivery<'_>| ()).unwrap()));
    assert_eq!(pushed[2..].iter().filter(|member| member.assignment().is_empty()).count(), 2);
    let mut pulled: Vec<_> = ["pull-1", "pull-2"].map(|group| pull(&broker, group)).into();
    (MESSAGES / 2..MESSAGES).for_each(send);
    for consumer in &mut pulled {
        let mut polled = 0;
        while polled < MESSAGES {
            polled += consumer.poll(LONG).unwrap().len() as u64;
            consumer.commit().unwrap();
        }
    }
    for group in ["push-1", "push-2"] {
        while committed(&broker, group) < MESSAGES {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    std::thread::scope(|scope| {
        for consumer in &mut pulled {
            // Until the broker closes.
            scope.spawn(|| {
                consumer.poll(Duration::from_secs(3600)).map(|deliveries| deliveries.len())
            });
        }
        println!("ready");
        told();
        broker.close().unwrap();
    });
    drop(pushed);
    println!("closed");
}

fn push(broker: &Broker, group: &str) -> PushConsumer {
    let topics = (0..TOPICS).map(|nth| format!("topic-{nth}"));
    let mut builder = broker.push_consumer(group).threads(2);
    for topic in topics {
        builder = builder.subscribe(&topic, Filter::ALL).unwrap();
    }
    builder.start(|_: &Delivery<'_>| ()).unwrap()
}

fn pull(broker: &Broker, group: &str) -> PullConsumer {
    let topics = (0..TOPICS).map(|nth| format!("topic-{nth}"));
    let mut builder = broker.pull_consumer(group);
    for topic in topics {
        builder = builder.subscribe(&topic, Filter::ALL).unwrap();
    }
    builder.start().unwrap()
}

fn committed(broker: &Broker, group: &str) -> u64 {
    let queues = (0..TOPICS).flat_map(|nth| broker.queues(&format!("topic-{nth}")).unwrap());
    queues.map(|queue| broker.committed(group, &queue).unwrap().unwrap_or(0)).sum()
}
