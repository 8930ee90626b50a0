//! Pull consumers: the application asks for messages.

use super::builder::{ConsumerBuilder, Plan, check_range};
use super::phase::Phase;
use super::pull_member::PullMember;
use crate::broker::Broker;
use crate::broker::core::Running;
use crate::broker::filter::Filter;
use crate::broker::group::Kind;
use crate::error::{Error, Result};
use crate::names;
use crate::queue_id::QueueId;
use crate::service_state::ServiceState;
use crate::store::{Deliveries, Fetch, FetchStatus};
use crate::sync::Arc;
use std::time::Duration;

impl Broker {
    /// Prepares a pull consumer, a member of `group`.
    pub fn pull_consumer(&self, group: &str) -> PullConsumerBuilder {
        ConsumerBuilder { plan: Plan::new(self, group), own: PullSettings { batch: 32 } }
    }
}

/// Settings of a pull consumer that is not made yet.
pub type PullConsumerBuilder = ConsumerBuilder<PullSettings>;

/// What only pull consumers have to set, see [`PullConsumerBuilder`].
#[derive(Clone, Copy, Debug)]
pub struct PullSettings {
    batch: usize,
}

impl ConsumerBuilder<PullSettings> {
    /// Sets how many messages a poll returns at most: 1 to 1024, 32 by default.
    pub fn batch(mut self, messages: usize) -> Self {
        self.own.batch = messages;
        self
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
        let (broker, group) = (self.plan.broker.clone(), self.plan.group.clone());
        let batch = self.own.batch;
        PullConsumer { phase: Phase::Created(Box::new(self.plan)), group, batch, broker }
    }
}

/// A pull consumer; it leaves its group when dropped.
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
    phase: Phase<Box<Plan>, Arc<PullMember>>,
    group: String,
    batch: usize,
    broker: Broker,
}

impl PullConsumer {
    /// Starts a consumer that was [built](PullConsumerBuilder::build): joins the group. After
    /// [`Duplicate`](Error::Duplicate) it may be [renamed](Self::rename) and started again; after
    /// another error it cannot be used any more (CLI-2).
    ///
    /// # Errors
    /// `State` if it was started before; `Setting` if a setting is out of its range; `Name`;
    /// `Duplicate` if the name is taken; `Mismatch` if the running members differ; `GroupForbids` or
    /// `NoSuchGroup` if the group may not consume; `Strategy` if the strategy panics when asked for
    /// its name; `DiskFull`, `Io` or `Poisoned` if the group, or where it begins, cannot be stored;
    /// `Corrupt` if the message to begin with cannot be read; `Closed`.
    pub fn start(&mut self) -> Result<()> {
        let plan = self.phase.begin()?;
        let started = self.join(&plan);
        self.phase.end(started, plan)
    }

    fn join(&self, plan: &Plan) -> Result<Arc<PullMember>> {
        check_range("batch", self.batch, 1, 1024)?;
        let (group, name) = plan.group()?;
        let member = PullMember::new(plan, &group, &name);
        plan.join(&group, &name, Kind::Pull, &member)?;
        Ok(member)
    }

    /// Gives another name to a consumer that is not started.
    ///
    /// # Errors
    /// `State` if it was started before.
    pub fn rename(&mut self, name: impl Into<String>) -> Result<()> {
        match &mut self.phase {
            Phase::Created(plan) => {
                plan.name = Some(name.into());
                Ok(())
            }
            phase => Err(phase.refuse("be renamed")),
        }
    }

    /// Where it is in its life. One whose broker was closed is shut down.
    #[must_use]
    pub fn state(&self) -> ServiceState {
        match &self.phase {
            Phase::Running(member) if member.is_closed() => ServiceState::Shutdown,
            phase => phase.state(),
        }
    }

    /// The member's name; empty if it has none yet, or none any more.
    #[must_use]
    pub fn name(&self) -> String {
        match &self.phase {
            Phase::Created(plan) => plan.name.clone().unwrap_or_default(),
            Phase::Running(member) => member.name.clone(),
            _ => String::new(),
        }
    }

    /// The queues that it has at the moment, sorted.
    #[must_use]
    pub fn assignment(&self) -> Vec<QueueId> {
        self.member("have queues").map_or_else(|_| Vec::new(), |member| member.assignment())
    }

