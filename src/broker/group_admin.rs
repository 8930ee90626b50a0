//! Groups as operators see them: settings, and where they go on (OPS-7).

use super::core::Core;
use super::group::instance_name;
use super::group_settings::GroupSettings;
use super::handle::Broker;
use super::start::Start;
use crate::error::{Error, Result};
use crate::names;
use crate::queue_id::QueueId;
use crate::store::{ConsumeQueue, OffsetKey};
use std::collections::BTreeMap;
use std::time::SystemTime;

/// Where to move a group, in every queue of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResetTo {
    /// The first stored message.
    First,
    /// The end: what is sent from now on.
    Last,
    /// The first message that was stored at this time or later (STORE-35).
    Time(SystemTime),
    /// This offset, or the nearest one that a queue has.
    Offset(u64),
}

impl Broker {
    /// Creates a group before its first consumer.
    ///
    /// # Errors
    /// `GroupExists`; `Name`; `Setting`; `DiskFull`, `Io` or `Poisoned` if it cannot be stored;
    /// `Closed`.
    pub fn create_group(&self, name: &str, settings: GroupSettings) -> Result<()> {
        names::check_group(name)?;
        settings.check()?;
        let core = self.core();
        core.while_open(|| match core.store.groups.find(name) {
            Some(_) => Err(Error::GroupExists { group: name.to_owned() }),
            None => core.store.groups.set_settings(name, &settings.encode()).map(drop),
        })
    }

    /// Changes the settings of a group, at once for members that run.
    ///
    /// # Errors
    /// `NoSuchGroup`; `Setting`; or as [`create_group`](Self::create_group).
    pub fn update_group(&self, name: &str, settings: GroupSettings) -> Result<()> {
        settings.check()?;
        let core = self.core();
        core.while_open(|| {
            core.known_group(name)?;
            core.store.groups.set_settings(name, &settings.encode()).map(drop)
        })?;
        let groups = core.groups();
        let running = groups.iter().find(|group| group.name == name);
        running.into_iter().for_each(|group| group.set_settings(settings.clone()));
        Ok(())
    }

    /// Deletes a group without running members: its settings, all its progress, and what it was to
    /// get again. A later group of the name begins anew. Its [dead letters](Self::dead_letters) stay,
    /// unless all of them were driven again: which ones were is forgotten.
    ///
    /// # Errors
    /// `NoSuchGroup`; `GroupInUse`; or as [`create_group`](Self::create_group): then the group is
    /// still there, to be deleted again.
    pub fn delete_group(&self, name: &str) -> Result<()> {
        let core = self.core();
        core.known_group(name)?;
        let group = core.group(name)?;
        group.retire()?;
        let deleted = self.delete_unused_group(name);
        core.store.flusher().ring();
        match deleted {
            Ok(()) => core.forget_group(name),
            Err(_) => group.reinstate(),
        }
        deleted
    }

    /// What is to be delivered again goes first. If the process ends in between, there still is a
    /// group to be deleted, and no later one of the name gets what is left of it.
    fn delete_unused_group(&self, name: &str) -> Result<()> {
        let core = self.core();
        let _turn = core.turns.take(core.clock(), name);
        self.dead_letters(name)?.purge_if_driven()?;
        match self.delete_topic(&names::retry_topic(name)) {
            Ok(()) | Err(Error::NoSuchTopic { .. }) => {}
            Err(error) => return Err(error),
        }
        let instances = instance_name(name, "");
        core.while_open(|| {
            let all = core.store.groups.all().into_iter();
            let own = all.filter(|(known, _)| known == name || known.starts_with(&instances));
            let (group, members): (Vec<_>, Vec<_>) = own.partition(|(known, _)| known == name);
            members.into_iter().chain(group).try_for_each(|(known, number)| {
                core.store.groups.remove(&known)?;
                core.store.offsets.forget_group(number);
                Ok(())
            })
        })
    }

    /// The groups that were created or had a consumer, sorted by name.
    #[must_use]
    pub fn groups(&self) -> Vec<String> {
        let groups = self.core().store.groups.all().into_iter().map(|(name, _)| name);
        groups.filter(|name| names::check_group(name).is_ok()).collect()
    }

    /// The settings of a group.
    ///
    /// # Errors
    /// `NoSuchGroup`.
    pub fn group_settings(&self, name: &str) -> Result<GroupSettings> {
        let core = self.core();
        core.known_group(name)?;
        Ok(GroupSettings::decode(&core.store.groups.settings(name)))
    }

    /// The offset from which a member of a broadcasting group goes on in a queue; `None` if it
    /// never consumed it.
    ///
    /// # Errors
    /// `NoSuchTopic`, `NoSuchQueue`.
    pub fn committed_by(&self, group: &str, member: &str, queue: &QueueId) -> Result<Option<u64>> {
        self.committed(&instance_name(group, member), queue)
    }

