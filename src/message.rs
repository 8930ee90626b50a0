//! A message to be sent, and what must be true of it before anything is written.

mod rare;
mod rules;

use crate::delay::Delay;
use crate::error::{Error, Result};
use crate::message_id::MessageId;
use crate::names;
use crate::placement::Placement;
use crate::properties::{Encoder, FLAG, FLAG_DIGITS, KEYS, MAX_BYTES, TAGS};
use crate::queue_id::QueueId;
use crate::sync::Arc;
use rare::Rare;
use std::borrow::Cow;
use std::fmt;
use std::time::{Duration, SystemTime};

/// A message to be sent, with its options (MODEL-10). It borrows what it is given.
///
/// Rules are checked by `send`, which refuses a message before anything is written:
/// the topic is 1 to 127 characters of `A-Z a-z 0-9 % | _ -` and not a system topic (MODEL-5);
/// the body has 1 byte up to the broker's limit (MODEL-7); all properties together have at most
/// 32767 encoded bytes (MODEL-8); none of them is blank or holds the characters U+0001 or U+0002,
/// by which they are told apart in the log (MODEL-9).
///
/// ```
/// # use rocklet::Message;
/// let message = Message::new("orders", b"paid").tag("paid").key("o-42").order_by("user-7");
/// ```
#[derive(Clone)]
#[must_use = "a message does nothing until it is sent"]
pub struct Message<'a> {
    pub(crate) topic: Cow<'a, str>,
    pub(crate) body: Cow<'a, [u8]>,
    pub(crate) tag: Option<Cow<'a, str>>,
    /// Apart from the others, so that one key costs no allocation. (A small vector would make
    /// `'a` invariant, and batches of mixed origin would not compile.)
    first_key: Option<Cow<'a, str>>,
    pub(crate) flag: i32,
    pub(crate) born_ms: Option<u64>,
    pub(crate) placement: Placement<'a>,
    pub(crate) wait_for_flush: bool,
    rare: Option<Box<Rare<'a>>>,
}

/// What the check of a message has found out for its record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checked {
    /// Bytes of the encoded properties.
    pub(crate) properties_len: usize,
    /// What the index holds, 0 without a tag (STORE-22).
    pub(crate) tag_hash: i32,
}

impl<'a> Message<'a> {
    /// Creates a message without options: untagged, placed round robin.
    #[inline]
    pub fn new(topic: impl Into<Cow<'a, str>>, body: impl Into<Cow<'a, [u8]>>) -> Self {
        Self {
            topic: topic.into(),
            body: body.into(),
            tag: None,
            first_key: None,
            flag: 0,
            born_ms: None,
            placement: Placement::RoundRobin,
            wait_for_flush: true,
            rare: None,
        }
    }

    /// Sets the tag, by which consumers filter.
    ///
    /// `send` refuses a tag that no tag expression can name: a blank one, one with blanks around
    /// it, and one that holds `||` (SUB-2).
    #[inline]
    pub fn tag(mut self, tag: impl Into<Cow<'a, str>>) -> Self {
        self.tag = Some(tag.into());
        self
    }

    /// Adds a key, by which the message can be looked up; may be repeated.
    ///
    /// `send` refuses a key that is blank or holds a space, which separates keys (MODEL-10).
    #[inline]
    pub fn key(mut self, key: impl Into<Cow<'a, str>>) -> Self {
        if self.first_key.is_none() {
            self.first_key = Some(key.into());
        } else {
            self.rare().more_keys.push(key.into());
        }
        self
    }

    /// Sets a property; a second one of that name replaces the first.
    ///
    /// `send` refuses a blank name or value and a reserved name, such as `TAGS` (MODEL-12).
    pub fn property(
        mut self,
        name: impl Into<Cow<'a, str>>,
        value: impl Into<Cow<'a, str>>,
    ) -> Self {
        let (name, value) = (name.into(), value.into());
        let properties = &mut self.rare().properties;
        match properties.iter_mut().find(|(known, _)| *known == name) {
            Some((_, old)) => *old = value,
            None => properties.push((name, value)),
        }
        self
    }

    /// Sets a number that means something to the application only. Default: 0.
    #[inline]
    pub fn flag(mut self, flag: i32) -> Self {
        self.flag = flag;
        self
    }

    /// Sets when the message came to be, in milliseconds since 1970. Default: when it is sent.
    #[inline]
    pub fn born_ms(mut self, born_ms: u64) -> Self {
        self.born_ms = Some(born_ms);
        self
    }

    /// Puts the message into queue number `queue`.
    ///
    /// At most one of `queue`, [`order_by`](Self::order_by) and [`select`](Self::select) may be
    /// given; `send` refuses the message otherwise.
    #[inline]
    pub fn queue(mut self, queue: u16) -> Self {
        self.placement = self.placement.or(Placement::Queue(queue));
        self
    }