    /// Subscribes the whole group to another topic, or to another part of one: all members at
    /// once. A topic that the group has not consumed before is read from its beginning (CLI-12).
    ///
    /// # Errors
    /// `Name`, `Filter`; `State` if it does not run; `Closed`.
    pub fn subscribe<F>(&mut self, topic: &str, filter: F) -> Result<()>
    where
        F: TryInto<Filter>,
        Error: From<F::Error>,
    {
        names::check_topic(topic)?;
        let filter = filter.try_into()?;
        self.member("subscribe")?.group.subscribe(topic, filter)
    }

    /// Ends the subscription of a topic for the whole group. Its progress is kept; what was polled
    /// of it can still be committed.
    ///
    /// # Errors
    /// `NotSubscribed`; `State` if it does not run; `Closed`.
    pub fn unsubscribe(&mut self, topic: &str) -> Result<()> {
        self.member("unsubscribe")?.group.unsubscribe(topic)
    }

    /// Returns messages of the assigned queues; waits up to `timeout` if there are none, and
    /// returns empty-handed then. Each message is returned once, until a commit or a seek says
    /// otherwise.
    ///
    /// # Errors
    /// `Closed`; `Corrupt` if a message cannot be read; `GroupForbids`; `State` if it does not run.
    pub fn poll(&mut self, timeout: Duration) -> Result<Deliveries> {
        self.member("poll")?.poll(timeout, self.batch)
    }

    /// Stores that everything polled so far is consumed; it survives the end of the process when
    /// this returns. Queues that another member is to have are given back now.
    ///
    /// # Errors
    /// `DiskFull` or `Io` if there is no room for the group's first offset in a queue, or it cannot
    /// be made; what was committed before it stays so. `State` if it does not run; `Closed`.
    pub fn commit(&mut self) -> Result<()> {
        self.member("commit")?.commit()
    }

    /// Goes on at `offset` of an assigned queue, from the first stored message to the end; the
    /// next commit stores it, even if it is lower.
    ///
    /// # Errors
    /// `NotAssigned`, `OffsetRange`, `Closed`; `State` if it does not run.
    pub fn seek(&mut self, queue: &QueueId, offset: u64) -> Result<()> {
        self.member("seek")?.seek(queue, offset)
    }

    /// The offset that the group has committed in a queue.
    ///
    /// # Errors
    /// `NoSuchTopic`, `NoSuchQueue`.
    pub fn committed(&self, queue: &QueueId) -> Result<Option<u64>> {
        match &self.phase {
            Phase::Running(member) => member.committed(queue),
            _ => self.broker.committed(&self.group, queue),
        }
    }

    /// Reads up to `max` messages (1 to 65 535) of any queue from `offset` on, without the group
    /// knowing of it; a subscribed topic's filter applies. Go on at `next`, whatever the status
    /// (PC-3, PC-5).
    ///
    /// # Errors
    /// `NoSuchTopic`, `NotPermitted`, `NoSuchQueue`, `Setting`, `Closed`; `State` if it does not run;
    /// `Corrupt` if a message cannot be read.
    pub fn pull(&self, queue: &QueueId, offset: u64, max: usize) -> Result<Pull> {
        check_range("max", max, 1, 65_535)?;
        let core = self.broker.core();
        let _reading = core.reading()?;
        let (topic, index) = core.queue(queue)?;
        topic.check_readable()?;
        let filter = self.member("pull")?.group.filter(queue.topic()).unwrap_or(Filter::ALL);
        let fetch = core.fetch(&index, offset, max, usize::MAX, &filter)?;
        Ok(Pull::new(fetch, offset))
    }

    /// Leaves the group. What was polled and not committed is delivered again, to whoever gets
    /// the queue.
    pub fn close(mut self) {
        self.shutdown();
    }

    /// Does the same, and leaves a consumer that is shut down. One that does not run stays as it is
    /// (CLI-10).
    pub fn shutdown(&mut self) {
        if let Some(member) = self.phase.shut_down() {
            member.stop();
        }
    }

    fn member(&self, action: &'static str) -> Result<&Arc<PullMember>> {
        self.phase.running(action)
    }
}

impl Drop for PullConsumer {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl std::fmt::Debug for PullConsumer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("PullConsumer");
        shown.field("name", &self.name()).field("state", &self.state()).finish_non_exhaustive()
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
