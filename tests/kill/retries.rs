//! Messages that fail, killed while they are sent, consumed, sent back, delivered again and given up.
//!
//! ```text
//! sent <number>      called <number> <attempt>      end      closed      wrong <what>
//! ```
//!
//! What is sent back is not delivered again beside its copy: of no message does an attempt come after
//! a later one, in whichever life of the process.

use crate::support::Random;
use crate::support::process::{LONG, Process, told, unbuffered_output};
use rocklet::{BackOff, Broker, Delivery, Error, Flush, GroupSettings, Message, PushConsumer};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The first argument of the process that is killed.
pub(crate) const NAME: &str = "retries";
const SEGMENT: u64 = 64 << 10;
const RETRIES: u16 = 6;

/// How often a message fails, unless it becomes a dead letter before.
fn failures(number: u64) -> u32 {
    (number % 9) as u32
}

fn dies(number: u64) -> bool {
    failures(number) > u32::from(RETRIES)
}

/// What the parent knows.
#[derive(Debug, Default)]
struct Ledger {
    sent: BTreeSet<u64>,
    /// The last attempt of each message.
    called: BTreeMap<u64, u32>,
    /// Those that were called since the process was started.
    in_this_life: BTreeMap<u64, u32>,
    calls: u64,
}

impl Ledger {
    fn note(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |nth: usize| words[nth].parse::<u64>().unwrap();
        match words[0] {
            "sent" => assert!(self.sent.insert(number(1)), "{line}"),
            "called" => {
                let (message, attempt) = (number(1), number(2) as u32);
                let before = self.called.insert(message, attempt);
                assert!(before <= Some(attempt), "behind {before:?}: {line}");
                let before = self.in_this_life.insert(message, attempt);
                assert!(before < Some(attempt), "once more: {line}");
                self.calls += 1;
            }
            "end" => self.in_this_life.clear(),
            "closed" => {}
            _ => panic!("the worker said: {line}"),
        }
    }

    /// What was sent and has not been called for the last time.
    fn missing(&self) -> Vec<u64> {
        let last = |number: u64| failures(number).min(RETRIES.into());
        let goes_on = |number: &&u64| self.called.get(*number) != Some(&last(**number));
        self.sent.iter().filter(goes_on).copied().collect()
    }
}

/// Kills so often, and returns when all that was acknowledged is consumed, or a dead letter.
pub(crate) fn kill_again_and_again(rounds: u64, flush: &str, random: &mut Random) {
    let (dir, began) = (tempfile::tempdir().unwrap(), Instant::now());
    let mut ledger = Ledger::default();
    let start = |round: u64, sends: bool, random: &mut Random| {
        let numbers = [round, u64::from(sends), random.next()].map(|number| number.to_string());
        let fixed = [NAME.to_owned(), dir.path().to_str().unwrap().to_owned(), flush.to_owned()];
        Process::start(&[&fixed[..], &numbers[..]].concat())
    };
    for round in 0..rounds {
        let mut worker = start(round, true, random);
        let deadline = Instant::now() + Duration::from_millis(50 + random.below(400));
        for _ in 0..random.below(4000) {
            let Some(line) = worker.line_until(deadline) else { break };
            ledger.note(&line);
        }
        worker.kill();
        worker.rest().iter().for_each(|line| ledger.note(line));
        worker.wait();
    }
    let mut worker = start(rounds, false, random);
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
    let verified = broker.verify().unwrap();
    assert!(verified.is_sound(), "{verified}");
    let dead = expect_dead_letters(&broker, &ledger);
    println!(
        "{rounds} kills in {} s: {} messages, {} calls, {dead} dead letters, each driven again once",
        began.elapsed().as_secs(),
        ledger.sent.len(),
        ledger.calls,
    );
}

