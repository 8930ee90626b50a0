//! Working in order: the worker that reads a run keeps the pull request until it is done with it, so
//! that a queue is never with two workers, of whichever member.
//!
//! A queue that is suspended gives back what was read of it: its pull request waits with the timer,
//! and the messages are read again when it comes. A queue that members share has a lease; while it
//! is not valid nothing is read, and no listener is called.

use super::super::answer::Answer;
use super::super::batch::Batch;
use super::super::orderly::{OrderlyListener, OrderlyOutcome, Pause};
use super::super::owned_queue::{OwnedQueue, PullRequest};
use super::Service;
use crate::broker::Mode;
use crate::broker::run::{Place, Run};
use crate::broker::send_back::{Failure, Wanted};
use crate::clock::{Moment, Tick};
use crate::store::Delivery;
use crate::sync::atomic::Ordering;
use crate::sync::{Arc, contain};
use std::ops::Range;
use std::time::Duration;

/// How long one run may keep its worker from other queues (ORD-10).
const CONTINUOUS: Duration = Duration::from_secs(60);
/// When a queue comes again that had to make way, or whose lease has lapsed (ORD-10, ORD-11).
const SOON: Duration = Duration::from_millis(10);
/// When a lease is tried again that somebody else has (ORD-11).
const LOCKED: Duration = Duration::from_secs(3);
/// When leases are renewed first (ORD-4).
const FIRST_RENEWAL: Duration = Duration::from_secs(1);

/// How a queue goes on after a batch.
enum Turn {
    Next,
    /// From this offset on, after a while.
    Again(u64, Duration),
}

impl Service {
    /// Renews the leases of all queues, now and then, until the consumer has stopped (ORD-4).
    pub(in super::super) fn renew_leases(&self) {
        self.renew_leases_after(FIRST_RENEWAL.min(self.settings.lease_renewal));
    }

    fn renew_leases_after(&self, time: Duration) {
        let service = self.myself.clone();
        self.core.timer.after(time, move || {
            let running = service.upgrade().filter(|s| !s.stopped.load(Ordering::Acquire));
            let Some(service) = running else { return };
            let leases = |queue: &Arc<OwnedQueue>| queue.owned.lease;
            let leases: Vec<_> = service.queues.lock().values().filter_map(leases).collect();
            service.group.leases.renew(&leases, service.core.clock().moment());
            service.renew_leases_after(service.settings.lease_renewal);
        });
    }

    /// Lets a pull request pass that may read: takes up a lease that has lapsed, unless somebody else
    /// has it. Otherwise the request comes again (ORD-11, PULL-2).
    pub(super) fn pass_leased(&self, request: PullRequest) -> Option<PullRequest> {
        let Some(lease) = request.queue.owned.lease else { return Some(request) };
        let now = self.core.clock().moment();
        if self.group.leases.is_valid(lease, now) {
            return Some(request);
        }
        let renewed = !self.group.leases.renew(&[lease], now).is_empty();
        let request = if renewed {
            Some(request)
        } else {
            self.pull_later(LOCKED, request);
            None
        };
        // Not before: whoever sees it may let the time pass.
        self.core.counters.lapsed.fetch_add(1, Ordering::Relaxed);
        request
    }

    /// Works on a run; its pull request goes on when that is done (ORD-10).
    pub(super) fn work_in_order(
        &self,
        listener: &dyn OrderlyListener,
        request: PullRequest,
        run: &Run,
    ) {
        let queue = &request.queue;
        // A queue counts as read as long as it is worked on.
        queue.reads.hold();
        let mut now = self.core.clock().tick();
        let (begun, mut done) = (now.moment, 0);
        while run.claims().open() {
            if !self.may_go_on(queue, begun, now.moment) {
                return self.make_way(request, run, done, Some(SOON));
            }
            if run.is_mortal() && self.is_overdue(run, done) {
                // Read again from there, what has expired is passed by.
                return self.make_way(request, run, done, None);
            }
            let Some(batch) = run.claims().claim() else { break };
            if self.is_overtaken(queue) {
                // The next owner has it (ORD-10).
                return;
            }
            done = batch.end;
            let turn;
            (turn, now) = self.consume_in_order(listener, queue, run, batch, now);
            if let Turn::Again(next, pause) = turn {
                self.pull_later(pause, PullRequest { next, ..request });
                // Not before: whoever sees it may let the pause pass.
                self.core.counters.suspended.fetch_add(1, Ordering::Relaxed);
                return;
            }
        }
        match self.settings.pull_interval {
            Duration::ZERO => self.read_on(request),
            interval => self.pull_later(interval, request),
        }
    }

