//! One consumer group: its members, what they subscribe to, and who has which queue.
//!
//! All members live in this process, so a rebalance is exact (docs/design.md): the strategy says who
//! is to have what; a queue that changes hands is revoked, drained, and only then given to its
//! new owner. At no moment has a queue two owners.
//!
//! The strategy is user code and runs without the lock. If the group has changed meanwhile, its
//! answer is thrown away and it is asked again.

use super::assign::{self, AssignStrategy, Assignment, LabelledQueue};
use super::filter::Filter;
use super::start::Start;
use crate::error::{Error, Result};
use crate::queue_id::QueueId;
use crate::store::{ConsumeQueue, OffsetKey, Store};
use crate::sync::{Arc, Mutex, Rank, contain};
use std::collections::{BTreeMap, HashMap};

/// A member as its group sees it. Called with the group's lock held: it only notes what it is
/// told, and works on it elsewhere.
pub(crate) trait Member: Send + Sync {
    /// The queue is its own from now on, beginning at `offset`.
    fn assign(&self, owned: Owned, offset: u64);

    /// The queue is to be given back; if that is done already, returns the offset at which the
    /// next owner goes on, otherwise the member calls [`Group::released`] with it.
    fn revoke(&self, queue: &QueueId) -> Option<u64>;
}

/// A queue as its owner gets it.
#[derive(Clone, Debug)]
pub(crate) struct Owned {
    pub(crate) id: QueueId,
    pub(crate) queue: Arc<ConsumeQueue>,
    pub(crate) key: OffsetKey,
    pub(crate) filter: Filter,
}

/// What all members of a group have in common.
#[derive(Clone, Debug)]
pub(crate) struct Subscription {
    kind: Kind,
    topics: BTreeMap<String, Filter>,
    strategy: Arc<dyn AssignStrategy>,
    // Asked once, so that no user code runs when members are compared.
    strategy_name: String,
}

impl Subscription {
    /// # Errors
    /// `Strategy` if it panics when it is asked for its name.
    pub(crate) fn new(
        kind: Kind,
        topics: BTreeMap<String, Filter>,
        strategy: Arc<dyn AssignStrategy>,
    ) -> Result<Self> {
        let strategy_name = contain(|| strategy.name().to_owned())
            .map_err(|panic| Error::Strategy { reason: format!("it panicked: {panic}") })?;
        Ok(Self { kind, topics, strategy, strategy_name })
    }
}

/// How the members of a group consume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Push,
    Pull,
}

/// A consumer group.
pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) number: u32,
    store: Arc<Store>,
    /// The label of the broker, for strategies.
    label: Arc<str>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    subscription: Option<Subscription>,
    members: BTreeMap<String, Arc<dyn Member>>,
    owners: BTreeMap<QueueId, Owner>,
    target: BTreeMap<QueueId, String>,
    /// Where the last owners stopped: handed over in memory, so that a commit that could not be
    /// stored repeats nothing.
    left: HashMap<OffsetKey, u64>,
    generation: u64,
    failures: u64,
}

struct Owner {
    member: String,
    handle: Arc<dyn Member>,
    key: OffsetKey,
    draining: bool,
}

impl Group {
    pub(crate) fn new(name: &str, number: u32, store: Arc<Store>, label: Arc<str>) -> Self {
        let state = Mutex::new(Rank::Coordinator, State::default());
        Self { name: name.to_owned(), number, store, label, state }
    }

    /// Stores where the group begins, for a member that is about to join. `start` is for a group
    /// that is new: one that comes back reads topics that it has not met from their beginning,
    /// since they may have been made while it was away.
    ///
    /// # Errors
    /// As [`join`](Self::join): a member that will be refused leaves nothing behind. `DiskFull`,
    /// `Io` or `Corrupt` if the beginning cannot be found or stored.
    pub(crate) fn begin(&self, name: &str, wants: &Subscription, start: Start) -> Result<()> {
        self.state.lock().check(&self.name, name, wants)?;
        self.store_start(wants, if self.has_consumed() { Start::First } else { start })
    }

