//! Runs one workload for one peer and prints one line of JSON.
//!
//! `rocklet-bench-peers <peer> <append|read|relay> <size> <producers> <batch> <messages> <dir>`
//!
//! The caller makes `dir`, removes it, and warms the working set.
//!
//! Fairness. Every body is checked (length, sequence, every byte); nothing is flushed to the
//! disk in a timed part; each peer gets room for all messages beforehand, so that none of
//! them rolls or grows a file while it is timed. What the peers do and leave out:
//!
//! | peer | on append | on read |
//! |---|---|---|
//! | khata-rs | CRC-16, sparse index, a clock read; one writer; pages fault in as it goes | borrows from the mapping, CRC not checked |
//! | commitlog | CRC-32C, index entry, one `write` for each call; `&mut`, so a mutex here | copies out of the file, CRC checked |
//! | mapped-copy | the limit: a copy into a mapping whose pages are all there | borrows |
//! | mapped-copy-crc | the same with CRC-32 | CRC checked |
//! | mapped-ahead-crc | the same, pages populated 64 MiB ahead by a thread while it runs | CRC checked |
//!
//! None of them knows topics, tags, queues, groups or committed offsets.

mod commit_log;
mod khata;
mod mapped;
#[path = "../../rocklet/payload.rs"]
mod payload;
mod peer;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use commit_log::CommitLog;
use khata::Khata;
use mapped::{Mapped, Pages};
use peer::{Job, Peer};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<String, Box<dyn Error>> {
    let [peer, workload, size, producers, batch, messages, dir] = arguments else {
        return Err(
            "usage: <peer> <append|read|relay> <size> <producers> <batch> <messages> <dir>".into(),
        );
    };
    let job = Job {
        size: size.parse()?,
        producers: producers.parse()?,
        batch: batch.parse()?,
        messages: messages.parse()?,
        dir: PathBuf::from(dir),
    };
    let seconds = match peer.as_str() {
        "khata-rs" => timed(workload, &job, &Khata::open(&job)?),
        "commitlog" => timed(workload, &job, &CommitLog::open(&job)?),
        "mapped-copy" => timed(workload, &job, &Mapped::<false>::open(&job, Pages::Populated)?),
        "mapped-copy-crc" => timed(workload, &job, &Mapped::<true>::open(&job, Pages::Populated)?),
        "mapped-ahead-crc" => timed(workload, &job, &Mapped::<true>::open(&job, Pages::Ahead)?),
        _ => Err(format!("unknown peer {peer}")),
    }?;
    let rate = job.messages as f64 / seconds;
    Ok(format!(
        r#"{{"peer":"{peer}","workload":"{workload}","messages":{},"seconds":{seconds:.6},"rate":{rate:.0}}}"#,
        job.messages
    ))
}

fn timed(workload: &str, job: &Job, peer: &impl Peer) -> Result<f64, String> {
    match workload {
        "append" => peer::append(job, peer).map(|timings| timings.append),
        "read" => peer::append(job, peer).map(|timings| timings.read),
        "relay" => peer::relay(job, peer),
        _ => Err(format!("unknown workload {workload}")),
    }
}
