//! Push consumers: a listener is called for every message.

use super::concurrent::{Service, Settings};
use super::outcome::{IntoOutcome, Listener};
use super::subscribe::{Plan, check_range};
use crate::broker::assign::AssignStrategy;
use crate::broker::core::Running;
use crate::broker::filter::Filter;
use crate::broker::group::Kind;
use crate::broker::{Broker, Start};
use crate::error::{Error, Result};
use crate::queue_id::QueueId;
use crate::store::Delivery;
use crate::sync::{Arc, cores};
use std::time::Duration;

impl Broker {
    /// Prepares a push consumer, a member of `group`.
    pub fn push_consumer(&self, group: &str) -> PushConsumerBuilder {
        PushConsumerBuilder {
            plan: Plan::new(self, group),
            threads: cores().max(2),
            pull_batch: 32,
            retry_delay: Duration::from_secs(1),
            filter_retries: false,
        }
    }
}

/// Settings of a push consumer; checked together by [`start`](Self::start).
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `start`"]
pub struct PushConsumerBuilder {
    plan: Plan,
    threads: usize,
    pull_batch: usize,
    retry_delay: Duration,
    filter_retries: bool,
}

impl PushConsumerBuilder {
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

    /// Sets how many threads call the listener: 1 to 1000; by default the number of cores, at
    /// least 2.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Sets how many messages are read from the log at once: 1 to 1024, 32 by default.
    pub fn pull_batch(mut self, messages: usize) -> Self {
        self.pull_batch = messages;
        self
    }

    /// Sets how long a failed message waits for its next delivery: 1 ms to 1 day, 1 s by default.
    pub fn retry_delay(mut self, delay: Duration) -> Self {
        self.retry_delay = delay;
        self
    }

    /// Applies the filter to a failed message again before its next delivery, and drops it if it
    /// does not pass any more (FILT-4). Without this, a message that was delivered once is
    /// delivered until it succeeds.
    pub fn filter_retries(mut self) -> Self {
        self.filter_retries = true;
        self
    }

    /// Sets how queues are divided among the members; [`Averagely`](crate::Averagely) by default.
    pub fn strategy(mut self, strategy: impl AssignStrategy + 'static) -> Self {
        self.plan.strategy = Arc::new(strategy);
        self
    }

    /// Joins the group and begins to call `listener`, for different messages at the same time. A
    /// message that it fails is delivered again after the retry delay; the group's progress does
    /// not pass it before.
    ///
    /// # Errors
    /// `Setting` if a setting is out of its range; `Name`; `Duplicate` if the name is taken;
    /// `Mismatch` if the running members differ; `Strategy` if the strategy panics when asked for
    /// its name; `DiskFull`, `Io` or `Poisoned` if the group, or where it begins, cannot be stored;
    /// `Corrupt` if the message to begin with cannot be read; `Io` if a thread cannot be started;
    /// `Closed`.
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
    /// As [`start`](Self::start).
    pub fn start_listener(self, listener: impl Listener + 'static) -> Result<PushConsumer> {
        let Self { plan, threads, pull_batch, retry_delay, filter_retries } = self;
        check_range("threads", threads, 1, 1000)?;
        check_range("pull_batch", pull_batch, 1, 1024)?;
        let delay = usize::try_from(retry_delay.as_millis()).unwrap_or(usize::MAX);
        check_range("retry_delay in ms", delay, 1, 86_400_000)?;
        let (group, name) = plan.group()?;
        let settings = Settings { threads, pull_batch, retry_delay, filter_retries };
        let core = plan.broker.core();
        let service = Service::start(core, &group, &name, settings, Box::new(listener))?;
        if let Err(error) = plan.join(&group, &name, Kind::Push, &service) {
            service.discard();
            return Err(error);
        }
        Ok(PushConsumer { _broker: plan.broker, service })
    }
}

/// A running push consumer; it stops when dropped.
#[must_use = "a consumer stops when it is dropped"]
pub struct PushConsumer {
    pub(super) service: Arc<Service>,
    // Behind the service: the listener goes before the directory is closed.
    _broker: Broker,
}

impl PushConsumer {
    /// The member's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.service.name()
    }

    /// The queues that it has at the moment, sorted.
    #[must_use]
    pub fn assignment(&self) -> Vec<QueueId> {
        self.service.assignment()
    }

    /// Why something failed last, for people to read: a delivery (what the listener returned, or
    /// the text of its panic), a read, or a commit. `None` while nothing has; how often tells
    /// [`Broker::stats`].
    #[must_use]
    pub fn last_failure(&self) -> Option<String> {
        self.service.last_failure()
    }

    /// Stops: waits for running listeners, commits, and leaves the group; its queues go to the
    /// other members. From inside its own listener it returns at once, and the rest happens
    /// behind it.
    pub fn shutdown(self) {
        self.service.stop();
    }
}

impl Drop for PushConsumer {
    fn drop(&mut self) {
        self.service.stop();
    }
}

impl std::fmt::Debug for PushConsumer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PushConsumer").field("name", &self.name()).finish_non_exhaustive()
    }
}
