//! Dropping the oldest part of the log, by the rules of [`Retention`](super::Retention), for want
//! of room, or because it was asked for.
//!
//! The order of the steps makes each of them safe to be the last one before a crash: what must
//! outlive its file is appended again, the new minimum is durable before anything goes, readers
//! lose the messages before the files do, and index blocks are reused only after the files are
//! gone. Files are removed with no lock held but that of who makes room: that can take long, and
//! stalls nobody else.

use super::Store;
use super::drop_front::{Disposal, Gone};
use super::retention::{AtLimit, RetentionStats};
use crate::clock::{Clock, Moment};
use crate::error::{Error, Result};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard, Rank, Signal};
use std::collections::BTreeMap;
use std::time::Duration;

/// How often a drop is tried again that a full disk has failed.
const MOST_TRIES: u32 = 8;
/// After a failure the next try comes no sooner.
const RETRY: Duration = Duration::from_secs(10);

/// What retention remembers.
#[derive(Debug)]
pub(crate) struct Retaining {
    state: Mutex<State>,
    /// A removal has ended.
    removed: Signal,
    /// A file that is to go waits for a group to consume it.
    waits: AtomicBool,
    /// Where the file begins that was being filled when the allocator last looked.
    filling: AtomicU64,
    /// Counts drops: whoever lacks room sees that somebody else has made some.
    drops: AtomicU64,
    /// Who makes room at the cost of the oldest file: one at a time, so that one drop serves all. An
    /// attempt that fails takes what is left of the disk for a moment, and a drop may need that.
    making_room: Mutex<()>,
    dropped_files: AtomicU64,
    dropped_bytes: AtomicU64,
    reused_files: AtomicU64,
    dropped_at_limit: AtomicU64,
    failures: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// By the base of every full file.
    ages: BTreeMap<u64, Age>,
    removing: usize,
    closed: bool,
    failure: Option<String>,
}

/// How long a file has been full, as of a moment.
#[derive(Clone, Copy, Debug)]
struct Age {
    then: Moment,
    age: Duration,
}

/// A file behind which the log has gone on.
#[derive(Clone, Copy, Debug)]
struct Full {
    base: u64,
    end: u64,
    /// How long it was full when this broker came upon it.
    age: Duration,
}

impl Retaining {
    pub(super) fn new() -> Self {
        let count = || AtomicU64::new(0);
        Self {
            state: Mutex::new(Rank::Retention, State::default()),
            making_room: Mutex::new(Rank::Room, ()),
            removed: Signal::new(),
            waits: AtomicBool::new(false),
            filling: count(),
            drops: count(),
            dropped_files: count(),
            dropped_bytes: count(),
            reused_files: count(),
            dropped_at_limit: count(),
            failures: count(),
        }
    }

    /// Whether a commit may be what a file waits for.
    pub(super) fn waits_for_groups(&self) -> bool {
        self.waits.load(Ordering::Relaxed)
    }

    /// Whether the log has gone on to the file at `base` since the last call.
    pub(super) fn goes_on(&self, base: u64) -> bool {
        self.filling.swap(base, Ordering::Relaxed) != base
    }

    /// Drops nothing from now on, and waits for whoever removes files: they may belong to another
    /// broker soon.
    pub(super) fn close(&self, clock: &Clock) {
        self.state.lock().closed = true;
        self.removed.wait_until(clock, None, || self.state.lock().removing == 0);
    }

    fn lock(&self) -> Result<MutexGuard<'_, State>> {
        let state = self.state.lock();
        if state.closed { Err(Error::Closed) } else { Ok(state) }
    }
}

impl State {
    /// Brings the ages up to date. A file is at least as old as those behind it, whatever the
    /// clock was when they were made.
    fn note(&mut self, full: &[Full], now: Moment) {
        let first = full.first().map_or(u64::MAX, |file| file.base);
        self.ages = self.ages.split_off(&first);
        let mut least = Duration::ZERO;
        for file in full.iter().rev() {
            let known = self.ages.get(&file.base);
            let age = known.map_or(file.age, |known| known.age + now.since(known.then));
            least = least.max(age);
            self.ages.insert(file.base, Age { then: now, age: least });
        }
    }

