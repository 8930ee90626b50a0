//! The process queue for tests outside of the crate, which replay golden vectors on it.

use super::process_queue::ProcessQueue;
use super::run::{Place, Run};
use crate::sync::Arc;

/// A process queue of messages that are no more than an offset and a size.
#[derive(Debug)]
pub struct ReplayedQueue {
    queue: ProcessQueue<()>,
}

impl ReplayedQueue {
    /// A queue that begins at `offset`.
    #[must_use]
    pub fn new(offset: u64) -> Self {
        Self { queue: ProcessQueue::new(offset) }
    }

    /// Takes messages over, of which offset and bytes are given; reading went on to `next`.
    pub fn put(&self, messages: &[(u64, usize)], next: u64) {
        let places = messages.iter().map(|&(offset, size)| Place { offset, size }).collect();
        self.queue.register(&Arc::new(Run::new((), places, 1)), next);
    }

    /// Finishes a message; returns the offset that may be committed, if it has risen.
    pub fn finish(&self, offset: u64, bytes: usize) -> Option<u64> {
        self.queue.finish(offset, bytes).commit
    }

    /// The lowest unfinished offset.
    #[must_use]
    pub fn low(&self) -> u64 {
        self.queue.low()
    }

    /// Messages in flight, their bytes, and the offsets from the lowest of them to the next one to be
    /// read.
    #[must_use]
    pub fn in_flight(&self) -> (usize, usize, u64) {
        let in_flight = self.queue.in_flight();
        (in_flight.messages, in_flight.bytes, in_flight.span)
    }
}
