//! Input of a fuzz target, taken from the front; zeroes when it has run out. And directories.
#![allow(dead_code, reason = "no target needs all of it")]

use std::path::{Path, PathBuf};

/// What is left of the input.
#[derive(Debug)]
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl Bytes<'_> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn u8(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    pub(crate) fn flag(&mut self) -> bool {
        self.u8().is_multiple_of(2)
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.u8(), self.u8()])
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from(self.u16()) | u32::from(self.u16()) << 16
    }

    /// A number below `end`, which is not 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        let number = if end <= 256 { self.u8().into() } else { self.u32() };
        number as usize % end
    }
}

/// The files of a directory, by their names.
pub(crate) type Files = Vec<(PathBuf, Vec<u8>)>;

/// Every file below `dir`, by its name. One that goes meanwhile is left out.
pub(crate) fn files_in(dir: &Path) -> Files {
    let mut files = Vec::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(bytes) = std::fs::read(&path) {
                files.push((path.strip_prefix(dir).unwrap().to_owned(), bytes));
            }
        }
    }
    files.sort();
    files
}

/// A directory with these files.
pub(crate) fn directory(files: &[(PathBuf, Vec<u8>)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    dir
}
