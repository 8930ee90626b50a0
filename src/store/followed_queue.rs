//! Where the messages of a queue stand, as a follower knows it.

use super::consume_queue::Entry;
use super::index_arena::{BLOCK_HEAD, ENTRY};
use crate::storage::Segment;
use crate::sync::Arc;

/// The index of one queue: the owner's files up to a checkpoint, and what was read since.
#[derive(Debug, Default)]
pub(crate) struct FollowedQueue {
    pub(super) min: u64,
    /// Ascending, each from its first offset on.
    pub(super) blocks: Vec<(u64, Arc<Segment>)>,
    /// The offset behind the entries of the blocks.
    pub(super) indexed: u64,
    pub(super) recent: Vec<Entry>,
    /// The position that the last entry names.
    pub(super) last: u64,
}

impl FollowedQueue {
    /// The first offset that is stored.
    pub(crate) fn min(&self) -> u64 {
        self.min
    }

    /// The offset behind the last message.
    pub(crate) fn max(&self) -> u64 {
        self.indexed + self.recent.len() as u64
    }

    /// The offset behind the entries that stand in index files.
    pub(crate) fn indexed(&self) -> u64 {
        self.indexed
    }

    /// What the index says of a message: a hint, where it comes from a file.
    pub(crate) fn entry(&self, offset: u64) -> Option<Entry> {
        if let Some(recent) = offset.checked_sub(self.indexed) {
            return self.recent.get(usize::try_from(recent).ok()?).copied();
        }
        let behind = self.blocks.partition_point(|(first, _)| *first <= offset);
        let (first, segment) = self.blocks.get(behind.checked_sub(1)?)?;
        let at = BLOCK_HEAD + usize::try_from(offset - first).ok()? * ENTRY;
        segment.read(at..at + ENTRY).map(Entry::decode)
    }

    /// The first offset whose record stands at `position` or behind.
    pub(super) fn first_at(&self, position: u64) -> u64 {
        let (mut low, mut high) = (self.min, self.max());
        while low < high {
            let middle = low + (high - low) / 2;
            // An entry that is gone was in a block that is used for something else.
            if self.entry(middle).is_none_or(|entry| entry.position < position) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }
}
