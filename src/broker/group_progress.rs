//! How far a group has come, and how far it is behind (OPS-2, OPS-11).

use super::core::Core;
use super::group::{OwnedBy, instance_name};
use super::handle::Broker;
use crate::error::Result;
use crate::queue_id::QueueId;
use crate::store::{ConsumeQueue, OffsetKey, Topic};
use crate::sync::Arc;
use std::collections::BTreeMap;
use std::time::Duration;

/// A snapshot of a group's progress, as it is kept in the directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupProgress {
    /// Of the topics that the members subscribe to or, without members, of those in which the group
    /// has committed something: every queue that is consumed. In broadcasting each member has its
    /// own progress in each queue.
    pub queues: Vec<QueueProgress>,
}

/// A snapshot of the progress in one queue.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueProgress {
    /// The queue.
    pub queue: QueueId,
    /// In broadcasting, whose progress this is.
    pub member: Option<String>,
    /// Who has the queue at the moment.
    pub owner: Option<String>,
    /// Whether the owner is to give it back, and has not finished yet.
    pub draining: bool,
    /// The offset of the first message that is stored.
    pub min: u64,
    /// The offset that the next message will get.
    pub max: u64,
    /// Where consuming goes on; `None` if nothing was committed.
    pub committed: Option<u64>,
    /// How many offsets that is behind `max`. A filter may leave some of them out.
    pub lag: u64,
    /// How many of these are gone: they were dropped before they were consumed.
    pub missed: u64,
    /// Bytes of the log, of all topics, from the next message on; 0 without one.
    pub behind_bytes: u64,
    /// When the message before `committed` was stored, in milliseconds since 1970.
    pub last_consumed_ms: Option<u64>,
    /// How long the next message has been stored: the age of the oldest one that is not
    /// acknowledged. `None` without one.
    pub oldest_age: Option<Duration>,
}

impl GroupProgress {
    /// How far the group is behind, in all queues.
    #[must_use]
    pub fn lag(&self) -> u64 {
        self.queues.iter().map(|queue| queue.lag).sum()
    }

    /// The age of the oldest message that is not acknowledged; `None` if all are.
    #[must_use]
    pub fn oldest_age(&self) -> Option<Duration> {
        self.queues.iter().filter_map(|queue| queue.oldest_age).max()
    }

    /// Who has which queue (OPS-11). In broadcasting a queue has an owner for each member.
    #[must_use]
    pub fn owners(&self) -> BTreeMap<QueueId, Vec<String>> {
        let mut owners: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for queue in &self.queues {
            let owners = owners.entry(queue.queue.clone()).or_default();
            owners.extend(queue.owner.clone());
        }
        owners
    }
}

impl Broker {
    /// How far a group has come. What it has failed counts when its time has come, in the group's own
    /// topic for that. Progress in a store of the user's is not known here: then this is
    /// where the group began.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let broker = rocklet::Broker::open(dir.path())?;
    /// use rocklet::Message;
    /// use std::time::Duration;
    /// broker.producer().send(&Message::new("orders", b"paid"))?;
    /// let mut audit = broker.pull_consumer("audit").subscribe("orders", "*")?.start()?;
    /// assert_eq!(broker.group_progress("audit")?.lag(), 1);
    /// audit.poll(Duration::from_secs(1))?;
    /// audit.commit()?;
    /// assert_eq!(broker.group_progress("audit")?.lag(), 0);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `NoSuchGroup`; `Corrupt` if a message cannot be read; `Closed`.
    pub fn group_progress(&self, group: &str) -> Result<GroupProgress> {
        let core = self.core();
        let _reading = core.reading()?;
        let number = core.known_group(group)?;
        let running = core.running_group(group);
        let owners = running.as_ref().map(|group| group.owners()).unwrap_or_default();
        let subscribed = running.map(|group| group.subscriptions()).unwrap_or_default();
        let topics = match subscribed.is_empty() {
            true => core.store.topics.all(),
            false => subscribed.keys().filter_map(|name| core.store.topics.get(name)).collect(),
        };
        let instances = core.instances(group);
        let mut queues = Vec::new();
        for topic in topics {
            for (member, number) in &instances {
                queues.extend(core.progress(&topic, Some(member), *number, &owners)?);
            }
            queues.extend(core.progress(&topic, None, number, &owners)?);
        }
        queues.sort_by(|a, b| (&a.queue, &a.member).cmp(&(&b.queue, &b.member)));
        Ok(GroupProgress { queues })
    }
}

impl Core {
    /// The members that broadcasting has made, each with the number under which its progress is
    /// kept.
    fn instances(&self, group: &str) -> Vec<(String, u32)> {
        let prefix = instance_name(group, "");
        let all = self.store.groups.all().into_iter();
        // The one without a name is not a member, see `Group::moved_at`.
        let name = |name: String| {
            name.strip_prefix(&prefix).filter(|name| !name.is_empty()).map(str::to_owned)
        };
        all.filter_map(|(known, number)| Some((name(known)?, number))).collect()
    }

    /// The progress in the queues of a topic that `number` has begun to consume, or owns.
    fn progress(
        &self,
        topic: &Topic,
        member: Option<&String>,
        number: u32,
        owners: &OwnedBy,
    ) -> Result<Vec<QueueProgress>> {
        let key = |queue: &ConsumeQueue| {
            let (incarnation, queue) = (queue.incarnation, queue.queue);
            OffsetKey { group: number, incarnation, queue }
        };
        let committed = |queue: &ConsumeQueue| self.store.offsets.get(key(queue));
        let behind = |queue: &ConsumeQueue| {
            committed(queue).is_some_and(|committed| committed < queue.max())
        };
        let mut progress = Vec::new();
        for id in topic.readable(behind) {
            let queue = &topic.queues[usize::from(id.queue())];
            let owner = owners.get(&(id.clone(), member.cloned()));
            let committed = committed(queue);
            if owner.is_none() && committed.is_none() {
                continue;
            }
            progress.push(self.queue_progress(id, member, owner, queue, committed)?);
        }
        Ok(progress)
    }

    fn queue_progress(
        &self,
        id: QueueId,
        member: Option<&String>,
        owner: Option<&(String, bool)>,
        queue: &Arc<ConsumeQueue>,
        committed: Option<u64>,
    ) -> Result<QueueProgress> {
        let (min, max) = (queue.min(), queue.max());
        let reached = committed.unwrap_or(0);
        let next = reached.max(min);
        let next_ms = self.stored_ms(queue, Some(next))?;
        let age = |ms| Duration::from_millis(self.clock().coarse_wall_ms().saturating_sub(ms));
        let (_, end, _) = self.store.extent();
        let position = queue.entry(next).filter(|_| next < max).map(|entry| entry.position);
        Ok(QueueProgress {
            queue: id,
            member: member.cloned(),
            owner: owner.map(|(name, _)| name.clone()),
            draining: owner.is_some_and(|(_, draining)| *draining),
            min,
            max,
            committed,
            lag: max.saturating_sub(reached),
            missed: min.saturating_sub(reached).min(max.saturating_sub(reached)),
            behind_bytes: position.map_or(0, |position| end.saturating_sub(position)),
            last_consumed_ms: self.stored_ms(queue, reached.checked_sub(1))?,
            oldest_age: next_ms.map(age),
        })
    }
}
