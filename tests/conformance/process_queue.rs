//! What is in flight of a queue: the calls of RocketMQ's process queue, replayed on ours.
//!
//! Ours is a window over offsets. What RocketMQ takes out and puts back for an orderly listener stays
//! in the window until it is finished, so taking and giving back change nothing here.

use super::Vectors;
use rocklet::vectors::ReplayedQueue;
use serde_json::Value;
use std::collections::BTreeMap;

const ORDER: &str = "a queue is read in order, each offset once by one owner: none comes again, or behind a later one \
                     [PQ-3]";
const RESIZED: &str = "a message has the size that it was read with [PQ-3]";
const PINNED: &str =
    "progress never passes what is unfinished, in orderly consumption neither [PQ-5, PQ-7]";
const GAP: &str = "what a filter left out behind the last finished message is passed with it, not with the next one [PQ-7, PULL-11]";
const FOREIGN: &str = "what was not taken cannot be given back: counts are never negative [PQ-9]";
const ONE_SERVICE: &str =
    "a message is finished once: a queue is consumed concurrently or in order, not both [PQ-2]";

// (PQ-1, PQ-2, PQ-3, PQ-4, PQ-6, PQ-7, PQ-8, PQ-9, PQ-10)
#[test]
fn pq_4_pq_7_process_queue() {
    let (mut compared, mut all) = (0, 0);
    Vectors::read("process_queue.json").run(|case| {
        let steps = case["steps"].as_array().unwrap();
        all += steps.len();
        let mut replay = Replay::default();
        for step in steps {
            if let Some(deviation) = replay.step(step).or_else(|| replay.compare(step)) {
                return Some(deviation);
            }
            compared += 1;
        }
        replay.deviation
    });
    println!("process_queue.json: {compared} of {all} steps compared");
}

/// One case, as far as it has been replayed.
#[derive(Default)]
struct Replay {
    /// Made by the first message: an owner knows where it begins.
    queue: Option<ReplayedQueue>,
    unfinished: BTreeMap<u64, usize>,
    /// Of these, what an orderly listener has.
    taken: BTreeMap<u64, usize>,
    /// Where reading goes on.
    next: u64,
    /// A message came again with another size.
    resized: bool,
    /// A difference that does not end the replay.
    deviation: Option<&'static str>,
}

