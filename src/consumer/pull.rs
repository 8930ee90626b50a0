//! Pull consumers: the application asks for messages.

mod choose;
mod cursor;
mod found;
mod info;
mod member;
mod poll;
mod settings;
mod wait;

pub use found::{Pull, PullStatus};
pub use settings::{PullConsumerBuilder, PullSettings};

use super::builder::{ConsumerBuilder, Plan, check_range};
use super::outcome::Outcome;
use super::phase::Phase;
use super::running_info::RunningInfo;
use crate::broker::core::Running;
use crate::broker::filter::Filter;
use crate::broker::group::Kind;
use crate::broker::{Broker, Start};
use crate::error::{Error, Result};
use crate::names;
use crate::queue_id::QueueId;
use crate::service_state::ServiceState;
use crate::store::{Deliveries, Delivery};
use crate::sync::Arc;
use member::PullMember;
use std::time::Duration;

impl Broker {
    /// Prepares a pull consumer, a member of `group`.
    pub fn pull_consumer(&self, group: &str) -> PullConsumerBuilder {
        ConsumerBuilder { plan: Plan::new(self, group), own: PullSettings::default() }
    }
}

/// A pull consumer; it leaves its group when dropped.
///
/// It has a share of the queues of the topics that its group subscribes to, or the queues that it
/// was [assigned](PullConsumerBuilder::assign). [`poll`](Self::poll) reads them in turn, and
/// [`commit`](Self::commit) stores how far. Whoever keeps count of offsets himself
/// [pulls](Self::pull) from any queue and stores [any offset](Self::commit_offset).
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
    phase: Phase<Box<Prepared>, Arc<PullMember>>,
    group: String,
    broker: Broker,
    batch: usize,
}

/// What a start needs.
struct Prepared {
    plan: Plan,
    settings: PullSettings,
}

impl PullConsumer {
    fn new(plan: Plan, settings: PullSettings) -> Self {
        let (broker, group, batch) = (plan.broker.clone(), plan.group.clone(), settings.batch);
        Self { phase: Phase::Created(Box::new(Prepared { plan, settings })), group, broker, batch }
    }

    /// Starts a consumer that was [built](PullConsumerBuilder::build): joins the group. After
    /// [`Duplicate`](Error::Duplicate) it may be [renamed](Self::rename) and started again; after
    /// another error it cannot be used any more (CLI-2).
    ///
    /// # Errors
    /// `State` if it was started before; `Setting` if a setting is out of its range; `Name`;
    /// `Duplicate` if the name is taken; `Mismatch` if the running members differ; `GroupForbids` or
    /// `NoSuchGroup` if the group may not consume; `Strategy` if the strategy panics when asked for
    /// its name; `DiskFull`, `Io` or `Poisoned` if the group, or where it begins, cannot be stored;
    /// `Corrupt` if the message to begin with cannot be read; `Closed`. If queues are
    /// [assigned](PullConsumerBuilder::assign) also `Assignment` if there are none of them, or topics
    /// are subscribed to as well; and as [`assign`](Self::assign).
    pub fn start(&mut self) -> Result<()> {
        let prepared = self.phase.begin()?;
        let started = prepared.start();
        self.phase.end(started, prepared)
    }

