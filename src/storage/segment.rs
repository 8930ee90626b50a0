//! A segment: an append-only stretch of a region with one writer and any number of readers.
//!
//! Log files, index blocks and nothing else are segments. The writer copies behind the published
//! length, or writes there in place, and then publishes; readers see only what is published, without a lock.
//!
//! Invariants (docs/design.md, A1):
//! - S1 a segment's range of the region belongs to it alone: [`Carver`] owns the region and
//!   gives every byte away at most once.
//! - S2 there is one [`SegmentWriter`] per segment, and it writes only at or above `published`.
//! - S3 bytes below `published` never change. `published` only grows, by `Release` stores of the
//!   writer after the bytes are copied; readers load it with `Acquire` before they look.
//! - S4 the writer's cursor lives in the writer, never read back from `published`.
//! - S5 a segment returns to a fresh state only when its last reference is consumed (`recycle`).

#![allow(unsafe_code)]

use super::region::Region;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicUsize, Ordering};
use std::io;
use std::ops::Range;

/// The readers' side: shared, cheap to keep alive.
#[derive(Debug)]
pub(crate) struct Segment {
    region: Arc<Region>,
    start: usize,
    capacity: usize,
    published: AtomicUsize,
    populated: AtomicUsize,
}

impl Segment {
    /// The bytes of `range` if all of them are published.
    #[inline]
    pub(crate) fn read(&self, range: Range<usize>) -> Option<&[u8]> {
        if range.start > range.end || range.end > self.published() {
            return None;
        }
        // SAFETY: published bytes never change (S3) and belong to this segment (S1).
        Some(unsafe { self.region.read_shared(self.start + range.start..self.start + range.end) })
    }

    /// Asks the processor for the cache line at `at`, to be read soon.
    #[inline]
    pub(crate) fn expect_read(&self, at: usize) {
        self.region.expect(self.start.wrapping_add(at));
    }

    /// How many bytes are published.
    #[inline]
    pub(crate) fn published(&self) -> usize {
        // Pairs with the Release in `publish`: what lies below is completely copied.
        #[cfg(not(broken_read_relaxed))]
        let order = Ordering::Acquire;
        #[cfg(broken_read_relaxed)]
        let order = Ordering::Relaxed;
        self.published.load(order)
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Makes `range` durable.
    pub(crate) fn sync(&self, range: Range<usize>) -> io::Result<()> {
        self.region.sync(self.start + range.start..self.start + range.end.min(self.capacity))
    }

    /// Prepares `range`, to which nobody writes any more, for being written back.
    pub(crate) fn detach(&self, range: Range<usize>) {
        self.region.detach(self.start + range.start..self.start + range.end.min(self.capacity));
    }

    /// Claims the next `step` bytes whose pages nobody has faulted in yet and faults them in, if
    /// that brings the claimed part up to `wanted`; otherwise does nothing.
    pub(crate) fn populate_to(&self, wanted: usize, step: usize) {
        while self.populated.load(Ordering::Relaxed) < wanted.min(self.capacity) {
            // A claim, not a watermark: two callers populate different pages, and a page that a
            // slower one has not reached yet merely faults in as it is written.
            #[cfg(not(broken_populate_twice))]
            let from = self.populated.fetch_add(step, Ordering::Relaxed);
            #[cfg(broken_populate_twice)]
            let from = self.populated.load(Ordering::Relaxed);
            #[cfg(broken_populate_twice)]
            self.populated.swap(from + step, Ordering::Relaxed);
            if from >= self.capacity {
                return;
            }
            let to = (from + step).min(self.capacity);
            self.region.populate(self.start + from..self.start + to);
        }
    }

    /// How many bytes have been claimed for populating.
    #[inline]
    pub(crate) fn populated(&self) -> usize {
        self.populated.load(Ordering::Relaxed)
    }
}

/// The one writer of a segment.
#[derive(Debug)]
pub(crate) struct SegmentWriter {
    segment: Arc<Segment>,
    cursor: usize,
}

impl SegmentWriter {
    /// The writer of a segment without bytes, in place of one that is given up.
    pub(crate) fn nowhere() -> Self {
        let segment = Segment {
            region: Arc::new(Region::empty()),
            start: 0,
            capacity: 0,
            published: AtomicUsize::new(0),
            populated: AtomicUsize::new(0),
        };
        Self { segment: Arc::new(segment), cursor: 0 }
    }