/// Every message that was given up is a dead letter once, and is consumed when it is driven again.
fn expect_dead_letters(broker: &Broker, ledger: &Ledger) -> usize {
    let letters = broker.dead_letters("g").unwrap();
    let mut dead = BTreeSet::new();
    for letter in letters.iter().unwrap() {
        let letter = letter.unwrap();
        let number = number(&letter.delivery());
        assert_eq!((letter.attempts(), letter.reason()), (u32::from(RETRIES) + 1, "planted"));
        assert!(dies(number) && dead.insert(number), "{number} is a dead letter twice");
    }
    let lost: Vec<_> = ledger.sent.iter().filter(|n| dies(**n) && !dead.contains(n)).collect();
    assert!(lost.is_empty(), "{lost:?} are no dead letters");
    let left = Arc::new(Mutex::new(dead.clone()));
    let expected = left.clone();
    let builder = broker.push_consumer("g").subscribe("t", "*").unwrap();
    let listener = move |delivery: &Delivery<'_>| {
        assert_eq!(delivery.attempt(), 0);
        assert!(expected.lock().unwrap().remove(&number(delivery)), "{delivery:?}");
    };
    let consumer = builder.start(listener).unwrap();
    assert_eq!(letters.redrive_all().unwrap(), dead.len() as u64);
    let deadline = Instant::now() + LONG;
    while !left.lock().unwrap().is_empty() {
        assert!(Instant::now() < deadline, "{:?} are not driven again", left.lock().unwrap());
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(consumer);
    assert_eq!((letters.count().unwrap(), broker.stats().failed), (0, 0));
    dead.len()
}

/// The process that is killed.
pub(crate) fn work(arguments: &[String]) -> ExitCode {
    let [dir, flush, numbers @ ..] = arguments else { panic!("{arguments:?}") };
    let numbers: Vec<u64> = numbers.iter().map(|number| number.parse().unwrap()).collect();
    let [round, sends, seed] = numbers[..] else { panic!("{arguments:?}") };
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
    say("end");
    let consumer = consume(&broker);
    std::thread::scope(|scope| {
        if sends > 0 {
            let broker = &broker;
            scope.spawn(move || send(broker, round << 32, Random(seed)));
        }
        told();
        done(broker.close());
    });
    drop(consumer);
    say("closed");
    ExitCode::SUCCESS
}

fn consume(broker: &Broker) -> Option<PushConsumer> {
    if broker.group_settings("g").is_err() {
        let delays = [1, 5, 20].map(Duration::from_millis);
        let settings = GroupSettings::new().max_retries(RETRIES).back_off(BackOff::table(delays));
        done(broker.create_group("g", settings));
        done(broker.create_topic("t", 2));
    }
    let builder = broker.push_consumer("g").subscribe("t", "*").unwrap().threads(3);
    let listener = |delivery: &Delivery<'_>| {
        let number = number(delivery);
        say(&format!("called {number} {}", delivery.attempt()));
        if number.is_multiple_of(13) {
            // It holds the commit, while what comes behind it is sent back.
            std::thread::sleep(Duration::from_millis(5));
        }
        if delivery.attempt() < failures(number) { Err("planted") } else { Ok(()) }
    };
    let started = builder.start(listener);
    started.inspect_err(|error| say(&format!("wrong start: {error}"))).ok()
}

fn send(broker: &Broker, first: u64, mut random: Random) {
    let producer = broker.producer();
    for number in first.. {
        let mut body = number.to_le_bytes().to_vec();
        body.resize(8 + random.below(500) as usize, 7);
        match producer.send(&Message::new("t", body)) {
            Ok(_) => say(&format!("sent {number}")),
            Err(Error::Closed) => return,
            Err(error) => return say(&format!("wrong send: {error}")),
        }
        std::thread::sleep(Duration::from_micros(random.below(2000)));
    }
}

fn number(delivery: &Delivery<'_>) -> u64 {
    u64::from_le_bytes(delivery.body()[..8].try_into().unwrap())
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
