//! What a push consumer calls with its messages.

use super::orderly::OrderlyListener;
use super::outcome::Listener;
use crate::broker::group::Kind;
use crate::sync::Arc;

/// A listener of either kind.
#[derive(Clone)]
pub(super) enum Handler {
    Each(Arc<dyn Listener>),
    InOrder(Arc<dyn OrderlyListener>),
}

impl Handler {
    /// What the consumer is in its group.
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::Each(_) => Kind::Push,
            Self::InOrder(_) => Kind::Orderly,
        }
    }
}
