//! Received messages: views of the log that keep what they look at alive.

use super::log_file::LogFile;
use super::record::Record;
use crate::message::Message;
use crate::message_id::MessageId;
use crate::names;
use crate::properties::{EXPIRED_FROM, Properties, RETRY_TOPIC, TIME_TO_LIVE};
use crate::queue_id::QueueId;
use crate::sync::Counted;
use smallvec::SmallVec;
use std::fmt;
use std::ops::Range;
use std::time::Duration;

/// Messages that were read together.
///
/// It holds one reference to each log file that it touches, not one a message: the bytes stay
/// valid while it lives, even after retention has dropped the file.
#[derive(Clone)]
pub struct Deliveries {
    store_id: u64,
    /// What the queue that is being read had in it.
    stored: Stored,
    parts: SmallVec<[Part; 2]>,
    places: Vec<Spot>,
}

/// Where a message stands, and its [`Delivery::retries`].
#[derive(Clone, Copy)]
struct Spot {
    part: u32,
    retries: u32,
    position: u64,
}

/// The smallest offset of a queue and the next one to be given, when it was read; both 0 if it was
/// not.
type Stored = (u64, u64);

/// Messages of one file that were read in one go.
#[derive(Clone)]
struct Part {
    file: Counted<LogFile>,
    stored: Stored,
}

impl Deliveries {
    pub(crate) fn none(store_id: u64) -> Self {
        Self::with_capacity(store_id, 0)
    }

    pub(crate) fn with_capacity(store_id: u64, messages: usize) -> Self {
        let (parts, places) = (SmallVec::new(), Vec::with_capacity(messages));
        Self { store_id, stored: (0, 0), parts, places }
    }

    /// Notes what the queue had in it from which messages are about to be added.
    pub(crate) fn note_stored(&mut self, min: u64, max: u64) {
        self.stored = (min, max);
    }

    /// Adds the message at `position`, which has been parsed there before.
    #[inline]
    pub(crate) fn push(&mut self, file: &Counted<LogFile>, position: u64) {
        if !self.parts.last().is_some_and(|last| Counted::ptr_eq(&last.file, file)) {
            self.parts.push(Part { file: file.clone(), stored: self.stored });
        }
        let part = self.parts.len() as u32 - 1;
        self.places.push(Spot { part, retries: 0, position });
    }

    /// Adds the messages of `others` behind its own.
    pub(crate) fn append(&mut self, others: &Self) {
        let shift = self.parts.len() as u32;
        self.parts.extend(others.parts.iter().cloned());
        let shifted = |spot: &Spot| Spot { part: spot.part + shift, ..*spot };
        self.places.extend(others.places.iter().map(shifted));
    }

    /// Some of them for another attempt: indices, and how many attempts the records do not count.
    pub(crate) fn again(&self, which: impl Iterator<Item = (usize, u32)>) -> Self {
        let spot = |(index, retries)| Some(Spot { retries, ..*self.places.get(index)? });
        let (stored, parts) = (self.stored, self.parts.clone());
        let places = which.filter_map(spot).collect();
        Self { store_id: self.store_id, stored, parts, places }
    }

    /// The number of messages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The message at `index`, from 0.
    #[must_use]
    #[inline]
    pub fn get(&self, index: usize) -> Option<Delivery<'_>> {
        let Spot { part, retries, position } = *self.places.get(index)?;
        let Part { file, stored } = self.parts.get(part as usize)?;
        let record = file.record(position).ok()?;
        let delivery = Delivery::new(record, file, self.store_id);
        Some(Delivery { stored: *stored, retries, ..delivery })
    }

    /// The messages in order.
    pub fn iter(&self) -> DeliveriesIter<'_> {
        DeliveriesIter { of: self, next: 0 }
    }
}

impl<'a> IntoIterator for &'a Deliveries {
    type Item = Delivery<'a>;
    type IntoIter = DeliveriesIter<'a>;

    fn into_iter(self) -> DeliveriesIter<'a> {
        self.iter()
    }
}

impl fmt::Debug for Deliveries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self).finish()
    }
}

/// Iterates over [`Deliveries`].
#[derive(Clone, Debug)]
pub struct DeliveriesIter<'a> {
    of: &'a Deliveries,
    next: usize,
}

