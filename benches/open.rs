//! How fast a directory opens: after a kill with a log that was never flushed, against a plain
//! checksum of the same bytes in the same run; and after a clean close, how much of it is read.
//!
//! ```text
//! cargo bench --bench open [-- --quick]
//! ```
//!
//! Every open happens in a process of its own, which ends without closing, so that the next one
//! finds the same.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "doors of the library")]
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use rocklet::{Broker, Filter, Flush, Message};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const ROUNDS: usize = 5;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["--fill", dir, bytes, body, closed] => {
            fill(Path::new(dir), bytes.parse().unwrap(), body.parse().unwrap(), closed == "closed");
        }
        ["--open", dir] => open(Path::new(dir)),
        _ => {
            let shrink =
                if words.contains(&"--bench") && !words.contains(&"--quick") { 1 } else { 16 };
            killed((1 << 30) / shrink);
            closed((4 << 30) / shrink);
        }
    }
}

/// After a kill: the time until the first message, against a plain checksum of the log.
fn killed(bytes: u64) {
    let dir = tempfile::tempdir_in(target()).unwrap();
    child(&["--fill", path(dir.path()), &bytes.to_string(), "1024", "killed"]);
    let (mut scans, mut opens) = (Vec::new(), Vec::new());
    let mut said = String::new();
    for _ in 0..ROUNDS {
        scans.push(scan(&dir.path().join("commitlog"), bytes));
        said = child(&["--open", path(dir.path())]);
        opens.push(number(&said, "ms"));
    }
    let (scan, open) = (median(scans), median(opens));
    println!("open after a kill, {bytes} bytes of 1 KiB messages unflushed: {said}");
    println!("  checksum alone {scan:.1} ms, first message {open:.1} ms: {:.2} times", open / scan);
}

/// After a clean close: what is read.
fn closed(bytes: u64) {
    let dir = tempfile::tempdir_in(target()).unwrap();
    child(&["--fill", path(dir.path()), &bytes.to_string(), "16384", "closed"]);
    forget_pages(dir.path());
    let said = child(&["--open", path(dir.path())]);
    println!("open after a clean close, {bytes} bytes: {said}");
    let share = |kib: f64| kib * 102_400.0 / bytes as f64;
    let (calls, disk) = (number(&said, "KiB"), last_number(&said, "KiB"));
    println!("  read by calls {:.5} %, from disk {:.3} %", share(calls), share(disk));
}

fn fill(dir: &Path, bytes: u64, body: usize, close: bool) {
    let hour = Duration::from_secs(3600);
    let broker =
        Broker::builder(dir).flush(Flush::Every(hour)).max_unflushed_bytes(1 << 40).open().unwrap();
    broker.create_topic("t", 4).unwrap();
    let (producer, body) = (broker.producer(), vec![0x5a; body]);
    while broker.stats().log_end < bytes {
        for queue in 0..256 {
            producer.send(&Message::new("t", &body[..]).queue(queue % 4)).unwrap();
        }
    }
    if close {
        broker.close().unwrap();
    }
    // Otherwise nothing is closed or flushed: as after a kill.
    std::process::exit(0);
}

/// Opens, reads the first message, and says what that took.
fn open(dir: &Path) {
    let before = io();
    let start = Instant::now();
    let hour = Duration::from_secs(3600);
    let broker =
        Broker::builder(dir).flush(Flush::Every(hour)).max_unflushed_bytes(1 << 40).open().unwrap();
    let opened = (start.elapsed(), io());
    let consumer = broker.pull_consumer("g").subscribe("t", Filter::ALL).unwrap();
    let mut consumer = consumer.start().unwrap();
    let messages = consumer.poll(Duration::from_secs(1)).unwrap();
    assert!(!messages.is_empty());
    let first = start.elapsed();
    let report = broker.recovery_report();
    let (read, disk) = (opened.1.0 - before.0, opened.1.1 - before.1);
    println!(
        "{:.3} ms until the first message ({:.3} opened), {:.1} KiB by calls, {:.1} KiB from disk, \
         {report}",
        first.as_secs_f64() * 1e3,
        opened.0.as_secs_f64() * 1e3,
        read as f64 / 1024.0,
        disk as f64 / 1024.0,
    );
    std::process::exit(0);
}

/// Bytes that this process has read: by calls, and from the disk, mapped pages included.
fn io() -> (u64, u64) {
    let text = fs::read_to_string("/proc/self/io").unwrap();
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().parse().unwrap()
    };
    (value("rchar:"), value("read_bytes:"))
}

/// Milliseconds that a checksum of the first `bytes` of the log takes.
fn scan(folder: &Path, bytes: u64) -> f64 {
    let start = Instant::now();
    let (mut left, mut hashed, mut buffer) = (bytes, crc32fast::Hasher::new(), vec![0; 256 << 10]);
    for file in files(folder) {
        let mut file = File::open(file).unwrap();
        while left > 0 {
            let read = file.read(&mut buffer).unwrap();
            if read == 0 {
                break;
            }
            hashed.update(&buffer[..read]);
            left = left.saturating_sub(read as u64);
        }
    }
    std::hint::black_box(hashed.finalize());
    start.elapsed().as_secs_f64() * 1e3
}

/// Has the system forget what it holds of the files: they are on disk.
fn forget_pages(dir: &Path) {
    for folder in ["commitlog", "index", "meta"] {
        for file in files(&dir.join(folder)) {
            let file = File::open(file).unwrap();
            file.sync_all().unwrap();
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        }
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn child(arguments: &[&str]) -> String {
    let output = Command::new(std::env::current_exe().unwrap()).args(arguments).output().unwrap();
    let (out, err) = (String::from_utf8(output.stdout), String::from_utf8(output.stderr));
    assert!(output.status.success(), "{arguments:?}: {}", err.unwrap());
    out.unwrap().trim().to_owned()
}

/// The number before `unit`, where that stands first.
fn number(text: &str, unit: &str) -> f64 {
    let words: Vec<_> = text.split([' ', '(', ')', ',']).collect();
    let at = words.iter().position(|word| *word == unit).unwrap();
    words[at - 1].parse().unwrap()
}

/// The number before `unit`, where that stands last.
fn last_number(text: &str, unit: &str) -> f64 {
    let end = text.rfind(&format!(" {unit}")).unwrap();
    text[..end].rsplit(' ').next().unwrap().parse().unwrap()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn target() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("bench");
    fs::create_dir_all(&target).unwrap();
    target
}
