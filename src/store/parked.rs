//! Messages that are due and cannot be stored. All that fail for the same cause wait together: one of
//! them is tried for all, after pauses that grow, and when it is stored the others follow at once.

use super::schedule::{Scale, Ticket};
use std::collections::BTreeMap;

/// The first pause, and the longest.
const PAUSE_MS: i64 = 1_000;
const LONGEST_MS: i64 = 60_000;

/// Why a message cannot be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// There is no room for anything.
    Room,
    /// The topic of this incarnation takes nothing.
    Topic(u32),
}

#[derive(Debug, Default)]
pub(super) struct Parked {
    groups: Vec<Group>,
}

#[derive(Debug)]
struct Group {
    cause: Cause,
    /// The steady time when the first one is tried.
    until_ms: i64,
    pause_ms: i64,
    /// By due time and position.
    tickets: BTreeMap<(u64, u64), Scale>,
}

impl Group {
    fn tickets(&self) -> impl Iterator<Item = Ticket> {
        let all = self.tickets.iter();
        all.map(|(&(due, position), &scale)| Ticket { position, due, scale })
    }

    fn has(&self, ticket: &Ticket) -> bool {
        self.tickets.get(&(ticket.due, ticket.position)) == Some(&ticket.scale)
    }
}

impl Parked {
    /// Adds a message that could not be stored.
    pub(super) fn add(&mut self, ticket: &Ticket, cause: Cause, steady_ms: i64) {
        let known = self.groups.iter().position(|group| group.cause == cause);
        let at = known.unwrap_or_else(|| {
            self.groups.retain(|group| !group.tickets.is_empty());
            let (until_ms, pause_ms, tickets) = (i64::MIN, 0, BTreeMap::new());
            self.groups.push(Group { cause, until_ms, pause_ms, tickets });
            self.groups.len() - 1
        });
        let group = &mut self.groups[at];
        group.tickets.insert((ticket.due, ticket.position), ticket.scale);
        if group.until_ms <= steady_ms {
            group.pause_ms = (2 * group.pause_ms).clamp(PAUSE_MS, LONGEST_MS);
            group.until_ms = steady_ms.saturating_add(group.pause_ms);
        }
    }

    /// Whether nothing is to be tried that may fail for this cause.
    pub(super) fn holds(&self, cause: Cause, steady_ms: i64) -> bool {
        let mut groups = self.groups.iter().filter(|group| !group.tickets.is_empty());
        groups.any(|group| group.cause == cause && group.until_ms > steady_ms)
    }

    pub(super) fn has(&self, ticket: &Ticket) -> bool {
        self.groups.iter().any(|group| group.has(ticket))
    }

    /// Takes a message out; its group goes on waiting.
    pub(super) fn take(&mut self, ticket: &Ticket) -> bool {
        let Some(group) = self.groups.iter_mut().find(|group| group.has(ticket)) else {
            return false;
        };
        group.tickets.remove(&(ticket.due, ticket.position)).is_some()
    }

    /// Takes a message out whose wait has ended: the next one of its group may be stored, too.
    pub(super) fn end(&mut self, ticket: &Ticket) -> bool {
        let Some(at) = self.groups.iter().position(|group| group.has(ticket)) else {
            return false;
        };
        let group = &mut self.groups[at];
        group.tickets.remove(&(ticket.due, ticket.position));
        group.until_ms = i64::MIN;
        if group.tickets.is_empty() {
            self.groups.swap_remove(at);
        }
        true
    }

    /// The first of each group, and when it is tried.
    pub(super) fn firsts(&self) -> impl Iterator<Item = (i64, Ticket)> {
        self.groups.iter().filter_map(|group| Some((group.until_ms, group.tickets().next()?)))
    }

    pub(super) fn find(&self, position: u64, due: u64) -> Option<Ticket> {
        self.groups.iter().find_map(|group| {
            let scale = *group.tickets.get(&(due, position))?;
            Some(Ticket { position, due, scale })
        })
    }

    pub(super) fn all(&self) -> impl Iterator<Item = Ticket> {
        self.groups.iter().flat_map(Group::tickets)
    }

    pub(super) fn len(&self) -> usize {
        self.groups.iter().map(|group| group.tickets.len()).sum()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn ticket(position: u64) -> Ticket {
        Ticket { position, due: 1000 - position, scale: Scale::Wall }
    }

    /// (B-135)
    #[test]
    fn one_is_tried_for_all_after_pauses_that_grow_to_a_minute() {
        let (mut parked, topic) = (Parked::default(), Cause::Topic(3));
        parked.add(&ticket(8), topic, 0);
        parked.add(&ticket(16), topic, 500);
        parked.add(&ticket(24), Cause::Room, 500);
        assert_eq!((parked.len(), parked.firsts().count()), (3, 2));
        assert!(parked.holds(topic, 999) && !parked.holds(topic, 1000));
        assert!(!parked.holds(Cause::Topic(4), 0) && parked.holds(Cause::Room, 1499));
        let (mut now, mut pauses) = (0, Vec::new());
        for _ in 0..8 {
            let (until, first) = parked.firsts().next().unwrap();
            assert_eq!(first, ticket(16), "it is due first");
            pauses.push((until - now) / 1000);
            now = until;
            assert!(parked.take(&first) && !parked.has(&first));
            parked.add(&first, topic, now);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(parked.find(16, 984), Some(ticket(16)));
        assert!(parked.end(&ticket(16)) && !parked.end(&ticket(16)));
        assert_eq!(parked.firsts().next().unwrap(), (i64::MIN, ticket(8)), "the others follow");
        assert!(parked.end(&ticket(8)) && !parked.holds(topic, 0));
        parked.add(&ticket(8), topic, now);
        assert!(
            parked.holds(topic, now + 999) && !parked.holds(topic, now + 1000),
            "from one second"
        );
    }
}
