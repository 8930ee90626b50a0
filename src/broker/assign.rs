//! Who of a group reads which queue.

mod averagely;

pub use averagely::Averagely;

use crate::error::{Error, Result};
use crate::queue_id::QueueId;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The queues of every member of a group, by the member's name. A member that is not listed has
/// none.
pub type Assignment = BTreeMap<String, Vec<QueueId>>;

/// Deals the queues of a group's topics out to its members.
///
/// The group calls it with no lock held whenever members or queues change. Queues may stay
/// unassigned. An error, or an assignment that gives a queue twice or names a queue or member
/// that is not there, changes nothing: the current assignment stays.
///
/// ```
/// use rocklet::{AssignStrategy, Assignment, QueueId, Result};
///
/// #[derive(Debug)]
/// struct FirstTakesAll;
///
/// impl AssignStrategy for FirstTakesAll {
///     fn name(&self) -> &str {
///         "FIRST_TAKES_ALL"
///     }
///
///     fn assign(
///         &self,
///         queues: &[QueueId],
///         members: &[String],
///         _current: &Assignment,
///     ) -> Result<Assignment> {
///         Ok(members.first().map(|name| (name.clone(), queues.to_vec())).into_iter().collect())
///     }
/// }
/// ```
pub trait AssignStrategy: Send + Sync + fmt::Debug {
    /// The name by which members of a group agree on a strategy.
    fn name(&self) -> &str;

    /// Decides who gets which of `queues`. Both lists are sorted and without repetition;
    /// `current` is the assignment in force, for strategies that move as little as they can.
    ///
    /// # Errors
    ///
    /// Whatever the strategy reports; the current assignment then stays.
    fn assign(
        &self,
        queues: &[QueueId],
        members: &[String],
        current: &Assignment,
    ) -> Result<Assignment>;
}

/// Refuses an assignment that gives a queue twice, or that names a queue or member not in the
/// lists.
pub(crate) fn check(assignment: &Assignment, queues: &[QueueId], members: &[String]) -> Result<()> {
    let members: BTreeSet<&str> = members.iter().map(String::as_str).collect();
    let mut owners: BTreeMap<&QueueId, Option<&str>> =
        queues.iter().map(|queue| (queue, None)).collect();
    for (member, queues) in assignment {
        if !members.contains(member.as_str()) {
            return Err(refuse(format!("{member:?} is not a member of the group")));
        }
        for queue in queues {
            let Some(owner) = owners.get_mut(queue) else {
                return Err(refuse(format!("{queue} is not a queue of the group")));
            };
            if let Some(owner) = owner.replace(member) {
                return Err(refuse(format!("{queue} is given to {owner:?} and to {member:?}")));
            }
        }
    }
    Ok(())
}

fn refuse(reason: String) -> Error {
    Error::Strategy { reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queues(count: u16) -> Vec<QueueId> {
        (0..count).map(|queue| QueueId::new("t", queue)).collect()
    }

    fn reason(dealt: &[(&str, &[u16])]) -> Option<String> {
        let deal = |queues: &[u16]| queues.iter().map(|&queue| QueueId::new("t", queue)).collect();
        let assignment = dealt.iter().map(|&(name, queues)| (name.into(), deal(queues))).collect();
        match check(&assignment, &queues(3), &["a".into(), "b".into()]) {
            Ok(()) => None,
            Err(Error::Strategy { reason }) => Some(reason),
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn alloc_8_whole_and_partial_assignments_are_accepted() {
        assert_eq!(reason(&[("a", &[0, 1]), ("b", &[2])]), None);
        assert_eq!(reason(&[("a", &[2, 0])]), None);
        assert_eq!(reason(&[]), None);
    }

    #[test]
    fn alloc_8_overlapping_assignments_are_refused() {
        let twice = "t/1 is given to \"a\" and to \"b\"";
        assert_eq!(reason(&[("a", &[0, 1]), ("b", &[1, 2])]).as_deref(), Some(twice));
        let twice = "t/2 is given to \"b\" and to \"b\"";
        assert_eq!(reason(&[("b", &[2, 2])]).as_deref(), Some(twice));
    }

    #[test]
    fn alloc_8_unknown_queues_and_members_are_refused() {
        assert_eq!(reason(&[("a", &[3])]).as_deref(), Some("t/3 is not a queue of the group"));
        assert_eq!(reason(&[("c", &[])]).as_deref(), Some("\"c\" is not a member of the group"));
    }
}
