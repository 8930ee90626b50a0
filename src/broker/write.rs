//! Records that the broker writes itself: a message once more, in another topic or later.

use super::core::Core;
use super::hold::Arrival;
use crate::delay::{Delay, Due};
use crate::error::{Error, Result};
use crate::message::Message;
use crate::properties::{EXPIRES, FIRST_ID, encode, is_of_delay, is_of_life, ms_value};
use crate::store::{
    AppendError, Appended, ConsumeQueue, Copy, Delivery, Flush, Pending, Source, Topic,
};
use crate::sync::Arc;
use crate::topic_config::TopicConfig;

/// The properties of a copy: the id of the first one, then those of the `system`, then what the
/// message has, unless `system` has it, too. What a delay has left is not among them (CONC-21). If
/// the time in which it is delivered has begun, it goes on.
pub(crate) fn properties_of_copy(message: &Delivery<'_>, system: &[(&str, &str)]) -> Vec<u8> {
    let Some(ms) = message.expires_ms() else { return copied(message, system, |_| true) };
    let end = ms_value(ms);
    let system: Vec<_> = system.iter().copied().chain([(EXPIRES, &*end)]).collect();
    copied(message, &system, |name| !is_of_life(name))
}

/// The properties of a copy that does not expire: it is there for people to look at.
pub(crate) fn properties_of_kept_copy(message: &Delivery<'_>, system: &[(&str, &str)]) -> Vec<u8> {
    copied(message, system, |name| !is_of_life(name))
}

fn copied(
    message: &Delivery<'_>,
    system: &[(&str, &str)],
    keeps: impl Fn(&str) -> bool,
) -> Vec<u8> {
    let id = format!("{:016x}", message.id().position());
    let kept = message.all_properties().filter(|(name, _)| {
        let own = *name == FIRST_ID || system.iter().any(|(other, _)| other == name);
        !own && !is_of_delay(name) && keeps(name)
    });
    encode([(FIRST_ID, &*id)].into_iter().chain(system.iter().copied()).chain(kept))
}

/// A copy of a message that takes its place, with these properties.
pub(crate) fn copy_of<'a>(
    message: &Delivery<'a>,
    properties: &'a [u8],
    reconsumed: u16,
) -> Copy<'a> {
    let pending = Pending {
        tag_hash: message.record().tag_hash(),
        born_ms: Some(message.born_ms()),
        properties: Source::Encoded(properties),
        body: message.body(),
    };
    Copy { message: pending, reconsumed, origin: message.position() }
}

impl Core {
    /// Appends a copy to a queue of `topic`, which is made if it is new, and wakes who waits there.
    /// The name need not be one that users may give. It does not wait for a flush, see
    /// [`make_durable`](Self::make_durable).
    ///
    /// # Errors
    /// `NoSuchQueue`, `NotPermitted`, `TooLarge`, `DiskFull`, `LogFull`, `Closed`, `Poisoned`.
    pub(crate) fn write(
        &self,
        topic: &str,
        config_if_new: TopicConfig,
        queue: u16,
        copy: &Copy<'_>,
    ) -> Result<Appended> {
        self.place_copy(topic, config_if_new, |topic| self.write_to(topic, queue, copy))
    }

    /// Appends a copy that goes to a queue of `topic`, which is made if it is new, when it is due.
    /// The copy's origin is done with it.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub(crate) fn write_later(
        &self,
        topic: &str,
        config_if_new: TopicConfig,
        queue: u16,
        copy: &Copy<'_>,
        due: Due,
    ) -> Result<Appended> {
        let later = |topic: &Topic| {
            topic.check_open(queue_of(topic, queue)?)?;
            self.store.append_later(topic, queue, copy, due)
        };
        self.place_copy(topic, config_if_new, later)
    }

    /// Appends a copy to a queue of this value of a topic, and wakes who waits there.
    pub(super) fn write_to(
        &self,
        topic: &Topic,
        queue: u16,
        copy: &Copy<'_>,
    ) -> std::result::Result<Appended, AppendError> {
        let queue = queue_of(topic, queue)?;
        topic.check_open(queue)?;
        let appended = self.store.append_copy(topic, queue, copy)?;
        self.wake(queue, &appended, copy.message.tag_hash);
        Ok(appended)
    }

    /// When a message is due that is sent now; `None` if it is not delayed.
    ///
    /// # Errors
    /// `DelayTooLong`.
    pub(crate) fn due(&self, message: &Message<'_>) -> Result<Option<Due>> {
        match message.when() {
            Delay::None => Ok(None),
            delay => delay.due(&self.settings.delay_levels, self.clock().wall_ms()),
        }
    }

    /// Waits until what was written is durable, if every message is to be.
    ///
    /// # Errors
    /// `Poisoned`: it is stored, and may not survive a loss of power.
    pub(crate) fn make_durable(&self, appended: &Appended) -> Result<()> {
        if self.store.flush_mode() != Flush::EveryMessage {
            return Ok(());
        }
        self.store.wait_durable(appended.end).map_err(|cause| Error::Poisoned { cause })
    }

    /// Wakes who waits for the message that was appended.
    #[inline]
    pub(crate) fn wake(&self, queue: &ConsumeQueue, appended: &Appended, tag_hash: i32) {
        if appended.watched {
            let arrival = Arrival { tag_hash, position: appended.position };
            self.hold.arrived(queue, appended.offset, std::iter::once(arrival));
        }
    }

    fn place_copy(
        &self,
        name: &str,
        config_if_new: TopicConfig,
        place: impl Fn(&Topic) -> std::result::Result<Appended, AppendError>,
    ) -> Result<Appended> {
        loop {
            let topic = self.topic_of_system(name, config_if_new)?;
            match place(&topic) {
                Ok(appended) => return Ok(appended),
                Err(AppendError::Failed(error)) => return Err(error),
                Err(AppendError::Gone) => self.store.topics.settle(),
            }
        }
    }

    /// The topic, made if it is new, whatever its name.
    pub(crate) fn topic_of_system(&self, name: &str, config: TopicConfig) -> Result<Arc<Topic>> {
        loop {
            if let Some(topic) = self.store.topics.get(name) {
                return Ok(topic);
            }
            match self.create_topic(name, config) {
                // By another thread, and it may be deleted again by now.
                Err(Error::TopicExists { .. }) => {}
                made => return made,
            }
        }
    }
}

