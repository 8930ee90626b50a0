//! What a worker is at, and what happens if its listener takes too long (PQ-12).

use super::super::owned_queue::OwnedQueue;
use super::super::timed_call::{Late, TimedCall};
use super::Service;
use crate::broker::run::Run;
use crate::broker::send_back::{Failure, Wanted};
use crate::broker::timer::Appointment;
use crate::clock::Moment;
use crate::sync::atomic::Ordering;
use crate::sync::{Arc, spawn};
use std::ops::Range;

/// The delay level of messages whose time was up, whatever the policy of the group says (PQ-12).
const RETRY_LEVEL: u32 = 3;

/// The calls of the listener by one worker.
pub(super) type Worker = TimedCall<Task>;

/// The run that a worker works on.
#[derive(Clone)]
pub(super) struct Task {
    pub(super) queue: Arc<OwnedQueue>,
    pub(super) run: Arc<Run>,
}

impl Service {
    /// The listener is called now with a part of the worker's run.
    pub(super) fn begin_call(&self, worker: &Arc<Worker>, part: Range<usize>, started: Moment) {
        worker.begin(part, started, |due| self.make_appointment(worker, due));
    }

    fn make_appointment(&self, worker: &Arc<Worker>, due: Moment) -> Appointment {
        let (service, worker) = (self.myself.clone(), Arc::downgrade(worker));
        self.core.timer.at(due, move || {
            if let (Some(service), Some(worker)) = (service.upgrade(), worker.upgrade()) {
                service.look_at(&worker);
            }
        })
    }

    fn look_at(&self, worker: &Arc<Worker>) {
        let now = self.core.clock().moment();
        let late = worker.look(now, |due| self.make_appointment(worker, due));
        late.into_iter().for_each(|late| self.time_out_behind(&Arc::new(late), now));
    }

    /// Does that on a thread of its own: it may wait for the disk, others wait for the timer, and all
    /// workers may be stuck. Without a thread to spare it is done here.
    fn time_out_behind(&self, late: &Arc<Late<Task>>, now: Moment) {
        let (service, behind) = (self.myself.clone(), late.clone());
        let noted = self.core.clock().thread();
        let run = move || {
            let _noted = noted;
            let service = service.upgrade();
            service
                .into_iter()
                .for_each(|service| service.guard(|| service.time_out(&behind, now)));
        };
        if spawn("late", run).is_err() {
            self.time_out(late, now);
        }
    }

    /// Fails messages whose listener is still inside. If their queue has another owner already, that
    /// one has them (CONC-7).
    fn time_out(&self, late: &Late<Task>, now: Moment) {
        let Late { task: Task { queue, run }, started, part } = late;
        if queue.window.is_abandoned() {
            return;
        }
        let limit = self.settings.consume_timeout;
        queue.owned.meter.count_call(0, part.len(), now.since(*started), now);
        self.core.counters.timed_out.fetch_add(part.len() as u64, Ordering::Relaxed);
        let failure = Failure {
            wanted: Wanted::After(self.core.settings.delay_levels.delay(RETRY_LEVEL)),
            reason: format!("the listener takes longer than {limit:?}"),
        };
        self.fail(queue, run, part.clone(), &failure);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::broker::Broker;
    use crate::clock::DrivenClock;
    use crate::message::Message;
    use crate::store::Delivery;
    use std::sync::mpsc;
    use std::time::Duration;

    /// What is pending in the timer is the appointments of this consumer alone.
    #[test]
    fn a_worker_that_is_idle_or_gone_has_no_appointment() {
        let clock = DrivenClock::new(0);
        let dir = tempfile::tempdir().unwrap();
        let broker = Broker::builder(dir.path()).segment_bytes(1 << 20).clock(&clock);
        let broker = broker.open().unwrap();
        let pending = || broker.core().timer.len();
        let (done, calls) = mpsc::channel();
        let builder = broker.push_consumer("g").subscribe("t", "*").unwrap().threads(1);
        let limit = Duration::from_secs(60);
        let listener = move |delivery: &Delivery<'_>| done.send(delivery.offset());
        let consumer = builder.consume_timeout(limit).start(listener).unwrap();
        let send = || broker.producer().send(&Message::new("t", b"x")).unwrap();
        assert_eq!(pending(), 0);
        for _ in 0..20 {
            let _ = send();
            calls.recv_timeout(Duration::from_secs(30)).unwrap();
            assert_eq!(pending(), 1, "one for all calls");
        }
        let wait_until = |what: &str, condition: &dyn Fn() -> bool| {
            let begun = std::time::Instant::now();
            while !condition() {
                assert!(begun.elapsed() < Duration::from_secs(30), "{what}");
                std::thread::yield_now();
            }
        };
        wait_until("the last call ends", &|| broker.stats().delivered == 20);
        // The one that was made is kept, and no other is made: nobody is inside.
        clock.advance(limit);
        wait_until("it is kept", &|| pending() == 0);
        let _ = send();
        calls.recv_timeout(Duration::from_secs(30)).unwrap();
        assert_eq!(pending(), 1);
        consumer.shutdown();
        assert_eq!(pending(), 0, "a worker that ends cancels it");
        assert_eq!(broker.stats().timed_out, 0);
    }
}