impl Replay {
    /// Does a step; what stands in the way of going on ends the case.
    fn step(&mut self, step: &Value) -> Option<&'static str> {
        let result = &step["result"];
        match step["op"].as_str().unwrap() {
            "put" => return self.put(&messages(step)),
            "remove" => return self.remove(&messages(step), result),
            "take" => match result["ok"].as_array() {
                Some(taken) => {
                    let offsets = taken.iter().map(|offset| offset.as_u64().unwrap());
                    self.taken.extend(offsets.map(|offset| (offset, self.unfinished[&offset])));
                }
                None => assert!(step["batch"].as_i64() < Some(0), "{step}"),
            },
            "commit" => self.commit(step),
            "rollback" => self.taken.clear(),
            "consume_again" => {
                for (offset, _) in messages(step) {
                    if self.taken.remove(&offset).is_none() {
                        return Some(FOREIGN);
                    }
                }
            }
            // The next owner of a queue has a process queue of its own.
            "clear" => *self = Self { deviation: self.deviation, ..Self::default() },
            other => panic!("{other}: {step}"),
        }
        None
    }

    fn put(&mut self, messages: &[(u64, usize)]) -> Option<&'static str> {
        for &(offset, bytes) in messages {
            // What is pending already changes no count in RocketMQ.
            if let Some(known) = self.unfinished.get(&offset)
                && !self.taken.contains_key(&offset)
            {
                self.resized |= *known != bytes;
                continue;
            }
            if offset < self.next {
                return Some(ORDER);
            }
            let queue = self.queue.get_or_insert_with(|| ReplayedQueue::new(offset));
            self.next = offset + 1;
            queue.put(&[(offset, bytes)], self.next);
            self.unfinished.insert(offset, bytes);
        }
        None
    }

    fn remove(&mut self, messages: &[(u64, usize)], result: &Value) -> Option<&'static str> {
        if messages.iter().any(|(offset, _)| self.taken.contains_key(offset)) {
            return Some(ONE_SERVICE);
        }
        let pending = !self.unfinished.is_empty();
        let mut risen = None;
        for (offset, _) in messages {
            risen = self.finish(*offset).or(risen);
        }
        let expected = result["ok"].as_i64().unwrap();
        if pending {
            assert_eq!(Some(expected.cast_unsigned()), self.low());
        } else {
            assert_eq!((expected, risen), (-1, None));
        }
        None
    }

    fn commit(&mut self, step: &Value) {
        let taken = std::mem::take(&mut self.taken);
        let Some((last, _)) = taken.last_key_value() else {
            assert_eq!(step["result"]["error"], "NoSuchElementException", "{step}");
            return;
        };
        let expected = step["result"]["ok"].as_u64().unwrap();
        assert_eq!(expected, last + 1, "{step}");
        for offset in taken.keys() {
            self.finish(*offset);
        }
        let low = self.low().unwrap();
        if low < expected {
            assert_eq!(step["after"]["cached"][0], low, "{step}");
            self.deviation = Some(PINNED);
        } else if low > expected {
            let first = step["after"]["cached"][0].as_u64();
            assert_eq!(low, first.unwrap_or(self.next), "{step}");
            self.deviation = Some(GAP);
        }
    }

    fn finish(&mut self, offset: u64) -> Option<u64> {
        // RocketMQ takes the size of what is removed, which may be another one in these cases.
        let bytes = self.unfinished.remove(&offset).unwrap_or(0);
        self.queue.as_ref()?.finish(offset, bytes)
    }

    fn low(&self) -> Option<u64> {
        self.queue.as_ref().map(ReplayedQueue::low)
    }

    fn compare(&self, step: &Value) -> Option<&'static str> {
        let after = &step["after"];
        let number = |name: &str| after[name].as_u64().unwrap();
        let offsets =
            |name: &str| -> Vec<u64> { serde_json::from_value(after[name].clone()).unwrap() };
        let (cached, taken) = (offsets("cached"), offsets("consuming_orderly"));
        assert!(taken.iter().eq(self.taken.keys()), "{step}");
        let pending = self.unfinished.keys().filter(|offset| !self.taken.contains_key(offset));
        assert!(cached.iter().eq(pending), "{step}");
        assert_eq!(after["has_temp_message"], !cached.is_empty(), "{step}");

        let queue = self.queue.as_ref();
        let (messages, bytes, span) = queue.map_or((0, 0, 0), ReplayedQueue::in_flight);
        assert_eq!(messages as u64, number("msg_count"), "{step}");
        if self.resized && bytes as u64 != number("msg_size") {
            return Some(RESIZED);
        }
        assert_eq!(bytes as u64, number("msg_size"), "{step}");
        // Ours is counted from the lowest unfinished offset to the next one to be read, so that it
        // bounds what is delivered again after a kill: one more at least than RocketMQ's.
        let lowest = self.unfinished.keys().next();
        assert_eq!(span, lowest.map_or(0, |lowest| self.next - lowest), "{step}");
        assert!(cached.is_empty() || number("max_span") < span, "{step}");
        if let Some(queue) = queue {
            assert_eq!(queue.low() + span, self.next, "{step}");
            assert_eq!(number("queue_offset_max") + 1, self.next, "{step}");
        }
        None
    }
}

fn messages(step: &Value) -> Vec<(u64, usize)> {
    let messages = step["msgs"].as_array().unwrap().iter();
    let number = |message: &Value, name: &str| message[name].as_u64().unwrap();
    messages
        .map(|m| (number(m, "offset"), usize::try_from(number(m, "body_len")).unwrap()))
        .collect()
}
