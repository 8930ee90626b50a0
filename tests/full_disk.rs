//! A file system of 16 MiB that runs full, in a mount namespace of its own: `send` says so, nothing
//! that was acknowledged is lost, and sending goes on once there is space again.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "doors of the library")]

mod support;

use rocklet::{
    AtLimit, Broker, Error, Filter, Flush, Message, PullConsumer, PullStatus, QueueId,
    Result as Sent, Retention,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};
use support::process::LONG;
use support::runner::{Ignored, run};

const TOPIC: &str = "t";
const QUEUES: u16 = 4;
const BALLAST: usize = 4 << 20;
/// The argument under which this executable runs in the namespace.
const INSIDE: &str = "--inside";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() == Some(INSIDE) {
        let test: usize = arguments.next().unwrap().parse().unwrap();
        return inside(TESTS[test].1, Path::new(&arguments.next().unwrap()));
    }
    run(&[
        (TESTS[0].0, || in_namespace(0)),
        (TESTS[1].0, || in_namespace(1)),
        (TESTS[2].0, || in_namespace(2)),
        (TESTS[3].0, || in_namespace(3)),
        (TESTS[4].0, || in_namespace(4)),
        (TESTS[5].0, || in_namespace(5)),
        (TESTS[6].0, || in_namespace(6)),
    ])
}

type Inside = fn(&Path);

/// What is run, each on a file system of its own that is mounted at the path.
const TESTS: [(&str, Inside); 7] = [
    ("b_038_a_full_disk_is_told_and_nothing_is_lost_with_interval_flushes", |dir| {
        fill_and_free(dir, Flush::Every(Duration::from_millis(5)));
    }),
    ("b_038_a_full_disk_is_told_and_nothing_is_lost_with_a_flush_for_every_message", |dir| {
        fill_and_free(dir, Flush::EveryMessage);
    }),
    ("a_full_disk_stops_topics_and_groups_but_not_those_that_are_there", tables_and_indexes),
    ("a_directory_on_a_full_disk_is_opened_or_told_and_whole_afterwards", reopen),
    ("dropping_frees_a_disk_that_is_full_to_the_last_byte", drop_on_a_full_disk),
    ("a_full_disk_costs_the_oldest_messages_if_that_is_wanted", drop_the_oldest),
    ("space_is_left_to_others_and_a_fuller_disk_has_files_removed", leave_space),
];

/// What the code says that a namespace could not be had.
const NO_MOUNT: u8 = 77;

/// Runs test number `test` with a signal or a failure of its process as its failure.
fn in_namespace(test: usize) -> Result<(), Ignored> {
    let dir = tempfile::tempdir().unwrap();
    let ways: [&[&str]; 2] = [&["--mount"], &["--mount", "--map-root-user"]];
    let mut reason = String::new();
    for way in ways {
        match Command::new("unshare").args(way).arg("true").output() {
            Ok(tried) if tried.status.success() => {}
            Ok(tried) => {
                reason = String::from_utf8_lossy(&tried.stderr).trim().to_owned();
                continue;
            }
            Err(error) => return Err(Ignored(format!("no unshare command: {error}"))),
        }
        let mut command = Command::new("unshare");
        command.args(way).arg(std::env::current_exe().unwrap());
        let status = wait(command.args([INSIDE, &test.to_string()]).arg(dir.path()));
        if status.code() == Some(NO_MOUNT.into()) {
            "cannot mount a tmpfs".clone_into(&mut reason);
            continue;
        }
        // A signal would show here: a store into a mapping without blocks is a SIGBUS.
        assert!(status.success(), "{status}");
        return Ok(());
    }
    Err(Ignored(reason))
}

