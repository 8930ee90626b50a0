//! What a push consumer calls with its messages.

use super::answer::Answer;
use super::batch::Batch;
use super::batch_listener::BatchListener;
use super::orderly::OrderlyListener;
use super::outcome::{Listener, Outcome};
use crate::broker::group::Kind;
use crate::sync::{Arc, contain};

/// A listener of any kind. One that takes single messages is called with batches of one; in order
/// the settings see to that.
#[derive(Clone)]
pub(super) enum Handler {
    Each(Arc<dyn Listener>),
    Batch(Arc<dyn BatchListener>),
    InOrder(Arc<dyn OrderlyListener>),
}

impl Handler {
    /// What the consumer is in its group.
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::Each(_) | Self::Batch(_) => Kind::Push,
            Self::InOrder(_) => Kind::Orderly,
        }
    }

    /// How many messages it gets at once, if that is `wanted` for batches.
    pub(super) fn batch(&self, wanted: usize) -> usize {
        match self {
            Self::Each(_) => 1,
            Self::Batch(_) | Self::InOrder(_) => wanted,
        }
    }

    /// Calls it, whatever the order.
    #[inline]
    pub(super) fn consume(&self, batch: &Batch<'_>) -> Answer {
        let all = batch.len();
        match self {
            // There is always one, unless somebody has written to the file.
            Self::Each(listener) => {
                let one = || match batch.get(0) {
                    Some(message) => listener.consume(&message).into(),
                    None => Outcome::Success.into(),
                };
                Answer::of(contain(one), all)
            }
            Self::Batch(listener) => Answer::of(contain(|| listener.consume(batch)), all),
            Self::InOrder(listener) => Answer::in_order(&contain(|| listener.consume(batch)), all),
        }
    }
}
