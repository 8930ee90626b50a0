//! How far the log has been consumed, for a retention that keeps the rest.

use super::Store;
use super::retention::Kept;
use std::collections::{BTreeSet, HashMap};

/// By incarnation of the topic and by group: the offsets, by queue.
type Committed = HashMap<(u32, u32), HashMap<u16, u64>>;

impl Store {
    /// The position of the first message that one of the groups whose messages are kept has still
    /// to consume; the last of all positions if there is none.
    ///
    /// A group consumes the topics in which it has an offset; of these, a queue without one from
    /// its beginning.
    pub(super) fn unconsumed_from(&self) -> u64 {
        let groups: Option<BTreeSet<u32>> = match &self.config.space.retention.kept {
            Kept::Nobodys => return u64::MAX,
            Kept::AnyGroups => None,
            Kept::Groups(names) => {
                let numbers = names.iter().map(|name| self.groups.find(name));
                match numbers.collect::<Option<_>>() {
                    Some(numbers) => Some(numbers),
                    None => return 0,
                }
            }
        };
        let mut committed = Committed::new();
        for (key, offset) in self.offsets.all() {
            if groups.as_ref().is_none_or(|groups| groups.contains(&key.group)) {
                let of_topic = committed.entry((key.incarnation, key.group)).or_default();
                of_topic.insert(key.queue, offset);
            }
        }
        let topics: HashMap<_, _> =
            self.topics.all().into_iter().map(|topic| (topic.incarnation, topic)).collect();
        let mut first = u64::MAX;
        for ((incarnation, _), offsets) in &committed {
            let queues = topics.get(incarnation).into_iter().flat_map(|topic| &topic.queues);
            for queue in queues {
                let offset = offsets.get(&queue.queue).copied().unwrap_or(0).max(queue.min());
                let position = queue.entry(offset).map_or(u64::MAX, |entry| entry.position);
                first = first.min(position);
            }
        }
        first
    }
}
