//! Sending.

mod pending_send;

pub use pending_send::PendingSend;

use crate::broker::Broker;
use crate::broker::core::Core;
use crate::broker::hold::Arrival;
use crate::delay::Delay;
use crate::error::{Error, Result};
use crate::message::{Checked, Message, Receipt};
use crate::message_id::MessageId;
use crate::names;
use crate::placement::Placement;
use crate::store::{AppendError, Appended, Copy, Flush, Pending, Source, Topic};
use crate::string_hash::queue_for;
use crate::sync::OnceLock;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{Arc, contain};
use smallvec::SmallVec;

/// Sends messages; any number of threads may share one, or a clone of it.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let broker = rocklet::Broker::open(dir.path())?;
/// use rocklet::Message;
/// let producer = broker.producer();
/// let message = Message::new("orders", b"paid").tag("paid").key("o-42").order_by("user-7");
/// let receipt = producer.send(&message)?;
/// assert_eq!(producer.send(&message)?.queue, receipt.queue);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Producer {
    broker: Broker,
    hooks: Vec<Arc<dyn SendHook>>,
    turn: AtomicU32,
    /// The first topic that it sent to: most producers have one, and find it here.
    first_topic: OnceLock<Arc<Topic>>,
}

/// Sees every message before and after it is sent (PROD-16). A panic in a hook is swallowed.
pub trait SendHook: Send + Sync + std::fmt::Debug {
    /// Is called before the message is checked.
    fn before(&self, message: &Message<'_>) {
        let _ = message;
    }

    /// Is called with what the call returns, once for every `before`; with the message's own
    /// receipt and the one error of all for a batch. After [`Producer::send_pending`] the message
    /// is stored, and not flushed yet.
    fn after(&self, message: &Message<'_>, result: Result<&Receipt, &Error>) {
        let _ = (message, result);
    }
}

impl Broker {
    /// Makes a producer.
    #[must_use]
    pub fn producer(&self) -> Producer {
        Producer {
            broker: self.clone(),
            hooks: Vec::new(),
            // Producers that are made together should not march together (PROD-9).
            turn: AtomicU32::new(self.core().clock().random() as u32),
            first_topic: OnceLock::new(),
        }
    }
}

impl Producer {
    /// Adds a hook, behind those that it has.
    #[must_use]
    pub fn with_hook(mut self, hook: impl SendHook + 'static) -> Self {
        self.hooks.push(Arc::new(hook));
        self
    }

    /// Stores a message and returns where. It survives the end of the process from then on, and a
    /// loss of power as [`Flush`] says. A topic that does not exist is created (MODEL-18).
    ///
    /// Without a choice by the message the queues of a topic take turns (PROD-9). A send waits for a
    /// flush if more would await one than [`max_unflushed_bytes`] allows.
    ///
    /// [`max_unflushed_bytes`]: crate::BrokerBuilder::max_unflushed_bytes
    ///
    /// # Errors
    /// Nothing was stored after `TooLarge`, `EmptyBody`, `DelayTooLong`, `Setting` (of a time to live),
    /// `Name`, `Property`, `NoSuchTopic`, `NotPermitted`, `NoSuchQueue` or `NoQueueChosen` (the message has
    /// to change), `DiskFull` or `LogFull` (send again once there is space), `Closed` or `Poisoned`. After `NotDurable` the message is stored, and
    /// perhaps delivered, but may not survive a loss of power.
    #[inline]
    pub fn send(&self, message: &Message<'_>) -> Result<Receipt> {
        if self.hooks.is_empty() {
            return self.store(message);
        }
        self.call_hooks(|hook| hook.before(message));
        let result = self.store(message);
        self.call_hooks(|hook| hook.after(message, result.as_ref()));
        result
    }

