use super::{AssignStrategy, Assignment, LabelledQueue, deal};
use crate::error::Result;
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
        queues: &[LabelledQueue],
        members: &[String],
        _current: &Assignment,
    ) -> Result<Assignment> {
        deal(queues, members, |topic, index| &topic[share(index, topic.len(), members.len())])
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
    use super::*;

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
}
