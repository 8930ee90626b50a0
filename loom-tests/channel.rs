//! The channel that stands in for crossbeam's in all models: it keeps to the same contract, scene by
//! scene (`sync/channel/contract.rs`), so that what a model proves with it holds with the real one.
//!
//! Planted bugs: broken_channel_silent, broken_channel_end_silent
//! Fails with: deadlock; threads =

use super::{ORDERS, explore, race};
use crate::sync::contract::{Exchange, check_drops, check_receivers, check_senders};

#[test]
fn channel_that_goes_on() {
    for mirrored in ORDERS {
        explore(3, move || {
            // A second sender is left: the end wakes nobody.
            let threads = [Exchange::send_one, Exchange::receive_one];
            let [_, received] = race(mirrored, &Exchange::new(2), threads);
            assert_eq!(received, [1]);
        });
    }
}

#[test]
fn channel_with_two_senders() {
    for mirrored in ORDERS {
        explore(3, move || {
            let threads = [Exchange::send_one, Exchange::send_one, Exchange::receive_all];
            let [_, _, received] = race(mirrored, &Exchange::new(2), threads);
            check_senders(&received);
        });
    }
}

#[test]
fn channel_with_two_receivers() {
    for mirrored in ORDERS {
        let seen = explore(3, move || {
            let threads = [Exchange::send_two, Exchange::receive_all, Exchange::receive_all];
            let [_, first, second] = race(mirrored, &Exchange::new(1), threads);
            check_receivers([&first, &second]);
            (first.len(), second.len())
        });
        assert_eq!(seen, [(0, 2), (1, 1), (2, 0)].into(), "shared in every way");
    }
}

#[test]
fn channel_whose_values_nobody_receives() {
    explore(1, check_drops);
}
