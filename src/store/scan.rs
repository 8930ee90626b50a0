//! Reading the log after a crash: which records stand, and what the first one that does not is.
//!
//! A batch stands or falls as one: records marked as going on are held back until the last of
//! their batch is found sound.

use super::files::{HEAD, Head, IMPOSSIBLE, corrupt, io_error};
use super::log_file::{FOLDER, KIND, base_of, file_name};
use super::record::{ALIGN, CONTINUED, CONTINUES, HEADER, Record, names_position};
use crate::error::Result;
use crate::storage::{Carver, Storage, StorageFile};
use crate::sync::Arc;
use std::io;
use std::ops::Range;

/// A log file that nobody reads or writes yet.
#[derive(Debug)]
pub(crate) struct RawFile {
    pub(crate) base: u64,
    /// The end of the file before it.
    after: u64,
    pub(crate) made_ms: u64,
    /// Its first bytes, a head if it is long enough.
    front: Vec<u8>,
    pub(crate) carver: Carver,
}

impl RawFile {
    /// Opens the file at `base`; `None` if it is empty, so that nothing can be mapped of it.
    pub(crate) fn open(storage: &dyn Storage, base: u64) -> Result<Option<Self>> {
        Self::map(storage, base, storage.open(&file_name(base)))
    }

    /// The same for reading alone, while another process may write to it.
    pub(crate) fn open_shared(storage: &dyn Storage, base: u64) -> Result<Option<Self>> {
        Self::map(storage, base, storage.open_shared(&file_name(base)))
    }

    fn map(
        storage: &dyn Storage,
        base: u64,
        file: io::Result<Arc<dyn StorageFile>>,
    ) -> Result<Option<Self>> {
        let name = file_name(base);
        let failed = |action, source| io_error(storage, action, &name, source);
        let file = file.map_err(|e| failed("open", e))?;
        let size = file.len().map_err(|e| failed("measure", e))?;
        if base.checked_add(size).is_none_or(|end| end >= IMPOSSIBLE) {
            return Err(corrupt(storage, &name, 0, "the name is out of range"));
        }
        if size == 0 {
            return Ok(None);
        }
        // By a call: at a look into a mapping the system reads megabytes around it.
        let mut front = vec![0; HEAD.min(usize::try_from(size).unwrap_or(HEAD))];
        file.read_at(0, &mut front).map_err(|e| failed("read", e))?;
        let carver = Carver::new(file.map().map_err(|e| failed("map", e))?);
        Ok(Some(Self { base, after: 0, made_ms: 0, front, carver }))
    }

    /// Whether the header of a record seems to stand at `position`, looked at by a call as well.
    pub(crate) fn begins(&self, storage: &dyn Storage, position: u64) -> Result<bool> {
        let name = file_name(self.base);
        let mut header = [0; HEADER];
        if self.end().saturating_sub(position) < HEADER as u64 {
            return Ok(false);
        }
        let read = storage.open(&name);
        let read = read.and_then(|file| file.read_at(position - self.base, &mut header));
        read.map_err(|e| io_error(storage, "read", &name, e))?;
        Ok(names_position(&header, position))
    }

    /// What its head says.
    pub(crate) fn head(&self, storage: &dyn Storage) -> Result<Head> {
        Head::decode(storage, &file_name(self.base), KIND, &self.front)
    }

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

    /// The first sound record that `counts` at `from` or behind.
    pub(crate) fn find(
        &mut self,
        store_id: u64,
        from: u64,
        counts: impl Fn(&Record<'_>) -> bool,
    ) -> Option<Record<'_>> {
        find(store_id, self.bytes(from), from, counts)
    }

    /// Zeroes `range` and puts `header` at its front, durably.
    pub(crate) fn cover(&mut self, range: Range<u64>, header: &[u8]) -> io::Result<()> {
        let (from, to) = ((range.start - self.base) as usize, (range.end - self.base) as usize);
        let zeroes = [0; 4096];
        for at in (from..to).step_by(zeroes.len()) {
            self.carver.patch(at, &zeroes[..zeroes.len().min(to - at)]);
        }
        self.carver.patch(from, header);
        self.carver.backing().sync()
    }

