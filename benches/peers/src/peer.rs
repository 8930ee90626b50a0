//! What a peer has to offer, and the workloads that run on it.

use std::path::PathBuf;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use crate::payload::{Check, Payload};

/// Longest wait for a message that does not come.
const PATIENCE: Duration = Duration::from_secs(20);

pub struct Job {
    pub size: usize,
    pub producers: usize,
    pub batch: usize,
    pub messages: u64,
    pub dir: PathBuf,
}

impl Job {
    fn share(&self) -> u64 {
        self.messages / self.producers as u64
    }
}

pub trait Peer: Sync {
    fn writer(&self) -> impl Writer + '_;
    fn reader(&self) -> impl Reader + '_;
}

pub trait Writer {
    fn put(&mut self, body: &[u8]);

    /// Hands over `bodies` in one call where the peer has such a call.
    fn put_batch<'a>(&mut self, bodies: impl Iterator<Item = &'a [u8]>) {
        bodies.for_each(|body| self.put(body));
    }
}

pub trait Reader {
    /// Shows every message that is there, up to some number, and says how many those were.
    fn poll(&mut self, see: impl FnMut(&[u8])) -> usize;
}

pub struct Timings {
    pub append: f64,
    pub read: f64,
}

/// Appends from all producers at once, then reads everything back from the start.
pub fn append(job: &Job, peer: &impl Peer) -> Result<Timings, String> {
    let start = Barrier::new(job.producers);
    let times: Vec<_> = thread::scope(|scope| {
        let produce = |producer| {
            let start = &start;
            scope.spawn(move || produce(job, peer, producer, start))
        };
        let producers: Vec<_> = (0..job.producers).map(produce).collect();
        producers.into_iter().flat_map(|producer| producer.join()).collect()
    });
    let began = times.iter().map(|(began, _)| *began).min().ok_or("every producer panicked")?;
    let append = times.iter().map(|(_, ended)| *ended - began).max().unwrap_or_default();

    let check = Check::new(job.size, job.producers);
    let began = Instant::now();
    drain(&mut peer.reader(), &check, job.share() * job.producers as u64)?;
    Ok(Timings { append: append.as_secs_f64(), read: began.elapsed().as_secs_f64() })
}

/// One producer and one consumer at the same time, until the last message is checked.
pub fn relay(job: &Job, peer: &impl Peer) -> Result<f64, String> {
    let start = Barrier::new(2);
    thread::scope(|scope| {
        let producer = scope.spawn(|| produce(job, peer, 0, &start));
        start.wait();
        drain(&mut peer.reader(), &Check::new(job.size, 1), job.messages)?;
        let ended = Instant::now();
        let (began, _) = producer.join().map_err(|_| "the producer panicked")?;
        Ok((ended - began).as_secs_f64())
    })
}

/// Returns when it began and when the last `put` returned.
fn produce(job: &Job, peer: &impl Peer, producer: usize, start: &Barrier) -> (Instant, Instant) {
    let mut writer = peer.writer();
    let mut payloads: Vec<_> = (0..job.batch).map(|_| Payload::new(job.size)).collect();
    start.wait();
    let began = Instant::now();
    if let [payload] = &mut payloads[..] {
        for sequence in 0..job.share() {
            writer.put(payload.stamp(producer, sequence));
        }
    } else {
        for first in (0..job.share()).step_by(job.batch) {
            let sequences = first..job.share();
            writer.put_batch(payloads.iter_mut().zip(sequences).map(|(p, s)| p.stamp(producer, s)));
        }
    }
    (began, Instant::now())
}

/// The peers have no notification: the reader spins a little, then yields.
fn drain(reader: &mut impl Reader, check: &Check, messages: u64) -> Result<(), String> {
    let (mut idle, mut last) = (0_u32, Instant::now());
    while check.seen() < messages {
        if reader.poll(|body| _ = check.see(body)) > 0 {
            idle = 0;
            continue;
        }
        idle += 1;
        match idle {
            1 => last = Instant::now(),
            2..64 => std::hint::spin_loop(),
            _ if last.elapsed() > PATIENCE => break,
            _ => thread::yield_now(),
        }
    }
    check.finish(messages)
}
