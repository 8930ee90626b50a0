//! A wake-up that is remembered until it is heard: for one background thread that sleeps when it
//! has nothing to do.

use super::Signal;
use super::atomic::{AtomicBool, Ordering};
use crate::clock::{Clock, Moment};

/// Rung by many, heard by one.
#[derive(Debug)]
pub(crate) struct Alarm {
    rung: AtomicBool,
    signal: Signal,
}

impl Alarm {
    pub(crate) fn new() -> Self {
        Self { rung: AtomicBool::new(false), signal: Signal::new() }
    }

    pub(crate) fn ring(&self) {
        #[cfg(broken_ring_early)]
        self.signal.notify();
        // Release: whoever hears it sees what was done before.
        self.rung.swap(true, Ordering::Release);
        #[cfg(not(broken_ring_early))]
        self.signal.notify();
    }

    /// Whether it has rung and nobody has heard it.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn is_rung(&self) -> bool {
        self.rung.load(Ordering::Acquire)
    }

    /// Hears it if it has rung.
    pub(crate) fn hear(&self) -> bool {
        self.rung.swap(false, Ordering::Acquire)
    }

    /// Sleeps until it rings (true) or until `deadline` (false).
    pub(crate) fn wait(&self, clock: &Clock, deadline: Option<Moment>) -> bool {
        self.signal.wait_until(clock, deadline, || self.hear())
    }
}
