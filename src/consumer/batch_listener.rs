//! Listeners that take several messages at once, and what they answer.

use super::batch::Batch;
use super::outcome::{IntoOutcome, Outcome};

/// How consuming a batch went: the first messages of it may be done with and the others not
/// (CONC-8).
///
/// ```
/// use rocklet::{BatchOutcome, Outcome};
/// // Three are stored, then the disk was full: the rest is to come again.
/// let _ = BatchOutcome::acknowledge(3, Outcome::Failed("disk full".to_owned()));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchOutcome {
    acknowledged: usize,
    rest: Outcome,
}

impl BatchOutcome {
    /// The first `count` messages are done with, or all if there are fewer; `rest` is the outcome of
    /// each of the others, which come again if it is a success, too: they are not acknowledged
    /// (CONC-8).
    #[must_use]
    pub fn acknowledge(count: usize, rest: Outcome) -> Self {
        Self { acknowledged: count, rest }
    }

    /// How many of `all` messages are done with, and what is the outcome of the others.
    #[inline]
    pub(super) fn of(self, all: usize) -> (usize, Outcome) {
        let acknowledged = self.acknowledged.min(all);
        match self.rest {
            Outcome::Success if acknowledged < all => {
                let reason = format!("the listener acknowledged {acknowledged} of {all}");
                (acknowledged, Outcome::Failed(reason))
            }
            rest => (acknowledged, rest),
        }
    }
}

impl From<Outcome> for BatchOutcome {
    /// The outcome of each message.
    #[inline]
    fn from(all: Outcome) -> Self {
        let acknowledged = if all == Outcome::Success { usize::MAX } else { 0 };
        Self { acknowledged, rest: all }
    }
}

/// Anything that a listener of batches may return; an [`Outcome`], and what stands for one, is that
/// of the whole batch.
pub trait IntoBatchOutcome {
    /// Turns it into an outcome.
    fn into_batch_outcome(self) -> BatchOutcome;
}

impl IntoBatchOutcome for BatchOutcome {
    fn into_batch_outcome(self) -> BatchOutcome {
        self
    }
}

impl<R: IntoOutcome> IntoBatchOutcome for R {
    fn into_batch_outcome(self) -> BatchOutcome {
        self.into_outcome().into()
    }
}

/// Consumes messages in batches, on several threads at once. Closures are such listeners, too.
pub trait BatchListener: Send + Sync {
    /// Consumes one batch. A panic fails all of its messages (B-113).
    fn consume(&self, batch: &Batch<'_>) -> BatchOutcome;
}

impl<F, R> BatchListener for F
where
    F: Fn(&Batch<'_>) -> R + Send + Sync,
    R: IntoBatchOutcome,
{
    fn consume(&self, batch: &Batch<'_>) -> BatchOutcome {
        self(batch).into_batch_outcome()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed() -> Outcome {
        Outcome::Failed("x".to_owned())
    }

    #[test]
    fn conc_8_a_prefix_is_acknowledged_at_most_all() {
        let of_three = |outcome: BatchOutcome| outcome.of(3);
        assert_eq!(of_three(().into_batch_outcome()), (3, Outcome::Success));
        assert_eq!(of_three(BatchOutcome::acknowledge(3, Outcome::Success)), (3, Outcome::Success));
        let (acknowledged, rest) = of_three(BatchOutcome::acknowledge(1, Outcome::Success));
        assert!(acknowledged == 1 && matches!(rest, Outcome::Failed(_)), "{rest:?}");
        assert_eq!(of_three(BatchOutcome::acknowledge(2, failed())), (2, failed()));
        assert_eq!(of_three(BatchOutcome::acknowledge(usize::MAX, failed())), (3, failed()));
        assert_eq!(of_three(BatchOutcome::acknowledge(0, failed())), (0, failed()));
        assert_eq!(of_three(Err::<(), _>("x").into_batch_outcome()), (0, failed()));
    }
}
