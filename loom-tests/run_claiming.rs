//! Claiming: every batch of a run is worked on by exactly one worker, or by none once it is closed.
//!
//! Claims and the close are read-modify-writes of one counter, so that they stand in one order:
//! what was claimed before the close is the front of the run, and all behind it is given back.
//!
//! Planted bugs: broken_claim_twice, broken_close_torn
//! Fails with: a message was claimed twice
//! Fails with: a message was claimed and given back
//! Fails with: a message was neither claimed nor given back

use super::{ORDERS, explore, race};
use crate::broker::run::{Place, Run};
use crate::sync::Arc;
use std::collections::BTreeSet;

/// A run of three messages, claimed two at a time.
fn run() -> Arc<Run<()>> {
    let places = (0..3).map(|offset| Place { offset, size: 1 }).collect();
    Arc::new(Run::new((), places, 2))
}

/// Claims until there is nothing left; returns the indexes that it was given.
fn work(run: &Run<()>) -> Vec<usize> {
    loom::thread::yield_now();
    std::iter::from_fn(|| run.claims().claim()).flatten().collect()
}

/// Closes; returns the indexes that nobody is to work on.
fn close(run: &Run<()>) -> Vec<usize> {
    loom::thread::yield_now();
    (run.claims().close()..run.places().len()).collect()
}

fn check(claimed: &[&[usize]], given_back: &[usize]) {
    let claimed: Vec<usize> = claimed.concat();
    let once: BTreeSet<usize> = claimed.iter().copied().collect();
    assert_eq!(once.len(), claimed.len(), "a message was claimed twice");
    for index in 0..3 {
        let (worked, left) = (once.contains(&index), given_back.contains(&index));
        assert!(!(worked && left), "a message was claimed and given back");
        assert!(worked || left, "a message was neither claimed nor given back");
    }
}

#[test]
fn run_claiming() {
    for mirrored in ORDERS {
        let seen = explore(6, move || {
            let [first, second] = race(mirrored, &run(), [work, work]);
            check(&[&first, &second], &[]);
            (first.len(), second.len())
        });
        assert_eq!(seen, BTreeSet::from([(3, 0), (2, 1), (1, 2), (0, 3)]));
    }
}

#[test]
fn run_claiming_until_closed() {
    for mirrored in ORDERS {
        let seen = explore(4, move || {
            let [first, second, left] = race(mirrored, &run(), [work, work, close]);
            check(&[&first, &second], &left);
            left.len()
        });
        assert_eq!(seen, BTreeSet::from([0, 1, 3]));
    }
}
