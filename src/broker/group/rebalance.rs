//! Bringing owners up to date: ask the strategy, revoke, wait until drained, give.
//!
//! The strategy is user code and runs without the lock. If the group has changed meanwhile, its
//! answer is thrown away and it is asked again.

use super::state::{Joined, Owner, Seat, State};
use super::{ConsumeQueue, Group, Owned, Subscription};
use crate::broker::assign::{self, AssignStrategy, Assignment, Averagely, LabelledQueue};
use crate::broker::expiry::Passed;
use crate::broker::mode::Mode;
use crate::broker::start::Start;
use crate::error::Result;
use crate::names;
use crate::queue_id::QueueId;
use crate::store::OffsetKey;
use crate::sync::contain;
use std::collections::BTreeMap;

type Target = BTreeMap<Seat, String>;

/// The strategy gave no assignment that can be followed.
struct Failed;

impl Group {
    /// Brings the assignment up to date with members, topics and queues (REB-2, REB-4).
    pub(super) fn rebalance(&self) {
        loop {
            let state = self.state.lock();
            let generation = state.generation;
            let members = state.members.iter();
            let members: Vec<_> = members.map(|(name, m)| (name.clone(), m.number)).collect();
            let subscription = state.subscription.clone();
            let current = state.current(&self.label);
            drop(state);

            let wanted = match &subscription {
                Some(subscription) => self.wanted(subscription, members, &current),
                None => Ok(Target::new()),
            };
            let mut state = self.state.lock();
            if state.generation != generation {
                continue;
            }
            state.unbalanced = wanted.is_err();
            match wanted {
                Ok(target) => state.target = target,
                // The old assignment stays, but nothing is left to those who are gone.
                Err(Failed) => {
                    state.failures += 1;
                    self.rebalancer.ring();
                    let State { target, members, .. } = &mut *state;
                    target.retain(|_, member| members.contains_key(member));
                }
            }
            self.apply(&mut state);
            return;
        }
    }

    /// Who is to have what. In broadcasting everybody is to have everything (REB-3).
    fn wanted(
        &self,
        subscription: &Subscription,
        members: Vec<(String, u32)>,
        current: &Assignment,
    ) -> Result<Target, Failed> {
        // Queues that are younger than the group are consumed from their beginning, even by
        // members that come later. Without room for it that still holds until the process ends:
        // the first commit tries again, and counts as failed.
        let begin = |number| drop(self.store_start(subscription, number, Start::First));
        let numbers: Vec<u32> = match subscription.mode {
            Mode::Clustering => vec![self.number],
            Mode::Broadcasting => members.iter().map(|(_, number)| *number).collect(),
        };
        let queues = self.queues(subscription, &numbers);
        match subscription.mode {
            Mode::Clustering => {
                begin(self.number);
                let labelled = |queue| LabelledQueue::of(self.label.clone(), queue);
                let queues = queues.into_iter().map(labelled);
                let (own, queues): (Vec<_>, Vec<_>) =
                    queues.partition(|queue| names::is_of_a_group(queue.id().topic()));
                let members: Vec<_> = members.into_iter().map(|(name, _)| name).collect();
                let asked = ask(&*subscription.strategy, &queues, &members, current)?;
                // A strategy knows nothing of the retry topic, and might leave it to nobody.
                let dealt = ask(&Averagely, &own, &members, &Assignment::new())?;
                let seats = |(member, queues): (String, Vec<LabelledQueue>)| {
                    let seat = |queue: LabelledQueue| Seat { queue: queue.into_id(), member: None };
                    queues.into_iter().map(move |queue| (seat(queue), member.clone()))
                };
                Ok(asked.into_iter().chain(dealt).flat_map(seats).collect())
            }
            Mode::Broadcasting => {
                members.iter().for_each(|(_, number)| begin(*number));
                let seats = |(name, _): (String, u32)| {
                    let seat = |queue: &QueueId, member| Seat { queue: queue.clone(), member };
                    let of = |queue| (seat(queue, Some(name.clone())), name.clone());
                    queues.iter().map(of).collect::<Vec<_>>()
                };
                Ok(members.into_iter().flat_map(seats).collect())
            }
        }
    }

    fn apply(&self, state: &mut State) {
        let owned: Vec<Seat> = state.owners.keys().cloned().collect();
        for seat in owned {
            let Some(owner) = state.owners.get_mut(&seat) else { continue };
            // A topic that was deleted may be there again, with queues of the same names.
            let stays = !owner.anew
                && !owner.queue.is_gone()
                && state.target.get(&seat) == Some(&owner.member);
            // A draining queue has an owner who reads no further, whoever is to have it.
            if !owner.draining && !stays {
                owner.draining = true;
                if let Some(next) = owner.handle.clone().revoke(&seat.queue) {
                    self.take_back(state, &seat, next);
                }
            }
        }
        let wanted: Vec<Seat> = state.target.keys().cloned().collect();
        wanted.iter().for_each(|seat| self.give(state, seat));
    }

