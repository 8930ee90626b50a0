//! Messages that are delivered later, killed while they are sent, delivered, cancelled, and carried
//! forward because the front of the log goes.
//!
//! ```text
//! sent <number> <short or long>             arrived <number> <due> <offset> <seen>
//! cancelling <number>                       cancelled <number> <whether it waited>
//! waiting <messages>      end               closed        wrong <what>
//! ```

use crate::support::Random;
use crate::support::process::{LONG, Process, told, unbuffered_output};
use rocklet::{Broker, Error, Flush, Message, MessageId, PullStatus, QueueId};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The first argument of the process that is killed.
pub(crate) const NAME: &str = "delays";
const SEGMENT: u64 = 64 << 10;
const SHORT_MS: u64 = 400;
const HOUR_MS: u64 = 3_600_000;

/// What the parent knows.
#[derive(Debug, Default)]
struct Ledger {
    /// Acknowledged, and whether it has long to wait.
    sent: BTreeMap<u64, bool>,
    /// By number, and whether it waited; `None` while nobody has said.
    cancelled: BTreeMap<u64, Option<bool>>,
    arrived: BTreeMap<u64, u64>,
    offsets: BTreeMap<u64, u64>,
    waiting: u64,
}

impl Ledger {
    fn note(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |nth: usize| words[nth].parse::<u64>().unwrap();
        match words[0] {
            "sent" => assert_eq!(self.sent.insert(number(1), words[2] == "long"), None, "{line}"),
            "cancelling" => drop(self.cancelled.insert(number(1), None)),
            "cancelled" => drop(self.cancelled.insert(number(1), Some(words[2] == "true"))),
            "arrived" => {
                let (message, due, offset, seen) = (number(1), number(2), number(3), number(4));
                assert!(seen >= due, "early: {line}");
                let before = self.arrived.insert(message, offset);
                assert!(before.is_none_or(|before| before == offset), "twice: {line}, {before:?}");
                let before = self.offsets.insert(offset, message);
                assert!(before.is_none_or(|before| before == message), "{line}: {before:?}");
                let cancelled = self.cancelled.get(&message).copied().flatten();
                assert_ne!(cancelled, Some(true), "cancelled before: {line}");
            }
            "waiting" => self.waiting = number(1),
            "end" | "closed" => {}
            _ => panic!("the worker said: {line}"),
        }
    }

    /// What has to come, and has not.
    fn missing(&self) -> Vec<u64> {
        let due = self.sent.iter().filter(|(_, long)| !**long).map(|(number, _)| *number);
        let comes = |number: &u64| {
            !self.arrived.contains_key(number)
                // One that was on its way when the process was killed may have done it.
                && self.cancelled.get(number).is_none_or(|waited| *waited == Some(false))
        };
        due.filter(comes).collect()
    }

    /// How many wait for an hour: at least, and at most.
    fn long(&self, unacknowledged: u64) -> (u64, u64) {
        let long: BTreeSet<_> = self.sent.iter().filter(|(_, long)| **long).map(|s| *s.0).collect();
        let cancelled = |which: &dyn Fn(&Option<bool>) -> bool| {
            long.iter().filter(|n| self.cancelled.get(n).is_some_and(which)).count() as u64
        };
        let all = long.len() as u64;
        let least = all - cancelled(&|waited| *waited != Some(false));
        (least, all - cancelled(&|waited| *waited == Some(true)) + unacknowledged)
    }
}

