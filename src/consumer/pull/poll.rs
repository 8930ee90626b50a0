//! Polling: queues are read in turn, and whoever finds nothing sleeps in the hold table.

use super::member::PullMember;
use crate::broker::expiry::{Account, Most};
use crate::broker::group::Owned;
use crate::broker::hold::{Arrival, Waiter};
use crate::clock::Moment;
use crate::error::Result;
use crate::queue_id::QueueId;
use crate::store::{Deliveries, FetchStatus, Store};
use crate::sync::{Alarm, Arc, Weak};
use std::time::Duration;

/// What one round over the queues has found.
struct Read {
    messages: Deliveries,
    /// There is more to look at.
    unread: bool,
}

impl PullMember {
    /// Waits up to `timeout` for messages, `most` at a time.
    pub(super) fn poll(&self, timeout: Duration, most: usize) -> Result<Deliveries> {
        let clock = self.core.clock();
        let deadline = clock.moment().plus(timeout);
        self.check_open()?;
        self.commit_by_itself()?;
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
            if self.auto_commit.is_some() {
                self.commit()?;
            }
            let parked = self.park();
            self.woken.wait(clock, Some(deadline));
            for (owned, waiter) in parked {
                self.core.hold.cancel(&owned.queue, &waiter);
            }
        }
    }

    /// Commits what earlier polls have returned, if that is asked for and due, or if somebody
    /// waits for it (LITE-7).
    fn commit_by_itself(&self) -> Result<()> {
        let Some(interval) = self.auto_commit else { return Ok(()) };
        let now = self.core.clock().moment();
        let queues = self.queues.lock();
        let due = queues.commit_due.is_none_or(|due| due <= now)
            || queues.owned.values().any(|cursor| cursor.revoked);
        drop(queues);
        if due {
            self.commit()?;
            self.queues.lock().commit_due = Some(now.plus(interval));
        }
        Ok(())
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
        let pulls = &self.group.pulls;
        loop {
            let mut queues = self.queues.lock();
            queues.last = Some(id.clone());
            let held = queues.owned.get(id).filter(|cursor| cursor.is_read());
            let Some(cursor) = held else { return Ok(()) };
            let (owned, from) = (cursor.owned.clone(), cursor.next);
            let (ticket, committed) = (cursor.ticket, cursor.committed);
            drop(queues);
            owned.passed.forget_below(committed);
            let wanted = most - read.messages.len();
            let began = self.core.clock().moment();
            let most = Most { messages: wanted, bytes: MOST_BYTES };
            let account = Account { group: &self.group, mode: self.mode };
            // A close waits for it: nobody else may have the files before it ends.
            let reading = self.core.reading()?;
            let fetch = self.core.fetch_for(account, &owned, from, most, |_| true);
            let fetch = fetch.inspect_err(|_| pulls.failed.add(1))?;
            drop(reading);
            let mut queues = self.queues.lock();
            let held = queues.owned.get_mut(id).filter(|cursor| cursor.is_at(ticket, from));
            // Given back meanwhile, or begun anew with another filter: it is read again, by that.
            let Some(cursor) = held else { return Ok(()) };
            let now = self.core.clock().moment();
            let took = now.since(began);
            pulls.count(&fetch, from, took);
            let (stored, again) = match fetch.status {
                FetchStatus::Found => {
                    let bytes = fetch.messages.iter().map(|message| message.body().len()).sum();
                    owned.meter.count_read(fetch.messages.len(), bytes, took, now);
                    read.messages.append(&fetch.messages);
                    cursor.go_on(fetch.next);
                    (false, false)
                }
                FetchStatus::NoMatched => {
                    read.unread |= fetch.next < fetch.max;
                    (cursor.pass(&self.core, fetch.next), false)
                }
                FetchStatus::Removing | FetchStatus::TooSmall => {
                    (cursor.pass(&self.core, fetch.next), true)
                }
                FetchStatus::AtEnd | FetchStatus::Empty | FetchStatus::Beyond => (false, false),
            };
            drop(queues);
            if stored {
                self.note_stored(owned.key);
            }
            if !again {
                return Ok(());
            }
        }
    }

    /// Has itself woken by the next message of any queue.
    fn park(&self) -> Vec<(Owned, Arc<dyn Waiter>)> {
        let queues = self.queues.lock();
        let held = queues.owned.values().filter(|cursor| cursor.is_read());
        let held: Vec<_> = held.map(|c| (c.owned.clone(), c.waiter.clone(), c.next)).collect();
        drop(queues);
        let park = |(owned, waiter, next): (Owned, Arc<dyn Waiter>, u64)| {
            self.core.hold.park(&self.core.store, &owned.queue, next, &waiter);
            self.group.pulls.held.add(1);
            (owned, waiter)
        };
        held.into_iter().map(park).collect()
    }

    fn pass(&self, id: &QueueId, ticket: u64, from: u64, next: u64) {
        let mut queues = self.queues.lock();
        let stored = match queues.owned.get_mut(id) {
            Some(cursor) if cursor.is_at(ticket, from) => {
                cursor.pass(&self.core, next).then_some(cursor.owned.key)
            }
            // Told late: a seek came between, another filter, or what lies before `from`. Reading
            // finds out.
            _ => {
                self.woken.ring();
                None
            }
        };
        drop(queues);
        stored.into_iter().for_each(|key| self.note_stored(key));
    }
}

