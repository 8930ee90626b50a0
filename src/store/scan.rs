//! Reading the log after a crash: which records stand, and what the first one that does not is.
//!
//! A batch stands or falls as one: records marked as going on are held back until the last of
//! their batch is found sound.

use super::files::{HEAD, Head, IMPOSSIBLE, corrupt, io_error};
use super::log_file::{FOLDER, KIND, file_name};
use super::record::{ALIGN, CONTINUED, CONTINUES, HEADER, Kind, Record, names_position};
use crate::error::Result;
use crate::storage::{Carver, Storage};

/// A log file that nobody reads or writes yet.
#[derive(Debug)]
pub(crate) struct RawFile {
    pub(crate) base: u64,
    /// The end of the file before it.
    after: u64,
    pub(crate) carver: Carver,
}

impl RawFile {
    pub(crate) fn end(&self) -> u64 {
        self.base + self.carver.left() as u64
    }

    /// The position of its first record.
    pub(crate) fn first(&self) -> u64 {
        self.base + HEAD as u64
    }

    /// The bytes from `position` to the end of the file.
    pub(crate) fn bytes(&mut self, position: u64) -> &[u8] {
        let from = position.saturating_sub(self.base) as usize;
        let len = self.carver.left();
        self.carver.peek(from.min(len)..len).unwrap_or_default()
    }

    /// The record at `position` if it is sound.
    pub(crate) fn sound(
        &mut self,
        store_id: u64,
        position: u64,
    ) -> std::result::Result<Record<'_>, &'static str> {
        let record = Record::parse(self.bytes(position), position)?;
        if !record.verify(store_id) {
            return Err("the record fails its checksum");
        }
        if record.offset() > IMPOSSIBLE || record.incarnation() == u32::MAX {
            return Err("the record has an impossible number");
        }
        Ok(record)
    }

    /// Whether a sound record that `counts` stands at `from` or behind.
    pub(crate) fn holds(
        &mut self,
        store_id: u64,
        from: u64,
        counts: impl Fn(&Record<'_>) -> bool,
    ) -> bool {
        let bytes = self.bytes(from);
        let mut starts = (0..bytes.len().saturating_sub(HEADER - 1)).step_by(ALIGN);
        starts.any(|at| {
            let (bytes, position) = (&bytes[at..], from + at as u64);
            names_position(bytes, position)
                && Record::parse(bytes, position)
                    .is_ok_and(|record| record.verify(store_id) && counts(&record))
        })
    }
}

/// Where the sound part of the log ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    /// Behind the last record of the last whole batch.
    pub(crate) position: u64,
    /// Which file goes on from there.
    pub(crate) file: usize,
    /// Part of an append stands there.
    pub(crate) torn: bool,
    pub(crate) reason: &'static str,
    pub(crate) records: u64,
    pub(crate) bytes: u64,
}

/// The log files of a directory.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Ascending, without a gap.
    pub(crate) files: Vec<RawFile>,
    /// Names of files to be removed once it is decided that the directory can be opened: what was
    /// never given a place, what retention had decided to drop, what was never used.
    pub(crate) leftovers: Vec<String>,
    /// A last file that holds no record and has no sound head; one of the leftovers.
    pub(crate) unfit: Option<u64>,
}

/// Opens every log file. Those that end at or below `min_position` are gone, whatever they hold;
/// `None` if it is not known. A record stood below `known_end`.
pub(crate) fn open_files(
    storage: &dyn Storage,
    store_id: u64,
    min_position: Option<u64>,
    known_end: u64,
) -> Result<Found> {
    let mut found = Found::default();
    let names = storage.list(FOLDER).map_err(|e| io_error(storage, "list", FOLDER, e))?;
    let placed = |name: &str| name.parse::<u64>().ok().filter(|_| name.len() == 20);
    let last = names.iter().filter_map(|name| placed(name)).max();
    for name in names {
        let base = placed(&name);
        let unplaced = name == "new" || name.starts_with("spare-");
        let name = format!("{FOLDER}/{name}");
        let Some(base) = base else {
            if unplaced {
                found.leftovers.push(name);
            }
            continue;
        };
        let failed = |action, source| io_error(storage, action, &name, source);
        let file = storage.open(&name).map_err(|e| failed("open", e))?;
        let size = file.len().map_err(|e| failed("measure", e))?;
        let damaged = |at, reason| Err(corrupt(storage, &name, at, reason));
        let Some(end) = base.checked_add(size).filter(|end| *end < IMPOSSIBLE) else {
            return damaged(0, "the name is out of range");
        };
        if min_position.is_some_and(|min| base < min && end <= min) {
            found.leftovers.push(name);
            continue;
        }
        let carver = match size {
            // Nothing can be mapped of an empty file.
            0 => None,
            _ => Some(Carver::new(file.map().map_err(|e| failed("map", e))?)),
        };
        let mut raw = carver.map(|carver| RawFile { base, after: 0, carver });
        let bytes = raw.as_mut().map_or(&[][..], |raw| raw.bytes(base));
        match Head::decode(storage, &name, KIND, bytes) {
            Ok(head) if head.store_id != store_id => {
                return damaged(base + 16, "the file belongs to another store");
            }
            Ok(head) if head.number == base && head.size == size => {
                if let Some(raw) = raw {
                    found.add(storage, store_id, RawFile { after: head.after, ..raw })?;
                }
            }
            Err(error @ crate::Error::Version { .. }) => return Err(error),
            unfit => {
                let used = raw.is_some_and(|mut raw| raw.holds(store_id, base, |_| true));
                if used || Some(base) != last || base < known_end {
                    unfit?;
                    return damaged(base, "the file has another length or name than its head");
                }
                found.leftovers.push(name);
                found.unfit = Some(base);
            }
        }
    }
    let Found { files, .. } = &found;
    if let Some(first) = files.first()
        && min_position.is_some_and(|min| first.after > min)
    {
        let reason = "the log file before this one is missing";
        return Err(corrupt(storage, &file_name(first.base), first.base, reason));
    }
    let covered = |file: &RawFile| (file.first()..=file.end()).contains(&known_end);
    if known_end > 0 && !files.iter().any(covered) {
        let reason = "the log file with this position is missing";
        return Err(corrupt(storage, &name_at(files, known_end), known_end, reason));
    }
    Ok(found)
}

