//! Who reads on no group's account: closing waits for them, as it waits for consumers.

use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::sync::{Mutex, Rank, Signal, ThreadId, current_thread};
use std::marker::PhantomData;

/// A count of reads in progress, and whether another may begin.
#[derive(Debug)]
pub(crate) struct Readers {
    state: Mutex<State>,
    ended: Signal,
}

#[derive(Debug, Default)]
struct State {
    /// The threads that read, each as often as it has begun.
    reading: Vec<ThreadId>,
    closed: bool,
}

/// A read in progress; it ends on the thread on which it began.
#[derive(Debug)]
pub(crate) struct Reading<'a>(&'a Readers, PhantomData<*const ()>);

impl Readers {
    pub(crate) fn new() -> Self {
        Self { state: Mutex::new(Rank::Readers, State::default()), ended: Signal::new() }
    }

    /// Begins a read.
    ///
    /// # Errors
    /// `Closed`.
    pub(crate) fn enter(&self) -> Result<Reading<'_>> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(Error::Closed);
        }
        state.reading.push(current_thread());
        Ok(Reading(self, PhantomData))
    }

    /// Whether the calling thread is in the middle of a read: a predicate of the user's may be.
    pub(crate) fn is_inside(&self) -> bool {
        self.state.lock().reading.contains(&current_thread())
    }

    /// Lets no read begin any more, and returns when none is in progress.
    pub(crate) fn close(&self, clock: &Clock) {
        self.state.lock().closed = true;
        #[cfg(not(broken_close_over_readers))]
        self.ended.wait_until(clock, None, || self.state.lock().reading.is_empty());
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        let thread = current_thread();
        if let Some(at) = state.reading.iter().position(|reader| *reader == thread) {
            state.reading.swap_remove(at);
        }
        let wake = state.closed && state.reading.is_empty();
        drop(state);
        if wake {
            self.0.ended.notify();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn closing_waits_for_reads_and_lets_none_begin() {
        let (readers, clock) = (Readers::new(), Clock::system());
        let (first, second) = (readers.enter().unwrap(), readers.enter().unwrap());
        drop(second);
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let closing = scope.spawn(|| {
                readers.close(&clock);
                assert!(ended.load(Ordering::Relaxed), "closed over a read");
            });
            while readers.enter().is_ok() {
                std::thread::yield_now();
            }
            ended.store(true, Ordering::Relaxed);
            drop(first);
            closing.join().unwrap();
        });
        readers.close(&clock);
        assert!(matches!(readers.enter(), Err(Error::Closed)));
    }
}
