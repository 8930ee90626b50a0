//! A soak: everything at once, for as long as `--seconds` says (`ci/soak.sh`: ten minutes). Threads
//! send; groups push, pull, broadcast and come and go; listeners fail and panic; members join and
//! leave; the log is dropped behind them. In rounds: at the end of each everything has been
//! consumed, once, and the process has what it had after warming up (B-162).
//!
//! Why the number of mappings can be asked to stay: files of the log come and go in a cycle that
//! `keep_sending` ends at the same phase, and the index has from the start all blocks that a round
//! can take. Its blocks grow from 256 B to 256 KiB, which is `ENTRIES` messages; `fill` makes
//! files of every length, with `BLOCKS` of the longest. A round begins with one file of the log at
//! most, sends `MOST` messages to a queue, and then another file until the phase is right: fewer
//! than 45 000 a queue, as a file has fewer than 10 000. That is in four blocks whatever the phase
//! of the offsets, for four queues, and two for the retries of one message in fifty; all that is
//! given back meanwhile is among them. One a queue may be left over from the round before. So there
//! are never more than 23, and a further file is a leak.
//!
//! A leak of blocks is seen long before it costs a file: `index.rs` reads the index as it stands in
//! the directory, and no block may be in use for two rounds whose messages are all gone.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "doors of the library")]

mod index;
mod sequence;
#[path = "../support/mod.rs"]
mod support;

use index::Index;
use rocklet::{BackOff, Broker, Delivery, GroupSettings, Mode, PushConsumer, Retention};
use sequence::{Sequence, identity, message};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use support::Random;
use support::held::{Held, memory};
use support::process::LONG;
use support::runner::{Ignored, argument, run};

const TOPIC: &str = "t";
/// In which members come and go and listeners fail; one that polls; one that has no members most of
/// the time; and a broadcasting one.
const GROUPS: [&str; 4] = ["push", "pull", "passing", "all"];
const QUEUES: u16 = 4;
/// Messages by which senders run ahead of the slowest group.
const AHEAD: u64 = 10_000;
const FILE: u64 = 1 << 20;
/// Messages that a round sends to a queue at most.
const MOST: u64 = 25_000;
/// Entries of the longest block, and how many such blocks four files have.
const ENTRIES: u64 = (256 * 1024 - 64 - 32) / 16;
const BLOCKS: usize = 4 + 8 + 16 + 32;
/// Files of the index: one of every other length, too.
const FILES: usize = 5 + 4;
const MIB: u64 = 1 << 20;

fn main() -> ExitCode {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload().downcast_ref() != Some(&"planted") {
            usual(panic);
        }
    }));
    run(&[("b_162_nothing_grows_and_no_offset_is_skipped", soak)])
}

fn soak() -> Result<(), Ignored> {
    let seconds = argument("--seconds").unwrap_or(4);
    let rounds = (seconds / 3).clamp(4, 200) as u32;
    // Then it is still warming up when it ends.
    let short = seconds < 60;
    let (length, warm) = (Duration::from_secs(seconds) / rounds, rounds.div_ceil(4));
    let dir = tempfile::tempdir().unwrap();
    let first = fill(dir.path());
    let open = || {
        let retention = Retention::none().log_bytes(8 * FILE).keep_unconsumed();
        Broker::builder(dir.path()).segment_bytes(FILE).retention(retention).open().unwrap()
    };
    let scene = Scene::new(open(), first);
    let mut index = Index::default();
    let mut warmed: Option<(Held, u64)> = None;
    for round in 0..rounds {
        scene.play(length, round);
        scene.settle();
        let before = std::mem::replace(&mut index, Index::read(dir.path()));
        index.expect(&before, round);
        if let Some((held, _)) = warmed.filter(|_| !short) {
            held.expect(dir.path(), round);
        }
        let anonymous = memory("RssAnon");
        let held = Held::at_least(dir.path());
        let sent = scene.sent();
        println!("round {round}: {sent} messages, {held:?}, {index:?}, {anonymous} bytes");
        match warmed {
            None if round + 1 >= warm => warmed = Some((held, anonymous)),
            Some((_, before)) if !short => {
                assert!(anonymous <= before + 2 * MIB, "round {round}: {before}, now {anonymous}");
            }
            _ => {}
        }
    }
    let stats = scene.broker.stats();
    assert!(stats.failed > 0 && stats.panicked > 0 && stats.retention.dropped_files > 0);
    assert_eq!((stats.failed_reads, stats.failed_commits, stats.late), (0, 0, 0));
    let ends = scene.ends();
    scene.end();
    // Open once more: nothing is damaged, and nothing comes again.
    let broker = open();
    assert!(broker.recovery_report().clean);
    assert_eq!(broker.verify().unwrap().faults, []);
    for group in &GROUPS[..3] {
        let progress = broker.group_progress(group).unwrap();
        let of_topic = progress.queues.iter().filter(|queue| queue.queue.topic() == TOPIC);
        let committed: Vec<_> = of_topic.map(|queue| queue.committed.unwrap()).collect();
        assert_eq!((progress.lag(), committed), (0, ends.clone()), "{group}");
    }
    broker.close().unwrap();
    Ok(())
}

