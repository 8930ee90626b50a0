//! The concurrent service of one push consumer: workers that read runs from the log and call the
//! listener (DESIGN 10).
//!
//! One pull request for every owned queue travels on the channel. The worker that takes it reads a
//! run, registers it in the process queue, hands the request back, and works on the run. A run
//! with more than one batch is also on the channel, once, as a call for help: an idle worker that
//! takes it claims batches, too, so that a slow listener holds up nothing but its own batch.

use super::outcome::{Listener, Outcome};
use crate::broker::core::{Core, Running, thread_error};
use crate::broker::group::{Group, Member, Owned};
use crate::broker::hold::Waiter;
use crate::broker::process_queue::{ProcessQueue, Progress};
use crate::broker::run::{Place, Run};
use crate::error::Result;
use crate::queue_id::QueueId;
use crate::store::{Deliveries, Delivery, DetachedDelivery, FetchStatus};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{
    Arc, Mutex, Rank, Receiver, Sender, Signal, Thread, Weak, channel, contain, spawn,
};
use std::collections::BTreeMap;
use std::time::Duration;

/// What a push consumer was started with, already checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) threads: usize,
    pub(super) pull_batch: usize,
    pub(super) retry_delay: Duration,
}

// Flow control (PULL-2): more than this in flight, and reading pauses.
const MOST_MESSAGES: usize = 1000;
const MOST_BYTES: usize = 100 << 20;
const MOST_SPAN: u64 = 2000;
const FLOW_DELAY: Duration = Duration::from_millis(50);
// A record that cannot be read is tried again after this (PULL-11).
const ERROR_DELAY: Duration = Duration::from_secs(1);
// A run is read at once, so it is bounded in bytes, too.
const RUN_BYTES: usize = 4 << 20;

/// The running part of a push consumer.
pub(super) struct Service {
    core: Arc<Core>,
    group: Arc<Group>,
    name: String,
    listener: Box<dyn Listener>,
    settings: Settings,
    work: Sender<Work>,
    queues: Mutex<BTreeMap<QueueId, Arc<OwnedQueue>>>,
    workers: Mutex<Vec<Thread>>,
    stopping: AtomicBool,
    stopped: AtomicBool,
    changed: Signal,
    myself: Weak<Self>,
}

/// A queue that this consumer owns.
struct OwnedQueue {
    owned: Owned,
    window: ProcessQueue<Deliveries>,
    /// Failed messages until their next attempt, by offset: here and not in the timer, which
    /// outlives the consumer.
    failed: Mutex<BTreeMap<u64, DetachedDelivery>>,
    service: Weak<Service>,
    myself: Weak<Self>,
}

/// The right to read on in a queue; exactly one for each owned queue.
struct PullRequest {
    queue: Arc<OwnedQueue>,
    next: u64,
}

enum Work {
    Pull(PullRequest),
    Help(Arc<OwnedQueue>, Arc<Run>),
    Retry(Arc<OwnedQueue>, u64),
    Stop,
}

