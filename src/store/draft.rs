//! A record on its way into the log: all that can be done outside the append lock.
//!
//! What the records of a topic have in common is put together and hashed once, in an [`Outline`]. A
//! [`Draft`] adds what is a message's own; under the lock it only needs its place.

use super::record::{
    ALIGN, COPIED, HEADER, KEYED, Kind, MAGIC, MORTAL, Place, Record, Seal, VERSION, put, seeded,
};
use crate::message::Message;
use crate::properties::{EXPIRES, Properties, TIME_TO_LIVE};
use crate::sync::Arc;
use crc32fast::Hasher;
use smallvec::SmallVec;

/// How much of what follows the header is put together in one piece: all of a small record, and what
/// stands before the body of most others.
const FRONT: usize = 64;
/// As much of it as can be filled: the padding of a whole record has room behind it.
const ROOM: usize = FRONT - ALIGN;

/// What the records of one topic have in common.
pub(crate) struct Outline {
    header: Header,
    /// The topic, unless it is long.
    front: [u8; FRONT],
    filled: usize,
    topic: Arc<str>,
    hashed: Hasher,
}

/// The words of a header that do not depend on the record's place.
#[derive(Clone, Copy, Debug)]
struct Header {
    /// Magic, version, kind, flags and tag hash.
    kind: u64,
    origin: u64,
    /// Incarnation, queue and how often it was delivered before.
    queue: u64,
    /// Of properties, topic and padding; the lower half is free for the age.
    lengths: u64,
}

/// A message that has been checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending<'a> {
    pub(crate) tag_hash: i32,
    /// `None`: born when stored.
    pub(crate) born_ms: Option<u64>,
    /// At most 65 535 bytes.
    pub(crate) properties: Source<'a>,
    pub(crate) body: &'a [u8],
}

/// A message that is stored once more by the broker, as a whole or with other properties.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copy<'a> {
    pub(crate) message: Pending<'a>,
    /// How often it was delivered before and failed.
    pub(crate) reconsumed: u16,
    /// The position of the record that it takes the place of; 0 for none.
    pub(crate) origin: u64,
}

impl<'a> Copy<'a> {
    /// The message of a record as it is, to take that record's place.
    pub(crate) fn of(record: &Record<'a>) -> Self {
        let message = Pending {
            tag_hash: record.tag_hash(),
            born_ms: Some(record.born_ms()),
            properties: Source::Encoded(record.properties()),
            body: record.body(),
        };
        Self { message, reconsumed: record.reconsumed(), origin: record.position() }
    }
}

/// Where a record's properties come from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source<'a> {
    /// With the length of what it encodes.
    Message(&'a Message<'a>, usize),
    Encoded(&'a [u8]),
}

/// A record that has everything but its place.
#[derive(Debug)]
pub(crate) struct Draft<'a> {
    header: Header,
    front: [u8; FRONT],
    filled: usize,
    // What the front has no room for, if anything.
    topic: &'a [u8],
    properties: SmallVec<[u8; 2 * FRONT]>,
    body: &'a [u8],
    /// Of everything but the place.
    seal: Seal,
    born_ms: Option<u64>,
    length: usize,
}

impl Outline {
    /// The caller has checked `topic`: at most 255 bytes.
    pub(crate) fn new(store_id: u64, kind: Kind, incarnation: u32, topic: &str) -> Self {
        let header = Header {
            kind: u64::from_le_bytes([MAGIC, VERSION, kind as u8, 0, 0, 0, 0, 0]),
            origin: 0,
            queue: incarnation.into(),
            lengths: at(62, topic.len() as u64),
        };
        let (mut front, mut filled) = ([0; FRONT], 0);
        if topic.len() <= ROOM {
            put(&mut front, 0, topic.as_bytes());
            filled = topic.len();
        }
        let mut hashed = seeded(store_id);
        hashed.update(topic.as_bytes());
        Self { header, front, filled, topic: topic.into(), hashed }
    }

    /// Whether the topic stands in the front.
    fn whole(&self) -> bool {
        self.filled == self.topic.len()
    }
}

impl<'a> Draft<'a> {
    /// A draft to be filled in where it stays: it is too large to be moved about.
    #[inline]
    pub(crate) fn blank(outline: &Outline) -> Self {
        Self {
            header: outline.header,
            front: outline.front,
            filled: outline.filled,
            topic: &[],
            properties: SmallVec::new(),
            body: &[],
            seal: Seal::new(0),
            born_ms: None,
            length: 0,
        }
    }

    /// Puts together all of a record that does not depend on its place.
    ///
    /// The caller has checked every length against its limit.
    #[inline]
    pub(crate) fn fill(
        &mut self,
        outline: &'a Outline,
        queue: u16,
        flags: u8,
        pending: Pending<'a>,
    ) {
        self.put_together(outline, queue.into(), flags, pending);
    }

    /// Puts together a message that was stored before, as a record of this kind; the origin names
    /// what it replaces.
    pub(crate) fn fill_copy(
        &mut self,
        outline: &'a Outline,
        kind: Kind,
        queue: u16,
        copy: &Copy<'a>,
    ) {
        self.header.kind = self.header.kind & !at(10, 0xff) | at(10, kind as u64);
        self.header.origin = copy.origin;
        let queue = u32::from(queue) | u32::from(copy.reconsumed) << 16;
        let flags = if copy.message.properties.names_first_id() { COPIED } else { 0 };
        self.put_together(outline, queue, flags, copy.message);
    }

