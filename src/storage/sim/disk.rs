//! A simulated disk: its files, their names now and durably, and the calls that change them.

use super::fault::{FaultPlan, Faults, StorageCall, StorageFault};
use super::image::Image;
use super::inode::Inode;
use crate::random::Random;
use crate::storage::folder_of;
use crate::sync::Arc;
use std::collections::BTreeMap;
use std::io;

/// Names of one folder.
pub(super) type Names = BTreeMap<String, u64>;

/// A folder: what it lists, what it would list after a loss of power, and what has happened between.
#[derive(Clone, Debug, Default)]
pub(super) struct Folder {
    pub(super) live: Names,
    pub(super) durable: Names,
    pub(super) unsynced: Vec<Renaming>,
}

/// A change of names; each is done or not done as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Renaming {
    Create { name: String, inode: u64 },
    Rename { from: String, to: String, inode: u64 },
    Unlink { name: String },
}

impl Renaming {
    pub(super) fn apply(&self, names: &mut Names) {
        match self {
            Self::Create { name, inode } => drop(names.insert(name.clone(), *inode)),
            Self::Rename { from, to, inode } => {
                names.remove(from);
                names.insert(to.clone(), *inode);
            }
            Self::Unlink { name } => drop(names.remove(name)),
        }
    }

    /// The file that gets a name.
    fn names(&self) -> Option<(&String, u64)> {
        match self {
            Self::Create { name, inode } | Self::Rename { to: name, inode, .. } => {
                Some((name, *inode))
            }
            Self::Unlink { .. } => None,
        }
    }
}

impl Folder {
    fn change(&mut self, renaming: Renaming) {
        renaming.apply(&mut self.live);
        self.unsynced.push(renaming);
    }
}

/// All that is on a disk, and what is done to it.
#[derive(Debug, Default)]
pub(super) struct Disk {
    /// By name; the top one has none.
    pub(super) folders: BTreeMap<String, Folder>,
    pub(super) inodes: BTreeMap<u64, Inode>,
    next_inode: u64,
    pub(super) locked: bool,
    /// Changes with every loss of power.
    pub(super) boot: u64,
    pub(super) random: Random,
    pub(super) faults: Faults,
    /// Power goes when so many calls have been made.
    pub(super) cut_after: Option<u64>,
    /// What the disk was when power went: since then every call fails.
    pub(super) lost: Option<Box<Self>>,
}

impl Disk {
    pub(super) fn new(seed: u64) -> Self {
        let mut disk = Self { random: Random(seed), ..Self::default() };
        disk.folders.insert(String::new(), Folder::default());
        disk
    }

    /// The disk as the next process finds it: nothing is lost, nothing more is durable.
    pub(super) fn survivor(&self) -> io::Result<Self> {
        let inodes = self.inodes.iter().map(|(id, inode)| Ok((*id, inode.survivor()?)));
        Ok(Self {
            folders: self.folders.clone(),
            inodes: inodes.collect::<io::Result<_>>()?,
            next_inode: self.next_inode,
            boot: self.boot,
            random: self.random.clone(),
            ..Self::default()
        })
    }

    /// Begins a call: it may be the one before which power goes, or one that is made to fail.
    pub(super) fn begin(&mut self, call: StorageCall) -> io::Result<Option<StorageFault>> {
        if self.lost.is_none() && self.cut_after.is_some_and(|n| self.faults.calls(None) >= n) {
            self.lost = Some(Box::new(self.survivor()?));
        }
        if self.lost.is_some() {
            return Err(io::Error::other("power was cut"));
        }
        Ok(self.faults.pass(call))
    }

    /// As [`begin`](Self::begin), for a call that does nothing if it fails.
    pub(super) fn pass(&mut self, call: StorageCall) -> io::Result<()> {
        self.begin(call)?.map_or(Ok(()), |fault| Err(fault.error()))
    }