    /// Ends the ownership of a queue, which the next owner reads from `next` on, unless the group
    /// was moved elsewhere.
    pub(super) fn take_back(&self, state: &mut State, seat: &Seat, next: u64) {
        let Some(Owner { key, queue, member, .. }) = state.owners.remove(seat) else { return };
        self.leases.give_up(&[key], &member);
        let reset = state.resets.remove(&key);
        if reset.is_some() {
            self.store.offsets.thaw(key);
        }
        if !queue.is_gone() {
            state.left.insert(key, reset.unwrap_or(next));
        }
    }

    /// Gives a queue that nobody has to the member who is to have it.
    pub(super) fn give(&self, state: &mut State, seat: &Seat) {
        if state.owners.contains_key(seat) {
            return;
        }
        let Some(name) = state.target.get(seat).cloned() else { return };
        let (Some(Joined { handle, number }), Some(subscription)) =
            (state.members.get(&name), &state.subscription)
        else {
            return;
        };
        let id = seat.queue.clone();
        let filter = subscription.topics.get(id.topic()).cloned();
        let topic = self.store.topics.get(id.topic());
        let (Some(filter), Some(topic)) = (filter, topic) else { return };
        let Some(queue) = topic.queues.get(usize::from(id.queue())).cloned() else { return };
        let key = key(*number, &queue);
        // Before it is known where to go on: whoever had the lease commits nothing any more (ORD-20).
        let now = self.store.clock().moment();
        let lease = match subscription.is_leased() {
            false => None,
            true => match self.leases.take(key, &name, now) {
                Some(lease) => Some(lease),
                // Somebody else's, which nobody but its expiry ends: the next look tries again.
                None => {
                    state.unbalanced = true;
                    return self.rebalancer.ring();
                }
            },
        };
        // A queue that is younger than the group is consumed from its beginning.
        let stored = || self.store.offsets.get(key).unwrap_or_else(|| queue.min());
        let offset = state.left.remove(&key).unwrap_or_else(stored);
        let handle = handle.clone();
        let (draining, anew) = (false, false);
        let (member, index) = (name, queue.clone());
        let owner = Owner { member, handle: handle.clone(), queue: index, key, draining, anew };
        state.owners.insert(seat.clone(), owner);
        let meter = state.meter(id.topic(), self.store.clock());
        let passed = Passed::nothing();
        let owned = Owned { id, queue, key, filter, lease, meter, passed };
        handle.assign(owned, offset);
    }

    /// Stores where consuming begins in every queue in which `number` has no offset: what is to be
    /// delivered again is always consumed from its beginning (REB-11).
    pub(super) fn store_start(
        &self,
        subscription: &Subscription,
        number: u32,
        start: Start,
    ) -> Result<()> {
        for id in self.queues(subscription, &[number]) {
            let Some(topic) = self.store.topics.get(id.topic()) else { continue };
            let Some(queue) = topic.queues.get(usize::from(id.queue())) else { continue };
            let key = key(number, queue);
            if self.store.offsets.get(key).is_none() {
                let is_own = names::is_of_a_group(id.topic());
                let start = if is_own { Start::First } else { start };
                let left = self.state.lock().left.get(&key).copied();
                let begin = left.map_or_else(|| start.offset(&self.store, queue), Ok)?;
                self.store.begin_offset(key, begin)?;
            }
        }
        Ok(())
    }

    /// Whether there is an offset of `number` in any queue, subscribed or not, or may have been one
    /// before it was damaged: to begin anew at the end could lose messages (B-079).
    pub(super) fn has_consumed(&self, number: u32) -> bool {
        let report = self.store.report();
        let damaged = report.unreadable_offsets > 0 || report.lost_offset_files > 0;
        if damaged && self.store.groups.is_old(number) {
            return true;
        }
        let topics = self.store.topics.all();
        let mut queues = topics.iter().flat_map(|topic| &topic.queues);
        queues.any(|queue| self.store.offsets.get(key(number, queue)).is_some())
    }

    /// The queues to be shared: those that are given up, too, as long as any of these has not
    /// reached their ends.
    fn queues(&self, subscription: &Subscription, numbers: &[u32]) -> Vec<QueueId> {
        let behind = |queue: &ConsumeQueue| {
            numbers.iter().any(|number| {
                let next = self.store.offsets.get(key(*number, queue));
                next.unwrap_or_else(|| queue.min()) < queue.max()
            })
        };
        let topics = subscription.topics.keys().filter_map(|name| self.store.topics.get(name));
        topics.flat_map(|topic| topic.readable(behind)).collect()
    }
}

fn key(group: u32, queue: &ConsumeQueue) -> OffsetKey {
    OffsetKey { group, incarnation: queue.incarnation, queue: queue.queue }
}

/// Asks a strategy, which may panic or answer nonsense: then it has failed.
fn ask(
    strategy: &dyn AssignStrategy,
    queues: &[LabelledQueue],
    members: &[String],
    current: &Assignment,
) -> Result<Assignment, Failed> {
    if queues.is_empty() || members.is_empty() {
        return Ok(Assignment::new());
    }
    let asked = contain(|| {
        let assignment = strategy.assign(queues, members, current).map_err(|_| Failed)?;
        assign::check(&assignment, queues, members).map_err(|_| Failed)?;
        Ok(assignment)
    });
    asked.unwrap_or(Err(Failed))
}
