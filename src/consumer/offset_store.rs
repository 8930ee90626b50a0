//! Progress in a store of the user's.
//!
//! It is user code: it may be slow, fail or panic. So it is called by the workers of its consumer
//! alone, with no lock held, for one queue by one thread at a time, and what it was given last is
//! the highest.

use crate::error::{Error, Result};
use crate::queue_id::QueueId;
use crate::sync::{Arc, Mutex, Rank, contain};
use std::collections::BTreeMap;
use std::fmt;

/// Keeps the progress of a consumer in the place of the directory, such as in a database next to
/// what its listener writes.
///
/// Without one, the directory keeps it: for the group, or in
/// [`Mode::Broadcasting`](crate::Mode::Broadcasting) for each member by its name. All members of a
/// group have one, or none has. Progress comes at an interval, when a queue is given away, and at
/// shutdown. A panic counts as a failure.
pub trait OffsetStore: Send + Sync {
    /// Prepares reading; called once, by `start`, which fails if this does.
    ///
    /// # Errors
    /// Whatever is to be told to who starts the consumer.
    fn load(&self) -> std::result::Result<(), String> {
        Ok(())
    }

    /// The offset at which to go on in a queue; `None` to begin where the group begins.
    ///
    /// # Errors
    /// Whatever went wrong: the queue is not consumed, and this is called again after a delay.
    fn read(&self, queue: &QueueId) -> std::result::Result<Option<u64>, String>;

    /// Keeps the offset at which to go on.
    ///
    /// # Errors
    /// Whatever went wrong: it is counted, and this is called again with what is next.
    fn store(&self, queue: &QueueId, offset: u64) -> std::result::Result<(), String>;
}

/// A shared store.
impl<S: OffsetStore + ?Sized> OffsetStore for Arc<S> {
    fn load(&self) -> std::result::Result<(), String> {
        (**self).load()
    }

    fn read(&self, queue: &QueueId) -> std::result::Result<Option<u64>, String> {
        (**self).read(queue)
    }

    fn store(&self, queue: &QueueId, offset: u64) -> std::result::Result<(), String> {
        (**self).store(queue, offset)
    }
}

/// The store of one consumer, and what it has not been told yet.
pub(super) struct OwnOffsets {
    store: Arc<dyn OffsetStore>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    queues: BTreeMap<QueueId, Progress>,
    /// Somebody is to come and store.
    due: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    reached: u64,
    stored: u64,
    /// A thread is inside the store with it.
    storing: bool,
}

impl OwnOffsets {
    /// # Errors
    /// `OffsetStore` if it cannot be loaded.
    pub(super) fn load(store: Arc<dyn OffsetStore>) -> Result<Self> {
        call("load", || store.load())?;
        Ok(Self { store, state: Mutex::new(Rank::Member, State::default()) })
    }

    /// Reads where to go on in a queue, and forgets what was known of it.
    ///
    /// # Errors
    /// `OffsetStore`.
    pub(super) fn read(&self, queue: &QueueId) -> Result<Option<u64>> {
        let read = call("read", || self.store.read(queue))?;
        if let Some(offset) = read {
            let progress = Progress { reached: offset, stored: offset, storing: false };
            self.state.lock().queues.insert(queue.clone(), progress);
        }
        Ok(read)
    }

    /// Notes progress that only rises (OFF-1); true if somebody is to come after the interval and
    /// store it.
    pub(super) fn note(&self, queue: &QueueId, offset: u64) -> bool {
        let mut state = self.state.lock();
        let State { queues, due } = &mut *state;
        let progress = queues.entry(queue.clone()).or_default();
        progress.reached = progress.reached.max(offset);
        progress.reached > progress.stored && !std::mem::replace(due, true)
    }

