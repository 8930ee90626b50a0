//! What the lock of a group guards.

use super::Member;
use crate::broker::assign::{AssignStrategy, Assignment, LabelledQueue};
use crate::broker::filter::Filter;
use crate::broker::meter::Meter;
use crate::broker::mode::Mode;
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::names::is_of_a_group;
use crate::queue_id::QueueId;
use crate::store::{ConsumeQueue, OffsetKey};
use crate::sync::{Arc, contain};
use std::collections::{BTreeMap, HashMap};

/// Members, owners, and who is to own what.
#[derive(Default)]
pub(super) struct State {
    pub(super) subscription: Option<Subscription>,
    pub(super) members: BTreeMap<String, Joined>,
    /// Consumers that chose their queues themselves.
    pub(super) guests: usize,
    pub(super) owners: BTreeMap<Seat, Owner>,
    pub(super) target: BTreeMap<Seat, String>,
    /// Where the last owners stopped: handed over in memory, so that a commit that could not be
    /// stored repeats nothing.
    pub(super) left: HashMap<OffsetKey, u64>,
    /// Where the next owners go on instead: these offsets are frozen in the store.
    pub(super) resets: HashMap<OffsetKey, u64>,
    pub(super) meters: BTreeMap<String, Arc<Meter>>,
    pub(super) generation: u64,
    pub(super) failures: u64,
    pub(super) unbalanced: bool,
    /// It is being deleted.
    pub(super) retired: bool,
}

/// What all members of a group have in common.
#[derive(Clone, Debug)]
pub(crate) struct Subscription {
    pub(super) kind: Kind,
    pub(super) mode: Mode,
    pub(super) topics: BTreeMap<String, Filter>,
    pub(super) strategy: Arc<dyn AssignStrategy>,
    // Asked once, so that no user code runs when members are compared.
    strategy_name: String,
    /// Whether progress is kept in a store of the user's.
    own_offsets: bool,
}

impl Subscription {
    /// # Errors
    /// `Strategy` if it panics when it is asked for its name.
    pub(crate) fn new(
        kind: Kind,
        mode: Mode,
        topics: BTreeMap<String, Filter>,
        strategy: Arc<dyn AssignStrategy>,
        own_offsets: bool,
    ) -> Result<Self> {
        let strategy_name = contain(|| strategy.name().to_owned())
            .map_err(|panic| Error::Strategy { reason: format!("it panicked: {panic}") })?;
        Ok(Self { kind, mode, topics, strategy, strategy_name, own_offsets })
    }

    /// Whether members share queues that each is to be consumed in order (ORD-19).
    pub(super) fn is_leased(&self) -> bool {
        self.kind == Kind::Orderly && self.mode == Mode::Clustering
    }

    /// In what another one differs.
    fn difference(&self, other: &Self) -> Option<&'static str> {
        if self.kind != other.kind {
            Some("kind of consumer")
        } else if self.mode != other.mode {
            Some("mode")
        } else if self.topics != other.topics {
            Some("subscription")
        } else if self.strategy_name != other.strategy_name {
            Some("assignment strategy")
        } else if self.own_offsets != other.own_offsets {
            Some("offset store")
        } else {
            None
        }
    }
}

/// How the members of a group consume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Push,
    /// Pushed, one call at a time for each queue.
    Orderly,
    Pull,
}

impl Kind {
    /// Whether what members fail is delivered again by way of a retry topic (CLI-4).
    pub(crate) fn sends_back(self, mode: Mode) -> bool {
        self != Self::Pull && mode == Mode::Clustering
    }
}

/// A member, and under which number its progress is kept.
pub(super) struct Joined {
    pub(super) handle: Arc<dyn Member>,
    pub(super) number: u32,
}

/// What has one owner: a queue of the group or, in broadcasting, of one member.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Seat {
    pub(super) queue: QueueId,
    pub(super) member: Option<String>,
}

impl Seat {
    /// What a member may have of a queue, in either mode.
    pub(super) fn both(queue: &QueueId, member: &str) -> [Self; 2] {
        [None, Some(member.to_owned())].map(|member| Self { queue: queue.clone(), member })
    }
}

pub(super) struct Owner {
    pub(super) member: String,
    pub(super) handle: Arc<dyn Member>,
    pub(super) queue: Arc<ConsumeQueue>,
    pub(super) key: OffsetKey,
    pub(super) draining: bool,
    /// It is to give the queue back, even if it gets it again.
    pub(super) anew: bool,
}

impl State {
    /// Where what is done with a topic is counted.
    pub(super) fn meter(&mut self, topic: &str, clock: &Clock) -> Arc<Meter> {
        let meter = || Arc::new(Meter::new(clock.moment()));
        self.meters.entry(topic.to_owned()).or_insert_with(meter).clone()
    }

    pub(super) fn knows(&self, name: &str) -> bool {
        self.members.contains_key(name) || self.owners.values().any(|owner| owner.member == name)
    }

    pub(super) fn check(&self, group: &str, name: &str, wants: &Subscription) -> Result<()> {
        if self.retired {
            return Err(Error::NoSuchGroup { group: group.to_owned() });
        }
        if self.knows(name) {
            return Err(Error::Duplicate { group: group.to_owned(), name: name.to_owned() });
        }
        match self.subscription.as_ref().and_then(|running| running.difference(wants)) {
            Some(what) => Err(Error::Mismatch { group: group.to_owned(), what }),
            None => Ok(()),
        }
    }

    /// Has queues begun anew, under the same or under another owner; returns how many.
    pub(super) fn begin_anew(&mut self, which: impl Fn(&Seat, &Owner) -> bool) -> u64 {
        let mut count = 0;
        for (seat, owner) in &mut self.owners {
            if !owner.draining && !owner.anew && which(seat, owner) {
                owner.anew = true;
                count += 1;
            }
        }
        count
    }

    /// The assignment in force, as strategies see it: without the retry topic.
    pub(super) fn current(&self, label: &Arc<str>) -> Assignment {
        let mut current = Assignment::new();
        let owners = self.owners.iter();
        for (seat, owner) in owners.filter(|(seat, _)| !is_of_a_group(seat.queue.topic())) {
            let queue = LabelledQueue::of(label.clone(), seat.queue.clone());
            current.entry(owner.member.clone()).or_default().push(queue);
        }
        current
    }
}
