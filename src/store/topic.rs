//! A topic as producers and consumers see it: a value that is replaced when the topic changes.

use super::consume_queue::ConsumeQueue;
use super::draft::Outline;
use super::record::Kind;
use super::tail::Target;
use super::topic_event::{Change, Shape, TopicEvent};
use crate::error::{Error, Result};
use crate::queue_id::QueueId;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::topic_config::TopicConfig;

/// A topic and its queues.
#[derive(Debug)]
pub(crate) struct Topic {
    pub(crate) name: Arc<str>,
    pub(crate) incarnation: u32,
    pub(crate) config: TopicConfig,
    /// What its messages have in common.
    pub(super) outline: Outline,
    /// All that it ever had.
    pub(crate) queues: Vec<Arc<ConsumeQueue>>,
    ids: Vec<QueueId>,
    /// What the cursors of its queues compare with: appends by an older value are refused.
    generation: u64,
    retired: AtomicBool,
}

impl Topic {
    /// A topic of this store, name and incarnation, with all of its `queues`.
    pub(super) fn new(
        (store_id, name, incarnation): (u64, Arc<str>, u32),
        config: TopicConfig,
        generation: u64,
        queues: Vec<Arc<ConsumeQueue>>,
    ) -> Self {
        let outline = Outline::new(store_id, Kind::Message, incarnation, &name);
        let id = |queue: &Arc<ConsumeQueue>| QueueId::new(name.clone(), queue.queue);
        let ids = queues.iter().map(id).collect();
        let retired = AtomicBool::new(false);
        Self { name, incarnation, config, outline, queues, ids, generation, retired }
    }

    /// The queues that producers or consumers see.
    pub(crate) fn ids(&self) -> &[QueueId] {
        &self.ids[..usize::from(self.config.queues())]
    }

    /// The queues that messages may be sent to (MODEL-3).
    ///
    /// # Errors
    /// `NotPermitted`.
    #[inline]
    pub(crate) fn writable(&self) -> Result<&[QueueId]> {
        if self.config.permission.can_write() {
            return Ok(&self.ids[..usize::from(self.config.write_queues)]);
        }
        Err(self.refuse("sent to"))
    }

    /// How many queues messages may be sent to: none unless that is permitted.
    #[inline]
    pub(crate) fn open_queues(&self) -> u16 {
        if self.config.permission.can_write() { self.config.write_queues } else { 0 }
    }

    /// Refuses to have its messages read unless that is permitted (MODEL-4).
    ///
    /// # Errors
    /// `NotPermitted`.
    pub(crate) fn check_readable(&self) -> Result<()> {
        if self.config.permission.can_read() { Ok(()) } else { Err(self.refuse("consumed")) }
    }

    /// The queues that are shared among the members of a group. Queues that were given up are
    /// among them for as long as the group is `behind` their end (MODEL-3, B-095).
    pub(crate) fn readable(&self, behind: impl Fn(&ConsumeQueue) -> bool) -> Vec<QueueId> {
        if !self.config.permission.can_read() {
            return Vec::new();
        }
        let given_up = usize::from(self.config.queues())..self.queues.len();
        let behind = given_up.filter(|number| behind(&self.queues[*number]));
        let all = (0..usize::from(self.config.read_queues)).chain(behind);
        all.map(|number| self.ids[number].clone()).collect()
    }

    /// False once the topic has changed or gone: it has to be looked up again.
    #[inline]
    pub(crate) fn is_current(&self) -> bool {
        !self.retired.load(Ordering::Acquire)
    }

    pub(super) fn retire(&self) {
        self.retired.store(true, Ordering::Release);
    }

    /// Where an append to one of its queues goes.
    #[inline]
    pub(super) fn target(&self, queue: &ConsumeQueue) -> Target {
        Target { slot: queue.slot, generation: self.generation }
    }

    /// Which cursors take its messages, and for which generation: 0 for those that take none.
    pub(super) fn generation_of(&self, queue: &ConsumeQueue) -> u64 {
        let TopicConfig { write_queues, permission, .. } = self.config;
        let open = permission.can_write() && queue.queue < write_queues;
        if open { self.generation } else { 0 }
    }

    /// Refuses a queue to which nothing may be sent, by its number or by the topic's permission.
    ///
    /// # Errors
    /// `NotPermitted`.
    pub(crate) fn check_open(&self, queue: &ConsumeQueue) -> Result<()> {
        if self.generation_of(queue) > 0 { Ok(()) } else { Err(self.refuse("sent to")) }
    }

    /// What the table says of it.
    pub(super) fn event(&self) -> TopicEvent {
        let shape = Shape { config: self.config, queues: self.queues.len() as u16 };
        self.changed(Change::Shape(shape))
    }

    /// The event of a change.
    pub(super) fn changed(&self, change: Change) -> TopicEvent {
        TopicEvent { name: self.name.to_string(), incarnation: self.incarnation, change }
    }

    #[cold]
    fn refuse(&self, action: &'static str) -> Error {
        Error::NotPermitted { topic: self.name.to_string(), action }
    }
}
