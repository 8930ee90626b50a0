//! Opening a directory: a clean one by its metadata, any other by reading the log (docs/design.md).
//!
//! Nothing is changed before it is decided that the directory can be opened. Then, in this order:
//! what a cut removes is kept aside, later files go, a filler covers the torn part, all is made
//! durable, and a checkpoint is written. Each step may be the last one: the next open begins anew
//! and comes to the same end.

use super::checkpoint::{Checkpoint, clean_end, unmark_clean};
use super::commit_log::{CommitLog, Opened, next_base_value};
use super::cut;
use super::delay_table::{DelayTable, KnownDelays};
use super::files::{self, HEAD, IMPOSSIBLE, corrupt, io_error};
use super::flushed_mark::{Flushed, FlushedMark};
use super::groups::Groups;
use super::index_arena::{self, IndexArena, Trust};
use super::key_file;
use super::log_file::{self, FOLDER, LogFile, file_name};
use super::lost_offsets;
use super::offsets::Offsets;
use super::rebuild::{Misfit, Rebuild};
use super::record::{ALIGN, HEADER, filler, u64_at};
use super::report::{Boot, RecoveryReport};
use super::salvage::{self, Salvage, Salvaged};
use super::scan::{Behind, End, Found, RawFile, behind, name_at, open_files, replay, verify};
use super::slots::Slots;
use super::tail::Tail;
use super::topic::Topic;
use super::topic_event::{Change, TopicEvent};
use super::topics::Topics;
use super::{Recovery, STORE_KIND, STORE_NAME, StoreConfig};
use crate::error::Result;
use crate::storage::{SegmentWriter, Storage};
use crate::sync::{Arc, Counted};
use std::cmp::Ordering;
use std::collections::HashMap;
use std::path::PathBuf;

pub(super) const NEXT_BASE: &str = "meta/next_base";
pub(super) const NEXT_BASE_KIND: [u8; 4] = *b"nbas";

/// Everything that a store consists of after opening.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub(crate) store_id: u64,
    pub(crate) log: CommitLog,
    pub(crate) arena: IndexArena,
    pub(crate) topics: Topics,
    pub(crate) groups: Groups,
    pub(crate) offsets: Offsets,
    pub(crate) mark: FlushedMark,
    /// The position below which everything had been made durable before.
    pub(crate) durable: u64,
    /// The position of the last checkpoint, if there is one.
    pub(crate) checkpoint: Option<u64>,
    /// Which messages wait to be due.
    pub(crate) delays: KnownDelays,
    pub(crate) report: RecoveryReport,
}

