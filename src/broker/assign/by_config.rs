use super::{AssignStrategy, Assignment, LabelledQueue};
use crate::error::Result;
use crate::queue_id::QueueId;
use std::collections::{BTreeMap, BTreeSet};

/// Gives each member the queues that a table names for it (ALLOC-4).
///
/// Entries of members and queues that are not there wait until they are; a queue that the table
/// leaves out belongs to nobody.
///
/// ```
/// use rocklet::{ByConfig, QueueId};
/// let table = [("a", vec![QueueId::new("orders", 0)]), ("b", vec![QueueId::new("orders", 1)])];
/// let strategy = ByConfig::new(table);
/// # let _ = strategy;
/// ```
#[derive(Clone, Debug, Default)]
pub struct ByConfig {
    table: BTreeMap<String, BTreeSet<QueueId>>,
}

impl ByConfig {
    /// Takes the table: members with their queues. A queue should stand in it once: one that two
    /// running members are to have makes the assignment fail.
    pub fn new<M, Q>(table: impl IntoIterator<Item = (M, Q)>) -> Self
    where
        M: Into<String>,
        Q: IntoIterator<Item = QueueId>,
    {
        let entry = |(member, queues): (M, Q)| (member.into(), queues.into_iter().collect());
        Self { table: table.into_iter().map(entry).collect() }
    }
}

impl AssignStrategy for ByConfig {
    fn name(&self) -> &str {
        "CONFIG"
    }

    fn assign(
        &self,
        queues: &[LabelledQueue],
        members: &[String],
        _current: &Assignment,
    ) -> Result<Assignment> {
        let share = |member: &String| {
            let named = self.table.get(member)?;
            let here = queues.iter().filter(|queue| named.contains(queue.id()));
            Some((member.clone(), here.cloned().collect()))
        };
        Ok(members.iter().filter_map(share).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{names, numbers, queues};
    use super::*;

    #[test]
    fn alloc_4_the_table_decides_for_those_who_are_there() {
        let named = |queues: &[u16]| queues.iter().map(|&q| QueueId::new("t", q)).collect();
        let table: [(&str, Vec<_>); 3] =
            [("m00", named(&[3, 1])), ("m01", named(&[9])), ("m07", named(&[0]))];
        let strategy = ByConfig::new(table);
        let shares = numbers(&strategy, &queues("t", 4), &names(3));
        assert_eq!(shares, [vec![1, 3], vec![], vec![]]);
        let shares = numbers(&ByConfig::default(), &queues("t", 4), &names(1));
        assert_eq!(shares, [[0; 0]], "an empty table gives nothing");
    }
}