/// The broker, who is there all the time, and what the groups have got.
struct Scene {
    broker: Broker,
    sent: Vec<Mutex<u64>>,
    total: AtomicU64,
    groups: Vec<Arc<Sequence>>,
    failed: Arc<Mutex<BTreeSet<(u16, u64)>>>,
    staying: Vec<PushConsumer>,
}

impl Scene {
    fn new(broker: Broker, first: u64) -> Self {
        let soon = BackOff::table([Duration::from_millis(1)]);
        broker.create_group("push", GroupSettings::new().back_off(soon)).unwrap();
        let sequence = |group| Arc::new(Sequence::new(group, QUEUES, first));
        let mut scene = Self {
            broker,
            sent: (0..QUEUES).map(|_| Mutex::new(first)).collect(),
            total: AtomicU64::new(0),
            groups: GROUPS.map(sequence).into(),
            failed: Arc::default(),
            staying: Vec::new(),
        };
        let all = scene.groups[3].clone();
        let everything = scene.broker.push_consumer("all").mode(Mode::Broadcasting);
        let everything = everything.subscribe(TOPIC, "*").unwrap().name("everything");
        let listener = move |delivery: &Delivery<'_>| all.note(delivery);
        scene.staying.push(everything.start(listener).unwrap());
        scene.staying.push(scene.join("staying"));
        scene
    }

