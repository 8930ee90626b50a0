//! Pull consumers: the application asks for messages.

use super::pull_member::PullMember;
use super::subscribe::{Plan, check_range};
use crate::broker::assign::AssignStrategy;
use crate::broker::core::Running;
use crate::broker::filter::Filter;
use crate::broker::group::Kind;
use crate::broker::{Broker, Start};
use crate::error::{Error, Result};
use crate::queue_id::QueueId;
use crate::store::{Deliveries, Fetch, FetchStatus};
use crate::sync::Arc;
use std::collections::BTreeMap;
use std::time::Duration;

impl Broker {
    /// Prepares a pull consumer, a member of `group`.
    pub fn pull_consumer(&self, group: &str) -> PullConsumerBuilder {
        PullConsumerBuilder { plan: Plan::new(self, group), batch: 32 }
    }
}

/// Settings of a pull consumer; checked together by [`start`](Self::start).
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `start`"]
pub struct PullConsumerBuilder {
    plan: Plan,
    batch: usize,
}

impl PullConsumerBuilder {
    /// Names the member, uniquely in its group; `consumer-<n>` by default.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.plan.name = Some(name.into());
        self
    }

    /// Subscribes to a topic, which need not exist yet; again for another topic. All members of a
    /// group must subscribe to the same.
    ///
    /// # Errors
    /// `Name` if the topic's name breaks the rules, `Filter` if the expression does.
    pub fn subscribe<F>(mut self, topic: &str, filter: F) -> Result<Self>
    where
        F: TryInto<Filter>,
        Error: From<F::Error>,
    {
        self.plan.subscribe(topic, filter)?;
        Ok(self)
    }

    /// Sets where the group begins if it is new, see [`Start`]; [`Start::First`] by default.
    pub fn start_from(mut self, start: Start) -> Self {
        self.plan.start = start;
        self
    }

    /// Sets how many messages a poll returns at most: 1 to 1024, 32 by default.
    pub fn batch(mut self, messages: usize) -> Self {
        self.batch = messages;
        self
    }

    /// Sets how queues are divided among the members; [`Averagely`](crate::Averagely) by default.
    pub fn strategy(mut self, strategy: impl AssignStrategy + 'static) -> Self {
        self.plan.strategy = Arc::new(strategy);
        self
    }

    /// Joins the group.
    ///
    /// # Errors
    /// `Setting` if a setting is out of its range; `Name`; `Duplicate` if the name is taken;
    /// `Mismatch` if the running members differ; `Strategy` if the strategy panics when asked for
    /// its name; `DiskFull`, `Io` or `Poisoned` if the group, or where it begins, cannot be stored;
    /// `Corrupt` if the message to begin with cannot be read; `Closed`.
    pub fn start(self) -> Result<PullConsumer> {
        let Self { plan, batch } = self;
        check_range("batch", batch, 1, 1024)?;
        let (group, name) = plan.group()?;
        let core = plan.broker.core();
        let member = PullMember::new(core, &group, &name);
        plan.join(&group, &name, Kind::Pull, &member)?;
        Ok(PullConsumer { member, batch, filters: plan.topics, broker: plan.broker })
    }
}

/// A running pull consumer; it leaves its group when dropped.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let broker = rocklet::Broker::open(dir.path())?;
/// use rocklet::{Filter, Message};
/// use std::time::Duration;
/// broker.producer().send(&Message::new("orders", b"paid"))?;
/// let mut audit = broker.pull_consumer("audit").subscribe("orders", Filter::ALL)?.start()?;
/// for delivery in &audit.poll(Duration::from_millis(100))? {
///     assert_eq!(delivery.body(), b"paid");
/// }
/// audit.commit()?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a consumer leaves its group when it is dropped"]
pub struct PullConsumer {
    member: Arc<PullMember>,
    batch: usize,
    filters: BTreeMap<String, Filter>,
    broker: Broker,
}

