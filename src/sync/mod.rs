//! The one door to atomics, shared ownership, locks, waiting, channels and threads.
//!
//! Everything above this module takes its synchronisation from here, so that a build with
//! `--cfg loom` swaps the real primitives for modelled ones in one place. `Arc` is std's in both
//! builds: loom's has no `Weak`, and no protocol of ours rests on the count itself.

mod alarm;
mod channel;
mod lock;
mod signal;
mod swap;
mod thread;

pub(crate) use alarm::Alarm;
pub(crate) use channel::{Receiver, Sender, channel};
pub(crate) use lock::{Condvar, Mutex, MutexGuard, Rank, RwLock};
pub(crate) use signal::Signal;
pub(crate) use std::sync::{Arc, Weak};
pub(crate) use swap::Swap;
pub(crate) use thread::{Thread, cores, panic_text, spawn};

#[cfg(not(all(test, loom)))]
pub(crate) mod atomic {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
}

#[cfg(all(test, loom))]
pub(crate) mod atomic {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
}

/// Keeps a value on cache lines of its own, so that neighbours written by other threads do not
/// slow its readers.
pub(crate) type Padded<T> = crossbeam::utils::CachePadded<T>;
