//! The running part of a pull schedule: threads that take turns.
//!
//! One turn for every queue that it has is under way: on the channel, in a callback, or in the
//! timer. So there is one call at a time for a queue, and a turn whose queue is lost ends there.

use super::super::builder::Plan;
use super::super::queue_changes::{QueueChanges, QueuesChanged};
use super::NextTurn;
use super::turn::{PullTurn, TurnQueue};
use super::turn_gate::TurnGate;
use crate::broker::Mode;
use crate::broker::core::{Core, Running, thread_error};
use crate::broker::expiry::Account;
use crate::broker::group::{Group, Member, Owned};
use crate::error::Result;
use crate::queue_id::QueueId;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{
    Arc, Mutex, Rank, Receiver, Sender, Signal, Thread, ThreadId, Weak, channel, contain,
    current_thread, spawn,
};
use std::collections::BTreeMap;
use std::time::Duration;

/// After what time a callback that has failed is called again.
const AGAIN: Duration = Duration::from_secs(1);

pub(super) type Callback = Box<dyn Fn(&PullTurn<'_>) -> NextTurn + Send + Sync>;

/// The shared state of one pull schedule.
pub(super) struct ScheduleService {
    pub(super) core: Arc<Core>,
    pub(super) group: Arc<Group>,
    name: String,
    mode: Mode,
    callback: Callback,
    work: Sender<Work>,
    queues: Mutex<BTreeMap<QueueId, Arc<TurnQueue>>>,
    changes: QueueChanges,
    workers: Mutex<Vec<Thread>>,
    /// Kept while they are joined: one of them may still be in the callback.
    worker_ids: Mutex<Vec<ThreadId>>,
    /// Workers that have not ended.
    alive: AtomicUsize,
    stopping: AtomicBool,
    last_failure: Mutex<Option<String>>,
    changed: Signal,
    myself: Weak<Self>,
}

enum Work {
    Turn(Arc<TurnQueue>),
    /// Tell the user which queues have changed.
    Tell,
    Stop,
}

impl ScheduleService {
    /// Starts the workers; queues come when the group assigns them.
    pub(super) fn start(
        plan: &Plan,
        threads: usize,
        group: &Arc<Group>,
        name: &str,
        callback: Callback,
    ) -> Result<Arc<Self>> {
        let (work, received) = channel();
        let service = Arc::new_cyclic(|myself| Self {
            core: plan.broker.core().clone(),
            group: group.clone(),
            name: name.to_owned(),
            mode: plan.mode,
            callback,
            work,
            queues: Mutex::new(Rank::Member, BTreeMap::new()),
            changes: QueueChanges::new(plan.changes.clone()),
            workers: Mutex::new(Rank::Lifecycle, Vec::new()),
            worker_ids: Mutex::new(Rank::Lifecycle, Vec::new()),
            alive: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
            last_failure: Mutex::new(Rank::Member, None),
            changed: Signal::new(),
            myself: myself.clone(),
        });
        for nth in 0..threads {
            let (worker, received) = (service.clone(), received.clone());
            let noted = service.core.clock().thread();
            service.alive.fetch_add(1, Ordering::Relaxed);
            let run = move || {
                let _noted = noted;
                worker.guard(|| worker.run(&received));
            };
            match spawn(&format!("{name}-{nth}"), run) {
                Ok(thread) => service.workers.lock().push(thread),
                Err(source) => {
                    service.alive.fetch_sub(1, Ordering::Relaxed);
                    service.discard();
                    return Err(thread_error(&service.core.store, source));
                }
            }
        }
        Ok(service)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    pub(super) fn assignment(&self) -> Vec<QueueId> {
        self.queues.lock().keys().cloned().collect()
    }

    pub(super) fn last_failure(&self) -> Option<String> {
        self.last_failure.lock().clone()
    }

    pub(super) fn permits(&self) -> Result<()> {
        self.group.permits(self.mode)
    }

    /// On whose account it reads.
    pub(super) fn account(&self) -> Account<'_> {
        Account { group: &self.group, mode: self.mode }
    }

    /// Ends the workers of a member that its group has refused.
    pub(super) fn discard(&self) {
        if !self.stopping.swap(true, Ordering::AcqRel) {
            self.end_workers();
        }
    }

    /// Runs a worker. The callback's panics are caught inside: one that comes here is ours.
    fn guard(&self, run: impl FnOnce()) {
        if let Err(panic) = contain(run) {
            let cause = format!("a worker panicked: {panic}");
            self.core.store.poison(&cause);
            self.note_failure(cause);
        }
        self.alive.fetch_sub(1, Ordering::Release);
        self.changed.notify();
    }

    fn run(&self, received: &Receiver<Work>) {
        self.worker_ids.lock().push(current_thread());
        while let Some(work) = received.recv() {
            match work {
                Work::Turn(queue) => self.take_turn(&queue),
                Work::Tell => self.tell(),
                Work::Stop => return,
            }
        }
    }

    fn take_turn(&self, queue: &Arc<TurnQueue>) {
        if !queue.gate.begin() {
            return;
        }
        let turn = PullTurn { service: self, queue };
        let called = contain(|| (self.callback)(&turn).map_err(|error| error.to_string()));
        let failed = |reason: String| {
            self.note_failure(format!("{}: {reason}", queue.owned.id));
            AGAIN
        };
        let delay = match called {
            Ok(Ok(delay)) => delay,
            Ok(Err(error)) => failed(error),
            Err(panic) => failed(format!("the callback panicked: {panic}")),
        };
        match queue.gate.end() {
            Some(next) => self.let_go(queue, next),
            None => self.schedule(queue, delay),
        }
    }

    fn schedule(&self, queue: &Arc<TurnQueue>, delay: Duration) {
        if delay.is_zero() {
            return self.work.send(Work::Turn(queue.clone()));
        }
        // The timer outlives the schedule.
        let (service, turn) = (self.myself.clone(), Arc::downgrade(queue));
        let due = self.core.clock().moment().plus(delay);
        // Held meanwhile: the turn may come, and make the next appointment, before this one is noted.
        let mut again = queue.again.lock();
        *again = Some(self.core.timer.at(due, move || {
            if let (Some(service), Some(queue)) = (service.upgrade(), turn.upgrade()) {
                service.work.send(Work::Turn(queue));
            }
        }));
        drop(again);
        if queue.gate.is_revoked() {
            self.forget_turn(queue);
        }
    }

    /// Takes the next turn of a lost queue out of the timer, where it might lie for long.
    fn forget_turn(&self, queue: &TurnQueue) {
        let again = queue.again.lock().take();
        again.into_iter().for_each(|again| self.core.timer.cancel(again));
    }

    fn let_go(&self, queue: &TurnQueue, next: u64) {
        let id = &queue.owned.id;
        self.queues.lock().remove(id);
        self.group.released(&self.name, id, next);
    }

    fn tell(&self) {
        let panics = self.changes.tell(|topic| {
            let all = self.core.store.topics.get(&topic).map(|topic| topic.ids().to_vec());
            let mine = self.assignment().into_iter().filter(|id| id.topic() == topic).collect();
            QueuesChanged { topic, all: all.unwrap_or_default(), mine }
        });
        for panic in panics {
            self.note_failure(format!("the listener for changed queues panicked: {panic}"));
        }
    }

    fn note_change(&self, queue: &QueueId) {
        if self.changes.note(queue.topic()) {
            self.work.send(Work::Tell);
        }
    }

    fn note_failure(&self, text: String) {
        *self.last_failure.lock() = Some(text);
    }

    /// Has each worker end behind the call that it is in; waits for that unless it is one itself.
    fn end_workers(&self) {
        let workers = std::mem::take(&mut *self.workers.lock());
        workers.iter().for_each(|_| self.work.send(Work::Stop));
        if !self.is_worker() {
            workers.into_iter().for_each(Thread::join);
        }
    }
}

impl Member for ScheduleService {
    fn assign(&self, owned: Owned, offset: u64) {
        let id = owned.id.clone();
        let queue = Arc::new(TurnQueue {
            owned,
            gate: TurnGate::new(offset),
            again: Mutex::new(Rank::ProcessQueue, None),
        });
        self.queues.lock().insert(id.clone(), queue.clone());
        self.work.send(Work::Turn(queue));
        self.note_change(&id);
    }

    fn revoke(&self, id: &QueueId) -> Option<u64> {
        self.note_change(id);
        let queue = self.queues.lock().get(id).cloned()?;
        let next = queue.gate.revoke()?;
        self.forget_turn(&queue);
        self.queues.lock().remove(id);
        Some(next)
    }

    /// When to read is up to the user (REB-7).
    fn has_expired(&self, _queue: &QueueId) -> bool {
        false
    }
}

impl Running for ScheduleService {
    fn stop(&self) {
        if !self.stopping.swap(true, Ordering::AcqRel) {
            self.group.leave(&self.name);
            self.end_workers();
        }
        if self.is_worker() {
            return;
        }
        let ended = || self.alive.load(Ordering::Acquire) == 0;
        self.changed.wait_until(self.core.clock(), None, ended);
        // What a dead worker has left: nobody comes for it any more.
        let left = std::mem::take(&mut *self.queues.lock());
        for (id, queue) in left {
            self.group.released(&self.name, &id, queue.gate.next());
        }
    }

    fn is_worker(&self) -> bool {
        self.worker_ids.lock().contains(&current_thread())
    }
}
