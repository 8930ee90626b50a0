//! Telling the application that a consumer has other queues (REB-10).
//!
//! Changes are noted where locks are held, and told by a thread of the consumer, one at a time, so
//! that the last one told is the last one that happened.

use crate::queue_id::QueueId;
use crate::sync::{Arc, Mutex, Rank, contain};
use std::collections::BTreeSet;
use std::fmt;

/// A change in the queues that a consumer has of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueuesChanged {
    /// The topic.
    pub topic: String,
    /// All queues of it.
    pub all: Vec<QueueId>,
    /// Those that the consumer has now.
    pub mine: Vec<QueueId>,
}

/// Who is told of changes.
#[derive(Clone)]
pub(super) struct ChangeListener(pub(super) Arc<dyn Fn(&QueuesChanged) + Send + Sync>);

/// The topics of one consumer whose change has not been told yet.
pub(super) struct QueueChanges {
    listener: Option<ChangeListener>,
    pending: Mutex<Pending>,
}

#[derive(Default)]
struct Pending {
    topics: BTreeSet<String>,
    telling: bool,
}

impl QueueChanges {
    pub(super) fn new(listener: Option<ChangeListener>) -> Self {
        Self { listener, pending: Mutex::new(Rank::ProcessQueue, Pending::default()) }
    }

    /// Notes a change; true if a thread is to come and [`tell`](Self::tell).
    pub(super) fn note(&self, topic: &str) -> bool {
        if self.listener.is_none() {
            return false;
        }
        let mut pending = self.pending.lock();
        let alone = pending.topics.is_empty() && !pending.telling;
        pending.topics.insert(topic.to_owned());
        alone
    }

    /// Tells all that is noted, unless another thread is at it; returns the panics of the listener.
    pub(super) fn tell(&self, look: impl Fn(String) -> QueuesChanged) -> Vec<String> {
        let mut panics = Vec::new();
        let Some(ChangeListener(listener)) = &self.listener else { return panics };
        let mut first = true;
        loop {
            let mut pending = self.pending.lock();
            if std::mem::take(&mut first) && std::mem::replace(&mut pending.telling, true) {
                return panics;
            }
            let Some(topic) = pending.topics.pop_first() else {
                pending.telling = false;
                return panics;
            };
            drop(pending);
            panics.extend(contain(|| listener(&look(topic))).err());
        }
    }
}

impl fmt::Debug for ChangeListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ChangeListener")
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn reb_10_a_change_during_a_call_is_told_after_it_by_the_same_thread() {
        let told: Arc<std::sync::Mutex<Vec<String>>> = Arc::default();
        let noted = told.clone();
        let changes = Arc::new_cyclic(|changes: &std::sync::Weak<QueueChanges>| {
            let changes = changes.clone();
            let listener = move |change: &QueuesChanged| {
                noted.lock().unwrap().push(change.topic.clone());
                let changes = changes.upgrade().unwrap();
                if change.topic == "a" {
                    assert!(!changes.note("b"), "there is a thread at it");
                    assert!(changes.tell(look).is_empty());
                    panic!("planted");
                }
            };
            QueueChanges::new(Some(ChangeListener(Arc::new(listener))))
        });
        fn look(topic: String) -> QueuesChanged {
            QueuesChanged { topic, all: Vec::new(), mine: Vec::new() }
        }
        assert!(changes.note("a"));
        assert!(!changes.note("a"), "once is enough");
        assert_eq!(changes.tell(look), ["planted"]);
        assert_eq!(*told.lock().unwrap(), ["a", "b"]);
        assert!(changes.note("c"));
    }
}
