//! Scheduled pulls: a callback for each queue, again and again (PC-9).

mod service;
mod turn;
pub(crate) mod turn_gate;

pub use turn::PullTurn;

use super::builder::{ConsumerBuilder, Plan, check_range};
use crate::broker::Broker;
use crate::broker::core::Running;
use crate::broker::group::Kind;
use crate::error::Result;
use crate::queue_id::QueueId;
use crate::service_state::ServiceState;
use crate::sync::{Arc, cores};
use service::ScheduleService;
use std::time::Duration;

impl Broker {
    /// Prepares a pull schedule, a member of `group`.
    pub fn pull_schedule(&self, group: &str) -> PullScheduleBuilder {
        let own = ScheduleSettings { threads: cores().max(2) };
        ConsumerBuilder { plan: Plan::new(self, group), own }
    }
}

/// Settings of a pull schedule that is not started yet.
pub type PullScheduleBuilder = ConsumerBuilder<ScheduleSettings>;

/// What only pull schedules have to set, see [`PullScheduleBuilder`].
#[derive(Clone, Copy, Debug)]
pub struct ScheduleSettings {
    threads: usize,
}

/// What a callback returns: after what time it wants to be called for the queue again.
pub type NextTurn = std::result::Result<Duration, Box<dyn std::error::Error>>;

impl ConsumerBuilder<ScheduleSettings> {
    /// Sets how many threads call the callback, for different queues: 1 to 1000; by default the
    /// number of cores, at least 2.
    pub fn threads(mut self, threads: usize) -> Self {
        self.own.threads = threads;
        self
    }

    /// Joins the group, and has `callback` called for every queue that the group deals out to it:
    /// at once, and again after the time that it returns each time. After an error or a panic it
    /// is called again in a second. For one queue there is one call at a time. A queue that is lost
    /// is given back when the call that is going on has returned, and there is no further one.
    ///
    /// # Errors
    /// As [`PushConsumer::start`](crate::PushConsumer::start).
    pub fn start<F>(self, callback: F) -> Result<PullSchedule>
    where
        F: Fn(&PullTurn<'_>) -> NextTurn + Send + Sync + 'static,
    {
        let Self { plan, own } = self;
        check_range("threads", own.threads, 1, 1000)?;
        let (group, name) = plan.group()?;
        let service =
            ScheduleService::start(&plan, own.threads, &group, &name, Box::new(callback))?;
        match plan.join(&group, &name, Kind::Pull, &service) {
            Ok(()) => Ok(PullSchedule { service, _broker: plan.broker }),
            Err(error) => {
                service.discard();
                Err(error)
            }
        }
    }
}

/// A member of a group that pulls by a schedule of the user's; it stops when dropped.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let broker = rocklet::Broker::open(dir.path())?;
/// use rocklet::Message;
/// use std::time::Duration;
/// broker.producer().send(&Message::new("orders", b"paid"))?;
/// let (found, arrived) = std::sync::mpsc::channel();
/// let _schedule = broker.pull_schedule("audit").subscribe("orders", "*")?.start(move |turn| {
///     let pulled = turn.pull(32)?;
///     for order in &pulled.messages {
///         found.send(order.body().to_vec())?;
///     }
///     turn.commit(pulled.next)?;
///     Ok(Duration::from_millis(200))
/// })?;
/// assert_eq!(arrived.recv()?, b"paid");
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a schedule stops when it is dropped"]
pub struct PullSchedule {
    service: Arc<ScheduleService>,
    // Behind the service: the callback goes before the directory is closed.
    _broker: Broker,
}

impl PullSchedule {
    /// The member's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.service.name()
    }

    /// Whether it runs, or is shut down.
    #[must_use]
    pub fn state(&self) -> ServiceState {
        if self.service.is_stopping() { ServiceState::Shutdown } else { ServiceState::Running }
    }

    /// The queues that it has at the moment, sorted.
    #[must_use]
    pub fn assignment(&self) -> Vec<QueueId> {
        self.service.assignment()
    }

    /// What the callback failed with last, for people to read.
    #[must_use]
    pub fn last_failure(&self) -> Option<String> {
        self.service.last_failure()
    }

    /// Stops: leaves the group, and waits for calls that are going on. From inside the callback it
    /// returns at once. A second time it does nothing.
    pub fn shutdown(&self) {
        self.service.stop();
    }
}

impl Drop for PullSchedule {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl std::fmt::Debug for PullSchedule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("PullSchedule");
        shown.field("name", &self.name()).field("state", &self.state()).finish_non_exhaustive()
    }
}
