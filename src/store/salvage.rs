//! Salvage: where the log is damaged, makes it whole again, so that the ordinary recovery that
//! follows finds nothing wrong with it (docs/design.md).
//!
//! What cannot be read is copied to `cut/` and covered by a record of kind `Lost`. A file without
//! a sound head gets one, a missing file is stood in for by a small one. The index goes before
//! anything else is changed: whatever happens next, it is built anew from a log that says where
//! messages are missing. Each step may be the last one before a crash, and a further salvage comes
//! to the same end.

use super::checkpoint::{Checkpoint, unmark_clean};
use super::cut;
use super::files::{HEAD, corrupt, io_error};
use super::flushed_mark::{self, Flushed};
use super::index_arena;
use super::log_file::{self, Place, file_name};
use super::record::{HEADER, lost};
use super::recover::{NEXT_BASE, NEXT_BASE_KIND};
use super::scan::{Behind, RawFile, behind, verify};
use super::slots::Slots;
use crate::error::{Error, Result};
use crate::storage::Storage;
use std::ops::Range;
use std::path::PathBuf;

/// Bytes of a file that stands in for missing ones: a head, and a record that covers nothing more.
const STAND_IN: u64 = (HEAD + HEADER) as u64;
/// Bytes of the smallest file that a log is made of.
const SMALLEST: u64 = 64 << 10;

/// Sets the marks aside that recovery can do without, if they cannot be read: without the flushed
/// mark it is more lenient, and bases go on behind all files that are there.
pub(crate) fn marks(storage: &dyn Storage, store_id: u64) -> Result<Vec<PathBuf>> {
    let mut kept = Vec::new();
    for (name, kind) in [(flushed_mark::FILE, flushed_mark::KIND), (NEXT_BASE, NEXT_BASE_KIND)] {
        match Slots::read(storage, name, kind, store_id) {
            Err(Error::Corrupt { .. }) => kept.push(cut::set_aside(storage, name)?),
            read => drop(read?),
        }
    }
    Ok(kept)
}

/// A salvage under way, and what it has found.
pub(crate) struct Salvage<'a> {
    pub(crate) storage: &'a dyn Storage,
    pub(crate) store_id: u64,
    /// The last checkpoint; `None` if there is none that can be read.
    pub(crate) checkpoint: Option<&'a Checkpoint>,
    pub(crate) flushed: Flushed,
    pub(crate) next_base: u64,
    pub(crate) found: Salvaged,
}

/// What a salvage found and did.
#[derive(Debug, Default)]
pub(crate) struct Salvaged {
    /// The stretches of the log in which records are missing.
    pub(crate) lost: Vec<Range<u64>>,
    pub(crate) kept: Vec<PathBuf>,
    pub(crate) records: u64,
    pub(crate) bytes: u64,
    /// Something had to be changed.
    pub(crate) begun: bool,
}

/// A log file that is in order.
struct Placed {
    after: u64,
    base: u64,
    end: u64,
}

/// A part of a log file that is to be covered.
struct Damage {
    file: usize,
    range: Range<u64>,
    store_ms: u64,
}