impl Found {
    /// Adds a file behind those that are there.
    fn add(&mut self, storage: &dyn Storage, store_id: u64, file: RawFile) -> Result<()> {
        while let Some(last) = self.files.last_mut()
            && last.end() > file.after
            && !last.holds(store_id, last.first(), |_| true)
        {
            // It could not be placed when it was made, nor be removed.
            self.leftovers.push(file_name(last.base));
            self.files.pop();
        }
        if self.files.last().is_some_and(|last| last.end() != file.after || file.base < file.after)
        {
            let reason = "the log file before this one is missing";
            return Err(corrupt(storage, &file_name(file.base), file.base, reason));
        }
        self.files.push(file);
        Ok(())
    }
}

/// Verifies every record from `from` on and says where the whole batches end.
pub(crate) fn verify(store_id: u64, files: &mut [RawFile], from: u64) -> End {
    let mut end = End { position: from, file: 0, torn: false, reason: "", records: 0, bytes: 0 };
    for (nth, file) in files.iter_mut().enumerate() {
        if file.end() <= from {
            end.file = nth + 1;
            continue;
        }
        let start = from.max(file.first());
        let (mut position, mut batch) = (start, None);
        let reason = loop {
            if position == file.end() {
                break None;
            }
            let record = match file.sound(store_id, position) {
                Ok(record) => record,
                Err(reason) => break Some(reason),
            };
            if record.has(CONTINUED) != batch.is_some() {
                break Some("a record of the batch is missing");
            }
            let next = position + record.length() as u64;
            end.bytes += record.length() as u64;
            end.records += u64::from(record.kind() != Kind::Filler);
            if record.has(CONTINUES) {
                batch = batch.or(Some(position));
            } else {
                batch = None;
            }
            position = next;
        };
        let sound_end = batch.unwrap_or(position);
        let torn = batch.is_some() || names_position(file.bytes(sound_end), sound_end);
        match reason {
            // Full: the next file goes on.
            None if batch.is_none() => {
                (end.position, end.file) = (position, nth + 1);
            }
            reason => {
                (end.position, end.file, end.torn) = (sound_end, nth, torn);
                end.reason = reason.unwrap_or("a record of the batch is missing");
                break;
            }
        }
    }
    end
}

/// Visits every record from `from` up to `to`, which has been verified before.
pub(crate) fn replay(
    files: &mut [RawFile],
    from: u64,
    to: u64,
    mut visit: impl FnMut(&Record<'_>) -> Result<()>,
) -> Result<()> {
    for file in files.iter_mut().filter(|file| file.end() > from && file.base < to) {
        let mut position = from.max(file.first());
        while position < to
            && let Ok(record) = Record::parse(file.bytes(position), position)
        {
            position += record.length() as u64;
            visit(&record)?;
        }
    }
    Ok(())
}

/// Whether a sound record that `counts` stands behind `end`.
pub(crate) fn sound_after(
    store_id: u64,
    files: &mut [RawFile],
    end: &End,
    counts: impl Fn(&Record<'_>) -> bool,
) -> bool {
    files.iter_mut().skip(end.file).any(|file| {
        let here = (file.base..file.end()).contains(&end.position);
        let from = if here { end.position + ALIGN as u64 } else { file.first() };
        file.holds(store_id, from, &counts)
    })
}

/// The name of the file in which `position` lies, for an error.
pub(crate) fn name_at(files: &[RawFile], position: u64) -> String {
    let file = files.iter().rev().find(|file| file.base <= position);
    file.map_or_else(|| FOLDER.to_owned(), |file| file_name(file.base))
}
