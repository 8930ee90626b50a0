//! What of a queue has been sent back before, so that it is not delivered again after a kill.
//!
//! A group's commit stays below what is unfinished, although what lies above may have been sent back
//! already. Whoever gets the queue next begins at the commit, and would deliver that again, besides
//! its copy: every kill would add a copy. But the copies stand behind it in the log, with its id.
//! Those that stand behind the place where reading begins are looked up once, when a queue is
//! opened.

use super::core::Core;
use super::group::Group;
use crate::names::{dead_letter_topic, retry_topic};
use crate::store::{ConsumeQueue, Delivery, Record};
use std::collections::HashMap;

/// Messages that a group has sent back.
#[derive(Debug, Default)]
pub(crate) struct Settled {
    /// Where the last copy of a message stands, by its id.
    copies: HashMap<u64, u64>,
}

impl Settled {
    /// Whether this copy of the message has been sent back.
    pub(crate) fn has(&self, message: &Delivery<'_>) -> bool {
        let copy = self.copies.get(&message.id().position());
        copy.is_some_and(|copy| *copy > message.position())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.copies.is_empty()
    }

    pub(super) fn note(&mut self, record: &Record<'_>) {
        let copy = self.copies.entry(record.first_position()).or_default();
        *copy = record.position().max(*copy);
    }
}

impl Core {
    /// What `group` has sent back of the messages in a queue from `next` on; `None` if nothing.
    pub(crate) fn settled(
        &self,
        group: &Group,
        queue: &ConsumeQueue,
        next: u64,
    ) -> Option<Settled> {
        // What comes later is new to the group. What was before it was moved is to come again.
        let first = queue.entry(next.max(queue.min()))?;
        let from = first.position.max(group.moved_at());
        let topics = [retry_topic(&group.name), dead_letter_topic(&group.name)];
        let topics = topics.map(|name| self.store.topics.get(&name));
        let mut settled = Settled::default();
        if let [Some(retries), _] = &topics {
            // First those that wait: whichever falls due meanwhile is then found in its queue.
            self.store.visit_delayed(from, |record| {
                if record.incarnation() == retries.incarnation {
                    settled.note(record);
                }
            });
        }
        for topic in topics.iter().flatten() {
            for queue in &topic.queues {
                self.store.visit_from(queue, from, |record| settled.note(record));
            }
        }
        (!settled.is_empty()).then_some(settled)
    }
}
