//! The part of a pull consumer that its group, the hold table and closing reach: which queues it
//! has, how far they have been handed out, and a wake-up for a poll that waits.

use super::super::builder::Plan;
use super::super::outcome::Outcome;
use super::super::queue_changes::{QueueChanges, QueuesChanged};
use super::cursor::Cursor;
use super::poll::PolledQueue;
use super::settings::PullSettings;
use crate::broker::core::{Core, Running};
use crate::broker::filter::Filter;
use crate::broker::group::{Group, Member, Owned};
use crate::broker::hold::Waiter;
use crate::broker::{Mode, Start};
use crate::clock::Moment;
use crate::error::{Error, Result};
use crate::queue_id::QueueId;
use crate::store::{Delivery, OffsetKey};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Alarm, Arc, Mutex, MutexGuard, Rank, Signal, Weak};
use std::collections::BTreeMap;
use std::time::Duration;

/// The shared state of one pull consumer.
pub(super) struct PullMember {
    pub(super) core: Arc<Core>,
    pub(super) group: Arc<Group>,
    pub(super) name: String,
    pub(super) mode: Mode,
    pub(super) start: Start,
    pub(super) started: Moment,
    /// Its queues are the user's choice: it is no member, and the group deals it none (LITE-2).
    pub(super) chooses: bool,
    pub(super) auto_commit: Option<Duration>,
    pub(super) queues: Mutex<Queues>,
    pub(super) changes: QueueChanges,
    closed: AtomicBool,
    pub(super) woken: Arc<Alarm>,
    /// Told of what ends the waits of explicit pulls.
    pub(super) waits: Signal,
    myself: Weak<Self>,
}

#[derive(Default)]
pub(super) struct Queues {
    pub(super) owned: BTreeMap<QueueId, Cursor>,
    /// The queue that the last poll ended with: the next one begins behind it.
    pub(super) last: Option<QueueId>,
    /// How many cursors there have been.
    tickets: u64,
    /// When progress is to be committed by itself again.
    pub(super) commit_due: Option<Moment>,
}

impl Queues {
    pub(super) fn ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }
}

impl PullMember {
    pub(super) fn new(
        plan: &Plan,
        settings: &PullSettings,
        group: &Arc<Group>,
        name: &str,
    ) -> Arc<Self> {
        Arc::new_cyclic(|myself| Self {
            core: plan.broker.core().clone(),
            group: group.clone(),
            name: name.to_owned(),
            mode: plan.mode,
            start: plan.start,
            started: plan.broker.core().clock().moment(),
            chooses: settings.assigned.is_some(),
            auto_commit: settings.auto_commit,
            changes: QueueChanges::new(plan.changes.clone()),
            queues: Mutex::new(Rank::Member, Queues::default()),
            closed: AtomicBool::new(false),
            woken: Arc::new(Alarm::new()),
            waits: Signal::new(),
            myself: myself.clone(),
        })
    }

    pub(super) fn assignment(&self) -> Vec<QueueId> {
        let queues = self.queues.lock();
        queues.owned.iter().filter(|(_, c)| !c.revoked).map(|(id, _)| id.clone()).collect()
    }

    /// Stores how far each queue was handed out; lets go of those that were revoked.
    pub(super) fn commit(&self) -> Result<()> {
        let mut queues = self.queues.lock();
        // A member that was stopped has no queues to commit any more.
        self.check_open()?;
        let mut stored = Vec::new();
        let committed = queues.owned.values_mut().try_for_each(|cursor| {
            let is_new = cursor.commit(&self.core)?;
            stored.extend(is_new.then_some(cursor.owned.key));
            Ok(())
        });
        match committed {
            Ok(()) => self.release(queues),
            Err(_) => drop(queues),
        }
        stored.into_iter().for_each(|key| self.note_stored(key));
        committed
    }

    /// What a guest has stored counts for whoever gets the queue next, and not where its last owner
    /// has stopped.
    pub(super) fn note_stored(&self, key: OffsetKey) {
        if self.chooses {
            self.group.take_left(key);
        }
    }

