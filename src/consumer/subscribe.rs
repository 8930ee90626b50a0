//! What push and pull consumers have in common before they start.

use crate::broker::Broker;
use crate::broker::Start;
use crate::broker::assign::{AssignStrategy, Averagely};
use crate::broker::core::Running;
use crate::broker::filter::Filter;
use crate::broker::group::{Group, Kind, Member, Subscription};
use crate::error::{Error, Result};
use crate::names;
use crate::sync::Arc;
use std::collections::BTreeMap;

/// The part of a consumer's settings that its group looks at.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) broker: Broker,
    pub(super) group: String,
    pub(super) name: Option<String>,
    pub(super) topics: BTreeMap<String, Filter>,
    pub(super) start: Start,
    pub(super) strategy: Arc<dyn AssignStrategy>,
}

impl Plan {
    pub(super) fn new(broker: &Broker, group: &str) -> Self {
        Self {
            broker: broker.clone(),
            group: group.to_owned(),
            name: None,
            topics: BTreeMap::new(),
            start: Start::default(),
            strategy: Arc::new(Averagely),
        }
    }

    pub(super) fn subscribe<F>(&mut self, topic: &str, filter: F) -> Result<()>
    where
        F: TryInto<Filter>,
        Error: From<F::Error>,
    {
        names::check_topic(topic)?;
        self.topics.insert(topic.to_owned(), filter.try_into()?);
        Ok(())
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
        let name = self.name.clone().unwrap_or_else(|| {
            // Users may have given such names themselves.
            let mut names = std::iter::repeat_with(|| core.new_name());
            names.find(|name| !group.knows(name)).unwrap_or_default()
        });
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
        let (topics, strategy) = (self.topics.clone(), self.strategy.clone());
        let subscription = Subscription::new(kind, topics, strategy)?;
        let running: Arc<dyn Running> = member.clone();
        core.add_consumer(Arc::downgrade(&running))?;
        core.while_open(|| group.begin(name, &subscription, self.start))?;
        group.join(name, member.clone(), subscription)?;
        // A close that began before may have stopped it before it was a member.
        core.while_open(|| Ok(())).inspect_err(|_| group.leave(name))
    }
}

/// Refuses a setting outside of its range (CLI-3).
pub(super) fn check_range(name: &'static str, value: usize, min: u64, max: u64) -> Result<()> {
    let value = value as u64;
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(Error::Setting { name, value, rule: "a number", min, max })
}
