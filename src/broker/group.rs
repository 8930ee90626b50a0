//! One consumer group: its members, what they subscribe to, and who has which queue.
//!
//! All members live in this process, so a rebalance is exact (docs/design.md): the strategy says who
//! is to have what; a queue that changes hands is revoked, drained, and only then given to its
//! new owner. At no moment has a queue two owners.

mod guests;
mod rebalance;
mod state;

pub(crate) use state::{Kind, Subscription};

use super::expiry::Passed;
use super::filter::Filter;
use super::group_settings::GroupSettings;
use super::lease::{Lease, Leases};
use super::meter::Meter;
use super::mode::Mode;
use super::pull_stats::PullCounters;
use super::start::Start;
use crate::error::{Error, Result};
use crate::names;
use crate::queue_id::QueueId;
use crate::store::{ConsumeQueue, OffsetKey, Store};
use crate::sync::{Alarm, Arc, Mutex, Rank, Swap};
use state::{Joined, Seat, State};
use std::collections::BTreeMap;

/// A member as its group sees it. Called with the group's lock held: it only notes what it is
/// told, and works on it elsewhere.
pub(crate) trait Member: Send + Sync {
    /// The queue is its own from now on, beginning at `offset`.
    fn assign(&self, owned: Owned, offset: u64);

    /// The queue is to be given back; if that is done already, returns the offset at which the
    /// next owner goes on, otherwise the member calls [`Group::released`] with it.
    fn revoke(&self, queue: &QueueId) -> Option<u64>;

    /// Whether nobody has come to read on in a queue for so long that it is to be begun anew
    /// (PQ-11).
    fn has_expired(&self, queue: &QueueId) -> bool;
}

/// A queue as its owner gets it.
#[derive(Clone, Debug)]
pub(crate) struct Owned {
    pub(crate) id: QueueId,
    pub(crate) queue: Arc<ConsumeQueue>,
    pub(crate) key: OffsetKey,
    pub(crate) filter: Filter,
    /// Of who consumes it in order with others.
    pub(crate) lease: Option<Lease>,
    /// Where what is done with it is counted.
    pub(crate) meter: Arc<Meter>,
    pub(crate) passed: Arc<Passed>,
}

/// Who has a queue, or in broadcasting a member's own share of it; and whether that is to be given
/// back.
pub(crate) type OwnedBy = BTreeMap<(QueueId, Option<String>), (String, bool)>;

/// A consumer group.
pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) number: u32,
    pub(crate) pulls: PullCounters,
    store: Arc<Store>,
    /// The label of the broker, for strategies.
    label: Arc<str>,
    settings: Swap<GroupSettings>,
    /// Of members that consume in order; the others have none.
    pub(crate) leases: Leases,
    state: Mutex<State>,
    /// Rung when a member joins, and when a rebalance has failed: whoever looks at the groups now
    /// and then has to know.
    rebalancer: Arc<Alarm>,
}

impl Group {
    pub(crate) fn new(
        name: &str,
        number: u32,
        store: Arc<Store>,
        label: Arc<str>,
        leases: Leases,
        rebalancer: Arc<Alarm>,
    ) -> Self {
        let settings = GroupSettings::decode(&store.groups.settings(name));
        Self {
            name: name.to_owned(),
            number,
            pulls: PullCounters::default(),
            store,
            label,
            settings: Swap::new(settings),
            leases,
            state: Mutex::new(Rank::Coordinator, State::default()),
            rebalancer,
        }
    }

    /// Stores where the group begins, for a member that is about to join. `start` is for a group
    /// that is new: one that comes back reads topics that it has not met from their beginning,
    /// since they may have been made while it was away. In broadcasting each member is a group of
    /// its own in this.
    ///
    /// # Errors
    /// As [`join`](Self::join): a member that will be refused leaves nothing behind. `DiskFull`,
    /// `Io` or `Corrupt` if the beginning cannot be found or stored.
    pub(crate) fn begin(&self, name: &str, wants: &Subscription, start: Start) -> Result<()> {
        self.permits(wants.mode)?;
        self.state.lock().check(&self.name, name, wants)?;
        let (number, start) = match wants.mode {
            Mode::Clustering => (self.number, start),
            Mode::Broadcasting => (self.instance(name)?, start.of_an_instance()),
        };
        let is_new = !self.has_consumed(number);
        if is_new && wants.mode == Mode::Clustering {
            // An earlier group of the name may have left dead letters.
            self.note_move()?;
        }
        let start = if is_new { start } else { Start::First };
        self.store_start(wants, number, start)
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
        let number = match subscription.mode {
            Mode::Clustering => self.number,
            Mode::Broadcasting => self.instance(name)?,
        };
        let mut state = self.state.lock();
        state.check(&self.name, name, &subscription)?;
        state.meters.retain(|topic, _| subscription.topics.contains_key(topic));
        let replaced = state.subscription.replace(subscription);
        state.members.insert(name.to_owned(), Joined { handle: member, number });
        state.generation += 1;
        drop(state);
        // Not under the lock: with it goes a strategy of the user's.
        drop(replaced);
        // Not before it is a member: a look that finds none waits for the next alarm.
        self.rebalancer.ring();
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
        self.rebalance();
        // Behind what owners hold of it: a predicate is the user's, and goes with no lock held.
        drop((member, subscription));
    }