impl PullConsumer {
    /// The member's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.member.name
    }

    /// The queues that it has at the moment, sorted.
    #[must_use]
    pub fn assignment(&self) -> Vec<QueueId> {
        self.member.assignment()
    }

    /// Returns messages of the assigned queues; waits up to `timeout` if there are none, and
    /// returns empty-handed then. Each message is returned once, until a commit or a seek says
    /// otherwise.
    ///
    /// # Errors
    /// `Closed`; `Corrupt` if a message cannot be read.
    pub fn poll(&mut self, timeout: Duration) -> Result<Deliveries> {
        self.member.poll(timeout, self.batch)
    }

    /// Stores that everything polled so far is consumed; it survives the end of the process when
    /// this returns. Queues that another member is to have are given back now.
    ///
    /// # Errors
    /// `DiskFull` or `Io` if there is no room for the group's first offset in a queue, or it cannot
    /// be made; what was committed before it stays so. `Closed`.
    pub fn commit(&mut self) -> Result<()> {
        self.member.commit()
    }

    /// Goes on at `offset` of an assigned queue, from the first stored message to the end; the
    /// next commit stores it, even if it is lower.
    ///
    /// # Errors
    /// `NotAssigned`, `OffsetRange`, `Closed`.
    pub fn seek(&mut self, queue: &QueueId, offset: u64) -> Result<()> {
        self.member.seek(queue, offset)
    }

    /// The offset that the group has committed in a queue.
    ///
    /// # Errors
    /// `NoSuchTopic`, `NoSuchQueue`.
    pub fn committed(&self, queue: &QueueId) -> Result<Option<u64>> {
        self.broker.committed(&self.member.group.name, queue)
    }

    /// Reads up to `max` messages (1 to 65 535) of any queue from `offset` on, without the group
    /// knowing of it; a subscribed topic's filter applies. Go on at `next`, whatever the status
    /// (PC-3, PC-5).
    ///
    /// # Errors
    /// `NoSuchTopic`, `NoSuchQueue`, `Setting`, `Closed`; `Corrupt` if a message cannot be read.
    pub fn pull(&self, queue: &QueueId, offset: u64, max: usize) -> Result<Pull> {
        check_range("max", max, 1, 65_535)?;
        let core = self.broker.core();
        if core.is_closed() {
            return Err(Error::Closed);
        }
        let (_, index) = core.queue(queue)?;
        let filter = self.filters.get(queue.topic()).unwrap_or(&Filter::ALL);
        let fetch = core.fetch(&index, offset, max, usize::MAX, filter)?;
        Ok(Pull::new(fetch, offset))
    }

    /// Leaves the group. What was polled and not committed is delivered again, to whoever gets
    /// the queue.
    pub fn close(self) {
        self.member.stop();
    }
}

impl Drop for PullConsumer {
    fn drop(&mut self) {
        self.member.stop();
    }
}

impl std::fmt::Debug for PullConsumer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PullConsumer").field("name", &self.name()).finish_non_exhaustive()
    }
}

/// What [`PullConsumer::pull`] found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Pull {
    /// How it ended.
    pub status: PullStatus,
    /// The messages, if there are any.
    pub messages: Deliveries,
    /// The offset to go on at.
    pub next: u64,
    /// The first stored offset of the queue.
    pub min: u64,
    /// The offset that the next message of the queue will get.
    pub max: u64,
}

impl Pull {
    /// What reading from `offset` on has found (STORE-32).
    pub(crate) fn new(fetch: Fetch, offset: u64) -> Self {
        let status = match fetch.status {
            FetchStatus::Found => PullStatus::Found,
            FetchStatus::NoMatched | FetchStatus::Removing => PullStatus::NoMatchedMessage,
            FetchStatus::AtEnd => PullStatus::NoNewMessage,
            FetchStatus::Empty if offset == 0 => PullStatus::NoNewMessage,
            FetchStatus::Empty | FetchStatus::TooSmall | FetchStatus::Beyond => {
                PullStatus::OffsetIllegal
            }
        };
        let Fetch { messages, next, min, max, .. } = fetch;
        Self { status, messages, next, min, max }
    }
}

/// How a pull ended (STORE-32).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PullStatus {
    /// There are messages.
    Found,
    /// The offset is the end of the queue.
    NoNewMessage,
    /// There are messages, but none of those looked at passes the filter.
    NoMatchedMessage,
    /// The offset lies outside of the queue; `next` is the nearest one inside.
    OffsetIllegal,
}
