//! A directory in memory that can fail and lose power.
//!
//! ```text
//! mod     what users and the store hold        crash   what a loss of power leaves
//! disk    files and names, now and durably     fault   calls that are made to fail
//! inode   one file                             image   its bytes, by pages
//! ```

mod crash;
mod disk;
mod fault;
mod image;
mod inode;
#[cfg(all(test, not(loom)))]
mod tests;

pub use crash::{Change, Crash, Fate};
#[cfg(all(test, not(loom)))]
pub(crate) use fault::Faults;
pub use fault::{FaultPlan, StorageCall, StorageFault};

use super::{Region, Storage, StorageFile};
use crate::sync::{Arc, Mutex, Rank};
use disk::Disk;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A directory in memory, for tests of what happens when calls fail, when the process is killed
/// and when power goes (feature `testing`). Clones are the same directory.
///
/// Of every file it keeps what it holds and what of that has been made durable, page by page, and
/// of every folder the names likewise. A [`crash`](Self::crash) keeps any part of the difference.
///
/// ```
/// use rocklet::{Broker, DrivenClock, Fate, Flush, Message, SimulatedStorage};
///
/// let storage = SimulatedStorage::new(1);
/// let clock = DrivenClock::with_steps(1_700_000_000_000, 1);
/// let open = |storage: &SimulatedStorage| {
///     let builder = Broker::builder("data").storage(storage).clock(&clock);
///     builder.flush(Flush::EveryMessage).segment_bytes(64 << 10).open()
/// };
/// let broker = open(&storage)?;
/// broker.producer().send(&Message::new("orders", b"paid").queue(0))?;
///
/// // Power goes, and nothing is left of what was not synced.
/// let storage = storage.crash().with(|_| Fate::Lost);
/// let broker = open(&storage)?;
/// let queue = &broker.queues("orders")?[0];
/// assert_eq!(broker.max_offset(queue)?, 1, "what `send` returned for is durable");
/// # Ok::<_, rocklet::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct SimulatedStorage {
    disk: Arc<Mutex<Disk>>,
}

impl SimulatedStorage {
    /// Makes an empty directory; what is random in it comes from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::of(Disk::new(seed))
    }

    fn of(disk: Disk) -> Self {
        Self { disk: Arc::new(Mutex::new(Rank::Signal, disk)) }
    }

    /// Makes calls fail as `plan` says, instead of what was planned before.
    pub fn fail(&self, plan: FaultPlan) {
        self.disk.lock().plan(Some(plan));
    }

    /// Lets all calls succeed again. What failed meanwhile has failed.
    pub fn heal(&self) {
        self.disk.lock().plan(None);
    }

    /// Cuts the power when `calls` calls have been made since the directory was new, or opened
    /// after a crash: just before the next one.
    pub fn cut_power_after(&self, calls: u64) {
        self.disk.lock().cut_after = Some(calls);
    }

    /// Whether power was cut: every call has failed since, and a [`crash`](Self::crash) is that of
    /// the moment when it went.
    #[must_use]
    pub fn power_is_cut(&self) -> bool {
        self.disk.lock().lost.is_some()
    }

    /// How many calls have been made.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.disk.lock().faults.calls(None)
    }

    /// How many calls have been made to fail.
    #[must_use]
    pub fn faults(&self) -> u64 {
        self.disk.lock().faults.injected()
    }

    /// The directory as the process leaves it that is killed now: all that was written and stored
    /// is there, as durable as it was.
    ///
    /// # Panics
    /// If the system refuses the memory.
    #[must_use]
    pub fn kill(&self) -> Self {
        Self::of(self.disk.lock().survivor().expect("files in memory can be read"))
    }

    /// What is left to chance if power goes now, or when it was cut.
    ///
    /// # Panics
    /// If the system refuses the memory.
    #[must_use]
    pub fn crash(&self) -> Crash {
        Crash::new(&self.disk.lock()).expect("files in memory can be read")
    }

    /// The names of all files, sorted.
    #[must_use]
    pub fn files(&self) -> Vec<String> {
        self.disk.lock().files()
    }

    /// The content of a file, if there is one of that name.
    #[must_use]
    pub fn read(&self, file: &str) -> Option<Vec<u8>> {
        let mut disk = self.disk.lock();
        let id = disk.find(file).ok()?;
        let image = disk.inode(id).ok()?.now().ok()?;
        Some(image.bytes().to_vec())
    }

    /// Puts a durable file there, in the place of another of that name: damage, as it were. Not
    /// for a directory that is open.
    pub fn write(&self, file: &str, content: Vec<u8>) {
        self.disk.lock().place(file, content);
    }

    /// Takes a file away, durably. Not for a directory that is open.
    pub fn remove(&self, file: &str) {
        let mut disk = self.disk.lock();
        let _ = disk.unlink(file);
        let _ = disk.sync_folder(super::folder_of(file));
    }
}

impl Storage for SimulatedStorage {
    fn lock(&self) -> io::Result<bool> {
        let mut disk = self.disk.lock();
        Ok(!std::mem::replace(&mut disk.locked, true))
    }

