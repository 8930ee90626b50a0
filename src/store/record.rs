//! The record: one message, event or filler in the commit log (docs/design.md).
//!
//! ```text
//!  0 length u32      4 crc u32         8 magic u8  9 version u8  10 kind u8  11 flags u8
//! 12 tag hash i32   16 position u64   24 queue offset u64       32 store time ms u64
//! 40 origin u64     48 incarnation u32 52 queue u16 54 reconsume u16
//! 56 store - born ms i32  60 properties length u16  62 topic length u8  63 padding u8
//! 64 topic, properties, body, padding to a multiple of 8
//! ```
//!
//! The CRC is seeded with the store's id and runs over everything but itself, with zeroes for the
//! words that depend on the record's place, and without the padding, which must be zero. Those
//! words are then mixed in: all but that is done outside the append lock.

use crc32fast::Hasher;
use std::ops::Range;

/// Bytes of the fixed header.
pub(crate) const HEADER: usize = 64;
/// Records start at multiples of this.
pub(crate) const ALIGN: usize = 8;
/// Bytes that a record of the longest topic and properties adds to its body.
pub(crate) const MAX_OVERHEAD: usize = HEADER + 255 + 32767 + ALIGN;

const MAGIC: u8 = 0xB7;
const VERSION: u8 = 1;

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A message in a consume queue.
    Message = 1,
    /// Creation or change of a topic.
    Topic = 2,
    /// Fills the rest of a segment.
    Filler = 3,
}

impl Kind {
    fn of(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Message),
            2 => Some(Self::Topic),
            3 => Some(Self::Filler),
            _ => None,
        }
    }
}

/// The next record belongs to the same batch.
pub(crate) const CONTINUES: u8 = 1;
/// The previous record belongs to the same batch.
pub(crate) const CONTINUED: u8 = 2;

/// How much of a record is put together outside the append lock: all of a small one, and what
/// stands before the body of most others.
const FRONT: usize = 128;

/// A record that has everything but its place; encoded outside the append lock.
#[derive(Debug)]
pub(crate) struct Draft<'a> {
    front: [u8; FRONT],
    filled: usize,
    // What the front has no room for.
    parts: [&'a [u8]; 3],
    /// Of everything but the place.
    crc: u32,
    born_ms: Option<u64>,
    length: usize,
}

/// What a record is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Content<'a> {
    pub(crate) kind: Kind,
    pub(crate) flags: u8,
    pub(crate) tag_hash: i32,
    pub(crate) incarnation: u32,
    pub(crate) queue: u16,
    /// `None`: born when stored.
    pub(crate) born_ms: Option<u64>,
    /// At most 255 bytes.
    pub(crate) topic: &'a [u8],
    /// At most 65 535 bytes.
    pub(crate) properties: &'a [u8],
    pub(crate) body: &'a [u8],
}

impl<'a> Draft<'a> {
    /// Encodes all of `content` that does not depend on its place.
    ///
    /// The caller has checked every length against its limit.
    #[inline]
    pub(crate) fn new(store_id: u64, content: &Content<'a>) -> Self {
        let used = HEADER + content.topic.len() + content.properties.len() + content.body.len();
        let length = used.next_multiple_of(ALIGN);
        let mut front = [0; FRONT];
        // Whole words are put together quickest; the words of the place are still zero.
        let low = |at: usize, bits: u64| bits << (at % 8 * 8);
        let tag_hash = content.tag_hash.cast_unsigned();
        let words = [
            (0, length as u64),
            (
                8,
                low(8, MAGIC.into())
                    | low(9, VERSION.into())
                    | low(10, content.kind as u64)
                    | low(11, content.flags.into())
                    | low(12, tag_hash.into()),
            ),
            (48, low(48, content.incarnation.into()) | low(52, content.queue.into())),
            (
                56,
                low(60, content.properties.len() as u64)
                    | low(62, content.topic.len() as u64)
                    | low(63, (length - used) as u64),
            ),
        ];
        words.iter().for_each(|(at, word)| put(&mut front, *at, &word.to_le_bytes()));
        let mut parts = [content.topic, content.properties, content.body];
        let mut filled = HEADER;
        for part in &mut parts {
            if part.len() > FRONT - ALIGN - filled {
                break;
            }
            if !part.is_empty() {
                put(&mut front, filled, part);
                filled += part.len();
                *part = &[];
            }
        }
        let mut hashed = seeded(store_id);
        hashed.update(&front[..filled]);
        parts.iter().filter(|part| !part.is_empty()).for_each(|part| hashed.update(part));
        if filled == used {
            // The padding has room, too.
            filled = length;
        }
        Self { front, filled, parts, crc: hashed.finalize(), born_ms: content.born_ms, length }
    }

