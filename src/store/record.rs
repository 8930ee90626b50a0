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
//! The CRC is seeded with the store's id and runs over topic, properties and body. The words of the
//! header are then mixed in, those last that depend on the record's place ([`Seal`]): all but those
//! is done outside the append lock. The padding must be zero.

use crate::properties::{EXPIRES, Properties, TIME_TO_LIVE};
use crc32fast::Hasher;
use std::ops::Range;

/// Bytes of the fixed header.
pub(crate) const HEADER: usize = 64;
/// Records start at multiples of this.
pub(crate) const ALIGN: usize = 8;
/// Bytes that the broker may add to the properties of a message which it stores once more.
pub(crate) const MAX_ADDED: usize = 1024;
/// Bytes that a record of the longest topic and properties adds to its body.
pub(crate) const MAX_OVERHEAD: usize = HEADER + 255 + 32767 + MAX_ADDED + ALIGN;

pub(super) const MAGIC: u8 = 0xB7;
pub(super) const VERSION: u8 = 1;

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
    /// Covers what a salvage has cut out: messages are missing here.
    Lost = 4,
    /// A message that waits to be due, in no queue: its topic and queue are those it will go to.
    Delayed = 5,
    /// What its origin names is done, and nothing takes its place.
    Done = 6,
}

impl Kind {
    fn of(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Message),
            2 => Some(Self::Topic),
            3 => Some(Self::Filler),
            4 => Some(Self::Lost),
            5 => Some(Self::Delayed),
            6 => Some(Self::Done),
            _ => None,
        }
    }

    /// Whether what stands behind the header means nothing.
    pub(crate) fn covers(self) -> bool {
        matches!(self, Self::Filler | Self::Lost)
    }
}

/// The next record belongs to the same batch.
pub(crate) const CONTINUES: u8 = 1;
/// The previous record belongs to the same batch.
pub(crate) const CONTINUED: u8 = 2;
/// The message has keys.
pub(crate) const KEYED: u8 = 4;
/// The message was stored before: its properties begin with the id that it had then.
pub(crate) const COPIED: u8 = 8;

/// The message is delivered for a limited time: its properties say for how long, or until when.
pub(crate) const MORTAL: u8 = 16;

/// Where and when a record stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) position: u64,
    pub(crate) offset: u64,
    pub(crate) store_ms: u64,
}

/// The header of a filler that covers `length` bytes from `position` to the end of its segment.
pub(crate) fn filler(store_id: u64, position: u64, length: usize) -> [u8; HEADER] {
    cover(store_id, Kind::Filler, position, 0, length)
}

/// The header of a record that covers `length` bytes which a salvage has cut out.
pub(crate) fn lost(store_id: u64, position: u64, store_ms: u64, length: usize) -> [u8; HEADER] {
    cover(store_id, Kind::Lost, position, store_ms, length)
}

