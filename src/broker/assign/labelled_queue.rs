use crate::queue_id::QueueId;
use crate::sync::Arc;
use std::fmt;

/// A queue as an assignment strategy sees it: with the label of its broker, which stands for
/// RocketMQ's broker name (MODEL-2).
///
/// All queues of a broker have the label that [`BrokerBuilder::label`](crate::BrokerBuilder::label)
/// sets. They are ordered by topic, then by label, then by number.
///
/// ```
/// # use rocklet::LabelledQueue;
/// let queue = LabelledQueue::new("orders", "room1@a", 3);
/// assert_eq!((queue.label(), queue.id().to_string()), ("room1@a", "orders/3".to_owned()));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LabelledQueue {
    label: Arc<str>,
    id: QueueId,
}

impl LabelledQueue {
    /// Names queue number `queue` of `topic` at the broker with this label.
    pub fn new(topic: impl Into<Arc<str>>, label: impl Into<Arc<str>>, queue: u16) -> Self {
        Self::of(label.into(), QueueId::new(topic, queue))
    }

    pub(crate) fn of(label: Arc<str>, id: QueueId) -> Self {
        Self { label, id }
    }

    /// The label of the broker.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.label
    }

    /// The queue without the label.
    #[must_use]
    pub fn id(&self) -> &QueueId {
        &self.id
    }

    pub(crate) fn into_id(self) -> QueueId {
        self.id
    }

    fn key(&self) -> (&str, &str, u16) {
        (self.id.topic(), &self.label, self.id.queue())
    }
}

impl PartialOrd for LabelledQueue {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for LabelledQueue {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

impl fmt::Display for LabelledQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.id.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_2_labelled_queues_sort_by_topic_then_by_label_then_by_number() {
        let mut queues = [("a", "y", 0), ("b", "x", 0), ("a", "x", 10), ("a", "x", 9)]
            .map(|(topic, label, queue)| LabelledQueue::new(topic, label, queue));
        queues.sort();
        let shown = queues.each_ref().map(|queue| format!("{} {queue}", queue.label()));
        assert_eq!(shown, ["x a/9", "x a/10", "y a/0", "x b/0"]);
    }
}