/// Opens the directory behind `storage`, whose lock the caller holds.
pub(crate) fn recover(
    storage: &Arc<dyn Storage>,
    config: &StoreConfig,
    now_ms: u64,
) -> Result<Recovered> {
    for folder in [FOLDER, index_arena::FOLDER, key_file::FOLDER, "meta"] {
        let made = storage.make_folder(folder);
        made.map_err(|e| io_error(&**storage, "create", folder, e))?;
    }
    let store_id = store_id(&**storage)?;
    let (checkpoint, unreadable) = match Checkpoint::load(&**storage, store_id) {
        Ok(checkpoint) => (checkpoint, None),
        Err(crate::Error::Corrupt { reason, .. }) => (None, Some(reason)),
        Err(other) => return Err(other),
    };
    let kept = match config.recovery {
        Recovery::Strict => Vec::new(),
        Recovery::Salvage => salvage::marks(&**storage, store_id)?,
    };
    let (mark, flushed) = FlushedMark::open(storage, store_id)?;
    let mut report = RecoveryReport::new(Boot::of(&**storage, flushed), kept);
    let flushed = flushed.unwrap_or(Flushed { position: 0, attempted: u64::MAX, same_boot: false });
    let (topics, known_topics) = Topics::open(storage, store_id)?;
    let known_delays = DelayTable::read(&**storage, store_id)?;
    let groups = Groups::open(storage, store_id)?;
    let offset_files = checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.offset_files);
    if config.recovery == Recovery::Salvage {
        // Where there is a group, there was a file.
        let expected = offset_files.max(u64::from(groups.is_old(0)));
        lost_offsets::replace(&**storage, store_id, expected)?;
    }
    let (offsets, unreadable_offsets) = Offsets::open(storage, store_id, offset_files)?;
    (report.unreadable_offsets, report.lost_offset_files) =
        (unreadable_offsets, offsets.lost_files());
    groups.check(&**storage, &offsets)?;
    let (slots, value) =
        Slots::open(storage, NEXT_BASE, NEXT_BASE_KIND, store_id, &next_base_value(0))?;
    let next_base = (slots, value.map_or(0, |value| u64_at(&value, 0)));
    if next_base.1 > IMPOSSIBLE {
        return Err(corrupt(&**storage, NEXT_BASE, 0, "it names an impossible position"));
    }

    let known = checkpoint.as_ref();
    let known_end = flushed.position.max(known.map_or(0, |known| known.position));
    let min_position = known.map(|known| known.min_position);
    let open_files = || open_files(&**storage, store_id, min_position, known_end);
    let Found { files: mut raw, leftovers, unfit } = match config.recovery {
        Recovery::Strict => open_files()?,
        Recovery::Salvage => {
            let found = Salvaged::default();
            let (storage, next_base) = (&**storage, next_base.1);
            let mut salvage =
                Salvage { storage, store_id, checkpoint: known, flushed, next_base, found };
            salvage.files()?;
            let mut files = open_files()?;
            salvage.records(&mut files.files)?;
            report.salvaged(salvage.found);
            files
        }
    };
    let clean = clean_end(&**storage, store_id)?
        .filter(|end| known.is_some_and(|known| *end == known.position));
    let clean = match clean {
        Some(end) if !record_at(&**storage, store_id, &mut raw, end)? => Some(end),
        _ => None,
    };
    report.clean = clean.is_some();

    let (rebuild, behind) = (Rebuild::default(), Behind::Nothing);
    let mut reading = Reading {
        storage,
        store_id,
        config,
        now_ms,
        raw,
        leftovers,
        unfit,
        next_base,
        rebuild,
        behind,
    };
    reading.start_over(&known_topics, known);
    let is_known = known.is_some();
    let checkpoint = checkpoint.unwrap_or_default();
    let delays_as_of = checkpoint.delays_as_of;
    // What it says of a later time than the checkpoint is in the log as well.
    reading.rebuild.delays = if delays_as_of > 0 { known_delays } else { KnownDelays::default() };
    let mut end = match clean {
        Some(end) => reading.clean_end(end)?,
        None => reading.verify(checkpoint.position, flushed, known_end)?,
    };
    let with_index = match config.recovery {
        _ if config.rebuild => Err(Misfit("asked for")),
        // Damage of the index can be a lie that nothing gives away.
        Recovery::Salvage => Err(Misfit("a salvage relies on the log alone")),
        Recovery::Strict => reading.with_index(&checkpoint, clean.is_some(), &end)?,
    };
    let arena = match with_index {
        Ok(arena) => arena,
        Err(Misfit(reason)) => {
            report.index_rebuilt = is_known.then_some(unreadable.unwrap_or(reason));
            report.clean = false;
            reading.start_over(&known_topics, is_known.then_some(&checkpoint));
            end = reading.verify(0, flushed, known_end)?;
            reading.without_index(&checkpoint, &end)?
        }
    };
    report.records_scanned = report.records_scanned.max(end.records);
    report.bytes_scanned = report.bytes_scanned.max(end.bytes);
    report.lost = reading.rebuild.lost();

    if !report.clean {
        // See `FlushedMark`: a sync of the process before may have failed.
        topics.changes().write_again()?;
        groups.write_again()?;
        offsets.write_again()?;
    }
    unmark_clean(&**storage)?;
    // What power has taken may have left an offset or a block of the index behind, which no later
    // topic is to get.
    let next_incarnation = reading.rebuild.next_incarnation().max(offsets.next_incarnation());
    reading.rebuild.free_unused(&arena);
    let position = end.position;
    let delays = std::mem::take(&mut reading.rebuild.delays);
    let (log, found, sealed) = reading.into_log(end, known_end)?;
    report.cut(sealed);
    let lacking = lacking(&known_topics, &found);
    topics.recovered(found, next_incarnation, lacking, position);
    if !report.clean {
        log.write_again(known_end..flushed.attempted)?;
    }
    let (durable, checkpoint) = (known_end, is_known.then_some(checkpoint.position));
    Ok(Recovered {
        store_id,
        log,
        arena,
        topics,
        groups,
        offsets,
        mark,
        durable,
        checkpoint,
        delays,
        report,
    })
}

