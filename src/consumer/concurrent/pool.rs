//! The threads of a push consumer, as many as are wanted at the moment (CLI-13).
//!
//! A worker too many ends when it takes a [`Work::Stop`] from the channel and there still are more
//! than are wanted: between two pieces of work, so that nothing is lost, and not if the number has
//! been raised again meanwhile.

use super::super::builder::check_range;
use super::super::owned_queue::Work;
use super::Service;
use crate::broker::core::thread_error;
use crate::error::{Error, Result};
use crate::service_state::ServiceState;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Mutex, Rank, Receiver, Thread, ThreadId, current_thread, spawn};

/// The workers.
pub(super) struct Pool {
    state: Mutex<State>,
    wanted: AtomicUsize,
}

struct State {
    /// Where they get their work; `None` once they are to end for good.
    received: Option<Receiver<Work>>,
    wanted: usize,
    /// Without a thread while that is joined: it may still be in code of the user's.
    workers: Vec<(ThreadId, Option<Thread>)>,
    /// Those that are about to end.
    leaving: Vec<Thread>,
    named: usize,
}

impl Pool {
    pub(super) fn new(received: Receiver<Work>) -> Self {
        let (workers, leaving) = (Vec::new(), Vec::new());
        let state = State { received: Some(received), wanted: 0, workers, leaving, named: 0 };
        Self { state: Mutex::new(Rank::Lifecycle, state), wanted: AtomicUsize::new(0) }
    }

    /// How many there are to be.
    pub(super) fn wanted(&self) -> usize {
        self.wanted.load(Ordering::Relaxed)
    }

    pub(super) fn has_current_thread(&self) -> bool {
        let current = current_thread();
        self.state.lock().workers.iter().any(|(id, _)| *id == current)
    }

    /// Whether the calling worker is one too many; then it is not one any more.
    pub(super) fn leave(&self) -> bool {
        let mut state = self.state.lock();
        if state.workers.len() <= state.wanted {
            return false;
        }
        let current = current_thread();
        let at = state.workers.iter().position(|(id, _)| *id == current);
        // One that is waited for stays known.
        if let Some(at) = at.filter(|at| state.workers[*at].1.is_some()) {
            let (_, thread) = state.workers.swap_remove(at);
            state.leaving.extend(thread);
        }
        true
    }

    /// Ends all workers, and waits until they have ended. `stop` tells one of them.
    pub(super) fn close(&self, stop: impl Fn()) {
        let mut state = self.state.lock();
        (state.wanted, state.received) = (0, None);
        let mut threads = std::mem::take(&mut state.leaving);
        threads.extend(state.workers.iter_mut().filter_map(|(_, thread)| thread.take()));
        drop(state);
        threads.iter().for_each(|_| stop());
        threads.into_iter().for_each(Thread::join);
    }
}

impl Service {
    /// Changes the number of workers, and returns it.
    ///
    /// # Errors
    /// `Setting` if `to` answers with a number out of range; `Io` if not all threads could be
    /// started: those that were stay. `State` if the consumer is being shut down.
    pub(in super::super) fn resize(&self, to: impl FnOnce(usize) -> usize) -> Result<usize> {
        let mut state = self.pool.state.lock();
        let Some(received) = state.received.clone() else {
            let action = "change its threads";
            return Err(Error::State { action, state: ServiceState::Shutdown });
        };
        let wanted = to(state.wanted);
        check_range("threads", wanted, 1, 1000)?;
        state.wanted = wanted;
        (wanted..state.workers.len()).for_each(|_| self.work.send(Work::Stop));
        let mut failed = Ok(wanted);
        while state.workers.len() < wanted {
            match self.start_worker(state.named, &received) {
                Ok(thread) => state.workers.push((thread.id(), Some(thread))),
                Err(error) => {
                    state.wanted = state.workers.len();
                    failed = Err(error);
                    break;
                }
            }
            state.named += 1;
        }
        self.pool.wanted.store(state.wanted, Ordering::Relaxed);
        let gone = std::mem::take(&mut state.leaving);
        drop(state);
        gone.into_iter().for_each(Thread::join);
        failed
    }

    /// How many workers there are to be.
    pub(in super::super) fn threads(&self) -> usize {
        self.pool.wanted()
    }

    fn start_worker(&self, nth: usize, received: &Receiver<Work>) -> Result<Thread> {
        let (service, received) = (self.myself.upgrade(), received.clone());
        let noted = self.core.clock().thread();
        let run = move || {
            let _noted = noted;
            service.into_iter().for_each(|service| service.guard(|| service.run(&received)));
        };
        let started = spawn(&format!("{}-{nth}", self.name), run);
        started.map_err(|source| thread_error(&self.core.store, source))
    }
}
