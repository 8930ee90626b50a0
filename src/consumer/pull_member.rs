//! The part of a pull consumer that its group, the hold table and closing reach: which queues it
//! has, how far they have been handed out, and a wake-up for a poll that waits.

use crate::broker::core::{Core, Running};
use crate::broker::group::{Group, Member, Owned};
use crate::broker::hold::Waiter;
use crate::error::{Error, Result};
use crate::queue_id::QueueId;
use crate::store::{Deliveries, FetchStatus};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Alarm, Arc, Mutex, Rank, Weak};
use std::collections::BTreeMap;
use std::time::Duration;

/// The shared state of one pull consumer.
pub(super) struct PullMember {
    pub(super) core: Arc<Core>,
    pub(super) group: Arc<Group>,
    pub(super) name: String,
    queues: Mutex<Queues>,
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
    pub(super) fn new(core: &Arc<Core>, group: &Arc<Group>, name: &str) -> Arc<Self> {
        Arc::new_cyclic(|myself| Self {
            core: core.clone(),
            group: group.clone(),
            name: name.to_owned(),
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
            let messages = self.read(most)?;
            if !messages.is_empty() || clock.moment() >= deadline {
                return Ok(messages);
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
        released.iter().for_each(|(id, _)| drop(queues.owned.remove(id)));
        drop(queues);
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

    fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) { Err(Error::Closed) } else { Ok(()) }
    }

    /// Reads from each queue in turn until `most` messages are found or all have been asked. A
    /// queue that cannot be read holds up no other one.
    fn read(&self, most: usize) -> Result<Deliveries> {
        const MOST_BYTES: usize = 16 << 20;
        let mut queues = self.queues.lock();
        let Queues { owned, last } = &mut *queues;
        let mut ids: Vec<QueueId> = owned.keys().cloned().collect();
        if let Some(last) = last.as_ref() {
            let behind = ids.partition_point(|id| id <= last);
            ids.rotate_left(behind);
        }
        let mut found = Deliveries::none(self.core.store.store_id());
        let mut failed = None;
        for id in ids {
            if found.len() >= most {
                break;
            }
            let Some(cursor) = owned.get_mut(&id).filter(|cursor| !cursor.revoked) else {
                continue;
            };
            loop {
                let Owned { queue, filter, .. } = &cursor.owned;
                let wanted = most - found.len();
                let read = self.core.store.fetch(queue, cursor.next, wanted, MOST_BYTES, filter);
                let fetch = match read {
                    Ok(fetch) => fetch,
                    Err(error) => {
                        failed = Some(error);
                        break;
                    }
                };
                match fetch.status {
                    FetchStatus::Found => {
                        found.append(&fetch.messages);
                        (cursor.next, cursor.handed_out) = (fetch.next, fetch.next);
                        *last = Some(id);
                    }
                    FetchStatus::NoMatched | FetchStatus::Removing | FetchStatus::TooSmall => {
                        cursor.pass(&self.core, fetch.next);
                        continue;
                    }
                    FetchStatus::AtEnd | FetchStatus::Empty | FetchStatus::Beyond => {}
                }
                break;
            }
        }
        match failed {
            Some(error) if found.is_empty() => Err(error),
            _ => Ok(found),
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
            core.commit_exactly(self.owned.key, self.handed_out)?;
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
            woken: self.woken.clone(),
            member: self.myself.clone(),
        };
        let id = owned.id.clone();
        let waiter: Arc<dyn Waiter> = Arc::new(waiter);
        let (next, handed_out, committed) = (offset, offset, offset);
        let cursor = Cursor { owned, waiter, next, handed_out, committed, revoked: false };
        self.queues.lock().owned.insert(id, cursor);
        self.woken.ring();
    }

    fn revoke(&self, id: &QueueId) -> Option<u64> {
        let mut queues = self.queues.lock();
        let cursor = queues.owned.get_mut(id)?;
        // Messages that were handed out belong to the user until the next commit.
        cursor.revoked = true;
        let settled = cursor.handed_out == cursor.committed || self.closed.load(Ordering::Acquire);
        if settled { queues.owned.remove(id).map(|cursor| cursor.committed) } else { None }
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
    woken: Arc<Alarm>,
    member: Weak<PullMember>,
}

impl Waiter for PolledQueue {
    fn wants(&self, tag_hash: i32) -> bool {
        self.owned.filter.passes_hash(tag_hash)
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
