//! Messages whose whole content follows from their identity, so that whoever reads one can check
//! it without having seen it sent.

use super::Random;
use rocklet::{Delivery, Message};
use std::fmt;

/// What tells a message from all others of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Identity {
    pub(crate) round: u32,
    pub(crate) thread: u16,
    pub(crate) sequence: u32,
    /// Its place in its batch.
    pub(crate) nth: u16,
    /// How many messages the batch has.
    pub(crate) of: u16,
}

const FRONT: usize = 14;

impl Identity {
    /// The messages of a batch.
    pub(crate) fn batch(round: u32, thread: u16, sequence: u32, of: u16) -> Vec<Self> {
        (0..of).map(|nth| Self { round, thread, sequence, nth, of }).collect()
    }

    /// The message to send.
    pub(crate) fn message(&self, topic: &str) -> Message<'static> {
        let mut message = Message::new(topic.to_owned(), self.body());
        if let Some(tag) = self.tag() {
            message = message.tag(tag);
        }
        message.key(self.to_string()).property("thread", self.thread.to_string())
    }

    /// The identity of a received message, if it is the message that was sent under it.
    pub(crate) fn check(delivery: &Delivery<'_>) -> Result<Self, String> {
        let body = delivery.body();
        let Some(front) = body.first_chunk::<FRONT>() else {
            return Err(format!("{delivery:?}: a body of {} bytes", body.len()));
        };
        let identity = Self::decode(front);
        let differs = |what| Err(format!("{delivery:?}: another {what} than {identity} has"));
        if body != identity.body() {
            return differs("body");
        }
        if delivery.tag().map(str::to_owned) != identity.tag() {
            return differs("tag");
        }
        if delivery.keys().ne([identity.to_string().as_str()]) {
            return differs("key");
        }
        if delivery.property("thread") != Some(identity.thread.to_string().as_str()) {
            return differs("property");
        }
        Ok(identity)
    }

    fn body(&self) -> Vec<u8> {
        let mut random = self.random();
        let length = match random.below(20) {
            // Long ones, so that few fit a segment; none in a batch, which must fit one.
            0 if self.of == 1 => random.below(20_000),
            1..5 => random.below(1500),
            _ => random.below(200),
        };
        let mut body = Vec::with_capacity(FRONT + length as usize + 8);
        body.extend_from_slice(&self.round.to_le_bytes());
        body.extend_from_slice(&self.thread.to_le_bytes());
        body.extend_from_slice(&self.sequence.to_le_bytes());
        body.extend_from_slice(&self.nth.to_le_bytes());
        body.extend_from_slice(&self.of.to_le_bytes());
        while body.len() < FRONT + length as usize {
            body.extend_from_slice(&random.next().to_le_bytes());
        }
        body.truncate(FRONT + length as usize);
        body
    }

    fn decode(front: &[u8; FRONT]) -> Self {
        let short = |at: usize| u16::from_le_bytes([front[at], front[at + 1]]);
        let long = |at: usize| u32::from(short(at)) | u32::from(short(at + 2)) << 16;
        Self { round: long(0), thread: short(4), sequence: long(6), nth: short(10), of: short(12) }
    }

    fn tag(&self) -> Option<String> {
        Some(self.sequence % 4).filter(|kind| *kind > 0).map(|kind| format!("tag-{kind}"))
    }

    fn random(&self) -> Random {
        let first = u64::from(self.round) << 32 | u64::from(self.sequence);
        let second = u64::from(self.thread) << 32 | u64::from(self.nth) << 16;
        Random(Random(first).next() ^ second ^ u64::from(self.of))
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { round, thread, sequence, nth, of } = self;
        write!(f, "{round}:{thread}:{sequence}:{nth}:{of}")
    }
}

impl std::str::FromStr for Identity {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Vec<u32> = text.split(':').filter_map(|part| part.parse().ok()).collect();
        let [round, thread, sequence, nth, of] = numbers[..] else {
            return Err(format!("not an identity: {text}"));
        };
        let (thread, nth, of) = (thread as u16, nth as u16, of as u16);
        Ok(Self { round, thread, sequence, nth, of })
    }
}
