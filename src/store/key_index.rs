//! The key index: by topic and key to the positions of messages that may have it.
//!
//! It follows the log by itself and costs the append path one comparison: whoever looks for a key,
//! and the background at every checkpoint, first reads on from where it stands. What was read is
//! gathered in memory and written out in files (`key_file`), which follow each other from the
//! beginning of the log without a gap. A file that is missing or damaged is made again from the log,
//! together with those behind it. So the index is never behind for a reader, and never needed by
//! recovery.
//!
//! Hashes collide, records go: what is found here is to be checked against the record (STORE-39).

use super::commit_log::CommitLog;
use super::key_file::{Gathered, KeyFile};
use super::record::{KEYED, Kind, Record};
use crate::error::{Error, Result};
use crate::properties::Properties;
use crate::storage::Storage;
use crate::string_hash::string_hash;
use crate::sync::{Arc, Mutex, Rank};
use std::cmp::Reverse;
use std::ops::RangeInclusive;

/// Bytes of the log that are read with the lock held, so that nobody waits for long.
const STEP: u64 = if cfg!(test) { 10_000 } else { 4 << 20 };

/// See the module.
#[derive(Debug)]
pub(crate) struct KeyIndex {
    disk: Disk,
    state: Mutex<State>,
}

#[derive(Debug)]
struct Disk {
    storage: Arc<dyn Storage>,
    store_id: u64,
}

#[derive(Debug)]
struct State {
    /// Ascending, the end of each where the next begins.
    files: Vec<KeyFile>,
    /// From the end of the last file on.
    fresh: Gathered,
    loaded: bool,
    closed: bool,
}

/// What is looked for.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// Of topic and key, see [`key_hash`].
    pub(super) hash: u32,
    /// Store times in milliseconds.
    pub(super) times: RangeInclusive<u64>,
    /// The newest so many.
    pub(super) max: usize,
}

/// How far the log reaches.
#[derive(Clone, Copy, Debug)]
struct Reach {
    end: u64,
    /// Behind the last record that has keys.
    keyed: u64,
    /// What is below may be written to a file.
    durable: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// Everything is covered.
    Done,
    /// There is more to read.
    More,
    /// The memory is full, and a file cannot be written now.
    Full,
}

impl KeyIndex {
    /// The index of a directory, which is not looked at before the first use.
    pub(super) fn new(storage: &Arc<dyn Storage>, store_id: u64) -> Self {
        let state =
            State { files: Vec::new(), fresh: Gathered::at(0), loaded: false, closed: false };
        let disk = Disk { storage: storage.clone(), store_id };
        Self { disk, state: Mutex::new(Rank::KeyIndex, state) }
    }

    /// What `check` makes of the newest records that are wanted, newest first. Everything that
    /// was committed before is looked at.
    ///
    /// # Errors
    /// `Corrupt` if the log cannot be read; as `check`; `Closed`.
    pub(super) fn find<T>(
        &self,
        log: &CommitLog,
        durable: u64,
        wanted: &Wanted,
        check: impl Fn(u64) -> Result<Option<T>>,
    ) -> Result<Vec<T>> {
        let (end, keyed) = log.with_tail(|tail| (tail.committed(), tail.keyed()));
        let reach = Reach { end, keyed, durable };
        loop {
            let mut state = self.state.lock();
            if state.closed {
                return Err(Error::Closed);
            }
            if state.advance(&self.disk, log, reach)? == Progress::More {
                continue;
            }
            match state.search(&self.disk, log, reach, wanted, &check)? {
                Ok(found) => return Ok(found),
                Err(damaged) => state.forget_from(&self.disk, damaged),
            }
        }
    }

    /// Reads on, up to `budget` bytes of what is durable, and writes a file. What fails is tried
    /// again at the next step; whoever looks for a key is told.
    pub(super) fn step(&self, log: &CommitLog, durable: u64, budget: u64) {
        let keyed = log.with_tail(|tail| tail.keyed());
        let reach = Reach { end: durable, keyed, durable };
        for _ in 0..budget.div_ceil(STEP) {
            let mut state = self.state.lock();
            if state.closed {
                return;
            }
            match state.advance(&self.disk, log, reach) {
                Ok(Progress::More) => {}
                _ => break,
            }
        }
        let mut state = self.state.lock();
        if !state.closed && state.loaded {
            state.write(&self.disk, durable);
        }
    }

    /// Removes the files of what is below `position`, as the log does.
    pub(super) fn drop_below(&self, position: u64) {
        self.state.lock().forget_below(&self.disk, position);
    }

    /// Ends every use: no file is changed any more.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
    }
}

impl State {
    /// Reads on in the log, a step at most.
    fn advance(&mut self, disk: &Disk, log: &CommitLog, reach: Reach) -> Result<Progress> {
        self.load(disk, log, reach.end)?;
        self.forget_below(disk, log.min_position());
        let goal = reach.end.min(reach.keyed);
        let stop = goal.min(self.fresh.range.end.saturating_add(STEP));
        let mut text = String::new();
        while self.fresh.range.end < stop {
            let fresh = &mut self.fresh;
            let mut taken = true;
            log.visit(fresh.range.end..stop, |record| {
                taken = gather(fresh, record, &mut text);
                taken
            })?;
            if taken {
                fresh.range.end = fresh.range.end.max(stop);
            } else if !self.write(disk, reach.durable) {
                return Ok(Progress::Full);
            }
        }
        if stop < goal {
            return Ok(Progress::More);
        }
        // What follows has no keys.
        self.fresh.range.end = self.fresh.range.end.max(reach.end);
        Ok(Progress::Done)
    }