    /// Copies `bytes` behind what was written before; readers do not see it yet.
    ///
    /// # Panics
    /// When it does not fit: callers look at `remaining` first.
    #[inline]
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        let segment = &*self.segment;
        assert!(bytes.len() <= segment.capacity - self.cursor, "write beyond a segment");
        // SAFETY: the range belongs to this segment (S1) and lies at or above `published`, so no
        // reader has a slice of it (S3); `&mut self` is the only writer (S2).
        unsafe { segment.region.write_shared(segment.start + self.cursor, bytes) }
        self.cursor += bytes.len();
    }

    /// The next `len` bytes, which count as written: readers do not see them yet.
    ///
    /// # Panics
    /// When they do not fit: callers look at `remaining` first.
    #[inline]
    pub(crate) fn space(&mut self, len: usize) -> &mut [u8] {
        let segment = &*self.segment;
        assert!(len <= segment.capacity - self.cursor, "write beyond a segment");
        let start = segment.region.exclusive(segment.start + self.cursor, len);
        self.cursor += len;
        // SAFETY: as in `write`, and for as long as the slice lives: it borrows the only writer.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }

    /// Makes everything written so far visible to readers.
    #[inline]
    pub(crate) fn publish(&self) {
        // Pairs with the Acquire in `published`.
        #[cfg(not(broken_publish_relaxed))]
        let order = Ordering::Release;
        #[cfg(broken_publish_relaxed)]
        let order = Ordering::Relaxed;
        self.segment.published.store(self.cursor, order);
    }

    /// Has the cache lines at hand that the next writes of `length` bytes will need, some way ahead:
    /// a lock that is released waits for every store before it.
    #[inline]
    pub(crate) fn prepare(&self, length: usize) {
        let from = self.segment.start + self.cursor + AHEAD;
        let mut at = from;
        while at < from + length.min(MOST) {
            self.segment.region.expect(at);
            at += LINE;
        }
    }

    /// Zeroes everything behind what was written: bytes of an earlier life, or of a torn append.
    pub(crate) fn zero_rest(&mut self) {
        let (segment, from) = (&*self.segment, self.cursor);
        for at in (from..segment.capacity).step_by(ZEROES.len()) {
            let len = (segment.capacity - at).min(ZEROES.len());
            // SAFETY: above `published` and within the segment, as in `write`.
            unsafe { segment.region.write_shared(segment.start + at, &ZEROES[..len]) }
        }
    }

    /// Copies bytes at or above the cursor, `at` bytes from it: what another process may be writing.
    ///
    /// # Panics
    /// When they are not there: callers look at `remaining` first.
    pub(crate) fn copy_ahead(&self, at: usize, out: &mut [u8]) {
        assert!(out.len() <= self.remaining().saturating_sub(at), "copy beyond a segment");
        let segment = &*self.segment;
        // SAFETY: at or above `published` in this segment (S1): of this process the one writer
        // alone could write there (S2), and it is borrowed.
        unsafe { segment.region.copy_to(segment.start + self.cursor + at, out) }
    }

    /// Counts the next `len` bytes as written, whatever they hold.
    pub(crate) fn skip(&mut self, len: usize) {
        self.cursor += len.min(self.remaining());
    }

    /// Counts the rest as written, whatever it holds.
    pub(crate) fn skip_rest(&mut self) {
        self.cursor = self.segment.capacity;
    }

    /// The next byte to be written.
    #[inline]
    pub(crate) fn cursor(&self) -> usize {
        self.cursor
    }

    #[inline]
    pub(crate) fn remaining(&self) -> usize {
        self.segment.capacity - self.cursor
    }

    #[inline]
    pub(crate) fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }
}

/// Cuts a region into segments from its front to its end.
#[derive(Debug)]
pub(crate) struct Carver {
    region: Arc<Region>,
    next: usize,
}

impl Carver {
    pub(crate) fn new(region: Region) -> Self {
        Self { region: Arc::new(region), next: 0 }
    }

    /// How many bytes there were to begin with.
    pub(crate) fn len(&self) -> usize {
        self.region.len()
    }

    /// How many bytes are not carved yet.
    pub(crate) fn left(&self) -> usize {
        self.region.len() - self.next
    }

    /// Looks at bytes that are not carved yet; `range` counts from the end of the carved part.
    pub(crate) fn peek(&mut self, range: Range<usize>) -> Option<&[u8]> {
        let range = self.next.checked_add(range.start)?..self.next.checked_add(range.end)?;
        if range.end > self.region.len() || range.start > range.end {
            return None;
        }
        // SAFETY: what is not carved belongs to the carver alone (S1), and `&mut self` keeps it
        // from being carved or written while the slice lives.
        Some(unsafe { self.region.read_shared(range) })
    }

