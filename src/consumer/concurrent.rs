//! The concurrent service of one push consumer: workers that read runs from the log and call the
//! listener (docs/design.md).
//!
//! One pull request for every owned queue travels on the channel. The worker that takes it reads a
//! run, registers it in the process queue, hands the request back, and works on the run. A run
//! with more than one batch is also on the channel, once, as a call for help: an idle worker that
//! takes it claims batches, too, so that a slow listener holds up nothing but its own batch.

mod consuming;
mod failure;
mod in_order;
mod info;
mod pool;
mod progress;
mod reading;
mod stop;
mod worker;

use super::builder::Plan;
use super::handler::Handler;
use super::hook::ConsumeHook;
use super::offset_store::OwnOffsets;
use super::owned_queue::{OwnedQueue, PullRequest, Work};
use super::pause_gate::PauseGate;
use super::push_settings::PushSettings;
use super::queue_changes::{QueueChanges, QueuesChanged};
use crate::broker::Mode;
use crate::broker::core::Core;
use crate::broker::expiry::Account;
use crate::broker::group::{Group, Kind, Member, Owned};
use crate::broker::hold::Waiter;
use crate::clock::Moment;
use crate::error::Result;
use crate::queue_id::QueueId;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Arc, Mutex, Rank, Receiver, Sender, Signal, Weak, channel, contain};
use pool::Pool;
use std::collections::BTreeMap;
use worker::Worker;

/// The running part of a push consumer.
pub(super) struct Service {
    pub(super) core: Arc<Core>,
    group: Arc<Group>,
    name: String,
    mode: Mode,
    started: Moment,
    handler: Handler,
    hooks: Vec<Arc<dyn ConsumeHook>>,
    settings: PushSettings,
    work: Sender<Work>,
    queues: Mutex<BTreeMap<QueueId, Arc<OwnedQueue>>>,
    paused: PauseGate<PullRequest>,
    changes: QueueChanges,
    own_offsets: Option<OwnOffsets>,
    pool: Pool,
    stopping: AtomicBool,
    stopped: AtomicBool,
    /// A worker has died of a fault of ours: what it had claimed will never finish.
    broken: AtomicBool,
    last_failure: Mutex<Option<String>>,
    changed: Signal,
    pub(super) myself: Weak<Self>,
}

impl Service {
    /// Starts the workers; queues come when the group assigns them.
    pub(super) fn start(
        plan: &Plan,
        settings: PushSettings,
        group: &Arc<Group>,
        name: &str,
        handler: &Handler,
    ) -> Result<Arc<Self>> {
        let own_offsets = plan.offsets.clone().map(OwnOffsets::load).transpose()?;
        let (work, received) = channel();
        let service = Arc::new_cyclic(|myself| Self {
            core: plan.broker.core().clone(),
            group: group.clone(),
            name: name.to_owned(),
            mode: plan.mode,
            started: plan.broker.core().clock().moment(),
            handler: handler.clone(),
            hooks: plan.hooks.clone(),
            settings,
            work,
            queues: Mutex::new(Rank::Member, BTreeMap::new()),
            paused: PauseGate::new(),
            changes: QueueChanges::new(plan.changes.clone()),
            own_offsets,
            pool: Pool::new(received),
            stopping: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            broken: AtomicBool::new(false),
            last_failure: Mutex::new(Rank::Member, None),
            changed: Signal::new(),
            myself: myself.clone(),
        });
        service.resize(|_| settings.threads).inspect_err(|_| service.discard())?;
        if handler.kind() == Kind::Orderly && plan.mode == Mode::Clustering {
            service.renew_leases();
        }
        Ok(service)
    }

