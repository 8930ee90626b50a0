//! One file of a simulated disk: what it holds now, and what of that is durable.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // the door to mapping files

use super::image::{Image, PAGE, same};
use crate::sync::Arc;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// A file, whatever names it has.
#[derive(Debug)]
pub(super) struct Inode {
    live: Live,
    pub(super) durable: Image,
    /// Pages that a failed sync has left behind as clean, as they were then: the next sync does
    /// not write them, unless they have been changed since.
    forgotten: BTreeMap<usize, Vec<u8>>,
    /// Shared with whoever has the file open.
    pub(super) opened: Arc<()>,
}

#[derive(Debug)]
enum Live {
    Image(Image),
    /// A file in memory stands in for the page cache: what is stored into its mapping and what is
    /// written to it meet, as in a real file, and it can be read while others store.
    Mapped(File),
}

impl Inode {
    /// A file of `len` zeroes, nothing of which is durable.
    pub(super) fn new(len: usize) -> Self {
        Self::with(Image::new(vec![0; len]), Image::default())
    }

    pub(super) fn with(live: Image, durable: Image) -> Self {
        let live = Live::Image(live);
        Self { live, durable, forgotten: BTreeMap::new(), opened: Arc::new(()) }
    }

    /// The same file, as the next process finds it.
    pub(super) fn survivor(&self) -> io::Result<Self> {
        let forgotten = self.forgotten.clone();
        Ok(Self { forgotten, ..Self::with(self.now()?, self.durable.clone()) })
    }

    /// What it holds now.
    pub(super) fn now(&self) -> io::Result<Image> {
        match &self.live {
            Live::Image(image) => Ok(image.clone()),
            Live::Mapped(file) => {
                let mut bytes = vec![0; self.len()?];
                file.read_exact_at(&mut bytes, 0)?;
                Ok(Image::new(bytes))
            }
        }
    }

    pub(super) fn len(&self) -> io::Result<usize> {
        match &self.live {
            Live::Image(image) => Ok(image.len()),
            Live::Mapped(file) => usize::try_from(file.metadata()?.len()).map_err(io::Error::other),
        }
    }

    pub(super) fn read_at(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        match &self.live {
            Live::Image(image) => {
                let at = usize::try_from(at).map_err(io::Error::other)?;
                let there = image.bytes().get(at..at.saturating_add(bytes.len()));
                bytes.copy_from_slice(there.ok_or(io::ErrorKind::UnexpectedEof)?);
                Ok(())
            }
            Live::Mapped(file) => file.read_exact_at(bytes, at),
        }
    }

    pub(super) fn write_at(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        // Written they are dirty, whatever they were.
        let range = Some(at as usize..at as usize + bytes.len());
        self.forgotten.retain(|page, _| !touches(&range, *page));
        match &mut self.live {
            Live::Image(image) => {
                let at = usize::try_from(at).map_err(io::Error::other)?;
                let content = image.bytes_mut();
                content.resize(content.len().max(at + bytes.len()), 0);
                content[at..at + bytes.len()].copy_from_slice(bytes);
                Ok(())
            }
            Live::Mapped(file) => file.write_all_at(bytes, at),
        }
    }

    /// Sets the length: zeroes are added, or the end is cut off.
    pub(super) fn resize(&mut self, len: usize) -> io::Result<()> {
        match &mut self.live {
            Live::Image(image) => image.bytes_mut().resize(len, 0),
            Live::Mapped(file) => file.set_len(len as u64)?,
        }
        Ok(())
    }

    /// Replaces all of the content by `len` zeroes.
    pub(super) fn clear(&mut self, len: usize) -> io::Result<()> {
        self.resize(0)?;
        self.resize(len)
    }

    pub(super) fn map(&mut self) -> io::Result<memmap2::MmapRaw> {
        if let Live::Image(image) = &self.live {
            use rustix::fs::{MemfdFlags, memfd_create};
            let file = File::from(memfd_create("rocklet-simulated", MemfdFlags::CLOEXEC)?);
            file.set_len(image.len() as u64)?;
            let used = image.bytes().iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
            file.write_all_at(&image.bytes()[..used], 0)?;
            self.live = Live::Mapped(file);
        }
        match &self.live {
            Live::Mapped(file) => memmap2::MmapOptions::new().map_raw(file),
            Live::Image(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Makes the length and the pages that `range` touches durable; with `None` all pages.
    pub(super) fn sync(&mut self, range: Option<Range<usize>>) -> io::Result<()> {
        let now = self.now()?;
        let pages = now.differing(&self.durable);
        if self.durable.len() != now.len() {
            self.durable.bytes_mut().resize(now.len(), 0);
        }
        for page in pages.into_iter().filter(|page| touches(&range, *page)) {
            let forgotten = self.forgotten.get(&page);
            if forgotten.is_some_and(|bytes| same(bytes, now.page(page))) {
                continue;
            }
            self.forgotten.remove(&page);
            self.durable.take(&now, page, 0..PAGE);
        }
        Ok(())
    }

    /// A sync that fails: the pages count as clean from now on.
    pub(super) fn fail_sync(&mut self, range: Option<Range<usize>>) -> io::Result<()> {
        let now = self.now()?;
        for page in now.differing(&self.durable) {
            if touches(&range, page) {
                self.forgotten.insert(page, now.page(page).to_vec());
            }
        }
        Ok(())
    }
}

fn touches(range: &Option<Range<usize>>, page: usize) -> bool {
    range.as_ref().is_none_or(|range| range.start < (page + 1) * PAGE && range.end > page * PAGE)
}
