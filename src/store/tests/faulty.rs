//! A real directory whose calls are counted and can be made to fail.

use crate::clock::Clock;
pub(crate) use crate::storage::StorageCall as Call;
use crate::storage::{
    Directory, FaultPlan, Faults, Region, Space, Storage, StorageFault, StorageFile,
};
use crate::sync::{Arc, Mutex, Rank, Signal};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The real directory behind a plan of failures.
#[derive(Debug)]
pub(crate) struct Faulty {
    inner: Directory,
    plan: Arc<Plan>,
    /// Whether the machine's boot can be read.
    knows_boot: bool,
}

#[derive(Debug)]
struct Plan {
    state: Mutex<State>,
    released: Signal,
}

#[derive(Debug, Default)]
struct State {
    faults: Faults,
    /// Calls that had failed when the last plan was made.
    failed: u64,
    read: u64,
    written: u64,
    /// Calls of this kind wait.
    held: Option<Call>,
    waiting: usize,
    space: Option<Space>,
}

impl Faulty {
    pub(crate) fn new(dir: &Path) -> Arc<Self> {
        Self::over(dir, true)
    }

    /// As in a sandbox that does not tell the machine's boot.
    pub(crate) fn without_boot(dir: &Path) -> Arc<Self> {
        Self::over(dir, false)
    }

    fn over(dir: &Path, knows_boot: bool) -> Arc<Self> {
        let state = Mutex::new(Rank::Signal, State::default());
        let plan = Arc::new(Plan { state, released: Signal::new() });
        Arc::new(Self { inner: Directory::new(dir).unwrap(), plan, knows_boot })
    }

    /// Lets every call of that kind wait, as on a disk that is slow.
    pub(crate) fn hold(&self, call: Call) {
        self.plan.state.lock().held = Some(call);
    }

    /// Lets the calls go on that wait.
    pub(crate) fn release(&self) {
        self.plan.state.lock().held = None;
        self.plan.released.notify();
    }

    /// Has the file system say that it is so full.
    pub(crate) fn set_space(&self, used: u64, available: u64) {
        self.plan.state.lock().space = Some(Space { used, available });
    }

    /// How many calls wait.
    pub(crate) fn waiting(&self) -> usize {
        self.plan.state.lock().waiting
    }

    /// After `after` more calls of that kind (of any, if `None`), `times` of them fail.
    pub(crate) fn fail(&self, call: Option<Call>, after: u64, times: u64, kind: io::ErrorKind) {
        let full = kind == io::ErrorKind::StorageFull;
        let fault = if full { StorageFault::NoSpace } else { StorageFault::Io };
        let plan = FaultPlan::new(fault).after(after).times(times);
        let mut state = self.plan.state.lock();
        state.faults.plan(Some(call.map_or(plan, |call| plan.only(call))));
        state.failed = state.faults.injected();
    }

    pub(crate) fn heal(&self) {
        self.plan.state.lock().faults.plan(None);
    }

    pub(crate) fn has_failed(&self) -> bool {
        let state = self.plan.state.lock();
        state.faults.injected() > state.failed
    }

    pub(crate) fn count(&self, call: Call) -> u64 {
        self.plan.state.lock().faults.calls(Some(call))
    }

    /// Bytes read through calls.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.plan.state.lock().read
    }

    /// Bytes written through calls.
    pub(crate) fn bytes_written(&self) -> u64 {
        self.plan.state.lock().written
    }

    fn file(&self, inner: Arc<dyn StorageFile>) -> Arc<dyn StorageFile> {
        Arc::new(FaultyFile { inner, plan: self.plan.clone() })
    }
}

impl Plan {
    fn pass(&self, call: Call) -> io::Result<()> {
        let mut state = self.state.lock();
        if state.held == Some(call) {
            state.waiting += 1;
            drop(state);
            let (clock, released) = (Clock::system(), || self.state.lock().held != Some(call));
            let limit = clock.moment().plus(Duration::from_secs(60));
            let in_time = self.released.wait_until(&clock, Some(limit), released);
            assert!(in_time, "a call is held up and never released");
            state = self.state.lock();
            state.waiting -= 1;
        }
        state.faults.pass(call).map_or(Ok(()), |fault| Err(fault.error()))
    }
}

impl Storage for Faulty {
    fn lock(&self) -> io::Result<bool> {
        self.inner.lock()
    }

    fn unlock(&self) {
        self.inner.unlock();
    }

    fn make_folder(&self, folder: &str) -> io::Result<()> {
        self.plan.pass(Call::MakeFolder)?;
        self.inner.make_folder(folder)
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        self.plan.pass(Call::List)?;
        self.inner.list(folder)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        self.plan.pass(Call::Open)?;
        self.inner.open(name).map(|file| self.file(file))
    }

    fn create(&self, name: &str, len: u64) -> io::Result<Arc<dyn StorageFile>> {
        self.plan.pass(Call::Create)?;
        self.inner.create(name, len).map(|file| self.file(file))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.plan.pass(Call::Rename)?;
        self.inner.rename(from, to)
    }

    fn rename_unshared(&self, from: &str, to: &str) -> io::Result<bool> {
        self.plan.pass(Call::Rename)?;
        self.inner.rename_unshared(from, to)
    }

    fn space(&self) -> io::Result<Space> {
        self.plan.state.lock().space.map_or_else(|| self.inner.space(), Ok)
    }

    fn unlink(&self, name: &str) -> io::Result<()> {
        self.plan.pass(Call::Unlink)?;
        self.inner.unlink(name)
    }

    fn sync_folder(&self, folder: &str) -> io::Result<()> {
        self.plan.pass(Call::SyncFolder)?;
        self.inner.sync_folder(folder)
    }

    fn boot_id(&self) -> Option<[u8; 16]> {
        self.inner.boot_id().filter(|_| self.knows_boot)
    }

    fn random(&self) -> io::Result<u64> {
        self.inner.random()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.inner.path(name)
    }
}

#[derive(Debug)]
struct FaultyFile {
    inner: Arc<dyn StorageFile>,
    plan: Arc<Plan>,
}

impl StorageFile for FaultyFile {
    fn len(&self) -> io::Result<u64> {
        self.plan.pass(Call::Len)?;
        self.inner.len()
    }

    fn read_at(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.plan.pass(Call::Read)?;
        self.plan.state.lock().read += bytes.len() as u64;
        self.inner.read_at(at, bytes)
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.plan.pass(Call::Write)?;
        self.plan.state.lock().written += bytes.len() as u64;
        self.inner.write_at(at, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.plan.pass(Call::Sync)?;
        self.inner.sync()
    }

    fn start_write_back(&self, range: Range<u64>) -> io::Result<()> {
        self.plan.pass(Call::WriteBack)?;
        self.inner.start_write_back(range)
    }

    fn map(&self) -> io::Result<Region> {
        self.plan.pass(Call::Map)?;
        let plan = self.plan.clone();
        Ok(self.inner.map()?.with_sync(move |_| plan.pass(Call::SyncRange)))
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.plan.pass(Call::Truncate)?;
        self.inner.truncate(len)
    }
}
