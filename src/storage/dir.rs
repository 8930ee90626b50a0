//! The real directory.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // the door to mapping files

use super::{Region, Space, Storage, StorageFile, folder_of};
use crate::sync::{Arc, Mutex, Rank};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A directory of the file system.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    lock: Mutex<Option<File>>,
    read_only: bool,
}

impl Directory {
    /// Uses `path`, creating it and its parents if they are missing.
    pub(crate) fn new(path: &Path) -> io::Result<Self> {
        make_durably(path)?;
        Ok(Self { path: path.to_owned(), lock: Self::no_lock(), read_only: false })
    }

    /// Uses `path` without ever changing anything in it.
    pub(crate) fn read_only(path: &Path) -> Self {
        Self { path: path.to_owned(), lock: Self::no_lock(), read_only: true }
    }

    fn no_lock() -> Mutex<Option<File>> {
        Mutex::new(Rank::Lifecycle, None)
    }

    fn check_writable(&self) -> io::Result<()> {
        let refused = io::Error::new(io::ErrorKind::PermissionDenied, "opened for reading alone");
        if self.read_only { Err(refused) } else { Ok(()) }
    }
}

impl Storage for Directory {
    fn lock(&self) -> io::Result<bool> {
        self.check_writable()?;
        let mut options = OpenOptions::new();
        let file = options.create(true).truncate(false).write(true).open(self.path("LOCK"))?;
        match file.try_lock() {
            Ok(()) => {
                *self.lock.lock() = Some(file);
                Ok(true)
            }
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn unlock(&self) {
        // Unlocked by name, not by closing: a forked child may still hold the descriptor.
        if let Some(file) = self.lock.lock().take() {
            let _ = file.unlock();
        }
    }

    fn make_folder(&self, folder: &str) -> io::Result<()> {
        self.check_writable()?;
        match fs::create_dir(self.path(folder)) {
            // Whoever made it may have been killed before the sync.
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => self.sync_folder(""),
        }
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.path(folder))? {
            let entry = entry?;
            if let (true, Ok(name)) =
                (entry.file_type()?.is_file(), entry.file_name().into_string())
            {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        let writable = !self.read_only;
        let file = OpenOptions::new().read(true).write(writable).open(self.path(name))?;
        Ok(Arc::new(RealFile { file, shared: self.read_only }))
    }

    fn open_shared(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        let path = self.path(name);
        let file = File::open(&path)?;
        match file.try_lock_shared() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(io::ErrorKind::WouldBlock.into()),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        // Locked too late if the name has come to mean another file.
        let (locked, named) = (file.metadata()?, fs::metadata(&path)?);
        if (locked.dev(), locked.ino()) != (named.dev(), named.ino()) {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(Arc::new(RealFile { file, shared: true }))
    }

    fn create(&self, name: &str, len: u64) -> io::Result<Arc<dyn StorageFile>> {
        self.check_writable()?;
        let path = self.path(name);
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(true).open(&path)?;
        match reserve(&file, len) {
            Ok(()) => Ok(Arc::new(RealFile { file, shared: false })),
            Err(error) => {
                // The blocks that were had go back at once, so that others can use them.
                let _ = fs::remove_file(&path);
                Err(error)
            }
        }
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        debug_assert_eq!(folder_of(from), folder_of(to));
        self.check_writable()?;
        fs::rename(self.path(from), self.path(to))
    }

    fn rename_unshared(&self, from: &str, to: &str) -> io::Result<bool> {
        self.check_writable()?;
        let file = OpenOptions::new().read(true).write(true).open(self.path(from))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        // Whoever locks it from now on finds another name on it.
        self.rename(from, to)?;
        let _ = file.unlock();
        Ok(true)
    }

    fn space(&self) -> io::Result<Space> {
        let found = rustix::fs::statvfs(&self.path)?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        let used = found.f_blocks.saturating_sub(found.f_bfree);
        Ok(Space { used: bytes(used), available: bytes(found.f_bavail) })
    }

    fn unlink(&self, name: &str) -> io::Result<()> {
        self.check_writable()?;
        fs::remove_file(self.path(name))
    }

    fn sync_folder(&self, folder: &str) -> io::Result<()> {
        File::open(self.path(folder))?.sync_all()
    }

    fn boot_id(&self) -> Option<[u8; 16]> {
        let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let digits = text.bytes().filter_map(|b| (b as char).to_digit(16));
        let mut id = [0; 16];
        for (at, digit) in digits.take(32).enumerate() {
            id[at / 2] = id[at / 2] << 4 | digit as u8;
        }
        (id != [0; 16]).then_some(id)
    }

    fn random(&self) -> io::Result<u64> {
        let mut bytes = [0; 8];
        io::Read::read_exact(&mut File::open("/dev/urandom")?, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

#[derive(Debug)]
struct RealFile {
    file: File,
    /// Opened for reading alone.
    shared: bool,
}

impl StorageFile for RealFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_at(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(bytes, at)
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, at)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn start_write_back(&self, range: Range<u64>) -> io::Result<()> {
        super::region::start_write_back(&self.file, range)
    }

    fn map(&self) -> io::Result<Region> {
        let options = memmap2::MmapOptions::new();
        if self.shared {
            // The lock lives as long as the mapping.
            let map = options.map_raw_read_only(&self.file)?;
            return Ok(Region::lent(map, self.file.try_clone()?));
        }
        // The mapping outlives the descriptor: it keeps the file open by itself.
        Ok(Region::mapped(options.map_raw(&self.file)?))
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
}

/// Creates `path` and the folders above it that are missing, each durably before the next. The
/// first one that is there may come from a process that was killed before its sync.
fn make_durably(path: &Path) -> io::Result<()> {
    let parent = path.parent().map(|parent| match parent.as_os_str().is_empty() {
        true => Path::new("."),
        false => parent,
    });
    if path.is_dir() {
        return match parent.map(File::open) {
            // Then it was not made by a process like this one.
            Some(Err(error)) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
            Some(parent) => parent?.sync_all(),
            None => Ok(()),
        };
    }
    parent.map_or(Ok(()), make_durably)?;
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists || !path.is_dir() => Err(error),
        _ => parent.map_or(Ok(()), |parent| File::open(parent)?.sync_all()),
    }
}

/// Gives the file `len` bytes of blocks, so that a later store into its mapping cannot fail.
fn reserve(file: &File, len: u64) -> io::Result<()> {
    use rustix::fs::FallocateFlags;
    if len == 0 {
        return Ok(());
    }
    loop {
        match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, len) {
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
                return write_zeroes(file, len);
            }
            reserved => return Ok(reserved?),
        }
    }
}

fn write_zeroes(file: &File, len: u64) -> io::Result<()> {
    let zeroes = vec![0; 64 * 1024];
    let mut at = 0;
    while at < len {
        let step = usize::try_from(len - at).unwrap_or(usize::MAX).min(zeroes.len());
        file.write_all_at(&zeroes[..step], at)?;
        at += step as u64;
    }
    Ok(())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_created_file_has_all_its_blocks() {
        let dir = tempfile::tempdir().unwrap();
        let storage = Directory::new(dir.path()).unwrap();
        storage.create("a", 1 << 20).unwrap();
        let meta = fs::metadata(storage.path("a")).unwrap();
        assert_eq!(meta.len(), 1 << 20);
        assert!(meta.blocks() * 512 >= 1 << 20, "sparse: {} blocks", meta.blocks());
    }

    #[test]
    fn missing_folders_above_are_made_and_a_file_in_the_way_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        for _ in 0..2 {
            Directory::new(&dir.path().join("a/b/c")).unwrap();
            assert!(dir.path().join("a/b/c").is_dir());
        }
        fs::write(dir.path().join("a/file"), b"x").unwrap();
        assert!(Directory::new(&dir.path().join("a/file")).is_err());
        assert!(Directory::new(&dir.path().join("a/file/b")).is_err());
        assert!(Directory::new(Path::new(".")).is_ok());
    }

    #[test]
    fn a_file_without_fallocate_is_written_out() {
        let file = tempfile::tempfile().unwrap();
        write_zeroes(&file, 100_000).unwrap();
        let meta = file.metadata().unwrap();
        assert_eq!(meta.len(), 100_000);
        assert!(meta.blocks() * 512 >= 100_000);
    }

    #[test]
    fn a_failed_creation_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let storage = Directory::new(dir.path()).unwrap();
        assert!(storage.create("huge", 1 << 60).is_err());
        assert_eq!(storage.list("").unwrap(), Vec::<String>::new());
    }

    #[test]
    fn a_directory_for_reading_alone_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        Directory::new(dir.path()).unwrap().create("a", 64).unwrap();
        let storage = Directory::read_only(dir.path());
        assert!(storage.lock().is_err() && storage.make_folder("meta").is_err());
        assert!(storage.create("b", 1).is_err() && storage.rename("a", "b").is_err());
        assert!(storage.unlink("a").is_err());
        let file = storage.open("a").unwrap();
        assert!(file.write_at(0, b"x").is_err() && file.truncate(0).is_err());
        assert_eq!(file.map().unwrap().len(), 64);
        assert_eq!(storage.list("").unwrap(), ["a"]);
    }

    #[test]
    fn a_shared_file_is_locked_as_long_as_it_is_mapped() {
        let dir = tempfile::tempdir().unwrap();
        let storage = Directory::new(dir.path()).unwrap();
        storage.create("a", 64).unwrap();
        let region = storage.open_shared("a").unwrap().map().unwrap();
        let owner = File::open(storage.path("a")).unwrap();
        assert!(matches!(owner.try_lock(), Err(TryLockError::WouldBlock)));
        drop(region);
        owner.try_lock().unwrap();
        let refused = storage.open_shared("a").unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_file_is_renamed_only_while_nobody_has_a_lock_on_it() {
        let dir = tempfile::tempdir().unwrap();
        let storage = Directory::new(dir.path()).unwrap();
        storage.create("a", 4096).unwrap();
        let reader = File::open(storage.path("a")).unwrap();
        reader.try_lock_shared().unwrap();
        assert!(!storage.rename_unshared("a", "b").unwrap());
        assert_eq!(storage.list("").unwrap(), ["a"]);
        reader.unlock().unwrap();
        assert!(storage.rename_unshared("a", "b").unwrap());
        assert_eq!(storage.list("").unwrap(), ["b"]);
        // It is not left locked.
        File::open(storage.path("b")).unwrap().try_lock_shared().unwrap();
        assert!(storage.rename_unshared("a", "b").is_err());
    }

    #[test]
    fn the_space_of_the_file_system_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let space = Directory::new(dir.path()).unwrap().space().unwrap();
        assert!(space.available > 0 && space.used.checked_add(space.available).is_some());
    }

    #[test]
    fn the_lock_is_exclusive_until_given_back() {
        let dir = tempfile::tempdir().unwrap();
        let first = Directory::new(dir.path()).unwrap();
        let second = Directory::new(dir.path()).unwrap();
        assert!(first.lock().unwrap());
        assert!(!second.lock().unwrap());
        first.unlock();
        assert!(second.lock().unwrap());
    }
}
