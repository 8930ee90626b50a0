//! Push consumers: a listener is called for every message.

use super::batch::Batch;
use super::batch_listener::{BatchListener, IntoBatchOutcome};
use super::builder::{ConsumerBuilder, Plan};
use super::concurrent::Service;
use super::handler::Handler;
use super::hook::Consumed;
use super::orderly::{IntoOrderlyOutcome, OneByOne, OrderlyListener};
use super::outcome::{IntoOutcome, Listener};
use super::phase::Phase;
use super::push_settings::{PushConsumerBuilder, PushSettings};
use super::running_info::RunningInfo;
use crate::broker::Broker;
use crate::broker::core::Running;
use crate::broker::filter::Filter;
use crate::error::{Error, Result};
use crate::names;
use crate::queue_id::QueueId;
use crate::service_state::ServiceState;
use crate::store::Delivery;
use crate::sync::{Arc, Mutex, Rank};
use std::time::Duration;

impl Broker {
    /// Prepares a push consumer, a member of `group`.
    pub fn push_consumer(&self, group: &str) -> PushConsumerBuilder {
        ConsumerBuilder { plan: Plan::new(self, group), own: PushSettings::default() }
    }
}

impl ConsumerBuilder<PushSettings> {
    /// Joins the group and begins to call `listener`, for different messages at the same time. A
    /// message that it fails is stored to be delivered again later, as
    /// [`GroupSettings`](crate::GroupSettings::back_off) say, and the group goes on.
    ///
    /// # Errors
    /// As [`PushConsumer::start`].
    pub fn start<F, R>(self, listener: F) -> Result<PushConsumer>
    where
        F: Fn(&Delivery<'_>) -> R + Send + Sync + 'static,
        R: IntoOutcome,
    {
        self.start_listener(listener)
    }

    /// Does the same for a value that implements [`Listener`].
    ///
    /// # Errors
    /// As [`PushConsumer::start`].
    pub fn start_listener(self, listener: impl Listener + 'static) -> Result<PushConsumer> {
        let consumer = self.build(listener);
        consumer.start()?;
        Ok(consumer)
    }

    /// As [`start`](Self::start), for a listener that is called with up to
    /// [`listener_batch`](Self::listener_batch) messages of a queue at once.
    ///
    /// # Errors
    /// As [`PushConsumer::start`].
    pub fn start_batch<F, R>(self, listener: F) -> Result<PushConsumer>
    where
        F: Fn(&Batch<'_>) -> R + Send + Sync + 'static,
        R: IntoBatchOutcome,
    {
        self.start_batch_listener(listener)
    }

    /// Does the same for a value that implements [`BatchListener`].
    ///
    /// # Errors
    /// As [`PushConsumer::start`].
    pub fn start_batch_listener(
        self,
        listener: impl BatchListener + 'static,
    ) -> Result<PushConsumer> {
        let consumer = self.build_batch(listener);
        consumer.start()?;
        Ok(consumer)
    }

    /// Makes the consumer without starting it.
    pub fn build(self, listener: impl Listener + 'static) -> PushConsumer {
        self.prepare(Handler::Each(Arc::new(listener)))
    }

    /// Joins the group and begins to call `listener`, with the messages of each queue in order: one
    /// message at a time, whichever member has the queue. What it suspends, by an error or a panic,
    /// is delivered again after a pause, and nothing behind it is delivered before. The members of
    /// a group consume all in order, or none of them.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let broker = rocklet::Broker::open(dir.path())?;
    /// # fn book(order: &[u8]) -> std::io::Result<()> { Ok(()) }
    /// let builder = broker.push_consumer("ledger").subscribe("orders", "*")?;
    /// let consumer = builder.start_orderly(|order| book(order.body()))?;
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`PushConsumer::start`].
    pub fn start_orderly<F, R>(mut self, listener: F) -> Result<PushConsumer>
    where
        F: Fn(&Delivery<'_>) -> R + Send + Sync + 'static,
        R: IntoOrderlyOutcome,
    {
        self.own.listener_batch = 1;
        self.start_orderly_listener(OneByOne(listener))
    }

    /// Does the same with batches of up to [`listener_batch`](Self::listener_batch) messages, for
    /// closures that take a [`Batch`](crate::Batch) and for values that implement
    /// [`OrderlyListener`].
    ///
    /// # Errors
    /// As [`PushConsumer::start`].
    pub fn start_orderly_listener(
        self,
        listener: impl OrderlyListener + 'static,
    ) -> Result<PushConsumer> {
        let consumer = self.build_orderly(listener);
        consumer.start()?;
        Ok(consumer)
    }

    /// Makes a consumer in order without starting it.
    pub fn build_orderly(self, listener: impl OrderlyListener + 'static) -> PushConsumer {
        self.prepare(Handler::InOrder(Arc::new(listener)))
    }

    /// Makes a consumer of batches without starting it.
    pub fn build_batch(self, listener: impl BatchListener + 'static) -> PushConsumer {
        self.prepare(Handler::Batch(Arc::new(listener)))
    }

    fn prepare(self, handler: Handler) -> PushConsumer {
        let broker = self.plan.broker.clone();
        let prepared = Prepared { plan: self.plan, settings: self.own, handler };
        let phase = Mutex::new(Rank::Lifecycle, Phase::Created(Box::new(prepared)));
        PushConsumer { phase, _broker: broker }
    }
}

/// A push consumer; it stops when dropped.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let broker = rocklet::Broker::open(dir.path())?;
/// use rocklet::{Error, ServiceState};
/// let consumer = broker.push_consumer("audit").subscribe("orders", "*")?.start(|_| ())?;
/// assert_eq!(consumer.state(), ServiceState::Running);
/// assert!(matches!(consumer.start(), Err(Error::State { .. })));
/// consumer.shutdown();
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a consumer stops when it is dropped"]
pub struct PushConsumer {
    phase: Mutex<Phase<Box<Prepared>, Arc<Service>>>,
    // Behind the service: the listener goes before the directory is closed.
    _broker: Broker,
}

/// What a start needs.
struct Prepared {
    plan: Plan,
    settings: PushSettings,
    handler: Handler,
}

impl PushConsumer {
    /// Starts a consumer that was [built](PushConsumerBuilder::build): joins the group and begins
    /// to call the listener. After [`Duplicate`](Error::Duplicate) it may be [renamed](Self::rename)
    /// and started again; after another error it cannot be used any more (CLI-2).
    ///
    /// # Errors
    /// `State` if it was started before; `Setting` if a setting is out of its range; `Name`;
    /// `Duplicate` if the name is taken; `Mismatch` if the running members differ; `GroupForbids` or
    /// `NoSuchGroup` if the group may not consume; `Strategy` if the strategy panics when asked for
    /// its name; `OffsetStore` if a store of your own cannot be loaded; `DiskFull`, `Io` or
    /// `Poisoned` if the group, or where it begins, cannot be stored; `Corrupt` if the message to
    /// begin with cannot be read; `Io` if a thread cannot be started; `Closed`.
    pub fn start(&self) -> Result<()> {
        let prepared = self.phase.lock().begin()?;
        // With no lock held: the state is `StartFailed` until it is known better.
        let started = prepared.start();
        let mut phase = self.phase.lock();
        let ended = phase.end(started, prepared);
        drop(phase);
        ended
    }

    /// Gives another name to a consumer that is not started.
    ///
    /// # Errors
    /// `State` if it was started before.
    pub fn rename(&self, name: impl Into<String>) -> Result<()> {
        let name = name.into();
        match &mut *self.phase.lock() {
            Phase::Created(prepared) => {
                prepared.plan.name = Some(name);
                Ok(())
            }
            phase => Err(phase.refuse("be renamed")),
        }
    }

    /// Where it is in its life. One whose broker was closed is shut down.
    #[must_use]
    pub fn state(&self) -> ServiceState {
        match &*self.phase.lock() {
            Phase::Running(service) if service.is_stopping() => ServiceState::Shutdown,
            phase => phase.state(),
        }
    }

    /// The member's name; empty if it has none yet, or none any more.
    #[must_use]
    pub fn name(&self) -> String {
        match &*self.phase.lock() {
            Phase::Created(prepared) => prepared.plan.name.clone().unwrap_or_default(),
            Phase::Running(service) => service.name().to_owned(),
            _ => String::new(),
        }
    }

    /// The queues that it has at the moment, sorted.
    #[must_use]
    pub fn assignment(&self) -> Vec<QueueId> {
        self.service("have queues").map_or_else(|_| Vec::new(), |service| service.assignment())
    }

    /// Why something failed last, for people to read: a delivery (what the listener returned, or
    /// the text of its panic), a read, or a commit. `None` while nothing has; how often tells
    /// [`Broker::stats`].
    #[must_use]
    pub fn last_failure(&self) -> Option<String> {
        self.service("fail").ok()?.last_failure()
    }

    /// What it is doing, queue by queue, with which settings.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let broker = rocklet::Broker::open(dir.path())?;
    /// broker.create_topic("orders", 2)?;
    /// let consumer = broker.push_consumer("audit").subscribe("orders", "paid")?.start(|_| ())?;
    /// let info = consumer.running_info()?;
    /// assert_eq!((info.queues.len(), info.queues[0].messages), (2, 0));
    /// assert_eq!(info.subscriptions["orders"].to_string(), "paid");
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `State` if it does not run.
    pub fn running_info(&self) -> Result<RunningInfo> {
        self.service("be looked at").map(|service| service.info())
    }

    /// Subscribes the whole group to another topic, or to another part of one: all members at
    /// once. A topic that the group has not consumed before is read from its beginning (CLI-12).
    ///
    /// # Errors
    /// `Name`, `Filter`; `State` if it does not run; `Closed`.
    pub fn subscribe<F>(&self, topic: &str, filter: F) -> Result<()>
    where
        F: TryInto<Filter>,
        Error: From<F::Error>,
    {
        names::check_topic(topic)?;
        let filter = filter.try_into()?;
        self.service("subscribe")?.group().subscribe(topic, filter)
    }

    /// Ends the subscription of a topic for the whole group. Its progress is kept.
    ///
    /// # Errors
    /// `NotSubscribed`; `State` if it does not run; `Closed`.
    pub fn unsubscribe(&self, topic: &str) -> Result<()> {
        self.service("unsubscribe")?.group().unsubscribe(topic)
    }

    /// Stops reading from the log, until [`resume`](Self::resume). What was read before is
    /// consumed, and the consumer stays a member with its queues (CLI-11).
    ///
    /// # Errors
    /// `State` if it does not run.
    pub fn pause(&self) -> Result<()> {
        self.service("pause").map(|service| service.pause())
    }

    /// Goes on reading.
    ///
    /// # Errors
    /// `State` if it does not run.
    pub fn resume(&self) -> Result<()> {
        self.service("resume").map(|service| service.resume())
    }

    /// Whether it was paused.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.service("pause").is_ok_and(|service| service.is_paused())
    }

    /// How many threads call the listener.
    #[must_use]
    pub fn threads(&self) -> usize {
        match &*self.phase.lock() {
            Phase::Created(prepared) => prepared.settings.threads,
            Phase::Running(service) => service.threads(),
            _ => 0,
        }
    }

    /// Sets how many threads call the listener, from now on: 1 to 1000. Those that are too many end
    /// when they are through with what they are at (CLI-13).
    ///
    /// # Errors
    /// `Setting` if the number is out of range; `State` if it does not run; `Io` if not all threads
    /// can be started: those that were stay.
    pub fn set_threads(&self, threads: usize) -> Result<()> {
        self.service("change its threads")?.resize(|_| threads).map(drop)
    }

    /// Adds threads, or with a negative number takes some away; returns how many there are to be.
    ///
    /// # Errors
    /// As [`set_threads`](Self::set_threads).
    pub fn add_threads(&self, more: isize) -> Result<usize> {
        let service = self.service("change its threads")?;
        service.resize(|threads| threads.saturating_add_signed(more))
    }

    /// Calls the listener with a message, whatever queue it is from, on the calling thread, and
    /// tells what came of it. Nothing else does: the message is neither acknowledged nor delivered
    /// again, and no hooks are called (CONC-22).
    ///
    /// # Errors
    /// `State` if it does not run.
    pub fn consume_directly(&self, message: &Delivery<'_>) -> Result<Consumed> {
        Ok(self.service("consume")?.consume_directly(message))
    }

    /// Stops: what was read of a queue in front of a message that a listener is at is consumed,
    /// so that nothing is delivered twice; waits for that, commits, and leaves the group; its queues go to the
    /// other members. From inside its own listener it returns at once, and the rest happens
    /// behind it. One that does not run stays as it is (CLI-9, CLI-10).
    pub fn shutdown(&self) {
        if let Some(service) = self.leave() {
            service.stop();
        }
    }

    /// Does the same, and waits for running listeners no longer than `limit`. Those that are late
    /// hold their queues until they return; nothing else is held up by them.
    ///
    /// # Errors
    /// `NotDrained` if there are such listeners.
    pub fn shutdown_within(&self, limit: Duration) -> Result<()> {
        self.leave().map_or(Ok(()), |service| service.stop_within(Some(limit)))
    }

    fn leave(&self) -> Option<Arc<Service>> {
        self.phase.lock().shut_down()
    }

    pub(super) fn service(&self, action: &'static str) -> Result<Arc<Service>> {
        self.phase.lock().running(action).cloned()
    }
}

impl Prepared {
    fn start(&self) -> Result<Arc<Service>> {
        self.settings.check()?;
        let (group, name) = self.plan.group()?;
        let service = Service::start(&self.plan, self.settings, &group, &name, &self.handler)?;
        if let Err(error) = self.plan.join(&group, &name, self.handler.kind(), &service) {
            service.discard();
            return Err(error);
        }
        Ok(service)
    }
}

impl Drop for PushConsumer {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl std::fmt::Debug for PushConsumer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("PushConsumer");
        shown.field("name", &self.name()).field("state", &self.state()).finish_non_exhaustive()
    }
}