    /// Bytes that the record takes in the log.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    pub(crate) fn tag_hash(&self) -> i32 {
        u32_at(&self.front, 12).cast_signed()
    }

    /// Gives the record its place and writes it out piece by piece.
    #[inline]
    pub(crate) fn write(&mut self, place: Place, mut write: impl FnMut(&[u8])) {
        let age = match self.born_ms {
            None => 0,
            Some(born_ms) => {
                let age = i128::from(place.store_ms) - i128::from(born_ms);
                age.clamp(i32::MIN.into(), i32::MAX.into()) as i32
            }
        };
        let front = &mut self.front;
        put(front, 4, &sealed(self.crc, place, age).to_le_bytes());
        put(front, 16, &place.position.to_le_bytes());
        put(front, 24, &place.offset.to_le_bytes());
        put(front, 32, &place.store_ms.to_le_bytes());
        put(front, 56, &age.to_le_bytes());
        write(&front[..self.filled]);
        if self.filled < self.length {
            self.parts.iter().filter(|part| !part.is_empty()).for_each(|part| write(part));
            write(&PADDING[..usize::from(front[63])]);
        }
    }
}

/// Where and when a record stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) position: u64,
    pub(crate) offset: u64,
    pub(crate) store_ms: u64,
}

/// The header of a filler that covers `length` bytes from `position` to the end of its segment.
pub(crate) fn filler(store_id: u64, position: u64, length: usize) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    put(&mut header, 0, &(length as u32).to_le_bytes());
    header[8] = MAGIC;
    header[9] = VERSION;
    header[10] = Kind::Filler as u8;
    put(&mut header, 16, &position.to_le_bytes());
    let mut hashed = seeded(store_id);
    hashed.update(&without_place(&header));
    let place = Place { position, offset: 0, store_ms: 0 };
    put(&mut header, 4, &sealed(hashed.finalize(), place, 0).to_le_bytes());
    header
}

/// A record in place; its lengths have been checked against its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a> {
    bytes: &'a [u8],
}

impl<'a> Record<'a> {
    /// The record that starts at the front of `bytes` if a record that names `position` does, and
    /// if it ends within `bytes`. Its CRC is not looked at.
    #[inline]
    pub(crate) fn parse(bytes: &'a [u8], position: u64) -> Result<Self, &'static str> {
        let header = bytes.get(..HEADER).ok_or("the file ends inside a record header")?;
        if header[8] != MAGIC {
            return Err("no record starts here");
        }
        if header[9] != VERSION {
            return Err("the record has an unknown version");
        }
        if u64_at(header, 16) != position {
            return Err("the record names another position");
        }
        let kind = Kind::of(header[10]).ok_or("the record has an unknown kind")?;
        let length = u32_at(header, 0) as usize;
        let bytes = bytes.get(..length).ok_or("the record is longer than its segment")?;
        let record = Record { bytes };
        let fits = length >= HEADER
            && length.is_multiple_of(ALIGN)
            && (kind == Kind::Filler || record.body_range().is_some());
        if fits { Ok(record) } else { Err("the lengths of the record contradict each other") }
    }

    /// Whether the CRC fits the content.
    pub(crate) fn verify(&self, store_id: u64) -> bool {
        let mut hashed = seeded(store_id);
        hashed.update(&without_place(self.bytes));
        if self.kind() != Kind::Filler {
            let (content, padding) = self.bytes.split_at(self.bytes.len() - self.padding());
            if padding.iter().any(|byte| *byte != 0) {
                return false;
            }
            hashed.update(&content[HEADER..]);
        }
        let (position, offset, store_ms) = (self.position(), self.offset(), self.store_ms());
        let place = Place { position, offset, store_ms };
        sealed(hashed.finalize(), place, self.age()) == u32_at(self.bytes, 4)
    }

    pub(crate) fn length(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn kind(&self) -> Kind {
        // `parse` has refused every other byte.
        Kind::of(self.bytes[10]).unwrap_or(Kind::Filler)
    }

    pub(crate) fn has(&self, flag: u8) -> bool {
        self.bytes[11] & flag != 0
    }

    pub(crate) fn tag_hash(&self) -> i32 {
        u32_at(self.bytes, 12).cast_signed()
    }

    pub(crate) fn position(&self) -> u64 {
        u64_at(self.bytes, 16)
    }

    pub(crate) fn offset(&self) -> u64 {
        u64_at(self.bytes, 24)
    }

    pub(crate) fn store_ms(&self) -> u64 {
        u64_at(self.bytes, 32)
    }

    pub(crate) fn born_ms(&self) -> u64 {
        self.store_ms().saturating_add_signed(-i64::from(self.age()))
    }

    fn age(&self) -> i32 {
        u32_at(self.bytes, 56).cast_signed()
    }

    pub(crate) fn incarnation(&self) -> u32 {
        u32_at(self.bytes, 48)
    }

    pub(crate) fn queue(&self) -> u16 {
        u16_at(self.bytes, 52)
    }

    pub(crate) fn reconsumed(&self) -> u16 {
        u16_at(self.bytes, 54)
    }

    pub(crate) fn topic(&self) -> &'a [u8] {
        &self.bytes[HEADER..self.properties_start()]
    }

    pub(crate) fn properties(&self) -> &'a [u8] {
        let start = self.properties_start();
        &self.bytes[start..start + usize::from(u16_at(self.bytes, 60))]
    }