    fn age(&self, file: &Full) -> Duration {
        self.ages.get(&file.base).map_or(Duration::ZERO, |known| known.age)
    }
}

impl Store {
    /// Drops whole log files that end at or below `position`, except the one being filled;
    /// returns how many.
    pub(crate) fn drop_before(&self, position: u64) -> Result<usize> {
        let state = self.retaining.lock()?;
        Ok(self.drop_front(state, position, Disposal::Reuse)?.0)
    }

    /// Drops what may go by the rules, and says when the next file can become too old. When a
    /// file gets full, a group has consumed what a file waits for, or less of it waits to be due, the
    /// alarm `retainer` rings.
    pub(crate) fn retain_step(&self, now: Moment) -> Option<Moment> {
        match self.retain(now) {
            Ok(next) => next,
            Err(Error::Closed | Error::Poisoned { .. }) => None,
            Err(error) => {
                self.retaining.failures.fetch_add(1, Ordering::Relaxed);
                self.retaining.state.lock().failure = Some(error.to_string());
                Some(now.plus(RETRY))
            }
        }
    }

    /// Runs `step`; if there was no room for it and that is the policy, drops the oldest file and
    /// tries again. The caller has no lock.
    pub(super) fn with_room<R>(
        &self,
        disposal: Disposal,
        step: impl Fn() -> Result<R>,
    ) -> Result<R> {
        match step() {
            Err(Error::DiskFull { .. } | Error::LogFull { .. })
                if self.config.space.at_limit == AtLimit::DropOldest => {}
            done => return done,
        }
        let _alone = self.retaining.making_room.lock();
        let mut tries = 0..MOST_TRIES;
        loop {
            let drops = self.retaining.drops.load(Ordering::Acquire);
            let full = match step() {
                Err(full @ (Error::DiskFull { .. } | Error::LogFull { .. })) => full,
                done => return done,
            };
            let (files, gone) = match self.drop_oldest(disposal, drops) {
                Ok(Some(dropped)) => dropped,
                Ok(None) => continue,
                Err(Error::DiskFull { .. }) if tries.next().is_some() => {
                    // Another's first try may have had for a moment what the drop needs.
                    self.log.wait_for_growth();
                    self.arena.wait_for_file();
                    continue;
                }
                Err(error) => return Err(error),
            };
            // What deliveries hold counts for the log no more, but the disk still has it.
            let gain =
                if matches!(full, Error::LogFull { .. }) { files as u64 } else { gone.freed };
            if gain == 0 {
                // Nothing is left to drop, or somebody holds it; others may have made room meanwhile.
                return step();
            }
        }
    }

    /// Why dropping failed the last time.
    pub(crate) fn retention_failure(&self) -> Option<String> {
        self.retaining.state.lock().failure.clone()
    }

    pub(crate) fn retention_stats(&self) -> RetentionStats {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Retaining { dropped_files, dropped_bytes, reused_files, .. } = &self.retaining;
        let (log_bytes, spare_bytes) = self.log.sizes();
        RetentionStats {
            log_bytes,
            spare_bytes,
            held_bytes: count(&self.log.held),
            dropped_files: count(dropped_files),
            dropped_bytes: count(dropped_bytes),
            reused_files: count(reused_files),
            dropped_at_limit: count(&self.retaining.dropped_at_limit),
            waits_for_groups: self.retaining.waits_for_groups(),
            failures: count(&self.retaining.failures),
        }
    }

