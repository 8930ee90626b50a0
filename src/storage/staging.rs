//! A directory in the making: under another name until it is complete.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // a door to files

use super::Directory;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// A directory that gets its name once it is whole, and is removed otherwise.
#[derive(Debug)]
pub(crate) struct Staging {
    made: PathBuf,
    to: PathBuf,
    placed: bool,
}

impl Staging {
    /// Makes an empty directory beside `to`, where nothing may be yet.
    pub(crate) fn new(to: &Path) -> io::Result<Self> {
        if fs::symlink_metadata(to).is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let name = to.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
        let made = (0..u32::MAX).map(|nth| to.with_file_name(format!("{name}.partial-{nth}")));
        for made in made {
            match fs::create_dir(&made) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
                Ok(()) => return Ok(Self { made, to: to.to_owned(), placed: false }),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// The directory as it is called now.
    pub(crate) fn directory(&self) -> io::Result<Directory> {
        Directory::new(&self.made)
    }

    /// Gives the directory its name, durably, unless something bears it by now.
    pub(crate) fn place(mut self) -> io::Result<()> {
        renameat_with(CWD, &self.made, CWD, &self.to, RenameFlags::NOREPLACE)?;
        self.placed = true;
        let parent = self.to.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.placed {
            // What cannot be removed is told apart by its name.
            let _ = fs::remove_dir_all(&self.made);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_not_placed_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("copy");
        let staging = Staging::new(&to).unwrap();
        fs::write(staging.made.join("a"), b"x").unwrap();
        drop(staging);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);

        fs::create_dir(dir.path().join("copy.partial-0")).unwrap();
        let staging = Staging::new(&to).unwrap();
        fs::write(staging.made.join("a"), b"x").unwrap();
        assert!(!to.exists());
        staging.place().unwrap();
        assert_eq!(fs::read(to.join("a")).unwrap(), b"x");
        assert!(Staging::new(&to).is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}
