//! Populating ahead of the tail: the allocator and a producer that has caught up claim the pages
//! step by step, so that each is faulted in by one of them, and none is left out below what the
//! producer needs.
//!
//! Planted bugs: broken_populate_twice
//! Fails with: a step was taken twice or left out

use super::{ORDERS, explore};
use crate::storage::{Carver, Region};
use crate::sync::Arc;
use std::sync::Mutex;

const STEP: usize = 64;
const LEN: usize = 4 * STEP;

#[test]
fn populate_ahead() {
    for mirrored in ORDERS {
        let seen = explore(3, move || {
            let taken = Arc::new(Mutex::new(Vec::new()));
            let noted = taken.clone();
            let mut region = Region::heap(LEN);
            region.on_populate = Some(Box::new(move |range| {
                assert_eq!(range.len(), STEP);
                noted.lock().unwrap().push((range.start / STEP, loom::thread::current().id()));
            }));
            let writer = Carver::new(region).carve(LEN, 0).unwrap();
            let mut wanted = [STEP + 1, LEN];
            if mirrored {
                wanted.reverse();
            }
            let threads = wanted.map(|wanted| {
                let segment = writer.segment().clone();
                loom::thread::spawn(move || {
                    segment.populate_to(wanted, STEP);
                    assert!(segment.populated() >= wanted, "a step was taken twice or left out");
                })
            });
            let [first, _] = threads.each_ref().map(|thread| thread.thread().id());
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            let taken = taken.lock().unwrap();
            let mut steps: Vec<_> = taken.iter().map(|(step, _)| *step).collect();
            steps.sort_unstable();
            assert_eq!(steps, [0, 1, 2, 3], "a step was taken twice or left out");
            taken.iter().filter(|(_, thread)| *thread == first).count()
        });
        assert!(seen.len() > 2, "steps that the first has taken: {seen:?}");
    }
}
