//! The open broker: the store, what waits, who consumes, and the threads behind them.
//!
//! Threads, all asleep when there is nothing to do: `flush` (interval flushes, flushes for handles,
//! early write-back, offset syncs), `allocate` (log files and pages ahead of need, checkpoints),
//! `rebalance` (the periodic look at groups with members), `timer`, `delay` (messages that are due),
//! `retain` (if messages are to be dropped), and the workers of each push consumer and pull schedule.

use super::background::{Background, Runner};
use super::filter::{Filter, Panicked};
use super::group::Group;
use super::hold::HoldTable;
use super::lease::Leases;
use super::readers::{Readers, Reading};
use super::timer::Timer;
use super::turns::Turns;
use crate::clock::{Clock, Moment};
use crate::delay::DelayLevels;
use crate::error::{Error, Result};
use crate::store::{ConsumeQueue, Delivery, Fetch, Flush, OffsetKey, Select, Store};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Alarm, Arc, Mutex, Rank, Signal, ThreadId, Weak, current_thread, spawn};
use std::collections::BTreeMap;
use std::time::Duration;

/// What is shared by all handles of an open broker.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) store: Arc<Store>,
    pub(crate) hold: HoldTable,
    pub(crate) timer: Timer,
    /// Who drives the dead letters of a group again.
    pub(crate) turns: Turns,
    readers: Readers,
    pub(crate) settings: Settings,
    pub(crate) counters: Counters,
    groups: Mutex<BTreeMap<String, Arc<Group>>>,
    consumers: Mutex<Consumers>,
    background: Mutex<Vec<Runner>>,
    stopping: AtomicBool,
    changed: Signal,
    /// Rung when a member joins, and when a rebalance has failed.
    rebalancer: Arc<Alarm>,
    named: AtomicU64,
}

/// What the broker was opened with, already checked.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) max_body: usize,
    pub(crate) auto_create_queues: u16,
    pub(crate) auto_create_groups: bool,
    pub(crate) label: Arc<str>,
    pub(crate) rebalance_interval: Duration,
    pub(crate) lease_expiry: Duration,
    pub(crate) delay_levels: DelayLevels,
}

/// What has happened since the broker was opened.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) delivered: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) panicked: AtomicU64,
    pub(crate) panicked_filters: AtomicU64,
    pub(crate) panicked_hooks: AtomicU64,
    pub(crate) timed_out: AtomicU64,
    pub(crate) failed_reads: AtomicU64,
    pub(crate) failed_commits: AtomicU64,
    pub(crate) dropped: AtomicU64,
    pub(crate) expired: AtomicU64,
    pub(crate) taken_over: AtomicU64,
    pub(crate) late: AtomicU64,
    pub(crate) suspended: AtomicU64,
    pub(crate) lapsed: AtomicU64,
    pub(crate) dropped_delays: AtomicU64,
    pub(crate) failed_delays: AtomicU64,
    pub(crate) retries: AtomicU64,
    pub(crate) dead_letters: AtomicU64,
    pub(crate) discarded: AtomicU64,
    pub(crate) failed_send_backs: AtomicU64,
}

/// A running consumer, as far as closing is concerned.
pub(crate) trait Running: Send + Sync {
    /// Ends it: running listeners finish, progress is committed, queues are given back.
    fn stop(&self);

    /// Whether the calling thread is one of its workers.
    fn is_worker(&self) -> bool;

    /// A topic was made, changed or deleted.
    fn topic_changed(&self, _topic: &str) {}

    /// A group was moved to `offset` in a queue. Members are told by a rebalance.
    fn group_moved(&self, _key: OffsetKey, _offset: u64) {}
}

#[derive(Default)]
struct Consumers {
    closing: Option<ThreadId>,
    /// How closing ended.
    closed: Option<Result<(), String>>,
    running: Vec<Weak<dyn Running>>,
}

