//! What this process has: threads, descriptors, mappings, memory.

use std::path::Path;
use std::time::{Duration, Instant};

/// What comes and goes in whole numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) threads: usize,
    pub(crate) descriptors: usize,
    /// Mappings of files of one directory.
    pub(crate) mappings: usize,
}

impl Held {
    pub(crate) fn now(dir: &Path) -> Self {
        let count = |folder: &str| std::fs::read_dir(folder).unwrap().count();
        Self {
            threads: count("/proc/self/task"),
            descriptors: count("/proc/self/fd"),
            mappings: mapped(dir).len(),
        }
    }

    /// What there is in any case: a file is open for a moment now and then.
    pub(crate) fn at_least(dir: &Path) -> Self {
        (0..20).fold(Self::now(dir), |least, _| {
            std::thread::sleep(Duration::from_millis(10));
            let now = Self::now(dir);
            Self {
                threads: least.threads.min(now.threads),
                descriptors: least.descriptors.min(now.descriptors),
                mappings: least.mappings.min(now.mappings),
            }
        })
    }

    /// Waits until nothing is left that was not there before: what ends may take its time.
    pub(crate) fn expect(self, dir: &Path, round: u32) {
        let start = Instant::now();
        while Self::now(dir) != self {
            let now = Self::now(dir);
            let late = start.elapsed() > Duration::from_secs(30);
            assert!(!late, "round {round}: {self:?} {now:?}, {:?}", mapped(dir));
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The files of a directory that are mapped, each as often as it is.
fn mapped(dir: &Path) -> Vec<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let names = maps.lines().filter_map(|line| line.split_once(dir.to_str().unwrap()));
    names.map(|(_, name)| name.to_owned()).collect()
}

/// A value of `/proc/self/status`, in bytes: `RssAnon` is the memory that is no file's.
pub(crate) fn memory(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}
