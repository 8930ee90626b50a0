//! Opening a directory: a clean one by its metadata, any other by reading the log (DESIGN 9).
//!
//! Nothing is changed before it is decided that the directory can be opened. Then, in this order:
//! what a cut removes is kept aside, later files go, a filler covers the torn part, all is made
//! durable, and a checkpoint is written. Each step may be the last one: the next open begins anew
//! and comes to the same end.

use super::checkpoint::{Checkpoint, clean_end, unmark_clean};
use super::commit_log::{CommitLog, Opened, next_base_value};
use super::files::{self, HEAD, corrupt, io_error};
use super::flush::{Flushed, FlushedMark};
use super::index_arena::{self, IndexArena, Trust};
use super::log_file::{self, FOLDER, LogFile, file_name};
use super::rebuild::{Misfit, Rebuild};
use super::record::{CONTINUED, Record, filler, u64_at};
use super::report::RecoveryReport;
use super::scan::{End, RawFile, name_at, open_files, replay, sound_after, verify};
use super::slots::Slots;
use super::tail::Tail;
use super::topics::{TopicEvent, Topics};
use super::{StoreConfig, STORE_KIND, STORE_NAME};
use crate::error::Result;
use crate::storage::{SegmentWriter, Storage};
use crate::sync::Arc;

/// Everything that a store consists of after opening.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub(crate) store_id: u64,
    pub(crate) log: CommitLog,
    pub(crate) arena: IndexArena,
    pub(crate) topics: Topics,
    pub(crate) mark: FlushedMark,
    pub(crate) report: RecoveryReport,
}

/// Opens the directory behind `storage`, whose lock the caller holds.
pub(crate) fn recover(storage: &Arc<dyn Storage>, config: &StoreConfig) -> Result<Recovered> {
    for folder in [FOLDER, index_arena::FOLDER, "meta"] {
        let made = storage.make_folder(folder);
        made.map_err(|e| io_error(&**storage, "create", folder, e))?;
    }
    let store_id = store_id(&**storage)?;
    let (checkpoint, unreadable) = match Checkpoint::load(&**storage, store_id) {
        Ok(checkpoint) => (checkpoint, None),
        Err(crate::Error::Corrupt { reason, .. }) => (None, Some(reason)),
        Err(other) => return Err(other),
    };
    let known = checkpoint.is_some();
    let checkpoint = checkpoint.unwrap_or_default();
    let (mark, flushed) = FlushedMark::open(storage, store_id)?;
    let flushed = flushed.unwrap_or(Flushed { position: 0, same_boot: false });
    let known_end = flushed.position.max(checkpoint.position);
    let mut raw = open_files(&**storage, store_id, checkpoint.min_position, known_end)?;
    let (topics, known_topics) = Topics::open(storage, store_id)?;
    let clean = clean_end(&**storage, store_id)?
        .filter(|end| known && *end == checkpoint.position && !record_at(store_id, &mut raw, *end));

    let mut reading = Reading { storage, store_id, config, raw, rebuild: Rebuild::default() };
    reading.start_over(&known_topics, &checkpoint);
    let mut report = RecoveryReport { clean: clean.is_some(), ..RecoveryReport::default() };
    let mut end = match clean {
        Some(end) => reading.clean_end(end),
        None => reading.verify(checkpoint.position, flushed, known_end)?,
    };
    let arena = match reading.with_index(&checkpoint, clean.is_some(), &end)? {
        Ok(arena) => arena,
        Err(Misfit(reason)) => {
            report.index_rebuilt = known.then_some(unreadable.unwrap_or(reason));
            report.clean = false;
            reading.start_over(&known_topics, &checkpoint);
            end = reading.verify(0, flushed, known_end)?;
            reading.without_index(&checkpoint, &end)?
        }
    };
    (report.records_scanned, report.bytes_scanned) = (end.records, end.bytes);

    unmark_clean(&**storage)?;
    let (log, topics_found, sealed) = reading.into_log(end, known_end)?;
    report.cut_at = sealed;
    for topic in &topics_found {
        let known = known_topics.iter().any(|event| {
            event.incarnation == topic.incarnation && usize::from(event.queues) == topic.queues.len()
        });
        if !known {
            topics.changes().note(topic.event());
        }
    }
    topics.insert(&mut topics.changes(), topics_found);
    Ok(Recovered { store_id, log, arena, topics, mark, report })
}

