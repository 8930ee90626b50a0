//! Sending back: what becomes of a message that a group has failed (CONC-14 to CONC-21).
//!
//! A copy of it is stored that takes its place: for later in the group's retry topic or, once the
//! group gives it up, in its dead letters. Then the message counts as consumed. The topics are made
//! when they are needed first.

use super::core::Core;
use super::group::Group;
use super::write::{copy_of, properties_of_copy, properties_of_kept_copy};
use crate::delay::{Due, LONGEST};
use crate::error::Result;
use crate::names::{self, dead_letter_topic, retry_topic};
use crate::properties::{ORIGIN, REASON, RETRY_TOPIC, value_of};
use crate::store::{Appended, Delivery};
use crate::sync::atomic::Ordering;
use crate::topic_config::TopicConfig;
use std::time::Duration;

/// What a listener wants to become of a message that it has failed (CONC-19).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// What the settings of the group say.
    Policy,
    /// Another delivery after this time, if the group has not had enough of it by then.
    After(Duration),
    /// No further delivery.
    DeadLetter,
}

/// Why a message has failed, and what is wanted to become of it.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) wanted: Wanted,
    pub(crate) reason: String,
}

impl Failure {
    /// One of which the group decides what becomes.
    pub(crate) fn of(reason: String) -> Self {
        Self { wanted: Wanted::Policy, reason }
    }
}

/// The most of a reason that is kept, in bytes: there is always room for it (B-057).
const MAX_REASON: usize = 512;

impl Core {
    /// Stores what becomes of a message that `group` has failed. The message is done with when this
    /// returns; its copy survives what a sent message survives.
    ///
    /// # Errors
    /// `NotPermitted` if nothing may be sent to the topic for it; or as a send. Then nothing has
    /// changed, but for a failed sync.
    pub(crate) fn send_back(
        &self,
        group: &Group,
        delivery: &Delivery<'_>,
        failure: &Failure,
    ) -> Result<()> {
        let stored = self.store_back(group, delivery, failure)?;
        stored.map_or(Ok(()), |stored| self.make_durable(&stored))
    }

    /// Does so without waiting for a flush, for which the caller has to wait before the message is
    /// done with. `None` if the message was discarded.
    ///
    /// # Errors
    /// As [`send_back`](Self::send_back).
    pub(crate) fn store_back(
        &self,
        group: &Group,
        delivery: &Delivery<'_>,
        failure: &Failure,
    ) -> Result<Option<Appended>> {
        let settings = group.settings();
        let (queues, failures) = (settings.retry_queue_count(), delivery.attempt());
        let given_up =
            failure.wanted == Wanted::DeadLetter || failures >= u32::from(settings.retry_limit());
        let (stored, counter) = match (queues, given_up) {
            (0, _) => (None, &self.counters.discarded),
            (_, true) => {
                let stored = self.dead_letter(group, delivery, &failure.reason)?;
                (Some(stored), &self.counters.dead_letters)
            }
            (_, false) => {
                let delay = match failure.wanted {
                    Wanted::After(delay) => delay.min(LONGEST),
                    _ => settings.retry_back_off().delay(failures),
                };
                let stored = self.retry_later(group, queues, delivery, delay)?;
                (Some(stored), &self.counters.retries)
            }
        };
        counter.fetch_add(1, Ordering::Relaxed);
        if stored.is_some() {
            group.meter(delivery.topic()).count_sent_back(self.clock().moment());
        }
        Ok(stored)
    }

    fn retry_later(
        &self,
        group: &Group,
        queues: u16,
        delivery: &Delivery<'_>,
        delay: Duration,
    ) -> Result<Appended> {
        let (name, config) = (retry_topic(&group.name), TopicConfig::new(queues));
        let system = [(RETRY_TOPIC, delivery.topic()), (ORIGIN, &origin_of(delivery))];
        let properties = properties_of_copy(delivery, &system);
        let copy = copy_of(delivery, &properties, next_attempt(delivery));
        let queue = self.some_queue(&name, config)?;
        self.write_later(&name, config, queue, &copy, Due::After(delay))
    }

    fn dead_letter(
        &self,
        group: &Group,
        delivery: &Delivery<'_>,
        reason: &str,
    ) -> Result<Appended> {
        let (origin, reason) = (origin_of(delivery), value_of(reason, MAX_REASON));
        let system = [(RETRY_TOPIC, delivery.topic()), (ORIGIN, &origin), (REASON, &reason)];
        let properties = properties_of_kept_copy(delivery, &system);
        let copy = copy_of(delivery, &properties, next_attempt(delivery));
        self.write(&dead_letter_topic(&group.name), TopicConfig::new(1), 0, &copy)
    }

    /// Any queue of a topic that may be sent to; the topic is made if it is new (CONC-16).
    pub(super) fn some_queue(&self, topic: &str, config_if_new: TopicConfig) -> Result<u16> {
        let queues = self.topic_of_system(topic, config_if_new)?.writable()?.len() as u64;
        Ok((self.clock().random() % queues) as u16)
    }
}

fn next_attempt(delivery: &Delivery<'_>) -> u16 {
    u16::try_from(delivery.attempt() + 1).unwrap_or(u16::MAX)
}

/// Where the message was at first: queue and offset in its own topic.
pub(super) fn origin_of(delivery: &Delivery<'_>) -> String {
    let origin = delivery.system_property(ORIGIN);
    match origin.filter(|_| names::is_of_a_group(delivery.stored_topic())) {
        Some(origin) => origin.to_owned(),
        // What else has one was kept elsewhere, and sets out from there.
        None => format!("{} {}", delivery.queue(), delivery.offset()),
    }
}
