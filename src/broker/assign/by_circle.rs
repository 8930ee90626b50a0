use super::{AssignStrategy, Assignment, LabelledQueue, deal};
use crate::error::Result;

/// Deals queues like cards, one to each member in turn: 8 queues and 3 members make 0, 3 and 6,
/// then 1, 4 and 7, then 2 and 5 (ALLOC-3).
///
/// Each topic is dealt out by itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct ByCircle;

impl AssignStrategy for ByCircle {
    fn name(&self) -> &str {
        "AVG_BY_CIRCLE"
    }

    fn assign(
        &self,
        queues: &[LabelledQueue],
        members: &[String],
        _current: &Assignment,
    ) -> Result<Assignment> {
        deal(queues, members, |topic, index| topic.iter().skip(index).step_by(members.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{names, numbers, queues};
    use super::*;

    #[test]
    fn alloc_3_eight_queues_for_three_members() {
        let shares = numbers(&ByCircle, &queues("t", 8), &names(3));
        assert_eq!(shares, [vec![0, 3, 6], vec![1, 4, 7], vec![2, 5]]);
    }
}
