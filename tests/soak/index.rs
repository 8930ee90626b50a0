//! The blocks of the index as they stand in the directory (docs/design.md, "Directory").

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

const HEAD: usize = 64;
const ENTRY: usize = 16;

/// Which blocks there are.
#[derive(Default)]
pub(crate) struct Index {
    /// By length: how many are in use, and how many are free.
    counts: BTreeMap<usize, (usize, usize)>,
    /// By incarnation and queue: how many are in use that are needed.
    needed: BTreeMap<(u32, u16), usize>,
    /// Those in use without need: by incarnation, queue and first offset.
    passed: BTreeSet<(u32, u16, u64)>,
}

impl Index {
    /// Reads the index of a broker that is at rest.
    pub(crate) fn read(dir: &Path) -> Self {
        let names = |folder| {
            let entries = std::fs::read_dir(dir.join(folder)).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap())
        };
        let front = names("commitlog").filter_map(|name| name.parse::<u64>().ok()).min().unwrap();
        let mut index = Self::default();
        // By queue and first offset: the position of the last entry.
        let mut used = BTreeMap::new();
        for name in names("index") {
            let bytes = std::fs::read(dir.join("index").join(name)).unwrap();
            let length = u64_at(&bytes, 24) as usize;
            let (in_use, free) = index.counts.entry(length).or_default();
            for block in bytes[HEAD..].chunks_exact(length) {
                if block[..4] != *b"blck" {
                    *free += 1;
                    continue;
                }
                *in_use += 1;
                let (incarnation, queue) = (u64_at(block, 4) as u32, u64_at(block, 16) as u16);
                used.insert((incarnation, queue, u64_at(block, 8)), u64_at(block, length - ENTRY));
            }
        }
        for (block @ (incarnation, queue, first), last) in &used {
            // The last one of a queue keeps its numbering.
            let another =
                used.range((*incarnation, *queue, first + 1)..=(*incarnation, *queue, u64::MAX));
            if another.count() > 0 && *last < front {
                index.passed.insert(*block);
            } else {
                *index.needed.entry((*incarnation, *queue)).or_default() += 1;
            }
        }
        index
    }

    /// How many of the longest blocks there are.
    pub(crate) fn longest(&self) -> usize {
        self.counts.last_key_value().map_or(0, |(_, (used, free))| used + free)
    }

    /// Fails if a block is in use without need as it was a round `before`, in which its reader has
    /// let go, or if a queue needs more than the messages of one file of the log can be in.
    pub(crate) fn expect(&self, before: &Self, round: u32) {
        let lost: Vec<_> = self.passed.intersection(&before.passed).collect();
        assert!(lost.is_empty(), "round {round}: blocks are lost: {lost:?}, {self:?}");
        assert!(self.needed.values().all(|count| *count <= 2), "round {round}: {self:?}");
    }
}

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used =
            self.counts.iter().map(|(length, (used, free))| format!("{length}: {used}+{free}"));
        let used: Vec<_> = used.filter(|count| !count.contains(": 0+")).collect();
        write!(f, "index {used:?} used+free, {} passed", self.passed.len())
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}