    /// Moves a group in all queues of a topic, forwards or backwards, and returns where it goes on
    /// in each. Members may run: each queue is begun anew when what is in flight of it is
    /// finished, and the progress of that counts no more (OFF-9 to OFF-11). A pull consumer to which
    /// queues are [assigned](crate::PullConsumerBuilder::assign) goes on there with its next poll, and
    /// what it polled before and did not commit counts no more, either. Progress that is kept
    /// elsewhere is not moved, although the call succeeds: in a store of the user's, and that of
    /// broadcasting members.
    ///
    /// # Errors
    /// `NoSuchGroup`, `NoSuchTopic`; `Corrupt` if a message cannot be read on the search for a time;
    /// `DiskFull` or `Io` if there is no room for an offset; `Closed`.
    pub fn reset_offsets(
        &self,
        group: &str,
        topic: &str,
        to: ResetTo,
    ) -> Result<BTreeMap<QueueId, u64>> {
        self.core().move_group(group, topic, |_, queue| to.offset(self.core(), queue))
    }

    /// Moves a group backwards only: queues in which it is not as far as `to` stay as they are
    /// (OFF-9).
    ///
    /// # Errors
    /// As [`reset_offsets`](Self::reset_offsets).
    pub fn rewind_offsets(
        &self,
        group: &str,
        topic: &str,
        to: ResetTo,
    ) -> Result<BTreeMap<QueueId, u64>> {
        let core = self.core();
        core.move_group(group, topic, |key, queue| {
            // A group that never consumed the queue stands at its beginning (OFF-11).
            let current = core.store.offsets.get(key).unwrap_or_else(|| queue.min());
            Ok(to.offset(core, queue)?.min(current))
        })
    }

    /// Moves a group to where another one is in a topic, in all queues in which that one has an
    /// offset; returns them (OFF-8). The group is made if it is new.
    ///
    /// # Errors
    /// As [`reset_offsets`](Self::reset_offsets).
    pub fn clone_offsets(
        &self,
        from: &str,
        to: &str,
        topic: &str,
    ) -> Result<BTreeMap<QueueId, u64>> {
        names::check_group(to)?;
        let core = self.core();
        let number = core.known_group(from)?;
        core.existing(topic)?;
        core.group(to)?;
        core.move_group_where(to, topic, |key, _| {
            Ok(core.store.offsets.get(OffsetKey { group: number, ..key }))
        })
    }

    /// The lowest offset at which any group goes on in a queue, of those that have one at or
    /// behind its first message (OFF-12). `None` if no group has.
    ///
    /// # Errors
    /// `NoSuchTopic`, `NoSuchQueue`.
    pub fn min_committed(&self, queue: &QueueId) -> Result<Option<u64>> {
        let store = &self.core().store;
        let (topic, index) = self.core().queue(queue)?;
        let (incarnation, queue) = (topic.incarnation, index.queue);
        let groups = store.groups.all().into_iter();
        let offsets = groups
            .filter_map(|(_, group)| store.offsets.get(OffsetKey { group, incarnation, queue }));
        Ok(offsets.filter(|offset| *offset >= index.min()).min())
    }
}

impl Core {
    pub(super) fn known_group(&self, name: &str) -> Result<u32> {
        let number = self.store.groups.find(name);
        number.ok_or_else(|| Error::NoSuchGroup { group: name.to_owned() })
    }

    fn move_group(
        &self,
        group: &str,
        topic: &str,
        to: impl Fn(OffsetKey, &ConsumeQueue) -> Result<u64>,
    ) -> Result<BTreeMap<QueueId, u64>> {
        self.move_group_where(group, topic, |key, queue| to(key, queue).map(Some))
    }

    /// Moves a group in the queues for which `to` says where.
    fn move_group_where(
        &self,
        name: &str,
        topic: &str,
        to: impl Fn(OffsetKey, &ConsumeQueue) -> Result<Option<u64>>,
    ) -> Result<BTreeMap<QueueId, u64>> {
        let number = self.known_group(name)?;
        let topic = self.existing(topic)?;
        let mut moved = Vec::new();
        for queue in &topic.queues {
            let id = QueueId::new(topic.name.clone(), queue.queue);
            let (incarnation, queue_number) = (queue.incarnation, queue.queue);
            let key = OffsetKey { group: number, incarnation, queue: queue_number };
            if let Some(offset) = to(key, queue)? {
                moved.push((id, key, offset));
            }
        }
        self.group(name)?.reset(&moved, |key, offset| {
            self.consumers().iter().for_each(|consumer| consumer.group_moved(key, offset));
        })?;
        self.store.flusher().ring();
        Ok(moved.into_iter().map(|(queue, _, offset)| (queue, offset)).collect())
    }
}

impl ResetTo {
    fn offset(self, core: &Core, queue: &ConsumeQueue) -> Result<u64> {
        let start = match self {
            Self::First => Start::First,
            Self::Last => Start::Last,
            Self::Time(time) => Start::Time(time),
            Self::Offset(offset) => {
                return Ok(offset.clamp(queue.min(), core.store.exact_max(queue)));
            }
        };
        start.offset(&core.store, queue)
    }
}
