use super::{AssignStrategy, Assignment, LabelledQueue, check_inputs, md5};
use crate::error::Result;
use crate::sync::Arc;
use std::collections::BTreeMap;
use std::fmt;

/// Places members and queues on a ring by their hashes; a queue belongs to the first member at or
/// behind it (ALLOC-7). A member that joins or leaves moves few queues, and shares are uneven.
///
/// ```
/// use rocklet::ConsistentHash;
/// let even = ConsistentHash::new().virtual_nodes(200);
/// # let _ = even;
/// ```
#[derive(Clone)]
pub struct ConsistentHash {
    virtual_nodes: usize,
    hash: Arc<dyn Fn(&str) -> u32 + Send + Sync>,
}

impl ConsistentHash {
    /// The ring of RocketMQ: 10 places for each member, by MD5.
    #[must_use]
    pub fn new() -> Self {
        let md5 = |text: &str| {
            let [a, b, c, d, ..] = md5::digest(text.as_bytes());
            // Big-endian, as in RocketMQ.
            u32::from_le_bytes([d, c, b, a])
        };
        Self { virtual_nodes: 10, hash: Arc::new(md5) }
    }

    /// Sets how many places each member has: the more, the more even the shares. With 0 nobody
    /// gets anything.
    #[must_use]
    pub fn virtual_nodes(mut self, count: usize) -> Self {
        self.virtual_nodes = count;
        self
    }

    /// Sets another hash for the places on the ring.
    #[must_use]
    pub fn hash(mut self, hash: impl Fn(&str) -> u32 + Send + Sync + 'static) -> Self {
        self.hash = Arc::new(hash);
        self
    }

    /// The place of a text on the ring.
    #[must_use]
    pub fn place(&self, text: &str) -> u32 {
        (self.hash)(text)
    }

    /// The members by their places; where two meet the later one stays. A repeated member has
    /// more places.
    fn ring<'m>(&self, members: &'m [String]) -> BTreeMap<u32, &'m String> {
        let mut ring = BTreeMap::new();
        for member in members {
            let first = ring.values().filter(|known| **known == member).count();
            for nth in first..first + self.virtual_nodes {
                ring.insert(self.place(&format!("{member}-{nth}")), member);
            }
        }
        ring
    }
}

impl Default for ConsistentHash {
    fn default() -> Self {
        Self::new()
    }
}

impl AssignStrategy for ConsistentHash {
    fn name(&self) -> &str {
        "CONSISTENT_HASH"
    }

    fn assign(
        &self,
        queues: &[LabelledQueue],
        members: &[String],
        _current: &Assignment,
    ) -> Result<Assignment> {
        check_inputs(queues, members)?;
        let ring = self.ring(members);
        let mut assignment = Assignment::new();
        for queue in queues {
            let place = self.place(&text(queue));
            let owner = ring.range(place..).next().or_else(|| ring.first_key_value());
            if let Some((_, member)) = owner {
                assignment.entry((*member).clone()).or_default().push(queue.clone());
            }
        }
        Ok(assignment)
    }
}

/// A queue as RocketMQ writes it: what is hashed.
fn text(queue: &LabelledQueue) -> String {
    let (topic, number) = (queue.id().topic(), queue.id().queue());
    format!("MessageQueue [topic={topic}, brokerName={}, queueId={number}]", queue.label())
}

impl fmt::Debug for ConsistentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("ConsistentHash");
        shown.field("virtual_nodes", &self.virtual_nodes).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{names, numbers, queues};
    use super::*;

    #[test]
    fn alloc_7_sixteen_queues_for_two_to_four_members() {
        let queues: Vec<_> = (0..16).map(|queue| LabelledQueue::new("T", "B", queue)).collect();
        let shares = |count: usize| {
            let members: Vec<_> = (0..count).map(|nth| format!("CID{nth}")).collect();
            numbers(&ConsistentHash::new(), &queues, &members)
        };
        assert_eq!(shares(2)[0], [0, 7]);
        let three = shares(3);
        assert_eq!([&*three[0], &three[2]], [[0, 7], [12, 13]]);
        let four = shares(4);
        assert_eq!(four[1], [1, 3, 4, 5, 6, 8, 9, 11, 14, 15]);
        assert_eq!([&*four[0], &four[2], &four[3]], [&[0, 7][..], &[12], &[2, 10, 13]]);
    }

    #[test]
    fn alloc_7_a_ring_without_places_gives_nothing() {
        let strategy = ConsistentHash::new().virtual_nodes(0);
        assert_eq!(numbers(&strategy, &queues("t", 4), &names(2)), [[0; 0]; 2]);
    }

    #[test]
    fn alloc_7_where_two_members_meet_the_later_one_stays() {
        let strategy = ConsistentHash::new().hash(|text| u32::from(!text.starts_with('m')));
        let shares = numbers(&strategy, &queues("t", 3), &names(3));
        assert_eq!(shares, [vec![], vec![], vec![0, 1, 2]], "and behind the last comes the first");
    }
}