/// Kills so often, and returns when all that was acknowledged has come.
pub(crate) fn kill_again_and_again(rounds: u64, flush: &str, random: &mut Random) {
    let (dir, began) = (tempfile::tempdir().unwrap(), Instant::now());
    let mut ledger = Ledger::default();
    let start = |round: u64, senders: u64, random: &mut Random| {
        let numbers = [round, senders, random.next()].map(|number| number.to_string());
        let fixed = [NAME.to_owned(), dir.path().to_str().unwrap().to_owned(), flush.to_owned()];
        Process::start(&[&fixed[..], &numbers[..]].concat())
    };
    for round in 0..rounds {
        if random.one_in(4) {
            // At open.
            let mut worker = start(round, 0, random);
            std::thread::sleep(Duration::from_micros(random.below(12_000)));
            worker.kill();
            worker.rest().iter().for_each(|line| ledger.note(line));
        }
        let mut worker = start(round, SENDERS, random);
        described(&worker, &mut ledger);
        worker.say("work");
        let deadline = Instant::now() + Duration::from_millis(10 + random.below(300));
        for _ in 0..random.below(2000) {
            let Some(line) = worker.line_until(deadline) else { break };
            ledger.note(&line);
        }
        worker.kill();
        worker.rest().iter().for_each(|line| ledger.note(line));
        worker.wait();
    }
    let mut worker = start(rounds, 0, random);
    described(&worker, &mut ledger);
    worker.say("work");
    let deadline = Instant::now() + LONG;
    while !ledger.missing().is_empty() {
        let line = worker.line_until(deadline);
        let line = line.unwrap_or_else(|| panic!("they never come: {:?}", ledger.missing()));
        ledger.note(&line);
    }
    worker.hang_up();
    worker.rest().iter().for_each(|line| ledger.note(line));
    assert!(worker.wait().success());
    let broker = Broker::builder(dir.path()).segment_bytes(SEGMENT).open().unwrap();
    let (stats, report) = (broker.stats(), broker.recovery_report());
    assert!(report.clean, "{report}");
    let verified = broker.verify().unwrap();
    assert!(verified.is_sound(), "{verified}");
    // Of each sender one message may have been stored and not said.
    let (least, most) = ledger.long(rounds * SENDERS);
    assert!((least..=most).contains(&(stats.delayed as u64)), "{least}..={most}, {stats:?}");
    let cancelled = ledger.cancelled.values().filter(|waited| **waited == Some(true)).count();
    println!(
        "{rounds} kills in {} s: {} messages with a delay, {} have come once and not early, \
         {cancelled} were cancelled, {} wait for an hour; the log begins at {}",
        began.elapsed().as_secs(),
        ledger.sent.len(),
        ledger.arrived.len(),
        stats.delayed,
        stats.log_start,
    );
    assert!(stats.log_start > SEGMENT, "nothing was carried forward");
}

fn described(worker: &Process, ledger: &mut Ledger) {
    let deadline = Instant::now() + LONG;
    loop {
        let line = worker.line_until(deadline).expect("an opened and described store");
        ledger.note(&line);
        if line == "end" {
            let least = ledger.long(0).0;
            assert!(ledger.waiting >= least, "{} of {least} wait", ledger.waiting);
            return;
        }
    }
}

const SENDERS: u64 = 2;

