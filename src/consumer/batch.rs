//! What a listener is called with: a view of messages that were read together.

use crate::queue_id::QueueId;
use crate::store::{Deliveries, Delivery};
use std::fmt;
use std::ops::Range;

/// Messages of one queue that a listener gets in one call, in order: a view of the log, without a
/// copy, that nobody can change (CONC-3).
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let broker = rocklet::Broker::open(dir.path())?;
/// use rocklet::Batch;
/// fn store(batch: &Batch<'_>) -> std::io::Result<()> {
///     let bytes: usize = batch.iter().map(|order| order.body().len()).sum();
///     println!("{} orders of {:?}, {bytes} bytes", batch.len(), batch.queue_id());
///     Ok(())
/// }
/// let builder = broker.push_consumer("archive").subscribe("orders", "*")?;
/// let consumer = builder.listener_batch(64).start_batch(store)?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
pub struct Batch<'a> {
    messages: &'a Deliveries,
    from: usize,
    end: usize,
    /// 0 before the listener is called.
    started_ms: u64,
}

impl<'a> Batch<'a> {
    /// A part of `messages`, which must be there.
    #[inline]
    pub(super) fn new(messages: &'a Deliveries, part: Range<usize>) -> Self {
        Self { messages, from: part.start, end: part.end, started_ms: 0 }
    }

    /// The same for a listener that is called now.
    #[inline]
    pub(super) fn begin(self, started_ms: u64) -> Self {
        Self { started_ms, ..self }
    }

    /// The number of messages, at least 1.
    #[must_use]
    pub fn len(&self) -> usize {
        self.end - self.from
    }

    /// Whether there are none, which never happens.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.from == self.end
    }

    /// The message at `index`, from 0.
    #[must_use]
    #[inline]
    pub fn get(&self, index: usize) -> Option<Delivery<'a>> {
        let index = self.from.checked_add(index).filter(|index| *index < self.end)?;
        self.messages.get(index).map(|message| message.begin(self.started_ms))
    }

    /// The messages in order.
    pub fn iter(&self) -> BatchIter<'a> {
        BatchIter { of: *self, next: 0 }
    }

    /// The queue of all of them.
    #[must_use]
    pub fn queue_id(&self) -> QueueId {
        self.get(0).map_or_else(|| QueueId::new("", 0), |first| first.queue_id())
    }
}

impl<'a> IntoIterator for Batch<'a> {
    type Item = Delivery<'a>;
    type IntoIter = BatchIter<'a>;

    fn into_iter(self) -> BatchIter<'a> {
        self.iter()
    }
}

impl<'a> IntoIterator for &Batch<'a> {
    type Item = Delivery<'a>;
    type IntoIter = BatchIter<'a>;

    fn into_iter(self) -> BatchIter<'a> {
        self.iter()
    }
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self).finish()
    }
}

/// Iterates over a [`Batch`].
#[derive(Clone, Debug)]
pub struct BatchIter<'a> {
    of: Batch<'a>,
    next: usize,
}

impl<'a> Iterator for BatchIter<'a> {
    type Item = Delivery<'a>;

    #[inline]
    fn next(&mut self) -> Option<Delivery<'a>> {
        let delivery = self.of.get(self.next)?;
        self.next += 1;
        Some(delivery)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.of.len() - self.next;
        (left, Some(left))
    }
}

impl ExactSizeIterator for BatchIter<'_> {}