    fn unlock(&self) {
        self.disk.lock().locked = false;
    }

    fn make_folder(&self, folder: &str) -> io::Result<()> {
        let mut disk = self.disk.lock();
        disk.pass(StorageCall::MakeFolder)?;
        disk.folders.entry(folder.to_owned()).or_default();
        disk.sync_folder("")
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        let mut disk = self.disk.lock();
        disk.pass(StorageCall::List)?;
        Ok(disk.folder(folder)?.live.keys().cloned().collect())
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        let mut disk = self.disk.lock();
        disk.pass(StorageCall::Open)?;
        let inode = disk.find(name)?;
        self.file(&mut disk, inode)
    }

    fn create(&self, name: &str, len: u64) -> io::Result<Arc<dyn StorageFile>> {
        let mut disk = self.disk.lock();
        if let Some(fault) = disk.begin(StorageCall::Create)? {
            // As the real directory does: the blocks that were had go back.
            if fault == StorageFault::NoSpace {
                let _ = disk.unlink(name);
            }
            return Err(fault.error());
        }
        let inode = disk.create(name, usize::try_from(len).map_err(io::Error::other)?)?;
        self.file(&mut disk, inode)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut disk = self.disk.lock();
        disk.pass(StorageCall::Rename)?;
        disk.rename(from, to)
    }

    fn unlink(&self, name: &str) -> io::Result<()> {
        let mut disk = self.disk.lock();
        disk.pass(StorageCall::Unlink)?;
        disk.unlink(name)
    }

    fn sync_folder(&self, folder: &str) -> io::Result<()> {
        let mut disk = self.disk.lock();
        disk.pass(StorageCall::SyncFolder)?;
        disk.sync_folder(folder)
    }

    fn boot_id(&self) -> Option<[u8; 16]> {
        let boot = self.disk.lock().boot + 1;
        let mut id = [0; 16];
        id[..8].copy_from_slice(&boot.to_le_bytes());
        Some(id)
    }

    fn random(&self) -> io::Result<u64> {
        Ok(self.disk.lock().random.next())
    }

    fn path(&self, name: &str) -> PathBuf {
        Path::new("simulated").join(name)
    }
}

impl SimulatedStorage {
    fn file(&self, disk: &mut Disk, inode: u64) -> io::Result<Arc<dyn StorageFile>> {
        let opened = disk.inode(inode)?.opened.clone();
        Ok(Arc::new(SimulatedFile { disk: self.disk.clone(), inode, _opened: opened }))
    }
}

/// An open file, or a mapping of one.
#[derive(Clone, Debug)]
struct SimulatedFile {
    disk: Arc<Mutex<Disk>>,
    inode: u64,
    /// Keeps the content of a file that has lost its names.
    _opened: Arc<()>,
}

impl SimulatedFile {
    fn sync_pages(&self, call: StorageCall, range: Option<Range<usize>>) -> io::Result<()> {
        let mut disk = self.disk.lock();
        let fault = disk.begin(call)?;
        let inode = disk.inode(self.inode)?;
        match fault {
            None => inode.sync(range),
            Some(fault) => inode.fail_sync(range).and(Err(fault.error())),
        }
    }
}

impl StorageFile for SimulatedFile {
    fn len(&self) -> io::Result<u64> {
        let mut disk = self.disk.lock();
        disk.pass(StorageCall::Len)?;
        Ok(disk.inode(self.inode)?.len()? as u64)
    }

    fn read_at(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        let mut disk = self.disk.lock();
        disk.pass(StorageCall::Read)?;
        disk.inode(self.inode)?.read_at(at, bytes)
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let mut disk = self.disk.lock();
        let fault = disk.begin(StorageCall::Write)?;
        let inode = disk.inode(self.inode)?;
        match fault {
            None => inode.write_at(at, bytes),
            Some(fault) => {
                if fault == StorageFault::ShortWrite {
                    inode.write_at(at, &bytes[..bytes.len() / 2])?;
                }
                Err(fault.error())
            }
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_pages(StorageCall::Sync, None)
    }

    fn start_write_back(&self, range: Range<u64>) -> io::Result<()> {
        let mut disk = self.disk.lock();
        let fault = disk.begin(StorageCall::WriteBack)?;
        let range = range.start as usize..range.end as usize;
        // Whether it has written anything is left to chance; what it fails to write is lost.
        fault.map_or(Ok(()), |fault| {
            disk.inode(self.inode)?.fail_sync(Some(range)).and(Err(fault.error()))
        })
    }

    fn map(&self) -> io::Result<Region> {
        let mut disk = self.disk.lock();
        disk.pass(StorageCall::Map)?;
        let map = disk.inode(self.inode)?.map()?;
        let file = self.clone();
        Ok(Region::mapped(map)
            .with_sync(move |range| file.sync_pages(StorageCall::SyncRange, Some(range))))
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        let mut disk = self.disk.lock();
        disk.pass(StorageCall::Truncate)?;
        disk.inode(self.inode)?.resize(usize::try_from(len).map_err(io::Error::other)?)
    }
}