    /// Puts the message into the queue that takes all messages ordered by `key`: queue
    /// `|h mod n|` of `n`, where `h` is Java's string hash of the key (PROD-12).
    #[inline]
    pub fn order_by(mut self, key: impl Into<Cow<'a, str>>) -> Self {
        self.placement = self.placement.or(Placement::Key(key.into()));
        self
    }

    /// Puts the message into the queue that `selector` picks among all queues of the topic, which
    /// it gets in ascending order; `send` fails if it picks none (PROD-12).
    pub fn select(
        mut self,
        selector: impl Fn(&[QueueId]) -> Option<QueueId> + Send + Sync + 'a,
    ) -> Self {
        self.placement = self.placement.or(Placement::Select(Arc::new(selector)));
        self
    }

    /// Sets whether `send` waits with [`Flush::EveryMessage`](crate::Flush::EveryMessage) until the
    /// message is flushed; it does by default (STORE-17). One that does not wait survives the end of
    /// the process at once, and a loss of power from the next flush on, which is at most 500 ms away.
    #[inline]
    pub fn wait_for_flush(mut self, wait: bool) -> Self {
        self.wait_for_flush = wait;
        self
    }

    /// Delivers the message so long after it was sent, 366 days at most, and never early. The wall
    /// clock may be set meanwhile: what counts is a clock that nobody sets, and after the directory
    /// was closed and opened again the wall time at which the delay ends.
    ///
    /// The last of `delay` and [`deliver_at`](Self::deliver_at) counts, and a
    /// [`delay_level`](Self::delay_level) before both (DELAY-10). A message with a delay gets its
    /// offset when it is due, and cannot be part of a batch.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let broker = rocklet::Broker::open(dir.path())?;
    /// use rocklet::Message;
    /// use std::time::Duration;
    /// let reminder = Message::new("reminders", b"call back").delay(Duration::from_secs(3600));
    /// let receipt = broker.producer().send(&reminder)?;
    /// assert!(broker.cancel(receipt.id)?, "they called");
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.rare().delay = self.when().or(Delay::For(delay));
        self
    }

    /// Delivers the message when the wall clock says `instant`, which may be 366 days ahead; at once
    /// if that has passed. If the wall clock is set, this is noticed within a minute. See
    /// [`delay`](Self::delay).
    #[inline]
    pub fn deliver_at(mut self, instant: SystemTime) -> Self {
        self.rare().delay = self.when().or(Delay::Until(instant));
        self
    }

    /// Delays the message by one of RocketMQ's levels, from 1 on; 0 is none, and whatever is above
    /// the last level is the last. See [`DelayLevels`](crate::DelayLevels), and
    /// [`BrokerBuilder::delay_levels`](crate::BrokerBuilder::delay_levels) for other ones.
    #[inline]
    pub fn delay_level(mut self, level: u32) -> Self {
        let delay = match (level, self.when()) {
            (0, Delay::Level(_)) => Delay::None,
            (0, other) => other,
            _ => Delay::Level(level),
        };
        if delay != self.when() {
            self.rare().delay = delay;
        }
        self
    }

    /// Delivers the message for so long only, 1 ms to 3660 days: from its store time on or, with a
    /// [`delay`](Self::delay), from when it is due. Then it has expired, and whoever reads the queue
    /// passes it by, which [`PullStats::expired`](crate::PullStats::expired) counts; a group may
    /// keep a copy, see [`GroupSettings::expired_to`](crate::GroupSettings::expired_to). Who has it
    /// in hand finishes with it. A message that has failed keeps the end of its time. Time is that of
    /// the wall clock, at its last tick, which is up to 10 ms ago.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let broker = rocklet::Broker::open(dir.path())?;
    /// use rocklet::Message;
    /// use std::time::Duration;
    /// let quote = Message::new("quotes", b"1.0824").time_to_live(Duration::from_secs(60));
    /// broker.producer().send(&quote)?;
    /// let mut ticker = broker.pull_consumer("ticker").subscribe("quotes", "*")?.start()?;
    /// let quotes = ticker.poll(Duration::ZERO)?;
    /// let quote = quotes.get(0).expect("a quote of this minute");
    /// assert_eq!(quote.expires_ms(), Some(quote.store_ms() + 60_000));
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn time_to_live(mut self, time: Duration) -> Self {
        self.rare().time_to_live = Some(time);
        self
    }

    /// Makes a message that borrows nothing.
    ///
    /// A closure given to [`select`](Self::select) may borrow and is left behind: such a message
    /// is refused by `send` until it is placed anew.
    pub fn into_owned(self) -> Message<'static> {
        Message {
            topic: own(self.topic),
            body: own(self.body),
            tag: self.tag.map(own),
            first_key: self.first_key.map(own),
            flag: self.flag,
            born_ms: self.born_ms,
            placement: self.placement.into_owned(),
            wait_for_flush: self.wait_for_flush,
            rare: self.rare.map(|rare| Box::new(rare.into_owned())),
        }
    }

    /// The topic.
    #[must_use]
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// The body.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// When it is to be delivered.
    #[inline]
    pub(crate) fn when(&self) -> Delay {
        self.rare.as_ref().map_or(Delay::None, |rare| rare.delay)
    }

    /// How long it is delivered, unless that is for ever.
    #[inline]
    pub(crate) fn time_to_live_of(&self) -> Option<Duration> {
        self.rare.as_ref().and_then(|rare| rare.time_to_live)
    }

    /// Refuses whatever breaks a rule, before anything is written.
    #[cfg(test)]
    pub(crate) fn validate(&self, max_body: usize) -> Result<()> {
        self.validate_topic()?;
        self.validate_content(max_body).map(drop)
    }

    /// The part of [`validate`](Self::validate) that a topic known to exist has passed already.
    #[inline]
    pub(crate) fn validate_topic(&self) -> Result<()> {
        names::check_topic(&self.topic)
    }

    /// The part of [`validate`](Self::validate) that depends on the message alone.
    #[inline]
    pub(crate) fn validate_content(&self, max_body: usize) -> Result<Checked> {
        if self.body.is_empty() {
            return Err(Error::EmptyBody);
        }
        if self.body.len() > max_body {
            return Err(Error::TooLarge { what: "body", length: self.body.len(), limit: max_body });
        }
        self.placement.validate()?;
        let properties_len = self.properties_len();
        if properties_len > MAX_BYTES {
            let (length, limit) = (properties_len, MAX_BYTES);
            return Err(Error::TooLarge { what: "properties", length, limit });
        }
        let tag_hash = self.tag.as_deref().map_or(Ok(0), rules::check_tag)?;
        self.first_key.as_deref().map_or(Ok(()), rules::check_key)?;
        if let Some(rare) = &self.rare {
            rare.validate()?;
        }
        Ok(Checked { properties_len, tag_hash })
    }

    /// Writes the wire form of tag, keys, flag and properties, in this order (MODEL-9), into `out`, which
    /// has [`properties_len`](Self::properties_len) bytes.
    #[inline]
    pub(crate) fn encode_properties(&self, out: &mut [u8]) {
        let mut encoder = Encoder::new(out);
        if let Some(tag) = &self.tag {
            encoder.put(TAGS, tag);
        }
        if self.first_key.is_some() {
            encoder.put_joined(KEYS, self.keys());
        }
        if self.flag != 0 {
            encoder.put_flag(self.flag);
        }
        if let Some(rare) = &self.rare {
            rare.encode(&mut encoder);
        }
    }

    /// Whether it has keys.
    #[inline]
    pub(crate) fn keyed(&self) -> bool {
        self.first_key.is_some()
    }

    /// The keys, in the order given.
    #[inline]
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        let more = self.rare.iter().flat_map(|rare| &rare.more_keys);
        self.first_key.iter().chain(more).map(|key| &**key)
    }

    /// How many bytes [`encode_properties`](Self::encode_properties) writes.
    #[inline]
    pub(crate) fn properties_len(&self) -> usize {
        let mut length = self.tag.as_ref().map_or(0, |tag| item(TAGS, tag.len()));
        if let Some(first) = &self.first_key {
            length += item(KEYS, first.len());
        }
        if self.flag != 0 {
            length += item(FLAG, FLAG_DIGITS);
        }
        if let Some(rare) = &self.rare {
            length += rare.length();
        }
        length.saturating_sub(1)
    }

    fn rare(&mut self) -> &mut Rare<'a> {
        self.rare.get_or_insert_default()
    }
}

