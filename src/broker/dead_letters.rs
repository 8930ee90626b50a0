//! Dead letters: what a group has given up on.
//!
//! They stay in a topic of the group until they are purged, or retention drops them. Driving one
//! again stores a copy of it in the group's retry topic whose origin names it. So copy and mark are
//! one append, and a dead letter is driven again once, whenever the process ends. Which of them have
//! been is read from those copies, which stand behind them in the log and go after them.

use super::core::Core;
use super::filter::Filter;
use super::group_settings::GroupSettings;
use super::handle::Broker;
use super::write::{copy_of, properties_of_copy};
use crate::error::{Error, Result};
use crate::message_id::MessageId;
use crate::names::{self, dead_letter_topic, retry_topic};
use crate::properties::{ORIGIN, REASON};
use crate::queue_id::QueueId;
use crate::store::{Appended, Copy, Delivery, DetachedDelivery};
use crate::topic_config::TopicConfig;
use std::collections::HashSet;

/// The dead letters of a group: messages that its listeners failed more often than
/// [`GroupSettings::max_retries`] allows, or gave up with
/// [`Outcome::DeadLetter`](crate::Outcome::DeadLetter).
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let broker = rocklet::Broker::open(dir.path())?;
/// # broker.create_group("billing", rocklet::GroupSettings::new())?;
/// let dead = broker.dead_letters("billing")?;
/// for letter in dead.iter()? {
///     let letter = letter?;
///     println!("{:?} failed {} times: {}", letter.delivery(), letter.attempts(), letter.reason());
/// }
/// dead.redrive_matching("paid || refunded")?;
/// dead.purge()?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct DeadLetters {
    broker: Broker,
    group: String,
}

impl Broker {
    /// The dead letters of a group, whether it runs or not.
    ///
    /// # Errors
    /// `Name` if the name of the group breaks the rules.
    pub fn dead_letters(&self, group: &str) -> Result<DeadLetters> {
        names::check_group(group)?;
        Ok(DeadLetters { broker: self.clone(), group: group.to_owned() })
    }
}

impl DeadLetters {
    /// Reads them, oldest first, up to the end that there is now. Those that were driven again are
    /// left out.
    ///
    /// # Errors
    /// `Closed`, now or as an item; an item is `Corrupt` if a message cannot be read.
    pub fn iter(&self) -> Result<impl Iterator<Item = Result<DeadLetter>> + use<>> {
        let driven = self.broker.core().driven_again(&self.group)?;
        let browse = match self.broker.browse(&dead_letter_topic(&self.group)) {
            Err(Error::NoSuchTopic { .. }) => None,
            browse => Some(browse?),
        };
        let is_left = move |letter: &Result<DetachedDelivery>| {
            letter.as_ref().map_or(true, |letter| !driven.contains(&letter.delivery().position()))
        };
        let left = browse.into_iter().flatten().filter(is_left);
        Ok(left.map(|letter| letter.map(|message| DeadLetter { message })))
    }

    /// Counts them.
    ///
    /// # Errors
    /// As [`iter`](Self::iter).
    pub fn count(&self) -> Result<u64> {
        self.iter()?.try_fold(0, |count, letter| letter.map(|_| count + 1))
    }

    /// Delivers all of them again, to this group alone: with their first topic, id and properties,
    /// as a first attempt (B-129). Each is driven again once, whoever else calls this, and whenever
    /// the process ends. Returns how many.
    ///
    /// # Errors
    /// `NoSuchGroup`; as [`iter`](Self::iter), or as [`Producer::send`](crate::Producer::send): those
    /// before it have been driven again then.
    pub fn redrive_all(&self) -> Result<u64> {
        self.drive(|_| true)
    }

    /// Does so for those that pass a filter. Its predicates may use this group as they like.
    ///
    /// # Errors
    /// `Filter`; or as [`redrive_all`](Self::redrive_all).
    pub fn redrive_matching<F>(&self, filter: F) -> Result<u64>
    where
        F: TryInto<Filter>,
        Error: From<F::Error>,
    {
        let filter = filter.try_into()?;
        self.broker.core().known_group(&self.group)?;
        // No code of the user's runs in this group's turn.
        let mut matching = HashSet::new();
        for letter in self.iter()? {
            let letter = letter?;
            if filter.passes(&letter.delivery()) {
                matching.insert(letter.delivery().position());
            }
        }
        self.drive(|delivery| matching.contains(&delivery.position()))
    }

