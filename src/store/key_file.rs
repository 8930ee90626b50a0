//! One file of the key index: which keys stand in a range of the log.
//!
//! ```text
//! head of the file; its number is where the range begins
//! end of the range u64 | oldest store time ms u64 | newest u64
//! entries u64, ascending: hash of the key << 32 | (position - begin) / 8
//! crc u32 of everything behind the head
//! ```
//!
//! A key file is written whole, is never changed, and says nothing but what the log says in its range.
//! That part of the log is durable by then and never changes either, so a whole file is right for
//! ever. It is not synced: its checksum tells whether it is whole, and if not, the log is read.

use super::files::{HEAD, Head, corrupt, io_error};
use super::record::{ALIGN, checksum, u32_at, u64_at};
use crate::error::{Error, Result};
use crate::storage::{Carver, Segment, Storage};
use crate::sync::Arc;
use std::io;
use std::ops::{Range, RangeInclusive};

/// Folder of the key files.
pub(crate) const FOLDER: &str = "keys";
/// Entries of a file, but for those of its last record: 2 MiB. Tests have small logs.
pub(super) const MOST: usize = if cfg!(test) { 500 } else { 1 << 18 };

const KIND: [u8; 4] = *b"keys";
const NEW: &str = "keys/new";
/// Holds no time, and grows by minimum and maximum.
const NEVER: RangeInclusive<u64> = RangeInclusive::new(u64::MAX, 0);
const FIXED: usize = 24;
const ENTRY: usize = 8;

/// The keys of a range of the log, gathered in memory.
#[derive(Clone, Debug)]
pub(super) struct Gathered {
    pub(super) range: Range<u64>,
    /// Store times of the records with keys.
    times: RangeInclusive<u64>,
    entries: Vec<u64>,
}

impl Gathered {
    /// Nothing, from `position` on.
    pub(super) fn at(position: u64) -> Self {
        Self { range: position..position, times: NEVER, entries: Vec::new() }
    }

    /// Whether there is a place for the keys of a record at `position`.
    pub(super) fn takes(&self, position: u64) -> bool {
        self.entries.len() < MOST && place(position, self.range.start).is_some()
    }

    /// Adds a key of the record at `position`, which it takes.
    pub(super) fn add(&mut self, hash: u32, position: u64, store_ms: u64) {
        let Some(place) = place(position, self.range.start) else { return };
        self.entries.push(u64::from(hash) << 32 | u64::from(place));
        self.times = store_ms.min(*self.times.start())..=store_ms.max(*self.times.end());
    }

    /// Where records with a key of this hash stand, newest first.
    pub(super) fn positions(&self, hash: u32) -> impl Iterator<Item = u64> {
        let of_hash = self.entries.iter().rev().filter(move |entry| (**entry >> 32) as u32 == hash);
        of_hash.map(|entry| position(*entry, self.range.start))
    }

    /// One for both ranges, if it is not too large for a file.
    fn behind(&self, file: &KeyFile) -> Option<Self> {
        let content = file.content.as_ref()?;
        place(self.range.end, file.range.start)?;
        if content.entries().len() + self.entries.len() > MOST {
            return None;
        }
        let shift = (self.range.start - file.range.start) / ALIGN as u64;
        let before = content.entries().iter().map(|entry| u64::from_le_bytes(*entry));
        let entries = before.chain(self.entries.iter().map(|entry| entry + shift)).collect();
        let (old, new) = (&content.times, &self.times);
        let times = *old.start().min(new.start())..=*old.end().max(new.end());
        Some(Self { range: file.range.start..self.range.end, times, entries })
    }
}

/// A key file, mapped when it is first looked at.
#[derive(Debug)]
pub(super) struct KeyFile {
    pub(super) range: Range<u64>,
    content: Option<Content>,
}

#[derive(Debug)]
struct Content {
    segment: Arc<Segment>,
    times: RangeInclusive<u64>,
}

impl KeyFile {
    /// The key files of a directory, in no order.
    pub(super) fn list(storage: &dyn Storage) -> Result<Vec<Self>> {
        let named = |name: &String| {
            let (start, end) = name.split_once('-')?;
            let range = start.parse().ok()?..end.parse().ok()?;
            Some(Self { range, content: None })
                .filter(|file| file.name() == format!("{FOLDER}/{name}"))
        };
        let names = storage.list(FOLDER).map_err(|e| io_error(storage, "list", FOLDER, e))?;
        Ok(names.iter().filter_map(named).collect())
    }