    pub(super) fn group(&self) -> &Group {
        &self.group
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn assignment(&self) -> Vec<QueueId> {
        self.queues.lock().keys().cloned().collect()
    }

    /// Why a delivery, a read or a commit failed last.
    pub(super) fn last_failure(&self) -> Option<String> {
        self.last_failure.lock().clone()
    }

    /// Runs a worker. The listener's panics are caught inside: one that comes here is ours, and
    /// nothing stops silently, or is waited for in vain.
    fn guard(&self, run: impl FnOnce()) {
        if let Err(panic) = contain(run) {
            let cause = format!("a worker panicked: {panic}");
            self.core.store.poison(&cause);
            self.note_failure(cause);
            self.broken.store(true, Ordering::Release);
            self.changed.notify();
        }
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    pub(super) fn pause(&self) {
        self.paused.close();
    }

    pub(super) fn resume(&self) {
        self.paused.open().into_iter().for_each(|request| self.read_on(request));
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused.is_closed()
    }

    fn run(&self, received: &Receiver<Work>) {
        let worker = Arc::new(Worker::new(self.settings.consume_timeout));
        while let Some(work) = received.recv() {
            match work {
                Work::Open(queue, begin) => self.open(queue, begin),
                Work::Pull(request) => self.pull(&worker, request),
                Work::Help(queue, run) => self.work_on(&worker, &queue, &run),
                Work::Retry(queue, offset) => self.retry(&worker, &queue, offset),
                Work::Release(queue) => self.release(&queue),
                Work::Persist => self.persist(),
                Work::Tell => self.tell(),
                Work::Stop if self.pool.leave() => break,
                Work::Stop => {}
            }
        }
        worker.retire().into_iter().for_each(|look| self.core.timer.cancel(look));
    }

    /// On whose account it reads.
    fn account(&self) -> Account<'_> {
        Account { group: &self.group, mode: self.mode }
    }

    fn note_change(&self, queue: &QueueId) {
        if self.changes.note(queue.topic()) {
            self.work.send(Work::Tell);
        }
    }

    fn tell(&self) {
        let panics = self.changes.tell(|topic| {
            let all = self.core.store.topics.get(&topic).map(|topic| topic.ids().to_vec());
            let queues = self.queues.lock();
            let mine = queues
                .iter()
                .filter(|(id, queue)| id.topic() == topic && !queue.window.is_revoked());
            let mine = mine.map(|(id, _)| id.clone()).collect();
            QueuesChanged { topic, all: all.unwrap_or_default(), mine }
        });
        for panic in panics {
            self.note_failure(format!("the listener for changed queues panicked: {panic}"));
        }
    }

    fn note_failure(&self, text: String) {
        *self.last_failure.lock() = Some(text);
    }
}

impl Member for Service {
    fn assign(&self, owned: Owned, offset: u64) {
        let id = owned.id.clone();
        let known = self.own_offsets.is_none();
        let queue = OwnedQueue::new(owned, offset, known, self);
        self.queues.lock().insert(id.clone(), queue.clone());
        self.work.send(match known {
            true => Work::Pull(PullRequest { queue, next: offset }),
            false => Work::Open(queue, offset),
        });
        self.note_change(&id);
    }

    fn revoke(&self, id: &QueueId) -> Option<u64> {
        let queue = self.queues.lock().get(id).cloned()?;
        let progress = queue.window.revoke();
        let waiter: Arc<dyn Waiter> = queue.clone();
        self.core.hold.cancel(&queue.owned.queue, &waiter);
        self.commit(&queue, progress);
        self.note_change(id);
        if progress.drained && self.own_offsets.is_some() {
            self.drained(&queue);
            return None;
        }
        if let (false, Some(limit)) = (progress.drained, self.settings.take_over_after) {
            let (service, queue) = (self.myself.clone(), Arc::downgrade(&queue));
            self.core.timer.after(limit, move || {
                if let (Some(service), Some(queue)) = (service.upgrade(), queue.upgrade()) {
                    service.abandon(&queue);
                }
            });
        }
        progress.drained.then(|| {
            self.queues.lock().remove(id);
            self.changed.notify();
            queue.window.low()
        })
    }

    fn has_expired(&self, id: &QueueId) -> bool {
        let queue = self.queues.lock().get(id).cloned();
        let now = self.core.clock().moment();
        queue.is_some_and(|queue| queue.reads.are_older(self.settings.pull_expiry, now))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::broker::Broker;
    use crate::broker::run::{Place, Run};
    use crate::store::{Deliveries, Delivery};
    use std::time::Duration;

    #[test]
    fn a_worker_that_dies_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Broker::builder(dir.path()).segment_bytes(1 << 20).open().unwrap();
        let broker = open();
        broker.create_topic("t", 1).unwrap();
        let builder = broker.push_consumer("g").subscribe("t", "*").unwrap();
        let consumer = builder.start(|_: &Delivery<'_>| ()).unwrap();
        let service = consumer.service("be looked at").unwrap();
        let queue = service.queues.lock().values().next().cloned().unwrap();
        let places = vec![Place { offset: 0, size: 1 }];
        let run = Arc::new(Run::new(Deliveries::none(broker.core().store.store_id()), places, 1));
        assert!(queue.window.register(&run, 1) && run.claims().claim().is_some());
        service.guard(|| panic!("planted"));
        assert_eq!(consumer.last_failure().as_deref(), Some("a worker panicked: planted"));

        let (done, closed) = std::sync::mpsc::channel();
        std::thread::spawn(move || done.send((broker.close(), broker, consumer)));
        let closed = closed.recv_timeout(Duration::from_secs(30)).expect("close returns");
        assert!(service.assignment().is_empty());
        drop(closed);
        let queue = QueueId::new("t", 0);
        assert_eq!(open().committed("g", &queue).unwrap(), Some(0), "not finished, not committed");
    }
}
