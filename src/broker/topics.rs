//! Topics, from the broker's side: what the store does to them, and who has to know.

use super::core::Core;
use super::handle::Broker;
use crate::error::{Error, Result};
use crate::names;
use crate::queue_id::QueueId;
use crate::store::{ConsumeQueue, Flush, Topic};
use crate::sync::Arc;
use crate::topic_config::TopicConfig;

impl Broker {
    /// Creates a topic: with a number of queues, 1 to 65 535, or with a [`TopicConfig`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let broker = rocklet::Broker::open(dir.path())?;
    /// use rocklet::{Permission, TopicConfig};
    /// broker.create_topic("orders", 8)?;
    /// broker.create_topic("audit", TopicConfig::new(1).permission(Permission::WriteOnly))?;
    /// assert_eq!(broker.topics(), ["audit", "orders"]);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `TopicExists`; `Name` if the name breaks the rules (MODEL-5, MODEL-15); `Setting` for 0
    /// queues; or as [`Producer::send`](crate::Producer::send).
    pub fn create_topic(&self, name: &str, config: impl Into<TopicConfig>) -> Result<()> {
        names::check_topic(name)?;
        let config = config.into();
        config.validate()?;
        self.core().create_topic(name, config)?;
        self.core().keep_change()
    }

    /// Changes how many queues a topic has, and what may be done with it (MODEL-3, MODEL-4).
    ///
    /// Consumers get the queues that come, and read them from their beginning. What is taken away
    /// takes no message from the moment that this returns, and each group goes on reading it until
    /// it has reached the end; a queue that comes back goes on with the messages and the numbering
    /// that it had. Without the permission to read consumers have no queue of the topic; what they
    /// have committed stays.
    ///
    /// # Errors
    /// `NoSuchTopic`; `Setting` for 0 queues; or as [`Producer::send`](crate::Producer::send).
    pub fn update_topic(&self, name: &str, config: impl Into<TopicConfig>) -> Result<()> {
        let config = config.into();
        config.validate()?;
        self.core().update_topic(name, config)?;
        self.core().keep_change()
    }

    /// Deletes a topic with all of its messages, and with what groups have committed in it.
    /// Consumers lose its queues; a message that a listener is at is finished. Messages that were
    /// received before stay valid. The name is free again: whoever sends to it, or creates it,
    /// makes a new topic, which begins at offset 0. The space of the messages is freed with that
    /// of the log files that they stand in.
    ///
    /// # Errors
    /// `NoSuchTopic`; or as [`Producer::send`](crate::Producer::send).
    pub fn delete_topic(&self, name: &str) -> Result<()> {
        self.core().delete_topic(name)?;
        self.core().keep_change()
    }

    /// Drops all messages of a topic, consumed or not, and returns how many. Its queues go on with
    /// the next offset, and so do consumers.
    ///
    /// # Errors
    /// `NoSuchTopic`; or as [`Producer::send`](crate::Producer::send).
    pub fn purge(&self, name: &str) -> Result<u64> {
        let core = self.core();
        core.check_open()?;
        let purged = core.store.purge_topic(name)?;
        let purged = purged.ok_or_else(|| Error::NoSuchTopic { topic: name.to_owned() })?;
        core.keep_change()?;
        Ok(purged)
    }

    /// The topics, sorted by name. Those that the broker makes for a group are not among them, and
    /// may be [browsed](Self::browse) all the same: `%RETRY%<group>`, which holds what is to be
    /// delivered again, and `%DLQ%<group>`, its [dead letters](Self::dead_letters) (MODEL-17).
    #[must_use]
    pub fn topics(&self) -> Vec<String> {
        let topics = self.core().store.topics.all();
        let names = topics.iter().map(|topic| &*topic.name);
        let names = names.filter(|name| !names::is_of_a_group(name));
        let mut names: Vec<_> = names.map(str::to_owned).collect();
        names.sort_unstable();
        names
    }

    /// How many queues a topic has, and what may be done with it.
    ///
    /// # Errors
    /// `NoSuchTopic`.
    pub fn topic_config(&self, name: &str) -> Result<TopicConfig> {
        Ok(self.core().existing(name)?.config)
    }

    /// The queues of a topic that producers or consumers see, by number.
    ///
    /// # Errors
    /// `NoSuchTopic`.
    pub fn queues(&self, topic: &str) -> Result<Vec<QueueId>> {
        Ok(self.core().existing(topic)?.ids().to_vec())
    }
}

impl Core {
    /// The topic, made if it is new and first use may make topics (MODEL-18).
    pub(crate) fn topic(&self, name: &str) -> Result<Arc<Topic>> {
        let queues = self.settings.auto_create_queues;
        loop {
            match self.store.topics.get(name) {
                Some(topic) => return Ok(topic),
                None if queues == 0 => return Err(no_such_topic(name)),
                None => {}
            }
            match self.create_topic(name, TopicConfig::new(queues)) {
                // By another thread, and it may be deleted again by now.
                Err(Error::TopicExists { .. }) => {}
                made => return made,
            }
        }
    }

    /// The topic, if there is one.
    pub(crate) fn existing(&self, name: &str) -> Result<Arc<Topic>> {
        self.store.topics.get(name).ok_or_else(|| no_such_topic(name))
    }

    /// A queue of an existing topic, in use or given up.
    pub(crate) fn queue(&self, id: &QueueId) -> Result<(Arc<Topic>, Arc<ConsumeQueue>)> {
        let topic = self.existing(id.topic())?;
        match topic.queues.get(usize::from(id.queue())).cloned() {
            Some(queue) => Ok((topic, queue)),
            None => Err(Error::NoSuchQueue {
                topic: id.topic().to_owned(),
                queue: id.queue(),
                queues: topic.queues.len() as u16,
            }),
        }
    }

    /// Makes a topic and gives its queues to the groups that wait for it.
    pub(super) fn create_topic(&self, name: &str, config: TopicConfig) -> Result<Arc<Topic>> {
        let Some(topic) = self.store.create_topic(name, config)? else {
            return Err(Error::TopicExists { topic: name.to_owned() });
        };
        self.topic_changed(name);
        Ok(topic)
    }

    fn update_topic(&self, name: &str, config: TopicConfig) -> Result<()> {
        self.check_open()?;
        self.store.update_topic(name, config)?.ok_or_else(|| no_such_topic(name))?;
        self.topic_changed(name);
        Ok(())
    }

    fn delete_topic(&self, name: &str) -> Result<()> {
        self.check_open()?;
        let topic = self.store.delete_topic(name)?.ok_or_else(|| no_such_topic(name))?;
        self.topic_changed(name);
        // No loss of power may bring the topic back without what was committed in it.
        self.store.flush()?;
        // Behind the consumers, whose last commits would make cells again.
        self.store.forget_offsets(&topic);
        Ok(())
    }

    /// Deals the queues of a topic out anew, and tells those who have chosen theirs themselves.
    fn topic_changed(&self, name: &str) {
        let groups = self.groups();
        groups.iter().filter(|group| group.subscribes(name)).for_each(|group| group.refresh());
        self.consumers().iter().for_each(|consumer| consumer.topic_changed(name));
    }

    fn check_open(&self) -> Result<()> {
        if self.is_closed() { Err(Error::Closed) } else { Ok(()) }
    }

    /// Makes the change of a topic durable, if every message is.
    fn keep_change(&self) -> Result<()> {
        if self.store.flush_mode() == Flush::EveryMessage { self.store.flush() } else { Ok(()) }
    }
}

fn no_such_topic(name: &str) -> Error {
    Error::NoSuchTopic { topic: name.to_owned() }
}
