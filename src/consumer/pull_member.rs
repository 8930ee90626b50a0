//! The part of a pull consumer that its group, the hold table and closing reach: which queues it
//! has, how far they have been handed out, and a wake-up for a poll that waits.

use super::builder::Plan;
use super::queue_changes::{QueueChanges, QueuesChanged};
use crate::broker::Mode;
use crate::broker::core::{Core, Running};
use crate::broker::group::{Group, Member, Owned};
use crate::broker::hold::{Arrival, Waiter};
use crate::clock::Moment;
use crate::error::{Error, Result};
use crate::queue_id::QueueId;
use crate::store::{Deliveries, FetchStatus, Store};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Alarm, Arc, Mutex, Rank, Weak};
use std::collections::BTreeMap;
use std::time::Duration;

/// The shared state of one pull consumer.
pub(super) struct PullMember {
    pub(super) core: Arc<Core>,
    pub(super) group: Arc<Group>,
    pub(super) name: String,
    mode: Mode,
    queues: Mutex<Queues>,
    changes: QueueChanges,
    closed: AtomicBool,
    woken: Arc<Alarm>,
    myself: Weak<Self>,
}

#[derive(Default)]
struct Queues {
    owned: BTreeMap<QueueId, Cursor>,
    /// The queue that the last poll ended with: the next one begins behind it.
    last: Option<QueueId>,
}

/// What one round over the queues has found.
struct Read {
    messages: Deliveries,
    /// There is more to look at.
    unread: bool,
}

/// One owned queue.
struct Cursor {
    owned: Owned,
    waiter: Arc<dyn Waiter>,
    /// Where reading goes on.
    next: u64,
    /// What a commit would store: everything below was handed out, or passed by.
    handed_out: u64,
    committed: u64,
    revoked: bool,
}

impl PullMember {
    pub(super) fn new(plan: &Plan, group: &Arc<Group>, name: &str) -> Arc<Self> {
        Arc::new_cyclic(|myself| Self {
            core: plan.broker.core().clone(),
            group: group.clone(),
            name: name.to_owned(),
            mode: plan.mode,
            changes: QueueChanges::new(plan.changes.clone()),
            queues: Mutex::new(Rank::Member, Queues::default()),
            closed: AtomicBool::new(false),
            woken: Arc::new(Alarm::new()),
            myself: myself.clone(),
        })
    }

    pub(super) fn assignment(&self) -> Vec<QueueId> {
        let queues = self.queues.lock();
        queues.owned.iter().filter(|(_, c)| !c.revoked).map(|(id, _)| id.clone()).collect()
    }

    /// Waits up to `timeout` for messages, `most` at a time.
    pub(super) fn poll(&self, timeout: Duration, most: usize) -> Result<Deliveries> {
        let clock = self.core.clock();
        let deadline = clock.moment().plus(timeout);
        loop {
            self.check_open()?;
            self.group.permits(self.mode)?;
            self.tell();
            let Read { messages, unread } = self.read(most, deadline)?;
            if !messages.is_empty() || clock.moment() >= deadline {
                return Ok(messages);
            }
            if unread {
                continue;
            }
            let parked = self.park();
            self.woken.wait(clock, Some(deadline));
            for (owned, waiter) in parked {
                self.core.hold.cancel(&owned.queue, &waiter);
            }
        }
    }

    /// Stores how far each queue was handed out; lets go of those that were revoked.
    pub(super) fn commit(&self) -> Result<()> {
        let mut queues = self.queues.lock();
        // A member that was stopped has no queues to commit any more.
        self.check_open()?;
        let mut released = Vec::new();
        for (id, cursor) in &mut queues.owned {
            cursor.commit(&self.core)?;
            if cursor.revoked {
                released.push((id.clone(), cursor.committed));
            }
        }
        // What they hold of a filter goes without the lock: a predicate is the user's.
        let gone: Vec<_> = released.iter().map(|(id, _)| queues.owned.remove(id)).collect();
        drop(queues);
        drop(gone);
        released.iter().for_each(|(id, next)| self.group.released(&self.name, id, *next));
        Ok(())
    }