    pub(super) fn plan(&mut self, plan: Option<FaultPlan>) {
        self.faults.plan(plan);
    }

    pub(super) fn folder(&mut self, folder: &str) -> io::Result<&mut Folder> {
        self.folders.get_mut(folder).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// The file of that name.
    pub(super) fn find(&mut self, name: &str) -> io::Result<u64> {
        let found = self.folder(folder_of(name))?.live.get(base_of(name)).copied();
        found.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    pub(super) fn inode(&mut self, id: u64) -> io::Result<&mut Inode> {
        self.inodes.get_mut(&id).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// A file of `len` zeroes under `name`, which may be that of an older one.
    pub(super) fn create(&mut self, name: &str, len: usize) -> io::Result<u64> {
        if let Ok(id) = self.find(name) {
            self.inode(id)?.clear(len)?;
            return Ok(id);
        }
        self.folder(folder_of(name))?;
        let id = self.add(Inode::new(len));
        let created = Renaming::Create { name: base_of(name).to_owned(), inode: id };
        self.folder(folder_of(name))?.change(created);
        Ok(id)
    }

    pub(super) fn add(&mut self, inode: Inode) -> u64 {
        let id = self.next_inode;
        self.next_inode += 1;
        self.inodes.insert(id, inode);
        id
    }

    pub(super) fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        let inode = self.find(from)?;
        let (old, new) = (base_of(from).to_owned(), base_of(to).to_owned());
        self.folder(folder_of(from))?.change(Renaming::Rename { from: old, to: new, inode });
        Ok(())
    }

    pub(super) fn unlink(&mut self, name: &str) -> io::Result<()> {
        self.find(name)?;
        let unlinked = Renaming::Unlink { name: base_of(name).to_owned() };
        self.folder(folder_of(name))?.change(unlinked);
        Ok(())
    }

    /// Makes the names in a folder durable, and forgets files that nothing leads to any more.
    pub(super) fn sync_folder(&mut self, folder: &str) -> io::Result<()> {
        let folder = self.folder(folder)?;
        folder.durable = folder.live.clone();
        folder.unsynced.clear();
        let mut inodes = std::mem::take(&mut self.inodes);
        inodes.retain(|id, inode| {
            Arc::strong_count(&inode.opened) > 1 || self.name_of(*id).is_some()
        });
        self.inodes = inodes;
        Ok(())
    }

    /// The names of all files, sorted.
    pub(super) fn files(&self) -> Vec<String> {
        let names = self.folders.iter();
        names.flat_map(|(folder, names)| names.live.keys().map(|name| full(folder, name))).collect()
    }

    /// The name that a file has, had, or was to have; `None` if nothing can lead to it.
    pub(super) fn name_of(&self, inode: u64) -> Option<String> {
        let names = self.folders.iter().flat_map(|(folder, names)| {
            let changed = names.unsynced.iter().filter_map(Renaming::names);
            let named = names.live.iter().chain(&names.durable).map(|(name, id)| (name, *id));
            named.chain(changed).map(move |(name, id)| (folder, name, id))
        });
        let mut of_inode = names.filter(|(_, _, id)| *id == inode);
        of_inode.next().map(|(folder, name, _)| full(folder, name))
    }

    /// Puts a file there that is durable.
    pub(super) fn place(&mut self, name: &str, content: Vec<u8>) {
        let image = Image::new(content);
        let id = self.add(Inode::with(image.clone(), image));
        let folder = self.folders.entry(folder_of(name).to_owned()).or_default();
        folder.live.insert(base_of(name).to_owned(), id);
        folder.durable.insert(base_of(name).to_owned(), id);
    }
}

/// The name of a file in a folder.
pub(super) fn full(folder: &str, name: &str) -> String {
    if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") }
}

/// The part of a name behind its folder.
pub(super) fn base_of(name: &str) -> &str {
    &name[name.rfind('/').map_or(0, |slash| slash + 1)..]
}