/// The log and the queues while they are read.
struct Reading<'a> {
    storage: &'a Arc<dyn Storage>,
    store_id: u64,
    config: &'a StoreConfig,
    raw: Vec<RawFile>,
    rebuild: Rebuild,
}

impl Reading<'_> {
    fn start_over(&mut self, topics: &[TopicEvent], checkpoint: &Checkpoint) {
        self.rebuild = Rebuild::default();
        self.rebuild.last_store_ms = checkpoint.last_store_ms;
        topics.iter().for_each(|event| self.rebuild.topic(event.clone()));
    }

    fn clean_end(&self, position: u64) -> End {
        let file = self.raw.iter().take_while(|file| file.end() <= position).count();
        End { position, file, torn: false, reason: "", records: 0, bytes: 0 }
    }

    /// Reads the log from `from` on, and tells a torn tail from damage.
    fn verify(&mut self, from: u64, flushed: Flushed, known_end: u64) -> Result<End> {
        let from = from.max(self.first_position());
        let end = verify(self.store_id, &mut self.raw, from);
        let damaged = |raw: &[RawFile], reason| {
            Err(corrupt(&**self.storage, &name_at(raw, end.position), end.position, reason))
        };
        if self.raw.is_empty() && known_end > 0 {
            return damaged(&self.raw, "the log files are missing");
        }
        if end.position < known_end {
            let missing = "records that were durable are missing from here on";
            let reason = if end.reason.is_empty() { missing } else { end.reason };
            return damaged(&self.raw, reason);
        }
        // A killed process leaves at most one torn append, at the very end.
        let of_another = |record: &Record<'_>| !record.has(CONTINUED);
        if flushed.same_boot && sound_after(self.store_id, &mut self.raw, &end, of_another) {
            return damaged(&self.raw, "a damaged record stands before sound ones");
        }
        Ok(end)
    }

    /// Uses the index files, and adds what the log has from the checkpoint on.
    fn with_index(
        &mut self,
        checkpoint: &Checkpoint,
        clean: bool,
        end: &End,
    ) -> Result<std::result::Result<IndexArena, Misfit>> {
        let trust = match clean {
            true => Trust::Maxima(&checkpoint.maxima),
            false => Trust::Below(checkpoint.position),
        };
        let (id, first_file) = (self.store_id, self.config.index_bytes());
        let opened = IndexArena::open(self.storage, id, first_file, checkpoint.index_files, trust);
        let (arena, found) = match opened {
            Ok(opened) => opened,
            Err(crate::Error::Corrupt { reason, .. }) => return Ok(Err(Misfit(reason))),
            Err(other) => return Err(other),
        };
        if let Err(misfit) = self.rebuild.blocks(found, &checkpoint.maxima, self.first_position()) {
            return Ok(Err(misfit));
        }
        match self.replay(&arena, checkpoint.position, end)? {
            Ok(()) => self.rebuild.floors(&arena, &checkpoint.maxima)?,
            Err(misfit) => return Ok(Err(misfit)),
        }
        Ok(Ok(arena))
    }

    /// Starts the index anew, from the whole log.
    fn without_index(&mut self, checkpoint: &Checkpoint, end: &End) -> Result<IndexArena> {
        index_arena::remove_all(&**self.storage)?;
        let (id, first_file) = (self.store_id, self.config.index_bytes());
        let (arena, _) = IndexArena::open(self.storage, id, first_file, 0, Trust::Below(0))?;
        if let Err(Misfit(reason)) = self.replay(&arena, 0, end)? {
            return Err(corrupt(&**self.storage, FOLDER, end.position, reason));
        }
        self.rebuild.floors(&arena, &checkpoint.maxima)?;
        Ok(arena)
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
    ) -> Result<(CommitLog, Vec<super::topics::Topic>, Option<u64>)> {
        let (storage, store_id, size) = (self.storage, self.store_id, self.config.segment_bytes);
        let after = self.raw.iter().map(RawFile::end).max().unwrap_or(0).max(known_end);
        let initial = next_base_value(0);
        let opened = Slots::open(storage, "meta/next_base", *b"nbas", store_id, &initial)?;
        let (mut slots, value) = opened;
        let mut next_base = value.map_or(0, |value| u64_at(&value, 0)).max(after);

        // Sound records can stand behind a torn append: its own, or what power loss left.
        let behind = end.torn || sound_after(store_id, &mut self.raw, &end, |_| true);
        let sealed = (behind && end.file < self.raw.len()).then_some(end.position);
        if sealed.is_some() {
            self.keep_aside(&end)?;
            for file in self.raw.drain(end.file + 1..) {
                let name = file_name(file.base);
                storage.unlink(&name).map_err(|e| io_error(&**storage, "remove", &name, e))?;
            }
            storage.sync_folder(FOLDER).map_err(|e| io_error(&**storage, "sync", FOLDER, e))?;
        }
        let mut list = Vec::new();
        let mut tail: Option<(u64, SegmentWriter)> = None;
        let mut next: Option<(u64, SegmentWriter)> = None;
        for (nth, mut file) in self.raw.into_iter().enumerate() {
            let base = file.base;
            let len = file.carver.left();
            let filled = match nth.cmp(&end.file) {
                std::cmp::Ordering::Less => len,
                std::cmp::Ordering::Equal => {
                    (end.position.max(file.first()) - base) as usize
                }
                std::cmp::Ordering::Greater => HEAD,
            };
            let Some(mut writer) = file.carver.carve(len, filled) else { continue };
            if sealed.is_some() && nth == end.file {
                seal(store_id, base, &mut writer);
                let synced = writer.segment().sync(0..len);
                synced.map_err(|e| io_error(&**storage, "sync", &file_name(base), e))?;
            }
            list.push(Arc::new(LogFile { base, segment: writer.segment().clone() }));
            if nth == end.file && sealed.is_none() {
                tail = Some((base, writer));
            } else if nth > end.file && next.is_none() {
                next = Some((base, writer));
            }
        }
        let (base, writer) = match tail {
            Some(tail) => tail,
            None => {
                let base = next_base;
                next_base += size;
                slots.set(&next_base_value(next_base))?;
                slots.sync()?;
                let writer = log_file::create(&**storage, store_id, base, size)?;
                list.push(Arc::new(LogFile { base, segment: writer.segment().clone() }));
                (base, writer)
            }
        };
        let mut tail = Tail::new(store_id, base, writer, self.rebuild.last_store_ms);
        if let Some((base, writer)) = next {
            tail.set_next(base, writer);
        }
        let topics = self.rebuild.finish(&mut tail);
        let opened = Opened { files: list, tail, next_base, slots };
        let log = CommitLog::new(storage, store_id, size, self.config.most_ahead(), opened);
        Ok((log, topics, sealed))
    }

    /// Copies what a cut removes to `cut/<position>`, durably.
    fn keep_aside(&mut self, end: &End) -> Result<()> {
        let storage = &**self.storage;
        let Some(file) = self.raw.get_mut(end.file) else { return Ok(()) };
        let bytes = file.bytes(end.position);
        let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        let name = format!("cut/{:020}", end.position);
        let failed = |action, source| io_error(storage, action, &name, source);
        storage.make_folder("cut").map_err(|e| failed("create", e))?;
        let copy = storage.create(&name, used as u64).map_err(|e| failed("create", e))?;
        copy.write_at(0, &bytes[..used]).map_err(|e| failed("write", e))?;
        copy.sync().map_err(|e| failed("sync", e))?;
        storage.sync_folder("cut").map_err(|e| failed("sync", e))
    }
}

/// Covers the rest of a segment by a filler, and zeroes it: nothing in it can come back.
fn seal(store_id: u64, base: u64, writer: &mut SegmentWriter) {
    let left = writer.remaining();
    if left > 0 {
        writer.write(&filler(store_id, base + writer.cursor() as u64, left));
        writer.zero_rest();
        writer.skip_rest();
    }
    writer.publish();
}

/// Whether a sound record stands at `position`: then a clean mark there is out of date.
fn record_at(store_id: u64, raw: &mut [RawFile], position: u64) -> bool {
    let file = raw.iter_mut().find(|file| file.base <= position && position < file.end());
    file.is_some_and(|file| file.sound(store_id, position).is_ok())
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
