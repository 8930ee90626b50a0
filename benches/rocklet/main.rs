//! `cargo bench`: rocklet beside peers and references, all of them in one run.
//!
//! `cargo bench -- [--quick] [--runs=N] [words of a case's name]`
//!
//! Every figure is a ratio within this run. In each repetition the contenders of a case run one
//! after the other, so that a noisy neighbour meets them alike; each of them gets a warmed
//! working set and has every message checked. The table shows medians with minimum and maximum.
//!
//! Fairness. rocklet goes its whole way in every case: topic, tag, CRC, queue index, the flusher
//! at its default interval, segments allocated and populated while it runs; the durable cases alone
//! use `Flush::EveryMessage`. `benches/peers` says
//! what each peer does and leaves out; crossbeam-channel keeps nothing.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a bench prints, reads the clock and starts its own threads"
)]

mod cases;
mod payload;
mod peers;
mod reference;
mod report;
mod workloads;

use std::error::Error;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use cases::{Case, Contender, Work};
use peers::Peers;
use report::{Measured, Report};

type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Fails if rocklet fails or loses, changes or repeats a message; never because it is slow.
fn main() -> ExitCode {
    match bench() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn bench() -> Fallible<()> {
    let scale = Scale::from_arguments(std::env::args().skip(1))?;
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("bench");
    fs::create_dir_all(&target)?;
    let peers = Peers::build(&target.join("peers"));
    let mut report = Report::new(scale.runs, &target, peers.problem());
    for case in cases::all().iter().filter(|case| scale.selects(case)) {
        eprintln!("{case} ...");
        report.add(measure(case, &scale, &target, &peers)?);
    }
    println!("{report}");
    let path = target.join("rocklet.json");
    fs::write(&path, report.json().to_string())?;
    println!("JSON: {}", path.display());
    Ok(())
}

/// All repetitions of one case, contenders interleaved, rocklet first.
fn measure<'a>(
    case: &'a Case,
    scale: &Scale,
    target: &Path,
    peers: &Peers,
) -> Fallible<Measured<'a>> {
    let messages = case.messages(scale.divisor);
    let mut measured = Measured::new(case, messages);
    for _ in 0..scale.runs {
        let run = |contender| -> Fallible<Vec<f64>> {
            let dir = tempfile::tempdir_in(target)?;
            warm(dir.path(), case.bytes(messages))?;
            match (contender, case.work) {
                (Contender::Peer(peer), _) => peers.run(peer, case, messages, dir.path()),
                (Contender::Channel, Work::Relay) => reference::relay_channel(case, messages),
                (Contender::Channel, _) => reference::pace_channel(case, messages),
                (Contender::Memory, _) => reference::pace_copy(case, messages),
                (Contender::Sleep, _) => reference::sleep(messages),
                (Contender::Park, _) => reference::pace_park(messages),
                (Contender::Sync, _) => reference::write_and_sync(case, messages, dir.path()),
                (Contender::Alone, _) => workloads::append(&case.alone(), messages, dir.path()),
                (_, Work::Append | Work::Durable) => workloads::append(case, messages, dir.path()),
                (_, Work::Read) => workloads::read(case, messages, dir.path()),
                (_, Work::Relay) => workloads::relay(case, messages, dir.path()),
                (_, Work::Listen) => workloads::listen_slowly(case, messages, dir.path()),
                (_, Work::Send) => workloads::send(case, messages, dir.path()),
                (Contender::Wait, _) => reference::wait_for_each(messages),
                (_, Work::Delay) => workloads::delay(case, messages, dir.path()),
                (_, Work::SendHeard) => workloads::send_heard(case, messages, dir.path()),
            }
        };
        measured.rocklet.push(run(Contender::Rocklet).map_err(|error| format!("{case}: {error}"))?);
        for (contender, outcome) in case.against.iter().zip(&mut measured.others) {
            match (run(*contender), &mut *outcome) {
                (Ok(values), Ok(all)) => all.push(values),
                (Err(error), _) => *outcome = Err(error.to_string()),
                (Ok(_), Err(_)) => {}
            }
        }
    }
    Ok(measured)
}

/// Writes and removes a file of `bytes` bytes, so that the timed run finds memory that the
/// host has already handed over: on virtual machines the first touch costs many times more.
fn warm(dir: &Path, bytes: u64) -> Fallible<()> {
    let path = dir.join("warm");
    let (mut file, block) = (File::create(&path)?, vec![1; 1 << 20]);
    for _ in 0..bytes.div_ceil(1 << 20) {
        file.write_all(&block)?;
    }
    drop(file);
    Ok(fs::remove_file(path)?)
}

/// What the command line asks for.
struct Scale {
    runs: usize,
    /// Cuts the volume of every case by so much.
    divisor: u64,
    words: Vec<String>,
}

impl Scale {
    /// Cargo passes `--bench` when it benches; without it, as under `cargo test`, one quick run.
    fn from_arguments(arguments: impl Iterator<Item = String>) -> Fallible<Self> {
        let (options, words): (Vec<_>, _) = arguments.partition(|word| word.starts_with("--"));
        let mut scale = Self { runs: 5, divisor: 1, words };
        if !options.iter().any(|option| option == "--bench") || options.contains(&"--quick".into())
        {
            (scale.runs, scale.divisor) = (1, 16);
        }
        for option in options {
            match option.strip_prefix("--runs=") {
                Some(runs) => scale.runs = runs.parse::<usize>()?.max(1),
                None if option == "--bench" || option == "--quick" => {}
                None => return Err(format!("unknown option {option}: --quick, --runs=N").into()),
            }
        }
        Ok(scale)
    }

    fn selects(&self, case: &Case) -> bool {
        let name = case.to_string();
        self.words.iter().all(|word| name.contains(word))
    }
}
