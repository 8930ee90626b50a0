//! A consume queue: the index of one queue, from offset to position, length and tag hash.
//!
//! Its entries stand in a chain of blocks of the index arena. The tail of the log writes them
//! under the append lock; readers go by `max`, which moves only after the record is committed and
//! the entry published (docs/design.md, A3).

use super::index_arena::{BLOCK_HEAD, ENTRY};
use super::record::{u32_at, u64_at};
use crate::storage::Segment;
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::sync::{Arc, Padded, Swap};
use std::ops::Range;

/// How many entries ahead of the one that is visited records are expected.
const AHEAD: usize = 4;

/// The readers' side of one queue's index.
#[derive(Debug)]
pub(crate) struct ConsumeQueue {
    pub(crate) incarnation: u32,
    pub(crate) queue: u16,
    /// Which cursor of the tail writes here.
    pub(crate) slot: usize,
    chain: Swap<Vec<Block>>,
    min: AtomicU64,
    max: Padded<AtomicU64>,
    /// The maximum that it was opened with.
    opened_at: AtomicU64,
    watchers: AtomicU32,
    gone: AtomicBool,
}

/// One block of the chain.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    /// The offset of its first entry.
    pub(crate) first: u64,
    pub(crate) segment: Arc<Segment>,
}

impl Block {
    /// The offset behind its last entry once it is full.
    pub(crate) fn end(&self) -> u64 {
        self.first + ((self.segment.capacity() - BLOCK_HEAD) / ENTRY) as u64
    }
}

/// One entry of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) position: u64,
    pub(crate) length: u32,
    pub(crate) tag_hash: i32,
}

impl Entry {
    /// An entry that leads past a message which is lost: it names the record that covers it.
    pub(crate) fn lost(position: u64) -> Self {
        Self { position, length: 0, tag_hash: 0 }
    }

    /// Whether the message is lost.
    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        self.length == 0
    }

    #[inline]
    pub(crate) fn encode(&self) -> [u8; ENTRY] {
        let [low, high] = [self.length, self.tag_hash.cast_unsigned()].map(u128::from);
        (u128::from(self.position) | low << 64 | high << 96).to_le_bytes()
    }

    #[inline]
    pub(crate) fn decode(bytes: &[u8]) -> Self {
        Self {
            position: u64_at(bytes, 0),
            length: u32_at(bytes, 8),
            tag_hash: u32_at(bytes, 12).cast_signed(),
        }
    }
}

impl ConsumeQueue {
    pub(crate) fn new(incarnation: u32, queue: u16, slot: usize, chain: Vec<Block>) -> Self {
        Self {
            incarnation,
            queue,
            slot,
            chain: Swap::new(chain),
            min: AtomicU64::new(0),
            max: Padded::new(AtomicU64::new(0)),
            opened_at: AtomicU64::new(0),
            watchers: AtomicU32::new(0),
            gone: AtomicBool::new(false),
        }
    }

    /// Tells it from every other queue of the directory.
    #[inline]
    pub(crate) fn key(&self) -> (u32, u16) {
        (self.incarnation, self.queue)
    }

    /// The first stored offset.
    pub(crate) fn min(&self) -> u64 {
        self.min.load(Ordering::Acquire)
    }

    /// The offset behind the last visible message.
    #[inline]
    pub(crate) fn max(&self) -> u64 {
        // Pairs with the Release in `publish`: entry and record are visible.
        #[cfg(not(broken_max_read_relaxed))]
        let order = Ordering::Acquire;
        #[cfg(broken_max_read_relaxed)]
        let order = Ordering::Relaxed;
        self.max.load(order)
    }

    /// Begins with messages below `max`, which were stored before it was opened.
    pub(super) fn open_at(&self, max: u64) {
        self.opened_at.store(max, Ordering::Release);
        self.publish(max);
    }

    /// The maximum that it was opened with, 0 if it was made since: what stands behind it has been
    /// stored since then.
    pub(crate) fn opened_at(&self) -> u64 {
        self.opened_at.load(Ordering::Acquire)
    }

    /// Makes offsets below `max` visible; called with the append lock held, after the records
    /// are committed and the entries published.
    #[inline]
    pub(super) fn publish(&self, max: u64) {
        #[cfg(not(broken_max_relaxed))]
        let order = Ordering::Release;
        #[cfg(broken_max_relaxed)]
        let order = Ordering::Relaxed;
        self.max.store(max, order);
    }

    /// Raises the first stored offset; it never goes back.
    pub(crate) fn raise_min(&self, min: u64) {
        self.min.fetch_max(min, Ordering::Release);
    }