impl Salvage<'_> {
    /// Gives every log file a sound head and its length, and stands in for those that are missing.
    pub(crate) fn files(&mut self) -> Result<()> {
        let min_position = self.checkpoint.map(|checkpoint| checkpoint.min_position);
        let mut placed: Vec<Placed> = Vec::new();
        for base in log_file::bases(self.storage)? {
            let before = placed.last().map_or(min_position.unwrap_or(0), |last| last.end);
            placed.extend(self.file(base, before)?);
        }
        let known_end = self.known_end();
        // Without a checkpoint the log begins where its first file says, unless more was known.
        let fits = |after: &u64| known_end == 0 || *after <= known_end;
        let first = placed.first().map(|file| file.after).filter(fits);
        let mut end = min_position.or(first).unwrap_or(0);
        for file in &placed {
            if file.after > end {
                let store_ms = self.first_store_ms(file.base)?;
                self.stand_in(end, file.after, store_ms)?;
            }
            end = file.end;
        }
        if known_end > end {
            // No file had a base above it.
            let behind = self.next_base.max(known_end).max(end + STAND_IN);
            self.stand_in(end, behind, self.last_store_ms())?;
        }
        Ok(())
    }

    /// Covers every stretch in which records are missing that stood there before.
    pub(crate) fn records(&mut self, files: &mut [RawFile]) -> Result<()> {
        let mut damage = Vec::new();
        let mut from = files.first().map_or(0, RawFile::first);
        let mut last_store_ms = self.last_store_ms();
        loop {
            let end = verify(self.store_id, files, from);
            self.found.records += end.records;
            self.found.bytes += end.bytes;
            last_store_ms = end.store_ms.max(last_store_ms);
            let missing = end.position < self.known_end();
            let (last, to, store_ms) = match behind(self.store_id, files, &end) {
                Behind::Append { file, position, store_ms }
                    if missing || self.flushed.same_boot =>
                {
                    (file, position, store_ms)
                }
                _ if missing && end.file < files.len() => {
                    (end.file, files[end.file].end(), last_store_ms)
                }
                // The end, or what a loss of power left: the ordinary recovery cuts it.
                _ => break,
            };
            for (nth, file) in files.iter().enumerate().take(last + 1).skip(end.file) {
                let range = end.position.max(file.first())..to.min(file.end());
                if !range.is_empty() {
                    damage.push(Damage { file: nth, range, store_ms });
                }
            }
            from = to;
        }
        if damage.is_empty() {
            return Ok(());
        }
        for Damage { file, range, .. } in &damage {
            if range.end - range.start < HEADER as u64 {
                let reason = "the damage leaves no room for a record that covers it";
                let name = file_name(files[*file].base);
                return Err(corrupt(self.storage, &name, range.start, reason));
            }
            let length = (range.end - range.start) as usize;
            let bytes = &files[*file].bytes(range.start)[..length];
            self.found.kept.extend(cut::keep(self.storage, range.start, bytes)?);
        }
        self.begin()?;
        for Damage { file, range, store_ms } in damage {
            let file = &mut files[file];
            let length = (range.end - range.start) as usize;
            let header = lost(self.store_id, range.start, store_ms, length);
            let covered = file.cover(range.clone(), &header);
            covered.map_err(|e| io_error(self.storage, "sync", &file_name(file.base), e))?;
            self.found.lost.push(range);
        }
        Ok(())
    }

    fn last_store_ms(&self) -> u64 {
        self.checkpoint.map_or(0, |checkpoint| checkpoint.last_store_ms)
    }

    fn known_end(&self) -> u64 {
        self.flushed.position.max(self.checkpoint.map_or(0, |checkpoint| checkpoint.position))
    }

    /// Brings one file into order; `before` is where the one before it ends. `None` if there is
    /// nothing in it.
    fn file(&mut self, base: u64, before: u64) -> Result<Option<Placed>> {
        let name = file_name(base);
        let mut raw = RawFile::open(self.storage, base)?;
        let head = match raw.as_ref().map(|raw| raw.head(self.storage)) {
            Some(Err(error @ Error::Version { .. })) => return Err(error),
            Some(Ok(head)) if head.store_id == self.store_id && head.number == base => Some(head),
            _ => None,
        };
        let size = raw.as_ref().map_or(0, |raw| raw.end() - base);
        let end = base.saturating_add(head.map_or(size, |head| head.size));
        if self.checkpoint.is_some_and(|last| base < last.min_position && end <= last.min_position)
        {
            // Retention had decided to drop it.
            return Ok(None);
        }
        if let Some(head) = head.filter(|head| head.size == size) {
            return Ok(Some(Placed { after: head.after, base, end }));
        }
        let bytes = raw.as_mut().map_or_else(Vec::new, |raw| raw.bytes(base).to_vec());
        let used = raw.is_some_and(|mut raw| raw.is_used(self.store_id));
        let made_ms = head.map_or(0, |head| head.made_ms);
        let (after, wanted) = match head {
            Some(head) => (head.after, head.size),
            None if used && size == STAND_IN => (before, size),
            None if used => (before, size.next_power_of_two().max(SMALLEST)),
            None => {
                self.found.kept.extend(cut::keep(self.storage, base, &bytes)?);
                self.begin()?;
                let removed = self.storage.unlink(&name);
                removed.map_err(|e| io_error(self.storage, "remove", &name, e))?;
                return Ok(None);
            }
        };
        let (kept, rest) = bytes.split_at(bytes.len().min(wanted as usize));
        self.found.kept.extend(cut::keep(self.storage, base + wanted, rest)?);
        if head.is_none() {
            self.found.kept.extend(cut::keep(self.storage, base, &kept[..HEAD.min(kept.len())])?);
        }
        self.begin()?;
        let place = Place { store_id: self.store_id, base, after, made_ms };
        log_file::replace(self.storage, place, wanted, kept.get(HEAD..).unwrap_or_default())?;
        Ok(Some(Placed { after, base, end: base + wanted }))
    }

    /// The store time of the first sound record of a file, in milliseconds; that of the checkpoint if
    /// it holds none.
    fn first_store_ms(&self, base: u64) -> Result<u64> {
        let raw = RawFile::open(self.storage, base)?;
        let first = |mut raw: RawFile| {
            let from = raw.first();
            raw.find(self.store_id, from, |_| true).map(|record| record.store_ms())
        };
        Ok(raw.and_then(first).unwrap_or(self.last_store_ms()))
    }

    /// Puts a small file where those from `after` to `end` are missing.
    fn stand_in(&mut self, after: u64, end: u64, store_ms: u64) -> Result<()> {
        let base = end.saturating_sub(STAND_IN);
        if base < after {
            let reason = "the files before this position leave no room for one that is missing";
            return Err(corrupt(self.storage, log_file::FOLDER, end, reason));
        }
        self.begin()?;
        let place = Place { store_id: self.store_id, base, after, made_ms: 0 };
        let record = lost(self.store_id, base + HEAD as u64, store_ms, HEADER);
        log_file::replace(self.storage, place, STAND_IN, &record)?;
        self.found.lost.push(after..end);
        Ok(())
    }

    /// Comes before the first change.
    fn begin(&mut self) -> Result<()> {
        if !std::mem::replace(&mut self.found.begun, true) {
            unmark_clean(self.storage)?;
            index_arena::remove_all(self.storage)?;
        }
        Ok(())
    }
}