    /// Whether the queue has another owner, though this one is not through with it.
    fn is_overtaken(&self, queue: &OwnedQueue) -> bool {
        self.settings.take_over_after.is_some() && queue.window.is_abandoned()
    }

    fn may_go_on(&self, queue: &OwnedQueue, begun: Moment, now: Moment) -> bool {
        let valid = queue.owned.lease.is_none_or(|lease| self.group.leases.is_valid(lease, now));
        valid && now.since(begun) <= CONTINUOUS
    }

    /// Whether one of the messages that are left of a run has expired while it waited.
    fn is_overdue(&self, run: &Run, from: usize) -> bool {
        let mut left = (from..run.places().len()).filter_map(|index| run.messages().get(index));
        left.any(|message| self.core.has_expired(&message))
    }

    /// Gives back what was not begun of a run, from the index `done` on.
    fn make_way(&self, request: PullRequest, run: &Run, done: usize, pause: Option<Duration>) {
        let queue = &request.queue;
        let request = PullRequest { next: run.places()[done].offset, queue: queue.clone() };
        self.progress(&request.queue, request.queue.window.give_back(&[], run, &[]));
        match pause {
            None => self.read_on(request),
            Some(pause) => self.pull_later(pause, request),
        }
    }

    fn consume_in_order(
        &self,
        listener: &dyn OrderlyListener,
        queue: &Arc<OwnedQueue>,
        run: &Run,
        claimed: Range<usize>,
        now: Tick,
    ) -> (Turn, Tick) {
        let places = &run.places()[claimed.clone()];
        let again = queue.uncommitted.lock().living(run, claimed.clone());
        let batch = match &again {
            Some(living) => Batch::new(living, 0..living.len()),
            None => Batch::new(run.messages(), claimed),
        };
        if batch.is_empty() {
            self.done_in_order(queue, places, self.settings.manual_commit);
            return (Turn::Next, now);
        }
        let (returned, end) = self.call_in_order(listener, queue, &batch, now);
        let Some(returned) = returned else { return (Turn::Next, end) };
        let counters = &self.core.counters;
        let outcome = returned.unwrap_or_else(|panic| {
            counters.panicked.fetch_add(batch.len() as u64, Ordering::Relaxed);
            OrderlyOutcome::Suspend(Pause::after_panic(&panic))
        });
        let manual = self.settings.manual_commit;
        let kept = match outcome {
            OrderlyOutcome::Suspend(pause) => {
                counters.failed.fetch_add(batch.len() as u64, Ordering::Relaxed);
                if self.is_to_wait(queue, &batch, pause.reason()) {
                    return (self.suspend(queue, run, &[], places, &pause), end);
                }
                manual
            }
            OrderlyOutcome::Rollback(pause) if manual => {
                let (id, reason) = (&queue.owned.id, pause.reason());
                self.note_failure(format!("{id} was rolled back: {reason}"));
                let kept = queue.uncommitted.lock().roll_back(places);
                return (self.suspend(queue, run, &kept, places, &pause), end);
            }
            outcome => {
                counters.delivered.fetch_add(batch.len() as u64, Ordering::Relaxed);
                manual && outcome != OrderlyOutcome::Commit
            }
        };
        self.done_in_order(queue, places, kept);
        (Turn::Next, end)
    }

