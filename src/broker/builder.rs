//! How a broker is opened.

use super::core::{Core, Settings};
use super::handle::Broker;
use crate::clock::Clock;
use crate::delay::DelayLevels;
use crate::error::{Error, Result};
use crate::names;
use crate::storage::{Directory, Storage};
use crate::store::{
    AtLimit, Flush, Kept, Limits, Recovery, RecoveryReport, Retention, SpaceRules, Store,
    StoreConfig, Verify, smallest_segment,
};
use crate::sync::Arc;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Settings for opening a directory; checked together by [`open`](Self::open).
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// use rocklet::{Broker, Flush};
/// let broker = Broker::builder(dir.path()).flush(Flush::EveryMessage).open()?;
/// # broker.close()?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `open`"]
pub struct BrokerBuilder {
    dir: PathBuf,
    flush: Flush,
    max_unflushed_bytes: u64,
    recovery: Recovery,
    segment_bytes: u64,
    max_body_bytes: usize,
    auto_create_queues: u16,
    auto_create_groups: bool,
    label: String,
    rebalance_interval: Duration,
    lease_expiry: Duration,
    retention: Retention,
    limits: Limits,
    at_limit: AtLimit,
    verify: Verify,
    clock: Clock,
    delay_levels: DelayLevels,
    /// Instead of the directory.
    storage: Option<Arc<dyn Storage>>,
}

const MAX_BODY: usize = 4 << 20;