impl Service {
    /// Starts the workers; queues come when the group assigns them.
    pub(super) fn start(
        core: &Arc<Core>,
        group: &Arc<Group>,
        name: &str,
        settings: Settings,
        listener: Box<dyn Listener>,
    ) -> Result<Arc<Self>> {
        let (work, received) = channel();
        let service = Arc::new_cyclic(|myself| Self {
            core: core.clone(),
            group: group.clone(),
            name: name.to_owned(),
            listener,
            settings,
            work,
            queues: Mutex::new(Rank::Member, BTreeMap::new()),
            workers: Mutex::new(Rank::Lifecycle, Vec::new()),
            stopping: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            changed: Signal::new(),
            myself: myself.clone(),
        });
        for nth in 0..settings.threads {
            let (worker, received) = (service.clone(), received.clone());
            let run = move || {
                // The listener's panics are caught: this one is ours, and nothing stops silently.
                if let Err(panic) = contain(|| worker.run(&received)) {
                    worker.core.store.poison(&format!("a worker panicked: {panic}"));
                }
            };
            match spawn(&format!("{name}-{nth}"), run) {
                Ok(thread) => service.workers.lock().push(thread),
                Err(source) => {
                    service.discard();
                    return Err(thread_error(&core.store, source));
                }
            }
        }
        Ok(service)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn assignment(&self) -> Vec<QueueId> {
        self.queues.lock().keys().cloned().collect()
    }

    fn run(&self, received: &Receiver<Work>) {
        while let Some(work) = received.recv() {
            match work {
                Work::Pull(request) => self.pull(request),
                Work::Help(queue, run) => self.work_on(&queue, &run),
                Work::Retry(queue, offset) => {
                    let failed = queue.failed.lock().remove(&offset);
                    if let Some(message) = failed.filter(|_| queue.window.begin_retry()) {
                        self.consume(&queue, &message.delivery());
                    }
                }
                Work::Stop => return,
            }
        }
    }

    /// One turn of a pull request (PULL-2, PULL-11).
    fn pull(&self, request: PullRequest) {
        let PullRequest { queue, next } = &request;
        if queue.window.is_revoked() {
            return;
        }
        let in_flight = queue.window.in_flight();
        if in_flight.messages > MOST_MESSAGES
            || in_flight.bytes > MOST_BYTES
            || in_flight.span > MOST_SPAN
        {
            return self.pull_later(FLOW_DELAY, request);
        }
        let Owned { queue: index, filter, .. } = &queue.owned;
        let batch = self.settings.pull_batch;
        let Ok(fetch) = self.core.store.fetch(index, *next, batch, RUN_BYTES, filter) else {
            return self.pull_later(ERROR_DELAY, request);
        };
        match fetch.status {
            FetchStatus::Found => {
                let place = |m: Delivery<'_>| Place { offset: m.offset(), size: m.body().len() };
                let places = fetch.messages.iter().map(place).collect();
                let run = Arc::new(Run::new(fetch.messages, places, 1));
                if queue.window.register(&run, fetch.next) {
                    let queue = queue.clone();
                    self.work.send(Work::Pull(PullRequest { queue, next: fetch.next }));
                    self.work_on(&request.queue, &run);
                }
            }
            FetchStatus::NoMatched | FetchStatus::Removing | FetchStatus::TooSmall => {
                self.progress(queue, queue.window.skip(fetch.next));
                self.work.send(Work::Pull(PullRequest { next: fetch.next, ..request }));
            }
            FetchStatus::AtEnd | FetchStatus::Empty => {
                let waiter: Arc<dyn Waiter> = queue.clone();
                self.core.hold.park(&self.core.store, index, *next, &waiter);
                // Revoked while it was being parked: nobody will come to fetch it.
                if queue.window.is_revoked() {
                    self.core.hold.cancel(index, &waiter);
                }
            }
            // Commits beyond the end are lowered at open; nothing else can lead here.
            FetchStatus::Beyond => self.pull_later(ERROR_DELAY, request),
        }
    }

    fn pull_later(&self, delay: Duration, request: PullRequest) {
        let work = self.work.clone();
        self.core.timer.after(delay, move || work.send(Work::Pull(request)));
    }

    fn work_on(&self, queue: &Arc<OwnedQueue>, run: &Arc<Run>) {
        let mut alone = self.settings.threads > 1;
        while let Some(batch) = run.claims().claim() {
            if std::mem::take(&mut alone) && run.claims().open() {
                self.work.send(Work::Help(queue.clone(), run.clone()));
            }
            for index in batch {
                match run.messages().get(index) {
                    Some(delivery) => self.consume(queue, &delivery),
                    None => {
                        let Place { offset, size } = run.places()[index];
                        self.progress(queue, queue.window.finish(offset, size));
                    }
                }
            }
        }
    }

    fn consume(&self, queue: &Arc<OwnedQueue>, delivery: &Delivery<'_>) {
        let called = contain(|| self.listener.consume(delivery));
        if matches!(called, Ok(Outcome::Success)) {
            self.core.counters.delivered.fetch_add(1, Ordering::Relaxed);
            let finished = queue.window.finish(delivery.offset(), delivery.body().len());
            return self.progress(queue, finished);
        }
        self.core.counters.failed.fetch_add(1, Ordering::Relaxed);
        if called.is_err() {
            self.core.counters.panicked.fetch_add(1, Ordering::Relaxed);
        }
        let offset = delivery.offset();
        queue.failed.lock().insert(offset, delivery.next_attempt());
        self.progress(queue, queue.window.wait_for_retry());
        let (work, queue) = (self.work.clone(), queue.myself.clone());
        self.core.timer.after(self.settings.retry_delay, move || {
            queue.upgrade().into_iter().for_each(|queue| work.send(Work::Retry(queue, offset)));
        });
    }

    fn progress(&self, queue: &OwnedQueue, progress: Progress) {
        if let Some(offset) = progress.commit {
            // The cell exists since the group began: there is nothing to allocate, so no failure.
            let _ = self.core.commit(queue.owned.key, offset);
        }
        if progress.drained {
            let id = &queue.owned.id;
            self.queues.lock().remove(id);
            self.group.released(&self.name, id);
            self.changed.notify();
        }
    }

    /// Ends the workers of a consumer that was refused by its group, where another one may have
    /// its name.
    pub(super) fn discard(&self) {
        if !self.stopping.swap(true, Ordering::AcqRel) {
            self.finish();
        }
    }

    /// What is left of stopping once the group has been left.
    fn finish(&self) {
        self.changed.wait_until(self.core.clock(), None, || self.queues.lock().is_empty());
        let workers = std::mem::take(&mut *self.workers.lock());
        workers.iter().for_each(|_| self.work.send(Work::Stop));
        workers.into_iter().for_each(Thread::join);
        self.stopped.store(true, Ordering::Release);
        self.changed.notify();
    }
}

impl Running for Service {
    fn stop(&self) {
        let first = !self.stopping.swap(true, Ordering::AcqRel);
        if first {
            self.group.leave(&self.name);
        }
        match (first, self.is_worker()) {
            (true, false) => self.finish(),
            (true, true) => {
                // A listener cannot wait for itself. Without a thread to spare, whoever stops it
                // next does the rest.
                let service = self.myself.upgrade();
                let behind = service.map(|service| spawn("stop", move || service.finish()));
                if !matches!(behind, Some(Ok(_))) {
                    self.stopping.store(false, Ordering::Release);
                }
            }
            (false, false) => {
                let stopped = || self.stopped.load(Ordering::Acquire);
                self.changed.wait_until(self.core.clock(), None, stopped);
            }
            (false, true) => {}
        }
    }

