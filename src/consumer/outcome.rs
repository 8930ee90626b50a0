//! What a listener answers.

use crate::broker::send_back::{Failure, Wanted};
use crate::store::Delivery;
use std::fmt::Display;
use std::time::Duration;

/// How consuming a message went.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It is done with.
    Success,
    /// It is to be delivered again, for this reason, when the settings of the group say.
    Failed(String),
    /// It is to be delivered again after this time, at most a year, unless the group has had
    /// enough of it by then (CONC-19). The delays that follow are those of the group again.
    RetryAfter(Duration),
    /// It is not to be delivered again: it becomes a [dead letter](crate::DeadLetters), for this
    /// reason (CONC-19).
    DeadLetter(String),
}

impl Outcome {
    /// Why the message has failed; `None` if it has not.
    pub(super) fn failure(self) -> Option<Failure> {
        let (wanted, reason) = match self {
            Self::Success => return None,
            Self::Failed(reason) => return Some(Failure::of(reason)),
            Self::RetryAfter(time) => {
                (Wanted::After(time), format!("it is to be delivered again after {time:?}"))
            }
            Self::DeadLetter(reason) => (Wanted::DeadLetter, reason),
        };
        Some(Failure { wanted, reason })
    }
}

/// Anything that a listener may return.
pub trait IntoOutcome {
    /// Turns it into an outcome.
    fn into_outcome(self) -> Outcome;
}

impl IntoOutcome for Outcome {
    fn into_outcome(self) -> Outcome {
        self
    }
}

impl IntoOutcome for () {
    fn into_outcome(self) -> Outcome {
        Outcome::Success
    }
}

impl<E: Display> IntoOutcome for Result<(), E> {
    fn into_outcome(self) -> Outcome {
        match self {
            Ok(()) => Outcome::Success,
            Err(error) => Outcome::Failed(error.to_string()),
        }
    }
}

/// Consumes messages, on several threads at once. Closures are listeners, too.
pub trait Listener: Send + Sync {
    /// Consumes one message. A panic counts as a failure (B-113).
    fn consume(&self, delivery: &Delivery<'_>) -> Outcome;
}

impl<F, R> Listener for F
where
    F: Fn(&Delivery<'_>) -> R + Send + Sync,
    R: IntoOutcome,
{
    fn consume(&self, delivery: &Delivery<'_>) -> Outcome {
        self(delivery).into_outcome()
    }
}
