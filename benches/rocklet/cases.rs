//! What is measured, against whom, and how many messages that takes.

use std::fmt;
use std::time::Duration;

use Contender::{Alone, Channel, Memory, Park, Peer, Rocklet, Sleep, Sync, Wait};
use Work::{Append, Delay, Durable, Listen, Read, Relay, Send, SendHeard};

/// Bytes that the log of one run takes up, at most.
const VOLUME: u64 = 512 << 20;
/// Header, topic and tag of a record and its index entry, about.
const OVERHEAD: u64 = 96;
/// Messages come in whole batches for every number of producers.
const GRAIN: u64 = 2048;
/// Syncs that a durable case takes if every waiting sender shares in each.
const SYNCS: u64 = 2048;
/// Messages a second where the pace is given.
pub(crate) const PACE: u64 = 20_000;
/// Delayed messages that are due in a second.
pub(crate) const DUE: u64 = 1000;
/// Consumers of one thread each where listeners are slow, and how long each call takes them.
pub(crate) const LISTENERS: u16 = 4;
pub(crate) const SLOW: Duration = Duration::from_millis(5);
/// Until the send has returned, then until the consumer has it, in microseconds.
const TIMES: &[&str] = &["p50", "p99", "p99.9", "p50 seen", "p99 seen", "p99.9 seen"];

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Work {
    /// Producers send as fast as they can.
    Append,
    /// The same, each message flushed before the next one of its place in flight is sent.
    Durable,
    /// One consumer pulls a full queue from its start to its end.
    Read,
    /// One producer, one group, until the offset after the last message is committed.
    Relay,
    /// [`LISTENERS`] consumers of one group whose listeners take [`SLOW`] each.
    Listen,
    /// One producer sends at [`PACE`]: how long after its due time does each send return?
    Send,
    /// The same with a consumer that falls asleep in between: and how long until it has it?
    SendHeard,
    /// Messages are sent before the first is due, then [`DUE`] of them a second: how long after its
    /// due time does a consumer have each?
    Delay,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Contender {
    Rocklet,
    /// rocklet with one producer.
    Alone,
    /// A child process of `benches/peers`.
    Peer(&'static str),
    /// crossbeam-channel, bounded, moving `Box<[u8]>`.
    Channel,
    /// A clock read and a copy in memory.
    Memory,
    /// A thread that waits in `park`.
    Park,
    /// A thread that waits until each message is due.
    Wait,
    /// As many threads that sleep as there are slow listeners.
    Sleep,
    /// A write and a sync for each message, into blocks that are there.
    Sync,
}

#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) work: Work,
    pub(crate) size: usize,
    pub(crate) producers: usize,
    pub(crate) batch: usize,
    /// Sends of each producer that wait for a flush at the same time.
    pub(crate) in_flight: usize,
    /// Queues that the producers spread over.
    pub(crate) queues: u16,
    pub(crate) against: Vec<Contender>,
}

pub(crate) fn all() -> Vec<Case> {
    let (khata, commitlog) = (Peer("khata-rs"), Peer("commitlog"));
    let (copy, crc) = (Peer("mapped-copy"), Peer("mapped-copy-crc"));
    let mut cases = Vec::new();
    for size in [16, 256, 1024, 16 << 10] {
        cases.push(Case::new(
            Append,
            size,
            &[khata, commitlog, Peer("mapped-ahead-crc"), crc, copy],
        ));
        for producers in [2, 8] {
            cases.push(Case { producers, ..Case::new(Append, size, &[Alone, commitlog, crc]) });
        }
    }
    let several = Case::new(Append, 256, &[Alone, commitlog, crc]);
    cases.push(Case { producers: 8, queues: 8, ..several });
    // One producer that goes from queue to queue.
    cases.push(Case { queues: 1000, ..Case::new(Append, 256, &[Alone]) });
    cases.push(Case { batch: 256, ..Case::new(Append, 256, &[commitlog, crc]) });
    for (producers, in_flight) in [(1, 1), (8, 1), (64, 1), (1, 64)] {
        cases.push(Case { producers, in_flight, ..Case::new(Durable, 256, &[Sync]) });
    }
    cases.push(Case::new(Read, 1024, &[khata, commitlog, crc, copy]));
    cases.extend([256, 1024].map(|size| Case::new(Relay, size, &[khata, commitlog, Channel])));
    cases.push(Case { queues: LISTENERS, ..Case::new(Listen, 256, &[Sleep]) });
    cases.push(Case::new(Send, 256, &[Memory]));
    cases.push(Case::new(SendHeard, 256, &[Channel, Park]));
    cases.push(Case::new(Delay, 256, &[Wait]));
    cases
}

impl Case {
    fn new(work: Work, size: usize, against: &[Contender]) -> Self {
        let against = against.to_vec();
        Self { work, size, producers: 1, batch: 1, in_flight: 1, queues: 1, against }
    }

    pub(crate) fn alone(&self) -> Self {
        Self { producers: 1, queues: 1, ..self.clone() }
    }

    /// Whether a producer goes through many queues, instead of staying with one.
    pub(crate) fn is_wide(&self) -> bool {
        usize::from(self.queues) > self.producers
    }

    pub(crate) fn messages(&self, divisor: u64) -> u64 {
        match self.work {
            Append | Read | Relay => {
                let most = (VOLUME / (self.size as u64 + OVERHEAD)).min(2 << 20) / divisor;
                most.next_multiple_of(GRAIN)
            }
            Durable => (SYNCS * self.waiting()).min(32 << 10) / divisor,
            // A second or two, and not much less: the last listener ends alone.
            Listen => (1600 / divisor).max(400),
            Send | SendHeard => 3 * PACE / divisor,
            Delay => (4 * DUE / divisor).max(500),
        }
    }

    /// Sends that wait for a flush at the same time.
    pub(crate) fn waiting(&self) -> u64 {
        (self.producers * self.in_flight) as u64
    }

    pub(crate) fn bytes(&self, messages: u64) -> u64 {
        messages * (self.size as u64 + OVERHEAD)
    }

    /// The units of what a run measures; of rates more is better, of times less.
    pub(crate) fn units(&self) -> &'static [&'static str] {
        match self.work {
            Append | Durable | Read | Relay | Listen => &["msg/s"],
            Send | Delay => &TIMES[..3],
            SendHeard => TIMES,
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = self.size;
        match self.work {
            Append => write!(f, "append {size} B, {}P", self.producers)?,
            Durable if self.in_flight > 1 => {
                write!(f, "durable {size} B, {}P, {} in flight", self.producers, self.in_flight)?;
            }
            Durable => write!(f, "durable {size} B, {}P", self.producers)?,
            Read => write!(f, "pull read {size} B")?,
            Relay => write!(f, "end to end {size} B, 1P+1C")?,
            Listen => write!(f, "listeners of 5 ms {size} B, 1P+{LISTENERS}C")?,
            Send => write!(f, "send latency {size} B, {PACE}/s")?,
            SendHeard => write!(f, "send latency {size} B, {PACE}/s, 1C")?,
            Delay => write!(f, "lateness of delayed messages {size} B, {DUE}/s, 1C")?,
        }
        match (self.queues, self.batch) {
            (1, 1) => Ok(()),
            (1, batch) => write!(f, ", batches of {batch}"),
            (queues, _) => write!(f, ", {queues} queues"),
        }
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Rocklet => "rocklet",
            Alone => "rocklet, one producer, one queue",
            Peer("mapped-copy") => "limit: mapped file",
            Peer("mapped-copy-crc") => "limit: mapped file, CRC",
            Peer("mapped-ahead-crc") => "limit: mapped file, CRC, populating",
            Peer(name) => name,
            Channel => "crossbeam-channel (memory)",
            Memory => "limit: clock and memcpy",
            Park => "limit: park and unpark",
            Wait => "limit: a timed wait",
            Sleep => "limit: threads that sleep",
            Sync => "one thread: write + fdatasync",
        })
    }
}
