//! The bytes of a file at some moment, and how two of them differ.

use crate::sync::Arc;
use std::ops::Range;

/// Bytes of a page: what a disk gets as one piece, if it is not torn.
pub(super) const PAGE: usize = 4096;

/// The content of a file; clones share it until one is changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Image(Arc<Vec<u8>>);

impl Image {
    pub(super) fn new(bytes: Vec<u8>) -> Self {
        Self(Arc::new(bytes))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn bytes_mut(&mut self) -> &mut Vec<u8> {
        Arc::make_mut(&mut self.0)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The bytes of a page, fewer at the end of the file and none behind it.
    pub(super) fn page(&self, page: usize) -> &[u8] {
        let start = (page * PAGE).min(self.len());
        &self.0[start..(start + PAGE).min(self.len())]
    }

    /// Copies those bytes of a page from `other` that lie in `range` and in this file; zeroes for
    /// what `other` does not have.
    pub(super) fn take(&mut self, other: &Self, page: usize, range: Range<usize>) {
        let start = page * PAGE + range.start;
        let end = (page * PAGE + range.end).min(self.len());
        if start < end {
            let bytes = &mut self.bytes_mut()[start..end];
            let there = other.bytes().get(start..end.min(other.len())).unwrap_or_default();
            bytes[..there.len()].copy_from_slice(there);
            bytes[there.len()..].fill(0);
        }
    }

    /// The pages in which two images differ, if what is behind the end of a file counts as zero.
    pub(super) fn differing(&self, other: &Self) -> Vec<usize> {
        if Arc::ptr_eq(&self.0, &other.0) {
            return Vec::new();
        }
        let pages = self.len().max(other.len()).div_ceil(PAGE);
        (0..pages).filter(|page| !same(self.page(*page), other.page(*page))).collect()
    }
}

/// Whether two pieces are the same, if what is behind the end of one counts as zero.
pub(super) fn same(a: &[u8], b: &[u8]) -> bool {
    let common = a.len().min(b.len());
    let rest = if a.len() > common { &a[common..] } else { &b[common..] };
    a[..common] == b[..common] && rest.iter().all(|byte| *byte == 0)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn images_differ_by_pages_and_bytes_behind_the_end_are_zero() {
        let old = Image::new(vec![1; PAGE + 10]);
        assert_eq!(old.differing(&old.clone()), [0; 0]);
        let mut new = old.clone();
        new.bytes_mut().resize(3 * PAGE, 0);
        assert_eq!(new.differing(&old), [0; 0]);
        new.bytes_mut()[PAGE + 10] = 1;
        new.bytes_mut()[3 * PAGE - 1] = 1;
        assert_eq!(new.differing(&old), [1, 2]);
        assert_eq!(old.differing(&new), [1, 2]);
        let mut part = old.clone();
        part.take(&new, 1, 0..PAGE);
        assert_eq!(part, old);
        part.bytes_mut().resize(3 * PAGE, 0);
        part.take(&new, 2, 0..PAGE / 2);
        assert_eq!(part.differing(&new), [1, 2]);
        part.take(&new, 2, PAGE / 2..PAGE);
        part.take(&new, 1, 0..512);
        assert_eq!(part, new);
    }
}
