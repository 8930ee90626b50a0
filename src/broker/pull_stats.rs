//! What reading for the members of a group comes to, counted by outcome (PULL-11, PULL-15).

use super::handle::Broker;
use crate::error::{Error, Result};
use crate::store::{Fetch, FetchStatus};
use crate::sync::atomic::{AtomicU64, Ordering};
use std::ops::AddAssign;
use std::time::Duration;

/// How reads for the consumers of a group ended, since the broker was opened.
///
/// A read is a look at a limited number of messages of one queue: a turn of its pull request, a
/// part of a poll, or a pull within a turn of a schedule. What is pulled on no group's account is not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PullStats {
    /// Reads that found messages.
    pub found: u64,
    /// The messages that they found: what passes the filter, and goes to listeners or to the caller.
    pub messages: u64,
    /// What these reads took, all together.
    pub found_time: Duration,
    /// Reads at the end of a queue.
    pub no_new: u64,
    /// Reads that found messages of which none passes the filter.
    pub none_matched: u64,
    /// Reads at an offset that the queue does not have: they went on at the nearest one that it
    /// has (PULL-12).
    pub illegal: u64,
    /// Offsets that were dropped before they were read. With a filter not all of them were wanted.
    pub missed: u64,
    /// Messages that were passed by because their [time](crate::Message::time_to_live) was over;
    /// also those of the group's pull consumers.
    pub expired: u64,
    /// Reads that failed, or that the settings of the group forbade.
    pub failed: u64,
    /// Times that a queue went to sleep until a message arrives.
    pub held: u64,
    /// Times that a message woke it.
    pub woken: u64,
    /// Times that reading paused because too many messages of a queue were in flight, or too large
    /// ones (PULL-3).
    pub paused_for_size: u64,
    /// Times that reading paused because it was too far ahead of the lowest unfinished offset.
    pub paused_for_span: u64,
}

impl Broker {
    /// How reads for the consumers of a group ended; [`Stats::pulls`](crate::Stats::pulls) has
    /// the sum of all groups.
    ///
    /// # Errors
    /// `NoSuchGroup`.
    pub fn pull_stats(&self, group: &str) -> Result<PullStats> {
        let core = self.core();
        let running = core.groups().into_iter().find(|known| known.name == group);
        match running {
            Some(group) => Ok(group.pulls.snapshot()),
            // Known from an earlier opening.
            None if core.store.groups.find(group).is_some() => Ok(PullStats::default()),
            None => Err(Error::NoSuchGroup { group: group.to_owned() }),
        }
    }
}

impl AddAssign for PullStats {
    fn add_assign(&mut self, other: Self) {
        self.found += other.found;
        self.messages += other.messages;
        self.found_time += other.found_time;
        self.no_new += other.no_new;
        self.none_matched += other.none_matched;
        self.illegal += other.illegal;
        self.missed += other.missed;
        self.expired += other.expired;
        self.failed += other.failed;
        self.held += other.held;
        self.woken += other.woken;
        self.paused_for_size += other.paused_for_size;
        self.paused_for_span += other.paused_for_span;
    }
}

/// The counters of one group.
#[derive(Debug, Default)]
pub(crate) struct PullCounters {
    found: Count,
    messages: Count,
    found_nanos: Count,
    pub(crate) no_new: Count,
    pub(crate) none_matched: Count,
    illegal: Count,
    missed: Count,
    pub(crate) expired: Count,
    pub(crate) failed: Count,
    pub(crate) held: Count,
    pub(crate) woken: Count,
    pub(crate) paused_for_size: Count,
    pub(crate) paused_for_span: Count,
}

impl PullCounters {
    /// A read from `offset` on has ended, and took `took`.
    pub(crate) fn count(&self, fetch: &Fetch, offset: u64, took: Duration) {
        match fetch.status {
            FetchStatus::Found => self.count_found(fetch.messages.len(), took),
            FetchStatus::NoMatched => self.none_matched.add(1),
            FetchStatus::Removing | FetchStatus::TooSmall => self.count_illegal(offset, fetch.next),
            FetchStatus::AtEnd | FetchStatus::Empty | FetchStatus::Beyond => self.no_new.add(1),
        }
    }

    pub(crate) fn count_found(&self, messages: usize, took: Duration) {
        self.found.add(1);
        self.messages.add(messages as u64);
        self.found_nanos.add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    /// A queue did not have the offset: reading goes on at `nearest`.
    pub(crate) fn count_illegal(&self, offset: u64, nearest: u64) {
        self.illegal.add(1);
        self.missed.add(nearest.saturating_sub(offset));
    }

    pub(crate) fn snapshot(&self) -> PullStats {
        PullStats {
            found: self.found.get(),
            messages: self.messages.get(),
            found_time: Duration::from_nanos(self.found_nanos.get()),
            no_new: self.no_new.get(),
            none_matched: self.none_matched.get(),
            illegal: self.illegal.get(),
            missed: self.missed.get(),
            expired: self.expired.get(),
            failed: self.failed.get(),
            held: self.held.get(),
            woken: self.woken.get(),
            paused_for_size: self.paused_for_size.get(),
            paused_for_span: self.paused_for_span.get(),
        }
    }
}

/// A number that only rises.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
