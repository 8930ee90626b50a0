//! A stretch of raw memory: a mapped file, or the heap.
//!
//! A region by itself is safe to use through `&self` for reading and `&mut self` for writing.
//! [`Segment`](super::segment::Segment) shares one between a writer and readers, through the two
//! unsafe methods here and under the invariants of its module.
//!
//! Invariants:
//! - R1 `start` points to `len` readable bytes, writable unless lent, for as long as the owner lives;
//!   the owner lives as long as the region and is never moved out of it.
//! - R2 whoever writes to the memory reaches it through this region alone: the file is locked
//!   against other brokers, and its broker maps it once. A broker that was closed may still lend
//!   what it had published: a file of an earlier life is written to above that end only, and never
//!   recycled. Changes of a mapped file by foreign programs are outside the contract of the crate,
//!   as for every mapped store.
//!   What is lent by another process is only read: a store into it would be a fatal signal. Records
//!   that the other process may still be writing are copied out, and believed once checked. Index
//!   blocks, which it may use again, are looked at in place: each word that is read is a hint of
//!   some value, and nothing relies on two looks being the same.
//! - R3 every access is bounds-checked here, in release builds too.

#![allow(unsafe_code)]
#![allow(clippy::disallowed_types)] // the door to mapped memory

use std::ops::Range;

/// Readable and writable memory of fixed length.
pub(crate) struct Region {
    start: *mut u8,
    len: usize,
    owner: Owner,
    /// Asked before every sync, which fails if it does.
    #[cfg(any(test, feature = "testing"))]
    before_sync: Option<Box<BeforeSync>>,
    /// Told what is faulted in.
    #[cfg(all(test, loom))]
    pub(crate) on_populate: Option<Box<dyn Fn(Range<usize>) + Send + Sync>>,
    #[cfg(all(test, loom))]
    cells: Vec<loom::cell::UnsafeCell<()>>,
}

#[cfg(any(test, feature = "testing"))]
type BeforeSync = dyn Fn(Range<usize>) -> std::io::Result<()> + Send + Sync;

