use super::{AssignStrategy, Assignment, LabelledQueue, deal};
use crate::error::Result;
use std::collections::BTreeSet;

/// Deals out the queues whose label has the form `room@broker`, with one of the rooms that are
/// named here; others belong to nobody (ALLOC-5).
///
/// Each topic is dealt out by itself: as many neighbouring queues to each member, then one more to
/// each of the first members while some are left.
#[derive(Clone, Debug, Default)]
pub struct MachineRoom {
    rooms: BTreeSet<String>,
}

impl MachineRoom {
    /// Takes the rooms that are consumed.
    pub fn new<R: Into<String>>(rooms: impl IntoIterator<Item = R>) -> Self {
        Self { rooms: rooms.into_iter().map(Into::into).collect() }
    }

    fn has(&self, queue: &LabelledQueue) -> bool {
        // As Java splits: empty parts at the end do not count.
        let mut parts = queue.label().trim_end_matches('@').split('@');
        match (parts.next(), parts.next(), parts.next()) {
            (Some(room), Some(_), None) => self.rooms.contains(room),
            _ => false,
        }
    }
}

impl AssignStrategy for MachineRoom {
    fn name(&self) -> &str {
        "MACHINE_ROOM"
    }

    fn assign(
        &self,
        queues: &[LabelledQueue],
        members: &[String],
        _current: &Assignment,
    ) -> Result<Assignment> {
        deal(queues, members, |topic, index| {
            let here: Vec<_> = topic.iter().filter(|queue| self.has(queue)).collect();
            let (each, over) = (here.len() / members.len(), here.len() % members.len());
            let mut share = here[each * index..each * (index + 1)].to_vec();
            share.extend((index < over).then(|| here[each * members.len() + index]));
            share
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{names, numbers};
    use super::*;

    fn labelled(labels: &[&str]) -> Vec<LabelledQueue> {
        let queue = |(nth, label): (usize, &&str)| LabelledQueue::new("t", *label, nth as u16);
        labels.iter().enumerate().map(queue).collect()
    }

    #[test]
    fn alloc_5_seven_queues_for_three_members() {
        let shares = numbers(&MachineRoom::new(["r"]), &labelled(&["r@b"; 7]), &names(3));
        assert_eq!(shares, [vec![0, 1, 6], vec![2, 3], vec![4, 5]]);
    }

    #[test]
    fn alloc_5_only_labels_of_two_parts_with_a_known_room_count() {
        let labels = ["r", "r@", "r@b", "r@b@", "r@b@c", "@b", "s@b", "", "@@"];
        let shares = |rooms: &[&str]| {
            numbers(&MachineRoom::new(rooms.iter().copied()), &labelled(&labels), &names(1))
                .concat()
        };
        assert_eq!(shares(&["r"]), [2, 3]);
        assert_eq!(shares(&["r", "s", ""]), [2, 3, 5, 6]);
        assert_eq!(shares(&[]), [0; 0]);
    }
}
