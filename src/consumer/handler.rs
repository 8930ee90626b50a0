//! What a push consumer calls with its messages.

use super::batch::Batch;
use super::batch_listener::{BatchListener, BatchOutcome};
use super::orderly::{OrderlyListener, OrderlyOutcome};
use super::outcome::{Listener, Outcome};
use crate::broker::group::Kind;
use crate::sync::Arc;
use smallvec::SmallVec;

/// A listener of any kind. One that takes single messages is called with batches of one.
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
            Self::Each(_) | Self::InOrder(_) => 1,
            Self::Batch(_) => wanted,
        }
    }

    /// Calls it, whatever the order.
    #[inline]
    pub(super) fn consume(&self, batch: &Batch<'_>) -> BatchOutcome {
        match self {
            // There is always one, unless somebody has written to the file.
            Self::Each(listener) => {
                batch.get(0).map_or(Outcome::Success, |message| listener.consume(&message)).into()
            }
            Self::Batch(listener) => listener.consume(batch),
            Self::InOrder(listener) => {
                match listener.consume(&batch.iter().collect::<SmallVec<[_; 2]>>()) {
                    OrderlyOutcome::Success | OrderlyOutcome::Commit => Outcome::Success,
                    OrderlyOutcome::Suspend(pause) | OrderlyOutcome::Rollback(pause) => {
                        Outcome::Failed(pause.reason().to_owned())
                    }
                }
                .into()
            }
        }
    }
}
