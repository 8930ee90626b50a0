//! Taking messages to their queues when they are due (DELAY-4, DELAY-5).
//!
//! A background step asleep until the next one is due. A message that cannot be stored waits for a
//! while with those that fail for the same cause, its topic or a lack of room: others go, and those
//! before it are not stored again (B-135). One that cannot be read is lost, and counted.

use super::core::Core;
use super::handle::Broker;
use super::write::{copy_of, properties_of_copy};
use crate::clock::Moment;
use crate::error::{Error, Result};
use crate::message_id::MessageId;
use crate::store::{AppendError, Cause, Delivery, Next, Ticket};
use crate::sync::atomic::Ordering;

/// What has become of a message that was due.
#[derive(Debug)]
enum Outcome {
    /// It is in its queue, or was cancelled meanwhile.
    Done,
    /// Its topic is gone, and so is it.
    Dropped,
    /// It waits for others that could not be stored.
    Parked,
}

/// The cause of a failure to store a message of the topic of this incarnation.
fn cause_of(error: &Error, topic: u32) -> Cause {
    match error {
        Error::DiskFull { .. } | Error::LogFull { .. } => Cause::Room,
        _ => Cause::Topic(topic),
    }
}

impl Broker {
    /// Cancels a message that was sent with a delay, by the id that `send` returned: it will not be
    /// delivered. False if it is not waiting: it is in its queue already, was cancelled before, or
    /// never had a delay.
    ///
    /// # Errors
    /// `DiskFull` or `LogFull` if it cannot be noted (it will be delivered then), `Closed`, or
    /// `Poisoned`.
    pub fn cancel(&self, id: MessageId) -> Result<bool> {
        let store = &self.core().store;
        if self.core().is_closed() {
            return Err(Error::Closed);
        }
        if !id.is_of(store.store_id()) {
            return Ok(false);
        }
        while let Some(ticket) = store.find_delayed(id.position()) {
            if let Some(appended) = store.append_done(&ticket)? {
                self.core().make_durable(&appended)?;
                return Ok(true);
            }
            // It is in its queue now, or stands elsewhere.
        }
        Ok(false)
    }
}

impl Core {
    /// Takes everything to its queue that is due, and says when the next message will be.
    pub(super) fn delay_step(&self) -> Option<Moment> {
        while !self.is_closed() {
            let ticket = match self.store.next_due() {
                Next::Due(ticket) => ticket,
                Next::Wait(moment) => return Some(moment),
                Next::Nothing => return None,
            };
            match self.deliver_due(&ticket) {
                Ok(Outcome::Done | Outcome::Parked) => {}
                Ok(Outcome::Dropped) => {
                    self.counters.dropped_delays.fetch_add(1, Ordering::Relaxed);
                }
                // Nothing will be stored any more.
                Err(_) => return None,
            }
        }
        None
    }

    /// Deals with a message that is due.
    ///
    /// # Errors
    /// `Closed`, `Poisoned`.
    fn deliver_due(&self, ticket: &Ticket) -> Result<Outcome> {
        if self.store.holds_delays(Cause::Room) {
            self.store.park(ticket, Cause::Room);
            return Ok(Outcome::Parked);
        }
        let mut topic = 0;
        let taken = match self.store.delayed(ticket) {
            Ok(Some(message)) => {
                let message = message.delivery();
                topic = message.record().incarnation();
                if self.store.holds_delays(Cause::Topic(topic)) {
                    self.store.park(ticket, Cause::Topic(topic));
                    return Ok(Outcome::Parked);
                }
                self.take_to_queue(ticket, &message)
            }
            Ok(None) => Ok(Outcome::Done),
            Err(reason @ Error::Corrupt { .. }) => {
                self.store.give_up(ticket, &reason).map(|()| Outcome::Done)
            }
            Err(error) => Err(error),
        };
        match taken {
            Err(error @ (Error::Closed | Error::Poisoned { .. })) => Err(error),
            Err(error) => {
                self.counters.failed_delays.fetch_add(1, Ordering::Relaxed);
                self.store.park(ticket, cause_of(&error, topic));
                Ok(Outcome::Parked)
            }
            done => done,
        }
    }

    fn take_to_queue(&self, ticket: &Ticket, message: &Delivery<'_>) -> Result<Outcome> {
        let properties = properties_of_copy(message, &[]);
        let copy = copy_of(message, &properties, message.record().reconsumed());
        loop {
            let topic = self.store.topics.get(message.queue_id().topic());
            let same = topic.filter(|topic| topic.incarnation == message.record().incarnation());
            let Some(topic) = same else {
                let done = self.store.append_done(ticket)?;
                return Ok(if done.is_some() { Outcome::Dropped } else { Outcome::Done });
            };
            // A queue that takes nothing any more has others in its place.
            let queues = topic.writable()?.len();
            let queue = &topic.queues[usize::from(message.queue()) % queues];
            match self.store.append_due(ticket, &topic, queue, &copy) {
                Ok(appended) => {
                    let tag_hash = copy.message.tag_hash;
                    appended.iter().for_each(|appended| self.wake(queue, appended, tag_hash));
                    return Ok(Outcome::Done);
                }
                Err(AppendError::Gone) => self.store.topics.settle(),
                Err(AppendError::Failed(error)) => return Err(error),
            }
        }
    }
}
