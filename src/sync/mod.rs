//! The one door to atomics, shared ownership, locks, waiting, channels and threads.
//!
//! Everything above this module takes its synchronisation from here, so that a build with
//! `--cfg loom` swaps the real primitives for modelled ones in one place. `Arc` is std's in both
//! builds, as loom's has no `Weak`; where a protocol rests on the count itself, it is [`Counted`].

#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // the door to atomics

mod alarm;
mod channel;
mod lock;
mod signal;
mod swap;
mod thread;

pub(crate) use alarm::Alarm;
#[cfg(all(test, loom))]
pub(crate) use channel::contract;
pub(crate) use channel::{Receiver, Sender, channel};
pub(crate) use lock::{Condvar, Mutex, MutexGuard, Rank};
pub(crate) use signal::Signal;
pub(crate) use std::sync::{Arc, OnceLock, Weak};
pub(crate) use swap::Swap;
pub(crate) use thread::{Thread, ThreadId, contain, cores, current_thread, spawn};

#[cfg(not(all(test, loom)))]
pub(crate) mod atomic {
    pub(crate) use std::sync::atomic::Ordering;

    // Aliases, so that clippy takes them for ours.
    pub(crate) type AtomicBool = std::sync::atomic::AtomicBool;
    pub(crate) type AtomicU32 = std::sync::atomic::AtomicU32;
    pub(crate) type AtomicU64 = std::sync::atomic::AtomicU64;
    pub(crate) type AtomicUsize = std::sync::atomic::AtomicUsize;
}

#[cfg(all(test, loom))]
pub(crate) mod atomic {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
}

/// A shared value that is used again once the last reference to it is consumed: what others did
/// with theirs has happened before.
#[cfg(not(all(test, loom)))]
pub(crate) type Counted<T> = Arc<T>;
#[cfg(all(test, loom))]
pub(crate) type Counted<T> = loom::sync::Arc<T>;

/// Keeps a value on cache lines of its own, so that neighbours written by other threads do not
/// slow its readers.
pub(crate) type Padded<T> = crossbeam::utils::CachePadded<T>;
