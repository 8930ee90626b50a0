//! Progress in a store of the user's.
//!
//! It is user code: it may be slow, fail or panic. So it is called by the workers of its consumer
//! alone, with no lock held, for one queue by one thread at a time, and what it was given last is
//! where to go on.

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

    /// Keeps the offset at which to go on: higher than those before, unless a queue did not reach
    /// to where it was to go on (PULL-12).
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
    /// Whoever is inside is to give the queue back.
    release: bool,
}

impl OwnOffsets {
    /// # Errors
    /// `OffsetStore` if it cannot be loaded.
    pub(super) fn load(store: Arc<dyn OffsetStore>) -> Result<Self> {
        call("load", || store.load())?;
        Ok(Self { store, state: Mutex::new(Rank::Member, State::default()) })
    }

    /// Reads where to go on in a queue.
    ///
    /// # Errors
    /// `OffsetStore`.
    pub(super) fn read(&self, queue: &QueueId) -> Result<Option<u64>> {
        call("read", || self.store.read(queue))
    }

    /// Begins with what was read: it need not be stored again.
    pub(super) fn begin(&self, queue: &QueueId, offset: u64) {
        let mut state = self.state.lock();
        let progress = state.queues.entry(queue.clone()).or_default();
        progress.reached = progress.reached.max(offset);
        progress.stored = progress.stored.max(offset);
    }

    /// Notes progress that only rises (OFF-1); true if somebody is to come after the interval and
    /// store it.
    pub(super) fn note(&self, queue: &QueueId, offset: u64) -> bool {
        let mut state = self.state.lock();
        let State { queues, due } = &mut *state;
        let progress = queues.entry(queue.clone()).or_default();
        progress.reached = progress.reached.max(offset);
        progress.reached != progress.stored && !std::mem::replace(due, true)
    }

    /// Goes back to `offset`, because the queue does not reach further; what it returns is as from
    /// [`note`](Self::note).
    pub(super) fn go_back(&self, queue: &QueueId, offset: u64) -> bool {
        let mut state = self.state.lock();
        let State { queues, due } = &mut *state;
        let progress = queues.entry(queue.clone()).or_default();
        progress.reached = offset;
        progress.reached != progress.stored && !std::mem::replace(due, true)
    }

    /// Stores what a queue has reached. False if another thread is at it: that one does it, too,
    /// and gives the queue back afterwards if `release` asks for it.
    ///
    /// # Errors
    /// `OffsetStore`; what could not be stored is kept.
    pub(super) fn store(&self, queue: &QueueId, release: bool) -> Result<bool> {
        loop {
            let mut state = self.state.lock();
            let Some(progress) = state.queues.get_mut(queue) else { return Ok(true) };
            if progress.storing {
                progress.release |= release;
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

    /// Whether somebody waits for the queue to be given back.
    pub(super) fn is_to_be_released(&self, queue: &QueueId) -> bool {
        let mut state = self.state.lock();
        let progress = state.queues.get_mut(queue);
        progress.is_some_and(|progress| std::mem::take(&mut progress.release))
    }

    /// The queues with something to store; the next progress has somebody come again.
    pub(super) fn unstored(&self) -> Vec<QueueId> {
        let mut state = self.state.lock();
        state.due = false;
        let queues = state.queues.iter();
        let unstored = queues.filter(|(_, progress)| progress.reached != progress.stored);
        unstored.map(|(queue, _)| queue.clone()).collect()
    }

    /// Something is left: true if somebody is to come after the interval, as from
    /// [`note`](Self::note).
    pub(super) fn make_due(&self) -> bool {
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
        assert!(offsets.store(&queue, false).unwrap() && offsets.store(&queue, false).unwrap());
        assert!(!offsets.note(&queue, 4), "lower than what is stored");
        assert!(offsets.store(&queue, false).unwrap() && offsets.note(&queue, 6));
        assert_eq!(*notebook.stored.lock().unwrap(), [5]);
        assert_eq!(offsets.unstored(), [queue]);
    }

    #[test]
    fn off_5_what_was_read_is_not_stored_again() {
        let notebook = Arc::new(Notebook::default());
        notebook.stored.lock().unwrap().push(9);
        let offsets = OwnOffsets::load(notebook.clone()).unwrap();
        let queue = QueueId::new("t", 0);
        assert_eq!(offsets.read(&queue).unwrap(), Some(9));
        offsets.begin(&queue, 9);
        assert!(!offsets.note(&queue, 9) && offsets.note(&queue, 10));
        // What is told late does not take back what was reached.
        offsets.begin(&queue, 9);
        assert!(offsets.store(&queue, false).unwrap());
        assert_eq!(*notebook.stored.lock().unwrap(), [9, 10]);
    }

    #[test]
    fn pull_12_a_store_is_told_of_a_lower_offset_if_the_queue_has_no_other() {
        let notebook = Arc::new(Notebook::default());
        let offsets = OwnOffsets::load(notebook.clone()).unwrap();
        let queue = QueueId::new("t", 0);
        offsets.begin(&queue, 1000);
        assert!(offsets.go_back(&queue, 5) && !offsets.go_back(&queue, 5), "somebody is to come");
        assert_eq!(offsets.unstored(), std::slice::from_ref(&queue));
        assert!(offsets.store(&queue, false).unwrap());
        assert!(offsets.note(&queue, 6) && !offsets.note(&queue, 4));
        assert!(offsets.store(&queue, false).unwrap());
        assert_eq!(*notebook.stored.lock().unwrap(), [5, 6]);
    }

    #[test]
    fn b_096_whoever_is_inside_the_store_gives_the_queue_back() {
        let door = Arc::new(std::sync::Barrier::new(2));
        struct Slow(Arc<std::sync::Barrier>);
        impl OffsetStore for Slow {
            fn read(&self, _queue: &QueueId) -> std::result::Result<Option<u64>, String> {
                Ok(None)
            }
            fn store(&self, _queue: &QueueId, _offset: u64) -> std::result::Result<(), String> {
                self.0.wait();
                self.0.wait();
                Ok(())
            }
        }
        let offsets = Arc::new(OwnOffsets::load(Arc::new(Slow(door.clone()))).unwrap());
        let queue = QueueId::new("t", 0);
        offsets.note(&queue, 5);
        let (inside, same) = (offsets.clone(), queue.clone());
        let thread = std::thread::spawn(move || inside.store(&same, false).unwrap());
        door.wait();
        assert!(!offsets.store(&queue, true).unwrap(), "somebody is at it");
        door.wait();
        assert!(thread.join().unwrap());
        assert!(offsets.is_to_be_released(&queue) && !offsets.is_to_be_released(&queue));
        assert!(offsets.store(&queue, true).unwrap(), "nothing is left to store");
    }

    #[test]
    fn off_4_what_could_not_be_stored_is_kept_until_it_is() {
        let notebook = Arc::new(Notebook::default());
        let offsets = OwnOffsets::load(notebook.clone()).unwrap();
        let queue = QueueId::new("t", 0);
        *notebook.broken.lock().unwrap_or_else(|e| e.into_inner()) = true;
        offsets.note(&queue, 5);
        let error = offsets.store(&queue, false).unwrap_err();
        assert!(matches!(error, Error::OffsetStore { action: "store", .. }), "{error}");
        offsets.note(&queue, 7);
        notebook.broken.clear_poison();
        *notebook.broken.lock().unwrap() = false;
        assert!(offsets.store(&queue, false).unwrap());
        assert_eq!(*notebook.stored.lock().unwrap(), [7]);
    }
}