    /// Does so for the one with this id; false if there is none.
    ///
    /// # Errors
    /// As [`redrive_all`](Self::redrive_all).
    pub fn redrive(&self, id: MessageId) -> Result<bool> {
        self.drive(|delivery| delivery.id() == id).map(|driven| driven > 0)
    }

    /// Drops all of them, with those that were driven again; returns how many.
    ///
    /// # Errors
    /// As [`Broker::purge`].
    pub fn purge(&self) -> Result<u64> {
        let core = self.broker.core();
        let _turn = core.turns.take(core.clock(), &self.group);
        self.purge_now()
    }

    /// Drops them if all were driven again. The caller has the turn of the group.
    pub(super) fn purge_if_driven(&self) -> Result<()> {
        if self.iter()?.next().is_none() { self.purge_now().map(drop) } else { Ok(()) }
    }

    fn purge_now(&self) -> Result<u64> {
        match self.broker.purge(&dead_letter_topic(&self.group)) {
            Err(Error::NoSuchTopic { .. }) => Ok(0),
            purged => purged,
        }
    }

    fn drive(&self, wanted: impl Fn(&Delivery<'_>) -> bool) -> Result<u64> {
        let core = self.broker.core();
        let _turn = core.turns.take(core.clock(), &self.group);
        core.known_group(&self.group)?;
        let (mut driven, mut last) = (0, None);
        let done = self.iter()?.try_for_each(|letter| {
            let letter = letter?;
            if wanted(&letter.delivery()) {
                last = Some(core.drive_again(&self.group, &letter.delivery())?);
                driven += 1;
            }
            Ok(())
        });
        // Also of what was driven before an error.
        let durable = last.map_or(Ok(()), |last| core.make_durable(&last));
        done.and(durable)?;
        Ok(driven)
    }
}

/// A message that a group has given up on.
#[derive(Clone, Debug)]
pub struct DeadLetter {
    message: DetachedDelivery,
}

impl DeadLetter {
    /// The message, with the topic and the properties with which it was sent.
    ///
    /// # Panics
    /// As [`DetachedDelivery::delivery`].
    #[must_use]
    pub fn delivery(&self) -> Delivery<'_> {
        self.message.delivery()
    }

    /// The id that `send` returned.
    #[must_use]
    pub fn id(&self) -> MessageId {
        self.delivery().id()
    }

    /// Why the last listener failed it: what it returned, or the text of its panic, up to 512 bytes.
    #[must_use]
    pub fn reason(&self) -> &str {
        self.delivery().system_property(REASON).unwrap_or_default()
    }

    /// How often it was delivered.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.delivery().attempt()
    }

    /// When the group gave it up, in milliseconds since 1970.
    #[must_use]
    pub fn failed_ms(&self) -> u64 {
        self.delivery().store_ms()
    }

    /// The queue in which it was sent, and its offset there. Retention may have dropped it.
    #[must_use]
    pub fn origin(&self) -> Option<(QueueId, u64)> {
        let delivery = self.delivery();
        let (queue, offset) = delivery.system_property(ORIGIN)?.split_once(' ')?;
        Some((QueueId::new(delivery.topic(), queue.parse().ok()?), offset.parse().ok()?))
    }
}

impl Core {
    /// Where the dead letters stand that were driven again.
    fn driven_again(&self, group: &str) -> Result<HashSet<u64>> {
        let _reading = self.reading()?;
        let mut driven = HashSet::new();
        let topic = |name: String| self.store.topics.get(&name);
        let dead = topic(dead_letter_topic(group));
        let oldest = dead.and_then(|dead| dead.queues[0].entry(dead.queues[0].min()));
        let (Some(oldest), Some(retries)) = (oldest, topic(retry_topic(group))) else {
            return Ok(driven);
        };
        for queue in &retries.queues {
            self.store.visit_from(queue, oldest.position, |record| {
                // The others are of what has failed.
                if record.reconsumed() == 0 {
                    driven.insert(record.origin());
                }
            });
        }
        Ok(driven)
    }

    /// Stores a dead letter once more, for the group to consume as if it had never failed.
    fn drive_again(&self, group: &str, letter: &Delivery<'_>) -> Result<Appended> {
        let settings = GroupSettings::decode(&self.store.groups.settings(group));
        let config = TopicConfig::new(settings.retry_queue_count().max(1));
        let name = retry_topic(group);
        let properties = properties_of_copy(letter, &[]);
        let copy: Copy<'_> = copy_of(letter, &properties, 0);
        let queue = self.some_queue(&name, config)?;
        self.write(&name, config, queue, &copy)
    }
}
