//! Tables of delay levels.

use crate::Vectors;
use rocklet::DelayLevels;
use std::time::Duration;

const QUEUES: &str = "levels have no queues of their own";
const NEGATIVE: &str = "a negative delay is an error, not a message for the past";
const OVERFLOW: &str = "a delay that overflows, or of more than 366 days, is an error";
const UNKNOWN: &str =
    "a level that the table does not have is none, or the last one; RocketMQ's clients see to that";

#[test]
fn delay_1_delay_2_tables_of_levels() {
    Vectors::read("delay_levels.json").run(|case| {
        let Some(input) = case["input"].as_str() else { return Some(QUEUES) };
        let levels = DelayLevels::parse(input);
        if case["return"] == false {
            assert!(levels.is_err(), "{case}");
            return None;
        }
        let table = case["table_ms"].as_object().unwrap();
        let delays: Vec<i64> = (1..=table.len())
            .map(|level| table[level.to_string().as_str()].as_i64().unwrap())
            .collect();
        let longest = Duration::from_secs(366 * 24 * 3600).as_millis() as i64;
        if delays.iter().any(|delay| !(0..=longest).contains(delay)) {
            assert!(levels.is_err(), "{case}");
            let negative = input.starts_with('-');
            return Some(if negative { NEGATIVE } else { OVERFLOW });
        }
        let levels = levels.unwrap();
        assert_eq!(levels.len(), delays.len(), "{case}");
        assert_eq!(case["max_delay_level"], delays.len(), "{case}");
        let mut unknown = false;
        for (level, due) in case["compute_deliver_timestamp_store_1000000"].as_object().unwrap() {
            let level: i64 = level.parse().unwrap();
            let delay = due.as_i64().unwrap() - 1_000_000;
            if (1..=delays.len() as i64).contains(&level) {
                assert_eq!(levels.delay(level as u32).as_millis() as i64, delay, "{case}");
            } else {
                // A second, whatever the table says.
                assert_eq!(delay, 1000, "{case}");
                unknown = true;
            }
        }
        for (level, delay) in (1..).zip(&delays) {
            assert_eq!(levels.delay(level).as_millis() as i64, *delay, "{case}");
        }
        // What is compared is the table; of levels beside it every case has some.
        assert!(unknown, "{case}: {UNKNOWN}");
        None
    });
}