/// The events that bring a table which knows these topics up to what was `found`.
fn lacking(known: &[TopicEvent], found: &[Topic]) -> Vec<TopicEvent> {
    let mut known: HashMap<u32, &TopicEvent> =
        known.iter().map(|event| (event.incarnation, event)).collect();
    let mut lacking = Vec::new();
    for topic in found {
        let event = topic.event();
        if known.remove(&topic.incarnation) != Some(&event) {
            lacking.push(event);
        }
    }
    let gone = known.into_values().cloned();
    lacking.extend(gone.map(|event| TopicEvent { change: Change::Deleted, ..event }));
    lacking
}

/// The log and the queues while they are read.
struct Reading<'a> {
    storage: &'a Arc<dyn Storage>,
    store_id: u64,
    config: &'a StoreConfig,
    now_ms: u64,
    raw: Vec<RawFile>,
    leftovers: Vec<String>,
    unfit: Option<u64>,
    next_base: (Slots, u64),
    rebuild: Rebuild,
    /// What stands behind the end.
    behind: Behind,
}

/// Where a log was cut, and the copies of what was cut off.
#[derive(Debug)]
pub(crate) struct Sealed {
    pub(crate) position: u64,
    pub(crate) kept: Vec<PathBuf>,
}

impl Reading<'_> {
    fn start_over(&mut self, topics: &[TopicEvent], checkpoint: Option<&Checkpoint>) {
        self.rebuild = Rebuild::new(checkpoint);
        topics.iter().for_each(|event| self.rebuild.topic(event.clone()));
    }

    fn clean_end(&self, position: u64) -> Result<End> {
        let file = self.raw.iter().take_while(|file| file.end() <= position).count();
        self.usable(End::at(position, file))
    }

    /// Refuses an end at which no filler could stand: behind a record there is nothing, or room
    /// for the header of another.
    fn usable(&self, end: End) -> Result<End> {
        let file = self.raw.get(end.file);
        let left = file.map_or(0, |file| file.end() - end.position.max(file.first()));
        if (1..HEADER as u64).contains(&left) || !left.is_multiple_of(ALIGN as u64) {
            let reason = "the log ends where no record can follow";
            return Err(corrupt(
                &**self.storage,
                &name_at(&self.raw, end.position),
                end.position,
                reason,
            ));
        }
        Ok(end)
    }

    /// Reads the log from `from` on, and tells a torn tail from damage.
    fn verify(&mut self, from: u64, flushed: Flushed, known_end: u64) -> Result<End> {
        let from = from.max(self.first_position());
        let end = verify(self.store_id, &mut self.raw, from);
        let damaged = |raw: &[RawFile], reason| {
            Err(corrupt(&**self.storage, &name_at(raw, end.position), end.position, reason))
        };
        if end.position < known_end {
            let missing = "records that were durable are missing from here on";
            let reason = if end.reason.is_empty() { missing } else { end.reason };
            return damaged(&self.raw, reason);
        }
        // It was sound when the log rolled over to it.
        if let Some(base) = self.unfit.filter(|_| end.file == self.raw.len()) {
            let reason = "the log goes on in this file, which has lost its head";
            return Err(corrupt(&**self.storage, &file_name(base), base, reason));
        }
        // A killed process leaves at most one torn append, at the very end.
        self.behind = behind(self.store_id, &mut self.raw, &end);
        if flushed.same_boot && matches!(self.behind, Behind::Append { .. }) {
            return damaged(&self.raw, "a damaged record stands before sound ones");
        }
        self.usable(end)
    }

    /// Uses the index files, and adds what the log has from the checkpoint on.
    fn with_index(
        &mut self,
        checkpoint: &Checkpoint,
        clean: bool,
        end: &End,
    ) -> Result<std::result::Result<IndexArena, Misfit>> {
        if !self.rebuild.delays.fits(checkpoint.delays_as_of, end.position) {
            return Ok(Err(Misfit("the table of delays lacks what the checkpoint says")));
        }
        let trust = match clean {
            true => Trust::Maxima(&checkpoint.bounds),
            false => Trust::Below(checkpoint.position),
        };
        let (id, first_file) = (self.store_id, self.config.index_bytes());
        let opened = IndexArena::open(self.storage, id, first_file, checkpoint.index_files, trust);
        let (arena, found) = match opened {
            Ok(opened) => opened,
            Err(crate::Error::Corrupt { reason, .. }) => return Ok(Err(Misfit(reason))),
            Err(other) => return Err(other),
        };
        if let Err(misfit) =
            self.rebuild.blocks(&arena, found, &checkpoint.bounds, self.first_position())
        {
            return Ok(Err(misfit));
        }
        if let Err(misfit) = self.replay(&arena, checkpoint.position, end)? {
            return Ok(Err(misfit));
        }
        Ok(self.rebuild.compare(&arena, checkpoint, false)?.map(|()| arena))
    }

    /// Starts the index anew, from the whole log.
    fn without_index(&mut self, checkpoint: &Checkpoint, end: &End) -> Result<IndexArena> {
        // The mark first: half of a new index must never pass for that of a clean close.
        unmark_clean(&**self.storage)?;
        index_arena::remove_all(&**self.storage)?;
        let (id, first_file) = (self.store_id, self.config.index_bytes());
        let (arena, _) = IndexArena::open(self.storage, id, first_file, 0, Trust::Below(0))?;
        let replayed = self.replay(&arena, 0, end)?;
        let compared = match replayed {
            Ok(()) => self.rebuild.compare(&arena, checkpoint, true)?,
            misfit => misfit,
        };
        match compared {
            Ok(()) => Ok(arena),
            Err(Misfit(reason)) => Err(corrupt(&**self.storage, FOLDER, end.position, reason)),
        }
    }

    fn replay(
        &mut self,
        arena: &IndexArena,
        from: u64,
        end: &End,
    ) -> Result<std::result::Result<(), Misfit>> {
        let rebuild = &mut self.rebuild;
        let mut misfit = Ok(());
        replay(&mut self.raw, from, end.position, |record| {
            if misfit.is_ok() {
                misfit = rebuild.record(arena, record)?;
            }
            Ok(())
        })?;
        Ok(misfit)
    }

    fn first_position(&self) -> u64 {
        self.raw.first().map_or(0, RawFile::first)
    }

    /// Cuts what is torn, and makes a log of the files.
    fn into_log(
        mut self,
        end: End,
        known_end: u64,
    ) -> Result<(CommitLog, Vec<Topic>, Option<Sealed>)> {
        let (storage, store_id, size) = (self.storage, self.store_id, self.config.segment_bytes);
        let after = self.raw.last().map_or(0, RawFile::end).max(known_end);
        let mut next_base = self.next_base.1.max(after);

        // Sound records can stand behind a torn append: its own, or what power loss left.
        let torn = end.torn || self.behind != Behind::Nothing;
        let sealed = match torn && end.file < self.raw.len() {
            true => Some(Sealed { position: end.position, kept: self.keep_aside(&end)? }),
            false => None,
        };
        // An empty file can wait for the tail; more than one is left by a loss of power.
        let kept = end.file + if sealed.is_some() { 1 } else { 2 };
        let remove =
            |name: &str| storage.unlink(name).map_err(|e| io_error(&**storage, "remove", name, e));
        let sync =
            || storage.sync_folder(FOLDER).map_err(|e| io_error(&**storage, "sync", FOLDER, e));
        // The last one first, and durably: one that is left behind a missing one would be damage.
        for file in self.raw.drain(kept.min(self.raw.len())..).rev() {
            remove(&file_name(file.base))?;
            sync()?;
        }
        for name in &self.leftovers {
            remove(name)?;
        }
        sync()?;

        let mut list = Vec::new();
        let mut tail: Option<(u64, SegmentWriter)> = None;
        let mut next: Option<(u64, SegmentWriter)> = None;
        for (nth, mut file) in self.raw.into_iter().enumerate() {
            let (base, len) = (file.base, file.carver.left());
            let filled = match nth.cmp(&end.file) {
                Ordering::Less => len,
                Ordering::Equal => (end.position.max(file.first()) - base) as usize,
                Ordering::Greater => HEAD,
            };
            let Some(mut writer) = file.carver.carve(len, filled) else { continue };
            if sealed.is_some() && nth == end.file {
                seal(store_id, base, &mut writer);
                let synced = writer.segment().sync(0..len);
                synced.map_err(|e| io_error(&**storage, "sync", &file_name(base), e))?;
            }
            list.push(Counted::new(LogFile::found(base, file.made_ms, &writer)));
            // A full file can be the tail as well: the first append rolls over.
            let place = if nth > end.file { &mut next } else { &mut tail };
            *place = Some((base, writer));
        }
        let mut slots = self.next_base.0;
        let (base, writer) = match tail {
            Some(tail) => tail,
            None => {
                let base = next_base;
                next_base += size;
                slots.set(&next_base_value(next_base))?;
                slots.sync()?;
                let place = log_file::Place { store_id, base, after: 0, made_ms: self.now_ms };
                let writer = log_file::create(&**storage, place, size, false)?;
                list.push(Counted::new(LogFile::made(base, self.now_ms, &writer)));
                (base, writer)
            }
        };
        let mut tail = Tail::new(store_id, base, writer, self.rebuild.last_store_ms);
        if let Some((base, writer)) = next {
            tail.set_next(base, writer);
        }
        let topics = self.rebuild.finish(store_id, &mut tail);
        let opened = Opened { files: list, tail, next_base, slots };
        let log = CommitLog::new(storage, store_id, size, self.config.most_ahead(), opened);
        Ok((log, topics, sealed))
    }

    /// Keeps copies of what a cut removes if it holds sound records: the rest of the file of the
    /// cut, and the later files.
    fn keep_aside(&mut self, end: &End) -> Result<Vec<PathBuf>> {
        let mut kept = Vec::new();
        for (nth, file) in self.raw.iter_mut().enumerate().skip(end.file) {
            let here = nth == end.file;
            let from = if here { end.position.max(file.first()) } else { file.first() };
            // A torn append alone is worth nothing, and there may be no room for a copy.
            if file.find(self.store_id, from, |_| true).is_some() {
                kept.extend(cut::keep(&**self.storage, from, file.bytes(from))?);
            }
        }
        Ok(kept)
    }
}

