//! Models of the protocols between threads: loom runs each in every interleaving within a bound of
//! preemptions, and with every value that a weak memory may show.
//!
//! `cargo loom` runs them all, `cargo loom <model>` one. `LOOM_MAX_PREEMPTIONS` looks deeper. Every
//! model
//! - proves that it can fail: its head names the bugs planted in the source (`--cfg broken_<name>`)
//!   that it must catch, and the texts with which it then fails; `ci/planted-bugs.sh` does that;
//! - asserts which outcomes it has seen: loom leaves interleavings out without a word when a thread
//!   loads an atomic and then stores to it (tokio-rs/loom#392), so that a model may pass because
//!   nothing happened in it;
//! - runs with the threads started in both orders, and readers yield before their first load, for
//!   the same reason.

#![allow(clippy::disallowed_types)] // loom has no business with what the harness itself shares

mod append_read;
mod broadcast_progress;
mod channel;
mod close_and_read;
mod close_and_send;
mod delays;
mod event_count;
mod fixture;
mod group_commit;
mod hand_over;
mod hold_table;
mod in_flight_window;
mod index_after_record;
mod offset_commit;
mod offset_reset;
mod orderly_hand_off;
mod orderly_lease;
mod pause_gate;
mod pending_sends;
mod populate_ahead;
mod pull_request_handoff;
mod recycle;
mod roll;
mod run_claiming;
mod scheduled_turn;
mod timed_call;
mod topic_change;

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Runs `model` in every interleaving of at most `preemptions` preemptions, and returns the
/// outcomes of all runs.
fn explore<T>(preemptions: usize, model: impl Fn() -> T + Send + Sync + 'static) -> BTreeSet<T>
where
    T: Ord + Debug + Send + 'static,
{
    let outcomes = Arc::new(Mutex::new(BTreeSet::new()));
    let runs = Arc::new(AtomicUsize::new(0));
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(preemptions);
    builder.max_branches = 20_000;
    let (noted, counted) = (outcomes.clone(), runs.clone());
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        let outcome = model();
        noted.lock().unwrap().insert(outcome);
    });
    let outcomes = std::mem::take(&mut *outcomes.lock().unwrap());
    let runs = runs.load(Ordering::Relaxed);
    #[allow(clippy::print_stderr)] // for whoever runs it with --nocapture
    {
        let test = std::thread::current().name().unwrap_or_default().to_owned();
        eprintln!("{test}: {runs} interleavings, outcomes {outcomes:?}");
    }
    outcomes
}

/// Runs `threads` at the same time on `shared`; started from the last to the first if `mirrored`.
fn race<S, T, const N: usize>(
    mirrored: bool,
    shared: &Arc<S>,
    mut threads: [fn(&S) -> T; N],
) -> [T; N]
where
    S: 'static,
    T: 'static,
{
    if mirrored {
        threads.reverse();
    }
    let started = threads.map(|thread| {
        let shared = shared.clone();
        loom::thread::spawn(move || thread(&shared))
    });
    let mut ended = started.map(|thread| thread.join().unwrap());
    if mirrored {
        ended.reverse();
    }
    ended
}

/// Both orders in which `race` starts its threads.
const ORDERS: [bool; 2] = [false, true];
