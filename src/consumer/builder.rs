//! What push and pull consumers have in common before they start.

use super::hook::ConsumeHook;
use super::offset_store::OffsetStore;
use super::queue_changes::{ChangeListener, QueuesChanged};
use crate::broker::assign::{AssignStrategy, Averagely};
use crate::broker::core::Running;
use crate::broker::filter::Filter;
use crate::broker::group::{Group, Kind, Member, Subscription};
use crate::broker::{Broker, Mode, Start};
use crate::error::{Error, Result};
use crate::names;
use crate::sync::Arc;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Settings of a consumer that is not made yet, checked together when it starts. What both kinds
/// have is set here; see [`PushConsumerBuilder`](crate::PushConsumerBuilder) and
/// [`PullConsumerBuilder`](crate::PullConsumerBuilder) for the rest.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `start`"]
pub struct ConsumerBuilder<S> {
    pub(super) plan: Plan,
    pub(super) own: S,
}

impl<S> ConsumerBuilder<S> {
    /// Names the member, uniquely in its group; by default `consumer-<n>`, and `default` in
    /// [`Mode::Broadcasting`], where progress is kept under the name (CLI-8).
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.plan.name = Some(name.into());
        self
    }

    /// Subscribes to a topic, which need not exist yet; again for another topic. All members of a
    /// group must subscribe to the same. A consumer may start without a subscription, and receives
    /// nothing until it subscribes.
    ///
    /// # Errors
    /// `Name` if the topic's name breaks the rules, `Filter` if the expression does.
    pub fn subscribe<F>(mut self, topic: &str, filter: F) -> Result<Self>
    where
        F: TryInto<Filter>,
        Error: From<F::Error>,
    {
        names::check_topic(topic)?;
        self.plan.topics.insert(topic.to_owned(), filter.try_into()?);
        Ok(self)
    }

    /// Sets whether the members share the messages or get all of them each;
    /// [`Mode::Clustering`] by default.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.plan.mode = mode;
        self
    }

    /// Sets where the group begins if it is new, see [`Start`]; [`Start::First`] by default.
    pub fn start_from(mut self, start: Start) -> Self {
        self.plan.start = start;
        self
    }

    /// Sets how queues are divided among the members; [`Averagely`](crate::Averagely) by default.
    pub fn strategy(mut self, strategy: impl AssignStrategy + 'static) -> Self {
        self.plan.strategy = Arc::new(strategy);
        self
    }

    /// Has `listener` called when the consumer gets or loses queues, by a thread of the consumer
    /// with no lock held: a worker, or whoever polls. A panic of it is contained (REB-10).
    pub fn on_queues_changed(
        mut self,
        listener: impl Fn(&QueuesChanged) + Send + Sync + 'static,
    ) -> Self {
        self.plan.changes = Some(ChangeListener(Arc::new(listener)));
        self
    }
}

/// The part of a consumer's settings that its group looks at.
#[derive(Clone)]
pub(super) struct Plan {
    pub(super) broker: Broker,
    pub(super) group: String,
    pub(super) name: Option<String>,
    pub(super) topics: BTreeMap<String, Filter>,
    pub(super) mode: Mode,
    pub(super) start: Start,
    pub(super) strategy: Arc<dyn AssignStrategy>,
    pub(super) offsets: Option<Arc<dyn OffsetStore>>,
    pub(super) changes: Option<ChangeListener>,
    pub(super) hooks: Vec<Arc<dyn ConsumeHook>>,
}

impl Plan {
    pub(super) fn new(broker: &Broker, group: &str) -> Self {
        Self {
            broker: broker.clone(),
            group: group.to_owned(),
            name: None,
            topics: BTreeMap::new(),
            mode: Mode::default(),
            start: Start::default(),
            strategy: Arc::new(Averagely),
            offsets: None,
            changes: None,
            hooks: Vec::new(),
        }
    }

    /// Checks names and finds the group.
    pub(super) fn group(&self) -> Result<(Arc<Group>, String)> {
        names::check_group(&self.group)?;
        if let Some(name) = &self.name {
            names::check_consumer(name)?;
        }
        let core = self.broker.core();
        if core.is_closed() {
            return Err(Error::Closed);
        }
        let group = core.group(&self.group)?;
        let name = match (&self.name, self.mode) {
            (Some(name), _) => name.clone(),
            (None, Mode::Broadcasting) => "default".to_owned(),
            (None, Mode::Clustering) => {
                // Users may have given such names themselves.
                let mut names = std::iter::repeat_with(|| core.new_name());
                names.find(|name| !group.knows(name)).unwrap_or_default()
            }
        };
        Ok((group, name))
    }

    /// Makes `member` one of the group, to be stopped when the broker closes.
    pub(super) fn join<M>(
        &self,
        group: &Group,
        name: &str,
        kind: Kind,
        member: &Arc<M>,
    ) -> Result<()>
    where
        M: Member + Running + 'static,
    {
        let core = self.broker.core();
        let mut known = self.topics.keys().filter_map(|name| core.store.topics.get(name));
        known.try_for_each(|topic| topic.check_readable())?;
        let (mut topics, strategy) = (self.topics.clone(), self.strategy.clone());
        if kind.sends_back(self.mode) {
            // It may not be there yet: it is made at the first failure (CLI-4, CONC-20).
            topics.insert(names::retry_topic(&self.group), Filter::ALL);
        }
        let own_offsets = self.offsets.is_some();
        let subscription = Subscription::new(kind, self.mode, topics, strategy, own_offsets)?;
        let running: Arc<dyn Running> = member.clone();
        core.add_consumer(Arc::downgrade(&running))?;
        core.while_open(|| group.begin(name, &subscription, self.start))?;
        group.join(name, member.clone(), subscription)?;
        // A close that began before may have stopped it before it was a member.
        core.while_open(|| Ok(())).inspect_err(|_| group.leave(name))
    }
}

pub(super) const DAY_MS: u64 = 86_400_000;

/// Refuses a setting outside of its range (CLI-3).
pub(super) fn check_range(name: &'static str, value: usize, min: u64, max: u64) -> Result<()> {
    let value = value as u64;
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(Error::Setting { name, value, rule: "a number", min, max })
}

/// The same for a time in milliseconds.
pub(super) fn check_ms(name: &'static str, time: Duration, min: u64, max: u64) -> Result<()> {
    check_range(name, usize::try_from(time.as_millis()).unwrap_or(usize::MAX), min, max)
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Plan");
        shown.field("group", &self.group).field("name", &self.name).field("mode", &self.mode);
        shown.field("topics", &self.topics).field("start", &self.start);
        shown.field("strategy", &self.strategy).finish_non_exhaustive()
    }
}
