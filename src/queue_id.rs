use crate::sync::Arc;
use std::fmt;

/// One queue of a topic: the unit of order and of assignment.
///
/// Queues are ordered by topic, then by number (MODEL-2).
///
/// ```
/// # use rocklet::QueueId;
/// let queue = QueueId::new("orders", 3);
/// assert_eq!(queue.to_string(), "orders/3");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId {
    topic: Arc<str>,
    queue: u16,
}

impl QueueId {
    /// Names queue number `queue` of `topic`, which need not exist.
    pub fn new(topic: impl Into<Arc<str>>, queue: u16) -> Self {
        Self { topic: topic.into(), queue }
    }

    /// The topic.
    #[must_use]
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// The number within the topic, from 0.
    #[must_use]
    pub fn queue(&self) -> u16 {
        self.queue
    }
}

impl fmt::Display for QueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.queue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_2_queues_sort_by_topic_then_by_number() {
        let mut queues = [("b", 0), ("a", 10), ("a", 9), ("B", 1)].map(|(t, q)| QueueId::new(t, q));
        queues.sort();
        assert_eq!(queues.map(|queue| queue.to_string()), ["B/1", "a/9", "a/10", "b/0"]);
    }

    #[test]
    fn model_2_equality_is_on_all_parts() {
        assert_eq!(QueueId::new("a", 1), QueueId::new(String::from("a"), 1));
        assert_ne!(QueueId::new("a", 1), QueueId::new("a", 2));
        assert_ne!(QueueId::new("a", 1), QueueId::new("A", 1));
    }
}