    /// Stores a message as [`send`](Self::send) does, and returns at once with a handle by which to
    /// wait until it is flushed; whatever [`Flush`] says, the flush begins right away. Messages that
    /// are on their way together share one, so a single thread can keep many in flight:
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let broker = rocklet::Broker::open(dir.path())?;
    /// # use rocklet::Message;
    /// let producer = broker.producer();
    /// let send = |nth: u8| producer.send_pending(&Message::new("orders", vec![nth]));
    /// let in_flight = (0..64).map(send).collect::<rocklet::Result<Vec<_>>>()?;
    /// for sent in &in_flight {
    ///     sent.wait()?;
    /// }
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`send`](Self::send); nothing was stored then. `NotDurable` is told by the handle.
    pub fn send_pending(&self, message: &Message<'_>) -> Result<PendingSend> {
        self.call_hooks(|hook| hook.before(message));
        let result = self.append(message).map(|(appended, receipt)| {
            PendingSend::new(self.broker.core().store.clone(), receipt, appended.end)
        });
        self.call_hooks(|hook| hook.after(message, result.as_ref().map(PendingSend::receipt)));
        result
    }

    /// Stores messages of one topic in one queue, all or none, as one append (PROD-15). Messages
    /// that choose a queue, by whatever option, must choose the same; the others go with them. Without
    /// messages nothing happens.
    ///
    /// # Errors
    /// `Batch` if a message has a delay, or if the topics, the queues or the waits for the flush differ, `TooLarge` if the batch does not fit a log
    /// file, and as [`send`](Self::send) for every message; nothing was stored then. After
    /// `NotDurable` all of them are stored: its receipt is that of the first, and the others
    /// follow it in the same queue.
    pub fn send_batch(&self, messages: &[Message<'_>]) -> Result<Vec<Receipt>> {
        messages.iter().for_each(|message| self.call_hooks(|hook| hook.before(message)));
        let sent = self.store_batch(messages);
        for (nth, message) in messages.iter().enumerate() {
            let result = sent.as_ref().map(|receipts| &receipts[nth]);
            self.call_hooks(|hook| hook.after(message, result));
        }
        sent
    }

    #[inline]
    fn store(&self, message: &Message<'_>) -> Result<Receipt> {
        let core = self.broker.core();
        let pending = self.check(message)?;
        if let Some((appended, queue)) = self.append_clear(message, pending) {
            let receipt = receipt(core, &appended, queue);
            if message.wait_for_flush && core.store.flush_mode() == Flush::EveryMessage {
                self.make_durable(&appended, receipt)?;
            }
            return Ok(receipt);
        }
        let (appended, receipt) = self.append_checked(message, pending)?;
        if message.wait_for_flush {
            self.make_durable(&appended, receipt)?;
        }
        Ok(receipt)
    }

    fn append(&self, message: &Message<'_>) -> Result<(Appended, Receipt)> {
        let pending = self.check(message)?;
        self.append_checked(message, pending)
    }

    #[inline]
    fn check<'m>(&self, message: &'m Message<'m>) -> Result<Pending<'m>> {
        let checked = message.validate_content(self.broker.core().settings.max_body)?;
        Ok(pending(message, checked))
    }

    fn append_checked(
        &self,
        message: &Message<'_>,
        pending: Pending<'_>,
    ) -> Result<(Appended, Receipt)> {
        if message.when() == Delay::None {
            self.append_now(message, pending)
        } else {
            self.append_later(message, pending)
        }
    }

    fn append_now(
        &self,
        message: &Message<'_>,
        pending: Pending<'_>,
    ) -> Result<(Appended, Receipt)> {
        let core = self.broker.core();
        let choose = |topic: &Topic| self.choose(message, topic);
        let (appended, queue) = self.place(message, choose, |topic, queue| {
            let queue = &topic.queues[usize::from(queue)];
            let appended = core.store.append(topic, queue, pending)?;
            core.wake(queue, &appended, pending.tag_hash);
            Ok(appended)
        })?;
        let receipt = receipt(core, &appended, queue);
        Ok((appended, receipt))
    }

    /// Appends a message whose topic is at hand, if nothing stands in its way.
    #[inline]
    fn append_clear(&self, message: &Message<'_>, pending: Pending<'_>) -> Option<(Appended, u16)> {
        if message.when() != Delay::None {
            return None;
        }
        let core = self.broker.core();
        let topic = self.first_topic.get();
        let topic = topic.filter(|topic| *topic.name == *message.topic && topic.is_current())?;
        let turn = self.turn.load(Ordering::Relaxed);
        let number = self.choose_plainly(message, topic)?;
        let queue = topic.queues.get(usize::from(number))?;
        let Some(appended) = core.store.append_clear(topic, queue, pending) else {
            // The turn is still to be had.
            self.turn.store(turn, Ordering::Relaxed);
            return None;
        };
        core.wake(queue, &appended, pending.tag_hash);
        Some((appended, number))
    }

    fn append_later(
        &self,
        message: &Message<'_>,
        pending: Pending<'_>,
    ) -> Result<(Appended, Receipt)> {
        let core = self.broker.core();
        let Some(due) = core.due(message)? else { return self.append_now(message, pending) };
        // Its body and properties, which change on the way to the queue, are stored as they are.
        let copy = Copy { message: pending, reconsumed: 0, origin: 0 };
        let choose = |topic: &Topic| self.choose(message, topic);
        let (appended, queue) = self.place(message, choose, |topic, queue| {
            core.store.append_later(topic, queue, &copy, due)
        })?;
        let receipt = Receipt { offset: u64::MAX, ..receipt(core, &appended, queue) };
        Ok((appended, receipt))
    }

    fn store_batch(&self, messages: &[Message<'_>]) -> Result<Vec<Receipt>> {
        let Some(first) = messages.first() else { return Ok(Vec::new()) };
        let core = self.broker.core();
        let mut all = SmallVec::<[Pending<'_>; 8]>::with_capacity(messages.len());
        for message in messages {
            all.push(self.check(message)?);
            if message.topic != first.topic {
                return Err(Error::Batch { reason: "all messages must have the same topic" });
            }
            if core.due(message)?.is_some() {
                return Err(Error::Batch {
                    reason: "a message with a delay goes its own way; send it alone",
                });
            }
            if message.wait_for_flush != first.wait_for_flush {
                return Err(Error::Batch {
                    reason: "all messages must wait for the flush, or none",
                });
            }
        }
        let choose = |topic: &Topic| self.choose_for_all(messages, first, topic);
        let (appended, queue) = self.place(first, choose, |topic, queue| {
            let queue = &topic.queues[usize::from(queue)];
            let appended = core.store.append_batch(topic, queue, all.iter().copied())?;
            if appended.appended.watched {
                let arrivals = all.iter().zip(&appended.positions).map(|(pending, position)| {
                    Arrival { tag_hash: pending.tag_hash, position: *position }
                });
                core.hold.arrived(queue, appended.appended.offset, arrivals);
            }
            Ok(appended)
        })?;
        let receipt = receipt(core, &appended.appended, queue);
        let position = |nth: usize| appended.positions.get(nth).copied().unwrap_or_default();
        let receipts: Vec<Receipt> = (0..messages.len())
            .map(|nth| Receipt {
                id: MessageId::new(position(nth), core.store.store_id()),
                position: position(nth),
                offset: receipt.offset + nth as u64,
                ..receipt
            })
            .collect();
        if first.wait_for_flush {
            self.make_durable(&appended.appended, receipt)?;
        }
        Ok(receipts)
    }

    /// Finds the topic and the queue, and appends; again if the topic appears or goes meanwhile.
    fn place<R>(
        &self,
        message: &Message<'_>,
        choose: impl Fn(&Topic) -> Result<u16>,
        append: impl Fn(&Topic, u16) -> std::result::Result<R, AppendError>,
    ) -> Result<(R, u16)> {
        let core = self.broker.core();
        let place = |topic: &Topic| {
            let queue = choose(topic).map_err(AppendError::Failed)?;
            Ok((append(topic, queue)?, queue))
        };
        let first = self.first_topic.get().filter(|topic| *topic.name == *message.topic);
        if let Some(topic) = first.filter(|topic| topic.is_current()) {
            match place(topic) {
                Ok(placed) => return Ok(placed),
                Err(AppendError::Failed(error)) => return Err(error),
                Err(AppendError::Gone) => {}
            }
        }
        if names::is_of_a_group(&message.topic) {
            // It may be there, but is not the user's.
            message.validate_topic()?;
        }
        loop {
            let placed = core.store.topics.get(&message.topic).map(|topic| {
                let placed = place(&topic);
                self.first_topic.get_or_init(|| topic);
                placed
            });
            match placed {
                Some(Ok(placed)) => return Ok(placed),
                Some(Err(AppendError::Failed(error))) => return Err(error),
                Some(Err(AppendError::Gone)) => core.store.topics.settle(),
                None => {
                    message.validate_topic()?;
                    core.topic(&message.topic)?;
                }
            }
        }
    }

    /// The queue by its number, in turn or by the key, of a topic that takes messages.
    #[inline]
    fn choose_plainly(&self, message: &Message<'_>, topic: &Topic) -> Option<u16> {
        let queues = topic.open_queues();
        match &message.placement {
            Placement::RoundRobin if queues > 0 => {
                // Threads that share a producer may take the same turn now and then. That costs
                // nothing; a read-modify-write would be a good part of a send.
                let turn = self.turn.load(Ordering::Relaxed);
                self.turn.store(turn.wrapping_add(1), Ordering::Relaxed);
                Some((turn % u32::from(queues)) as u16)
            }
            Placement::Queue(queue) if *queue < queues => Some(*queue),
            Placement::Key(key) if queues > 0 => Some(queue_for(key, queues)),
            _ => None,
        }
    }

    fn choose(&self, message: &Message<'_>, topic: &Topic) -> Result<u16> {
        let ids = topic.writable()?;
        if let Some(queue) = self.choose_plainly(message, topic) {
            return Ok(queue);
        }
        match &message.placement {
            Placement::Queue(queue) => Err(no_such_queue(topic, *queue)),
            Placement::Select(select) => match contain(|| select(ids)) {
                Ok(Some(id)) if ids.contains(&id) => Ok(id.queue()),
                Ok(Some(id)) if *id.topic() == *topic.name => Err(no_such_queue(topic, id.queue())),
                Ok(Some(_)) => {
                    Err(Error::NoQueueChosen { reason: "the selector chose another topic's" })
                }
                Ok(None) => Err(Error::NoQueueChosen { reason: "the selector chose none" }),
                Err(_) => Err(Error::NoQueueChosen { reason: "the selector panicked" }),
            },
            // Every topic has a queue to be sent to.
            Placement::RoundRobin | Placement::Key(_) => Ok(0),
            Placement::Conflict | Placement::Lost => {
                message.placement.validate()?;
                Ok(0)
            }
        }
    }

    /// The one queue of a batch. An option on one message must not be broken by another's.
    fn choose_for_all(
        &self,
        messages: &[Message<'_>],
        first: &Message<'_>,
        topic: &Topic,
    ) -> Result<u16> {
        let mut chosen = None;
        for message in messages {
            if matches!(message.placement, Placement::RoundRobin) {
                continue;
            }
            let plainly = self.choose_plainly(message, topic);
            let queue = plainly.map_or_else(|| self.choose(message, topic), Ok)?;
            if *chosen.get_or_insert(queue) != queue {
                return Err(Error::Batch { reason: "all messages must go to the same queue" });
            }
        }
        chosen.map_or_else(|| self.choose(first, topic), Ok)
    }

    #[inline]
    fn make_durable(&self, appended: &Appended, receipt: Receipt) -> Result<()> {
        let core = self.broker.core();
        if core.store.flush_mode() != Flush::EveryMessage {
            return Ok(());
        }
        let durable = core.store.wait_durable(appended.end);
        durable.map_err(|cause| Error::NotDurable { receipt, cause })
    }

    fn call_hooks(&self, call: impl Fn(&dyn SendHook)) {
        for hook in &self.hooks {
            let _ = contain(|| call(&**hook));
        }
    }
}

impl Clone for Producer {
    /// A producer for the same broker, with the same hooks and a turn of its own.
    fn clone(&self) -> Self {
        Self { hooks: self.hooks.clone(), ..self.broker.producer() }
    }
}

#[inline]
fn pending<'a>(message: &'a Message<'a>, checked: Checked) -> Pending<'a> {
    Pending {
        tag_hash: checked.tag_hash,
        born_ms: message.born_ms,
        properties: Source::Message(message, checked.properties_len),
        body: message.body(),
    }
}

fn receipt(core: &Core, appended: &Appended, queue: u16) -> Receipt {
    Receipt {
        id: MessageId::new(appended.position, core.store.store_id()),
        queue,
        offset: appended.offset,
        position: appended.position,
        store_ms: appended.store_ms,
    }
}

fn no_such_queue(topic: &Topic, queue: u16) -> Error {
    let queues = topic.config.write_queues;
    Error::NoSuchQueue { topic: topic.name.to_string(), queue, queues }
}
