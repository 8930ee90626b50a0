//! What is to be remembered of a queue that is consumed in order: messages that wait for a commit,
//! and how often those at its beginning have failed.

use crate::broker::run::Place;
use std::collections::BTreeMap;

/// Of messages that are not committed. In memory only: the next owner begins anew (ORD-18).
#[derive(Debug, Default)]
pub(super) struct Unsettled {
    /// Done with, and kept until a commit or a rollback; by offset.
    kept: Vec<Place>,
    /// How often messages have failed, by offset.
    failed: BTreeMap<u64, u32>,
}

impl Unsettled {
    /// How often the message has failed here.
    pub(super) fn times(&self, offset: u64) -> u32 {
        self.failed.get(&offset).copied().unwrap_or(0)
    }

    pub(super) fn note_failure(&mut self, offset: u64) {
        *self.failed.entry(offset).or_default() += 1;
    }

    pub(super) fn keep(&mut self, places: &[Place]) {
        self.kept.extend_from_slice(places);
    }

    /// Gives out what was kept, which is to be committed, or to be delivered again.
    pub(super) fn take_kept(&mut self) -> Vec<Place> {
        std::mem::take(&mut self.kept)
    }

    /// Forgets what is below `offset`, which is committed.
    pub(super) fn settle(&mut self, offset: u64) {
        if !self.failed.is_empty() {
            self.failed = self.failed.split_off(&offset);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ord_18_failures_are_counted_until_the_message_is_settled() {
        let mut unsettled = Unsettled::default();
        (0..3).for_each(|_| unsettled.note_failure(7));
        unsettled.note_failure(8);
        assert_eq!((unsettled.times(7), unsettled.times(8), unsettled.times(9)), (3, 1, 0));
        unsettled.settle(8);
        assert_eq!((unsettled.times(7), unsettled.times(8)), (0, 1));
    }
}