    /// Finds the files of the directory, those that follow each other from the beginning of the log.
    fn load(&mut self, disk: &Disk, log: &CommitLog, end: u64) -> Result<()> {
        if self.loaded {
            return Ok(());
        }
        let min = log.min_position();
        let mut found = KeyFile::list(&*disk.storage)?;
        found.sort_by_key(|file| (file.range.start, Reverse(file.range.end)));
        for file in found {
            let begins = match self.files.last() {
                Some(last) => last.range.end == file.range.start,
                None => file.range.start <= min,
            };
            let useful = file.range.end > min && file.range.end <= end && !file.range.is_empty();
            if begins && useful { self.files.push(file) } else { file.remove(&*disk.storage) }
        }
        self.fresh = Gathered::at(self.files.last().map_or(min, |last| last.range.end));
        self.loaded = true;
        Ok(())
    }

    /// Writes what was gathered, unless part of it could be lost with the power: then, and if it
    /// cannot be written, it stays in memory.
    fn write(&mut self, disk: &Disk, durable: u64) -> bool {
        if self.fresh.range.is_empty() || self.fresh.range.end > durable {
            return false;
        }
        let mut before = self.files.pop();
        if let Some(file) = &mut before {
            // One that cannot be read stays what it is, until it is looked at.
            let _ = file.open(&*disk.storage, disk.store_id);
        }
        let written = KeyFile::write(&*disk.storage, disk.store_id, &self.fresh, &mut before);
        self.files.extend(before);
        let Ok(file) = written else { return false };
        self.fresh = Gathered::at(file.range.end);
        self.files.push(file);
        true
    }

    /// What `check` makes of the newest records that are wanted, or which file is damaged.
    fn search<T>(
        &mut self,
        disk: &Disk,
        log: &CommitLog,
        reach: Reach,
        wanted: &Wanted,
        check: &impl Fn(u64) -> Result<Option<T>>,
    ) -> Result<std::result::Result<Vec<T>, usize>> {
        let mut found = Found { wanted, check, last: None, all: Vec::new() };
        // What there was no memory for.
        let mut uncovered = Vec::new();
        let mut text = String::new();
        let rest = self.fresh.range.end..reach.end.min(reach.keyed).max(self.fresh.range.end);
        log.visit(rest, |record| {
            let wanted = hashes(record, &mut text).any(|hash| hash == wanted.hash);
            uncovered.extend(wanted.then(|| record.position()));
            true
        })?;
        found.add(uncovered.into_iter().rev())?;
        found.add(self.fresh.positions(wanted.hash))?;
        for (nth, file) in self.files.iter_mut().enumerate().rev() {
            if found.all.len() >= wanted.max {
                break;
            }
            match file.open(&*disk.storage, disk.store_id) {
                Err(Error::Corrupt { .. }) => return Ok(Err(nth)),
                opened => opened?,
            }
            let times = file.times();
            // Store times never decrease along the log.
            if !times.is_empty() && times.end() < wanted.times.start() {
                break;
            }
            if times.start() <= wanted.times.end() {
                found.add(file.positions(wanted.hash))?;
            }
        }
        Ok(Ok(found.all))
    }

    fn forget_below(&mut self, disk: &Disk, position: u64) {
        let gone = self.files.iter().take_while(|file| file.range.end <= position).count();
        self.files.drain(..gone).for_each(|file| file.remove(&*disk.storage));
        if self.fresh.range.end < position {
            self.fresh = Gathered::at(position);
        }
    }

    /// Gives up the files from number `nth` on, to read that part of the log again.
    fn forget_from(&mut self, disk: &Disk, nth: usize) {
        self.fresh = Gathered::at(self.files[nth].range.start);
        self.files.drain(nth..).for_each(|file| file.remove(&*disk.storage));
    }
}

/// What a search has come upon.
struct Found<'a, T, C> {
    wanted: &'a Wanted,
    check: &'a C,
    /// Equal hashes of one record follow each other.
    last: Option<u64>,
    all: Vec<T>,
}

impl<T, C: Fn(u64) -> Result<Option<T>>> Found<'_, T, C> {
    /// Adds the records at `positions`, newest first, that pass the check.
    fn add(&mut self, positions: impl Iterator<Item = u64>) -> Result<()> {
        for position in positions {
            if self.all.len() >= self.wanted.max {
                break;
            }
            if self.last.replace(position) != Some(position) {
                self.all.extend((self.check)(position)?);
            }
        }
        Ok(())
    }
}

/// The hash under which a key of a topic is indexed (STORE-37).
pub(super) fn key_hash(topic: &str, key: &str) -> u32 {
    string_hash(&format!("{topic}#{key}")).cast_unsigned()
}

/// Takes over the keys of a record; false if there is no room for them.
fn gather(fresh: &mut Gathered, record: &Record<'_>, text: &mut String) -> bool {
    let position = record.position();
    if record.has(KEYED) {
        if !fresh.takes(position) {
            return false;
        }
        hashes(record, text).for_each(|hash| fresh.add(hash, position, record.store_ms()));
    }
    fresh.range.end = position + record.length() as u64;
    true
}

/// The hashes of a record's keys (STORE-38). `text` is room to work in.
fn hashes<'a>(record: &Record<'a>, text: &'a mut String) -> impl Iterator<Item = u32> + use<'a> {
    let keyed = record.kind() == Kind::Message && record.has(KEYED);
    let (topic, properties) =
        if keyed { (record.topic(), record.properties()) } else { (&[][..], &[][..]) };
    text.clear();
    text.push_str(std::str::from_utf8(topic).unwrap_or_default());
    text.push('#');
    let prefix = text.len();
    Properties(properties).keys().map(move |key| {
        text.truncate(prefix);
        text.push_str(key);
        string_hash(text).cast_unsigned()
    })
}