    /// `queue` has the reconsume count in its upper half.
    #[inline]
    fn put_together(&mut self, outline: &'a Outline, queue: u32, flags: u8, pending: Pending<'a>) {
        let Pending { tag_hash, born_ms, properties: source, body } = pending;
        let flags = if source.keyed() { flags | KEYED } else { flags };
        let flags = if source.mortal() { flags | MORTAL } else { flags };
        let properties = source.len();
        let used = HEADER + outline.topic.len() + properties + body.len();
        let length = used.next_multiple_of(ALIGN);
        (self.born_ms, self.length) = (born_ms, length);
        let header = &mut self.header;
        header.kind |= at(11, flags.into()) | at(12, tag_hash.cast_unsigned().into());
        header.queue |= at(52, queue.into());
        header.lengths |= at(60, properties as u64) | at(63, (length - used) as u64);
        let fixed = [length as u64, header.kind, header.origin, header.queue];
        let hashed = self.content(outline, source, properties, body);
        self.seal = Seal::new(hashed.finalize()).mix(fixed);
    }

    /// Takes in what follows the header, and hashes it.
    #[inline]
    fn content(
        &mut self,
        outline: &'a Outline,
        source: Source<'a>,
        properties: usize,
        body: &'a [u8],
    ) -> Hasher {
        let mut hashed = outline.hashed.clone();
        let start = outline.filled;
        let end = start + properties;
        if end > ROOM || !outline.whole() {
            if !outline.whole() {
                self.topic = outline.topic.as_bytes();
            }
            self.properties.resize(properties, 0);
            source.write(&mut self.properties);
            self.body = body;
            hashed.update(&self.properties);
            hashed.update(body);
            return hashed;
        }
        source.write(&mut self.front[start..end]);
        self.filled = end;
        if end + body.len() <= ROOM {
            put(&mut self.front, end, body);
            hashed.update(&self.front[start..end + body.len()]);
            // The padding has room, too.
            self.filled = self.length - HEADER;
        } else {
            self.body = body;
            hashed.update(&self.front[start..end]);
            hashed.update(body);
        }
        hashed
    }

    /// Bytes that the record takes in the log.
    #[inline]
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    #[inline]
    pub(crate) fn tag_hash(&self) -> i32 {
        ((self.header.kind >> 32) as u32).cast_signed()
    }

    #[inline]
    pub(crate) fn has(&self, flag: u8) -> bool {
        self.header.kind & at(11, flag.into()) != 0
    }

    /// Gives the record its place and writes it to `out`, which is as long as it.
    #[inline]
    pub(crate) fn write(&self, place: Place, out: &mut [u8]) {
        let age = match self.born_ms {
            None => 0,
            Some(born_ms) => {
                let age = i128::from(place.store_ms) - i128::from(born_ms);
                age.clamp(i32::MIN.into(), i32::MAX.into()) as i32
            }
        };
        let Place { position, offset, store_ms } = place;
        let Header { kind, origin, queue, lengths } = self.header;
        let lengths = lengths | u64::from(age.cast_unsigned());
        let seal = self.seal.mix([position, offset, store_ms, lengths]).finish();
        let first = self.length as u64 | at(4, seal.into());
        let (header, mut rest) = out.split_at_mut(HEADER);
        // Word by word: they are not in memory yet, where a copy would have to wait for them.
        let words = [first, kind, position, offset, store_ms, origin, queue, lengths];
        for (out, word) in header.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *out = word.to_le_bytes();
        }
        if self.filled < rest.len() {
            // The padding, and what is written over at once.
            rest.last_chunk_mut::<ALIGN>().into_iter().for_each(|last| *last = [0; ALIGN]);
        }
        for part in [&self.front[..self.filled], self.topic, &self.properties, self.body] {
            if !part.is_empty() {
                let (out, behind) = rest.split_at_mut(part.len());
                out.copy_from_slice(part);
                rest = behind;
            }
        }
    }
}

/// Bits that stand at a byte of the header, in their word.
const fn at(byte: usize, bits: u64) -> u64 {
    bits << (byte % 8 * 8)
}

impl Source<'_> {
    #[inline]
    pub(super) fn len(self) -> usize {
        match self {
            Self::Message(_, length) => length,
            Self::Encoded(bytes) => bytes.len(),
        }
    }

    /// Whether there are keys.
    #[inline]
    fn keyed(self) -> bool {
        match self {
            Self::Message(message, _) => message.keyed(),
            Self::Encoded(bytes) => Properties(bytes).keys().next().is_some(),
        }
    }

    /// Whether the message is delivered for a limited time.
    #[inline]
    fn mortal(self) -> bool {
        match self {
            Self::Message(message, _) => message.time_to_live_of().is_some(),
            Self::Encoded(bytes) => {
                let properties = Properties(bytes);
                [TIME_TO_LIVE, EXPIRES].iter().any(|name| properties.get(name).is_some())
            }
        }
    }

    /// Whether they begin with the id of an earlier copy.
    fn names_first_id(self) -> bool {
        match self {
            Self::Message(..) => false,
            Self::Encoded(bytes) => Properties(bytes).first_id().is_some(),
        }
    }

    /// Fills `out`, which is as long as this.
    #[inline]
    pub(super) fn write(self, out: &mut [u8]) {
        match self {
            Self::Message(message, _) => message.encode_properties(out),
            Self::Encoded(bytes) => out.copy_from_slice(bytes),
        }
    }
}

impl std::fmt::Debug for Outline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outline").field("topic", &self.topic).finish_non_exhaustive()
    }
}