    /// The topic was deleted: there is nothing to be read any more. Called when no append can come
    /// any more.
    pub(super) fn end(&self) {
        self.gone.store(true, Ordering::Release);
        self.raise_min(self.max());
    }

    /// Whether the topic was deleted.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Visits the entries of `offsets`, which end at a maximum seen before, until `visit` returns
    /// false.
    #[inline]
    pub(crate) fn scan(&self, offsets: Range<u64>, visit: impl FnMut(u64, Entry) -> bool) {
        self.scan_ahead(offsets, |_| (), visit);
    }

    /// The same; `expect` is told the position of an entry some way before it is visited, if it is.
    #[inline]
    pub(super) fn scan_ahead(
        &self,
        offsets: Range<u64>,
        mut expect: impl FnMut(u64),
        mut visit: impl FnMut(u64, Entry) -> bool,
    ) {
        let (mut offset, max) = (offsets.start, offsets.end);
        let chain = self.chain.load();
        let mut block = chain.partition_point(|block| block.first <= offset).saturating_sub(1);
        while offset < max {
            let Some(Block { first, segment }) = chain.get(block) else { return };
            let Some(skip) = offset.checked_sub(*first) else { return };
            let from = BLOCK_HEAD + skip as usize * ENTRY;
            let to = (from + (max - offset) as usize * ENTRY).min(segment.capacity());
            let Some(entries) = segment.read(from..to) else { return };
            let entries = entries.as_chunks::<ENTRY>().0;
            for (nth, entry) in entries.iter().enumerate() {
                if let Some(later) = entries.get(nth + AHEAD) {
                    expect(Entry::decode(later).position);
                }
                if !visit(offset, Entry::decode(entry)) {
                    return;
                }
                offset += 1;
            }
            block += 1;
        }
    }

    /// The entry at `offset`.
    pub(crate) fn entry(&self, offset: u64) -> Option<Entry> {
        let mut found = None;
        self.scan(offset..self.max(), |_, entry| {
            found = Some(entry);
            false
        });
        found
    }

    /// The first offset whose record stands at `position` or behind; the maximum if there is none.
    pub(crate) fn first_at(&self, position: u64) -> u64 {
        let (mut low, mut high) = (self.min(), self.max());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.entry(middle).is_some_and(|entry| entry.position < position) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Adds a block to the chain, before its writer reaches the tail.
    pub(crate) fn push_block(&self, block: Block) {
        let mut chain = self.chain.load().to_vec();
        chain.push(block);
        self.chain.store(chain);
    }

    /// Takes the blocks out whose entries all lie below `min`, except the last block: it keeps
    /// the queue's numbering.
    pub(super) fn drop_blocks(&self, min: u64) -> Vec<Arc<Segment>> {
        let chain = self.chain.load();
        let passed = chain.iter().take_while(|block| block.end() <= min).count();
        let (dropped, kept) = chain.split_at(passed.min(chain.len().saturating_sub(1)));
        if dropped.is_empty() {
            return Vec::new();
        }
        self.chain.store(kept.to_vec());
        dropped.iter().map(|block| block.segment.clone()).collect()
    }

    /// Takes all blocks out, of a queue that is gone.
    pub(super) fn take_blocks(&self) -> Vec<Arc<Segment>> {
        let chain = self.chain.load();
        let blocks = chain.iter().map(|block| block.segment.clone()).collect();
        drop(chain);
        self.chain.store(Vec::new());
        blocks
    }

    /// The chain as it is now, which keeps its blocks from being used again.
    #[cfg(all(test, not(loom)))]
    pub(super) fn blocks(&self) -> Vec<Block> {
        self.chain.load().to_vec()
    }

    /// The offset behind the last block's capacity, or where a first block would begin.
    pub(super) fn chain_end(&self, next: u64) -> (u64, usize) {
        let chain = self.chain.load();
        chain.last().map_or((next, 0), |block| (block.end(), block.segment.capacity()))
    }

    /// Announces somebody who will sleep until a message arrives. He then looks at the maximum
    /// under the append lock: either he sees the message, or its append sees him.
    pub(crate) fn watch(&self) {
        #[cfg(not(broken_watch_store))]
        self.watchers.fetch_add(1, Ordering::Relaxed);
        #[cfg(broken_watch_store)]
        self.watchers.store(self.watchers.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Takes one announcement back.
    pub(crate) fn unwatch(&self) {
        self.watchers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether anybody sleeps; read inside the append lock.
    #[inline]
    pub(super) fn watched(&self) -> bool {
        self.watchers.load(Ordering::Relaxed) > 0
    }
}
