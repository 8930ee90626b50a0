//! Records that outlive their file: what the floor above still needs of the front of the log is
//! appended again at the tail before the front is dropped, so that it never pins the log.

use super::Store;
use super::draft::{Copy, Draft};
use super::files::corrupt;
use super::record::{Kind, Record};
use super::tail::Appended;
use crate::error::Result;
use crate::sync::Arc;
use std::fmt::Debug;
use std::ops::Range;

/// Who knows which records of the log are still needed, other than by consumers: half messages, and
/// the like.
pub(crate) trait Keep: Debug + Send + Sync {
    /// The positions of the messages in `range` that must outlive it, ascending. Called with no
    /// lock of the append path held; it may take its own.
    fn live(&self, range: Range<u64>) -> Vec<u64>;

    /// The message at `from` has been appended again, as `to`; its origin says `from`. The old
    /// one goes next, and no earlier than the new one is durable.
    fn moved(&self, from: u64, to: &Appended);
}

impl Store {
    /// Asks `keeper` before every drop, from now on.
    #[cfg_attr(any(not(test), loom), allow(dead_code, reason = "for transactions"))]
    pub(crate) fn keep(&self, keeper: Arc<dyn Keep>) {
        self.keepers.lock().push(keeper);
    }

    /// Appends what is still needed of the log below `end` again, at the tail.
    ///
    /// # Errors
    /// `DiskFull` if there is no room for it, `Corrupt` if what a keeper needs cannot be read, `NotPermitted` if its
    /// queue takes nothing: then nothing below `end` may be dropped.
    pub(super) fn carry_forward(&self, end: u64) -> Result<()> {
        self.carry_delays(end)?;
        let keepers = self.keepers.lock().clone();
        for keeper in keepers {
            for position in keeper.live(self.log.min_position()..end) {
                let Some(file) = self.log.file(position) else { continue };
                let record = file
                    .record(position)
                    .map_err(|reason| corrupt(&*self.storage, &file.name(), position, reason))?;
                if let Some(appended) = self.carry(&record)? {
                    keeper.moved(position, &appended);
                }
            }
        }
        Ok(())
    }

    /// Appends a message again, to the queue that it stands in; `None` if its topic is gone.
    fn carry(&self, record: &Record<'_>) -> Result<Option<Appended>> {
        let name = std::str::from_utf8(record.topic()).unwrap_or_default();
        loop {
            let topic = self.topics.get(name);
            let topic = topic.filter(|topic| topic.incarnation == record.incarnation());
            let Some(topic) = topic.filter(|_| record.kind() == Kind::Message) else {
                return Ok(None);
            };
            let Some(queue) = topic.queues.get(usize::from(record.queue())) else {
                return Ok(None);
            };
            topic.check_open(queue)?;
            let mut drafts = [Draft::blank(&topic.outline)];
            drafts[0].fill_copy(&topic.outline, Kind::Message, record.queue(), &Copy::of(record));
            let placed = self.place_beyond_limits(topic.target(queue), queue, &mut drafts)?;
            if placed.is_some() {
                return Ok(placed);
            }
            // It has changed meanwhile, or is being changed.
            self.topics.settle();
        }
    }
}
