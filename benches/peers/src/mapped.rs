//! The reference: a bare log in a mapped file, `length u32, crc u32, body`, 8-byte aligned.
//!
//! Producers claim their bytes with one addition and copy side by side; the length is stored
//! last and says that the record is there. No topics, no index, no recovery: what hardware
//! and kernel allow, not a queue.

use std::error::Error;
use std::fs::File;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use memmap2::{Advice, MmapRaw};
use rustix::fs::FallocateFlags;

use crate::peer::{Job, Peer, Reader, Writer};

const HEADER: usize = 8;
const STEP: usize = 1 << 20;
const AHEAD: usize = 64 << 20;

/// When the pages of the mapping come to be.
#[derive(Clone, Copy, PartialEq)]
pub enum Pages {
    /// All of them before the timed part.
    Populated,
    /// 64 MiB at first; a thread then stays that far ahead of the producers.
    Ahead,
}

pub struct Mapped<const CRC: bool> {
    map: Arc<MmapRaw>,
    claimed: Arc<AtomicUsize>,
}

impl<const CRC: bool> Mapped<CRC> {
    pub fn open(job: &Job, pages: Pages) -> Result<Self, Box<dyn Error>> {
        let length = (job.messages as usize * record(job.size) + HEADER).next_multiple_of(STEP);
        let file =
            File::options().read(true).write(true).create_new(true).open(job.dir.join("mapped"))?;
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, length as u64)?;
        let mapped = Self { map: Arc::new(MmapRaw::map_raw(&file)?), claimed: Arc::default() };
        let first = if pages == Pages::Populated { length } else { AHEAD.min(length) };
        mapped.map.advise_range(Advice::PopulateWrite, 0, first)?;
        if first < length {
            let (map, claimed) = (Arc::clone(&mapped.map), Arc::clone(&mapped.claimed));
            thread::spawn(move || populate(&map, &claimed, first));
        }
        Ok(mapped)
    }
}

impl<const CRC: bool> Peer for Mapped<CRC> {
    fn writer(&self) -> impl Writer + '_ {
        MappedWriter(self)
    }

    fn reader(&self) -> impl Reader + '_ {
        MappedReader { log: self, position: 0 }
    }
}

struct MappedWriter<'a, const CRC: bool>(&'a Mapped<CRC>);

impl<const CRC: bool> Writer for MappedWriter<'_, CRC> {
    #[inline]
    fn put(&mut self, body: &[u8]) {
        let crc = if CRC { crc32fast::hash(body) } else { 0 };
        let length = record(body.len());
        let position = self.0.claimed.fetch_add(length, Ordering::Relaxed);
        assert!(position + length <= self.0.map.len(), "the file holds every message");
        // SAFETY: the assertion keeps the record inside the mapping; the claim makes its
        // bytes this thread's own until the length is stored; records are 8-byte aligned.
        unsafe {
            let start = self.0.map.as_mut_ptr().add(position);
            start.add(4).cast::<u32>().write(crc);
            start.add(HEADER).copy_from_nonoverlapping(body.as_ptr(), body.len());
            AtomicU32::from_ptr(start.cast()).store(body.len() as u32, Ordering::Release);
        }
    }
}

struct MappedReader<'a, const CRC: bool> {
    log: &'a Mapped<CRC>,
    position: usize,
}

impl<const CRC: bool> Reader for MappedReader<'_, CRC> {
    fn poll(&mut self, mut see: impl FnMut(&[u8])) -> usize {
        let map = &self.log.map;
        let mut count = 0;
        while count < 1024 && self.position + HEADER <= map.len() {
            // SAFETY: a header lies inside the mapping, see the loop; a length that is not
            // zero was stored after the bytes that it covers, which never change again.
            let body = unsafe {
                let start = map.as_mut_ptr().add(self.position);
                let length = AtomicU32::from_ptr(start.cast()).load(Ordering::Acquire) as usize;
                if length == 0 {
                    break;
                }
                let body = slice::from_raw_parts(start.add(HEADER), length);
                assert!(!CRC || crc32fast::hash(body) == start.add(4).cast::<u32>().read(), "CRC");
                body
            };
            see(body);
            self.position += record(body.len());
            count += 1;
        }
        count
    }
}

fn record(body: usize) -> usize {
    (HEADER + body).next_multiple_of(8)
}

fn populate(map: &MmapRaw, claimed: &AtomicUsize, mut done: usize) {
    while done < map.len() {
        if done < claimed.load(Ordering::Relaxed) + AHEAD {
            let step = STEP.min(map.len() - done);
            map.advise_range(Advice::PopulateWrite, done, step)
                .expect("the pages can be populated");
            done += step;
        } else {
            thread::sleep(Duration::from_micros(100));
        }
    }
}
