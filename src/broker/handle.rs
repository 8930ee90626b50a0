//! The broker as users hold it.

use super::builder::BrokerBuilder;
use super::core::Core;
use super::stats::Stats;
use crate::error::{Error, Result};
use crate::queue_id::QueueId;
use crate::store::{OffsetKey, RecoveryReport, Verification};
use crate::sync::Arc;
use std::path::Path;

/// An open directory: topics, groups and everything that is sent and received.
///
/// Clones are handles to the same broker, and so is every producer and consumer: the directory is
/// closed cleanly when the last of them is dropped, or at once by [`close`](Self::close).
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// use rocklet::{Broker, Message};
/// let broker = Broker::open(dir.path())?;
/// let receipt = broker.producer().send(&Message::new("orders", b"paid"))?;
/// assert_eq!(receipt.offset, 0);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Broker {
    handle: Arc<Handle>,
}

#[derive(Debug)]
struct Handle {
    core: Arc<Core>,
}

impl Broker {
    /// Opens a directory with the default settings, creating it if it is missing.
    ///
    /// # Errors
    /// As [`BrokerBuilder::open`].
    pub fn open(dir: impl AsRef<Path>) -> Result<Self> {
        Self::builder(dir).open()
    }

    /// Prepares opening a directory with other settings.
    pub fn builder(dir: impl AsRef<Path>) -> BrokerBuilder {
        BrokerBuilder::new(dir.as_ref())
    }

    /// The offset of the first message that is stored in a queue.
    ///
    /// # Errors
    /// `NoSuchTopic`, `NoSuchQueue`.
    pub fn min_offset(&self, queue: &QueueId) -> Result<u64> {
        Ok(self.core().queue(queue)?.1.min())
    }

    /// The offset that the next message of a queue will get.
    ///
    /// # Errors
    /// `NoSuchTopic`, `NoSuchQueue`.
    pub fn max_offset(&self, queue: &QueueId) -> Result<u64> {
        Ok(self.core().queue(queue)?.1.max())
    }

    /// The offset from which `group` goes on in a queue; `None` if it never consumed it. In
    /// broadcasting each member has an offset of its own: [`committed_by`](Self::committed_by).
    ///
    /// # Errors
    /// `NoSuchTopic`, `NoSuchQueue`.
    pub fn committed(&self, group: &str, queue: &QueueId) -> Result<Option<u64>> {
        let store = &self.core().store;
        let (topic, queue) = self.core().queue(queue)?;
        let Some(group) = store.groups.find(group) else { return Ok(None) };
        let incarnation = topic.incarnation;
        Ok(store.offsets.get(OffsetKey { group, incarnation, queue: queue.queue }))
    }

    /// Drops the oldest files of the log that end at or below `position`, with all messages in
    /// them, consumed or not; returns how many files. The file that is being filled stays.
    /// Messages that were received before stay valid. [`Retention`](crate::Retention) does the
    /// same by rules.
    ///
    /// # Errors
    /// `Poisoned`, `DiskFull` or `Io` if the new beginning cannot be made durable; `Closed`.
    pub fn drop_before(&self, position: u64) -> Result<usize> {
        if self.core().is_closed() {
            return Err(Error::Closed);
        }
        self.core().store.drop_before(position)
    }

    /// Why messages could not be dropped the last time that it failed; see
    /// [`RetentionStats::failures`](crate::RetentionStats::failures).
    #[must_use]
    pub fn retention_failure(&self) -> Option<String> {
        self.core().store.retention_failure()
    }

    /// Why a delayed message could not be read the last time that one was lost; see
    /// [`Stats::lost_delays`](crate::Stats::lost_delays).
    #[must_use]
    pub fn delay_failure(&self) -> Option<String> {
        self.core().store.lost_delays().reason
    }

    /// Makes everything sent so far durable against loss of power.
    ///
    /// # Errors
    /// `Poisoned` if a sync failed, now or earlier; `Closed`.
    pub fn flush(&self) -> Result<()> {
        if self.core().is_closed() {
            return Err(Error::Closed);
        }
        self.core().store.flush()
    }

    /// Closes the directory: consumers finish what their listeners are at, progress is committed,
    /// everything is made durable. Whatever sends, consumes, commits, creates or flushes returns
    /// `Closed` from then on; the getters, such as [`topics`](Self::topics),
    /// [`committed`](Self::committed) and [`stats`](Self::stats), tell how it ended, and messages
    /// that were received stay valid. From inside a listener it returns at once, and the rest
    /// happens behind it.
    ///
    /// A second `close` waits for the first; if that one failed, it fails with `Poisoned`, which
    /// names the cause.
    ///
    /// # Errors
    /// `Poisoned`, `DiskFull` or `Io` if not everything could be made durable: the next open then
    /// recovers.
    pub fn close(&self) -> Result<()> {
        self.core().close()
    }

    /// Reads and checks everything in the directory: every record, the index, the committed
    /// offsets, the tables. It changes nothing, and nothing waits for it.
    ///
    /// # Errors
    /// `Io` or `Version` if a file cannot be read; what is wrong in a file is in the result. `Closed`.
    pub fn verify(&self) -> Result<Verification> {
        if self.core().is_closed() {
            return Err(Error::Closed);
        }
        self.core().store.verify()
    }

    /// Copies the directory to `path`, which must not exist yet, in a folder that does, while
    /// producers and consumers go on: everything that was sent and committed before the call, and
    /// perhaps some of what comes during it. The copy is read and verified before it gets its name,
    /// so it is whole or not there; while it is made, and if the process is killed meanwhile, it is
    /// called `<path>.partial-<n>`.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let (path, copy) = (dir.path().join("data"), dir.path().join("copy"));
    /// use rocklet::{Broker, Message};
    /// let broker = Broker::open(path)?;
    /// broker.producer().send(&Message::new("orders", b"paid"))?;
    /// broker.backup(&copy)?;
    /// assert_eq!(Broker::open(copy)?.topics(), ["orders"]);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Io` if `path` exists or cannot be made, `DiskFull`, `Corrupt` if something in the log cannot
    /// be read, `Closed`. Nothing is left behind then.
    pub fn backup(&self, path: impl AsRef<Path>) -> Result<()> {
        if self.core().is_closed() {
            return Err(Error::Closed);
        }
        self.core().store.backup(path.as_ref())
    }

    /// What opening the directory had to do.
    #[must_use]
    pub fn recovery_report(&self) -> RecoveryReport {
        self.core().store.report().clone()
    }

    /// A snapshot of what the broker is doing.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats::of(self.core())
    }

    pub(super) fn new(core: Arc<Core>) -> Self {
        Self { handle: Arc::new(Handle { core }) }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.handle.core
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Nobody is left to be told; the next open recovers what a failed close leaves.
        let _ = self.core.close();
    }
}
