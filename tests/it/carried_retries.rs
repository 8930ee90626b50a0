//! A message that waits for its next attempt outlives the log file in which it waits.

use crate::support::*;
use rocklet::{AtLimit, Broker, BrokerBuilder, Delivery, DrivenClock, Message, Retention};
use std::path::Path;
use std::time::Duration;

const SEGMENT: u64 = 64 << 10;

type Settings = fn(BrokerBuilder) -> BrokerBuilder;

fn open(dir: &Path, clock: &DrivenClock, settings: Settings) -> Broker {
    settings(Broker::builder(dir).segment_bytes(SEGMENT).clock(clock)).open().unwrap()
}

fn fill(broker: &Broker) {
    for _ in 0..60 {
        broker.producer().send(&Message::new("fill", vec![7; 8192])).unwrap();
    }
}

/// (DELAY-5, CONC-15)
#[test]
fn b_137_a_retry_that_waits_comes_after_its_file_was_dropped_by_whatever() {
    let ways: [(&str, Settings); 3] = [
        ("by hand", |builder| builder),
        ("by size", |builder| builder.retention(Retention::none().log_bytes(2 * SEGMENT))),
        ("at the limit", |builder| {
            builder.max_log_bytes(4 * SEGMENT).at_limit(AtLimit::DropOldest)
        }),
    ];
    for (way, settings) in ways {
        for restart in [false, true] {
            let (clock, dir) =
                (DrivenClock::with_steps(1_000_000, 1), tempfile::tempdir().unwrap());
            let mut broker = open(dir.path(), &clock, settings);
            let seen = Seen::default();
            let start = |broker: &Broker| {
                let noted = seen.clone();
                let listener = move |delivery: &Delivery<'_>| {
                    noted.note(delivery.attempt());
                    if delivery.attempt() < 2 { Err("planted") } else { Ok(()) }
                };
                broker.push_consumer("g").subscribe("t", "*").unwrap().start(listener).unwrap()
            };
            let mut consumer = start(&broker);
            let sent = send_to(&broker, "t", 0, 7);
            for attempt in 0..2 {
                wait_for("a retry", || seen.has(attempt) && broker.stats().delayed == 1);
                fill(&broker);
                if way == "by hand" {
                    broker.drop_before(broker.stats().log_end).unwrap();
                }
                wait_for("its file to go", || {
                    clock.step();
                    broker.stats().log_start > sent.position
                });
                if restart {
                    drop(consumer);
                    broker.close().unwrap();
                    broker = open(dir.path(), &clock, settings);
                    consumer = start(&broker);
                }
                clock.advance(Duration::from_secs(30));
            }
            wait_for("the last attempt", || seen.has(2));
            assert_eq!(broker.stats().dropped_delays, 0, "{way}");
            drop(consumer);
            assert_eq!(seen.len(), 3);
        }
    }
}