    /// Calls the listener between the hooks. What it returns counts no more if the queue has another
    /// owner by then.
    fn call_in_order(
        &self,
        listener: &dyn OrderlyListener,
        queue: &OwnedQueue,
        batch: &Batch<'_>,
        now: Tick,
    ) -> (Option<Result<OrderlyOutcome, String>>, Tick) {
        let (clock, mut begin) = (self.core.clock(), now);
        if !self.hooks.is_empty() {
            self.call_hooks(|hook| hook.before(batch));
            begin = clock.next_tick(now);
        }
        let batch = batch.begin(begin.wall_ms);
        let returned = contain(|| listener.consume(&batch));
        let answer = Answer::in_order(&returned, batch.len());
        let end = clock.next_tick(begin);
        let took = end.moment.since(begin.moment);
        if !self.hooks.is_empty() {
            let consumed = answer.told(took, self.settings.consume_timeout);
            self.call_hooks(|hook| hook.after(&batch, &consumed));
        }
        if self.is_overtaken(queue) {
            self.core.counters.late.fetch_add(batch.len() as u64, Ordering::Relaxed);
            return (None, end);
        }
        let failed = if answer.has_failed() { batch.len() } else { 0 };
        queue.owned.meter.count_call(answer.acknowledged, failed, took, end.moment);
        queue.last_call.note(end.moment);
        (Some(returned), end)
    }

    /// Whether messages that were suspended are to be delivered again: all of them, unless each is a
    /// dead letter now (ORD-16).
    fn is_to_wait(&self, queue: &OwnedQueue, batch: &Batch<'_>, reason: &str) -> bool {
        let mut waits = false;
        for message in batch {
            let offset = message.offset();
            self.note_failure(format!("{} at {offset}: {reason}", queue.owned.id));
            let limit = self.settings.orderly_retries;
            let given_up = limit.is_some_and(|limit| message.attempt() >= limit);
            // One dead letter, by whoever has the queue.
            if given_up
                && !self.is_overtaken(queue)
                && self.make_dead_letter(queue, &message, reason)
            {
                queue.uncommitted.lock().note_dead(offset);
            } else {
                queue.uncommitted.lock().note_failure(offset);
                waits = true;
            }
        }
        waits
    }

