//! How much of the full files at the front of the log is of messages that wait. In a full file that
//! only falls: each is counted once, and from then on whoever ends a wait takes his part off.

use std::collections::BTreeMap;
use std::ops::Range;

#[derive(Debug, Default)]
pub(super) struct WaitingBytes {
    /// By the end of each file that was counted, from the front of the log without a gap. Less than
    /// nothing while one is being counted.
    files: BTreeMap<u64, i64>,
    /// Below a position so many bytes less are waited for.
    awaited: Option<(u64, u64)>,
    fallen: bool,
}

impl WaitingBytes {
    /// Begins to count the files with these ends, the first ones of the log: what waits now in the
    /// range that is returned is to be added.
    pub(super) fn begin(&mut self, ends: &[u64]) -> Range<u64> {
        let (Some(first), Some(last)) = (ends.first(), ends.last()) else { return 0..0 };
        self.files = self.files.split_off(first);
        let known = self.files.last_key_value().map_or(0, |(end, _)| *end);
        self.files.extend(ends.iter().filter(|end| **end > known).map(|end| (*end, 0)));
        known..*last
    }

    pub(super) fn add(&mut self, position: u64, length: u64) {
        if let Some(bytes) = self.file(position) {
            *bytes = bytes.saturating_add_unsigned(length);
        }
    }

    pub(super) fn take_off(&mut self, position: u64, length: u64) {
        if let Some(bytes) = self.file(position) {
            *bytes = bytes.saturating_sub_unsigned(length);
        }
        if let Some((end, left)) = &mut self.awaited
            && position < *end
        {
            *left = left.saturating_sub(length);
            if *left == 0 {
                (self.awaited, self.fallen) = (None, true);
            }
        }
    }

    fn file(&mut self, position: u64) -> Option<&mut i64> {
        self.files.range_mut(position + 1..).next().map(|(_, bytes)| bytes)
    }

    /// The bytes below each of these ends, which ascend.
    pub(super) fn below(&self, ends: &[u64]) -> Vec<u64> {
        let mut files = self.files.iter().peekable();
        let mut sum = 0;
        let sums = ends.iter().map(|end| {
            while let Some((_, bytes)) = files.next_if(|(known, _)| *known <= end) {
                sum += bytes;
            }
            u64::try_from(sum).unwrap_or(0)
        });
        sums.collect()
    }

    /// From now on it is waited until no more than so many bytes below the end of a file wait; `None`:
    /// for nothing.
    pub(super) fn wait_for(&mut self, goal: Option<(u64, u64)>) {
        let goal = goal.map(|(end, most)| (end, self.below(&[end])[0].saturating_sub(most)));
        self.fallen = goal.is_some_and(|(_, left)| left == 0);
        self.awaited = goal.filter(|(_, left)| *left > 0);
    }

    /// Whether that has come, once.
    pub(super) fn has_fallen(&mut self) -> bool {
        std::mem::take(&mut self.fallen)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_file_is_counted_once_and_falls() {
        let mut waiting = WaitingBytes::default();
        assert_eq!(waiting.begin(&[100, 200]), 0..200);
        // It ends while it is being counted.
        waiting.take_off(60, 30);
        [(0, 10), (60, 30), (150, 20)].into_iter().for_each(|(at, len)| waiting.add(at, len));
        assert_eq!(waiting.below(&[100, 200]), [10, 30]);
        assert_eq!(waiting.begin(&[200, 300]), 200..300);
        waiting.add(250, 7);
        assert_eq!(waiting.below(&[200, 300]), [20, 27]);
        assert!(waiting.begin(&[200]).is_empty());
        waiting.take_off(350, 5);
        assert_eq!(waiting.below(&[200, 300]), [20, 27], "it stands behind them");
        assert_eq!(waiting.begin(&[]), 0..0);
    }

    #[test]
    fn a_fall_is_told_once_when_it_is_waited_for() {
        let mut waiting = WaitingBytes::default();
        waiting.begin(&[100, 200]);
        waiting.add(0, 50);
        waiting.add(100, 50);
        waiting.wait_for(Some((200, 70)));
        waiting.take_off(200, 100);
        waiting.take_off(100, 29);
        assert!(!waiting.has_fallen());
        waiting.take_off(0, 8);
        assert!(waiting.has_fallen() && !waiting.has_fallen());
        waiting.take_off(0, 100);
        assert!(!waiting.has_fallen());
        waiting.wait_for(Some((200, 1)));
        waiting.wait_for(None);
        waiting.take_off(0, 100);
        assert!(!waiting.has_fallen());
        waiting.wait_for(Some((200, 1)));
        assert!(waiting.has_fallen(), "it was before");
    }
}
