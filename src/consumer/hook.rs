//! Hooks around calls of a listener (CONC-5, CONC-6).

use super::batch::Batch;
use std::fmt;
use std::time::Duration;

/// Sees every batch before and after the listener does, on the listener's thread, with no lock held.
/// A panic in a hook is contained and counted in [`Stats`](crate::Stats::panicked_hooks).
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let broker = rocklet::Broker::open(dir.path())?;
/// use rocklet::{Batch, ConsumeHook, Consumed};
///
/// #[derive(Debug)]
/// struct Trace;
///
/// impl ConsumeHook for Trace {
///     fn after(&self, batch: &Batch<'_>, consumed: &Consumed) {
///         println!("{}: {:?} in {:?}", batch.queue_id(), consumed.return_type, consumed.elapsed);
///     }
/// }
///
/// let builder = broker.push_consumer("audit").subscribe("orders", "*")?;
/// let consumer = builder.hook(Trace).start(|_| ())?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
pub trait ConsumeHook: Send + Sync + fmt::Debug {
    /// Is called before the listener.
    fn before(&self, batch: &Batch<'_>) {
        let _ = batch;
    }

    /// Is called after the listener, once for every `before`: also when it has panicked, and when
    /// the result does not count any more, because the queue has another owner or the time was up.
    fn after(&self, batch: &Batch<'_>, consumed: &Consumed) {
        let _ = (batch, consumed);
    }
}

/// How one call of a listener ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Consumed {
    /// How it returned.
    pub return_type: ReturnType,
    /// How many messages it acknowledged, beginning with the first.
    pub acknowledged: usize,
    /// Why it failed others, if it said so; or the text of its panic.
    pub reason: Option<String>,
    /// How long it took.
    pub elapsed: Duration,
}

/// How a listener returned; the first that applies (CONC-5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReturnType {
    /// It panicked.
    Panicked,
    /// It took longer than [`consume_timeout`](crate::PushConsumerBuilder::consume_timeout),
    /// whatever it returned.
    TimedOut,
    /// It failed at least one message.
    Failed,
    /// It acknowledged all.
    Success,
}