    /// Lets all members go at once: no queue changes hands any more.
    pub(crate) fn disband(&self) {
        let mut state = self.state.lock();
        let gone = (std::mem::take(&mut state.members), state.subscription.take());
        state.generation += 1;
        drop(state);
        self.rebalance();
        drop(gone);
    }

    /// Subscribes all members to a topic, or to another part of it, in one generation (CLI-12).
    ///
    /// # Errors
    /// `Closed` if nobody is a member any more.
    pub(crate) fn subscribe(&self, topic: &str, filter: Filter) -> Result<()> {
        let mut state = self.state.lock();
        let Some(subscription) = &mut state.subscription else { return Err(Error::Closed) };
        if subscription.topics.get(topic) == Some(&filter) {
            return Ok(());
        }
        let replaced = subscription.topics.insert(topic.to_owned(), filter);
        // Owners of its queues read on with the filter that they have got.
        state.begin_anew(|seat, _| seat.queue.topic() == topic);
        state.generation += 1;
        drop(state);
        self.rebalance();
        drop(replaced);
        Ok(())
    }

    /// Ends the subscription of a topic for all members, in one generation: what is in flight is
    /// finished and committed (REB-14).
    ///
    /// # Errors
    /// `NotSubscribed`, `Closed`.
    pub(crate) fn unsubscribe(&self, topic: &str) -> Result<()> {
        let mut state = self.state.lock();
        let Some(subscription) = &mut state.subscription else { return Err(Error::Closed) };
        // What has failed is consumed for as long as there are members.
        let wanted = !names::is_of_a_group(topic);
        let Some(filter) = wanted.then(|| subscription.topics.remove(topic)).flatten() else {
            return Err(Error::NotSubscribed { group: self.name.clone(), topic: topic.to_owned() });
        };
        state.meters.remove(topic);
        state.generation += 1;
        drop(state);
        self.rebalance();
        drop(filter);
        Ok(())
    }

    /// What of a topic the group wants.
    pub(crate) fn filter(&self, topic: &str) -> Option<Filter> {
        self.state.lock().subscription.as_ref()?.topics.get(topic).cloned()
    }

    /// The queues of a subscribed topic have changed.
    pub(crate) fn refresh(&self) {
        self.state.lock().generation += 1;
        self.rebalance();
    }

    /// The periodic look (REB-1): asks the strategy again, and begins queues anew that nobody
    /// reads, or whose lease was not renewed.
    pub(crate) fn look_again(&self) -> u64 {
        let mut state = self.state.lock();
        if state.members.is_empty() {
            return 0;
        }
        let now = self.store.clock().moment();
        let expired = state.begin_anew(|seat, owner| {
            owner.handle.has_expired(&seat.queue) || self.leases.has_expired(owner.key, now)
        });
        drop(state);
        self.rebalance();
        expired
    }

    /// A revoked queue has been drained: its next owner goes on at `next`.
    pub(crate) fn released(&self, member: &str, queue: &QueueId, next: u64) {
        let mut state = self.state.lock();
        let released = |seat: &Seat| {
            let owner = state.owners.get(seat);
            owner.is_some_and(|owner| owner.member == member && owner.draining)
        };
        if let Some(seat) = Seat::both(queue, member).into_iter().find(released) {
            self.take_back(&mut state, &seat, next);
            self.give(&mut state, &seat);
        }
    }