/// Wakes the poll that waits for one of its queues.
pub(super) struct PolledQueue {
    pub(super) owned: Owned,
    /// That of its cursor.
    pub(super) ticket: u64,
    pub(super) store: Arc<Store>,
    pub(super) woken: Arc<Alarm>,
    pub(super) member: Weak<PullMember>,
}

impl Waiter for PolledQueue {
    fn wants(&self, message: Arrival) -> bool {
        self.owned.filter.may_pass(&self.store, message)
    }

    fn skipped(&self, from: u64, next: u64) {
        if let Some(member) = self.member.upgrade() {
            member.pass(&self.owned.id, self.ticket, from, next);
        }
    }

    fn wake(&self, _next: u64) {
        if let Some(member) = self.member.upgrade() {
            member.group.pulls.woken.add(1);
        }
        self.woken.ring();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::{Phase, PullConsumer};
    use super::*;
    use crate::broker::Broker;
    use crate::message::Message;

    fn cursor(consumer: &PullConsumer) -> (Arc<dyn Waiter>, u64, u64) {
        let Phase::Running(member) = &consumer.phase else { panic!("it does not run") };
        let queues = member.queues.lock();
        let cursor = queues.owned.values().next().unwrap();
        (cursor.waiter.clone(), cursor.next, cursor.committed)
    }

    #[test]
    fn what_is_told_for_an_earlier_filter_passes_nothing_that_the_present_one_may_want() {
        let dir = tempfile::tempdir().unwrap();
        let broker = Broker::builder(dir.path()).segment_bytes(1 << 20).open().unwrap();
        broker.create_topic("t", 1).unwrap();
        let mut pull = broker.pull_consumer("g").subscribe("t", "x").unwrap().start().unwrap();
        let (old, ..) = cursor(&pull);
        pull.subscribe("t", "y").unwrap();
        broker.producer().send(&Message::new("t", b"body").tag("y")).unwrap();
        // The producer's thread has looked at it for the old one, and comes late.
        old.skipped(0, 1);
        let (new, next, committed) = cursor(&pull);
        assert_eq!((next, committed), (0, 0));
        assert_eq!(pull.poll(Duration::ZERO).unwrap().len(), 1);
        pull.commit().unwrap();
        new.skipped(1, 2);
        let (_, next, committed) = cursor(&pull);
        assert_eq!((next, committed), (2, 2), "its own one is heard");
    }

    #[test]
    fn what_is_told_for_the_filter_of_an_earlier_assignment_passes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let broker = Broker::builder(dir.path()).segment_bytes(1 << 20).open().unwrap();
        broker.create_topic("t", 1).unwrap();
        let queue = || [QueueId::new("t", 0)];
        let mut pull = broker.pull_consumer("g").assign(queue(), "x").unwrap().start().unwrap();
        let (old, ..) = cursor(&pull);
        pull.assign(queue(), "y").unwrap();
        broker.producer().send(&Message::new("t", b"body").tag("y")).unwrap();
        old.skipped(0, 1);
        assert_eq!(pull.poll(Duration::ZERO).unwrap().len(), 1);
    }
}
