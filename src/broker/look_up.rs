//! Looking at stored messages without consuming them: by key, by id, by time.

use super::Broker;
use crate::error::Result;
use crate::message_id::MessageId;
use crate::queue_id::QueueId;
use crate::store::{Deliveries, DetachedDelivery, Edge};
use std::ops::{Bound, RangeBounds, RangeInclusive};

impl Broker {
    /// Finds the messages of a topic that have a key: of those that were stored within `stored_ms`,
    /// in milliseconds since 1970, the newest `max`, oldest first (OPS-5). Everything that was sent
    /// before the call is looked at. A message is found once, and only if the key is exactly one of
    /// its keys (STORE-39).
    ///
    /// The index of keys follows the log in the background. What it has not read when it is asked
    /// is read first, at most a few log files; all of the log if the index was lost.
    ///
    /// # Errors
    /// `NoSuchTopic`; `Corrupt` if a part of the log that has to be read is damaged; `Io`; `Closed`.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let broker = rocklet::Broker::open(dir.path())?;
    /// use rocklet::Message;
    /// broker.producer().send(&Message::new("orders", b"paid").key("o-42"))?;
    /// let found = broker.find_by_key("orders", "o-42", .., 10)?;
    /// assert_eq!(found.iter().next().map(|order| order.body()), Some(&b"paid"[..]));
    /// assert!(broker.find_by_key("orders", "o-4", .., 10)?.is_empty());
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    pub fn find_by_key(
        &self,
        topic: &str,
        key: &str,
        stored_ms: impl RangeBounds<u64>,
        max: usize,
    ) -> Result<Deliveries> {
        let _reading = self.core().reading()?;
        let store = &self.core().store;
        let topic = self.core().existing(topic)?;
        match inclusive(&stored_ms) {
            Some(times) => store.find_by_key(&topic, key, times, max),
            None => Ok(Deliveries::none(store.store_id())),
        }
    }

    /// Returns the message with an id, whatever its topic; `None` if there is none in this
    /// directory, or if it is not stored any more (OPS-4). Its checksum is verified.
    ///
    /// # Errors
    /// `Corrupt` if it cannot be read; `Closed`.
    pub fn message(&self, id: MessageId) -> Result<Option<DetachedDelivery>> {
        let _reading = self.core().reading()?;
        let store = &self.core().store;
        if id != MessageId::new(id.position(), store.store_id()) {
            return Ok(None);
        }
        store.message_at(id.position())
    }

    /// Returns the offset in a queue that belongs to a time, in milliseconds since 1970; which one,
    /// and what if there is none, [`Edge`] says. In a queue without messages it is the end.
    ///
    /// Messages carry the time of the last tick of the system's clock, which is up to 10 ms ago,
    /// and never one that is earlier than that of a message before.
    ///
    /// # Errors
    /// `NoSuchTopic`, `NoSuchQueue`; `Corrupt` if a message cannot be read; `Closed`.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let broker = rocklet::Broker::open(dir.path())?;
    /// use rocklet::{Edge, Message, QueueId};
    /// let sent = broker.producer().send(&Message::new("orders", b"paid").queue(0))?;
    /// let queue = QueueId::new("orders", 0);
    /// assert_eq!(broker.offset_at(&queue, sent.store_ms, Edge::AtOrAfter)?, sent.offset);
    /// assert_eq!(broker.offset_at(&queue, sent.store_ms + 1, Edge::AtOrAfter)?, sent.offset + 1);
    /// assert_eq!(broker.offset_at(&queue, sent.store_ms + 1, Edge::AtOrBefore)?, sent.offset);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    pub fn offset_at(&self, queue: &QueueId, ms: u64, edge: Edge) -> Result<u64> {
        let _reading = self.core().reading()?;
        let store = &self.core().store;
        let (_, queue) = self.core().queue(queue)?;
        store.offset_at(&queue, ms, edge)
    }
}

/// The range with both its ends in it; `None` if nothing is in it.
pub(super) fn inclusive(range: &impl RangeBounds<u64>) -> Option<RangeInclusive<u64>> {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before.checked_add(1)?,
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(end) => *end,
        Bound::Excluded(behind) => behind.checked_sub(1)?,
        Bound::Unbounded => u64::MAX,
    };
    (start <= end).then_some(start..=end)
}
