//! Listeners that consume each queue in order, and what they answer.

use super::batch::Batch;
use crate::store::Delivery;
use std::fmt::Display;
use std::time::Duration;

/// How consuming messages in order went (ORD-15).
///
/// Normally progress is committed by itself: `Success` and `Suspend` are all that is needed then,
/// and `Commit` and `Rollback` count as `Success`. With
/// [`manual_commit`](crate::PushConsumerBuilder::manual_commit) a success is kept until a later
/// `Commit` or `Rollback`.
///
/// ```
/// use rocklet::{OrderlyOutcome, Pause};
/// use std::time::Duration;
/// let busy = OrderlyOutcome::Suspend(Pause::because("busy").lasting(Duration::from_secs(5)));
/// assert_ne!(busy, OrderlyOutcome::Success);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OrderlyOutcome {
    /// They are done with.
    Success,
    /// They are to be delivered again after a pause; nothing behind them is delivered before.
    Suspend(Pause),
    /// They are done with, and so is everything that was kept before them.
    Commit,
    /// They and everything that was kept before them are to be delivered again after a pause.
    Rollback(Pause),
}

/// How long a queue pauses, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pause {
    reason: String,
    time: Option<Duration>,
}

impl Pause {
    /// A pause for this reason, as long as the consumer's
    /// [`suspend_time`](crate::PushConsumerBuilder::suspend_time). The default one has no reason.
    #[must_use]
    pub fn because(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), time: None }
    }

    /// Sets how long: 10 ms to 30 s, to which other times are corrected (ORD-13).
    #[must_use]
    pub fn lasting(mut self, time: Duration) -> Self {
        self.time = Some(time);
        self
    }

    /// After a listener's panic.
    pub(super) fn after_panic(panic: &str) -> Self {
        Self::because(format!("the listener panicked: {panic}"))
    }

    pub(super) fn reason(&self) -> &str {
        if self.reason.is_empty() { "the listener suspended the queue" } else { &self.reason }
    }

    /// How long it lasts in a consumer whose suspend time is `usual`.
    pub(super) fn time(&self, usual: Duration) -> Duration {
        self.time.unwrap_or(usual).clamp(SHORTEST, LONGEST)
    }
}

const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(30);

/// Anything that a listener may return that consumes in order.
pub trait IntoOrderlyOutcome {
    /// Turns it into an outcome.
    fn into_orderly_outcome(self) -> OrderlyOutcome;
}

impl IntoOrderlyOutcome for OrderlyOutcome {
    fn into_orderly_outcome(self) -> OrderlyOutcome {
        self
    }
}

impl IntoOrderlyOutcome for () {
    fn into_orderly_outcome(self) -> OrderlyOutcome {
        OrderlyOutcome::Success
    }
}

impl<E: Display> IntoOrderlyOutcome for Result<(), E> {
    fn into_orderly_outcome(self) -> OrderlyOutcome {
        match self {
            Ok(()) => OrderlyOutcome::Success,
            Err(error) => OrderlyOutcome::Suspend(Pause::because(error.to_string())),
        }
    }
}

/// Consumes the messages of each queue in order: one call at a time for a queue, whichever member
/// of the group has it, and calls for different queues on several threads at once. Closures that take
/// a batch are such listeners, too.
pub trait OrderlyListener: Send + Sync {
    /// Consumes one batch. A panic suspends the queue (B-113).
    fn consume(&self, batch: &Batch<'_>) -> OrderlyOutcome;
}

impl<F, R> OrderlyListener for F
where
    F: Fn(&Batch<'_>) -> R + Send + Sync,
    R: IntoOrderlyOutcome,
{
    fn consume(&self, batch: &Batch<'_>) -> OrderlyOutcome {
        self(batch).into_orderly_outcome()
    }
}

/// A closure that takes one message at a time.
pub(super) struct OneByOne<F>(pub(super) F);

impl<F, R> OrderlyListener for OneByOne<F>
where
    F: Fn(&Delivery<'_>) -> R + Send + Sync,
    R: IntoOrderlyOutcome,
{
    fn consume(&self, batch: &Batch<'_>) -> OrderlyOutcome {
        let one = batch.get(0).map(|message| (self.0)(&message).into_orderly_outcome());
        one.unwrap_or(OrderlyOutcome::Success)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ord_13_a_pause_lasts_as_long_as_is_said_within_its_limits() {
        let (usual, ms) = (Duration::from_secs(1), Duration::from_millis);
        assert_eq!(Pause::default().time(usual), usual);
        assert_eq!(Pause::default().time(Duration::ZERO), SHORTEST);
        for (said, lasts) in [(0, 10), (9, 10), (10, 10), (700, 700), (30_000, 30_000)] {
            assert_eq!(Pause::default().lasting(ms(said)).time(usual), ms(lasts));
        }
        assert_eq!(Pause::default().lasting(Duration::MAX).time(usual), LONGEST);
    }

    #[test]
    fn ord_14_what_a_closure_returns_is_an_outcome() {
        assert_eq!(().into_orderly_outcome(), OrderlyOutcome::Success);
        assert_eq!(Ok::<(), String>(()).into_orderly_outcome(), OrderlyOutcome::Success);
        let failed = Err::<(), _>("no disk").into_orderly_outcome();
        assert_eq!(failed, OrderlyOutcome::Suspend(Pause::because("no disk")));
        assert_eq!(Pause::default().reason(), "the listener suspended the queue");
    }
}
