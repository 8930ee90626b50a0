//! What opening a directory had to do.

use std::fmt;

/// What recovery found and did when the directory was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecoveryReport {
    /// The directory was closed cleanly before: nothing had to be read.
    pub clean: bool,
    /// Records read and verified from the log.
    pub records_scanned: u64,
    /// Bytes of those records.
    pub bytes_scanned: u64,
    /// The position at which a torn append, or what power loss left, was cut off.
    pub cut_at: Option<u64>,
    /// Whether the queue index was rebuilt from the whole log, and why.
    pub index_rebuilt: Option<&'static str>,
    /// Committed offsets above the end of their queue, which were lowered to it.
    pub lowered: Vec<LoweredOffset>,
    /// Committed offsets of which neither copy could be read. Which they were is not known: a group
    /// that was there before consumes from its beginning every queue in which it has none.
    pub unreadable_offsets: u64,
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

impl fmt::Display for RecoveryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.clean {
            return f.write_str("closed cleanly");
        }
        write!(f, "{} records in {} bytes read", self.records_scanned, self.bytes_scanned)?;
        if let Some(cut) = self.cut_at {
            write!(f, ", cut at {cut}")?;
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
        Ok(())
    }
}
