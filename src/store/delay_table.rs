//! The table of delays: which messages waited as of a checkpoint, in `meta/delays`.
//!
//! Each entry says up to where it goes in the log, and what has changed since the one before; so a
//! checkpoint costs as much as has changed, and recovery reads the log from the last one on. The
//! first one of a rewritten table has all that waits. A checkpoint names the entry that has to be
//! there: what is missing or damaged is noticed by that, and made anew from the log.

use super::files::{HEAD, Head, io_error};
use super::record::{Kind, Record, u64_at};
use super::schedule::{Change, GONE, Schedule};
use super::table::Table;
use crate::error::{Error, Result};
use crate::storage::{Storage, read_all};
use crate::sync::Arc;

const FILE: &str = "meta/delays";
const KIND: [u8; 4] = *b"dely";
const PAIR: usize = 16;
/// Changes that await a checkpoint before one is written for their sake.
pub(super) const MOST_UNSAVED: usize = 1 << 16;
/// A table that is smaller is not rewritten for its size.
const SMALL: u64 = 256 << 10;

/// The table, as it is written.
#[derive(Debug, Default)]
pub(super) struct DelayTable {
    /// Opened by the first save.
    table: Option<Table>,
    /// Up to where it goes in the log.
    as_of: u64,
    /// Where its sound entries end; 0 if it is to be written anew.
    end: u64,
    /// It is not rewritten for its size before that is as large: there was no room for it.
    too_small: u64,
}

/// What is to be saved with a checkpoint.
#[derive(Debug)]
pub(crate) struct Saving {
    /// How many changes that covers.
    pub(super) changes: usize,
    whole: bool,
    content: Vec<u8>,
}

/// Which messages wait, as far as it is known when a directory is opened.
#[derive(Debug, Default)]
pub(crate) struct KnownDelays {
    /// Of everything below it is known.
    as_of: u64,
    end: u64,
    /// Ascending by position.
    words: Vec<Change>,
}

impl DelayTable {
    /// What the file says; nothing if it is not there, or makes no sense.
    pub(super) fn read(storage: &dyn Storage, store_id: u64) -> Result<KnownDelays> {
        let mut known = KnownDelays::default();
        let bytes = read_all(storage, FILE).map_err(|e| io_error(storage, "read", FILE, e))?;
        let Some(bytes) = bytes else { return Ok(known) };
        match Head::decode(storage, FILE, KIND, &bytes) {
            Ok(head) if head.store_id == store_id => {}
            Err(error @ Error::Version { .. }) => return Err(error),
            _ => return Ok(known),
        }
        let end = Table::sound_entries(store_id, &bytes, |entry| known.take(entry));
        known.end = if known.as_of > 0 { end as u64 } else { 0 };
        Ok(known)
    }

    /// Goes on with a table that was read; one that is not to be trusted is written anew.
    pub(super) fn new(known: &KnownDelays, trusted: bool) -> Self {
        let (as_of, end) = if trusted { (known.as_of, known.end) } else { (0, 0) };
        Self { table: None, as_of, end, too_small: 0 }
    }

    /// Up to where it goes in the log: 0 if it does not exist.
    pub(super) fn as_of(&self) -> u64 {
        self.as_of
    }

    /// Bytes that an entry may take for which there has to be room on a full disk.
    pub(super) fn needs(&self) -> u64 {
        if self.as_of > 0 { (HEAD + MOST_UNSAVED * PAIR) as u64 } else { 0 }
    }

    /// What is to be saved of a schedule.
    pub(super) fn saving(&self, schedule: &Schedule) -> Saving {
        let live = (HEAD + schedule.len() * PAIR) as u64;
        let whole = self.end == 0 || self.end > SMALL.max(2 * live).max(self.too_small);
        let changes = schedule.unsaved().len();
        let count = if whole { schedule.len() } else { changes };
        // Room for the position in front, and no copies: they may be millions.
        let mut content = Vec::with_capacity(8 + count * PAIR);
        content.extend_from_slice(&[0; 8]);
        let mut add = |(position, word): Change| {
            content.extend_from_slice(&position.to_le_bytes());
            content.extend_from_slice(&word.to_le_bytes());
        };
        if whole {
            schedule.all().for_each(|ticket| add((ticket.position, ticket.word())));
        } else {
            schedule.unsaved().iter().copied().for_each(add);
        }
        Saving { changes, whole, content }
    }

    /// Saves it, durably, as of a position below which the log is durable.
    pub(super) fn save(
        &mut self,
        storage: &Arc<dyn Storage>,
        store_id: u64,
        as_of: u64,
        mut saving: Saving,
    ) -> Result<()> {
        if saving.content.len() == 8 && (self.as_of == 0 || !saving.whole) {
            // Nothing has ever waited, or nothing has changed.
            return Ok(());
        }
        saving.content[..8].copy_from_slice(&as_of.to_le_bytes());
        let table = match self.table.take() {
            Some(table) => self.table.insert(table),
            None => {
                let table = match self.end {
                    0 => Table::create(storage, FILE, KIND, store_id)?,
                    end => Table::reopen(storage, FILE, KIND, store_id, end)?,
                };
                self.table.insert(table)
            }
        };
        if saving.whole {
            // Not under the lock of the schedule.
            let pairs = saving.content[8..].as_chunks_mut::<PAIR>().0;
            pairs.sort_unstable_by_key(|pair| u64_at(&pair[..], 0));
            let rewritten = table.rewrite(&[saving.content]);
            if matches!(rewritten, Err(Error::DiskFull { .. })) {
                // The next save adds what has changed.
                self.too_small = 2 * self.end;
            }
            rewritten?;
        } else {
            table.append_durably(&saving.content)?;
        }
        (self.as_of, self.end) = (as_of, table.end());
        Ok(())
    }
}

impl KnownDelays {
    /// Whether it has what a checkpoint needs, and nothing from behind the end of the log.
    pub(crate) fn fits(&self, needed: u64, end: u64) -> bool {
        (needed..=end).contains(&self.as_of)
    }

    /// Takes over one record of the log.
    pub(crate) fn record(&mut self, record: &Record<'_>) {
        if record.position() < self.as_of {
            return;
        }
        if record.origin() > 0 {
            self.note((record.origin(), GONE));
        }
        if record.kind() == Kind::Delayed
            && let Some(due) = record.due()
        {
            self.note((record.position(), due.word()));
        }
    }

    /// The messages that wait, ascending by position.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = Change> + Clone {
        self.words.iter().copied().filter(|(_, word)| *word != GONE)
    }

    fn take(&mut self, entry: &[u8]) {
        let Some((as_of, pairs)) = entry.split_first_chunk::<8>() else { return };
        self.as_of = u64::from_le_bytes(*as_of);
        let pairs = pairs.as_chunks::<PAIR>().0;
        pairs.iter().for_each(|pair| self.note((u64_at(pair, 0), u64_at(pair, 8))));
    }

    fn note(&mut self, change: Change) {
        let (position, word) = change;
        if word != GONE && self.words.last().is_none_or(|(last, _)| *last < position) {
            return self.words.push(change);
        }
        if let Ok(at) = self.words.binary_search_by_key(&position, |(position, _)| *position) {
            self.words[at].1 = word;
        }
    }
}