    fn retain(&self, now: Moment) -> Result<Option<Moment>> {
        let rules = &self.config.space.retention;
        let mut state = self.retaining.lock()?;
        let full = self.full_files(&state.ages);
        state.note(&full, now);
        let too_old = |age| full.iter().take_while(|file| state.age(file) >= age).count();
        let too_old = rules.age.map_or(0, too_old);
        let too_many = rules.bytes.map_or(0, |most| self.log.bytes().saturating_sub(most));
        let pressing = rules.disk_percent.map_or(Ok(0), |percent| self.disk_excess(percent))?;
        let wanted = too_old.max(covering(&full, too_many.max(pressing)));
        // Noted first: a commit that comes meanwhile rings.
        self.retaining.waits.store(wanted > 0, Ordering::Relaxed);
        let kept_from = if wanted > 0 { self.unconsumed_from() } else { 0 };
        let allowed = full[..wanted].iter().take_while(|file| file.end <= kept_from).count();
        let waits = allowed < wanted;
        self.retaining.waits.store(waits, Ordering::Relaxed);
        let waiting = self.waiting_below(&ends(&full[..allowed]));
        let excess = excess(&full[..allowed], &waiting);
        let count = excess.iter().rposition(|excess| *excess == 0).map_or(0, |last| last + 1);
        self.wait_for_fall(full[..allowed].last(), &waiting, &excess[count..]);
        // Otherwise the next file that gets full, a commit, or such a fall has it looked at again.
        let next = rules.age.zip(full.get(count)).filter(|_| count == wanted);
        let next = next.map(|(age, file)| now.plus(age.saturating_sub(state.age(file))));
        if let Some(last) = full[..count].last() {
            let disposal = if pressing > 0 { Disposal::Return } else { Disposal::Reuse };
            self.drop_front(state, last.end, disposal)?;
        }
        Ok(next)
    }

    /// Has the retainer rung when so much less waits that more files may go.
    fn wait_for_fall(&self, last: Option<&Full>, waiting: &[u64], excess: &[u64]) {
        let goal = last.zip(waiting.last()).zip(excess.iter().min());
        let goal = goal.map(|((file, waiting), excess)| (file.end, waiting - excess));
        let mut schedule = self.delays.lock();
        schedule.bytes.wait_for(goal);
        let fallen = schedule.bytes.has_fallen();
        drop(schedule);
        if fallen {
            self.retainer.ring();
        }
    }

    /// The files that may go at all, oldest first. One that was found at the open was full when
    /// the first record of the next file was stored, and when the file after that was made: of
    /// two times, one may be of a clock that was wrong.
    fn full_files(&self, known: &BTreeMap<u64, Age>) -> Vec<Full> {
        let (filling, wall_ms) =
            (self.log.with_tail(|tail| tail.base()), self.clock.coarse_wall_ms());
        let files = self.log.files();
        let full = files.iter().enumerate().take_while(|(_, file)| file.base < filling);
        let full = full.map(|(nth, file)| {
            let age_ms = if file.made_here || known.contains_key(&file.base) {
                0
            } else {
                let stored = files.get(nth + 1).and_then(|next| next.first_record().ok());
                let made = files.get(nth + 2).map(|later| later.made_ms).filter(|ms| *ms > 0);
                let times = stored.map(|record| record.store_ms()).into_iter().chain(made);
                times.map(|ms| wall_ms.saturating_sub(ms)).max().unwrap_or(0)
            };
            Full { base: file.base, end: file.end(), age: Duration::from_millis(age_ms) }
        });
        full.collect()
    }

    /// How many of the oldest files may go at once: so many that no more than half of them would have
    /// to be carried forward. Otherwise a log of messages that wait would be written again and again.
    fn worth_dropping(&self, full: &[Full]) -> impl Iterator<Item = usize> + use<> {
        let excess = excess(full, &self.waiting_below(&ends(full)));
        (1..).zip(excess).filter_map(|(count, excess)| (excess == 0).then_some(count))
    }

    /// Bytes that must go for no more than `percent` of the file system to be in use. What
    /// deliveries hold returns by itself.
    fn disk_excess(&self, percent: u8) -> Result<u64> {
        let space = self.storage.space();
        let space = space.map_err(|e| super::files::io_error(&*self.storage, "measure", "", e))?;
        let whole = u128::from(space.used) + u128::from(space.available);
        let allowed = u64::try_from(whole * u128::from(percent) / 100).unwrap_or(u64::MAX);
        let held = self.log.held.load(Ordering::Relaxed);
        let excess = space.used.saturating_sub(allowed).saturating_sub(held);
        let released = if excess > 0 { self.log.release_spares() } else { 0 };
        Ok(excess.saturating_sub(released))
    }