fn wait(command: &mut Command) -> ExitStatus {
    let mut child = command.spawn().unwrap();
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if start.elapsed() > LONG {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn inside(test: Inside, dir: &Path) -> ExitCode {
    let mount =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=16m", "tmpfs"]).arg(dir).status();
    if !mount.is_ok_and(|status| status.success()) {
        return ExitCode::from(NO_MOUNT);
    }
    std::fs::write(dir.join("ballast"), vec![1; BALLAST]).unwrap();
    test(dir);
    ExitCode::SUCCESS
}

/// A store on the small file system, and what it has acknowledged.
struct Store {
    dir: PathBuf,
    flush: Flush,
    broker: Broker,
    reader: PullConsumer,
    acknowledged: BTreeMap<(u16, u64), Vec<u8>>,
}

impl Store {
    fn open(dir: &Path, flush: Flush) -> Self {
        let dir = dir.join("store");
        let (broker, reader) = open(&dir, flush).unwrap();
        Self { dir, flush, broker, reader, acknowledged: BTreeMap::new() }
    }

    fn try_reopen(&mut self) -> Sent<()> {
        (self.broker, self.reader) = open(&self.dir, self.flush)?;
        Ok(())
    }

    /// Sends until every queue refuses (each may lack space for its own index), and returns how
    /// many messages there was space for.
    fn fill(&mut self) -> usize {
        let before = self.acknowledged.len();
        let (mut queue, mut refused) = (0, 0);
        while refused < QUEUES {
            match self.send(queue) {
                Ok(()) => refused = 0,
                Err(error) => {
                    assert_full(&error);
                    refused += 1;
                }
            }
            queue = (queue + 1) % QUEUES;
        }
        self.acknowledged.len() - before
    }

    fn send(&mut self, queue: u16) -> Sent<()> {
        let mut body = format!("body {}", self.acknowledged.len()).into_bytes();
        body.resize(1000, b'.');
        let message = || Message::new(TOPIC, &body[..]).tag("a").queue(queue);
        let receipt = self.broker.producer().send(&message())?;
        let twice = self.acknowledged.insert((receipt.queue, receipt.offset), body);
        assert_eq!(twice, None, "an offset was given again");
        Ok(())
    }

    fn queues(&self) -> Vec<QueueId> {
        self.broker.queues(TOPIC).unwrap()
    }

    /// What was acknowledged is there, and nothing else.
    fn check(&self) {
        let mut found = 0;
        for queue in self.queues() {
            let (mut offset, max) = (0, self.broker.max_offset(&queue).unwrap());
            while offset < max {
                let pull = self.reader.pull(&queue, offset, 1024).unwrap();
                assert_eq!(pull.status, PullStatus::Found);
                for delivery in &pull.messages {
                    let expected = &self.acknowledged[&(queue.queue(), delivery.offset())];
                    assert_eq!(delivery.body(), expected);
                    found += 1;
                }
                offset = pull.next;
            }
        }
        assert_eq!(found, self.acknowledged.len());
    }

    fn committed(&self, group: &str) -> u64 {
        let committed = |queue| self.broker.committed(group, queue).unwrap().unwrap_or(0);
        self.queues().iter().map(committed).sum()
    }
}

fn open(dir: &Path, flush: Flush) -> Sent<(Broker, PullConsumer)> {
    let broker = Broker::builder(dir).flush(flush).segment_bytes(1 << 20).open()?;
    // Of a group that is new the first time only: that takes space.
    let reader = broker.pull_consumer("reading").subscribe("none", Filter::ALL)?.start()?;
    Ok((broker, reader))
}

fn assert_full(error: &Error) {
    assert!(matches!(error, Error::DiskFull { .. }), "{error}");
    assert!(error.to_string().contains("no space"), "{error}");
}

fn free(dir: &Path) {
    std::fs::remove_file(dir.join("ballast")).unwrap();
}

/// Bytes that are available on the file system.
fn available(dir: &Path) -> u64 {
    let output = Command::new("df").args(["--output=avail", "-B1"]).arg(dir).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().nth(1).unwrap().trim().parse().unwrap()
}

/// Takes the very last bytes: not even a small file can be replaced.
fn fill_up(dir: &Path) {
    let mut filler = std::fs::File::create(dir.join("filler")).unwrap();
    loop {
        let mut length = 1 << 20;
        while length > 0 {
            while std::io::Write::write_all(&mut filler, &vec![1; length]).is_ok() {}
            length /= 2;
        }
        // A log file that is being made meanwhile gives back what it has got when it fails.
        if available(dir) == 0 {
            return;
        }
    }
}

fn fill_and_free(dir: &Path, flush: Flush) {
    let mut store = Store::open(dir, flush);
    store.send(0).unwrap();
    // Groups that have consumed before: their commits need no space any more.
    let consumer = store.broker.pull_consumer("pulling").subscribe(TOPIC, Filter::ALL).unwrap();
    let mut consumer = consumer.batch(1024).start().unwrap();
    let mut polled = consumer.poll(LONG).unwrap().len();
    consumer.commit().unwrap();
    let pushed = store.broker.push_consumer("pushing").subscribe(TOPIC, Filter::ALL).unwrap();
    let pushed = pushed.start(|_: &rocklet::Delivery<'_>| ()).unwrap();

    let sent = store.fill();
    assert!(sent > 4000, "{sent} messages of 1 KB in 12 MiB");
    for nth in 0..100 {
        assert_full(&store.send(nth % QUEUES).unwrap_err());
    }
    let maxima = |store: &Store| -> Vec<u64> {
        store.queues().iter().map(|queue| store.broker.max_offset(queue).unwrap()).collect()
    };
    let before = maxima(&store);
    let body = vec![7; 20_000];
    let batch: Vec<_> = (0..20).map(|_| Message::new(TOPIC, &body[..])).collect();
    assert_full(&store.broker.producer().send_batch(&batch).unwrap_err());
    assert_eq!(maxima(&store), before, "a refused batch uses no offset");
    store.check();

    // Consuming and committing go on.
    let total = store.acknowledged.len();
    while polled < total {
        let deliveries = consumer.poll(LONG).unwrap();
        assert!(!deliveries.is_empty());
        polled += deliveries.len();
        consumer.commit().unwrap();
    }
    assert_eq!(store.committed("pulling"), total as u64);
    let start = Instant::now();
    while store.committed("pushing") < total as u64 {
        assert!(start.elapsed() < LONG, "the push consumer stands still");
        std::thread::sleep(Duration::from_millis(1));
    }

    // Sending goes on at once, without a restart, until it is full again.
    free(dir);
    (0..QUEUES).for_each(|queue| store.send(queue).unwrap());
    let receipts = store.broker.producer().send_batch(&batch).unwrap();
    for receipt in receipts {
        store.acknowledged.insert((receipt.queue, receipt.offset), body.clone());
    }
    let sent = store.fill();
    assert!(sent > 2000, "{sent} messages of 1 KB in 4 MiB");
    store.check();

    consumer.close();
    pushed.shutdown();
    let closed = store.broker.close();
    if let Err(error) = &closed {
        println!("close on a full disk: {error}");
    }
    store.try_reopen().unwrap();
    store.check();
    assert_eq!(store.committed("pulling"), total as u64);
}

fn tables_and_indexes(dir: &Path) {
    let mut store = Store::open(dir, Flush::Every(Duration::from_millis(5)));
    store.send(0).unwrap();
    // New topics take their index from the same space, until it is used up.
    let mut made = 0;
    let error = loop {
        match store.broker.create_topic(&format!("many-{made}"), 2000) {
            Ok(()) => {}
            Err(error) => break error,
        }
        let queue = (made % 2000) as u16;
        let topic = format!("many-{made}");
        let body = vec![7; 100_000];
        match store.broker.producer().send(&Message::new(&*topic, body).queue(queue)) {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
    };
    assert_full(&error);
    store.fill();
    fill_up(dir);
    // A group that is new is refused once there is no space for its offsets.
    let refused = (0..1000).filter(|nth| {
        let consumer = store.broker.pull_consumer(&format!("group-{nth}"));
        match consumer.subscribe(TOPIC, Filter::ALL).unwrap().start() {
            Ok(mut consumer) => {
                assert!(!consumer.poll(LONG).unwrap().is_empty());
                false
            }
            Err(error) => {
                assert_full(&error);
                true
            }
        }
    });
    let refused = refused.count();
    println!("{made} topics were made, {refused} of 1000 groups refused");
    assert!(refused > 0);
    store.check();
    free(dir);
    let consumer = store.broker.pull_consumer("late").subscribe(TOPIC, Filter::ALL).unwrap();
    assert!(!consumer.start().unwrap().poll(LONG).unwrap().is_empty());
    store.broker.create_topic("late", 1).unwrap();
    store.send(0).unwrap();
    store.check();
    store.broker.close().unwrap();
    store.try_reopen().unwrap();
    assert!(store.broker.topics().contains(&"late".to_owned()));
    store.check();
}

fn reopen(dir: &Path) {
    let mut store = Store::open(dir, Flush::EveryMessage);
    store.fill();
    fill_up(dir);
    let closed = store.broker.close();
    println!("close: {:?}", closed.map_err(|error| error.to_string()));
    for _ in 0..3 {
        match store.try_reopen() {
            Ok(()) => {
                store.check();
                assert_full(&store.send(0).unwrap_err());
                let _ = store.broker.close();
            }
            Err(error) => {
                println!("reopen: {error}");
                assert_full(&error);
            }
        }
    }
    free(dir);
    store.try_reopen().unwrap();
    store.check();
    store.send(0).unwrap();
    store.check();
    store.broker.close().unwrap();
    store.try_reopen().unwrap();
    assert!(store.broker.recovery_report().clean);
    store.check();
}

fn send_numbered(broker: &Broker, nth: u64) -> Sent<rocklet::Receipt> {
    let mut body = nth.to_le_bytes().to_vec();
    body.resize(10_000, 7);
    broker.producer().send(&Message::new(TOPIC, body).queue(0))
}

/// The numbers from the first that is stored to the last, without a hole.
fn check_numbered(broker: &Broker) -> std::ops::Range<u64> {
    let queue = &broker.queues(TOPIC).unwrap()[0];
    let (mut min, max) = (broker.min_offset(queue).unwrap(), broker.max_offset(queue).unwrap());
    // Of a group that is new the first time only: that takes space.
    let reader = broker.pull_consumer("reading").start().unwrap();
    let mut offset = min;
    while offset < max {
        let pull = reader.pull(queue, offset, 1024).unwrap();
        if pull.status == PullStatus::OffsetIllegal {
            // Room is made ahead of need: the oldest ones may go while this reads.
            min = broker.min_offset(queue).unwrap();
            assert!(offset < min, "{offset} is refused, {min} is the first");
            offset = min;
            continue;
        }
        assert_eq!(pull.status, PullStatus::Found);
        for delivery in &pull.messages {
            assert_eq!(delivery.body()[..8], offset.to_le_bytes());
            offset += 1;
        }
    }
    min..max
}

fn drop_on_a_full_disk(dir: &Path) {
    let open = || Broker::builder(dir.join("store")).segment_bytes(1 << 20).open().unwrap();
    let broker = open();
    let receipts: Vec<_> = (0..).map_while(|nth| send_numbered(&broker, nth).ok()).collect();
    assert!(receipts.len() > 500, "{}", receipts.len());
    let held = broker.pull_consumer("reading").start().unwrap();
    let held = held.pull(&broker.queues(TOPIC).unwrap()[0], 0, 1).unwrap().messages;
    fill_up(dir);
    assert_eq!(available(dir), 0);
    assert_full(&send_numbered(&broker, receipts.len() as u64).unwrap_err());
    let dropped = broker.drop_before(receipts[450].position).unwrap();
    assert!(dropped >= 4, "{dropped}");
    let first = check_numbered(&broker).start;
    assert!(first > 300 && first <= 450, "{first}");
    // One of them is held; of the others two are used again, and the rest is there for anybody.
    assert_eq!(broker.stats().retention.held_bytes, 1 << 20);
    let before = available(dir);
    drop(held);
    assert!(available(dir) >= before + (1 << 20), "a held file returns when it is let go");
    let next = receipts.len() as u64;
    for nth in next..next + 300 {
        send_numbered(&broker, nth).unwrap();
    }
    assert_eq!(check_numbered(&broker), first..next + 300);
    broker.close().unwrap();
    drop(broker);
    assert_eq!(check_numbered(&open()), first..next + 300);
}

fn drop_the_oldest(dir: &Path) {
    let open = || {
        let builder = Broker::builder(dir.join("store")).segment_bytes(1 << 20);
        builder.at_limit(AtLimit::DropOldest).open().unwrap()
    };
    let broker = open();
    check_after(&broker, 0..700);
    broker.close().unwrap();
    drop(broker);
    // Not while it is in use: others could take the reserve just as it is spent.
    fill_up(dir);
    let mut broker = open();
    for round in 1..6 {
        check_after(&broker, 700 * round..700 * (round + 1));
        let stats = broker.stats().retention;
        assert!(stats.dropped_at_limit > 0 && stats.failures == 0, "{stats:?}");
        if round % 2 == 0 {
            broker.close().unwrap();
            drop(broker);
            broker = open();
        }
    }
}

fn check_after(broker: &Broker, numbers: std::ops::Range<u64>) {
    for nth in numbers.clone() {
        send_numbered(broker, nth).unwrap();
    }
    let stored = check_numbered(broker);
    assert!(stored.end == numbers.end && stored.end - stored.start > 200, "{stored:?}");
}

fn leave_space(dir: &Path) {
    const FREE: u64 = 5 << 20;
    let builder = || Broker::builder(dir.join("store")).segment_bytes(1 << 20);
    let broker = builder().min_free_bytes(FREE).open().unwrap();
    let error = (0..).find_map(|nth| send_numbered(&broker, nth).err()).unwrap();
    assert!(matches!(error, Error::DiskFull { .. }), "{error}");
    // Small files are made all the same: retention needs them.
    let left = available(dir);
    assert!((FREE - (1 << 19)..FREE + (2 << 20)).contains(&left), "{left}");
    let sent = check_numbered(&broker).end;
    free(dir);
    send_numbered(&broker, sent).unwrap();
    assert_eq!(check_numbered(&broker), 0..sent + 1);
    broker.close().unwrap();
    drop(broker);

    // More than half of the file system is in use: the oldest files go until it is not.
    let broker = builder().retention(Retention::none().disk_percent(50)).open().unwrap();
    let start = Instant::now();
    for nth in sent + 1.. {
        // A sender may be ahead of the thread that makes room.
        while let Err(error) = send_numbered(&broker, nth) {
            assert!(matches!(error, Error::DiskFull { .. }), "{error}");
            assert!(start.elapsed() < LONG, "{:?}", broker.stats());
            std::thread::sleep(Duration::from_millis(1));
        }
        if nth > 1500 && available(dir) >= 8 << 20 {
            break;
        }
        assert!(start.elapsed() < LONG, "{:?}", broker.stats());
    }
    let stats = broker.stats().retention;
    assert!(stats.dropped_files > 0 && stats.dropped_at_limit == 0, "{stats:?}");
    check_numbered(&broker);
}
