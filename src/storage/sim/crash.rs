//! A loss of power: what was not synced may be on the disk or not, each change by itself.

use super::SimulatedStorage;
use super::disk::{Disk, Renaming, full};
use super::image::{Image, PAGE};
use super::inode::Inode;
use crate::random::Random;
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// A change that was not synced when power went (feature `testing`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// A page of 4096 bytes that was written to, or stored to through a mapping.
    Page {
        /// The file.
        file: String,
        /// The number of the page.
        page: u64,
    },
    /// A file got longer or shorter.
    Length {
        /// The file.
        file: String,
        /// The length that is durable.
        from: u64,
        /// The length before power went.
        to: u64,
    },
    /// A file got its name.
    Created {
        /// The file.
        file: String,
    },
    /// A file got another name. It has either, never both.
    Renamed {
        /// The name before.
        from: String,
        /// The new name, perhaps that of another file until then.
        to: String,
    },
    /// A file lost its name.
    Removed {
        /// The file.
        file: String,
    },
}

/// What becomes of a [`Change`] when power goes (feature `testing`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fate {
    /// The disk has what was there before.
    Lost,
    /// The disk has it.
    Kept,
    /// The page is torn: its first bytes are new, this many of 4096, the rest is old. Of any other
    /// change as `Lost`.
    Front(u16),
    /// The page is torn: those of its eight sectors of 512 bytes are new whose bit is set. Of any
    /// other change as `Lost`.
    Sectors(u8),
}

/// A disk at the moment when power went (feature `testing`); see
/// [`SimulatedStorage::crash`]. Two are equal if the same can come of them.
#[derive(Debug)]
pub struct Crash {
    disk: Disk,
    changes: Vec<(Change, Part)>,
}

#[derive(Clone, Debug)]
enum Part {
    Page { inode: u64, page: usize },
    Length { inode: u64, len: usize },
    Name { folder: String, renaming: Renaming },
}

impl Crash {
    pub(super) fn new(disk: &Disk) -> io::Result<Self> {
        let disk = disk.lost.as_deref().unwrap_or(disk).survivor()?;
        let mut changes = Vec::new();
        for (folder, names) in &disk.folders {
            let full = |name: &String| full(folder, name);
            for renaming in &names.unsynced {
                let change = match renaming {
                    Renaming::Create { name, .. } => Change::Created { file: full(name) },
                    Renaming::Rename { from, to, .. } => {
                        Change::Renamed { from: full(from), to: full(to) }
                    }
                    Renaming::Unlink { name } => Change::Removed { file: full(name) },
                };
                let (folder, renaming) = (folder.clone(), renaming.clone());
                changes.push((change, Part::Name { folder, renaming }));
            }
        }
        for (&inode, content) in &disk.inodes {
            let Some(file) = disk.name_of(inode) else { continue };
            let (now, durable) = (content.now()?, &content.durable);
            if now.len() != durable.len() {
                let (from, to) = (durable.len() as u64, now.len() as u64);
                let change = Change::Length { file: file.clone(), from, to };
                changes.push((change, Part::Length { inode, len: now.len() }));
            }
            for page in now.differing(durable) {
                let change = Change::Page { file: file.clone(), page: page as u64 };
                changes.push((change, Part::Page { inode, page }));
            }
        }
        Ok(Self { disk, changes })
    }

    /// The changes that were not synced. Any of them may be lost.
    pub fn changes(&self) -> impl ExactSizeIterator<Item = &Change> {
        self.changes.iter().map(|(change, _)| change)
    }

    /// The disk after the machine has started again, with the fate that is chosen for each change,
    /// in the order of [`changes`](Self::changes).
    ///
    /// # Panics
    /// If the system refuses the memory.
    #[must_use]
    pub fn with(&self, mut fate: impl FnMut(&Change) -> Fate) -> SimulatedStorage {
        SimulatedStorage::of(self.after(&mut fate).expect("files in memory can be read"))
    }