    /// Writes over bytes that are not carved yet; `at` counts from the end of the carved part.
    ///
    /// # Panics
    /// When they are not there.
    pub(crate) fn patch(&mut self, at: usize, bytes: &[u8]) {
        assert!(bytes.len() <= self.left().saturating_sub(at), "patch beyond a region");
        // SAFETY: as in `peek`; `bytes` is not a slice of this region, since `&mut self` ends those.
        unsafe { self.region.write_shared(self.next + at, bytes) }
    }

    /// A handle that makes all segments of the region durable at once.
    pub(crate) fn backing(&self) -> Backing {
        Backing(self.region.clone())
    }

    /// Carves the next `len` bytes, of which the first `filled` are in place and published.
    pub(crate) fn carve(&mut self, len: usize, filled: usize) -> Option<SegmentWriter> {
        if len > self.left() || filled > len {
            return None;
        }
        let segment = Segment {
            region: self.region.clone(),
            start: self.next,
            capacity: len,
            published: AtomicUsize::new(filled),
            // Large claims begin where large pages do, unless smaller ones came before.
            populated: AtomicUsize::new(filled - filled % LARGE_PAGE),
        };
        self.next += len;
        Some(SegmentWriter { segment: Arc::new(segment), cursor: filled })
    }
}

/// What lies under the segments of one carver.
#[derive(Clone, Debug)]
pub(crate) struct Backing(Arc<Region>);

impl Backing {
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.0.sync(0..self.0.len())
    }
}

/// Takes a segment back for another life, unless somebody still refers to it (S5).
///
/// Returns a writer at its start. The old bytes stay in place until they are written over.
pub(crate) fn recycle(segment: Arc<Segment>) -> Result<SegmentWriter, Arc<Segment>> {
    #[cfg(not(broken_reuse_held))]
    let old = Arc::try_unwrap(segment)?;
    #[cfg(broken_reuse_held)]
    let old = &*segment;
    let segment = Segment {
        region: old.region.clone(),
        start: old.start,
        capacity: old.capacity,
        published: AtomicUsize::new(0),
        // The pages are warm: they stay mapped and dirty-able.
        populated: AtomicUsize::new(old.capacity),
    };
    Ok(SegmentWriter { segment: Arc::new(segment), cursor: 0 })
}

/// How far ahead of the cursor, and how many bytes at most, `prepare` looks.
const AHEAD: usize = 1024;
const MOST: usize = 4096;
/// Bytes that a processor fetches at once.
const LINE: usize = 64;
const ZEROES: [u8; 4096] = [0; 4096];
const LARGE_PAGE: usize = 2 << 20;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn readers_see_only_what_is_published() {
        let mut writer = Carver::new(Region::heap(64)).carve(64, 0).unwrap();
        let segment = writer.segment().clone();
        writer.write(b"abcd");
        assert_eq!(segment.read(0..1), None);
        writer.publish();
        assert_eq!(segment.read(1..3), Some(&b"bc"[..]));
        assert_eq!(segment.read(0..5), None);
    }

    #[test]
    fn carved_segments_do_not_overlap() {
        let mut carver = Carver::new(Region::heap(24));
        let mut a = carver.carve(8, 0).unwrap();
        let mut b = carver.carve(16, 0).unwrap();
        assert!(carver.carve(1, 0).is_none());
        a.write(&[1; 8]);
        b.write(&[2; 16]);
        a.publish();
        b.publish();
        assert_eq!(a.segment().read(0..8), Some(&[1; 8][..]));
        assert_eq!(b.segment().read(0..16), Some(&[2; 16][..]));
    }

    #[test]
    fn a_segment_is_recycled_only_when_nobody_refers_to_it() {
        let writer = Carver::new(Region::heap(8)).carve(8, 8).unwrap();
        let reader = writer.segment().clone();
        let segment = writer.segment().clone();
        drop(writer);
        let segment = recycle(segment).unwrap_err();
        assert!(reader.read(0..8).is_some());
        drop(reader);
        assert_eq!(recycle(segment).unwrap().cursor(), 0);
    }

    #[test]
    #[should_panic(expected = "write beyond a segment")]
    fn a_write_beyond_the_segment_panics_instead_of_touching_its_neighbour() {
        let mut carver = Carver::new(Region::heap(16));
        let mut writer = carver.carve(8, 0).unwrap();
        writer.write(&[0; 9]);
    }
}