    /// Takes a member in; queues arrive by `assign`.
    ///
    /// # Errors
    /// `Duplicate` if the name is taken, `Mismatch` if the member differs from those that run.
    pub(crate) fn join(
        &self,
        name: &str,
        member: Arc<dyn Member>,
        subscription: Subscription,
    ) -> Result<()> {
        let mut state = self.state.lock();
        state.check(&self.name, name, &subscription)?;
        let replaced = state.subscription.replace(subscription);
        state.members.insert(name.to_owned(), member);
        state.generation += 1;
        drop(state);
        // Not under the lock: with it goes a strategy of the user's.
        drop(replaced);
        self.rebalance();
        Ok(())
    }

    /// Lets a member go: its queues are revoked, and others get them once they are drained.
    pub(crate) fn leave(&self, name: &str) {
        let mut state = self.state.lock();
        // Already gone if the group is disbanded: its queues are revoked when this returns, too.
        let member = state.members.remove(name);
        state.generation += 1;
        let last = state.members.is_empty();
        let subscription = if last { state.subscription.take() } else { None };
        drop(state);
        drop((member, subscription));
        self.rebalance();
    }

    /// Lets all members go at once: no queue changes hands any more.
    pub(crate) fn disband(&self) {
        let mut state = self.state.lock();
        let gone = (std::mem::take(&mut state.members), state.subscription.take());
        state.generation += 1;
        drop(state);
        drop(gone);
        self.rebalance();
    }

    /// The queues of a subscribed topic have changed.
    pub(crate) fn refresh(&self) {
        self.state.lock().generation += 1;
        self.rebalance();
    }

    /// A revoked queue has been drained: its next owner goes on at `next`.
    pub(crate) fn released(&self, member: &str, queue: &QueueId, next: u64) {
        let mut state = self.state.lock();
        let released = |owner: &Owner| owner.member == member && owner.draining;
        if state.owners.get(queue).is_some_and(released) {
            state.take_back(queue, next);
            self.give(&mut state, queue);
        }
    }

    /// Whether a member has this name, or still has to give queues back.
    pub(crate) fn knows(&self, name: &str) -> bool {
        self.state.lock().knows(name)
    }

    /// Whether the group consumes `topic`.
    pub(crate) fn subscribes(&self, topic: &str) -> bool {
        let state = self.state.lock();
        state.subscription.as_ref().is_some_and(|s| s.topics.contains_key(topic))
    }

    /// How many members there are.
    pub(crate) fn members(&self) -> usize {
        self.state.lock().members.len()
    }

    /// How many rebalances left everything as it was, because the strategy failed.
    pub(crate) fn failures(&self) -> u64 {
        self.state.lock().failures
    }

    /// Brings the assignment up to date with members, topics and queues (REB-2, REB-4).
    pub(crate) fn rebalance(&self) {
        loop {
            let state = self.state.lock();
            let generation = state.generation;
            let members: Vec<String> = state.members.keys().cloned().collect();
            let subscription = state.subscription.clone();
            let mut current = Assignment::new();
            for (queue, owner) in &state.owners {
                current.entry(owner.member.clone()).or_default().push(self.labelled(queue));
            }
            drop(state);

            let wanted = match &subscription {
                Some(s) => {
                    // Queues that are younger than the group are consumed from their beginning,
                    // even by members that come later. Without room for it that still holds until
                    // the process ends: the first commit tries again, and counts as failed.
                    let _ = self.store_start(s, Start::First);
                    let queues: Vec<_> = self.queues(s).iter().map(|q| self.labelled(q)).collect();
                    ask(&*s.strategy, &queues, &members, &current)
                }
                None => Ok(Assignment::new()),
            };
            let mut state = self.state.lock();
            if state.generation != generation {
                continue;
            }
            match wanted {
                Ok(wanted) => {
                    state.target.clear();
                    for (member, queues) in wanted {
                        for queue in queues {
                            state.target.insert(queue.into_id(), member.clone());
                        }
                    }
                }
                // The old assignment stays, but nothing is left to those who are gone.
                Err(Failed) => {
                    state.failures += 1;
                    let State { target, members, .. } = &mut *state;
                    target.retain(|_, member| members.contains_key(member));
                }
            }
            self.apply(&mut state);
            return;
        }
    }

    fn apply(&self, state: &mut State) {
        let owned: Vec<QueueId> = state.owners.keys().cloned().collect();
        for queue in owned {
            let target = state.target.get(&queue).cloned();
            let Some(owner) = state.owners.get_mut(&queue) else { continue };
            // A draining queue has an owner who reads no further, whoever is to have it.
            if !owner.draining && target.as_ref() != Some(&owner.member) {
                owner.draining = true;
                if let Some(next) = owner.handle.clone().revoke(&queue) {
                    state.take_back(&queue, next);
                }
            }
        }
        let wanted: Vec<QueueId> = state.target.keys().cloned().collect();
        wanted.iter().for_each(|queue| self.give(state, queue));
    }