    #[inline]
    pub(crate) fn body(&self) -> &'a [u8] {
        // `parse` has computed the same range.
        self.body_range().map_or(&[], |range| &self.bytes[range])
    }

    fn properties_start(&self) -> usize {
        HEADER + usize::from(self.bytes[62])
    }

    fn padding(&self) -> usize {
        usize::from(self.bytes[63])
    }

    #[inline]
    fn body_range(&self) -> Option<Range<usize>> {
        let start = self.properties_start() + usize::from(u16_at(self.bytes, 60));
        let end = self.bytes.len().checked_sub(self.padding())?;
        (start <= end && self.padding() < ALIGN).then_some(start..end)
    }
}

/// Whether bytes that start with a header could be the start of a record written for `position`.
pub(crate) fn names_position(header: &[u8], position: u64) -> bool {
    header.len() >= 24 && header[8] == MAGIC && u64_at(header, 16) == position
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

#[inline]
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

#[inline]
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// The CRC-32 of `bytes`, seeded with the store's id: what every metadata file carries.
pub(crate) fn checksum(store_id: u64, bytes: &[u8]) -> u32 {
    let mut hashed = seeded(store_id);
    hashed.update(bytes);
    hashed.finalize()
}

#[inline]
pub(crate) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

fn seeded(store_id: u64) -> Hasher {
    Hasher::new_with_initial(store_id as u32 ^ (store_id >> 32) as u32)
}

// The header with zeroes for the CRC and for what depends on the place.
fn without_place(record: &[u8]) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    put(&mut header, 0, &record[..HEADER]);
    header[4..8].fill(0);
    header[16..40].fill(0);
    header[56..60].fill(0);
    header
}

/// Mixes the place into the CRC of the rest. Each step is a bijection in its word, so a change of
/// one word is noticed as surely as by a CRC, in a fraction of the time, which is spent under the
/// append lock.
#[inline]
fn sealed(crc: u32, place: Place, age: i32) -> u32 {
    let words = [place.position, place.offset, place.store_ms, u64::from(age.cast_unsigned())];
    let mixed = words.into_iter().fold(u64::from(crc), |mixed, word| {
        let product = (mixed ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        product ^ product >> 32
    });
    mixed as u32 ^ (mixed >> 32) as u32
}

const PADDING: [u8; ALIGN] = [0; ALIGN];

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const STORE: u64 = 0x1234_5678_9abc_def0;

    fn written(body: &[u8], position: u64) -> Vec<u8> {
        let content = Content {
            kind: Kind::Message,
            flags: CONTINUES,
            tag_hash: -5,
            incarnation: 7,
            queue: 3,
            born_ms: Some(990),
            topic: b"orders",
            properties: b"TAGS\x01paid\x02",
            body,
        };
        let mut out = Vec::new();
        let place = Place { position, offset: 11, store_ms: 1000 };
        Draft::new(STORE, &content).write(place, |part| out.extend_from_slice(part));
        out
    }

    #[test]
    fn a_record_reads_back_as_it_was_written() {
        for len in 0..200 {
            let body: Vec<u8> = (0..len).collect();
            let bytes = written(&body, 4096);
            let record = Record::parse(&bytes, 4096).unwrap();
            assert!(record.verify(STORE));
            assert_eq!(record.body(), body);
            assert_eq!(record.topic(), b"orders");
            assert_eq!(record.properties(), b"TAGS\x01paid\x02");
            assert_eq!(record.kind(), Kind::Message);
            assert!(record.has(CONTINUES) && !record.has(CONTINUED));
            assert_eq!((record.offset(), record.queue(), record.incarnation()), (11, 3, 7));
            assert_eq!((record.store_ms(), record.born_ms(), record.tag_hash()), (1000, 990, -5));
            assert_eq!(record.length() % ALIGN, 0);
        }
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let bytes = written(b"body", 64);
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let sound = Record::parse(&damaged, 64).is_ok_and(|record| record.verify(STORE));
            assert!(!sound, "bit {bit}");
        }
    }

    #[test]
    fn a_record_of_another_store_or_place_is_not_accepted() {
        let bytes = written(b"body", 64);
        assert!(!Record::parse(&bytes, 64).unwrap().verify(STORE + 1));
        assert!(Record::parse(&bytes, 72).is_err());
        for cut in 0..bytes.len() {
            assert!(Record::parse(&bytes[..cut], 64).is_err());
        }
    }

    #[test]
    fn a_filler_covers_its_range() {
        let mut bytes = filler(STORE, 128, 256).to_vec();
        bytes.resize(256, 9);
        let record = Record::parse(&bytes, 128).unwrap();
        assert!(record.verify(STORE));
        assert_eq!((record.kind(), record.length()), (Kind::Filler, 256));
    }
}