    /// Stores what a queue has reached. False if another thread is at it, and will do it.
    ///
    /// # Errors
    /// `OffsetStore`; what could not be stored is kept.
    pub(super) fn store(&self, queue: &QueueId) -> Result<bool> {
        loop {
            let mut state = self.state.lock();
            let Some(progress) = state.queues.get_mut(queue) else { return Ok(true) };
            if progress.storing {
                return Ok(false);
            }
            let reached = progress.reached;
            if progress.stored == reached {
                return Ok(true);
            }
            progress.storing = true;
            drop(state);
            let stored = call("store", || self.store.store(queue, reached));
            let mut state = self.state.lock();
            if let Some(progress) = state.queues.get_mut(queue) {
                progress.storing = false;
                if stored.is_ok() {
                    progress.stored = reached;
                }
            }
            drop(state);
            stored?;
        }
    }

    /// The queues with something to store; the next progress has somebody come again.
    pub(super) fn unstored(&self) -> Vec<QueueId> {
        let mut state = self.state.lock();
        state.due = false;
        let queues = state.queues.iter();
        let unstored = queues.filter(|(_, progress)| progress.reached > progress.stored);
        unstored.map(|(queue, _)| queue.clone()).collect()
    }

    /// Whether somebody is to come again because something is left; nobody else is then told to.
    pub(super) fn is_due(&self) -> bool {
        !std::mem::replace(&mut self.state.lock().due, true)
    }

    /// Drops a queue that was given away.
    pub(super) fn forget(&self, queue: &QueueId) {
        self.state.lock().queues.remove(queue);
    }
}

fn call<R>(
    action: &'static str,
    call: impl FnOnce() -> std::result::Result<R, String>,
) -> Result<R> {
    let called = contain(call).unwrap_or_else(|panic| Err(format!("it panicked: {panic}")));
    called.map_err(|reason| Error::OffsetStore { action, reason })
}

impl fmt::Debug for OwnOffsets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnOffsets").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Fails when told to, and keeps every call.
    #[derive(Default)]
    struct Notebook {
        broken: std::sync::Mutex<bool>,
        stored: std::sync::Mutex<Vec<u64>>,
    }

    impl OffsetStore for Notebook {
        fn read(&self, _queue: &QueueId) -> std::result::Result<Option<u64>, String> {
            Ok(self.stored.lock().unwrap().last().copied())
        }

        fn store(&self, _queue: &QueueId, offset: u64) -> std::result::Result<(), String> {
            if *self.broken.lock().unwrap() {
                panic!("planted");
            }
            self.stored.lock().unwrap().push(offset);
            Ok(())
        }
    }

    #[test]
    fn off_1_progress_only_rises_and_is_stored_once() {
        let notebook = Arc::new(Notebook::default());
        let offsets = OwnOffsets::load(notebook.clone()).unwrap();
        let queue = QueueId::new("t", 0);
        assert_eq!(offsets.read(&queue).unwrap(), None);
        assert!(offsets.note(&queue, 5));
        assert!(!offsets.note(&queue, 3), "there is something already");
        assert_eq!(offsets.unstored(), std::slice::from_ref(&queue));
        assert!(offsets.store(&queue).unwrap() && offsets.store(&queue).unwrap());
        assert!(!offsets.note(&queue, 4), "lower than what is stored");
        assert!(offsets.store(&queue).unwrap() && offsets.note(&queue, 6));
        assert_eq!(*notebook.stored.lock().unwrap(), [5]);
        assert_eq!(offsets.unstored(), [queue]);
    }

    #[test]
    fn off_4_what_could_not_be_stored_is_kept_until_it_is() {
        let notebook = Arc::new(Notebook::default());
        let offsets = OwnOffsets::load(notebook.clone()).unwrap();
        let queue = QueueId::new("t", 0);
        *notebook.broken.lock().unwrap_or_else(|e| e.into_inner()) = true;
        offsets.note(&queue, 5);
        let error = offsets.store(&queue).unwrap_err();
        assert!(matches!(error, Error::OffsetStore { action: "store", .. }), "{error}");
        offsets.note(&queue, 7);
        notebook.broken.clear_poison();
        *notebook.broken.lock().unwrap() = false;
        assert!(offsets.store(&queue).unwrap());
        assert_eq!(*notebook.stored.lock().unwrap(), [7]);
    }
}