    /// A consumer whose listeners fail now and then.
    fn join(&self, name: &str) -> PushConsumer {
        let (sequence, failed) = (self.groups[0].clone(), self.failed.clone());
        let listener = move |delivery: &Delivery<'_>| {
            let (queue, number) = identity(delivery);
            let (fails, panics) = (number % 50 == 7, number % 5000 == 9);
            // The first time only.
            if (fails || panics) && failed.lock().unwrap().insert((queue, number)) {
                assert!(!panics, "planted");
                return Err("planted");
            }
            if fails || panics {
                failed.lock().unwrap().remove(&(queue, number));
            }
            sequence.note(delivery);
            Ok(())
        };
        let builder = self.broker.push_consumer("push").subscribe(TOPIC, "*").unwrap();
        builder.name(name).threads(2).start(listener).unwrap()
    }

    /// A round: everything at once.
    fn play(&self, length: Duration, round: u32) {
        let (over, sent) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let (over, done) = (&over, &sent);
            let senders = [0, 1].map(|half| scope.spawn(move || self.keep_sending(half, over)));
            for nth in 0..2 {
                scope.spawn(move || self.keep_polling(nth, done));
                let mut random = Random(u64::from(round * 2 + nth));
                scope.spawn(move || {
                    while !done.load(Ordering::SeqCst) {
                        let member = self.join(&format!("m{nth}"));
                        std::thread::sleep(Duration::from_millis(random.below(50)));
                        drop(member);
                    }
                });
            }
            scope.spawn(move || self.keep_passing(done));
            std::thread::sleep(length);
            over.store(true, Ordering::SeqCst);
            senders.into_iter().for_each(|sender| sender.join().unwrap());
            done.store(true, Ordering::SeqCst);
        });
    }

    fn keep_sending(&self, half: u16, over: &AtomicBool) {
        let (producer, mut random) = (self.broker.producer(), Random(half.into()));
        // Space is taken by whole files, the next one once a quarter of the last one is filled: every
        // round ends with one that is about half full.
        let half_full = || (FILE / 2..FILE * 3 / 4).contains(&(self.broker.stats().log_end % FILE));
        let ends = self.ends();
        while !over.load(Ordering::SeqCst) || (half == 0 && !half_full()) {
            let slowest = self.groups.iter().map(|group| group.count()).min().unwrap_or(0);
            let queue = half + 2 * random.below(u64::from(QUEUES) / 2) as u16;
            let mut sent = self.sent[usize::from(queue)].lock().unwrap();
            let enough = *sent >= ends[usize::from(queue)] + MOST && !over.load(Ordering::SeqCst);
            if enough || self.sent() > slowest + AHEAD {
                drop(sent);
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            let count = if random.one_in(8) { 1 + random.below(30) } else { 1 };
            let batch: Vec<_> = (*sent..*sent + count).map(|n| message(TOPIC, queue, n)).collect();
            self.total.fetch_add(count, Ordering::SeqCst);
            match &batch[..] {
                [message] => drop(producer.send(message).unwrap()),
                batch => drop(producer.send_batch(batch).unwrap()),
            }
            *sent += count;
        }
    }

    /// Polls and commits until all is consumed, as one member after the other.
    fn keep_polling(&self, nth: u32, over: &AtomicBool) {
        let start = Instant::now();
        let done = || over.load(Ordering::SeqCst) && self.groups[1].count() == self.sent();
        while !done() {
            assert!(start.elapsed() < 10 * LONG, "pulling ends");
            let builder = self.broker.pull_consumer("pull").subscribe(TOPIC, "*").unwrap();
            let mut member = builder.name(format!("p{nth}")).batch(64).start().unwrap();
            for _ in 0..200 {
                if done() {
                    break;
                }
                let polled = member.poll(Duration::from_millis(20)).unwrap();
                polled.iter().for_each(|delivery| self.groups[1].note(&delivery));
                member.commit().unwrap();
            }
        }
    }

    /// A group without members most of the time.
    fn keep_passing(&self, over: &AtomicBool) {
        while !over.load(Ordering::SeqCst) || self.groups[2].count() < self.sent() {
            let sequence = self.groups[2].clone();
            let builder = self.broker.push_consumer("passing").subscribe(TOPIC, "*").unwrap();
            let member = builder.start(move |delivery| sequence.note(delivery)).unwrap();
            std::thread::sleep(Duration::from_millis(60));
            member.shutdown();
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until every group has consumed everything, and looks whether it was once each.
    fn settle(&self) {
        let start = Instant::now();
        let lag = || -> u64 {
            GROUPS.iter().map(|group| self.broker.group_progress(group).unwrap().lag()).sum()
        };
        // What waits for its next attempt is in no queue.
        let behind = || self.groups.iter().any(|group| group.count() < self.sent());
        while lag() > 0 || behind() {
            assert!(start.elapsed() < LONG, "{:?}", self.broker.group_progress("push").unwrap());
            std::thread::sleep(Duration::from_millis(1));
        }
        let ends = self.ends();
        self.groups.iter().for_each(|group| group.expect(&ends));
        assert!(self.failed.lock().unwrap().is_empty(), "some failed and never came again");
        self.broker.drop_before(self.broker.stats().log_end).unwrap();
    }

    fn sent(&self) -> u64 {
        self.total.load(Ordering::SeqCst)
    }

    fn ends(&self) -> Vec<u64> {
        self.sent.iter().map(|sent| *sent.lock().unwrap()).collect()
    }

    fn end(self) {
        drop(self.staying);
        self.broker.close().unwrap();
    }
}

/// Sends so much, and drops it, that the index has all blocks that it will ever need: four queues
/// with five of the longest each, while nothing is dropped. They are more than half of what three
/// files have, so that a fourth is made ahead. Returns the next offset.
fn fill(dir: &Path) -> u64 {
    const BATCH: u64 = 1000;
    const EACH: u64 = (5 * ENTRIES) / BATCH * BATCH;
    let builder = Broker::builder(dir).segment_bytes(FILE).retention(Retention::none());
    let broker = builder.open().unwrap();
    broker.create_topic(TOPIC, QUEUES).unwrap();
    let producer = broker.producer();
    for queue in 0..QUEUES {
        for from in (0..EACH).step_by(BATCH as usize) {
            let batch: Vec<_> = (from..from + BATCH).map(|n| message(TOPIC, queue, n)).collect();
            producer.send_batch(&batch).unwrap();
        }
    }
    let start = Instant::now();
    while std::fs::read_dir(dir.join("index")).unwrap().count() < FILES {
        assert!(start.elapsed() < LONG, "no file is made ahead");
        std::thread::sleep(Duration::from_millis(1));
    }
    broker.purge(TOPIC).unwrap();
    broker.drop_before(broker.stats().log_end).unwrap();
    broker.close().unwrap();
    assert_eq!(Index::read(dir).longest(), BLOCKS);
    EACH
}