    /// Drops the oldest file for want of room; `None` if there may be some already, because
    /// another has been dropped since `drops`.
    fn drop_oldest(&self, disposal: Disposal, drops: u64) -> Result<Option<(usize, Gone)>> {
        let state = self.retaining.lock()?;
        if self.retaining.drops.load(Ordering::Acquire) != drops
            || (disposal == Disposal::Return && self.log.release_spares() > 0)
        {
            return Ok(None);
        }
        let full = self.full_files(&state.ages);
        let least = self.worth_dropping(&full).min().unwrap_or(0);
        let Some(last) = full[..least].last() else { return Ok(Some((0, Gone::default()))) };
        let (count, gone) = self.drop_front(state, last.end, disposal)?;
        self.retaining.dropped_at_limit.fetch_add(count as u64, Ordering::Relaxed);
        Ok(Some((count, gone)))
    }

    /// Drops the files that end at or below `position`, except the one being filled; how many.
    fn drop_front(
        &self,
        mut state: MutexGuard<'_, State>,
        position: u64,
        disposal: Disposal,
    ) -> Result<(usize, Gone)> {
        let limit = position.min(self.log.with_tail(|tail| tail.base()));
        let last =
            self.log.files().iter().map(|file| file.end()).take_while(|end| *end <= limit).last();
        let Some(min) = last else { return Ok((0, Gone::default())) };
        self.carry_forward(min)?;
        let mut last = self.checkpoint.lock();
        self.write_checkpoint(&mut last, Some(min))?;
        let mut blocks = Vec::new();
        for topic in self.topics.all() {
            for queue in &topic.queues {
                queue.raise_min(queue.first_at(min));
                // Under the lock that adds blocks: both replace the chain.
                let _growth = self.index_growth.lock();
                blocks.extend(queue.drop_blocks(queue.min()));
            }
        }
        let files = self.log.take_front(min);
        // No checkpoint in between: its minima would be those of before.
        drop(last);
        // The log is shorter now: who waits for the lock looks again before dropping more.
        self.retaining.drops.fetch_add(1, Ordering::Release);
        state.removing += 1;
        drop(state);
        let _removing = Removing(&self.retaining);
        let (count, bytes) = (files.len(), files.iter().map(|file| file.end() - file.base).sum());
        self.retaining.dropped_files.fetch_add(count as u64, Ordering::Relaxed);
        self.retaining.dropped_bytes.fetch_add(bytes, Ordering::Relaxed);
        let gone = self.log.give_back(files, disposal, self.config.space.limits);
        self.retaining.drops.fetch_add(1, Ordering::Release);
        self.arena.free(blocks);
        self.keys.drop_below(min);
        let gone = gone?;
        self.retaining.reused_files.fetch_add(gone.reused, Ordering::Relaxed);
        Ok((count, gone))
    }
}

/// Somebody removes files.
struct Removing<'a>(&'a Retaining);

impl Drop for Removing<'_> {
    fn drop(&mut self) {
        self.0.state.lock().removing -= 1;
        self.0.removed.notify();
    }
}

fn ends(full: &[Full]) -> Vec<u64> {
    full.iter().map(|file| file.end).collect()
}

/// How many bytes too many of each number of the oldest files would have to be carried forward.
fn excess(full: &[Full], waiting: &[u64]) -> Vec<u64> {
    let first = full.first().map_or(0, |file| file.base);
    let halves = full.iter().map(|file| (file.end - first) / 2);
    waiting.iter().zip(halves).map(|(waiting, half)| waiting.saturating_sub(half)).collect()
}

/// How many of the oldest files have `bytes` together.
fn covering(full: &[Full], bytes: u64) -> usize {
    let mut left = bytes;
    let needed = full.iter().take_while(|file| {
        let needed = left > 0;
        left = left.saturating_sub(file.end - file.base);
        needed
    });
    needed.count()
}