    /// Moves the group to other offsets, whoever owns the queues: what is in flight is finished,
    /// and its progress counts no more (OFF-9, OFF-10). `moved` is told of each queue as long as
    /// nothing else is stored there, with no lock held.
    ///
    /// # Errors
    /// `DiskFull` or `Io` if there is no room for an offset; those before it are moved.
    pub(crate) fn reset(
        &self,
        offsets: &[(QueueId, OffsetKey, u64)],
        moved: impl Fn(OffsetKey, u64),
    ) -> Result<()> {
        self.note_move()?;
        let mut frozen = Vec::new();
        let mut failed = None;
        for (queue, key, offset) in offsets {
            match self.store.freeze_offset(*key, *offset) {
                Ok(()) => {
                    moved(*key, *offset);
                    frozen.push((queue, *key, *offset));
                }
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        let mut state = self.state.lock();
        for (queue, key, offset) in frozen {
            let seat = Seat { queue: queue.clone(), member: None };
            match state.owners.get_mut(&seat) {
                Some(owner) => {
                    owner.anew = true;
                    state.resets.insert(key, offset);
                }
                None => {
                    state.left.remove(&key);
                    self.store.offsets.thaw(key);
                }
            }
        }
        state.generation += 1;
        drop(state);
        self.rebalance();
        failed.map_or(Ok(()), Err)
    }

    /// The end of the log when the group was moved last: what it sent back before is delivered again
    /// where it goes on from there.
    pub(crate) fn moved_at(&self) -> u64 {
        let stored = self.store.groups.settings(&instance_name(&self.name, ""));
        stored.try_into().map_or(0, u64::from_le_bytes)
    }

    /// Kept in the table of groups, under the name of a member without a name, and only if the group
    /// has sent something back.
    fn note_move(&self) -> Result<()> {
        let own = [names::retry_topic(&self.name), names::dead_letter_topic(&self.name)];
        if own.iter().all(|topic| self.store.topics.get(topic).is_none()) {
            return Ok(());
        }
        let (_, end, _) = self.store.extent();
        let name = instance_name(&self.name, "");
        self.store.groups.set_settings(&name, &end.to_le_bytes()).map(drop)
    }

    /// Lets no member join any more, because the group is about to be deleted.
    ///
    /// # Errors
    /// `GroupInUse` if there are members, or some that still have to give queues back.
    pub(crate) fn retire(&self) -> Result<()> {
        let mut state = self.state.lock();
        let members = state.members.len().max(usize::from(!state.owners.is_empty()));
        let members = members + state.guests;
        if members > 0 {
            return Err(Error::GroupInUse { group: self.name.clone(), members });
        }
        state.retired = true;
        Ok(())
    }

    /// Takes members again: the group could not be deleted.
    pub(crate) fn reinstate(&self) {
        self.state.lock().retired = false;
    }

    pub(crate) fn settings(&self) -> GroupSettings {
        GroupSettings::clone(&self.settings.load())
    }

    pub(crate) fn set_settings(&self, settings: GroupSettings) {
        self.settings.store(settings);
    }

    /// Whether members may read (PULL-8).
    ///
    /// # Errors
    /// `GroupForbids`.
    pub(crate) fn permits(&self, mode: Mode) -> Result<()> {
        let settings = self.settings.load();
        let what = if !settings.allows_consuming() {
            "consuming"
        } else if mode == Mode::Broadcasting && !settings.allows_broadcasting() {
            "broadcasting"
        } else {
            return Ok(());
        };
        Err(Error::GroupForbids { group: self.name.clone(), what })
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

    /// What the members subscribe to; nothing without members.
    pub(crate) fn subscriptions(&self) -> BTreeMap<String, Filter> {
        let state = self.state.lock();
        state.subscription.as_ref().map(|running| running.topics.clone()).unwrap_or_default()
    }

    pub(crate) fn owners(&self) -> OwnedBy {
        let state = self.state.lock();
        let owned = state.owners.iter().map(|(seat, owner)| {
            let Seat { queue, member } = seat.clone();
            ((queue, member), (owner.member.clone(), owner.draining))
        });
        owned.collect()
    }

    /// Where what is done with a topic is counted.
    pub(crate) fn meter(&self, topic: &str) -> Arc<Meter> {
        self.state.lock().meter(topic, self.store.clock())
    }

    /// Where the members count what they do, by topic.
    pub(crate) fn meters(&self) -> Vec<(String, Arc<Meter>)> {
        let state = self.state.lock();
        state.meters.iter().map(|(topic, meter)| (topic.clone(), meter.clone())).collect()
    }

    /// How many members there are.
    pub(crate) fn members(&self) -> usize {
        self.state.lock().members.len()
    }

    /// How many queues wait until their owner has drained them.
    pub(crate) fn draining(&self) -> usize {
        self.state.lock().owners.values().filter(|owner| owner.draining).count()
    }

    /// How many rebalances left everything as it was, because the strategy failed.
    pub(crate) fn failures(&self) -> u64 {
        self.state.lock().failures
    }

    /// Whether the last rebalance failed.
    pub(crate) fn is_unbalanced(&self) -> bool {
        self.state.lock().unbalanced
    }

    /// Under which key a member's progress in a queue is kept.
    pub(crate) fn key(&self, mode: Mode, member: &str, queue: &ConsumeQueue) -> Result<OffsetKey> {
        let group = match mode {
            Mode::Clustering => self.number,
            Mode::Broadcasting => self.instance(member)?,
        };
        Ok(OffsetKey { group, incarnation: queue.incarnation, queue: queue.queue })
    }

    /// Under which number the offsets of a broadcasting member are kept.
    fn instance(&self, name: &str) -> Result<u32> {
        self.store.groups.number(&instance_name(&self.name, name))
    }
}

/// The name in the table of groups under which one broadcasting member keeps its progress. No group
/// is called so: names have no control characters.
pub(crate) fn instance_name(group: &str, member: &str) -> String {
    format!("{group}\u{1}{member}")
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group").field("name", &self.name).finish_non_exhaustive()
    }
}
