//! What a worker's listener is at, and what happens if it takes too long (PQ-12, PQ-14).
//!
//! Nobody looks around for listeners that hang. Who calls a listener sees to it that the timer looks
//! at this worker when the time of that call is up at the latest. It finds the call still there, and
//! takes it away, or makes another appointment for the call that it finds. Under the lock of the
//! worker either the timer takes a call away or its worker ends it: so one of them alone decides
//! what becomes of the messages.

use super::super::owned_queue::OwnedQueue;
use super::Service;
use crate::broker::run::Run;
use crate::broker::send_back::Failure;
use crate::broker::timer::{Appointment, Timer};
use crate::clock::Moment;
use crate::sync::atomic::Ordering;
use crate::sync::{Arc, Mutex, Rank};
use std::ops::Range;

/// One worker.
pub(in super::super) struct Worker {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    task: Option<Task>,
    call: Option<Call>,
    /// When the timer looks next: not after the time of the call is up.
    look: Option<Appointment>,
}

/// The run that it works on.
#[derive(Clone)]
struct Task {
    queue: Arc<OwnedQueue>,
    run: Arc<Run>,
}

/// The call of the listener that it is inside of.
struct Call {
    started: Moment,
    batch: Range<usize>,
}

impl Worker {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(Rank::Member, State::default()) })
    }

    pub(super) fn take_up(&self, queue: &Arc<OwnedQueue>, run: &Arc<Run>) {
        self.state.lock().task = Some(Task { queue: queue.clone(), run: run.clone() });
    }

    pub(super) fn put_down(&self) {
        let task = self.state.lock().task.take();
        drop(task);
    }

    /// The listener has returned; false if that was too late.
    pub(super) fn end_call(&self) -> bool {
        self.state.lock().call.take().is_some()
    }

    /// The worker ends: nobody needs to look at it.
    pub(super) fn retire(&self, timer: &Timer) {
        let look = self.state.lock().look.take();
        look.into_iter().for_each(|look| timer.cancel(look));
    }
}

impl Service {
    /// The listener is called now with a batch of the worker's run.
    pub(super) fn begin_call(&self, worker: &Arc<Worker>, batch: Range<usize>, started: Moment) {
        let mut state = worker.state.lock();
        state.call = Some(Call { started, batch });
        // If there is an appointment it was made for an earlier call.
        if state.look.is_none() {
            state.look = Some(self.make_appointment(worker, started));
        }
    }

    fn make_appointment(&self, worker: &Arc<Worker>, started: Moment) -> Appointment {
        let (service, worker) = (self.myself.clone(), Arc::downgrade(worker));
        self.core.timer.at(started.plus(self.settings.consume_timeout), move || {
            if let (Some(service), Some(worker)) = (service.upgrade(), worker.upgrade()) {
                service.look_at(&worker);
            }
        })
    }

    /// Takes the call of a worker away if its time is up.
    fn look_at(&self, worker: &Arc<Worker>) {
        let now = self.core.clock().moment();
        let mut state = worker.state.lock();
        state.look = None;
        let Some(Call { started, .. }) = state.call else { return };
        if now < started.plus(self.settings.consume_timeout) {
            state.look = Some(self.make_appointment(worker, started));
            return;
        }
        let late = (state.call.take(), state.task.clone());
        drop(state);
        if let (Some(call), Some(task)) = late {
            task.queue.owned.meter.count_call(0, call.batch.len(), now.since(started), now);
            self.time_out(&task, call.batch);
        }
    }

    /// Fails messages whose listener is still inside. If their queue has another owner already, that
    /// one has them (CONC-7).
    fn time_out(&self, Task { queue, run }: &Task, batch: Range<usize>) {
        if queue.window.is_abandoned() {
            return;
        }
        let limit = self.settings.consume_timeout;
        self.core.counters.timed_out.fetch_add(batch.len() as u64, Ordering::Relaxed);
        let failure = Failure::of(format!("the listener takes longer than {limit:?}"));
        self.fail(queue, run, batch, &failure);
    }
}