    /// Makes a message a dead letter, or drops it in broadcasting; false if that fails.
    fn make_dead_letter(&self, queue: &OwnedQueue, message: &Delivery<'_>, reason: &str) -> bool {
        let counters = &self.core.counters;
        if self.mode == Mode::Broadcasting {
            counters.dropped.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        let failure = Failure { wanted: Wanted::DeadLetter, reason: reason.to_owned() };
        let sent = self.core.send_back(&self.group, message, &failure);
        if let Err(error) = &sent {
            let (id, offset) = (&queue.owned.id, message.offset());
            counters.failed_send_backs.fetch_add(1, Ordering::Relaxed);
            self.note_failure(format!("{id} at {offset}, to be a dead letter: {error}"));
        }
        sent.is_ok()
    }

    /// Gives a batch back, and what was kept before it, to be read again after a pause.
    fn suspend(
        &self,
        queue: &Arc<OwnedQueue>,
        run: &Run,
        kept: &[Place],
        batch: &[Place],
        pause: &Pause,
    ) -> Turn {
        let first = kept.first().or(batch.first());
        let next = first.map_or_else(|| queue.window.low(), |first| first.offset);
        self.progress(queue, queue.window.give_back(kept, run, batch));
        Turn::Again(next, pause.time(self.settings.suspend_time))
    }

    /// A batch is done with: kept until a commit, or committed with what was kept before it.
    fn done_in_order(&self, queue: &Arc<OwnedQueue>, batch: &[Place], kept: bool) {
        if kept {
            queue.uncommitted.lock().keep(batch);
            return self.progress(queue, queue.window.keep(batch.len()));
        }
        let before = queue.uncommitted.lock().take_kept();
        let progress = queue.window.commit(&before, batch);
        if let Some(offset) = progress.commit {
            queue.uncommitted.lock().forget_below(offset);
        }
        self.progress(queue, progress);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::broker::group::Group;
    use crate::clock::DrivenClock;
    use crate::message::Message;
    use crate::queue_id::QueueId;
    use crate::store::{Delivery, OffsetKey};
    use crate::sync::Arc;
    use crate::{Broker, Mode, PushConsumer};
    use std::time::{Duration, Instant};

    struct Scene {
        clock: DrivenClock,
        broker: Broker,
        group: Arc<Group>,
        key: OffsetKey,
        _dir: tempfile::TempDir,
    }

    /// One queue, and a group without members.
    fn scene() -> Scene {
        let dir = tempfile::tempdir().unwrap();
        let clock = DrivenClock::with_steps(1_700_000_000_000, 5);
        let builder = Broker::builder(dir.path()).segment_bytes(1 << 20).clock(&clock);
        let broker = builder.open().unwrap();
        broker.create_topic("t", 1).unwrap();
        let group = broker.core().group("g").unwrap();
        let (_, queue) = broker.core().queue(&QueueId::new("t", 0)).unwrap();
        let key = group.key(Mode::Clustering, "a", &queue).unwrap();
        Scene { clock, broker, group, key, _dir: dir }
    }

    impl Scene {
        fn start(&self) -> PushConsumer {
            let builder = self.broker.push_consumer("g").subscribe("t", "*").unwrap();
            let builder = builder.name("a").lease_renewal(Duration::from_secs(86_400));
            builder.start_orderly(|_: &Delivery<'_>| ()).unwrap()
        }

        fn now(&self) -> crate::clock::Moment {
            self.broker.core().clock().moment()
        }

        fn send(&self) {
            self.broker.producer().send(&Message::new("t", b"x")).unwrap();
        }

        #[track_caller]
        fn wait_for(&self, what: &str, condition: impl Fn(&Broker) -> bool) {
            let begun = Instant::now();
            while !condition(&self.broker) {
                assert!(begun.elapsed() < Duration::from_secs(30), "no {what}");
                std::thread::yield_now();
            }
        }
    }

    // (ORD-6, REB-8)
    #[test]
    fn ord_6_a_queue_is_not_given_before_its_lease_is_free() {
        let scene = scene();
        let Scene { clock, broker, group, key, .. } = &scene;
        let stranger = group.leases.take(*key, "stranger", scene.now()).unwrap();
        scene.send();
        let consumer = scene.start();
        clock.advance(Duration::from_secs(60));
        assert!(consumer.assignment().is_empty() && broker.stats().delivered == 0);
        clock.advance(Duration::from_secs(2));
        assert_eq!(consumer.assignment(), [QueueId::new("t", 0)]);
        scene.wait_for("delivery", |broker| broker.stats().delivered == 1);
        assert_eq!(group.leases.fenced(stranger, || ()), None);
    }

    // (ORD-11)
    #[test]
    fn ord_11_without_its_lease_a_consumer_reads_nothing_until_it_is_given_the_queue_again() {
        let scene = scene();
        let Scene { clock, group, key, .. } = &scene;
        let _consumer = scene.start();
        scene.wait_for("waiting queue", |broker| broker.stats().held == 1);
        clock.advance(Duration::from_secs(1));
        // Expired, but nobody has looked.
        clock.advance(Duration::from_secs(58));
        let late = scene.now().plus(Duration::from_secs(3));
        group.leases.take(*key, "stranger", late).expect("an expired lease");
        scene.send();
        scene.wait_for("lapse", |broker| broker.stats().lapsed == 1);
        for lapses in 2..10 {
            clock.advance(Duration::from_secs(3));
            scene.wait_for("next try", |broker| broker.stats().lapsed == lapses);
        }
        assert_eq!(scene.broker.stats().delivered, 0);
        scene.wait_for("delivery", |broker| {
            clock.advance(Duration::from_secs(3));
            broker.stats().delivered == 1
        });
    }
}
