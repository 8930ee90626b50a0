//! A queue in six lines: `cargo run --example quickstart [DIR]`.
//!
//! Run it again on the same `DIR`: the group goes on where it stopped.

use rocklet::{Broker, Message};
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let temporary = tempfile::tempdir()?;
    let dir = std::env::args_os().nth(1).unwrap_or(temporary.path().into());

    let broker = Broker::open(dir)?;
    broker.producer().send(&Message::new("orders", b"42 EUR").tag("paid").order_by("user-7"))?;
    let mut audit = broker.pull_consumer("audit").subscribe("orders", "paid || due")?.start()?;
    let orders = audit.poll(Duration::from_secs(1))?;
    orders.iter().for_each(|order| println!("{}", String::from_utf8_lossy(order.body())));
    audit.commit()?;
    Ok(())
}
