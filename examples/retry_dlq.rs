//! Failures end well: retries with a back-off, dead letters, and driving them again.
//! `cargo run --example retry_dlq`; it ends with an error if a count is off.
//!
//! Thirty orders are charged. Every third one fails twice before it works, and the bank is never
//! there for order 13, which becomes a dead letter until somebody calls the bank.

use rocklet::{BackOff, Broker, Delivery, GroupSettings, Message, Outcome};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const ORDERS: u32 = 30;
const LOST: u32 = 13;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let broker = Broker::open(dir.path())?;
    let quick = BackOff::exponential(Duration::from_millis(2), Duration::from_millis(20));
    broker.create_group("billing", GroupSettings::new().max_retries(4).back_off(quick))?;

    let bank = Arc::new(AtomicBool::new(false));
    let charged: Arc<Mutex<BTreeMap<u32, u32>>> = Arc::default();
    let (open, book) = (bank.clone(), charged.clone());
    let _billing = broker.push_consumer("billing").subscribe("orders", "*")?.start(
        move |order: &Delivery<'_>| {
            let number: u32 = order.property("number").unwrap_or_default().parse().unwrap_or(0);
            match (number, order.attempt()) {
                (LOST, _) if !open.load(Ordering::SeqCst) => Outcome::Failed("no bank".into()),
                (number, 0) if number % 3 == 0 => Outcome::Failed("busy".into()),
                (number, 1) if number % 3 == 0 => Outcome::RetryAfter(Duration::from_millis(1)),
                _ => {
                    *book.lock().unwrap().entry(number).or_default() += 1;
                    Outcome::Success
                }
            }
        },
    )?;
    for number in 0..ORDERS {
        let order = Message::new("orders", b"42 EUR").property("number", number.to_string());
        broker.producer().send(&order)?;
    }
    until("all but one", || broker.stats().delivered == u64::from(ORDERS) - 1)?;
    until("a dead letter", || broker.stats().dead_letters == 1)?;

    let dead = broker.dead_letters("billing")?;
    for letter in dead.iter()? {
        let letter = letter?;
        let order = letter.delivery().property("number").unwrap_or_default().to_owned();
        println!("order {order} failed {} times: {}", letter.attempts(), letter.reason());
        check("attempts", letter.attempts(), 5)?;
    }
    bank.store(true, Ordering::SeqCst);
    check("driven again", dead.redrive_all()?, 1)?;
    until("the last one", || broker.stats().delivered == u64::from(ORDERS))?;

    let charged = charged.lock().unwrap();
    check("orders", charged.len(), ORDERS as usize)?;
    check("charged twice", charged.values().filter(|times| **times != 1).count(), 0)?;
    check("dead letters", dead.count()?, 0)?;
    let stats = broker.stats();
    check("retries", stats.retries, 2 * u64::from(ORDERS.div_ceil(3)) + 4)?;
    println!("{} orders charged once each, {} retries", charged.len(), stats.retries);
    Ok(())
}

fn until(what: &str, mut condition: impl FnMut() -> bool) -> Result<(), String> {
    let start = Instant::now();
    while !condition() {
        if start.elapsed() > Duration::from_secs(30) {
            return Err(format!("no {what} within 30 s"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn check<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{what}: {found:?}, not {expected:?}")) }
}