fn queue_of(topic: &Topic, queue: u16) -> Result<&Arc<ConsumeQueue>> {
    topic.queues.get(usize::from(queue)).ok_or_else(|| Error::NoSuchQueue {
        topic: topic.name.to_string(),
        queue,
        queues: topic.queues.len() as u16,
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::broker::Broker;
    use crate::clock::DrivenClock;
    use crate::names::RETRY_PREFIX;
    use crate::store::DetachedDelivery;
    use std::time::Duration;

    const RETRY_TOPIC: &str = "RETRY_TOPIC";

    fn scene() -> (Broker, DrivenClock, tempfile::TempDir) {
        let (clock, dir) = (DrivenClock::with_steps(1_000_000, 1), tempfile::tempdir().unwrap());
        let builder = Broker::builder(dir.path()).segment_bytes(1 << 20).clock(&clock);
        (builder.open().unwrap(), clock, dir)
    }

    fn message_at(broker: &Broker, position: u64) -> DetachedDelivery {
        broker.core().store.message_at(position).unwrap().unwrap()
    }

    /// Writes a message once more, as the next attempt; returns where.
    fn once_more(broker: &Broker, message: &DetachedDelivery, due: Option<Due>) -> Appended {
        let message = message.delivery();
        let properties = properties_of_copy(&message, &[(RETRY_TOPIC, "orders")]);
        let copy = copy_of(&message, &properties, message.record().reconsumed() + 1);
        let (core, topic) = (broker.core(), format!("{RETRY_PREFIX}billing"));
        let config = TopicConfig::new(1);
        match due {
            None => core.write(&topic, config, 0, &copy).unwrap(),
            Some(due) => core.write_later(&topic, config, 0, &copy, due).unwrap(),
        }
    }

    #[test]
    fn model_14_copies_keep_the_id_and_all_that_the_sender_gave() {
        let (broker, clock, _dir) = scene();
        let message = Message::new("orders", b"body").tag("paid").property("a", "1").flag(3);
        let sent = broker.producer().send(&message).unwrap();
        let first = message_at(&broker, sent.position);
        assert!(!first.delivery().record().has(8));
        let second = message_at(&broker, once_more(&broker, &first, None).position);
        let later = once_more(&broker, &second, Some(Due::After(Duration::from_secs(5))));
        clock.advance(Duration::from_secs(5));
        let topic = broker.core().existing("%RETRY%billing").unwrap();
        assert_eq!(topic.queues[0].max(), 2);
        let third = message_at(&broker, topic.queues[0].entry(1).unwrap().position);
        for (copy, attempt, origin) in [(second, 1, sent.position), (third, 2, later.position)] {
            let copy = copy.delivery();
            assert_eq!((copy.id(), copy.attempt()), (sent.id, attempt));
            assert_eq!(copy.record().origin(), origin);
            assert_eq!((copy.body(), copy.tag(), copy.flag()), (&b"body"[..], Some("paid"), 3));
            assert_eq!(copy.properties().collect::<Vec<_>>(), [("a", "1")]);
            let names = copy.all_properties().map(|(name, _)| name).collect::<Vec<_>>();
            assert_eq!(names, [FIRST_ID, RETRY_TOPIC, "TAGS", "ROCKLET_FLAG", "a"]);
        }
    }

    #[test]
    fn a_copy_wakes_who_waits_and_no_queue_but_those_that_are_there_takes_one() {
        let (broker, _clock, _dir) = scene();
        let sent = broker.producer().send(&Message::new("orders", b"x")).unwrap();
        let message = message_at(&broker, sent.position);
        let (core, topic) = (broker.core(), "%RETRY%billing");
        let properties = properties_of_copy(&message.delivery(), &[]);
        let copy = copy_of(&message.delivery(), &properties, 1);
        let config = TopicConfig::new(1);
        for result in [
            core.write(topic, config, 1, &copy),
            core.write_later(topic, config, 1, &copy, Due::At(5)),
        ] {
            assert!(matches!(result, Err(Error::NoSuchQueue { queue: 1, queues: 1, .. })));
        }
        core.existing(topic).unwrap().queues[0].watch();
        let appended = core.write(topic, config, 0, &copy).unwrap();
        assert!(appended.watched);
        core.make_durable(&appended).unwrap();
    }
}