    /// Stores progress of which the user keeps count, in any queue (PC-7).
    pub(super) fn commit_offset(&self, id: &QueueId, offset: u64) -> Result<()> {
        let (_, queue) = self.core.queue(id)?;
        let (min, max) = (queue.min(), queue.max());
        if offset > max {
            return Err(Error::OffsetRange { offset, min, max });
        }
        let key = self.group.key(self.mode, &self.name, &queue)?;
        let mut queues = self.queues.lock();
        self.check_open()?;
        self.core.store.set_offset(key, offset)?;
        let cursor = queues.owned.get_mut(id).filter(|cursor| cursor.owned.key == key);
        cursor.into_iter().for_each(|cursor| cursor.note_commit(offset));
        self.release(queues);
        // Whoever gets the queue next goes on there, and not where its last owner has stopped.
        self.group.take_left(key);
        Ok(())
    }

    /// Lets go of what was revoked and has nothing uncommitted.
    fn release(&self, mut queues: MutexGuard<'_, Queues>) {
        let done = queues.owned.iter().filter(|(_, cursor)| cursor.revoked && !cursor.moved);
        let done: Vec<QueueId> = done.map(|(id, _)| id.clone()).collect();
        // What they hold of a filter goes without the lock: a predicate is the user's.
        let gone: Vec<_> = done.iter().filter_map(|id| queues.owned.remove_entry(id)).collect();
        drop(queues);
        for (id, cursor) in gone {
            self.group.released(&self.name, &id, cursor.committed);
        }
    }

    /// Stores what becomes of a message that `group` has failed (PC-8).
    pub(super) fn send_back(
        &self,
        group: &Group,
        delivery: &Delivery<'_>,
        outcome: Outcome,
    ) -> Result<()> {
        let _reading = self.core.reading()?;
        self.check_open()?;
        let Some(failure) = outcome.failure() else { return Ok(()) };
        self.core.send_back(group, delivery, &failure)
    }

    /// Goes on at `offset`, forwards or backwards; the next commit stores it (LITE-10).
    pub(super) fn seek(&self, id: &QueueId, offset: u64) -> Result<()> {
        self.place(id, |min, max| {
            let inside = (min..=max).contains(&offset);
            if inside { Ok(offset) } else { Err(Error::OffsetRange { offset, min, max }) }
        })
    }

    /// Goes on where `start` says.
    pub(super) fn seek_to(&self, id: &QueueId, start: Start) -> Result<()> {
        let queue = self.place_of(&self.queues.lock(), id)?.owned.queue.clone();
        let _reading = self.core.reading()?;
        let offset = start.offset(&self.core.store, &queue)?;
        // Retention may have passed it meanwhile.
        self.place(id, |min, max| Ok(offset.max(min).min(max)))
    }

    fn place(&self, id: &QueueId, at: impl FnOnce(u64, u64) -> Result<u64>) -> Result<()> {
        let mut queues = self.queues.lock();
        let queue = &self.place_of(&queues, id)?.owned.queue;
        let offset = at(queue.min(), queue.max())?;
        queues.owned.get_mut(id).into_iter().for_each(|cursor| cursor.go_on(offset));
        Ok(())
    }

