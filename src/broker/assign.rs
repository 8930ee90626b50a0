//! Who of a group reads which queue.
//!
//! A strategy is asked once for the whole group. Those of RocketMQ answer for one member and one
//! topic at a time: `deal` asks them so, and gathers the answers.

mod averagely;
mod by_circle;
mod by_config;
mod consistent_hash;
mod labelled_queue;
mod machine_room;
mod machine_room_nearby;
mod md5;
mod sticky;

pub use averagely::Averagely;
pub use by_circle::ByCircle;
pub use by_config::ByConfig;
pub use consistent_hash::ConsistentHash;
pub use labelled_queue::LabelledQueue;
pub use machine_room::MachineRoom;
pub use machine_room_nearby::MachineRoomNearby;
pub use sticky::Sticky;

use crate::error::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The queues of every member of a group, by the member's name. A member that is not listed has
/// none.
pub type Assignment = BTreeMap<String, Vec<LabelledQueue>>;

/// Deals the queues of a group's topics out to its members.
///
/// The group calls it with no lock held whenever members or queues change. Queues may stay
/// unassigned. An error, or an assignment that gives a queue twice or names a queue or member
/// that is not there, changes nothing: the current assignment stays.
///
/// ```
/// use rocklet::{AssignStrategy, Assignment, LabelledQueue, Result};
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
///         queues: &[LabelledQueue],
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
        queues: &[LabelledQueue],
        members: &[String],
        current: &Assignment,
    ) -> Result<Assignment>;
}

/// Refuses an assignment that gives a queue twice, or that names a queue or member not in the
/// lists.
pub(crate) fn check(
    assignment: &Assignment,
    queues: &[LabelledQueue],
    members: &[String],
) -> Result<()> {
    let members: BTreeSet<&str> = members.iter().map(String::as_str).collect();
    let mut owners: BTreeMap<&LabelledQueue, Option<&str>> =
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

/// Deals every topic out by itself: `share` chooses from its queues for the member with that
/// place in the list. A repeated member counts where it stands first, as in RocketMQ.
fn deal<'q, S>(
    queues: &'q [LabelledQueue],
    members: &[String],
    share: impl Fn(&'q [LabelledQueue], usize) -> S,
) -> Result<Assignment>
where
    S: IntoIterator<Item = &'q LabelledQueue>,
{
    check_inputs(queues, members)?;
    let mut assignment = Assignment::new();
    for (index, member) in members.iter().enumerate() {
        assignment.entry(member.clone()).or_insert_with(|| {
            let topics = queues.chunk_by(|a, b| a.id().topic() == b.id().topic());
            topics.flat_map(|topic| share(topic, index)).cloned().collect()
        });
    }
    Ok(assignment)
}

/// What all strategies of RocketMQ refuse (ALLOC-1).
fn check_inputs(queues: &[LabelledQueue], members: &[String]) -> Result<()> {
    if queues.is_empty() || members.is_empty() {
        return Err(refuse("there are no queues or no members to assign".to_owned()));
    }
    Ok(())
}

fn refuse(reason: String) -> Error {
    Error::Strategy { reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn queues(topic: &str, count: u16) -> Vec<LabelledQueue> {
        (0..count).map(|queue| LabelledQueue::new(topic, "b", queue)).collect()
    }

    pub(super) fn names(count: usize) -> Vec<String> {
        (0..count).map(|nth| format!("m{nth:02}")).collect()
    }

    /// The numbers of each member's queues, in the order of the members.
    pub(super) fn numbers(
        strategy: &dyn AssignStrategy,
        queues: &[LabelledQueue],
        members: &[String],
    ) -> Vec<Vec<u16>> {
        let assignment = strategy.assign(queues, members, &Assignment::new()).unwrap();
        check(&assignment, queues, members).unwrap();
        let number = |queue: &LabelledQueue| queue.id().queue();
        let of = |member| assignment.get(member).into_iter().flatten().map(number).collect();
        members.iter().map(of).collect()
    }

    fn reason(dealt: &[(&str, &[u16])]) -> Option<String> {
        let deal = |queues: &[u16]| {
            queues.iter().map(|&queue| LabelledQueue::new("t", "b", queue)).collect()
        };
        let assignment = dealt.iter().map(|&(name, queues)| (name.into(), deal(queues))).collect();
        match check(&assignment, &queues("t", 3), &["a".into(), "b".into()]) {
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

    fn all() -> Vec<Box<dyn AssignStrategy>> {
        let room = |_: &str| "r".to_owned();
        let nearby = MachineRoomNearby::new(ByCircle, move |queue| room(queue.label()), room);
        vec![
            Box::new(Averagely),
            Box::new(ByCircle),
            Box::new(ConsistentHash::new()),
            Box::new(MachineRoom::new(["r"])),
            Box::new(nearby),
            Box::new(Sticky),
        ]
    }

    #[test]
    fn alloc_1_no_queues_or_no_members_is_an_error() {
        for strategy in all() {
            for (queues, members) in [(queues("t", 0), names(1)), (queues("t", 1), names(0))] {
                let refused = strategy.assign(&queues, &members, &Assignment::new());
                assert!(matches!(refused, Err(Error::Strategy { .. })), "{strategy:?}");
            }
        }
    }

    #[test]
    fn alloc_8_everything_is_dealt_out_once_and_evenly() {
        for strategy in all() {
            for (n, m) in (1..20_u16).flat_map(|n| (1..14_usize).map(move |m| (n, m))) {
                let queues: Vec<_> = (0..n).map(|q| LabelledQueue::new("t", "r@b", q)).collect();
                let shares = numbers(&*strategy, &queues, &names(m));
                let mut dealt = shares.concat();
                dealt.sort_unstable();
                assert_eq!(dealt, (0..n).collect::<Vec<_>>(), "{strategy:?} n={n} m={m}");
                let sizes = || shares.iter().map(Vec::len);
                let (most, least) = (sizes().max().unwrap(), sizes().min().unwrap());
                let even = strategy.name() != "CONSISTENT_HASH";
                assert!(!even || most - least <= 1, "{strategy:?} n={n} m={m}");
            }
        }
    }

    #[test]
    fn reb_2_each_topic_is_dealt_out_by_itself() {
        let both = [queues("a", 3), queues("b", 3)].concat();
        let assignment = Averagely.assign(&both, &names(2), &Assignment::new()).unwrap();
        let shown = assignment["m00"].iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(shown, ["a/0", "a/1", "b/0", "b/1"]);
    }
}
