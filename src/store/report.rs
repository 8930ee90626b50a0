//! What opening a directory had to do.

use super::flushed_mark::Flushed;
use super::recover::Sealed;
use super::salvage::Salvaged;
use crate::storage::Storage;
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;

/// What recovery found and did when the directory was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecoveryReport {
    /// The directory was closed cleanly before: nothing had to be read.
    pub clean: bool,
    /// Whether the machine was restarted since the directory was used last.
    pub boot: Boot,
    /// Records read and verified from the log.
    pub records_scanned: u64,
    /// Bytes of those records.
    pub bytes_scanned: u64,
    /// The worst that was found in the log.
    pub damage: Damage,
    /// The position at which a torn append, or what power loss left, was cut off.
    pub cut_at: Option<u64>,
    /// The stretches of the log that were cut out, as positions: [`Recovery::Salvage`](crate::Recovery::Salvage) alone does
    /// that.
    pub salvaged: Vec<Range<u64>>,
    /// The copies that were made of what was cut off or out.
    pub kept: Vec<PathBuf>,
    /// Messages that were cut out, by this open or by an earlier one whose index had to be rebuilt.
    /// Of messages at the end of a queue only those are known that a checkpoint has counted.
    pub lost: Vec<LostMessages>,
    /// Whether the queue index was rebuilt from the whole log, and why.
    pub index_rebuilt: Option<&'static str>,
    /// Committed offsets above the end of their queue, which were lowered to it.
    pub lowered: Vec<LoweredOffset>,
    /// Committed offsets of which neither copy could be read. Which they were is not known: a group
    /// that was there before consumes from its beginning every queue in which it has none.
    pub unreadable_offsets: u64,
    /// Files of committed offsets that a salvage, now or earlier, has found missing or unfit, and
    /// replaced by empty ones: what was unfit is kept as `meta/lost-offsets-*`. The groups are treated as for
    /// [`unreadable_offsets`](Self::unreadable_offsets).
    pub lost_offset_files: u64,
}

/// The machine's boot in which a directory was used before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Boot {
    /// It is the same: nothing that was written can be missing.
    Same,
    /// It is another one: what was not flushed may be lost.
    Other,
    /// It is not known, and taken for another.
    #[default]
    Unknown,
}

/// The worst that was found in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Damage {
    /// None.
    #[default]
    None,
    /// An append was not finished, or the power took what had not been flushed: cut off at
    /// [`cut_at`](RecoveryReport::cut_at).
    Torn,
    /// Something else than a crash has changed the files: put right, and cut out where that was not
    /// possible, see [`salvaged`](field@RecoveryReport::salvaged).
    Corrupt,
}

/// Messages of a queue that are lost. Reads pass over their offsets.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostMessages {
    /// The topic.
    pub topic: String,
    /// The queue.
    pub queue: u16,
    /// The first offset that is lost.
    pub from: u64,
    /// The offset behind the last one that is lost.
    pub to: u64,
}

/// A committed offset that lay beyond the end of its queue.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoweredOffset {
    /// The topic, if it still exists.
    pub topic: String,
    /// The queue.
    pub queue: u16,
    /// The offset that was committed.
    pub from: u64,
    /// The end of the queue, which is committed now.
    pub to: u64,
}

impl RecoveryReport {
    /// The report of an open that has set files aside, if it had to.
    pub(super) fn new(boot: Boot, kept: Vec<PathBuf>) -> Self {
        let damage = if kept.is_empty() { Damage::None } else { Damage::Corrupt };
        Self { boot, kept, damage, ..Self::default() }
    }

    /// Notes what a salvage has done.
    pub(super) fn salvaged(&mut self, found: Salvaged) {
        let Salvaged { lost, kept, records, bytes, begun } = found;
        if begun {
            self.damage = Damage::Corrupt;
        }
        self.salvaged = lost;
        self.kept.extend(kept);
        (self.records_scanned, self.bytes_scanned) = (records, bytes);
    }

    /// Whether the process was killed, and nothing had to be put right.
    pub(super) fn is_plain_kill(&self) -> bool {
        self.boot == Boot::Same
            && !self.clean
            && self.damage == Damage::None
            && self.index_rebuilt.is_none()
    }

    /// Notes what was cut off, if anything was.
    pub(super) fn cut(&mut self, sealed: Option<Sealed>) {
        let Some(Sealed { position, kept }) = sealed else { return };
        self.damage = self.damage.max(Damage::Torn);
        self.cut_at = Some(position);
        self.kept.extend(kept);
    }
}

impl Boot {
    /// By what the flushed mark says.
    pub(super) fn of(storage: &dyn Storage, flushed: Option<Flushed>) -> Self {
        match flushed {
            Some(Flushed { same_boot: true, .. }) => Self::Same,
            Some(_) if storage.boot_id().is_some() => Self::Other,
            _ => Self::Unknown,
        }
    }
}

impl fmt::Display for RecoveryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.clean {
            return f.write_str("closed cleanly");
        }
        write!(f, "{} records in {} bytes read", self.records_scanned, self.bytes_scanned)?;
        if let Some(cut) = self.cut_at {
            write!(f, ", cut at {cut}")?;
        }
        if !self.salvaged.is_empty() {
            let bytes: u64 = self.salvaged.iter().map(|range| range.end - range.start).sum();
            write!(f, ", {bytes} damaged bytes cut out")?;
        }
        if !self.lost.is_empty() {
            let messages: u64 = self.lost.iter().map(|lost| lost.to - lost.from).sum();
            write!(f, ", {messages} messages lost")?;
        }
        if let Some(reason) = self.index_rebuilt {
            write!(f, ", index rebuilt: {reason}")?;
        }
        if !self.lowered.is_empty() {
            write!(f, ", {} committed offsets lowered", self.lowered.len())?;
        }
        if self.unreadable_offsets > 0 {
            write!(f, ", {} committed offsets unreadable", self.unreadable_offsets)?;
        }
        if self.lost_offset_files > 0 {
            write!(f, ", {} files of committed offsets lost", self.lost_offset_files)?;
        }
        Ok(())
    }
}