enum Owner {
    Nothing,
    Mapped(memmap2::MmapRaw),
    /// For reading alone, with the file that keeps its owner from using it for anything else.
    Lent(#[allow(dead_code)] memmap2::MmapRaw, #[allow(dead_code)] std::fs::File),
    #[cfg(test)]
    // Words, so that a region is at least 8-byte aligned like a mapping.
    Heap(#[allow(dead_code)] Box<[std::cell::UnsafeCell<u64>]>),
}

// SAFETY: R1 holds on any thread: neither owner is bound to the thread that made it.
unsafe impl Send for Region {}
// SAFETY: `&self` gives reads only, or the unsafe methods whose callers order the accesses (R2).
unsafe impl Sync for Region {}

impl Region {
    /// A region over a mapped file.
    pub(super) fn mapped(map: memmap2::MmapRaw) -> Self {
        let (start, len) = (map.as_mut_ptr(), map.len());
        Self::new(start, len, Owner::Mapped(map))
    }

    /// A region over a file that belongs to another process and was mapped for reading alone;
    /// `file` is what holds the lock.
    pub(super) fn lent(map: memmap2::MmapRaw, file: std::fs::File) -> Self {
        let (start, len) = (map.as_mut_ptr(), map.len());
        Self::new(start, len, Owner::Lent(map, file))
    }

    /// A region without bytes.
    pub(super) fn empty() -> Self {
        Self::new(std::ptr::NonNull::dangling().as_ptr(), 0, Owner::Nothing)
    }

    /// A zeroed region on the heap.
    #[cfg(test)]
    pub(crate) fn heap(len: usize) -> Self {
        let words: Box<[std::cell::UnsafeCell<u64>]> =
            (0..len.div_ceil(8)).map(|_| std::cell::UnsafeCell::new(0)).collect();
        let start = words.as_ptr().cast_mut().cast::<u8>();
        Self::new(start, len, Owner::Heap(words))
    }

    fn new(start: *mut u8, len: usize, owner: Owner) -> Self {
        Self {
            start,
            len,
            owner,
            #[cfg(any(test, feature = "testing"))]
            before_sync: None,
            #[cfg(all(test, loom))]
            on_populate: None,
            #[cfg(all(test, loom))]
            cells: (0..len).map(|_| loom::cell::UnsafeCell::new(())).collect(),
        }
    }

    /// Lets `before` see every sync, and fail it.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn with_sync(
        mut self,
        before: impl Fn(Range<usize>) -> std::io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        self.before_sync = Some(Box::new(before));
        self
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Copies `bytes` to `at`.
    pub(crate) fn write(&mut self, at: usize, bytes: &[u8]) {
        // SAFETY: `&mut self` excludes every other access (R2).
        unsafe { self.write_shared(at, bytes) }
    }

    /// The bytes of `range`.
    pub(crate) fn bytes(&mut self, range: Range<usize>) -> &[u8] {
        // SAFETY: `&mut self` excludes every writer while the slice lives.
        unsafe { self.read_shared(range) }
    }

    /// Copies `bytes` to `at` while others may read elsewhere in the region.
    ///
    /// # Safety
    /// No other thread accesses the written range during the call, and no slice of it is alive.
    #[inline]
    pub(super) unsafe fn write_shared(&self, at: usize, bytes: &[u8]) {
        self.check(at, bytes.len());
        self.note_write(&(at..at + bytes.len()));
        // SAFETY: in bounds by the check (R1, R3), not overlapping `bytes` because no slice of
        // the range is alive, and unshared by the caller's promise.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(at), bytes.len());
        }
    }

    /// Where the `len` bytes at `at` stand, for whoever has them to himself.
    #[inline]
    pub(super) fn exclusive(&self, at: usize, len: usize) -> *mut u8 {
        self.check(at, len);
        self.note_write(&(at..at + len));
        self.start.wrapping_add(at)
    }

    /// Asks the processor for the cache line at `at`; without effect outside of the region.
    #[inline]
    pub(super) fn expect(&self, at: usize) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
            // SAFETY: a prefetch reads and writes nothing, whatever its address is.
            unsafe { _mm_prefetch::<_MM_HINT_ET0>(self.start.wrapping_add(at).cast()) }
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = at;
    }

    /// The bytes of `range` while others may write elsewhere in the region.
    ///
    /// # Safety
    /// Nobody writes to `range` while the slice lives.
    #[inline]
    pub(super) unsafe fn read_shared(&self, range: Range<usize>) -> &[u8] {
        self.check(range.start, range.len());
        self.note_read(&range);
        // SAFETY: in bounds by the check (R1, R3), initialised (files and heap are), and
        // unchanged by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.start.add(range.start), range.len()) }
    }

    /// Copies the bytes from `at` on to `out`, while another process may be writing them.
    ///
    /// # Safety
    /// No thread of this process writes to them meanwhile.
    pub(super) unsafe fn copy_to(&self, at: usize, out: &mut [u8]) {
        self.check(at, out.len());
        self.note_read(&(at..at + out.len()));
        // SAFETY: in bounds by the check (R1, R3), and not overlapping `out`, which is exclusive.
        // Bytes that another process writes meanwhile are bytes of some value (R2).
        unsafe { std::ptr::copy_nonoverlapping(self.start.add(at), out.as_mut_ptr(), out.len()) }
    }

    /// Makes `range` durable if the region is a mapped file.
    pub(super) fn sync(&self, range: Range<usize>) -> std::io::Result<()> {
        self.check(range.start, range.len());
        #[cfg(any(test, feature = "testing"))]
        self.before_sync.as_ref().map_or(Ok(()), |before| before(range.clone()))?;
        match &self.owner {
            Owner::Mapped(map) => {
                detach(map, &range);
                map.flush_range(range.start, range.len())
            }
            Owner::Nothing | Owner::Lent(..) => Ok(()),
            #[cfg(test)]
            Owner::Heap(_) => Ok(()),
        }
    }

