//! A message that is stored and on its way to the disk.

use crate::error::{Error, Result};
use crate::message::Receipt;
use crate::store::Store;
use crate::sync::Arc;
use std::time::Duration;

/// A message that [`Producer::send_pending`](crate::Producer::send_pending) has stored: it survives
/// the end of the process, may be delivered, and survives a loss of power once this says so.
///
/// The flush goes on whether anybody waits or not, and closing the broker ends it; dropping the
/// handle takes nothing back. A handle does not keep the broker open.
#[derive(Debug)]
#[must_use = "tells whether the message is durable; to send without caring, see `Message::wait_for_flush`"]
pub struct PendingSend {
    store: Arc<Store>,
    receipt: Receipt,
    end: u64,
}

impl PendingSend {
    /// Asks for the flush of a message that ends at position `end`.
    pub(super) fn new(store: Arc<Store>, receipt: Receipt, end: u64) -> Self {
        store.want_durable(end);
        Self { store, receipt, end }
    }

    /// Where the message is stored.
    #[must_use]
    pub fn receipt(&self) -> &Receipt {
        &self.receipt
    }

    /// Whether the message survives a loss of power by now.
    #[must_use]
    pub fn is_durable(&self) -> bool {
        self.store.flushed() >= self.end
    }

    /// Waits until the message survives a loss of power.
    ///
    /// # Errors
    /// `NotDurable` if the flush failed, now or before: the message is stored, perhaps delivered, and
    /// may not survive a loss of power.
    pub fn wait(&self) -> Result<Receipt> {
        self.durable(None).map(|_| self.receipt)
    }

    /// Waits so long at most: true once the message survives a loss of power; false if that is not
    /// known yet (RocketMQ's `FLUSH_DISK_TIMEOUT`). Then it is stored, may be delivered, and its
    /// flush goes on: wait again, and do not send it again.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn wait_timeout(&self, limit: Duration) -> Result<bool> {
        self.durable(Some(limit))
    }

    fn durable(&self, limit: Option<Duration>) -> Result<bool> {
        let deadline = limit.map(|limit| self.store.clock().moment().plus(limit));
        let awaited = self.store.await_durable(self.end, deadline);
        awaited.map_err(|cause| Error::NotDurable { receipt: self.receipt, cause })
    }
}
