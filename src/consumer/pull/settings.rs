//! What only pull consumers have to set.

use super::super::builder::{ConsumerBuilder, DAY_MS, Plan, check_ms, check_range};
use super::PullConsumer;
use crate::broker::filter::Filter;
use crate::error::{Error, Result};
use crate::queue_id::QueueId;
use std::collections::BTreeSet;
use std::time::Duration;

/// Settings of a pull consumer that is not made yet.
pub type PullConsumerBuilder = ConsumerBuilder<PullSettings>;

/// What only pull consumers have to set, see [`PullConsumerBuilder`].
#[derive(Clone, Debug)]
pub struct PullSettings {
    pub(super) batch: usize,
    pub(super) auto_commit: Option<Duration>,
    pub(super) assigned: Option<(BTreeSet<QueueId>, Filter)>,
}

impl Default for PullSettings {
    fn default() -> Self {
        Self { batch: 32, auto_commit: None, assigned: None }
    }
}

impl PullSettings {
    /// Checks all of them (CLI-3).
    pub(super) fn check(&self, plan: &Plan) -> Result<()> {
        check_range("batch", self.batch, 1, 1024)?;
        let interval = self.auto_commit.unwrap_or(Duration::from_secs(1));
        check_ms("auto_commit in ms", interval, 1000, DAY_MS)?;
        if self.assigned.is_some() && !plan.topics.is_empty() {
            return Err(Error::Assignment { reason: "it subscribes, too; do one of both" });
        }
        Ok(())
    }
}

impl ConsumerBuilder<PullSettings> {
    /// Sets how many messages a poll returns at most: 1 to 1024, 32 by default.
    pub fn batch(mut self, messages: usize) -> Self {
        self.own.batch = messages;
        self
    }

    /// Has polls commit what earlier polls have returned: once `interval` has passed since the
    /// last time, 1 s to 1 day, and before a poll goes to sleep or when another member waits for a
    /// queue. Off by default: what [`commit`](PullConsumer::commit) does not store is delivered
    /// again to whoever gets the queue next. Closing commits nothing (LITE-7, LITE-8).
    pub fn auto_commit(mut self, interval: Duration) -> Self {
        self.own.auto_commit = Some(interval);
        self
    }

    /// Gives the consumer these queues and what passes `filter` of them, instead of a share in what
    /// it subscribes to: it goes on where the group stands and commits for it, but is no member,
    /// and the group neither deals it any queue nor knows of those that it has (LITE-1, LITE-2).
    ///
    /// # Errors
    /// `Filter` if it is a tag expression that breaks the rules.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let broker = rocklet::Broker::open(dir.path())?;
    /// use rocklet::{Filter, Message, QueueId};
    /// use std::time::Duration;
    /// broker.producer().send(&Message::new("orders", b"paid").queue(2))?;
    /// let third = [QueueId::new("orders", 2)];
    /// let mut audit = broker.pull_consumer("audit").assign(third, Filter::ALL)?.start()?;
    /// assert_eq!(audit.poll(Duration::ZERO)?.len(), 1);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    pub fn assign<F>(mut self, queues: impl IntoIterator<Item = QueueId>, filter: F) -> Result<Self>
    where
        F: TryInto<Filter>,
        Error: From<F::Error>,
    {
        self.own.assigned = Some((queues.into_iter().collect(), filter.try_into()?));
        Ok(self)
    }

    /// Joins the group.
    ///
    /// # Errors
    /// As [`PullConsumer::start`].
    pub fn start(self) -> Result<PullConsumer> {
        let mut consumer = self.build();
        consumer.start()?;
        Ok(consumer)
    }

    /// Makes the consumer without starting it.
    pub fn build(self) -> PullConsumer {
        PullConsumer::new(self.plan, self.own)
    }
}
