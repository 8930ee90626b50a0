//! Calls that are made to fail.

use std::collections::BTreeMap;
use std::io;

/// A call of the store to its directory, for [`FaultPlan::only`] (feature `testing`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum StorageCall {
    /// Lists a folder.
    List,
    /// Makes a folder, durably.
    MakeFolder,
    /// Opens a file.
    Open,
    /// Makes a file with all its blocks.
    Create,
    /// Renames a file.
    Rename,
    /// Removes a file.
    Unlink,
    /// Makes the names in a folder durable.
    SyncFolder,
    /// Asks for the length of a file.
    Len,
    /// Reads from a file.
    Read,
    /// Writes to a file.
    Write,
    /// Makes a file durable; the log is flushed by [`SyncRange`](Self::SyncRange).
    Sync,
    /// Maps a file into memory.
    Map,
    /// Makes part of a mapped file durable: the flush of sent messages, among others.
    SyncRange,
    /// Starts writing part of a file to the disk.
    WriteBack,
    /// Shortens a file.
    Truncate,
}

/// How a call fails (feature `testing`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StorageFault {
    /// The device fails, `EIO`: any call may. Nothing is done, but a sync that fails loses track of
    /// what it was to write: a later sync that succeeds does not make it durable.
    Io,
    /// There is no room, `ENOSPC`: any call that changes something may.
    NoSpace,
    /// A write does the first half of its bytes and finds no room for the rest.
    ShortWrite,
}

impl StorageFault {
    fn applies(self, call: StorageCall) -> bool {
        use StorageCall::{Len, List, Map, Open, Read, Write};
        match self {
            Self::Io => true,
            Self::NoSpace => !matches!(call, List | Open | Len | Read | Map),
            Self::ShortWrite => call == Write,
        }
    }

    pub(crate) fn error(self) -> io::Error {
        let kind = match self {
            Self::Io => io::ErrorKind::Other,
            Self::NoSpace | Self::ShortWrite => io::ErrorKind::StorageFull,
        };
        io::Error::new(kind, "made to fail")
    }
}

/// Which calls fail, and how (feature `testing`): every call that the fault applies to, unless it
/// is told otherwise. See [`SimulatedStorage::fail`](crate::SimulatedStorage::fail).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a plan does nothing until it is given to a storage"]
pub struct FaultPlan {
    fault: StorageFault,
    only: Option<StorageCall>,
    after: u64,
    times: u64,
}

impl FaultPlan {
    /// Plans `fault` for every call from now on.
    pub fn new(fault: StorageFault) -> Self {
        Self { fault, only: None, after: 0, times: u64::MAX }
    }

    /// Spares all other calls, which then do not count either.
    pub fn only(mut self, call: StorageCall) -> Self {
        self.only = Some(call);
        self
    }

    /// Lets so many calls pass before.
    pub fn after(mut self, calls: u64) -> Self {
        self.after = calls;
        self
    }

    /// Ends with the first call that failed.
    pub fn once(self) -> Self {
        self.times(1)
    }

    /// Ends once so many calls have failed.
    pub fn times(mut self, times: u64) -> Self {
        self.times = times;
        self
    }
}

/// Counts calls, and makes those fail that a plan names.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    calls: BTreeMap<StorageCall, u64>,
    plan: Option<FaultPlan>,
    injected: u64,
}

impl Faults {
    /// Replaces the plan.
    pub(crate) fn plan(&mut self, plan: Option<FaultPlan>) {
        self.plan = plan;
    }

    /// Notes a call, and says how it is to fail, if it is.
    pub(crate) fn pass(&mut self, call: StorageCall) -> Option<StorageFault> {
        *self.calls.entry(call).or_default() += 1;
        let plan = self.plan.as_mut()?;
        if plan.only.is_some_and(|only| only != call) || !plan.fault.applies(call) {
            return None;
        }
        if plan.after > 0 {
            plan.after -= 1;
            return None;
        }
        plan.times = plan.times.checked_sub(1)?;
        self.injected += 1;
        Some(plan.fault)
    }

    /// How many calls there were, of one kind or of all.
    pub(crate) fn calls(&self, only: Option<StorageCall>) -> u64 {
        let calls = self.calls.iter().filter(|(call, _)| only.is_none_or(|only| only == **call));
        calls.map(|(_, count)| count).sum()
    }

    /// How many calls have been made to fail.
    pub(crate) fn injected(&self) -> u64 {
        self.injected
    }
}