/// Bytes of one property with the separator after it, which the last one lacks.
#[inline]
fn item(name: &str, value: usize) -> usize {
    name.len() + 1 + value + 1
}

impl fmt::Debug for Message<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("topic", &self.topic)
            .field("body_len", &self.body.len())
            .field("tag", &self.tag)
            .field("keys", &self.keys().collect::<Vec<_>>())
            .field("properties", &self.rare.as_ref().map_or(&[][..], |rare| &rare.properties))
            .field("flag", &self.flag)
            .field("born_ms", &self.born_ms)
            .field("placement", &self.placement)
            .field("wait_for_flush", &self.wait_for_flush)
            .field("delay", &self.when())
            .field("time_to_live", &self.time_to_live_of())
            .finish()
    }
}

/// Where a sent message stands, and its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Receipt {
    /// The message's id.
    pub id: MessageId,
    /// The queue that holds it, or will once it is due.
    pub queue: u16,
    /// Its offset in that queue; `u64::MAX` for a message with a delay, which gets one when it is due.
    pub offset: u64,
    /// Its position in the commit log, in bytes.
    pub position: u64,
    /// When it was stored, in milliseconds since 1970.
    pub store_ms: u64,
}

fn own<T: ToOwned + ?Sized>(text: Cow<'_, T>) -> Cow<'static, T> {
    Cow::Owned(text.into_owned())
}

#[cfg(test)]
mod tests;
