use super::{AssignStrategy, Assignment};
use crate::error::{Error, Result};
use crate::queue_id::QueueId;
use std::ops::Range;

/// Gives each member one run of neighbouring queues, the first members one queue more where the
/// count does not divide: 8 queues and 3 members make 0-2, 3-5 and 6-7 (ALLOC-2).
///
/// Each topic is dealt out by itself. This is the default strategy.
#[derive(Clone, Copy, Debug, Default)]
pub struct Averagely;

impl AssignStrategy for Averagely {
    fn name(&self) -> &str {
        "AVG"
    }

    fn assign(
        &self,
        queues: &[QueueId],
        members: &[String],
        _current: &Assignment,
    ) -> Result<Assignment> {
        if queues.is_empty() || members.is_empty() {
            let reason = "there are no queues or no members to assign".to_owned();
            return Err(Error::Strategy { reason });
        }
        let mut assignment = Assignment::new();
        for (index, member) in members.iter().enumerate() {
            // A repeated member counts where it stands first, as in RocketMQ.
            assignment.entry(member.clone()).or_insert_with(|| {
                let topics = queues.chunk_by(|a, b| a.topic() == b.topic());
                let shares = topics.map(|topic| &topic[share(index, topic.len(), members.len())]);
                shares.flatten().cloned().collect()
            });
        }
        Ok(assignment)
    }
}

/// The queues, of `queues`, of member number `index` of `members`.
fn share(index: usize, queues: usize, members: usize) -> Range<usize> {
    let (each, over) = (queues / members, queues % members);
    let start = each * index + over.min(index);
    start..start + each + usize::from(index < over)
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;

    fn queues(topic: &str, count: u16) -> Vec<QueueId> {
        (0..count).map(|queue| QueueId::new(topic, queue)).collect()
    }

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|i| format!("m{i:02}")).collect()
    }

    fn assign(queues: &[QueueId], members: &[String]) -> Assignment {
        let assignment = Averagely.assign(queues, members, &Assignment::new()).unwrap();
        check(&assignment, queues, members).unwrap();
        assignment
    }

    #[test]
    fn alloc_1_no_queues_or_no_members_is_an_error() {
        for (queues, members) in [(queues("t", 0), names(1)), (queues("t", 1), names(0))] {
            let refused = Averagely.assign(&queues, &members, &Assignment::new());
            assert!(matches!(refused, Err(Error::Strategy { .. })));
        }
    }

    #[test]
    fn alloc_2_eight_queues_for_three_members() {
        let shares: Vec<_> = (0..3).map(|index| share(index, 8, 3)).collect();
        assert_eq!(shares, [0..3, 3..6, 6..8]);
    }

    #[test]
    fn alloc_2_share_equals_the_rule_as_it_is_written() {
        for (n, m) in (0..40_usize).flat_map(|n| (1..20_usize).map(move |m| (n, m))) {
            for i in 0..m {
                let first = n % m > 0 && i < n % m;
                let size = if n <= m { 1 } else { n / m + usize::from(first) };
                let start = if first { i * size } else { i * size + n % m };
                let range = size.min(n.saturating_sub(start));
                let share = share(i, n, m);
                assert_eq!(share.len(), range, "n={n} m={m} i={i}");
                assert!(range == 0 || share.start == start, "n={n} m={m} i={i}");
            }
        }
    }

    #[test]
    fn alloc_8_everything_is_dealt_out_evenly_and_once() {
        for (n, m) in (1..30_u16).flat_map(|n| (1..20_usize).map(move |m| (n, m))) {
            let (queues, members) = (queues("t", n), names(m));
            let assignment = assign(&queues, &members);
            assert_eq!(assignment.values().flatten().cloned().collect::<Vec<_>>(), queues);
            let sizes: Vec<_> = assignment.values().map(Vec::len).collect();
            assert_eq!(sizes.len(), m);
            assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1);
        }
    }

    #[test]
    fn alloc_2_topics_are_dealt_out_one_by_one() {
        let both = [queues("a", 3), queues("b", 3)].concat();
        let assignment = assign(&both, &names(2));
        let shown = assignment["m00"].iter().map(QueueId::to_string).collect::<Vec<_>>();
        assert_eq!(shown, ["a/0", "a/1", "b/0", "b/1"]);
    }
}