impl<'a> Iterator for DeliveriesIter<'a> {
    type Item = Delivery<'a>;

    #[inline]
    fn next(&mut self) -> Option<Delivery<'a>> {
        let delivery = self.of.get(self.next)?;
        self.next += 1;
        Some(delivery)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.of.len() - self.next.min(self.of.len());
        (left, Some(left))
    }
}

impl ExactSizeIterator for DeliveriesIter<'_> {}

/// A received message: a view of the log, without a copy.
#[derive(Clone, Copy)]
pub struct Delivery<'a> {
    record: Record<'a>,
    file: &'a Counted<LogFile>,
    store_id: u64,
    /// Attempts that the record does not count.
    retries: u32,
    stored: Stored,
    /// 0 outside of listeners.
    started_ms: u64,
}

impl<'a> Delivery<'a> {
    #[inline]
    pub(crate) fn new(record: Record<'a>, file: &'a Counted<LogFile>, store_id: u64) -> Self {
        Self { record, file, store_id, retries: 0, stored: (0, 0), started_ms: 0 }
    }

    /// The same message for a listener that is called now.
    #[inline]
    pub(crate) fn begin(self, started_ms: u64) -> Self {
        Self { started_ms, ..self }
    }

    #[inline]
    pub(crate) fn record(&self) -> &Record<'a> {
        &self.record
    }

    /// The same message for another attempt.
    pub(crate) fn next_attempt(&self) -> DetachedDelivery {
        Self { retries: self.retries + 1, ..*self }.detach()
    }

    /// The topic. Of a message that is delivered again, or that a group gave up on, the one in
    /// which it was sent (CONC-3); [`queue_id`](Self::queue_id) says where it stands now.
    #[must_use]
    pub fn topic(&self) -> &'a str {
        let topic = self.stored_topic();
        if !names::is_of_a_group(topic) {
            return topic;
        }
        self.reserved().get(RETRY_TOPIC).unwrap_or(topic)
    }

    /// The body, as it was sent.
    #[must_use]
    #[inline]
    pub fn body(&self) -> &'a [u8] {
        self.record.body()
    }

    /// The tag, if the message has one.
    #[must_use]
    pub fn tag(&self) -> Option<&'a str> {
        self.reserved().get("TAGS")
    }

    /// The keys.
    pub fn keys(&self) -> impl Iterator<Item = &'a str> {
        self.reserved().keys()
    }

    /// The value of the sender's property `name`.
    #[must_use]
    pub fn property(&self, name: &str) -> Option<&'a str> {
        self.reserved().get(name).filter(|_| !crate::properties::is_reserved(name))
    }

    /// The sender's properties, in the order in which they were set.
    pub fn properties(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.reserved().user()
    }

    /// The sender's flag; 0 if none was set.
    #[must_use]
    pub fn flag(&self) -> i32 {
        self.reserved().flag()
    }

    /// The number of the queue.
    #[must_use]
    pub fn queue(&self) -> u16 {
        self.record.queue()
    }

    /// The queue in which it stands, with its topic.
    #[must_use]
    pub fn queue_id(&self) -> QueueId {
        QueueId::new(self.stored_topic(), self.queue())
    }

    /// The offset in the queue.
    #[must_use]
    #[inline]
    pub fn offset(&self) -> u64 {
        self.record.offset()
    }

    /// The position in the commit log, in bytes.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.record.position()
    }

    /// The id that `send` returned: the same for every copy of a message (MODEL-14).
    #[must_use]
    pub fn id(&self) -> MessageId {
        MessageId::new(self.record.first_position(), self.store_id)
    }

    /// When the message was stored, in milliseconds since 1970.
    #[must_use]
    pub fn store_ms(&self) -> u64 {
        self.record.store_ms()
    }

    /// When the message was born, in milliseconds since 1970.
    #[must_use]
    pub fn born_ms(&self) -> u64 {
        self.record.born_ms()
    }

    /// When the message is delivered no more, in milliseconds since 1970; `None` if it has no
    /// [time to live](Message::time_to_live).
    #[must_use]
    #[inline]
    pub fn expires_ms(&self) -> Option<u64> {
        self.record.expires_ms()
    }

    /// Of a message that is kept because it has [expired](crate::GroupSettings::expired_to): the
    /// queue in which it was sent, and its offset there. Retention may have dropped it.
    #[must_use]
    pub fn expired_from(&self) -> Option<(QueueId, u64)> {
        let mut place = self.system_property(EXPIRED_FROM)?.split(' ');
        // The group follows.
        let (topic, queue, offset) = (place.next()?, place.next()?, place.next()?);
        Some((QueueId::new(topic, queue.parse().ok()?), offset.parse().ok()?))
    }

    /// How often the message was delivered before and failed; 0 for the first delivery.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        u32::from(self.record.reconsumed()) + self.retries
    }

    /// The offsets of its queue when the message was read: the first one that was stored, and, as
    /// the end, the next one to be given. `None` if it was looked up and not read from its queue
    /// (PULL-10).
    #[must_use]
    pub fn stored_offsets(&self) -> Option<Range<u64>> {
        let (min, max) = self.stored;
        (max > 0).then_some(min..max)
    }

    /// When the listener was called that has the message, in milliseconds since 1970; `None` outside
    /// of listeners (CONC-3).
    #[must_use]
    pub fn consume_start_ms(&self) -> Option<u64> {
        (self.started_ms > 0).then_some(self.started_ms)
    }

    /// A message with the same topic, content and options, to be sent again or kept.
    pub fn to_message(&self) -> Message<'static> {
        let mut message = Message::new(self.topic().to_owned(), self.body().to_vec());
        if let Some(tag) = self.tag() {
            message = message.tag(tag.to_owned());
        }
        for key in self.keys() {
            message = message.key(key.to_owned());
        }
        for (name, value) in self.properties() {
            message = message.property(name.to_owned(), value.to_owned());
        }
        if let Some(ms) = self.reserved().ms(TIME_TO_LIVE) {
            message = message.time_to_live(Duration::from_millis(ms));
        }
        message.flag(self.flag()).born_ms(self.born_ms())
    }

    /// A delivery that lives on its own: it keeps the log file alive, still without a copy.
    #[must_use]
    pub fn detach(&self) -> DetachedDelivery {
        let Self { file, store_id, retries, record, stored, .. } = self;
        DetachedDelivery {
            part: Part { file: (*file).clone(), stored: *stored },
            position: record.position(),
            store_id: *store_id,
            retries: *retries,
        }
    }

    /// All properties, reserved ones included.
    pub(crate) fn all_properties(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        self.reserved().iter()
    }

    /// The value of one of the properties that the broker sets.
    pub(crate) fn system_property(&self, name: &str) -> Option<&'a str> {
        self.reserved().get(name)
    }

    /// The topic in which it stands.
    pub(crate) fn stored_topic(&self) -> &'a str {
        std::str::from_utf8(self.record.topic()).unwrap_or_default()
    }

    fn reserved(&self) -> Properties<'a> {
        Properties(self.record.properties())
    }
}

