//! A copy of an open store, taken while it is in use.

use super::checkpoint::Checkpoint;
use super::commit_log::next_base_value;
use super::files::{self, HEAD, io_error};
use super::groups::Groups;
use super::log_file::{self, FOLDER, LogFile, Place};
use super::offsets::Offsets;
use super::recover::{NEXT_BASE, NEXT_BASE_KIND};
use super::slots::Slots;
use super::topic_event::{Change, TopicEvent};
use super::topics::Topics;
use super::{Recovery, STORE_KIND, STORE_NAME, Store, StoreConfig};
use crate::error::{Error, Result};
use crate::storage::{Staging, Storage};
use crate::sync::{Arc, Counted};
use std::collections::BTreeSet;
use std::path::Path;

impl Store {
    /// Makes a copy under another name, and gives it the name `to` when it is whole.
    pub(crate) fn backup(&self, to: &Path) -> Result<()> {
        let failed = |source| Error::Io { action: "make a backup in", file: to.to_owned(), source };
        let staging = Staging::new(to).map_err(failed)?;
        let directory: Arc<dyn Storage> = Arc::new(staging.directory().map_err(failed)?);
        self.copy_into(&directory)?;
        staging.place().map_err(failed)
    }

    /// Copies everything that has been appended and committed into the empty directory behind
    /// `to`, then opens the copy, which reads and verifies all of it, and closes it cleanly.
    pub(crate) fn copy_into(&self, to: &Arc<dyn Storage>) -> Result<()> {
        for folder in [FOLDER, "meta"] {
            to.make_folder(folder).map_err(|e| io_error(&**to, "create", folder, e))?;
        }
        // In this order: no offset beyond its queue, no queue beyond the log, and the log begins
        // no later than its queues.
        let mut offsets = self.offsets.all();
        let groups = self.groups.entries();
        let mut files = self.log.files().to_vec();
        let topics = self.topics.all();
        let next_incarnation = self.topics.changes().next_incarnation;
        let live: BTreeSet<u32> = topics.iter().map(|topic| topic.incarnation).collect();
        offsets.retain(|(key, _)| live.contains(&key.incarnation));
        let queues = topics.iter().flat_map(|topic| topic.queues.iter());
        let bounds =
            queues.map(|queue| ((queue.incarnation, queue.queue), queue.min()..queue.max()));
        let bounds = bounds.filter(|(_, bounds)| bounds.end > 0).collect();
        let (position, last_store_ms) =
            self.log.with_tail(|tail| (tail.committed(), tail.last_store_ms()));
        let behind = files.last().map_or(0, |file| file.end());
        files.extend(self.log.files().iter().filter(|file| file.base >= behind).cloned());
        files.retain(|file| file.base < position);

        let store_id = self.store_id;
        let min_position = files.first().map_or(0, |file| file.base);
        let next_base = files.last().map_or(0, |file| file.end());
        let value = next_base_value(next_base);
        Slots::open(to, NEXT_BASE, NEXT_BASE_KIND, store_id, &value)?;
        let mut after = min_position;
        for file in &files {
            let (base, made_ms) = (file.base, file.made_ms);
            copy(file, &**to, Place { store_id, base, after, made_ms }, position)?;
            after = file.end();
        }
        let (table, _) = Topics::open(to, store_id)?;
        // The last incarnation may be one that is gone, and is not to be given again.
        let incarnation = next_incarnation.saturating_sub(1);
        let last = TopicEvent { name: String::new(), incarnation, change: Change::Deleted };
        table.changes().note(position, last);
        topics.iter().for_each(|topic| table.changes().note(position, topic.event()));
        table.save(position)?;
        let table = Groups::open(to, store_id)?;
        table.restore(&groups)?;
        let (cells, _) = Offsets::open(to, store_id, 0)?;
        cells.prepare(false)?;
        for (key, offset) in offsets {
            cells.set(key, offset)?;
        }
        cells.sync()?;
        let checkpoint = Checkpoint {
            position,
            min_position,
            index_files: 0,
            last_store_ms,
            topics: topics.len() as u64,
            offset_files: cells.files(),
            delays_as_of: 0,
            bounds,
        };
        checkpoint.save(&**to, store_id)?;
        // Last: without it the directory holds no store.
        files::save(&**to, STORE_NAME, STORE_KIND, store_id, b"rocklet")?;

        // A copy of what is damaged is no copy, even if the original was opened to salvage it.
        let recovery = Recovery::Strict;
        let config = StoreConfig { rebuild: true, recovery, ..self.config.clone() };
        Self::open(to.clone(), config, self.clock.clone())?.close()
    }
}

/// Copies what a log file holds below `end`.
fn copy(file: &Counted<LogFile>, to: &dyn Storage, place: Place, end: u64) -> Result<()> {
    let used = (end.min(file.end()) - file.base) as usize;
    // All of it is published: the end was read later.
    let content = file.segment.read(HEAD..used.max(HEAD)).unwrap_or_default();
    log_file::replace(to, place, file.segment.capacity() as u64, content)
}
