//! Sends a file of real flights through rocklet and checks that every row arrives, in order.
//!
//! ```sh
//! cargo run --release --example flights                              # the bundled sample
//! cargo run --release --example flights -- flights-2013-01.csv       # any month of nycflights13
//! cargo run --release --example flights -- --dir d --kill-after 500  # dies of SIGKILL,
//! cargo run --release --example flights -- --dir d                   # goes on where it died
//! ```
//!
//! One message per row goes to the topic `flights`. Six consumers read it: a clustering group of
//! three members, a second group filtered by `JFK || LGA`, a pull consumer, two that want late
//! flights of two carriers, by an SQL92 expression over the columns, and a group that consumes in
//! order, whose three members come and go all the time. Each records every row it
//! consumed in the topic `flights_seen`, so that what it did survives a kill of the process as well. At the end the example reads both topics back, compares them with the file, prints a
//! table, and exits with an error if a line of it is off.

mod acks;
mod checks;
mod consumers;
mod history;
mod kill;
mod log;
mod options;
mod rows;
mod seen;
mod stored;
mod table;

use acks::Acks;
use checks::{Before, check};
use consumers::Consumers;
use kill::KillSwitch;
use log::Log;
use options::Options;
use rocklet::{Broker, Producer};
use rows::Rows;
use std::env;
use std::process::ExitCode;

/// A result whose error is only ever printed.
pub(crate) type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

fn main() -> ExitCode {
    match Options::parse(env::args_os().skip(1)).and_then(|options| run(&options)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("flights: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Sends, consumes and checks; `false` means that a check failed.
fn run(options: &Options) -> Result<bool> {
    let rows = Rows::read(options.csv.as_deref())?;
    let temporary;
    let dir = match &options.dir {
        Some(dir) => dir.as_path(),
        None => {
            temporary = tempfile::tempdir()?;
            temporary.path()
        }
    };
    let broker = Broker::open(dir.join("queue"))?;
    let acks = Acks::open(&dir.join("acknowledged"))?;
    let mut log = Log::open(&broker)?;

    let before = Before::read(&mut log, &acks)?;
    println!(
        "run {} in {}: {} rows in the file, {} in the log; on open: {}",
        before.run,
        dir.display(),
        rows.len(),
        before.highest_row,
        broker.recovery_report()
    );
    let consumers = Consumers::start(&broker, before.run, KillSwitch::new(options.kill_after))?;
    let shares = consumers.shares()?;
    let sent = send(&broker.producer(), &rows, before.highest_row, &acks);
    consumers.finish()?;
    println!("sent {} rows now", sent?);

    let table = check(&rows, &mut log, &before, &shares)?;
    print!("{table}");
    Ok(table.holds())
}

/// Sends the rows after `highest_row` in file order and returns how many these were.
fn send(producer: &Producer, rows: &Rows, highest_row: u64, acks: &Acks) -> Result<u64> {
    let mut sent = 0;
    for row in rows.iter().filter(|row| row.number > highest_row) {
        producer.send(&row.message())?;
        acks.note(row.number)?;
        sent += 1;
    }
    Ok(sent)
}
