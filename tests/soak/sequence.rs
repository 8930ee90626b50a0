//! Checks that a group gets every message of every queue once.

use rocklet::{Delivery, Message};
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// A numbered message; its number is its offset.
pub(crate) fn message(topic: &str, queue: u16, number: u64) -> Message<'static> {
    let mut body = [&queue.to_le_bytes()[..], &number.to_le_bytes()].concat();
    body.resize(10 + (number.wrapping_mul(2_654_435_761) % 200) as usize, 7);
    Message::new(topic.to_owned(), body).queue(queue)
}

/// Which message a delivery is, also if it comes from elsewhere after a failure.
pub(crate) fn identity(delivery: &Delivery<'_>) -> (u16, u64) {
    let Some((queue, rest)) = delivery.body().split_first_chunk() else { panic!("{delivery:?}") };
    let Some((number, rest)) = rest.split_first_chunk() else { panic!("{delivery:?}") };
    assert!(rest.iter().all(|byte| *byte == 7), "{delivery:?}");
    (u16::from_le_bytes(*queue), u64::from_le_bytes(*number))
}

/// What one group has consumed.
pub(crate) struct Sequence {
    group: &'static str,
    queues: Vec<Mutex<Numbers>>,
    count: AtomicU64,
    /// What is wrong, told when it is asked for: a listener's panic is only a failed message.
    faults: Mutex<Vec<String>>,
}

/// All below `next`, and some that are ahead.
struct Numbers {
    next: u64,
    ahead: BTreeSet<u64>,
}

impl Sequence {
    /// One that begins with message `next` of every queue.
    pub(crate) fn new(group: &'static str, queues: u16, next: u64) -> Self {
        let numbers = |_| Mutex::new(Numbers { next, ahead: BTreeSet::new() });
        let queues = (0..queues).map(numbers).collect();
        Self { group, queues, count: AtomicU64::new(0), faults: Mutex::default() }
    }

    pub(crate) fn note(&self, delivery: &Delivery<'_>) {
        let (queue, number) = identity(delivery);
        let mut numbers = self.queues[usize::from(queue)].lock().unwrap();
        if number < numbers.next || !numbers.ahead.insert(number) {
            let fault = format!("{}: {queue} repeats {number}", self.group);
            return self.faults.lock().unwrap().push(fault);
        }
        loop {
            let next = numbers.next;
            if !numbers.ahead.remove(&next) {
                break;
            }
            numbers.next += 1;
        }
        drop(numbers);
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    /// How many different messages it got.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// Fails unless it got all messages up to `ends`, once each.
    pub(crate) fn expect(&self, ends: &[u64]) {
        let faults = self.faults.lock().unwrap();
        assert!(faults.is_empty(), "{} repeats, such as {:?}", faults.len(), faults.first());
        for (queue, (numbers, end)) in self.queues.iter().zip(ends).enumerate() {
            let numbers = numbers.lock().unwrap();
            let (next, ahead) = (numbers.next, numbers.ahead.len());
            assert_eq!((next, ahead), (*end, 0), "{}: queue {queue} misses some", self.group);
        }
    }
}