impl Core {
    /// Starts the threads of an opened store.
    pub(crate) fn start(store: Store, settings: Settings) -> Result<Arc<Self>> {
        let clock = store.clock().clone();
        let core = Arc::new(Self {
            store: Arc::new(store),
            hold: HoldTable::new(),
            readers: Readers::new(),
            timer: Timer::new(clock),
            turns: Turns::new(),
            settings,
            counters: Counters::default(),
            groups: Mutex::new(Rank::Lifecycle, BTreeMap::new()),
            consumers: Mutex::new(Rank::Lifecycle, Consumers::default()),
            background: Mutex::new(Rank::Lifecycle, Vec::new()),
            stopping: AtomicBool::new(false),
            changed: Signal::new(),
            rebalancer: Arc::new(Alarm::new()),
            named: AtomicU64::new(0),
        });
        match core.start_background() {
            Ok(()) => Ok(core),
            Err(error) => {
                core.close()?;
                Err(error)
            }
        }
    }

    pub(crate) fn clock(&self) -> &Clock {
        self.store.clock()
    }

    /// Whether `close` has begun.
    pub(crate) fn is_closed(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Keeps the files while messages are read that no consumer owns.
    ///
    /// # Errors
    /// `Closed`.
    pub(crate) fn reading(&self) -> Result<Reading<'_>> {
        self.readers.enter()
    }

    /// Runs `step`, and keeps the broker from closing meanwhile, and others from starting: members
    /// that found a group together must agree that it is new.
    ///
    /// # Errors
    /// `Closed` if that has begun; or as `step`.
    pub(crate) fn while_open<R>(&self, step: impl FnOnce() -> Result<R>) -> Result<R> {
        let consumers = self.consumers.lock();
        if consumers.closing.is_some() { Err(Error::Closed) } else { step() }
    }

    /// The group `name`, made if it is new and its first consumer may make it.
    pub(crate) fn group(&self, name: &str) -> Result<Arc<Group>> {
        if !self.settings.auto_create_groups && self.store.groups.find(name).is_none() {
            return Err(Error::NoSuchGroup { group: name.to_owned() });
        }
        let number = self.while_open(|| self.store.groups.number(name))?;
        let mut groups = self.groups.lock();
        let made = || {
            let (store, label) = (self.store.clone(), self.settings.label.clone());
            let leases = Leases::new(self.settings.lease_expiry);
            Arc::new(Group::new(name, number, store, label, leases, self.rebalancer.clone()))
        };
        Ok(groups.entry(name.to_owned()).or_insert_with(made).clone())
    }

    /// Forgets a group without members, whose table entry has gone.
    pub(crate) fn forget_group(&self, name: &str) {
        let group = self.groups.lock().remove(name);
        drop(group);
    }

    pub(crate) fn groups(&self) -> Vec<Arc<Group>> {
        self.groups.lock().values().cloned().collect()
    }

    /// A group that has had a consumer since the broker was opened.
    pub(crate) fn running_group(&self, name: &str) -> Option<Arc<Group>> {
        self.groups.lock().get(name).cloned()
    }

