use super::{AssignStrategy, Assignment, LabelledQueue, check_inputs, refuse};
use crate::error::Result;
use crate::sync::Arc;
use std::collections::BTreeMap;
use std::fmt;

/// Assigns queues within their machine room: another strategy deals those of each room out to the
/// members of that room, and those of a room without members to all (ALLOC-6).
///
/// ```
/// use rocklet::{Averagely, LabelledQueue, MachineRoomNearby};
/// let before = |text: &str| text.split('-').next().unwrap_or_default().to_owned();
/// let nearby = MachineRoomNearby::new(
///     Averagely,
///     move |queue: &LabelledQueue| before(queue.label()),
///     before,
/// );
/// # let _ = nearby;
/// ```
#[derive(Clone)]
pub struct MachineRoomNearby {
    name: String,
    inner: Arc<dyn AssignStrategy>,
    queue_room: Arc<dyn Fn(&LabelledQueue) -> String + Send + Sync>,
    member_room: Arc<dyn Fn(&str) -> String + Send + Sync>,
}

impl MachineRoomNearby {
    /// Takes the strategy that deals out within a room, and what tells the rooms of queues and of
    /// members. A room without a name is an error: then the current assignment stays.
    pub fn new(
        inner: impl AssignStrategy + 'static,
        queue_room: impl Fn(&LabelledQueue) -> String + Send + Sync + 'static,
        member_room: impl Fn(&str) -> String + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: format!("MACHINE_ROOM_NEARBY-{}", inner.name()),
            inner: Arc::new(inner),
            queue_room: Arc::new(queue_room),
            member_room: Arc::new(member_room),
        }
    }
}

impl AssignStrategy for MachineRoomNearby {
    fn name(&self) -> &str {
        &self.name
    }

    fn assign(
        &self,
        queues: &[LabelledQueue],
        members: &[String],
        current: &Assignment,
    ) -> Result<Assignment> {
        check_inputs(queues, members)?;
        let queues = rooms(queues, |queue| (self.queue_room)(queue))?;
        let rooms = rooms(members, |member| (self.member_room)(member))?;
        let nearby = queues.iter().filter_map(|(room, queues)| Some((queues, rooms.get(room)?)));
        let left = queues.iter().filter(|(room, _)| !rooms.contains_key(*room));
        let mut assignment = Assignment::new();
        let mut deal = |queues: &[LabelledQueue], members: &[String]| -> Result<()> {
            for (member, share) in self.inner.assign(queues, members, current)? {
                assignment.entry(member).or_default().extend(share);
            }
            Ok(())
        };
        for (queues, members) in nearby {
            deal(queues, members)?;
        }
        for (_, queues) in left {
            deal(queues, members)?;
        }
        Ok(assignment)
    }
}

/// Sorts into rooms, which keep the order of the list.
fn rooms<T: Clone + fmt::Debug>(
    list: &[T],
    room: impl Fn(&T) -> String,
) -> Result<BTreeMap<String, Vec<T>>> {
    let mut rooms: BTreeMap<String, Vec<T>> = BTreeMap::new();
    for item in list {
        let room = room(item);
        if room.is_empty() {
            return Err(refuse(format!("{item:?} is in no machine room")));
        }
        rooms.entry(room).or_default().push(item.clone());
    }
    Ok(rooms)
}

impl fmt::Debug for MachineRoomNearby {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MachineRoomNearby").field("inner", &self.inner).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::numbers;
    use super::super::{Averagely, ByCircle};
    use super::*;
    use crate::error::Error;

    fn first(text: &str) -> String {
        text.split('-').next().filter(|room| *room != text).unwrap_or_default().to_owned()
    }

    fn nearby(inner: impl AssignStrategy + 'static) -> MachineRoomNearby {
        MachineRoomNearby::new(inner, |queue| first(queue.label()), first)
    }

    #[test]
    fn alloc_6_queues_stay_in_their_room_and_those_of_an_empty_room_go_to_all() {
        let labels = ["x-b", "y-b", "y-b", "z-b", "z-b", "z-b", "x-b", "x-b"];
        let queue = |(nth, label)| LabelledQueue::new("t", label, nth as u16);
        let queues: Vec<_> = labels.into_iter().enumerate().map(queue).collect();
        let members = ["x-1", "x-2", "y-1"].map(str::to_owned);
        let shares = numbers(&nearby(Averagely), &queues, &members);
        assert_eq!(shares, [vec![0, 6, 3], vec![7, 4], vec![1, 2, 5]]);
        assert_eq!(nearby(ByCircle).name(), "MACHINE_ROOM_NEARBY-AVG_BY_CIRCLE");
    }

    #[test]
    fn alloc_6_whoever_is_in_no_room_is_an_error() {
        let assign = |label: &str, member: &str| {
            let queues = [LabelledQueue::new("t", label, 0)];
            nearby(Averagely).assign(&queues, &[member.to_owned()], &Assignment::new())
        };
        assert!(assign("x-b", "x-1").is_ok());
        assert!(matches!(assign("plain", "x-1"), Err(Error::Strategy { .. })));
        assert!(matches!(assign("x-b", "plain"), Err(Error::Strategy { .. })));
    }
}