/// Covers the rest of a segment by a filler, and zeroes it: nothing in it can come back.
fn seal(store_id: u64, base: u64, writer: &mut SegmentWriter) {
    let left = writer.remaining();
    // Otherwise nothing is left: see `usable`.
    if left >= HEADER {
        writer.write(&filler(store_id, base + writer.cursor() as u64, left));
        writer.zero_rest();
        writer.skip_rest();
    }
    writer.publish();
}

/// Whether a sound record follows at `position`: then a clean mark there is out of date.
fn record_at(
    storage: &dyn Storage,
    store_id: u64,
    raw: &mut [RawFile],
    position: u64,
) -> Result<bool> {
    let Some(file) = raw.iter_mut().find(|file| position < file.end()) else { return Ok(false) };
    let position = position.max(file.first());
    Ok(file.begins(storage, position)? && file.sound(store_id, position).is_ok())
}

/// The id of the store; a new one in an empty directory.
fn store_id(storage: &dyn Storage) -> Result<u64> {
    if let Some((id, _)) = files::load(storage, STORE_NAME, STORE_KIND)? {
        return Ok(id);
    }
    let names = storage.list(FOLDER).map_err(|e| io_error(storage, "list", FOLDER, e))?;
    if names.iter().any(|name| name.len() == 20) {
        return Err(corrupt(storage, STORE_NAME, 0, "the file is missing from a used directory"));
    }
    let id = storage.random().map_err(|e| io_error(storage, "make an id for", STORE_NAME, e))?;
    files::save(storage, STORE_NAME, STORE_KIND, id, b"rocklet")?;
    Ok(id)
}
