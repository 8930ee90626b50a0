//! The concurrent service of one push consumer: workers that read runs from the log and call the
//! listener (docs/design.md).
//!
//! One pull request for every owned queue travels on the channel. The worker that takes it reads a
//! run, registers it in the process queue, hands the request back, and works on the run. A run
//! with more than one batch is also on the channel, once, as a call for help: an idle worker that
//! takes it claims batches, too, so that a slow listener holds up nothing but its own batch.

use super::outcome::{Listener, Outcome};
use crate::broker::core::{Core, Running, thread_error};
use crate::broker::group::{Group, Member, Owned};
use crate::broker::hold::{Arrival, Waiter};
use crate::broker::process_queue::{ProcessQueue, Progress};
use crate::broker::run::{Place, Run};
use crate::error::Result;
use crate::queue_id::QueueId;
use crate::store::{Deliveries, Delivery, DetachedDelivery, FetchStatus, Store};
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
    pub(super) filter_retries: bool,
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
    /// A worker has died of a fault of ours: what it had claimed will never finish.
    broken: AtomicBool,
    last_failure: Mutex<Option<String>>,
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
    store: Arc<Store>,
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
            broken: AtomicBool::new(false),
            last_failure: Mutex::new(Rank::Member, None),
            changed: Signal::new(),
            myself: myself.clone(),
        });
        for nth in 0..settings.threads {
            let (worker, received) = (service.clone(), received.clone());
            let run = move || worker.guard(|| worker.run(&received));
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

    fn run(&self, received: &Receiver<Work>) {
        while let Some(work) = received.recv() {
            match work {
                Work::Pull(request) => self.pull(request),
                Work::Help(queue, run) => self.work_on(&queue, &run),
                Work::Retry(queue, offset) => {
                    let failed = queue.failed.lock().remove(&offset);
                    if let Some(message) = failed.filter(|_| queue.window.begin_retry()) {
                        self.retry(&queue, &message.delivery());
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
        let fetch = match self.core.fetch(index, *next, batch, RUN_BYTES, filter) {
            Ok(fetch) => fetch,
            Err(error) => {
                self.note_failure(format!("{} from {next} on: {error}", queue.owned.id));
                self.core.counters.failed_reads.fetch_add(1, Ordering::Relaxed);
                return self.pull_later(ERROR_DELAY, request);
            }
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

    /// A message that has failed is not filtered again, unless that is asked for (FILT-4).
    fn retry(&self, queue: &Arc<OwnedQueue>, delivery: &Delivery<'_>) {
        if self.settings.filter_retries && !self.core.passes(&queue.owned.filter, delivery) {
            let finished = queue.window.finish(delivery.offset(), delivery.body().len());
            return self.progress(queue, finished);
        }
        self.consume(queue, delivery);
    }

    fn consume(&self, queue: &Arc<OwnedQueue>, delivery: &Delivery<'_>) {
        let offset = delivery.offset();
        let counters = &self.core.counters;
        let reason = match contain(|| self.listener.consume(delivery)) {
            Ok(Outcome::Success) => {
                counters.delivered.fetch_add(1, Ordering::Relaxed);
                let finished = queue.window.finish(offset, delivery.body().len());
                return self.progress(queue, finished);
            }
            Ok(Outcome::Failed(reason)) => reason,
            Err(panic) => {
                counters.panicked.fetch_add(1, Ordering::Relaxed);
                format!("the listener panicked: {panic}")
            }
        };
        counters.failed.fetch_add(1, Ordering::Relaxed);
        self.note_failure(format!("{} at {offset}: {reason}", queue.owned.id));
        queue.failed.lock().insert(offset, delivery.next_attempt());
        self.progress(queue, queue.window.wait_for_retry());
        let (work, queue) = (self.work.clone(), queue.myself.clone());
        self.core.timer.after(self.settings.retry_delay, move || {
            queue.upgrade().into_iter().for_each(|queue| work.send(Work::Retry(queue, offset)));
        });
    }

    fn progress(&self, queue: &OwnedQueue, progress: Progress) {
        self.commit(queue, progress);
        if progress.drained {
            let id = &queue.owned.id;
            self.queues.lock().remove(id);
            self.group.released(&self.name, id, queue.window.low());
            self.changed.notify();
        }
    }

    /// Stores progress. Where the group began without room for a cell that may fail: the next
    /// commit of the queue, or its next owner, has it again.
    fn commit(&self, queue: &OwnedQueue, progress: Progress) {
        let Some(offset) = progress.commit else { return };
        if let Err(error) = self.core.commit(queue.owned.key, offset) {
            self.note_failure(format!("progress of {}: {error}", queue.owned.id));
        }
    }

    fn note_failure(&self, text: String) {
        *self.last_failure.lock() = Some(text);
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
        let ended = || self.broken.load(Ordering::Acquire) || self.queues.lock().is_empty();
        self.changed.wait_until(self.core.clock(), None, ended);
        let workers = std::mem::take(&mut *self.workers.lock());
        workers.iter().for_each(|_| self.work.send(Work::Stop));
        workers.into_iter().for_each(Thread::join);
        // What a dead worker has left unfinished: nobody works on it any more.
        let left = std::mem::take(&mut *self.queues.lock());
        for (id, queue) in left {
            self.group.released(&self.name, &id, queue.window.low());
        }
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
            store: self.core.store.clone(),
            service,
            myself: myself.clone(),
        });
        self.queues.lock().insert(id, queue.clone());
        self.work.send(Work::Pull(PullRequest { queue, next: offset }));
    }

    fn revoke(&self, id: &QueueId) -> Option<u64> {
        let queue = self.queues.lock().get(id).cloned()?;
        let progress = queue.window.revoke();
        let waiter: Arc<dyn Waiter> = queue.clone();
        self.core.hold.cancel(&queue.owned.queue, &waiter);
        self.commit(&queue, progress);
        progress.drained.then(|| {
            self.queues.lock().remove(id);
            self.changed.notify();
            queue.window.low()
        })
    }
}

impl Waiter for OwnedQueue {
    fn wants(&self, message: Arrival) -> bool {
        self.owned.filter.may_pass(&self.store, message)
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::broker::Broker;

    #[test]
    fn a_worker_that_dies_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Broker::builder(dir.path()).segment_bytes(1 << 20).open().unwrap();
        let broker = open();
        broker.create_topic("t", 1).unwrap();
        let builder = broker.push_consumer("g").subscribe("t", "*").unwrap();
        let consumer = builder.start(|_: &Delivery<'_>| ()).unwrap();
        let service = consumer.service.clone();
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