    fn place_of<'a>(&self, queues: &'a Queues, id: &QueueId) -> Result<&'a Cursor> {
        self.check_open()?;
        let cursor = queues.owned.get(id).filter(|cursor| !cursor.revoked);
        cursor.ok_or_else(|| Error::NotAssigned { topic: id.topic().to_owned(), queue: id.queue() })
    }

    /// Has polls leave queues out, or read them again; others are not ours to pause (LITE-11).
    pub(super) fn pause(&self, ids: &[QueueId], paused: bool) -> Result<()> {
        let mut queues = self.queues.lock();
        self.check_open()?;
        for id in ids {
            queues.owned.get_mut(id).into_iter().for_each(|cursor| cursor.paused = paused);
        }
        Ok(())
    }

    /// Those of its queues that polls leave out.
    pub(super) fn paused(&self) -> Vec<QueueId> {
        let queues = self.queues.lock();
        let paused = queues.owned.iter().filter(|(_, cursor)| cursor.paused && !cursor.revoked);
        paused.map(|(id, _)| id.clone()).collect()
    }

    /// What it wants of a topic unless a pull says otherwise.
    pub(super) fn filter(&self, topic: &str) -> Filter {
        let chosen = || {
            let queues = self.queues.lock();
            let mut cursors = queues.owned.values();
            cursors.find(|c| c.owned.id.topic() == topic).map(|c| c.owned.filter.clone())
        };
        let filter = if self.chooses { chosen() } else { self.group.filter(topic) };
        filter.unwrap_or(Filter::ALL)
    }

    /// What is committed in a queue, for the group or for this member of it.
    pub(super) fn committed(&self, id: &QueueId) -> Result<Option<u64>> {
        let (_, queue) = self.core.queue(id)?;
        Ok(self.core.store.offsets.get(self.group.key(self.mode, &self.name, &queue)?))
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn note_change(&self, topic: &str) {
        if self.changes.note(topic) {
            self.woken.ring();
        }
    }

    pub(super) fn waiter(&self, owned: &Owned, ticket: u64) -> Arc<dyn Waiter> {
        Arc::new(PolledQueue {
            owned: owned.clone(),
            ticket,
            store: self.core.store.clone(),
            woken: self.woken.clone(),
            member: self.myself.clone(),
        })
    }

    /// A panic of the listener for changed queues has nobody to be told to: polling goes on.
    pub(super) fn tell(&self) {
        self.changes.tell(|topic| {
            let all = self.core.store.topics.get(&topic).map(|topic| topic.ids().to_vec());
            let mine = self.assignment().into_iter().filter(|id| id.topic() == topic).collect();
            QueuesChanged { topic, all: all.unwrap_or_default(), mine }
        });
    }

    pub(super) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) { Err(Error::Closed) } else { Ok(()) }
    }
}

impl Member for PullMember {
    fn assign(&self, owned: Owned, offset: u64) {
        let id = owned.id.clone();
        let mut queues = self.queues.lock();
        let ticket = queues.ticket();
        let waiter = self.waiter(&owned, ticket);
        queues.owned.insert(id.clone(), Cursor::new(owned, ticket, waiter, offset));
        drop(queues);
        self.woken.ring();
        self.note_change(id.topic());
    }

    fn revoke(&self, id: &QueueId) -> Option<u64> {
        self.note_change(id.topic());
        let mut queues = self.queues.lock();
        let cursor = queues.owned.get_mut(id)?;
        // Messages that were handed out belong to the user until the next commit.
        cursor.revoked = true;
        let done =
            !cursor.moved || self.closed.load(Ordering::Acquire) || cursor.owned.queue.is_gone();
        if done { queues.owned.remove(id).map(|cursor| cursor.committed) } else { None }
    }

    /// Reading is up to the user, who may take any time for it (REB-7).
    fn has_expired(&self, _queue: &QueueId) -> bool {
        false
    }
}

impl Running for PullMember {
    fn stop(&self) {
        if self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        if self.chooses {
            self.group.dismiss();
            let left = std::mem::take(&mut self.queues.lock().owned);
            drop(left);
        } else {
            self.group.leave(&self.name);
            // What was revoked before, and waits for a commit that will not come.
            let left = std::mem::take(&mut self.queues.lock().owned);
            for (id, cursor) in left {
                self.group.released(&self.name, &id, cursor.committed);
            }
        }
        self.woken.ring();
        self.waits.notify();
    }

    fn is_worker(&self) -> bool {
        false
    }

    /// A guest has no queues that could be begun anew.
    fn group_moved(&self, key: OffsetKey, offset: u64) {
        if !self.chooses {
            return;
        }
        let mut queues = self.queues.lock();
        let moved = queues.owned.values_mut().filter(|cursor| cursor.owned.key == key);
        moved.for_each(|cursor| cursor.begin_at(offset));
        drop(queues);
        self.woken.ring();
    }

    fn topic_changed(&self, topic: &str) {
        self.waits.notify();
        let concerned = if self.chooses {
            self.queues.lock().owned.keys().any(|id| id.topic() == topic)
        } else {
            self.group.subscribes(topic)
        };
        if concerned {
            self.note_change(topic);
        }
    }
}
