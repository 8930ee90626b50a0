//! Progress of a push consumer: at once to the directory, or by a worker, now and then, to a store of
//! the user's.

use super::super::owned_queue::{OwnedQueue, PullRequest, Work};
use super::Service;
use crate::broker::group::Owned;
use crate::broker::process_queue::Progress;
use crate::error::Error;
use crate::queue_id::QueueId;
use crate::sync::Arc;
use crate::sync::atomic::Ordering;

impl Service {
    /// Asks a store of the user's where to go on in a queue; without an answer the queue waits
    /// (REB-8).
    pub(super) fn open(&self, queue: Arc<OwnedQueue>, begin: u64) {
        let Some(own) = &self.own_offsets else { return };
        if queue.window.is_revoked() {
            return;
        }
        match own.read(&queue.owned.id) {
            Ok(stored) => {
                let next = stored.unwrap_or(begin);
                // Revoked meanwhile: the next owner asks again.
                if queue.window.open(next) {
                    stored.into_iter().for_each(|offset| own.begin(&queue.owned.id, offset));
                    self.work.send(Work::Pull(PullRequest { queue, next }));
                }
            }
            Err(error) => {
                self.core.counters.failed_reads.fetch_add(1, Ordering::Relaxed);
                self.note_failure(format!("{}: {error}", queue.owned.id));
                let work = self.work.clone();
                let again = move || work.send(Work::Open(queue, begin));
                self.core.timer.after(self.settings.error_delay, again);
            }
        }
    }

    pub(in super::super) fn progress(&self, queue: &Arc<OwnedQueue>, progress: Progress) {
        self.commit(queue, progress);
        if progress.drained {
            self.drained(queue);
        }
    }

    /// Gives a revoked queue back, though a listener is still inside with a message of it.
    pub(super) fn abandon(&self, queue: &Arc<OwnedQueue>) {
        if queue.window.abandon() {
            self.core.counters.taken_over.fetch_add(1, Ordering::Relaxed);
            let (id, low) = (&queue.owned.id, queue.window.low());
            self.note_failure(format!("{id} was given away, though {low} is not finished"));
            self.drained(queue);
        }
    }

    /// Gives a queue back that nobody works on any more: by a worker, if the user is to be asked
    /// to store its progress before.
    pub(super) fn drained(&self, queue: &Arc<OwnedQueue>) {
        if self.own_offsets.is_some() {
            self.work.send(Work::Release(queue.clone()));
        } else {
            self.let_go(queue);
        }
    }

    fn let_go(&self, queue: &OwnedQueue) {
        let id = &queue.owned.id;
        self.queues.lock().remove(id);
        self.group.released(&self.name, id, queue.window.low());
        self.changed.notify();
    }

    /// Stores progress. Where the group began without room for a cell that may fail: the next
    /// commit of the queue, or its next owner, has it again.
    pub(super) fn commit(&self, queue: &OwnedQueue, progress: Progress) {
        let Some(offset) = progress.commit else { return };
        match &self.own_offsets {
            Some(own) if own.note(&queue.owned.id, offset) => self.persist_later(),
            Some(_) => {}
            None => {
                let commit = || self.core.commit(queue.owned.key, offset);
                let committed = match queue.owned.lease {
                    Some(lease) => self.group.leases.fenced(lease, commit),
                    None => Some(commit()),
                };
                if let Some(Err(error)) = committed {
                    self.note_failure(format!("progress of {}: {error}", queue.owned.id));
                }
            }
        }
    }

    /// Stores that a queue goes on at a lower offset than it was to: it has no other (PULL-12).
    pub(super) fn go_back(&self, queue: &OwnedQueue, offset: u64) {
        let Owned { id, key, .. } = &queue.owned;
        match &self.own_offsets {
            Some(own) if own.go_back(id, offset) => self.persist_later(),
            Some(_) => {}
            None => {
                if let Err(error) = self.core.store.set_offset(*key, offset) {
                    self.failed_to_store(id, &error);
                }
            }
        }
    }

    fn persist_later(&self) {
        let service = self.myself.clone();
        self.core.timer.after(self.settings.persist_interval, move || {
            service.upgrade().into_iter().for_each(|service| service.work.send(Work::Persist));
        });
    }

    /// Has the user's store keep all progress (OFF-4, OFF-6).
    pub(super) fn persist(&self) {
        let Some(own) = &self.own_offsets else { return };
        let mut failed = false;
        for id in own.unstored() {
            failed |= own.store(&id, false).is_err_and(|error| self.failed_to_store(&id, &error));
            if own.is_to_be_released(&id) {
                let queue = self.queues.lock().get(&id).cloned();
                queue.into_iter().for_each(|queue| self.work.send(Work::Release(queue)));
            }
        }
        // What is left is tried again, even if nothing more is consumed.
        if failed && own.make_due() {
            self.persist_later();
        }
    }

    /// Has the user's store keep the progress of a drained queue, and gives it back (REB-9).
    pub(super) fn release(&self, queue: &Arc<OwnedQueue>) {
        let Some(own) = &self.own_offsets else { return };
        let id = &queue.owned.id;
        match own.store(id, true) {
            // Another worker is inside the store with it, and sees to it afterwards.
            Ok(false) => return,
            Ok(true) => {}
            Err(error) => {
                self.failed_to_store(id, &error);
            }
        }
        own.forget(id);
        self.let_go(queue);
    }

    fn failed_to_store(&self, queue: &QueueId, error: &Error) -> bool {
        self.core.counters.failed_commits.fetch_add(1, Ordering::Relaxed);
        self.note_failure(format!("progress of {queue}: {error}"));
        true
    }
}
