use super::{AssignStrategy, Assignment, LabelledQueue, check_inputs};
use crate::error::Result;
use std::cmp::Reverse;
use std::collections::{BTreeSet, VecDeque};

/// Moves the fewest queues that make shares even: whoever has queues keeps as many of them as an
/// even share allows, and only what is over, or belongs to nobody, is dealt out. Not of RocketMQ.
///
/// Shares are even over all topics together: they differ by one queue at most.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sticky;

impl AssignStrategy for Sticky {
    fn name(&self) -> &str {
        "STICKY"
    }

    fn assign(
        &self,
        queues: &[LabelledQueue],
        members: &[String],
        current: &Assignment,
    ) -> Result<Assignment> {
        check_inputs(queues, members)?;
        let mut free: BTreeSet<&LabelledQueue> = queues.iter().collect();
        let all = free.len();
        let members: BTreeSet<&String> = members.iter().collect();
        let held = members.into_iter().map(|member| {
            let held = current.get(member).into_iter().flatten();
            (member, held.filter(|queue| free.remove(queue)).cloned().collect::<Vec<_>>())
        });
        let mut held: Vec<_> = held.collect();

        // The shares with one queue more go to those who have most: they would give up most.
        held.sort_by_key(|(_, queues)| Reverse(queues.len()));
        let (each, over) = (all / held.len(), all % held.len());
        let mut shares = VecDeque::new();
        let mut given_up = Vec::new();
        for (nth, (member, mut queues)) in held.into_iter().enumerate() {
            let quota = each + usize::from(nth < over);
            given_up.extend(queues.split_off(queues.len().min(quota)));
            shares.push_back((member, queues, quota));
        }
        let mut left: Vec<_> = free.into_iter().cloned().chain(given_up).collect();
        left.sort_unstable();
        // In turn, so that the queues of a topic spread.
        let mut left = left.into_iter();
        let mut assignment = Assignment::new();
        while let Some((member, mut queues, quota)) = shares.pop_front() {
            if queues.len() == quota {
                assignment.insert(member.clone(), queues);
            } else {
                queues.extend(left.next());
                shares.push_back((member, queues, quota));
            }
        }
        Ok(assignment)
    }
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::super::tests::{names, queues};
    use super::*;

    fn assign(queues: &[LabelledQueue], members: &[String], current: &Assignment) -> Assignment {
        let assignment = Sticky.assign(queues, members, current).unwrap();
        check(&assignment, queues, members).unwrap();
        assignment
    }

    /// How many queues go from one member to another, or come from one that is gone.
    fn moved(from: &Assignment, to: &Assignment) -> usize {
        let kept = |(member, queues): (&String, &Vec<LabelledQueue>)| {
            queues
                .iter()
                .filter(|queue| to.get(member).is_some_and(|to| to.contains(queue)))
                .count()
        };
        from.values().map(Vec::len).sum::<usize>() - from.iter().map(kept).sum::<usize>()
    }

    #[test]
    fn a_member_that_joins_or_leaves_moves_its_share_alone() {
        let queues = queues("t", 16);
        let all = names(8);
        let mut current = assign(&queues, &all[..1], &Assignment::new());
        for (count, expected) in [(2, 8), (3, 5), (4, 4), (3, 4), (4, 4), (5, 3), (8, 6), (7, 2)] {
            let next = assign(&queues, &all[..count], &current);
            assert_eq!(moved(&current, &next), expected, "{count} members");
            current = next;
        }
        assert_eq!(assign(&queues, &all[..7], &current), current, "nothing moves for nothing");
    }

    /// Over all ways to hold and to share `n` queues among `m` members.
    #[test]
    fn no_even_assignment_moves_fewer_queues() {
        for (n, m) in [(3_u16, 2_usize), (4, 2), (4, 3), (5, 3)] {
            let (queues, members) = (queues("t", n), names(m));
            let ways = (m + 1).pow(u32::from(n));
            let way = |mut nth: usize| {
                let mut owners = Assignment::new();
                for queue in &queues {
                    if let Some(member) = members.get(nth % (m + 1)) {
                        owners.entry(member.clone()).or_default().push(queue.clone());
                    }
                    nth /= m + 1;
                }
                owners
            };
            let even = |way: &Assignment| {
                let size = |member| way.get(member).map_or(0, Vec::len);
                let sizes: Vec<_> = members.iter().map(size).collect();
                let (most, least) = (sizes.iter().max().unwrap(), sizes.iter().min().unwrap());
                sizes.iter().sum::<usize>() == queues.len() && most - least <= 1
            };
            let wanted: Vec<_> = (0..ways).map(way).filter(even).collect();
            for current in (0..ways).map(way) {
                let next = assign(&queues, &members, &current);
                assert!(even(&next));
                let fewest = wanted.iter().map(|next| moved(&current, next)).min().unwrap();
                assert_eq!(moved(&current, &next), fewest, "{current:?}");
            }
        }
    }

    #[test]
    fn what_is_gone_or_unknown_counts_for_nothing() {
        let mut current = Assignment::new();
        current.insert("gone".to_owned(), queues("t", 4));
        current.insert("m00".to_owned(), queues("u", 4));
        let next = assign(&queues("t", 4), &names(2), &current);
        assert_eq!(next.values().map(Vec::len).collect::<Vec<_>>(), [2, 2]);
    }
}
