//! Kills a process that sends, batches, creates topics, commits, and drops the front of its log,
//! again and again on the same directory, and checks after every kill that what it acknowledged and
//! has not dropped is there, whole and once.
//!
//! `cargo test --test kill -- --rounds 1000 --seed 7` kills more often, with a chosen seed. The
//! seed decides what is sent and when a kill is due; the scheduler has a say, too.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "doors of the library")]

mod delays;
mod ledger;
mod retries;
mod worker;

#[path = "../support/mod.rs"]
mod support;

use ledger::Ledger;
use rocklet::Broker;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use support::Random;
use support::process::{LONG, Process, child_arguments};
use support::runner::{Ignored, argument, run};
use worker::Mode;

/// In one directory, which is compared as a whole in every round.
const ROUNDS: u64 = 50;
/// Of all tests together, without `--rounds`.
const IN_ALL: u64 = 100;

fn main() -> ExitCode {
    if let Some(arguments) = child_arguments() {
        return match arguments.split_first() {
            Some((name, rest)) if name == delays::NAME => delays::work(rest),
            Some((name, rest)) if name == retries::NAME => retries::work(rest),
            _ => worker::run(&arguments),
        };
    }
    run(&[
        ("kill_9_with_interval_flushes_and_messages_kept_until_consumed", || {
            kill_again_and_again(Mode::Interval)
        }),
        ("kill_9_with_a_flush_for_every_message_at_a_limit_of_the_log", || {
            kill_again_and_again(Mode::EveryMessage)
        }),
        ("kill_9_with_delays_and_interval_flushes", || kill_with_delays("every")),
        ("kill_9_with_delays_and_a_flush_for_every_message", || kill_with_delays("each")),
        ("kill_9_with_retries_and_interval_flushes", || kill_with_retries("every")),
        ("kill_9_with_retries_and_a_flush_for_every_message", || kill_with_retries("each")),
    ])
}

fn kill_again_and_again(mode: Mode) -> Result<(), Ignored> {
    let rounds = argument("--rounds").unwrap_or(IN_ALL).div_ceil(2);
    let seed = argument("--seed").unwrap_or_else(|| RandomState::new().hash_one(0));
    println!("{rounds} rounds with {mode:?}, --seed {seed}");
    let mut random = Random(seed);
    for first in (0..rounds).step_by(ROUNDS as usize) {
        fill_a_directory(mode, ROUNDS.min(rounds - first), &mut random);
    }
    Ok(())
}

fn kill_with_delays(flush: &str) -> Result<(), Ignored> {
    let rounds = argument("--rounds").unwrap_or(IN_ALL).div_ceil(4);
    let seed = argument("--seed").unwrap_or_else(|| RandomState::new().hash_one(0));
    println!("{rounds} rounds with delays, flushing {flush}, --seed {seed}");
    delays::kill_again_and_again(rounds, flush, &mut Random(seed));
    Ok(())
}

fn kill_with_retries(flush: &str) -> Result<(), Ignored> {
    let rounds = argument("--rounds").unwrap_or(IN_ALL).div_ceil(4);
    let seed = argument("--seed").unwrap_or_else(|| RandomState::new().hash_one(0));
    println!("{rounds} rounds with retries, flushing {flush}, --seed {seed}");
    retries::kill_again_and_again(rounds, flush, &mut Random(seed));
    Ok(())
}

fn fill_a_directory(mode: Mode, rounds: u64, random: &mut Random) {
    let start = Instant::now();
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = Ledger::new(mode == Mode::Interval);
    let mut workers = Workers { dir: dir.path(), mode, started: 0 };
    for _ in 0..rounds {
        if random.one_in(4) {
            // Recovery may itself be killed.
            let mut worker = workers.start(random);
            std::thread::sleep(Duration::from_micros(random.below(12_000)));
            worker.kill();
            worker.rest().iter().for_each(|line| ledger.note(line));
            ledger.interrupted();
        }
        let mut worker = workers.start(random);
        compare(&worker, &mut ledger);
        worker.say("work");
        let deadline = Instant::now() + Duration::from_millis(10 + random.below(400));
        for _ in 0..random.below(400) {
            let Some(line) = worker.line_until(deadline) else { break };
            ledger.note(&line);
        }
        worker.kill();
        worker.rest().iter().for_each(|line| ledger.note(line));
        worker.wait();
    }
    // A last one finds all in order and closes cleanly, and the next open finds the same.
    let mut worker = workers.start(random);
    compare(&worker, &mut ledger);
    worker.hang_up();
    assert_eq!(worker.rest(), ["closed"]);
    assert!(worker.wait().success());
    let broker = Broker::open(dir.path()).unwrap();
    assert!(broker.recovery_report().clean, "{}", broker.recovery_report());
    worker::describe(&broker, |line| ledger.note(line));
    ledger.note("end");
    let at_open = workers.started - rounds - 1;
    let seconds = start.elapsed().as_secs();
    println!("{rounds} kills at work and {at_open} at open in {seconds} s: {ledger}");
}

/// Starts workers, each with another number and seed, and small files.
struct Workers<'a> {
    dir: &'a Path,
    mode: Mode,
    started: u64,
}

impl Workers<'_> {
    fn start(&mut self, random: &mut Random) -> Process {
        let segment_bytes = 1 << (16 + random.below(2));
        let numbers = [self.started, random.next(), segment_bytes].map(|number| number.to_string());
        self.started += 1;
        let dir = self.dir.to_str().unwrap().to_owned();
        Process::start(&[&[dir, self.mode.to_string()][..], &numbers[..]].concat())
    }
}

/// Lets the worker describe the store that it has opened.
fn compare(worker: &Process, ledger: &mut Ledger) {
    let deadline = Instant::now() + LONG;
    loop {
        let line = worker.line_until(deadline).expect("an opened and described store");
        ledger.note(&line);
        if line == "end" {
            return;
        }
    }
}
