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
        let groups: BTreeSet<u32> = match &self.config.space.retention.kept {
            Kept::Nobodys => return u64::MAX,
            // Those that were removed have left their offsets behind.
            Kept::AnyGroups => self.groups.all().into_iter().map(|(_, number)| number).collect(),
            Kept::Groups(names) => {
                if names.iter().any(|name| self.groups.find(name).is_none()) {
                    return 0;
                }
                // A member that broadcasts has its progress under the name of the group and its own.
                let group = |name: &str| name.split(char::is_control).next().map(str::to_owned);
                let kept = |name: &str| group(name).is_some_and(|group| names.contains(&group));
                let all = self.groups.all().into_iter();
                all.filter(|(name, _)| kept(name)).map(|(_, number)| number).collect()
            }
        };
        let mut committed = Committed::new();
        for (key, offset) in self.offsets.all() {
            if groups.contains(&key.group) {
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