/// The process that is killed.
pub(crate) fn work(arguments: &[String]) -> ExitCode {
    let [dir, flush, numbers @ ..] = arguments else { panic!("{arguments:?}") };
    let numbers: Vec<u64> = numbers.iter().map(|number| number.parse().unwrap()).collect();
    let [round, senders, seed] = numbers[..] else { panic!("{arguments:?}") };
    let flush = match flush.as_str() {
        "each" => Flush::EveryMessage,
        _ => Flush::Every(Duration::from_millis(5)),
    };
    let opened = Broker::builder(Path::new(dir)).segment_bytes(SEGMENT).flush(flush).open();
    let broker = match opened {
        Ok(broker) => broker,
        Err(error) => {
            say(&format!("wrong cannot open: {error}"));
            return ExitCode::FAILURE;
        }
    };
    if broker.queues("t").is_err() {
        broker.create_topic("t", 1).unwrap();
    }
    say(&format!("waiting {}", broker.stats().delayed));
    let mut next = 0;
    read_on(&broker, &mut next);
    say("end");
    if told() {
        let reading = Mutex::new(true);
        std::thread::scope(|scope| {
            for sender in 0..senders {
                let (broker, first) = (&broker, (round << 32) + (sender << 28));
                scope.spawn(move || send(broker, first, Random(seed + sender)));
            }
            scope.spawn(|| {
                let mut random = Random(seed + 9);
                while *reading.lock().unwrap() {
                    let end = read_on(&broker, &mut next);
                    // Only what has been told may go.
                    if random.one_in(8) && end > 0 {
                        done(broker.drop_before(end));
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            told();
            *reading.lock().unwrap() = false;
            done(broker.close());
        });
    } else {
        done(broker.close());
    }
    say("closed");
    ExitCode::SUCCESS
}

/// Says what has come since, and returns the position of the last one of it.
fn read_on(broker: &Broker, next: &mut u64) -> u64 {
    let mut last = 0;
    let reader = broker.pull_consumer("reading").start();
    let Ok(reader) = reader else { return 0 };
    loop {
        let pulled = match reader.pull(&QueueId::new("t", 0), *next, 1024) {
            Ok(pulled) => pulled,
            Err(Error::Closed) => return last,
            Err(error) => {
                say(&format!("wrong pull: {error}"));
                return last;
            }
        };
        // By the exact clock: store times are of one that is behind by up to 10 ms.
        let seen = now_us();
        for message in &pulled.messages {
            let word =
                |at: usize| u64::from_le_bytes(message.body()[at..at + 8].try_into().unwrap());
            say(&format!("arrived {} {} {} {seen}", word(0), word(8), message.offset()));
            last = message.position();
        }
        let dropped = pulled.status == PullStatus::OffsetIllegal && pulled.next > *next;
        *next = pulled.next;
        if pulled.status != PullStatus::Found && !dropped {
            return last;
        }
    }
}

fn send(broker: &Broker, first: u64, mut random: Random) {
    let producer = broker.producer();
    let mut ids: Vec<(u64, MessageId)> = Vec::new();
    for number in first.. {
        let long = random.one_in(10);
        let delay_ms = if long { HOUR_MS } else { 1 + random.below(SHORT_MS) };
        let instant = (!long && random.one_in(3)).then(|| now_us() / 1000 + delay_ms);
        let due = instant.map_or_else(|| now_us() + 1000 * delay_ms, |ms| 1000 * ms);
        let mut body = [number.to_le_bytes(), due.to_le_bytes()].concat();
        body.resize(16 + random.below(1500) as usize, 7);
        let message = Message::new("t", body).delay(Duration::from_millis(delay_ms));
        let message = match instant {
            Some(ms) => message.deliver_at(UNIX_EPOCH + Duration::from_millis(ms)),
            None => message,
        };
        match producer.send(&message) {
            Ok(receipt) => {
                say(&format!("sent {number} {}", if long { "long" } else { "short" }));
                ids.push((number, receipt.id));
            }
            Err(Error::Closed) => return,
            Err(error) => return say(&format!("wrong send: {error}")),
        }
        if random.one_in(8) {
            let (number, id) = ids.swap_remove(random.below(ids.len() as u64) as usize);
            say(&format!("cancelling {number}"));
            match broker.cancel(id) {
                Ok(waited) => say(&format!("cancelled {number} {waited}")),
                Err(Error::Closed) => return,
                Err(error) => return say(&format!("wrong cancel: {error}")),
            }
        }
        std::thread::sleep(Duration::from_micros(random.below(300)));
    }
}

fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64
}

fn done<T>(result: Result<T, Error>) {
    match result {
        Ok(_) | Err(Error::Closed) => {}
        Err(error) => say(&format!("wrong {error}")),
    }
}

fn say(line: &str) {
    if unbuffered_output().write_all(format!("{line}\n").as_bytes()).is_err() {
        std::process::abort();
    }
}