    /// Takes the whole pages of a long range out of the page table, before they are written back.
    pub(super) fn detach(&self, range: Range<usize>) {
        self.check(range.start, range.len());
        match &self.owner {
            Owner::Mapped(map) => detach(map, &range),
            Owner::Nothing | Owner::Lent(..) => {}
            #[cfg(test)]
            Owner::Heap(_) => {}
        }
    }

    /// Faults the pages of `range` in for writing. Only a matter of speed: refusals are ignored.
    pub(super) fn populate(&self, range: Range<usize>) {
        self.check(range.start, range.len());
        #[cfg(all(test, loom))]
        self.on_populate.iter().for_each(|tell| tell(range.clone()));
        match &self.owner {
            Owner::Mapped(map) => {
                let _ = map.advise_range(memmap2::Advice::PopulateWrite, range.start, range.len());
            }
            Owner::Nothing | Owner::Lent(..) => {}
            #[cfg(test)]
            Owner::Heap(_) => {}
        }
    }

    /// Asks for large pages from now on. Only a matter of speed: refusals are ignored.
    pub(crate) fn prefer_large_pages(&self) {
        if let Owner::Mapped(map) = &self.owner {
            let _ = map.advise(memmap2::Advice::HugePage);
        }
    }

    #[inline]
    fn check(&self, at: usize, len: usize) {
        let end = at.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.len), "access outside of a region");
    }

    // Under loom every byte has a cell, so that an access which races another is reported.
    #[cfg(all(test, loom))]
    fn note_write(&self, range: &Range<usize>) {
        self.cells[range.clone()].iter().for_each(|cell| cell.with_mut(|_| ()));
    }

    #[cfg(all(test, loom))]
    fn note_read(&self, range: &Range<usize>) {
        self.cells[range.clone()].iter().for_each(|cell| cell.with(|_| ()));
    }

    #[cfg(not(all(test, loom)))]
    #[inline(always)]
    fn note_write(&self, _: &Range<usize>) {}

    #[cfg(not(all(test, loom)))]
    #[inline(always)]
    fn note_read(&self, _: &Range<usize>) {}
}

/// Takes the whole pages of a long range out of the page table before they are written back.
///
/// Write-back protects every page that it finds there, and tells each core that runs the process
/// so, one page at a time; a producer on such a core loses a third of its speed to that. Out of the
/// table all at once, the pages cost one such message, and readers map them again sixteen at a time.
fn detach(map: &memmap2::MmapRaw, range: &Range<usize>) {
    const PAGE: usize = 4096;
    const LONG: usize = 1 << 20;
    let whole = range.start.next_multiple_of(PAGE)..range.end / PAGE * PAGE;
    if whole.len() >= LONG {
        // SAFETY: the mapping is a shared one of a file, so the pages stay in the page cache with
        // what was written to them: the memory of R1 remains, and keeps its content.
        let done = unsafe {
            let advice = memmap2::UncheckedAdvice::DontNeed;
            map.unchecked_advise_range(advice, whole.start, whole.len())
        };
        // Only a matter of speed.
        let _ = done;
    }
}

/// Starts writing `range` of a file to the disk, what was stored through a mapping included, and
/// does not wait for it (`msync` has a flag for that, which Linux ignores).
pub(super) fn start_write_back(file: &std::fs::File, range: Range<u64>) -> std::io::Result<()> {
    use std::os::fd::AsRawFd;
    let offset = |at: u64| i64::try_from(at).unwrap_or(i64::MAX);
    let (start, len) = (offset(range.start), offset(range.end.saturating_sub(range.start)));
    // SAFETY: the call takes numbers only and touches no memory of this process; the descriptor is
    // open, because `file` is borrowed.
    let started =
        unsafe { libc::sync_file_range(file.as_raw_fd(), start, len, libc::SYNC_FILE_RANGE_WRITE) };
    if started == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    match error.raw_os_error() {
        // A file system that does not know it has nothing to start.
        Some(libc::ENOSYS | libc::EINVAL | libc::ESPIPE | libc::EOPNOTSUPP | libc::EPERM) => Ok(()),
        _ => Err(error),
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Region").field("len", &self.len).finish_non_exhaustive()
    }
}
