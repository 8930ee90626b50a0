//! A run: messages that were read together, claimed by whichever worker is free.
//!
//! Claims are read-modify-writes of one counter, in order: every batch has exactly one claimer,
//! and what is unclaimed is always the end of the run. Closing a run claims that end for nobody.

use crate::store::Deliveries;
use crate::sync::atomic::{AtomicUsize, Ordering};
use std::ops::Range;

/// Messages of one queue, and how many of them have been claimed.
#[derive(Debug)]
pub(crate) struct Run<M = Deliveries> {
    messages: M,
    places: Vec<Place>,
    mortal: bool,
    claims: Claims,
}

/// Where a message stands in its queue, and the bytes of its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) offset: u64,
    pub(crate) size: usize,
}

impl<M> Run<M> {
    /// A run of messages that stand at `places`, ascending, and are claimed `batch` at a time.
    pub(crate) fn new(messages: M, places: Vec<Place>, batch: usize) -> Self {
        let claims =
            Claims { len: places.len(), batch: batch.max(1), claimed: AtomicUsize::new(0) };
        Self { messages, places, mortal: false, claims }
    }

    /// Notes that some of them may expire while they wait.
    pub(crate) fn mortal(self, mortal: bool) -> Self {
        Self { mortal, ..self }
    }

    pub(crate) fn is_mortal(&self) -> bool {
        self.mortal
    }

    pub(crate) fn messages(&self) -> &M {
        &self.messages
    }

    pub(crate) fn places(&self) -> &[Place] {
        &self.places
    }

    pub(crate) fn claims(&self) -> &Claims {
        &self.claims
    }
}

/// The right to work on the batches of a run, given away once each.
#[derive(Debug)]
pub(crate) struct Claims {
    len: usize,
    batch: usize,
    claimed: AtomicUsize,
}

// Above every index, and far enough below the largest for claims that come too late.
const CLOSED: usize = usize::MAX / 2;

impl Claims {
    /// The next batch, for the caller alone.
    #[inline]
    pub(crate) fn claim(&self) -> Option<Range<usize>> {
        // Relaxed: the messages were handed over by the channel; only the count matters here.
        #[cfg(not(broken_claim_twice))]
        let from = self.claimed.fetch_add(self.batch, Ordering::Relaxed);
        #[cfg(broken_claim_twice)]
        let from = {
            let from = self.claimed.load(Ordering::Relaxed);
            self.claimed.store(from + self.batch, Ordering::Relaxed);
            from
        };
        (from < self.len).then(|| from..(from + self.batch).min(self.len))
    }

    /// Whether there is more to claim.
    pub(crate) fn open(&self) -> bool {
        self.claimed.load(Ordering::Relaxed) < self.len
    }

    /// Ends claiming; returns the index from which on nothing was claimed.
    pub(crate) fn close(&self) -> usize {
        #[cfg(not(broken_close_torn))]
        let claimed = self.claimed.swap(CLOSED, Ordering::Relaxed);
        #[cfg(broken_close_torn)]
        let claimed = {
            let claimed = self.claimed.load(Ordering::Relaxed);
            self.claimed.store(CLOSED, Ordering::Relaxed);
            claimed
        };
        claimed.min(self.len)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn run(len: u64, batch: usize) -> Run<()> {
        Run::new((), (0..len).map(|offset| Place { offset, size: 1 }).collect(), batch)
    }

    #[test]
    fn batches_are_claimed_in_order_until_the_run_is_closed() {
        let run = run(10, 4);
        assert_eq!(run.claims().claim(), Some(0..4));
        assert_eq!(run.claims().claim(), Some(4..8));
        assert!(run.claims().open());
        assert_eq!(run.claims().close(), 8);
        assert_eq!(run.claims().claim(), None);
        assert!(!run.claims().open());
        assert_eq!(run.claims().close(), 10, "closing again gives nothing back");
    }

    #[test]
    fn the_last_batch_is_what_is_left() {
        let run = run(5, 3);
        assert_eq!(run.claims().claim(), Some(0..3));
        assert_eq!(run.claims().claim(), Some(3..5));
        assert_eq!(run.claims().claim(), None);
        assert_eq!(run.claims().close(), 5);
    }
}
