//! Follows each aircraft through its flights in order, though the listener fails now and then.
//!
//! ```sh
//! cargo run --release --example orderly
//! ```
//!
//! One message per flight, ordered by the aircraft's tail number. Two members of a group consume them
//! in order: some flights fail at the first attempt, some have their queue suspended three times. At
//! the end every aircraft must have made its flights in the order of the file, each once, and no
//! queue may ever have had two listeners at once; otherwise the example exits with an error.

use rocklet::{Broker, Delivery, Message, OrderlyOutcome, Pause, PushConsumer};
use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

const FLIGHTS: &str = include_str!("data/flights-sample.csv");
const QUEUES: u16 = 8;
const PATIENCE: Duration = Duration::from_secs(60);

/// What the listeners did, as they saw it.
#[derive(Debug, Default)]
struct Tower {
    /// By aircraft, the rows of the flights that it has made.
    flown: BTreeMap<String, Vec<u64>>,
    /// By queue, the row that a listener is at.
    inside: BTreeMap<u16, u64>,
    /// How often a listener said no.
    refused: u64,
    overlaps: u64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let broker = Broker::open(dir.path())?;
    broker.create_topic("flights", QUEUES)?;

    let mut schedule: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    let mut refusals = 0;
    let producer = broker.producer();
    for (row, flight) in (1..).zip(csv::Reader::from_reader(FLIGHTS.as_bytes()).records()) {
        let flight = flight?;
        let Some(aircraft) = flight.get(11).filter(|aircraft| *aircraft != "NA") else { continue };
        producer.send(
            &Message::new("flights", row.to_string().as_bytes())
                .order_by(aircraft)
                .property("aircraft", aircraft),
        )?;
        schedule.entry(aircraft.to_owned()).or_default().push(row);
        refusals += refusals_of(row);
    }

    let tower = Arc::new(Mutex::new(Tower::default()));
    let member = || -> rocklet::Result<PushConsumer> {
        let tower = Arc::clone(&tower);
        let builder = broker.push_consumer("tower").subscribe("flights", "*")?;
        builder.suspend_time(Duration::from_millis(10)).start_orderly(move |d| follow(&tower, d))
    };
    let members = [member()?, member()?];
    let begun = Instant::now();
    let sent = schedule.values().map(|rows| rows.len() as u64).sum::<u64>();
    while committed(&broker)? < sent {
        if begun.elapsed() > PATIENCE {
            return Err(
                format!("{} of {sent} flights after {PATIENCE:?}", committed(&broker)?).into()
            );
        }
        thread::sleep(Duration::from_millis(5));
    }
    members.iter().for_each(PushConsumer::shutdown);

    let tower = tower.lock().unwrap_or_else(PoisonError::into_inner);
    let disordered =
        schedule.iter().filter(|(aircraft, rows)| tower.flown.get(*aircraft) != Some(*rows));
    let disordered = disordered.count();
    println!(
        "{sent} flights of {} aircraft, in order but for {disordered}; {} refused, at least {refusals} \
         expected; {} overlaps",
        schedule.len(),
        tower.refused,
        tower.overlaps,
    );
    // More if a suspended queue goes to the member that joins: attempts are counted anew there.
    match (disordered, tower.refused >= refusals, tower.overlaps) {
        (0, true, 0) => Ok(()),
        _ => Err("an aircraft's flights are out of order".into()),
    }
}

/// How often the listener refuses a flight before it takes it.
fn refusals_of(row: u64) -> u64 {
    match row {
        row if row % 97 == 0 => 3,
        row if row % 31 == 0 => 1,
        _ => 0,
    }
}

fn follow(tower: &Mutex<Tower>, flight: &Delivery<'_>) -> OrderlyOutcome {
    let lock = || tower.lock().unwrap_or_else(PoisonError::into_inner);
    let row = String::from_utf8_lossy(flight.body()).parse().unwrap_or(0);
    let other = lock().inside.insert(flight.queue(), row);
    // Long enough for another one to come between.
    thread::yield_now();
    let mut tower = lock();
    let left = tower.inside.remove(&flight.queue());
    tower.overlaps += u64::from(other.is_some() || left != Some(row));
    if u64::from(flight.attempt()) < refusals_of(row) {
        tower.refused += 1;
        let pause = Pause::because("no slot");
        return OrderlyOutcome::Suspend(match refusals_of(row) {
            1 => pause,
            _ => pause.lasting(Duration::from_millis(20)),
        });
    }
    let aircraft = flight.property("aircraft").unwrap_or_default().to_owned();
    tower.flown.entry(aircraft).or_default().push(row);
    OrderlyOutcome::Success
}

fn committed(broker: &Broker) -> rocklet::Result<u64> {
    let queues = broker.queues("flights")?;
    let each = queues.iter().map(|queue| Ok(broker.committed("tower", queue)?.unwrap_or(0)));
    each.sum()
}
