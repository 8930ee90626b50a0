//! What a listener answers.

use crate::store::Delivery;
use std::fmt::Display;

/// How consuming a message went.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It is done with.
    Success,
    /// It is to be delivered again, for this reason.
    Failed(String),
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