    /// As [`with`](Self::with), with fates drawn by `seed`.
    #[must_use]
    pub fn at_random(&self, seed: u64) -> SimulatedStorage {
        let mut random = Random(seed);
        self.with(|_| match random.below(8) {
            0..3 => Fate::Lost,
            3..6 => Fate::Kept,
            6 => Fate::Front((random.below(PAGE as u64 / 8) * 8) as u16),
            _ => Fate::Sectors(random.next() as u8),
        })
    }

    fn after(&self, fate: &mut impl FnMut(&Change) -> Fate) -> io::Result<Disk> {
        let mut disk = self.disk.survivor()?;
        disk.boot += 1;
        for folder in disk.folders.values_mut() {
            folder.live.clone_from(&folder.durable);
            folder.unsynced.clear();
        }
        let old = disk.inodes.iter().map(|(id, inode)| (*id, inode.durable.clone()));
        let mut images: BTreeMap<u64, Image> = old.collect();
        let mut lengths = BTreeMap::new();
        for (change, part) in &self.changes {
            match (part, fate(change)) {
                (_, Fate::Lost) => {}
                (Part::Name { folder, renaming }, Fate::Kept) => {
                    let folder = disk.folders.entry(folder.clone()).or_default();
                    renaming.apply(&mut folder.live);
                }
                (Part::Length { inode, len }, Fate::Kept) => drop(lengths.insert(*inode, *len)),
                (Part::Page { inode, page }, fate) => {
                    if let (Some(image), Some(inode)) =
                        (images.get_mut(inode), disk.inodes.get(inode))
                    {
                        apply(image, &inode.now()?, *page, fate);
                    }
                }
                _ => {}
            }
        }
        let folders = disk.folders.values_mut();
        folders.for_each(|folder| folder.durable.clone_from(&folder.live));
        let named: BTreeSet<u64> =
            disk.folders.values().flat_map(|folder| folder.live.values().copied()).collect();
        images.retain(|id, _| named.contains(id));
        // Lengths come last: what a file has lost at its end takes its pages along.
        let inodes = images.into_iter().map(|(id, mut image)| {
            let durable = self.disk.inodes.get(&id).map_or(0, |inode| inode.durable.len());
            let len = lengths.get(&id).copied().unwrap_or(durable);
            if image.len() != len {
                image.bytes_mut().resize(len, 0);
            }
            (id, Inode::with(image.clone(), image))
        });
        disk.inodes = inodes.collect();
        Ok(disk)
    }
}

impl PartialEq for Crash {
    fn eq(&self, other: &Self) -> bool {
        let (a, b) = (&self.disk, &other.disk);
        let same = |a: &Inode, b: &Inode| {
            a.durable == b.durable && a.now().is_ok_and(|now| b.now().is_ok_and(|b| now == b))
        };
        self.changes().eq(other.changes())
            && a.folders.keys().eq(b.folders.keys())
            && a.folders.values().zip(b.folders.values()).all(|(a, b)| a.durable == b.durable)
            && a.inodes.keys().eq(b.inodes.keys())
            && a.inodes.values().zip(b.inodes.values()).all(|(a, b)| same(a, b))
    }
}

/// Brings as much of a page to the disk as its fate says.
fn apply(image: &mut Image, now: &Image, page: usize, fate: Fate) {
    const SECTOR: usize = 512;
    if image.len() < now.len() {
        image.bytes_mut().resize(now.len(), 0);
    }
    match fate {
        Fate::Lost => {}
        Fate::Kept => image.take(now, page, 0..PAGE),
        Fate::Front(bytes) => image.take(now, page, 0..usize::from(bytes).min(PAGE)),
        Fate::Sectors(chosen) => {
            for sector in (0..PAGE / SECTOR).filter(|sector| chosen & (1 << sector) != 0) {
                image.take(now, page, sector * SECTOR..(sector + 1) * SECTOR);
            }
        }
    }
}
