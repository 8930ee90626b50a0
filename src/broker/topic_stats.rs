//! Topics as operators watch them: what is stored, since when, and how much in which time.

use super::Broker;
use super::core::Core;
use super::look_up::inclusive;
use crate::error::{Error, Result};
use crate::queue_id::QueueId;
use crate::store::{ConsumeQueue, Volume};
use std::ops::RangeBounds;

/// A snapshot of a topic (OPS-1).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TopicStats {
    /// The queues that producers or consumers see, by number.
    pub queues: Vec<QueueStats>,
}

/// A snapshot of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueStats {
    /// The queue.
    pub queue: QueueId,
    /// The offset of the first message that is stored.
    pub min: u64,
    /// The offset that the next message will get.
    pub max: u64,
    /// When the last message was stored, in milliseconds since 1970; `None` if none is.
    pub last_stored_ms: Option<u64>,
}

impl TopicStats {
    /// How many messages are stored.
    #[must_use]
    pub fn messages(&self) -> u64 {
        self.queues.iter().map(|queue| queue.max.saturating_sub(queue.min)).sum()
    }
}

impl Broker {
    /// What a topic holds.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let broker = rocklet::Broker::open(dir.path())?;
    /// use rocklet::Message;
    /// broker.create_topic("orders", 2)?;
    /// let sent = broker.producer().send(&Message::new("orders", b"paid").queue(1))?;
    /// let stats = broker.topic_stats("orders")?;
    /// assert_eq!((stats.messages(), stats.queues[0].max, stats.queues[1].max), (1, 0, 1));
    /// assert_eq!(stats.queues[1].last_stored_ms, Some(sent.store_ms));
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `NoSuchTopic`; `Corrupt` if a message cannot be read; `Closed`.
    pub fn topic_stats(&self, topic: &str) -> Result<TopicStats> {
        let core = self.core();
        let _reading = core.reading()?;
        let topic = core.existing(topic)?;
        let stats = |queue: &QueueId| {
            let index = &topic.queues[usize::from(queue.queue())];
            let (min, max) = (index.min(), index.max());
            let last_stored_ms = core.stored_ms(index, max.checked_sub(1))?;
            Ok(QueueStats { queue: queue.clone(), min, max, last_stored_ms })
        };
        Ok(TopicStats { queues: topic.ids().iter().map(stats).collect::<Result<_>>()? })
    }

    /// When the first stored message of a queue was stored, in milliseconds since 1970; `None` if
    /// none is (OPS-6).
    ///
    /// # Errors
    /// `NoSuchTopic`, `NoSuchQueue`; `Corrupt` if the message cannot be read; `Closed`.
    pub fn earliest_stored_ms(&self, queue: &QueueId) -> Result<Option<u64>> {
        let core = self.core();
        let _reading = core.reading()?;
        let (_, queue) = core.queue(queue)?;
        core.stored_ms(&queue, Some(queue.min()))
    }

    /// How much of a topic was stored within `stored_ms`, in milliseconds since 1970, and is still
    /// there (OPS-10). It is counted in the index when it is asked for, 16 bytes for every message of
    /// that time; nothing has to be counted while they are sent.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let broker = rocklet::Broker::open(dir.path())?;
    /// use rocklet::Message;
    /// let sent = broker.producer().send(&Message::new("orders", b"paid"))?;
    /// let last_minute = sent.store_ms.saturating_sub(60_000)..;
    /// assert_eq!(broker.volume("orders", last_minute)?.messages, 1);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `NoSuchTopic`; `Corrupt` if a message cannot be read; `Closed`.
    pub fn volume(&self, topic: &str, stored_ms: impl RangeBounds<u64>) -> Result<Volume> {
        let core = self.core();
        let _reading = core.reading()?;
        let topic = core.existing(topic)?;
        let mut volume = Volume::default();
        if let Some(times) = inclusive(&stored_ms) {
            for queue in &topic.queues {
                volume += core.store.volume(queue, &times)?;
            }
        }
        Ok(volume)
    }
}

impl Core {
    /// When the message at `offset` was stored; `None` if there is none, or it has just been
    /// dropped.
    pub(super) fn stored_ms(
        &self,
        queue: &ConsumeQueue,
        offset: Option<u64>,
    ) -> Result<Option<u64>> {
        let stored = |offset: &u64| (queue.min()..queue.max()).contains(offset);
        match offset.filter(stored).map(|offset| self.store.store_ms(queue, offset)) {
            None | Some(Err(Error::OffsetRange { .. })) => Ok(None),
            Some(stored) => stored.map(Some),
        }
    }
}
