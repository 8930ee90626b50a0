//! The bodies that every contender sends, and the check that every contender has to pass.
//!
//! `benches/peers` includes this file as well, so that rocklet and the peers do the same work.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const STAMP: usize = 8;
const PRODUCER_SHIFT: u32 = 48;

/// A body: eight bytes that name producer and sequence, then a fixed pattern.
pub(crate) struct Payload(Vec<u8>);

impl Payload {
    pub(crate) fn new(size: usize) -> Self {
        Self(pattern(size))
    }

    #[inline]
    pub(crate) fn stamp(&mut self, producer: usize, sequence: u64) -> &[u8] {
        let stamp = (producer as u64) << PRODUCER_SHIFT | sequence;
        self.0[..STAMP].copy_from_slice(&stamp.to_le_bytes());
        &self.0
    }
}

/// Looks at the length, the sequence and every byte of each body received.
///
/// It counts with plain loads and stores, so one thread at a time may call [`Check::see`];
/// two at once are reported as a fault, never as a pass.
pub(crate) struct Check {
    pattern: Vec<u8>,
    next: Vec<AtomicU64>,
    fault: OnceLock<String>,
}

impl Check {
    pub(crate) fn new(size: usize, producers: usize) -> Self {
        let next = (0..producers).map(|_| AtomicU64::new(0)).collect();
        Self { pattern: pattern(size), next, fault: OnceLock::new() }
    }

    /// Checks one body; returns its sequence.
    #[inline]
    pub(crate) fn see(&self, body: &[u8]) -> u64 {
        let (stamp, rest) = body.split_first_chunk().unwrap_or((&[0xff; STAMP], &[]));
        let stamp = u64::from_le_bytes(*stamp);
        let Some(next) = self.next.get((stamp >> PRODUCER_SHIFT) as usize) else {
            return self.report(body);
        };
        let expected = next.load(Relaxed);
        next.store(expected + 1, Relaxed);
        if stamp << (u64::BITS - PRODUCER_SHIFT) >> (u64::BITS - PRODUCER_SHIFT) != expected
            || rest != &self.pattern[STAMP..]
        {
            return self.report(body);
        }
        expected
    }

    /// Number of bodies seen so far.
    pub(crate) fn seen(&self) -> u64 {
        self.next.iter().map(|next| next.load(Relaxed)).sum()
    }

    /// Whether exactly `messages` bodies came, each as it was sent.
    pub(crate) fn finish(&self, messages: u64) -> Result<(), String> {
        match self.fault.get() {
            Some(fault) => Err(fault.clone()),
            None if self.seen() != messages => {
                Err(format!("verification: {} messages of {messages} came", self.seen()))
            }
            None => Ok(()),
        }
    }

    #[cold]
    fn report(&self, body: &[u8]) -> u64 {
        let (length, head, seen) = (body.len(), &body[..body.len().min(STAMP)], self.seen());
        let text = || format!("verification: body of {length} bytes, {head:02x?}, after {seen}");
        self.fault.get_or_init(text);
        seen
    }
}

fn pattern(size: usize) -> Vec<u8> {
    assert!(size >= STAMP, "a body holds at least its stamp");
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..size).map(|_| next()).collect()
}
