//! `cargo bench --bench filter`: how many messages a second one thread can filter.
//!
//! The flights of `examples/data` are stored once and read back; then each contender looks at all
//! of them, in turns with the others, so that a noisy neighbour meets them alike. The closures look
//! up the same properties in the same order as the expressions beside them. A figure is the median
//! of the runs, with minimum and maximum; it includes finding each record in the log.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::print_stdout,
    reason = "a bench prints and reads the clock"
)]

use rocklet::{Broker, Deliveries, Delivery, Filter, Message};
use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

const FLIGHTS: &str = include_str!("../examples/data/flights-sample.csv");

const SHORT: &str = "dep_delay > 60 AND carrier IN ('UA','AA')";
const LONG: &str = "(dep_delay > 60 OR arr_delay > 60 OR dep_delay < -20) \
    AND carrier IN ('UA', 'AA', 'DL', 'B6') AND NOT (tailnum IS NULL) \
    AND distance BETWEEN 500 AND 3000.5 AND dest NOT IN ('SFO', 'LAX') \
    AND time_hour STARTSWITH '2013-01' AND (origin = 'JFK' OR origin = 'EWR' AND hour >= 6) \
    AND flight <> 1 AND tailnum LIKE 'N%'";

fn main() -> Result<(), Box<dyn Error>> {
    let quick = std::env::args().all(|argument| argument != "--bench")
        || std::env::args().any(|argument| argument == "--quick");
    let (runs, rounds) = if quick { (3, 20) } else { (9, 500) };
    let dir = tempfile::tempdir()?;
    let broker = Broker::open(dir.path())?;
    let flights = stored(&broker)?;

    let (short, long) = (Filter::sql(SHORT)?, Filter::sql(LONG)?);
    let (tags, all) = (Filter::tags("JFK || LGA")?, Filter::ALL);
    type Test<'t> = Box<dyn Fn(&Delivery<'_>) -> bool + 't>;
    let contenders: [(&str, Test<'_>); 6] = [
        ("no filter", Box::new(|flight| all.passes(flight))),
        ("tags: JFK || LGA", Box::new(|flight| tags.passes(flight))),
        ("short closure", Box::new(is_late)),
        ("short SQL", Box::new(|flight| short.passes(flight))),
        ("long closure", Box::new(is_long_wanted)),
        ("long SQL", Box::new(|flight| long.passes(flight))),
    ];
    let mut rates = vec![Vec::new(); contenders.len()];
    let mut passed = vec![0; contenders.len()];
    for _ in 0..runs {
        for (nth, (_, test)) in contenders.iter().enumerate() {
            let start = Instant::now();
            passed[nth] = 0;
            for _ in 0..rounds {
                passed[nth] += flights
                    .iter()
                    .flat_map(Deliveries::iter)
                    .filter(|flight| black_box(test(black_box(flight))))
                    .count();
            }
            let looked = rounds * flights.iter().map(Deliveries::len).sum::<usize>();
            rates[nth].push(looked as f64 / start.elapsed().as_secs_f64() / 1e6);
        }
    }
    println!("short: {SHORT}\nlong: {LONG}\n");
    println!(
        "{:20} {:>12} {:>16} {:>10} {:>12}",
        "", "million/s", "min - max", "ns each", "x closure"
    );
    for (nth, (name, _)) in contenders.iter().enumerate() {
        rates[nth].sort_by(f64::total_cmp);
        let range = format!("{:.2} - {:.2}", rates[nth][0], rates[nth][runs - 1]);
        let rate = rates[nth][runs / 2];
        print!("{name:20} {rate:>12.2} {range:>16} {:>10.0}", 1e3 / rate);
        if name.ends_with("SQL") {
            rates[nth - 1].sort_by(f64::total_cmp);
            println!(" {:>12.2}", rate / rates[nth - 1][runs / 2]);
        } else {
            println!();
        }
    }
    for pair in [2, 4] {
        let (closure, sql) = (passed[pair], passed[pair + 1]);
        println!("{}: {} of all pass", contenders[pair + 1].0, sql / rounds);
        if closure != sql || sql == 0 {
            return Err(format!("{sql} pass by SQL, {closure} by the closure").into());
        }
    }
    Ok(())
}

/// The flights as messages that were received.
fn stored(broker: &Broker) -> Result<Vec<Deliveries>, Box<dyn Error>> {
    let producer = broker.producer();
    let mut reader = csv::Reader::from_reader(FLIGHTS.as_bytes());
    let header = reader.headers()?.clone();
    for row in reader.records() {
        let row = row?;
        let mut message = Message::new("flights", b"row");
        for (name, cell) in header.iter().zip(&row).filter(|(_, cell)| *cell != "NA") {
            if name == "origin" {
                message = message.tag(cell.to_owned());
            }
            message = message.property(name.to_owned(), cell.to_owned());
        }
        producer.send(&message)?;
    }
    let mut browse = broker.browse("flights")?;
    let mut flights = Vec::new();
    loop {
        let run = browse.read(512)?;
        if run.is_empty() {
            return Ok(flights);
        }
        flights.push(run);
    }
}

fn is_late(flight: &Delivery<'_>) -> bool {
    number(flight, "dep_delay").is_some_and(|delay| delay > 60)
        && matches!(flight.property("carrier"), Some("UA" | "AA"))
}

fn is_long_wanted(flight: &Delivery<'_>) -> bool {
    let text = |name| flight.property(name);
    let number = |name| number(flight, name);
    // A number that cannot be read ends it, as in the expression.
    let delayed = || {
        Some(number("dep_delay")? > 60 || number("arr_delay")? > 60 || number("dep_delay")? < -20)
    };
    let early = || Some(number("hour")? >= 6);
    delayed() == Some(true)
        && matches!(text("carrier"), Some("UA" | "AA" | "DL" | "B6"))
        && text("tailnum").is_some()
        && number("distance").is_some_and(|distance| distance >= 500)
        && text("distance")
            .and_then(|distance| distance.parse::<f64>().ok())
            .is_some_and(|distance| distance <= 3000.5)
        && text("dest").is_some_and(|dest| !matches!(dest, "SFO" | "LAX"))
        && text("time_hour").is_some_and(|hour| hour.starts_with("2013-01"))
        && (text("origin") == Some("JFK") || text("origin") == Some("EWR") && early() == Some(true))
        && number("flight").is_some_and(|flight| flight != 1)
        && text("tailnum").is_some_and(|tail| tail.starts_with('N'))
}

fn number(flight: &Delivery<'_>, name: &str) -> Option<i32> {
    flight.property(name)?.parse().ok()
}
