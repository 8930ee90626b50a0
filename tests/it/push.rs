//! Push consumers.

use rocklet::{Broker, Delivery, Filter, Message, Outcome, Result};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "no {what} within a minute");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn committed(broker: &Broker, group: &str, topic: &str) -> u64 {
    let queues = broker.queues(topic).unwrap();
    queues.iter().map(|queue| broker.committed(group, queue).unwrap().unwrap_or(0)).sum()
}

#[test]
fn every_message_is_consumed_once_and_committed() -> Result<()> {
    let dir = tempfile::tempdir().unwrap();
    let broker = Broker::open(dir.path())?;
    let producer = broker.producer();
    for nth in 0..5000u32 {
        producer.send(&Message::new("t", nth.to_le_bytes().to_vec()))?;
    }
    let seen: Arc<Mutex<HashMap<Vec<u8>, u32>>> = Arc::default();
    let counts = seen.clone();
    let consumer = broker
        .push_consumer("g")
        .subscribe("t", Filter::ALL)?
        .threads(4)
        .start(move |delivery: &Delivery<'_>| {
            *counts.lock().unwrap().entry(delivery.body().to_vec()).or_default() += 1;
        })?;
    for nth in 5000..10_000u32 {
        producer.send(&Message::new("t", nth.to_le_bytes().to_vec()))?;
    }
    wait_for("commit of all", || committed(&broker, "g", "t") == 10_000);
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 10_000);
    assert!(seen.values().all(|count| *count == 1));
    consumer.shutdown();
    broker.close()
}

#[test]
fn b_113_a_failed_message_and_a_panic_are_delivered_again() -> Result<()> {
    let dir = tempfile::tempdir().unwrap();
    let broker = Broker::open(dir.path())?;
    let producer = broker.producer();
    for nth in 0..100u32 {
        producer.send(&Message::new("t", nth.to_le_bytes().to_vec()))?;
    }
    let attempts: Arc<Mutex<HashMap<u64, Vec<u32>>>> = Arc::default();
    let noted = attempts.clone();
    let _consumer = broker
        .push_consumer("g")
        .subscribe("t", Filter::ALL)?
        .retry_delay(Duration::from_millis(5))
        .start(move |delivery: &Delivery<'_>| {
            let id = delivery.position();
            noted.lock().unwrap().entry(id).or_default().push(delivery.attempt());
            match (id / 8 % 10, delivery.attempt()) {
                (0, 0) => panic!("planted"),
                (1, 0 | 1) => Outcome::Failed("planted".to_owned()),
                _ => Outcome::Success,
            }
        })?;
    wait_for("commit of all", || committed(&broker, "g", "t") == 100);
    let attempts = attempts.lock().unwrap();
    for (id, attempts) in &*attempts {
        let expected: &[u32] = match id / 8 % 10 {
            0 => &[0, 1],
            1 => &[0, 1, 2],
            _ => &[0],
        };
        assert_eq!(attempts, expected);
    }
    Ok(())
}