impl fmt::Debug for Delivery<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("queue", &format_args!("{}/{}", self.stored_topic(), self.queue()))
            .field("offset", &self.offset())
            .field("tag", &self.tag())
            .field("bytes", &self.body().len())
            .finish_non_exhaustive()
    }
}

/// A received message that owns what it looks at.
#[derive(Clone)]
pub struct DetachedDelivery {
    part: Part,
    position: u64,
    store_id: u64,
    retries: u32,
}

impl DetachedDelivery {
    /// The message.
    ///
    /// # Panics
    /// Never in practice: the record was read before, and committed bytes do not change.
    #[must_use]
    pub fn delivery(&self) -> Delivery<'_> {
        let Part { file, stored } = &self.part;
        let record = file.record(self.position).expect("a record that was read before");
        let delivery = Delivery::new(record, file, self.store_id);
        Delivery { stored: *stored, retries: self.retries, ..delivery }
    }
}

impl From<DetachedDelivery> for Deliveries {
    /// That message alone.
    fn from(message: DetachedDelivery) -> Self {
        let DetachedDelivery { part, position, store_id, retries } = message;
        let mut alone = Self::with_capacity(store_id, 1);
        alone.parts.push(part);
        alone.places.push(Spot { part: 0, retries, position });
        alone
    }
}

impl fmt::Debug for DetachedDelivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.delivery().fmt(f)
    }
}