    /// Goes on at `offset`, forwards or backwards; the next commit stores it.
    pub(super) fn seek(&self, id: &QueueId, offset: u64) -> Result<()> {
        let mut queues = self.queues.lock();
        self.check_open()?;
        let cursor = queues.owned.get_mut(id).filter(|cursor| !cursor.revoked);
        let Some(cursor) = cursor else {
            return Err(Error::NotAssigned { topic: id.topic().to_owned(), queue: id.queue() });
        };
        let (min, max) = (cursor.owned.queue.min(), cursor.owned.queue.max());
        if !(min..=max).contains(&offset) {
            return Err(Error::OffsetRange { offset, min, max });
        }
        (cursor.next, cursor.handed_out) = (offset, offset);
        Ok(())
    }

    /// What is committed in a queue, for the group or for this member of it.
    pub(super) fn committed(&self, id: &QueueId) -> Result<Option<u64>> {
        let (_, queue) = self.core.queue(id)?;
        Ok(self.core.store.offsets.get(self.group.key(self.mode, &self.name, &queue)?))
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn note_change(&self, queue: &QueueId) {
        if self.changes.note(queue.topic()) {
            self.woken.ring();
        }
    }

    /// A panic of the listener for changed queues has nobody to be told to: polling goes on.
    fn tell(&self) {
        self.changes.tell(|topic| {
            let all = self.core.store.topics.get(&topic).map(|topic| topic.ids().to_vec());
            let mine = self.assignment().into_iter().filter(|id| id.topic() == topic).collect();
            QueuesChanged { topic, all: all.unwrap_or_default(), mine }
        });
    }

    fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) { Err(Error::Closed) } else { Ok(()) }
    }

    /// Reads from each queue in turn until `most` messages are found, all have been asked, or a
    /// filter has passed by so many that the deadline is over. A queue that cannot be read holds up
    /// no other one.
    fn read(&self, most: usize, deadline: Moment) -> Result<Read> {
        let queues = self.queues.lock();
        let mut ids: Vec<QueueId> = queues.owned.keys().cloned().collect();
        if let Some(last) = &queues.last {
            let behind = ids.partition_point(|id| id <= last);
            ids.rotate_left(behind);
        }
        drop(queues);
        let mut read =
            Read { messages: Deliveries::none(self.core.store.store_id()), unread: false };
        let mut failed = None;
        for id in ids {
            let overdue = read.unread && self.core.clock().moment() >= deadline;
            if read.messages.len() >= most || overdue {
                break;
            }
            if let Err(error) = self.read_queue(&id, most, &mut read) {
                failed = Some(error);
            }
        }
        match failed {
            Some(error) if read.messages.is_empty() => Err(error),
            _ => Ok(read),
        }
    }

    /// Takes one look at a queue, a bounded number of messages long. Without the lock: predicates
    /// are the user's.
    fn read_queue(&self, id: &QueueId, most: usize, read: &mut Read) -> Result<()> {
        const MOST_BYTES: usize = 16 << 20;
        loop {
            let mut queues = self.queues.lock();
            queues.last = Some(id.clone());
            let held = queues.owned.get(id).filter(|cursor| !cursor.revoked);
            let Some((owned, from)) = held.map(|cursor| (cursor.owned.clone(), cursor.next)) else {
                return Ok(());
            };
            drop(queues);
            let wanted = most - read.messages.len();
            let fetch = self.core.fetch(&owned.queue, from, wanted, MOST_BYTES, &owned.filter)?;
            let mut queues = self.queues.lock();
            let held = queues.owned.get_mut(id).filter(|cursor| !cursor.revoked);
            // Given back meanwhile: its next owner reads the same.
            let Some(cursor) = held.filter(|cursor| cursor.next == from) else { return Ok(()) };
            match fetch.status {
                FetchStatus::Found => {
                    read.messages.append(&fetch.messages);
                    (cursor.next, cursor.handed_out) = (fetch.next, fetch.next);
                }
                FetchStatus::NoMatched => {
                    cursor.pass(&self.core, fetch.next);
                    read.unread |= fetch.next < fetch.max;
                }
                FetchStatus::Removing | FetchStatus::TooSmall => {
                    cursor.pass(&self.core, fetch.next);
                    continue;
                }
                FetchStatus::AtEnd | FetchStatus::Empty | FetchStatus::Beyond => {}
            }
            return Ok(());
        }
    }

    /// Has itself woken by the next message of any queue.
    fn park(&self) -> Vec<(Owned, Arc<dyn Waiter>)> {
        let queues = self.queues.lock();
        let held = queues.owned.values().filter(|cursor| !cursor.revoked);
        let held: Vec<_> = held.map(|c| (c.owned.clone(), c.waiter.clone(), c.next)).collect();
        drop(queues);
        let park = |(owned, waiter, next): (Owned, Arc<dyn Waiter>, u64)| {
            self.core.hold.park(&self.core.store, &owned.queue, next, &waiter);
            (owned, waiter)
        };
        held.into_iter().map(park).collect()
    }

    fn pass(&self, id: &QueueId, from: u64, next: u64) {
        let mut queues = self.queues.lock();
        match queues.owned.get_mut(id) {
            Some(cursor) if cursor.next == from => cursor.pass(&self.core, next),
            // Told late: a seek came between, or what lies before `from`. Reading finds out.
            _ => self.woken.ring(),
        }
    }
}

