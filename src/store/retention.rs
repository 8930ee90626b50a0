//! What the log may take and when its oldest messages go: the settings, and the numbers of it.

use std::collections::BTreeSet;
use std::time::Duration;

/// When the oldest files of the log are dropped, with all messages in them.
///
/// By default nothing is dropped unless it is asked for, by this or by
/// [`drop_before`](crate::Broker::drop_before). A file goes as soon as one of the reasons applies
/// to it, oldest first. The file that is being filled is never dropped: the last messages of a
/// broker that falls silent stay.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// use rocklet::{Broker, Retention};
/// use std::time::Duration;
///
/// // Three days, and not more than 10 GiB; but nothing that a group has still to consume.
/// let days = Duration::from_secs(3 * 24 * 3600);
/// let retention = Retention::none().age(days).log_bytes(10 << 30).keep_unconsumed();
/// let broker = Broker::builder(dir.path()).retention(retention).open()?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "settings do nothing until they are given to a builder"]
pub struct Retention {
    pub(crate) age: Option<Duration>,
    pub(crate) bytes: Option<u64>,
    pub(crate) disk_percent: Option<u8>,
    pub(crate) kept: Kept,
}

/// Whose messages stay although there is a reason to drop them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kept {
    #[default]
    Nobodys,
    AnyGroups,
    Groups(BTreeSet<String>),
}

impl Retention {
    /// Drops nothing: the default.
    pub fn none() -> Self {
        Self::default()
    }

    /// Drops files that have been full for longer than `age` (STORE-49). What counts is when a
    /// message was stored, never when it was born, and no clock that jumps while the broker is
    /// open. With `Duration::ZERO` a file goes once it is full.
    pub fn age(mut self, age: Duration) -> Self {
        self.age = Some(age);
        self
    }

    /// Drops the oldest files while those of the log have more than `bytes`, of which up to two
    /// are always there: the one that is filled, and the next.
    pub fn log_bytes(mut self, bytes: u64) -> Self {
        self.bytes = Some(bytes);
        self
    }

    /// Drops the oldest files while more than `percent` of the file system are in use, by
    /// whomever (STORE-50): 1 to 99. Looked at whenever a file of the log is full.
    pub fn disk_percent(mut self, percent: u8) -> Self {
        self.disk_percent = Some(percent);
        self
    }

    /// Keeps what any group has still to consume, of every topic that it has met. A group that
    /// never comes back keeps its messages for ever, unless the log has a limit, see
    /// [`AtLimit::DropOldest`].
    pub fn keep_unconsumed(mut self) -> Self {
        self.kept = Kept::AnyGroups;
        self
    }

    /// Keeps what these groups have still to consume; everything while one of them has not been
    /// started for the first time.
    pub fn keep_unconsumed_by<G: Into<String>>(
        mut self,
        groups: impl IntoIterator<Item = G>,
    ) -> Self {
        self.kept = Kept::Groups(groups.into_iter().map(Into::into).collect());
        self
    }

    /// Whether anything is ever dropped.
    pub(crate) fn is_none(&self) -> bool {
        self.age.is_none() && self.bytes.is_none() && self.disk_percent.is_none()
    }
}

/// What happens when there is no room for the next file of the log: it has reached its
/// [`max_log_bytes`](crate::BrokerBuilder::max_log_bytes), the file system its
/// [`min_free_bytes`](crate::BrokerBuilder::min_free_bytes), or its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AtLimit {
    /// Sends are refused with `LogFull` or `DiskFull`, until there is room again: the default.
    #[default]
    Refuse,
    /// The oldest file is dropped, consumed or not, and sending goes on. Counted in
    /// [`RetentionStats::dropped_at_limit`].
    DropOldest,
}

/// What the log takes, and what was dropped of it since the broker was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetentionStats {
    /// Bytes of the files of the log.
    pub log_bytes: u64,
    /// Bytes of dropped files that wait to become the next ones, two at most.
    pub spare_bytes: u64,
    /// Bytes of dropped files that deliveries keep alive: they are returned to the file system
    /// when the last delivery of each goes.
    pub held_bytes: u64,
    /// Files dropped, for whatever reason.
    pub dropped_files: u64,
    /// Bytes of these files.
    pub dropped_bytes: u64,
    /// How many of them were used again.
    pub reused_files: u64,
    /// How many of them were dropped because there was no room for the next one, whether their
    /// messages had been consumed or not ([`AtLimit::DropOldest`]).
    pub dropped_at_limit: u64,
    /// Whether a file that is to go stays for a group that has still to consume it.
    pub waits_for_groups: bool,
    /// How often dropping failed; [`Broker::retention_failure`](crate::Broker::retention_failure)
    /// tells the last reason. What has a new beginning durably, but could not be removed, goes at
    /// the next open; anything else is tried again.
    pub failures: u64,
}
