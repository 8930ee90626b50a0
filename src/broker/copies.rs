//! What of a queue has been sent back before, so that it is not delivered again after a kill.
//!
//! A group's commit stays below what is unfinished, although what lies above may have been sent back
//! already. Whoever gets the queue next begins at the commit, and would deliver that again, besides
//! its copy: every kill would add a copy. But the copies stand behind it in the log, with its id.
//! Those that stand behind the place where reading begins are looked up once, when a queue is
//! opened.

use super::core::Core;
use super::group::{Group, Owned};
use crate::names::{self, dead_letter_topic, retry_topic};
use crate::properties::{ORIGIN, Properties, RETRY_TOPIC};
use crate::queue_id::QueueId;
use crate::store::{Delivery, Record};
use std::collections::HashMap;

/// Messages of which a group has stored copies that take their place.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    /// Where the last one stands, by the id of the message.
    last: HashMap<u64, u64>,
}

impl Copies {
    /// Whether one stands behind the message.
    pub(crate) fn replace(&self, message: &Delivery<'_>) -> bool {
        let copy = self.last.get(&message.id().position());
        copy.is_some_and(|copy| *copy > message.position())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.last.is_empty()
    }

    pub(super) fn note(&mut self, record: &Record<'_>) {
        let copy = self.last.entry(record.first_position()).or_default();
        *copy = record.position().max(*copy);
    }
}

impl Core {
    /// What `group` has sent back of the messages in a queue from `next` on; `None` if nothing.
    pub(crate) fn sent_back(&self, group: &Group, owned: &Owned, next: u64) -> Option<Copies> {
        // What comes later is new to the group. What was before it was moved is to come again.
        let first = owned.queue.entry(next.max(owned.queue.min()))?;
        let from = first.position.max(group.moved_at());
        let topics = [retry_topic(&group.name), dead_letter_topic(&group.name)];
        let topics = topics.map(|name| self.store.topics.get(&name));
        let mut copies = Copies::default();
        let mut note = |record: &Record<'_>| {
            if may_replace(record, &owned.id, next) {
                copies.note(record);
            }
        };
        if let [Some(retries), _] = &topics {
            // First those that wait: whichever falls due meanwhile is then found in its queue.
            self.store.visit_delayed(from, |record| {
                if record.incarnation() == retries.incarnation {
                    note(record);
                }
            });
        }
        for topic in topics.iter().flatten() {
            for queue in &topic.queues {
                self.store.visit_from(queue, from, &mut note);
            }
        }
        (!copies.is_empty()).then_some(copies)
    }
}

/// Whether a copy takes the place of a message in this queue, at `next` or behind it.
fn may_replace(copy: &Record<'_>, id: &QueueId, next: u64) -> bool {
    // What has failed again was first in any queue.
    if names::is_of_a_group(id.topic()) {
        return true;
    }
    let properties = Properties(copy.properties());
    let origin = || {
        let (queue, offset) = properties.get(ORIGIN)?.split_once(' ')?;
        Some((queue.parse::<u16>().ok()?, offset.parse::<u64>().ok()?))
    };
    properties.get(RETRY_TOPIC) == Some(id.topic())
        && origin().is_some_and(|(queue, offset)| queue == id.queue() && offset >= next)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::broker::copies::Copies;
    use crate::broker::expiry::Passed;
    use crate::broker::group::Owned;
    use crate::broker::send_back::{Failure, Wanted};
    use crate::store::OffsetKey;
    use crate::{BackOff, Broker, Filter, GroupSettings, Message, QueueId};
    use std::time::Duration;

    /// A queue is opened with what was in flight of it, not with all that the group ever failed.
    #[test]
    fn copies_are_of_messages_of_their_queue_that_are_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let broker = Broker::builder(dir.path()).segment_bytes(1 << 20).open().unwrap();
        let hour = BackOff::table([Duration::from_secs(3600)]);
        broker.create_group("g", GroupSettings::new().back_off(hour)).unwrap();
        for topic in ["t", "u"] {
            broker.create_topic(topic, 2).unwrap();
        }
        for (topic, queue) in (0..40).map(|nth| (["t", "u"][nth / 2 % 2], nth % 2)) {
            broker.producer().send(&Message::new(topic, vec![0]).queue(queue as u16)).unwrap();
        }
        let core = broker.core();
        let group = core.group("g").unwrap();
        // Half of them is to come later, and half is given up.
        for message in ["t", "u"].into_iter().flat_map(|topic| broker.browse(topic).unwrap()) {
            let message = message.unwrap();
            let message = message.delivery();
            let wanted = [Wanted::Policy, Wanted::DeadLetter][message.offset() as usize % 2];
            let failure = Failure { wanted, reason: "planted".to_owned() };
            core.send_back(&group, &message, &failure).unwrap();
        }
        let found = |topic: &str, queue: u16, next: u64| {
            let id = QueueId::new(topic, queue);
            let (_, index) = core.queue(&id).unwrap();
            let key = OffsetKey { group: group.number, incarnation: index.incarnation, queue };
            let (filter, meter, passed) = (Filter::ALL, group.meter(topic), Passed::nothing());
            let owned = Owned { id, queue: index, key, filter, lease: None, meter, passed };
            core.sent_back(&group, &owned, next).map(|Copies { last }| last.len())
        };
        assert_eq!([found("t", 0, 0), found("u", 1, 4), found("t", 1, 9)], [10, 6, 1].map(Some));
        assert_eq!(found("t", 0, 10), None);
    }
}