    /// Writes what was gathered, together with the file before it if both fit in one: then that
    /// one is `before` no longer.
    pub(super) fn write(
        storage: &dyn Storage,
        store_id: u64,
        gathered: &Gathered,
        before: &mut Option<Self>,
    ) -> Result<Self> {
        let joined = before.as_ref().and_then(|file| gathered.behind(file));
        let both = joined.is_some();
        let mut whole = joined.unwrap_or_else(|| gathered.clone());
        whole.entries.sort_unstable();
        whole.entries.dedup();
        let Gathered { range, times, entries } = whole;

        let size = HEAD + FIXED + entries.len() * ENTRY + 4;
        let mut bytes = Vec::with_capacity(size);
        bytes.extend_from_slice(&Head::new(KIND, store_id, range.start, size as u64).encode());
        for word in [range.end, *times.start(), *times.end()].iter().chain(&entries) {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(&checksum(store_id, &bytes[HEAD..]).to_le_bytes());

        let made = Self { range, content: None };
        let name = made.name();
        let file = storage.create(NEW, size as u64);
        let written = file.and_then(|file| file.write_at(0, &bytes));
        written.map_err(|e| io_error(storage, "write", &name, e))?;
        storage.rename(NEW, &name).map_err(|e| io_error(storage, "rename", &name, e))?;
        if both && let Some(before) = before.take() {
            before.remove(storage);
        }
        Ok(made)
    }

    /// Removes the file. If that fails, the next open finds that it is of no use.
    pub(super) fn remove(self, storage: &dyn Storage) {
        let _ = storage.unlink(&self.name());
    }

    /// Maps the file, unless that was done before.
    ///
    /// # Errors
    /// `Corrupt` if it is not whole.
    pub(super) fn open(&mut self, storage: &dyn Storage, store_id: u64) -> Result<()> {
        if self.content.is_some() {
            return Ok(());
        }
        let name = self.name();
        let damaged = |reason| corrupt(storage, &name, 0, reason);
        let failed = |action, source| match io::Error::kind(&source) {
            io::ErrorKind::NotFound => damaged("the file is missing"),
            _ => io_error(storage, action, &name, source),
        };
        let file = storage.open(&name).map_err(|e| failed("open", e))?;
        let size = file.len().map_err(|e| failed("measure", e))?;
        let len = usize::try_from(size).unwrap_or(0);
        if len < HEAD + FIXED + 4 || !(len - HEAD - FIXED - 4).is_multiple_of(ENTRY) {
            return Err(damaged("the length is wrong"));
        }
        let mut carver = Carver::new(file.map().map_err(|e| failed("map", e))?);
        let whole = carver.carve(len, len).map(|writer| writer.segment().clone());
        let segment = whole.ok_or_else(|| damaged("the length has changed"))?;
        let bytes = segment.read(0..len).unwrap_or_default();
        let head = match Head::decode(storage, &name, KIND, bytes) {
            Err(Error::Version { .. }) => Err(damaged("the version is unknown")),
            decoded => decoded,
        }?;
        let fits = head.store_id == store_id
            && head.number == self.range.start
            && head.size == size
            && u64_at(bytes, HEAD) == self.range.end;
        if !fits || checksum(store_id, &bytes[HEAD..len - 4]) != u32_at(bytes, len - 4) {
            return Err(damaged("the content does not fit the checksum or the name"));
        }
        let times = u64_at(bytes, HEAD + 8)..=u64_at(bytes, HEAD + 16);
        self.content = Some(Content { segment, times });
        Ok(())
    }

    /// When the records with keys were stored, in milliseconds; empty if there are none, or if
    /// the file was not opened.
    pub(super) fn times(&self) -> RangeInclusive<u64> {
        self.content.as_ref().map_or(NEVER, |content| content.times.clone())
    }

    /// Where records with a key of this hash stand, newest first.
    pub(super) fn positions(&self, hash: u32) -> impl Iterator<Item = u64> {
        let entries = self.content.as_ref().map_or(&[][..], Content::entries);
        let of = |entry: &[u8; ENTRY]| (u64::from_le_bytes(*entry) >> 32) as u32;
        let from = entries.partition_point(|entry| of(entry) < hash);
        let equal = entries[from..].partition_point(|entry| of(entry) == hash);
        let found = entries[from..from + equal].iter().rev();
        found.map(|entry| position(u64::from_le_bytes(*entry), self.range.start))
    }

    fn name(&self) -> String {
        format!("{FOLDER}/{:020}-{:020}", self.range.start, self.range.end)
    }
}

impl Content {
    fn entries(&self) -> &[[u8; ENTRY]] {
        let all = self.segment.read(HEAD + FIXED..self.segment.capacity() - 4);
        all.unwrap_or_default().as_chunks().0
    }
}

/// Removes all key files, so that they are made again.
pub(super) fn remove_all(storage: &dyn Storage) -> Result<()> {
    KeyFile::list(storage)?.into_iter().for_each(|file| file.remove(storage));
    Ok(())
}

/// What an entry of a range from `start` on says of `position`; `None` if that is too far away.
fn place(position: u64, start: u64) -> Option<u32> {
    u32::try_from(position.checked_sub(start)? / ALIGN as u64).ok()
}

fn position(entry: u64, start: u64) -> u64 {
    start + u64::from(entry as u32) * ALIGN as u64
}