impl Cursor {
    fn commit(&mut self, core: &Core) -> Result<()> {
        if self.handed_out != self.committed {
            core.store.set_offset(self.owned.key, self.handed_out)?;
            self.committed = self.handed_out;
        }
        Ok(())
    }

    /// Goes past messages that are not wanted; with nothing handed out and uncommitted before
    /// them, that is progress at once (PULL-11, B-086).
    fn pass(&mut self, core: &Core, next: u64) {
        let settled = self.handed_out == self.committed;
        (self.next, self.handed_out) = (next, next);
        if settled {
            // What fails here is left to the next commit.
            let _ = self.commit(core);
        }
    }
}

impl Member for PullMember {
    fn assign(&self, owned: Owned, offset: u64) {
        let waiter = PolledQueue {
            owned: owned.clone(),
            store: self.core.store.clone(),
            woken: self.woken.clone(),
            member: self.myself.clone(),
        };
        let id = owned.id.clone();
        let waiter: Arc<dyn Waiter> = Arc::new(waiter);
        let (next, handed_out, committed) = (offset, offset, offset);
        let cursor = Cursor { owned, waiter, next, handed_out, committed, revoked: false };
        self.queues.lock().owned.insert(id.clone(), cursor);
        self.woken.ring();
        self.note_change(&id);
    }

    fn revoke(&self, id: &QueueId) -> Option<u64> {
        self.note_change(id);
        let mut queues = self.queues.lock();
        let cursor = queues.owned.get_mut(id)?;
        // Messages that were handed out belong to the user until the next commit.
        cursor.revoked = true;
        let settled = cursor.handed_out == cursor.committed
            || self.closed.load(Ordering::Acquire)
            || cursor.owned.queue.is_gone();
        if settled { queues.owned.remove(id).map(|cursor| cursor.committed) } else { None }
    }

    /// Reading is up to the user, who may take any time for it (REB-7).
    fn has_expired(&self, _queue: &QueueId) -> bool {
        false
    }
}

impl Running for PullMember {
    fn stop(&self) {
        if !self.closed.swap(true, Ordering::AcqRel) {
            self.group.leave(&self.name);
            // What was revoked before, and waits for a commit that will not come.
            let left = std::mem::take(&mut self.queues.lock().owned);
            for (id, cursor) in left {
                self.group.released(&self.name, &id, cursor.committed);
            }
            self.woken.ring();
        }
    }

    fn is_worker(&self) -> bool {
        false
    }
}

/// Wakes the poll that waits for one of its queues.
struct PolledQueue {
    owned: Owned,
    store: Arc<Store>,
    woken: Arc<Alarm>,
    member: Weak<PullMember>,
}

impl Waiter for PolledQueue {
    fn wants(&self, message: Arrival) -> bool {
        self.owned.filter.may_pass(&self.store, message)
    }

    fn skipped(&self, from: u64, next: u64) {
        if let Some(member) = self.member.upgrade() {
            member.pass(&self.owned.id, from, next);
        }
    }

    fn wake(&self, _next: u64) {
        self.woken.ring();
    }
}