    /// A consumer name that nobody has in this process's broker.
    pub(crate) fn new_name(&self) -> String {
        format!("consumer-{}", self.named.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Notes a consumer that is to be stopped when the broker closes.
    ///
    /// # Errors
    /// `Closed` if that has happened.
    pub(crate) fn add_consumer(&self, consumer: Weak<dyn Running>) -> Result<()> {
        let mut consumers = self.consumers.lock();
        if consumers.closing.is_some() {
            return Err(Error::Closed);
        }
        consumers.running.retain(|known| known.strong_count() > 0);
        consumers.running.push(consumer);
        Ok(())
    }

    /// The consumers that run.
    pub(crate) fn consumers(&self) -> Vec<Arc<dyn Running>> {
        self.consumers.lock().running.iter().filter_map(Weak::upgrade).collect()
    }

    /// Reads messages that pass `filter` and have not expired, on no group's account, see
    /// [`Store::fetch`]. Its predicates run here: no lock may be held.
    pub(crate) fn fetch(
        &self,
        queue: &ConsumeQueue,
        offset: u64,
        max_messages: usize,
        max_bytes: usize,
        filter: &Filter,
    ) -> Result<Fetch> {
        let lives = |message: &Delivery<'_>| !self.has_expired(message);
        self.fetch_those(queue, offset, max_messages, max_bytes, filter, lives)
    }

    /// Reads messages that pass `filter` and that `also` wants.
    pub(crate) fn fetch_those(
        &self,
        queue: &ConsumeQueue,
        offset: u64,
        max_messages: usize,
        max_bytes: usize,
        filter: &Filter,
        also: impl Fn(&Delivery<'_>) -> bool,
    ) -> Result<Fetch> {
        let select = Selection { core: self, filter, also };
        self.store.fetch(queue, offset, max_messages, max_bytes, &select)
    }

    /// Whether a message passes; a panic of a predicate counts, and as no.
    #[inline]
    pub(crate) fn passes(&self, filter: &Filter, message: &Delivery<'_>) -> bool {
        filter.check(message).unwrap_or_else(|Panicked| {
            self.counters.panicked_filters.fetch_add(1, Ordering::Relaxed);
            false
        })
    }

    /// Stores progress that only rises (CONC-11).
    pub(crate) fn commit(&self, key: OffsetKey, offset: u64) -> Result<()> {
        self.store.raise_offset(key, offset).inspect_err(|_| {
            self.counters.failed_commits.fetch_add(1, Ordering::Relaxed);
        })
    }

    /// Closes: consumers first, then the threads, then the store. A second call waits for the
    /// first and ends as it did. Returns at once when called from a listener; the rest then
    /// happens behind it.
    pub(crate) fn close(self: &Arc<Self>) -> Result<()> {
        let mut consumers = self.consumers.lock();
        if let Some(closed) = &consumers.closed {
            return closed.clone().map_err(|cause| Error::Poisoned { cause });
        }
        let running: Vec<_> = consumers.running.iter().filter_map(Weak::upgrade).collect();
        let closing = consumers.closing;
        consumers.closing.get_or_insert(current_thread());
        drop(consumers);
        let inside = closing == Some(current_thread())
            || self.background.lock().iter().any(Runner::is_current)
            || running.iter().any(|consumer| consumer.is_worker())
            || self.readers.is_inside();
        match (closing, inside) {
            (None, false) => self.finish(&running),
            (None, true) => {
                let core = self.clone();
                let closing = spawn("close", move || {
                    core.consumers.lock().closing = Some(current_thread());
                    drop(core.finish(&running));
                });
                closing.map(drop).map_err(|source| {
                    self.consumers.lock().closing = None;
                    self.changed.notify();
                    thread_error(&self.store, source)
                })
            }
            (Some(_), false) => {
                let ended = || {
                    let consumers = self.consumers.lock();
                    consumers.closed.is_some() || consumers.closing.is_none()
                };
                self.changed.wait_until(self.clock(), None, ended);
                // If the first could not even begin, this one does it.
                self.close()
            }
            (Some(_), true) => Ok(()),
        }
    }

    fn finish(&self, running: &[Arc<dyn Running>]) -> Result<()> {
        let closed = self.stop(running);
        let told = closed.as_ref().copied().map_err(|error| match error {
            Error::Poisoned { cause } => cause.clone(),
            other => other.to_string(),
        });
        self.consumers.lock().closed = Some(told);
        self.changed.notify();
        closed
    }

    fn stop(&self, running: &[Arc<dyn Running>]) -> Result<()> {
        // Together, so that no queue goes from one that stops to one that is about to.
        self.groups().iter().for_each(|group| group.disband());
        running.iter().for_each(|consumer| consumer.stop());
        self.stopping.store(true, Ordering::Release);
        self.timer.stop();
        self.store.flusher().ring();
        self.store.allocator.ring();
        self.store.delay_alarm().ring();
        self.rebalancer.ring();
        self.store.retainer.ring();
        let background = std::mem::take(&mut *self.background.lock());
        background.into_iter().for_each(Runner::end);
        self.readers.close(self.clock());
        self.store.close()
    }

    fn start_background(self: &Arc<Self>) -> Result<()> {
        let begun = |runner: Result<Runner>| runner.map(|run| self.background.lock().push(run));
        let mut due = None;
        let flush = move |core: &Self, rung| {
            due = core.flush(rung, due);
            due
        };
        begun(Background::start(self, "flush", |core| core.store.flusher(), flush))?;
        let allocate = |core: &Self, _| {
            core.store.allocate_step();
            None
        };
        begun(Background::start(self, "allocate", |core| &core.store.allocator, allocate))?;
        let (mut looked, mut due) = (self.clock().moment(), None);
        let rebalance = move |core: &Self, _| {
            let now = core.clock().moment();
            if due.is_some_and(|due| due <= now) {
                core.look_at_groups();
                looked = now;
            }
            due = core.rebalance_interval().map(|interval| looked.plus(interval));
            due
        };
        begun(Background::start(self, "rebalance", |core| &core.rebalancer, rebalance))?;
        let timer = |core: &Self, _| core.timer.step();
        begun(Background::start(self, "timer", |core| core.timer.alarm(), timer))?;
        let delay = |core: &Self, _| core.delay_step();
        begun(Background::start(self, "delay", |core| core.store.delay_alarm(), delay))?;
        if !self.store.retains() {
            return Ok(());
        }
        // When a file is full, a group has consumed what it waits for, or the next one can become
        // too old.
        let retain = |core: &Self, _| core.store.retain_step(core.clock().moment());
        begun(Background::start(self, "retain", |core| &core.store.retainer, retain))
    }

    /// Lets an interval pass once something was sent or committed, then flushes; at once for who
    /// waits on a handle.
    fn flush(&self, rung: bool, due: Option<Moment>) -> Option<Moment> {
        let now = self.clock().moment();
        if rung {
            self.store.flush_wanted();
        }
        match due {
            Some(due) if now < due => Some(due),
            Some(_) => {
                self.store.flush_step();
                None
            }
            None => {
                let interval = match self.store.flush_mode() {
                    Flush::Every(interval) => interval,
                    Flush::EveryMessage => Duration::from_millis(500),
                };
                rung.then(|| now.plus(interval))
            }
        }
    }
}

/// A filter as the store applies it.
struct Selection<'a, A> {
    core: &'a Core,
    filter: &'a Filter,
    also: A,
}

impl<A: Fn(&Delivery<'_>) -> bool> Select for Selection<'_, A> {
    #[inline]
    fn by_hash(&self, tag_hash: i32) -> bool {
        self.filter.passes_hash(tag_hash)
    }

    #[inline]
    fn by_message(&self, message: &Delivery<'_>) -> bool {
        self.core.passes(self.filter, message) && (self.also)(message)
    }
}

const REBALANCE_AGAIN: Duration = Duration::from_secs(1);

impl Core {
    /// How long after a look at the groups the next one follows, sooner after a rebalance that
    /// failed (REB-1); `None` if there is no group with members.
    fn rebalance_interval(&self) -> Option<Duration> {
        let (groups, interval) = (self.groups(), self.settings.rebalance_interval);
        let soon = groups.iter().any(|group| group.is_unbalanced());
        let any = groups.iter().any(|group| group.members() > 0);
        any.then(|| if soon { REBALANCE_AGAIN.min(interval) } else { interval })
    }

    fn look_at_groups(&self) {
        let expired = self.groups().iter().map(|group| group.look_again()).sum();
        self.counters.expired.fetch_add(expired, Ordering::Relaxed);
    }
}

pub(crate) fn thread_error(store: &Store, source: std::io::Error) -> Error {
    Error::Io { action: "start a thread for", file: store.directory(), source }
}

impl std::fmt::Debug for Consumers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Consumers").field("closing", &self.closing).finish_non_exhaustive()
    }
}