fn cover(store_id: u64, kind: Kind, position: u64, store_ms: u64, length: usize) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    put(&mut header, 0, &(length as u32).to_le_bytes());
    header[8] = MAGIC;
    header[9] = VERSION;
    header[10] = kind as u8;
    put(&mut header, 16, &position.to_le_bytes());
    put(&mut header, 32, &store_ms.to_le_bytes());
    let crc = Seal::of_header(seeded(store_id).finalize(), &header);
    put(&mut header, 4, &crc.to_le_bytes());
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
        // What covers has no parts: so all of them can be asked for.
        let fits = length >= HEADER
            && length.is_multiple_of(ALIGN)
            && if kind.covers() { header[60..] == [0; 4] } else { record.body_range().is_some() };
        if fits { Ok(record) } else { Err("the lengths of the record contradict each other") }
    }

    /// Whether the CRC fits the content.
    pub(crate) fn verify(&self, store_id: u64) -> bool {
        let mut hashed = seeded(store_id);
        if !self.kind().covers() {
            // `parse` has looked at it; the bytes of another process may have changed since.
            let end = self.bytes.len().saturating_sub(self.padding()).max(HEADER);
            let (content, padding) = self.bytes.split_at(end);
            if padding.iter().any(|byte| *byte != 0) {
                return false;
            }
            hashed.update(&content[HEADER..]);
        }
        Seal::of_header(hashed.finalize(), self.bytes) == u32_at(self.bytes, 4)
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

    /// The position of the record that this one replaces; 0 for none.
    pub(crate) fn origin(&self) -> u64 {
        u64_at(self.bytes, 40)
    }

    /// The position of the first copy of the message.
    pub(crate) fn first_position(&self) -> u64 {
        let first = if self.has(COPIED) { Properties(self.properties()).first_id() } else { None };
        first.unwrap_or_else(|| self.position())
    }

    /// When the message is delivered no more, in milliseconds since 1970. For one that waits to be
    /// due the time has not begun.
    #[inline]
    pub(crate) fn expires_ms(&self) -> Option<u64> {
        if self.has(MORTAL) { self.end_of_life() } else { None }
    }

    #[cold]
    fn end_of_life(&self) -> Option<u64> {
        let properties = Properties(self.properties());
        let lives = || {
            let ms = properties.ms(TIME_TO_LIVE).filter(|_| self.kind() != Kind::Delayed)?;
            Some(self.store_ms().saturating_add(ms))
        };
        properties.ms(EXPIRES).or_else(lives)
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

/// How many bytes the filler covers, or the record of what is lost, that was written for `position`,
/// and its kind; `None` if this is not the sound header of one.
pub(crate) fn covered(store_id: u64, header: &[u8], position: u64) -> Option<(Kind, usize)> {
    let record = Record { bytes: header.get(..HEADER)? };
    let kind = Kind::of(header[10]).filter(|kind| kind.covers())?;
    let sound = names_position(header, position) && header[9] == VERSION && record.verify(store_id);
    sound.then(|| (kind, u32_at(header, 0) as usize))
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

pub(super) fn seeded(store_id: u64) -> Hasher {
    Hasher::new_with_initial(store_id as u32 ^ (store_id >> 32) as u32)
}

/// A checksum into which words are mixed.
///
/// Each step is a bijection in its word, so a change of one word is noticed as surely as by a CRC, in
/// a fraction of the time, part of which is spent under the append lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seal(u64);

impl Seal {
    #[inline]
    pub(super) fn new(crc: u32) -> Self {
        Self(crc.into())
    }

    #[inline]
    pub(super) fn mix<const N: usize>(self, words: [u64; N]) -> Self {
        Self(words.into_iter().fold(self.0, |mixed, word| {
            let product = (mixed ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            product ^ product >> 32
        }))
    }

    #[inline]
    pub(super) fn finish(self) -> u32 {
        // The upper half: every bit of the last word carries into it.
        (self.0 >> 32) as u32
    }

    /// The words of a whole header, with those of the place last and without the checksum itself.
    fn of_header(crc: u32, header: &[u8]) -> u32 {
        let word = |at| u64_at(header, at);
        let fixed = [u32_at(header, 0).into(), word(8), word(40), word(48)];
        Self::new(crc).mix(fixed).mix([16, 24, 32, 56].map(word)).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::draft::{Draft, Outline, Pending, Source};
    use super::*;

    const STORE: u64 = 0x1234_5678_9abc_def0;

    fn written(body: &[u8], position: u64) -> Vec<u8> {
        let outline = Outline::new(STORE, Kind::Message, 7, "orders");
        let properties = Source::Encoded(b"TAGS\x01paid\x02");
        let pending = Pending { tag_hash: -5, born_ms: Some(990), properties, body };
        let place = Place { position, offset: 11, store_ms: 1000 };
        let mut draft = Draft::blank(&outline);
        draft.fill(&outline, 3, CONTINUES, pending);
        let mut out = vec![0xee; draft.length()];
        draft.write(place, &mut out);
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