    fn is_worker(&self) -> bool {
        self.workers.lock().iter().any(Thread::is_current)
    }
}

impl Member for Service {
    fn assign(&self, owned: Owned, offset: u64) {
        let (id, service) = (owned.id.clone(), self.myself.clone());
        let queue = Arc::new_cyclic(|myself| OwnedQueue {
            owned,
            window: ProcessQueue::new(offset),
            failed: Mutex::new(Rank::ProcessQueue, BTreeMap::new()),
            service,
            myself: myself.clone(),
        });
        self.queues.lock().insert(id, queue.clone());
        self.work.send(Work::Pull(PullRequest { queue, next: offset }));
    }

    fn revoke(&self, id: &QueueId) -> bool {
        let Some(queue) = self.queues.lock().get(id).cloned() else { return true };
        let progress = queue.window.revoke();
        let waiter: Arc<dyn Waiter> = queue.clone();
        self.core.hold.cancel(&queue.owned.queue, &waiter);
        if let Some(offset) = progress.commit {
            let _ = self.core.commit(queue.owned.key, offset);
        }
        if progress.drained {
            self.queues.lock().remove(id);
            self.changed.notify();
        }
        progress.drained
    }
}

impl Waiter for OwnedQueue {
    fn wants(&self, tag_hash: i32) -> bool {
        self.owned.filter.passes_hash(tag_hash)
    }

    fn skipped(&self, _from: u64, next: u64) {
        if let Some(service) = self.service.upgrade() {
            service.progress(self, self.window.skip(next));
        }
    }

    fn wake(&self, next: u64) {
        if let (Some(service), Some(queue)) = (self.service.upgrade(), self.myself.upgrade()) {
            service.work.send(Work::Pull(PullRequest { queue, next }));
        }
    }
}
