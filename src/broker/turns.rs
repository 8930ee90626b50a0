//! Turns: what is done by one thread at a time for each group, with no lock held. No code of the
//! user's runs in one, which might wait for another.

use crate::clock::Clock;
use crate::sync::{Mutex, Rank, Signal};
use std::collections::BTreeSet;

/// Whose turn is taken, by name.
#[derive(Debug)]
pub(crate) struct Turns {
    taken: Mutex<BTreeSet<String>>,
    changed: Signal,
}

impl Turns {
    pub(crate) fn new() -> Self {
        Self { taken: Mutex::new(Rank::Member, BTreeSet::new()), changed: Signal::new() }
    }

    /// Waits until nobody has the turn of `name`, and takes it.
    pub(crate) fn take<'a>(&'a self, clock: &Clock, name: &'a str) -> Turn<'a> {
        self.changed.wait_until(clock, None, || self.taken.lock().insert(name.to_owned()));
        Turn { of: self, name }
    }
}

/// It ends with this.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    of: &'a Turns,
    name: &'a str,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.of.taken.lock().remove(self.name);
        self.of.changed.notify();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn a_turn_is_taken_by_one_at_a_time_for_each_name() {
        let (turns, clock, inside) = (Turns::new(), Clock::system(), AtomicU32::new(0));
        let _other = turns.take(&clock, "other");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let _turn = turns.take(&clock, "mine");
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
    }
}
