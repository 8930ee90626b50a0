//! What the allocator does ahead of the tail: pages are faulted in, and the next file is due.
//!
//! Populated pages are dirty, and those of a slow log would be on their way to the disk before the
//! records come; those of a fast one are to last while the next file is made, which takes syncs.

use super::commit_log::CommitLog;
use super::tail::Filling;
use crate::storage::Segment;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// How far ahead at first, usually at most, and at most if the log grows fast.
const FIRST: usize = 256 << 10;
const USUAL: usize = 4 << 20;
const FAST: usize = 64 << 20;
/// The log grows fast if the allocator, who is woken for it once half of what was ahead is filled, is
/// woken so again in less than this; and no longer so after as much.
const FAST_MS: u64 = 10;
const SLOW_MS: u64 = 100;
/// What is faulted in before the next file is thought of again.
const PORTION: usize = 8 << 20;
/// What is faulted in at once; and if the log grows fast, which is what a large page has.
const STEP: usize = 256 << 10;
const LARGE_STEP: usize = 2 << 20;
/// The next file is made when this part of the present one is filled.
const ENOUGH: usize = 4;

/// How far ahead of the tail pages are faulted in. The allocator alone changes it.
#[derive(Debug)]
pub(super) struct Ahead {
    most: usize,
    bytes: AtomicUsize,
    /// When that was last looked at.
    looked_ms: AtomicU64,
}

/// What the allocator has to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chore {
    Sleep,
    Populate,
    /// The next file is to be made.
    Grow,
}

impl Ahead {
    pub(super) fn new(most: usize) -> Self {
        Self { most, bytes: AtomicUsize::new(FIRST.min(most)), looked_ms: AtomicU64::new(0) }
    }

    /// Looks at how fast the log grows, whenever the allocator is woken for it. Files that begin wake
    /// him, too: one such look too many is taken back by the next.
    fn look(&self, now_ms: u64) {
        let elapsed_ms = now_ms.saturating_sub(self.looked_ms.swap(now_ms, Ordering::Relaxed));
        let bytes = match self.bytes() {
            bytes if bytes < USUAL || elapsed_ms < FAST_MS => bytes * 2,
            bytes if elapsed_ms > SLOW_MS => USUAL.max(bytes / 2),
            bytes => bytes,
        };
        self.bytes.store(bytes.min(FAST).min(self.most), Ordering::Relaxed);
    }

    fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    fn step(&self) -> usize {
        if self.bytes() > USUAL { LARGE_STEP } else { STEP }
    }
}

impl CommitLog {
    /// Whenever the allocator is woken for the log, before it populates.
    pub(super) fn look_ahead(&self, now_ms: u64) {
        self.ahead.look(now_ms);
    }

    /// Faults a portion of pages in ahead of the tail. The next file is to be made once some part of
    /// this one is filled, so that a small log has but one.
    pub(super) fn populate_ahead(&self) -> Chore {
        let Filling { segment, cursor, next, .. } = self.with_tail(|tail| tail.filling());
        let (capacity, ahead, step) = (segment.capacity(), self.ahead.bytes(), self.ahead.step());
        let reached = |segment: &Segment| segment.populated().min(segment.capacity());
        let before = reached(&segment) + next.as_deref().map_or(0, reached);
        let to = (cursor + ahead).min(before + PORTION);
        segment.populate_to(to, step);
        if let Some(next) = &next {
            next.populate_to(to.saturating_sub(capacity), step);
        }
        let (enough, populated) = (capacity / ENOUGH, reached(&segment));
        let has_more = |segment: &Segment| reached(segment) < segment.capacity();
        let more = has_more(&segment) || next.as_deref().is_some_and(has_more);
        if to < cursor + ahead && more && (next.is_some() || cursor < enough) {
            return Chore::Populate;
        }
        let mut alarm = usize::MAX;
        if populated < capacity {
            alarm = populated - ahead.min(populated) / 2;
        }
        if cursor < enough {
            alarm = alarm.min(enough);
        }
        self.with_tail(|tail| tail.set_allocator_alarm(&segment, alarm));
        if next.is_none() && cursor >= enough { Chore::Grow } else { Chore::Sleep }
    }

    /// Faults pages in for a producer that has caught up with the allocator.
    pub(crate) fn populate(&self, segment: &Segment, wanted: usize) {
        segment.populate_to(wanted, self.ahead.step());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_grows_fast_has_more_ahead_until_it_grows_slowly() {
        let ahead = Ahead::new(usize::MAX);
        let mut seen = Vec::new();
        for now_ms in [5000, 9000, 9100, 9200, 9300, 9305, 9310, 9314, 9330, 9340, 9345, 9350, 9351]
        {
            ahead.look(now_ms);
            seen.push(ahead.bytes() >> 10);
        }
        let fast = [8192, 16384, 32768, 32768, 32768, 65536, 65536, 65536];
        assert_eq!(seen[..5], [512, 1024, 2048, 4096, 4096]);
        assert_eq!(seen[5..], fast);
        assert_eq!(ahead.step(), LARGE_STEP);
        for (now_ms, kib) in
            [(9500, 32768), (9700, 16384), (9900, 8192), (10_100, 4096), (11_000, 4096)]
        {
            ahead.look(now_ms);
            assert_eq!(ahead.bytes() >> 10, kib);
        }
        assert_eq!(ahead.step(), STEP);
    }

    #[test]
    fn what_costs_a_flush_that_waits_stays_within_its_bound() {
        let ahead = Ahead::new(1 << 20);
        (0..10).for_each(|_| ahead.look(7));
        assert_eq!((ahead.bytes(), ahead.step()), (1 << 20, STEP));
    }
}
