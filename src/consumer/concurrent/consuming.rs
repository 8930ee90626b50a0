//! Working on a run: claim a batch, call the listener between the hooks, and do what it answers.

use super::super::batch::Batch;
use super::super::hook::{ConsumeHook, Consumed};
use super::super::owned_queue::{OwnedQueue, Work};
use super::Service;
use super::worker::{Task, Worker};
use crate::broker::run::Run;
use crate::clock::Tick;
use crate::store::{Deliveries, Delivery};
use crate::sync::atomic::Ordering;
use crate::sync::{Arc, contain};
use std::ops::Range;

impl Service {
    /// Claims batches of a run until there are none left.
    pub(super) fn work_on(&self, worker: &Arc<Worker>, queue: &Arc<OwnedQueue>, run: &Arc<Run>) {
        worker.take_up(Task { queue: queue.clone(), run: run.clone() });
        let mut alone = self.pool.wanted() > 1;
        let mut now = self.core.clock().tick();
        while let Some(batch) = run.claims().claim() {
            if std::mem::take(&mut alone) && run.claims().open() {
                self.work.send(Work::Help(queue.clone(), run.clone()));
            }
            now = match run.is_mortal() {
                true => self.consume_living(worker, queue, run, batch, now),
                false => self.consume(worker, queue, run, batch, now),
            };
        }
        worker.put_down();
    }

    /// Consumes what of a batch has not expired while it waited, in as many calls as that takes.
    fn consume_living(
        &self,
        worker: &Arc<Worker>,
        queue: &Arc<OwnedQueue>,
        run: &Arc<Run>,
        mut claimed: Range<usize>,
        mut now: Tick,
    ) -> Tick {
        let over = |index: &usize| {
            run.messages().get(*index).is_some_and(|message| self.core.has_expired(&message))
        };
        while !claimed.is_empty() {
            let end = claimed.clone().find(over).unwrap_or(claimed.end);
            if end > claimed.start {
                now = self.consume(worker, queue, run, claimed.start..end, now);
                claimed.start = end;
            } else {
                if let Some(message) = run.messages().get(claimed.start) {
                    self.pass_expired(queue, &message);
                }
                claimed.start += 1;
            }
        }
        now
    }

    /// Consumes one batch, beginning `now`; returns when that has ended.
    fn consume(
        &self,
        worker: &Arc<Worker>,
        queue: &Arc<OwnedQueue>,
        run: &Arc<Run>,
        claimed: Range<usize>,
        now: Tick,
    ) -> Tick {
        let clock = self.core.clock();
        let (all, mut begin) = (claimed.len(), now);
        let batch = Batch::new(run.messages(), claimed.clone());
        if !self.hooks.is_empty() {
            self.call_hooks(|hook| hook.before(&batch));
            begin = clock.next_tick(now);
        }
        self.begin_call(worker, claimed.clone(), begin.moment);
        let batch = batch.begin(begin.wall_ms);
        let answer = self.handler.consume(&batch);
        let in_time = worker.end();
        let end = clock.next_tick(begin);
        if !self.hooks.is_empty() {
            let elapsed = end.moment.since(begin.moment);
            let consumed = answer.told(elapsed, self.settings.consume_timeout);
            self.call_hooks(|hook| hook.after(&batch, &consumed));
        }
        let counters = &self.core.counters;
        if !in_time || (self.settings.take_over_after.is_some() && queue.window.is_abandoned()) {
            counters.late.fetch_add(all as u64, Ordering::Relaxed);
            return clock.next_tick(end);
        }
        if answer.panicked {
            counters.panicked.fetch_add(all as u64, Ordering::Relaxed);
        }
        let done = answer.acknowledged;
        let took = end.moment.since(begin.moment);
        queue.owned.meter.count_call(done, all - done, took, end.moment);
        queue.last_call.note(end.moment);
        if done > 0 {
            counters.delivered.fetch_add(done as u64, Ordering::Relaxed);
            let places = &run.places()[claimed.start..claimed.start + done];
            self.progress(queue, queue.window.finish_all(places));
        }
        if let Some(failure) = answer.rest.failure() {
            self.fail(queue, run, claimed.start + done..claimed.end, &failure);
            return clock.next_tick(end);
        }
        end
    }

    pub(super) fn call_hooks(&self, call: impl Fn(&dyn ConsumeHook)) {
        for hook in &self.hooks {
            if let Err(panic) = contain(|| call(&**hook)) {
                self.core.counters.panicked_hooks.fetch_add(1, Ordering::Relaxed);
                self.note_failure(format!("a hook panicked: {panic}"));
            }
        }
    }

    /// Calls the listener with one message on the calling thread; nothing comes of it (CONC-22).
    pub(in super::super) fn consume_directly(&self, message: &Delivery<'_>) -> Consumed {
        let (clock, message) = (self.core.clock(), Deliveries::from(message.detach()));
        let started = clock.moment();
        let batch = Batch::new(&message, 0..1).begin(clock.coarse_wall_ms());
        let answer = self.handler.consume(&batch);
        answer.told(clock.moment().since(started), self.settings.consume_timeout)
    }
}