    /// Gives a queue that nobody has to the member who is to have it.
    fn give(&self, state: &mut State, queue: &QueueId) {
        if state.owners.contains_key(queue) {
            return;
        }
        let Some(name) = state.target.get(queue).cloned() else { return };
        let (Some(member), Some(subscription)) =
            (state.members.get(&name).cloned(), &state.subscription)
        else {
            return;
        };
        let filter = subscription.topics.get(queue.topic()).cloned();
        let topic = self.store.topics.get(queue.topic());
        let (Some(filter), Some(topic)) = (filter, topic) else { return };
        let Some(index) = topic.queues.get(usize::from(queue.queue())).cloned() else { return };
        let key = self.key(&index);
        // A queue that is younger than the group is consumed from its beginning.
        let stored = || self.store.offsets.get(key).unwrap_or_else(|| index.min());
        let offset = state.left.remove(&key).unwrap_or_else(stored);
        let owner = Owner { member: name, handle: member.clone(), key, draining: false };
        state.owners.insert(queue.clone(), owner);
        let id = queue.clone();
        member.assign(Owned { id, queue: index, key, filter }, offset);
    }

    /// Stores where the group begins in every queue that it has not consumed before (REB-11).
    fn store_start(&self, subscription: &Subscription, start: Start) -> Result<()> {
        for id in self.queues(subscription) {
            let Some(topic) = self.store.topics.get(id.topic()) else { continue };
            let Some(queue) = topic.queues.get(usize::from(id.queue())) else { continue };
            let key = self.key(queue);
            if self.store.offsets.get(key).is_none() {
                let left = self.state.lock().left.get(&key).copied();
                let begin = left.map_or_else(|| start.offset(&self.store, queue), Ok)?;
                self.store.offsets.begin(key, begin)?;
            }
        }
        Ok(())
    }

    /// Whether there is an offset of the group in any queue, subscribed or not, or may have been
    /// one before it was damaged: to begin anew at the end could lose messages (B-079).
    fn has_consumed(&self) -> bool {
        let damaged = self.store.report().unreadable_offsets > 0;
        if damaged && self.store.groups.is_old(self.number) {
            return true;
        }
        let topics = self.store.topics.all();
        let mut queues = topics.iter().flat_map(|topic| &topic.queues);
        queues.any(|queue| self.store.offsets.get(self.key(queue)).is_some())
    }

    fn queues(&self, subscription: &Subscription) -> Vec<QueueId> {
        let topics = subscription.topics.keys().filter_map(|name| self.store.topics.get(name));
        topics.flat_map(|topic| topic.ids.clone()).collect()
    }

    fn labelled(&self, queue: &QueueId) -> LabelledQueue {
        LabelledQueue::of(self.label.clone(), queue.clone())
    }

    fn key(&self, queue: &ConsumeQueue) -> OffsetKey {
        let (incarnation, queue) = (queue.incarnation, queue.queue);
        OffsetKey { group: self.number, incarnation, queue }
    }
}

impl State {
    /// Ends the ownership of a queue, which the next owner reads from `next` on.
    fn take_back(&mut self, queue: &QueueId, next: u64) {
        if let Some(owner) = self.owners.remove(queue) {
            self.left.insert(owner.key, next);
        }
    }

    fn knows(&self, name: &str) -> bool {
        self.members.contains_key(name) || self.owners.values().any(|owner| owner.member == name)
    }

    fn check(&self, group: &str, name: &str, subscription: &Subscription) -> Result<()> {
        if self.knows(name) {
            return Err(Error::Duplicate { group: group.to_owned(), name: name.to_owned() });
        }
        let Some(running) = &self.subscription else { return Ok(()) };
        let what = if running.kind != subscription.kind {
            "kind of consumer"
        } else if running.topics != subscription.topics {
            "subscription"
        } else if running.strategy_name != subscription.strategy_name {
            "assignment strategy"
        } else {
            return Ok(());
        };
        Err(Error::Mismatch { group: group.to_owned(), what })
    }
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

/// The strategy gave no assignment that can be followed.
struct Failed;

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group").field("name", &self.name).finish_non_exhaustive()
    }
}
