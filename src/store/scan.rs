//! Reading the log after a crash: which records stand, and what the first one that does not is.
//!
//! A batch stands or falls as one: records marked as going on are held back until the last of
//! their batch is found sound.

use super::files::{HEAD, Head, corrupt, io_error};
use super::log_file::{FOLDER, KIND, file_name};
use super::record::{ALIGN, CONTINUED, CONTINUES, HEADER, Kind, Record, names_position};
use crate::error::Result;
use crate::storage::{Carver, Storage};

/// A log file that nobody reads or writes yet.
#[derive(Debug)]
pub(crate) struct RawFile {
    pub(crate) base: u64,
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
        if record.verify(store_id) { Ok(record) } else { Err("the record fails its checksum") }
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

/// Opens every log file from `min_position` on; removes what was never given a place, what
/// retention had decided to drop, and an unused last file whose head was not finished.
pub(crate) fn open_files(
    storage: &dyn Storage,
    store_id: u64,
    min_position: u64,
    known_end: u64,
) -> Result<Vec<RawFile>> {
    let mut files = Vec::new();
    let names = storage.list(FOLDER).map_err(|e| io_error(storage, "list", FOLDER, e))?;
    let count = names.len();
    for (nth, name) in names.into_iter().enumerate() {
        let base = name.parse::<u64>().ok().filter(|_| name.len() == 20);
        let name = format!("{FOLDER}/{name}");
        let failed = |action, source| io_error(storage, action, &name, source);
        let remove = || storage.unlink(&name).map_err(|e| failed("remove", e));
        let Some(base) = base else {
            remove()?;
            continue;
        };
        let file = storage.open(&name).map_err(|e| failed("open", e))?;
        let size = file.len().map_err(|e| failed("measure", e))?;
        let mut head = vec![0; HEAD.min(size as usize)];
        file.read_at(0, &mut head).map_err(|e| failed("read", e))?;
        let head = Head::decode(storage, &name, KIND, &head).and_then(|head| {
            let fits = head.store_id == store_id && head.number == base && head.size == size;
            fits.then_some(head).ok_or_else(|| {
                corrupt(storage, &name, 0, "the file has another length, name or store than its head")
            })
        });
        match head {
            Ok(head) if base + head.size <= min_position => remove()?,
            Ok(_) => {
                let carver = Carver::new(file.map().map_err(|e| failed("map", e))?);
                files.push(RawFile { base, carver });
            }
            Err(_) if nth + 1 == count && base >= known_end => remove()?,
            Err(error) => return Err(error),
        }
    }
    Ok(files)
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
            // Never used.
            _ if sound_end == file.first() && sound_end != from && !torn && end.file == nth => break,
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
        while position < to && let Ok(record) = Record::parse(file.bytes(position), position) {
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
        let bytes = file.bytes(from);
        let mut starts = (0..bytes.len().saturating_sub(HEADER - 1)).step_by(ALIGN);
        starts.any(|at| {
            let (bytes, position) = (&bytes[at..], from + at as u64);
            names_position(bytes, position)
                && Record::parse(bytes, position)
                    .is_ok_and(|record| record.verify(store_id) && counts(&record))
        })
    })
}

/// The name of the file in which `position` lies, for an error.
pub(crate) fn name_at(files: &[RawFile], position: u64) -> String {
    let file = files.iter().rev().find(|file| file.base <= position);
    file.map_or_else(|| FOLDER.to_owned(), |file| file_name(file.base))
}
