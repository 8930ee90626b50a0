//! Recycling against a held message: the memory of a dropped file becomes the next file only if
//! nobody refers to it, and then what readers did has happened before.
//!
//! The front of the log is dropped and the log grows while a reader fetches, keeps what it got, and
//! looks at it later. Every byte is a cell of loom, so that a file that is written over while it
//! is read, or was read without an order between the two, is a reported race. A reader that comes
//! too late finds that the messages are being removed, never damage.
//!
//! Planted bugs: broken_reuse_held
//! Fails with: Causality violation
//! Fails with: a held message has changed

use super::fixture::{Log, RECORD};
use super::{ORDERS, explore, race};
use crate::store::model::{Disposal, HEAD, HEADER, Limits};
use crate::store::{Delivery, FetchStatus, Select};
use crate::sync::Arc;
use std::collections::BTreeSet;

// One record a file, and room for the header of a filler.
const FILE: usize = HEAD + RECORD + HEADER;

/// Drops the first file, and fills the one that is made next.
fn drop_and_grow(log: &Log) -> &'static str {
    log.queue.raise_min(1);
    let files = log.log.take_front(FILE as u64);
    assert_eq!(files.len(), 1);
    let gone = log.log.give_back(files, Disposal::Reuse, Limits::default()).unwrap();
    log.log.grow(0, Limits::default()).unwrap();
    log.append(b'c');
    if gone.reused == 1 { "reused" } else { "removed" }
}

fn hold(log: &Log) -> &'static str {
    loom::thread::yield_now();
    let fetch = log.log.fetch(&log.queue, 0, 1, usize::MAX, &All).unwrap();
    let letter = || fetch.messages.get(0).map(|message| message.body()[0]);
    let first = letter();
    loom::thread::yield_now();
    assert_eq!(letter(), first, "a held message has changed");
    match fetch.status {
        FetchStatus::Found if first == Some(b'a') => "held",
        // It goes on with the next one if that is there.
        FetchStatus::Found | FetchStatus::TooSmall | FetchStatus::Removing => "late",
        other => panic!("{other:?}"),
    }
}

#[derive(Debug)]
struct All;

impl Select for All {
    fn by_hash(&self, _: i32) -> bool {
        true
    }
    fn by_message(&self, _: &Delivery<'_>) -> bool {
        true
    }
}

#[test]
fn recycle() {
    for mirrored in ORDERS {
        let seen = explore(2, move || {
            let log = Arc::new(Log::new(FILE));
            log.append(b'a');
            log.append(b'b');
            let [dropped, held] = race(mirrored, &log, [drop_and_grow, hold]);
            (dropped, held)
        });
        let expected = [("removed", "held"), ("reused", "held"), ("reused", "late")];
        for outcome in expected {
            assert!(seen.contains(&outcome), "{outcome:?} is not in {seen:?}");
        }
        let known = BTreeSet::from(["removed", "reused"]);
        assert!(seen.iter().all(|(dropped, _)| known.contains(dropped)));
    }
}