    /// Gives another name to a consumer that is not started.
    ///
    /// # Errors
    /// `State` if it was started before.
    pub fn rename(&mut self, name: impl Into<String>) -> Result<()> {
        match &mut self.phase {
            Phase::Created(prepared) => {
                prepared.plan.name = Some(name.into());
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
            Phase::Created(prepared) => prepared.plan.name.clone().unwrap_or_default(),
            Phase::Running(member) => member.name.clone(),
            _ => String::new(),
        }
    }

    /// The queues that it has at the moment, sorted (PC-2).
    #[must_use]
    pub fn assignment(&self) -> Vec<QueueId> {
        self.member("have queues").map_or_else(|_| Vec::new(), |member| member.assignment())
    }

    /// The queues of a topic, whoever has them (PC-2).
    ///
    /// # Errors
    /// `NoSuchTopic`; `State` if it does not run.
    pub fn queues(&self, topic: &str) -> Result<Vec<QueueId>> {
        self.member("list queues")?;
        self.broker.queues(topic)
    }

    /// Subscribes the whole group to another topic, or to another part of one: all members at
    /// once. A topic that the group has not consumed before is read from its beginning (CLI-12).
    ///
    /// # Errors
    /// `Name`, `Filter`; `Assignment` if queues are assigned to it; `State` if it does not run;
    /// `Closed`.
    pub fn subscribe<F>(&mut self, topic: &str, filter: F) -> Result<()>
    where
        F: TryInto<Filter>,
        Error: From<F::Error>,
    {
        names::check_topic(topic)?;
        let filter = filter.try_into()?;
        self.subscriber("subscribe")?.group.subscribe(topic, filter)
    }

    /// Ends the subscription of a topic for the whole group. Its progress is kept; what was polled
    /// of it can still be committed.
    ///
    /// # Errors
    /// `NotSubscribed`; `Assignment` if queues are assigned to it; `State` if it does not run;
    /// `Closed`.
    pub fn unsubscribe(&mut self, topic: &str) -> Result<()> {
        self.subscriber("unsubscribe")?.group.unsubscribe(topic)
    }

    /// Has exactly these queues from now on, and what passes `filter` of them. Those that it has
    /// already go on where they are; what was polled of the others and not committed is delivered
    /// again to whoever gets them. An error changes nothing. Only for a consumer that was made
    /// [so](PullConsumerBuilder::assign) (LITE-2).
    ///
    /// # Errors
    /// `Assignment` if there is no queue among them, or if it subscribes; `NoSuchTopic`,
    /// `NoSuchQueue`, `NotPermitted`; `DiskFull` or `Io` if it cannot be stored where the group
    /// begins; `Filter`; `State` if it does not run; `Closed`.
    pub fn assign<F>(&mut self, queues: impl IntoIterator<Item = QueueId>, filter: F) -> Result<()>
    where
        F: TryInto<Filter>,
        Error: From<F::Error>,
    {
        let member = self.member("be assigned queues")?;
        if !member.chooses {
            let reason = "it subscribes; prepare another one with `assign`";
            return Err(Error::Assignment { reason });
        }
        member.choose(&queues.into_iter().collect(), &filter.try_into()?)
    }

    /// Returns messages of the assigned queues; waits up to `timeout` if there are none, and
    /// returns empty-handed then. Each message is returned once, until a commit or a seek says
    /// otherwise (LITE-6).
    ///
    /// # Errors
    /// `Closed`; `Corrupt` if a message cannot be read; `GroupForbids`; `State` if it does not run;
    /// with [`auto_commit`](PullConsumerBuilder::auto_commit) as [`commit`](Self::commit), and
    /// nothing is returned then that the next poll does not return.
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

    /// Stores `offset` as the group's progress in any queue, assigned or not, forwards or
    /// backwards; it survives the end of the process when this returns (PC-7). Where polls go on
    /// does not change. A member that has the queue overwrites it with its next commit, and what
    /// [`commit`](Self::commit) stores of the consumer's own queues is how far these were polled
    /// since.
    ///
    /// # Errors
    /// `NoSuchTopic`, `NoSuchQueue`; `OffsetRange` if it lies behind the end of the queue;
    /// `DiskFull` or `Io` if it is the group's first offset in the queue and there is no room;
    /// `State` if it does not run; `Closed`.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let broker = rocklet::Broker::open(dir.path())?;
    /// use rocklet::{Message, PullStatus, QueueId};
    /// broker.producer().send(&Message::new("orders", b"paid").queue(0))?;
    /// let audit = broker.pull_consumer("audit").start()?;
    /// let queue = QueueId::new("orders", 0);
    /// let from = audit.committed(&queue)?.unwrap_or(0);
    /// let pulled = audit.pull(&queue, from, 32)?;
    /// assert_eq!(pulled.status, PullStatus::Found);
    /// audit.commit_offset(&queue, pulled.next)?;
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    pub fn commit_offset(&self, queue: &QueueId, offset: u64) -> Result<()> {
        self.member("commit")?.commit_offset(queue, offset)
    }

    /// Goes on at `offset` of an assigned queue, from the first stored message to the end; the
    /// next commit stores it, even if it is lower (LITE-10).
    ///
    /// # Errors
    /// `NotAssigned`, `OffsetRange`, `Closed`; `State` if it does not run.
    pub fn seek(&mut self, queue: &QueueId, offset: u64) -> Result<()> {
        self.member("seek")?.seek(queue, offset)
    }

    /// Goes on at the beginning of an assigned queue, at its end, or at a time; the next commit
    /// stores it (LITE-10, LITE-12).
    ///
    /// # Errors
    /// `NotAssigned`, `Closed`; `Corrupt` if a message cannot be read on the search for a time;
    /// `State` if it does not run.
    pub fn seek_to(&mut self, queue: &QueueId, start: Start) -> Result<()> {
        self.member("seek")?.seek_to(queue, start)
    }

    /// Has polls leave these queues out, until they are [resumed](Self::resume) or lost; of those
    /// that are not assigned nothing is noted (LITE-11).
    ///
    /// # Errors
    /// `State` if it does not run; `Closed`.
    pub fn pause(&mut self, queues: &[QueueId]) -> Result<()> {
        self.member("pause")?.pause(queues, true)
    }

    /// Has polls read these queues again, from where they stopped.
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    pub fn resume(&mut self, queues: &[QueueId]) -> Result<()> {
        self.member("resume")?.pause(queues, false)
    }

    /// The assigned queues that are paused, sorted.
    #[must_use]
    pub fn paused(&self) -> Vec<QueueId> {
        self.member("pause").map_or_else(|_| Vec::new(), |member| member.paused())
    }

    /// The offset that the group has committed in a queue; `None` if it never consumed it
    /// (LITE-12).
    ///
    /// # Errors
    /// `NoSuchTopic`, `NoSuchQueue`.
    pub fn committed(&self, queue: &QueueId) -> Result<Option<u64>> {
        match &self.phase {
            Phase::Running(member) => member.committed(queue),
            _ => self.broker.committed(&self.group, queue),
        }
    }

    /// What it is doing, queue by queue (OPS-3).
    ///
    /// # Errors
    /// `State` if it does not run.
    pub fn running_info(&self) -> Result<RunningInfo> {
        let settings = format!("batch: {}", self.batch);
        self.member("be looked at").map(|member| member.info(settings))
    }

    /// Reads up to `max` messages (1 to 65 535) of any queue from `offset` on, without the group
    /// knowing of it; a subscribed topic's filter applies. Go on at `next`, whatever the status
    /// (PC-3, PC-5).
    ///
    /// # Errors
    /// `NoSuchTopic`, `NotPermitted`, `NoSuchQueue`, `GroupForbids`, `Setting`, `Closed`; `State` if
    /// it does not run; `Corrupt` if a message cannot be read.
    pub fn pull(&self, queue: &QueueId, offset: u64, max: usize) -> Result<Pull> {
        check_range("max", max, 1, 65_535)?;
        let member = self.member("pull")?;
        member.pull(queue, &member.filter(queue.topic()), offset, max)
    }

    /// Does the same with a filter of its own and, if there is no message, waits up to `timeout`
    /// for one that passes it: asleep, and woken by its arrival. Several threads may wait at a time
    /// (PC-4).
    ///
    /// # Errors
    /// As [`pull`](Self::pull); `Filter` if it is a tag expression that breaks the rules. One that
    /// waits gets `Closed` when the broker is closed, and `NoSuchTopic` when the topic is deleted.
    pub fn pull_within<F>(
        &self,
        queue: &QueueId,
        filter: F,
        offset: u64,
        max: usize,
        timeout: Duration,
    ) -> Result<Pull>
    where
        F: TryInto<Filter>,
        Error: From<F::Error>,
    {
        check_range("max", max, 1, 65_535)?;
        let filter = filter.try_into()?;
        self.member("pull")?.pull_within(queue, &filter, offset, max, timeout)
    }

    /// Does with a message what [`Outcome`] says, as if a listener of the group had returned it:
    /// has it delivered again later, by a copy in the retry topic `%RETRY%<group>`, or gives it up,
    /// by one among the group's [dead letters](Broker::dead_letters) (PC-8, CONC-14). The message
    /// itself is done with then: go on, and commit. A success changes nothing.
    ///
    /// Push consumers of the group get what is in its retry topic by themselves. A pull consumer
    /// does not (LITE-14): have its queues [assigned](PullConsumerBuilder::assign), or pull from
    /// them.
    ///
    /// # Errors
    /// As [`Producer::send`](crate::Producer::send): nothing has changed then, but for
    /// `Poisoned`. `State` if it does not run; `Closed`.
    pub fn send_back(&self, delivery: &Delivery<'_>, outcome: Outcome) -> Result<()> {
        let member = self.member("send back")?;
        member.send_back(&member.group, delivery, outcome)
    }

    /// Does the same in the name of another group, which is made if it is new: its retry topic gets
    /// the copy, and its settings say how long that waits.
    ///
    /// # Errors
    /// As [`send_back`](Self::send_back); `Name`; `NoSuchGroup` if groups are not made by themselves.
    pub fn send_back_to(
        &self,
        group: &str,
        delivery: &Delivery<'_>,
        outcome: Outcome,
    ) -> Result<()> {
        let member = self.member("send back")?;
        names::check_group(group)?;
        let group = member.core.group(group)?;
        member.send_back(&group, delivery, outcome)
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

    fn subscriber(&self, action: &'static str) -> Result<&Arc<PullMember>> {
        let reason = "queues are assigned to it; prepare another one to subscribe";
        let member = self.member(action)?;
        if member.chooses { Err(Error::Assignment { reason }) } else { Ok(member) }
    }
}

impl Prepared {
    fn start(&self) -> Result<Arc<PullMember>> {
        let Self { plan, settings } = self;
        settings.check(plan)?;
        let (group, name) = plan.group()?;
        let member = PullMember::new(plan, settings, &group, &name);
        match &settings.assigned {
            Some((queues, filter)) => member.enter(plan, queues, filter)?,
            None => plan.join(&group, &name, Kind::Pull, &member)?,
        }
        Ok(member)
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