    /// Whether it holds a sound record at all.
    pub(crate) fn is_used(&mut self, store_id: u64) -> bool {
        self.find(store_id, self.first(), |_| true).is_some()
    }
}

/// The first sound record that `counts` among `bytes`, which stand at `from`.
pub(crate) fn find(
    store_id: u64,
    bytes: &[u8],
    from: u64,
    counts: impl Fn(&Record<'_>) -> bool,
) -> Option<Record<'_>> {
    let mut starts = (0..bytes.len().saturating_sub(HEADER - 1)).step_by(ALIGN);
    starts.find_map(|at| {
        let (bytes, position) = (&bytes[at..], from + at as u64);
        if !names_position(bytes, position) {
            return None;
        }
        let record = Record::parse(bytes, position).ok()?;
        (record.verify(store_id) && counts(&record)).then_some(record)
    })
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
    /// The highest store time of those records, in milliseconds.
    pub(crate) store_ms: u64,
}

/// What stands behind the end of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behind {
    /// No sound record.
    Nothing,
    /// Sound records that do not begin an append: of one that is torn.
    Rest,
    /// The sound beginning of another append, in this file and at this position.
    Append { file: usize, position: u64, store_ms: u64 },
}

impl End {
    pub(crate) fn at(position: u64, file: usize) -> Self {
        Self { position, file, torn: false, reason: "", records: 0, bytes: 0, store_ms: 0 }
    }
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
    let last = names.iter().filter_map(|name| base_of(name)).max();
    for name in names {
        let base = base_of(&name);
        let unplaced = name == "new" || name.starts_with("spare-");
        let name = format!("{FOLDER}/{name}");
        let Some(base) = base else {
            if unplaced {
                found.leftovers.push(name);
            }
            continue;
        };
        let damaged = |at, reason| Err(corrupt(storage, &name, at, reason));
        // Nothing can be mapped of an empty file.
        let raw = RawFile::open(storage, base)?;
        let end = raw.as_ref().map_or(base, RawFile::end);
        let size = end - base;
        if min_position.is_some_and(|min| base < min && end <= min) {
            found.leftovers.push(name);
            continue;
        }
        let front = raw.as_ref().map_or(&[][..], |raw| &raw.front);
        match Head::decode(storage, &name, KIND, front) {
            Ok(head) if head.store_id != store_id => {
                return damaged(base + 16, "the file belongs to another store");
            }
            Ok(head) if head.number == base && head.size == size => {
                if let Some(raw) = raw {
                    let raw = RawFile { after: head.after, made_ms: head.made_ms, ..raw };
                    found.add(storage, store_id, raw)?;
                }
            }
            Err(error @ crate::Error::Version { .. }) => return Err(error),
            unfit => {
                let used = raw.is_some_and(|mut raw| raw.is_used(store_id));
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
    // Between the first and the last there is no gap.
    let begins = files.first().is_some_and(|f| min_position.is_some() || f.after < known_end);
    let ends = files.last().is_some_and(|f| f.end() >= known_end);
    if known_end > 0 && !(begins && ends) {
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
            && !last.is_used(store_id)
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
    let mut end = End::at(from, 0);
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
            end.records += u64::from(!record.kind().covers());
            end.store_ms = end.store_ms.max(record.store_ms());
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

/// Looks for sound records behind `end`.
pub(crate) fn behind(store_id: u64, files: &mut [RawFile], end: &End) -> Behind {
    let mut found = Behind::Nothing;
    for (nth, file) in files.iter_mut().enumerate().skip(end.file) {
        let here = (file.base..file.end()).contains(&end.position);
        // What has been cut out is covered by a whole header.
        let from = if here { end.position + HEADER as u64 } else { file.first() };
        if file.find(store_id, from, |_| true).is_none() {
            continue;
        }
        if let Some(record) = file.find(store_id, from, |record| !record.has(CONTINUED)) {
            let (position, store_ms) = (record.position(), record.store_ms());
            return Behind::Append { file: nth, position, store_ms };
        }
        found = Behind::Rest;
    }
    found
}

/// The name of the file in which `position` lies, for an error.
pub(crate) fn name_at(files: &[RawFile], position: u64) -> String {
    let file = files.iter().rev().find(|file| file.base <= position);
    file.map_or_else(|| FOLDER.to_owned(), |file| file_name(file.base))
}