impl BrokerBuilder {
    pub(super) fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            flush: Flush::Every(Duration::from_millis(500)),
            max_unflushed_bytes: 1 << 30,
            recovery: Recovery::Strict,
            segment_bytes: 64 << 20,
            max_body_bytes: MAX_BODY,
            auto_create_queues: 4,
            auto_create_groups: true,
            label: "rocklet".to_owned(),
            rebalance_interval: Duration::from_secs(20),
            lease_expiry: Duration::from_secs(60),
            retention: Retention::none(),
            limits: Limits::default(),
            at_limit: AtLimit::Refuse,
            verify: Verify::OnOpen,
            clock: Clock::system(),
            delay_levels: DelayLevels::default(),
            storage: None,
        }
    }

    /// Sets when sent messages are made durable against loss of power; every 500 ms by default.
    /// An interval is 1 ms to 1 hour.
    pub fn flush(mut self, flush: Flush) -> Self {
        self.flush = flush;
        self
    }

    /// Sets how many bytes of the log may await a flush: 64 KiB to 1 TiB, 1 GiB by default. It is
    /// what a loss of power can take, and what one flush writes, at most. A `send` that would add to
    /// more waits for a flush first; one message that is longer by itself is taken when nothing else
    /// awaits it.
    pub fn max_unflushed_bytes(mut self, bytes: u64) -> Self {
        self.max_unflushed_bytes = bytes;
        self
    }

    /// Sets what to do about damage that no crash explains; by default opening fails, see
    /// [`Recovery`].
    pub fn recovery(mut self, recovery: Recovery) -> Self {
        self.recovery = recovery;
        self
    }

    /// Sets the bytes of a log file: a power of two from 64 KiB to 1 GiB, 64 MiB by default. It
    /// bounds the body of a message too, see [`max_body_bytes`](Self::max_body_bytes). The directory
    /// does not remember it: files that are there keep their length, and those made from now on
    /// have this one.
    pub fn segment_bytes(mut self, bytes: u64) -> Self {
        self.segment_bytes = bytes;
        self
    }

    /// Sets the largest body of a message: 1 byte to 4 MiB, 4 MiB by default. Whatever is set, a
    /// body must leave 34 246 bytes of a log file for the rest of its record.
    pub fn max_body_bytes(mut self, bytes: usize) -> Self {
        self.max_body_bytes = bytes;
        self
    }

    /// Sets how many queues a topic gets that is made by its first use: 1 to 65 535, 4 by
    /// default; with 0 topics are made by [`Broker::create_topic`] alone.
    pub fn auto_create_queues(mut self, queues: u16) -> Self {
        self.auto_create_queues = queues;
        self
    }

    /// Refuses consumers of groups that were not made by [`Broker::create_group`]; by default a
    /// group is made by its first consumer (SUB-6).
    pub fn require_groups(mut self) -> Self {
        self.auto_create_groups = false;
        self
    }

    /// Sets how often groups with members are looked at, besides at every change: strategies are
    /// asked again, and queues that nobody reads are begun anew. 1 s to 1 hour, 20 s by default
    /// (REB-1).
    pub fn rebalance_interval(mut self, interval: Duration) -> Self {
        self.rebalance_interval = interval;
        self
    }

    /// Sets when a queue that is consumed in order may go to another member because its owner has
    /// not renewed its lease: 2 ms to 1 day, 60 s by default (ORD-1). The owner itself stops at half
    /// of it. A listener that is inside is waited for even then, unless the consumer was built with
    /// [`take_over_after`](crate::PushConsumerBuilder::take_over_after).
    pub fn lease_expiry(mut self, expiry: Duration) -> Self {
        self.lease_expiry = expiry;
        self
    }

    /// Sets the label that assignment strategies see with every queue, where RocketMQ has the name
    /// of a broker: 1 to 255 visible ASCII characters, `rocklet` by default. It decides about
    /// [`ConsistentHash`](crate::ConsistentHash) and [`MachineRoom`](crate::MachineRoom); nothing
    /// of it is stored.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// Sets when the oldest messages are dropped; never by default.
    pub fn retention(mut self, retention: Retention) -> Self {
        self.retention = retention;
        self
    }

    /// Sets the most bytes that the files of the log may have together, at least four times
    /// [`segment_bytes`](Self::segment_bytes), which are 256 MiB by default; no limit by default.
    /// What happens there is said by [`at_limit`](Self::at_limit): without it, and without
    /// [`retention`](Self::retention), sends fail until [`Broker::drop_before`] makes room.
    pub fn max_log_bytes(mut self, bytes: u64) -> Self {
        self.limits.max_bytes = Some(bytes);
        self
    }

    /// Sets how many bytes of the file system are left to others; 0 by default. Looked at whenever
    /// a file of the log or of the index is to be made: what is sent into the files that are there
    /// takes no further space. What happens there is said by [`at_limit`](Self::at_limit).
    pub fn min_free_bytes(mut self, bytes: u64) -> Self {
        self.limits.min_free = bytes;
        self
    }

    /// Sets what happens when there is no room for the next file of the log: sends are refused by
    /// default.
    pub fn at_limit(mut self, at_limit: AtLimit) -> Self {
        self.at_limit = at_limit;
        self
    }

    /// Sets when the checksum of a message is looked at; [`Verify::OnOpen`] by default.
    pub fn verify(mut self, verify: Verify) -> Self {
        self.verify = verify;
        self
    }

    /// Opens what a simulated storage holds instead of the directory, whose name is of no account
    /// (feature `testing`).
    #[cfg(any(test, feature = "testing"))]
    pub fn storage(mut self, storage: &crate::SimulatedStorage) -> Self {
        self.storage = Some(Arc::new(storage.clone()));
        self
    }

    /// Sets the delays behind [`Message::delay_level`](crate::Message::delay_level); RocketMQ's by
    /// default.
    pub fn delay_levels(mut self, levels: DelayLevels) -> Self {
        self.delay_levels = levels;
        self
    }

    /// Makes the broker live by a clock that the test drives (feature `testing`).
    #[cfg(any(test, feature = "testing"))]
    pub fn clock(mut self, clock: &crate::clock::DrivenClock) -> Self {
        self.clock = clock.clock();
        self
    }

    /// Opens the directory, creating it if it is missing, and brings it into order: see
    /// [`Broker::recovery_report`].
    ///
    /// # Errors
    /// `Setting` or `Name` if a setting is out of its range, `Locked` if another broker has the directory,
    /// `Corrupt` or `Version` if it cannot be understood, `DiskFull`, `Io` or `Poisoned` if what
    /// was found cannot be read, brought into order and made durable.
    pub fn open(self) -> Result<Broker> {
        self.check()?;
        let storage = self.directory()?;
        self.open_on(storage)
    }

    /// Opens what `storage` holds.
    pub(crate) fn open_on(self, storage: Arc<dyn Storage>) -> Result<Broker> {
        let body = self.check()?;
        let store = self.store(storage, false)?;
        let settings = Settings {
            max_body: body,
            auto_create_queues: self.auto_create_queues,
            auto_create_groups: self.auto_create_groups,
            label: self.label.into(),
            rebalance_interval: self.rebalance_interval,
            lease_expiry: self.lease_expiry,
            delay_levels: self.delay_levels,
        };
        let core = Core::start(store, settings)?;
        Ok(Broker::new(core))
    }

    /// Reads and verifies the whole log, builds everything anew that is derived from it, and leaves
    /// the directory closed. Damage of the log itself is an error, unless
    /// [`Recovery::Salvage`] is set.
    ///
    /// # Errors
    /// As [`open`](Self::open), and as [`Broker::close`].
    pub fn repair(self) -> Result<RecoveryReport> {
        self.check()?;
        let store = self.store(self.directory()?, true)?;
        store.close()?;
        Ok(store.report().clone())
    }

    fn directory(&self) -> Result<Arc<dyn Storage>> {
        if let Some(storage) = &self.storage {
            return Ok(storage.clone());
        }
        let made = Directory::new(&self.dir);
        let failed = |source| Error::Io { action: "create", file: self.dir.clone(), source };
        Ok(Arc::new(made.map_err(failed)?))
    }

    fn store(&self, storage: Arc<dyn Storage>, rebuild: bool) -> Result<Store> {
        let (retention, limits, at_limit) = (self.retention.clone(), self.limits, self.at_limit);
        let config = StoreConfig {
            segment_bytes: self.segment_bytes,
            flush: self.flush,
            max_unflushed: self.max_unflushed_bytes,
            recovery: self.recovery,
            rebuild,
            space: SpaceRules { retention, limits, at_limit },
            verify: self.verify,
        };
        Store::open(storage, config, self.clock.clone())
    }

    fn check(&self) -> Result<usize> {
        let setting = |name, value, rule, fits, min, max| {
            let fits = fits && (min..=max).contains(&value);
            if fits { Ok(()) } else { Err(Error::Setting { name, value, rule, min, max }) }
        };
        let range = |name, value, min, max| setting(name, value, "a number", true, min, max);
        let (bytes, power) = (self.segment_bytes, self.segment_bytes.is_power_of_two());
        setting("segment_bytes", bytes, "a power of two", power, 64 << 10, 1 << 30)?;
        range("max_unflushed_bytes", self.max_unflushed_bytes, 64 << 10, 1 << 40)?;
        names::check_label(&self.label)?;
        range("max_body_bytes", self.max_body_bytes as u64, 1, MAX_BODY as u64)?;
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        if let Flush::Every(interval) = self.flush {
            range("flush interval in ms", ms(interval), 1, 3_600_000)?;
        }
        range("rebalance_interval in ms", ms(self.rebalance_interval), 1000, 3_600_000)?;
        range("lease_expiry in ms", ms(self.lease_expiry), 2, 86_400_000)?;
        if let Some(limit) = self.limits.max_bytes {
            range("max_log_bytes", limit, 4 * bytes, u64::MAX)?;
        }
        if let Some(percent) = self.retention.disk_percent {
            range("disk_percent", percent.into(), 1, 99)?;
        }
        if let Kept::Groups(groups) = &self.retention.kept {
            groups.iter().try_for_each(|group| names::check_group(group))?;
        }
        // A small segment allows smaller bodies.
        let room = self.segment_bytes - smallest_segment(0);
        Ok(self.max_body_bytes.min(usize::try_from(room).unwrap_or(usize::MAX)))
    }
}
