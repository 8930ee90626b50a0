//! What is to be remembered of a queue that is consumed in order: messages that wait for a commit,
//! and how often those at its beginning have failed.

use crate::broker::run::{Place, Run};
use crate::store::Deliveries;
use std::collections::BTreeMap;
use std::ops::Range;

/// Of messages that are not committed. In memory only: the next owner begins anew (ORD-18).
#[derive(Debug, Default)]
pub(super) struct Uncommitted {
    /// Done with, and kept until a commit or a rollback; by offset.
    kept: Vec<Place>,
    /// Those that were delivered and come again, by offset.
    again: BTreeMap<u64, Again>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Again {
    /// How often it has failed.
    times: u32,
    /// It is among the dead letters: not to be delivered any more, nor sent there again (ORD-16).
    dead: bool,
}

impl Uncommitted {
    /// Whether a message comes again.
    pub(super) fn knows(&self, offset: u64) -> bool {
        self.again.contains_key(&offset)
    }

    /// Whether any message does.
    pub(super) fn knows_any(&self) -> bool {
        !self.again.is_empty()
    }

    /// Those of a part of a run that are to be delivered, if it is not simply all of them for the
    /// first time.
    pub(super) fn living(&self, run: &Run, part: Range<usize>) -> Option<Deliveries> {
        if self.again.is_empty() {
            return None;
        }
        let again = |index: usize| (index, self.again.get(&run.places()[index].offset).copied());
        let living = part.map(again).filter(|(_, again)| !again.is_some_and(|again| again.dead));
        let attempts = living.map(|(index, again)| (index, again.map_or(0, |again| again.times)));
        Some(run.messages().again(attempts))
    }

    pub(super) fn note_failure(&mut self, offset: u64) {
        self.again.entry(offset).or_default().times += 1;
    }

    pub(super) fn note_dead(&mut self, offset: u64) {
        self.again.entry(offset).or_default().dead = true;
    }

    pub(super) fn keep(&mut self, places: &[Place]) {
        self.kept.extend_from_slice(places);
    }

    /// Gives out what was kept, which is to be committed.
    pub(super) fn take_kept(&mut self) -> Vec<Place> {
        std::mem::take(&mut self.kept)
    }

    /// Gives out what was kept, which comes again, and so does `batch`.
    pub(super) fn roll_back(&mut self, batch: &[Place]) -> Vec<Place> {
        for place in self.kept.iter().chain(batch) {
            self.again.entry(place.offset).or_default();
        }
        self.take_kept()
    }

    /// Forgets what is below `offset`, which is committed.
    pub(super) fn forget_below(&mut self, offset: u64) {
        if !self.again.is_empty() {
            self.again = self.again.split_off(&offset);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ord_18_what_comes_again_is_known_until_it_is_committed() {
        let mut uncommitted = Uncommitted::default();
        (0..3).for_each(|_| uncommitted.note_failure(7));
        uncommitted.note_dead(8);
        let place = |offset| Place { offset, size: 1 };
        uncommitted.keep(&[place(9), place(10)]);
        assert_eq!(uncommitted.roll_back(&[place(11)]), [place(9), place(10)]);
        assert_eq!(uncommitted.take_kept(), []);
        let times: Vec<_> =
            uncommitted.again.iter().map(|(at, again)| (*at, again.times)).collect();
        assert_eq!(times, [(7, 3), (8, 0), (9, 0), (10, 0), (11, 0)]);
        uncommitted.forget_below(8);
        assert!(!uncommitted.knows(7) && uncommitted.again[&8].dead);
        assert!(uncommitted.knows(11) && !uncommitted.knows(12));
        uncommitted.forget_below(12);
        assert!(!uncommitted.knows_any());
    }
}
