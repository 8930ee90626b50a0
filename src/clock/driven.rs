//! A clock that stands still until a test moves it, and that may run the background work, too.

use super::{Clock, Moment, Source, Work};
use crate::random::Random;
use crate::sync::{Arc, Mutex, Rank, Signal, Weak};
use std::fmt;
use std::time::Duration;

/// A clock that stands still until a test moves it (feature `testing`).
///
/// Clones share the time. Moving it wakes every wait of the broker that has a deadline.
///
/// A clock [`with_steps`](Self::with_steps) runs the background work of its brokers as well: they
/// have no threads for that. Flushes, log files made ahead of need and timers are steps; those that
/// are due run in an order that the seed chooses, when the test asks for a [`step`](Self::step),
/// when it moves the clock, and when a call of the broker waits, in which case time moves by
/// itself to what the call waits for. A run of one thread is then the same for the same seed. The
/// workers of a push consumer are threads still; while there are any, waits leave the time alone.
#[derive(Clone)]
pub struct DrivenClock {
    state: Arc<Mutex<State>>,
}

struct State {
    since_start: Duration,
    wall_ms: u64,
    waiting: Vec<Signal>,
    steps: Option<Steps>,
}

struct Steps {
    random: Random,
    works: Vec<Weak<dyn Work>>,
    /// Those that may end a wait, too.
    threads: usize,
}

impl DrivenClock {
    /// Creates a clock whose wall time is `wall_ms` milliseconds since 1970.
    #[must_use]
    pub fn new(wall_ms: u64) -> Self {
        Self::of(wall_ms, None)
    }

    /// Creates a clock that also runs background work as steps, in an order that `seed` chooses.
    #[must_use]
    pub fn with_steps(wall_ms: u64, seed: u64) -> Self {
        Self::of(wall_ms, Some(Steps { random: Random(seed), works: Vec::new(), threads: 0 }))
    }

    fn of(wall_ms: u64, steps: Option<Steps>) -> Self {
        let state = State { since_start: Duration::ZERO, wall_ms, waiting: Vec::new(), steps };
        Self { state: Arc::new(Mutex::new(Rank::Timer, state)) }
    }

    /// Moves both scales forward by `duration`. Steps that fall due on the way are run.
    pub fn advance(&self, duration: Duration) {
        let end = self.moment().plus(duration);
        while let Some(due) = self.next_due().filter(|due| *due <= end) {
            self.move_to(due);
            self.step();
        }
        self.move_to(end);
    }

    /// Runs one step of background work that is due; false if there is none.
    pub fn step(&self) -> bool {
        let now = self.moment();
        let mut due = self.works();
        due.retain(|work| work.due(now).is_some_and(|due| due <= now));
        if due.is_empty() {
            return false;
        }
        let chosen = self.random() % due.len() as u64;
        due[chosen as usize].step();
        true
    }

    /// Sets the wall time alone, as an operator or a time service would.
    pub fn set_wall_ms(&self, wall_ms: u64) {
        self.state.lock().wall_ms = wall_ms;
    }

    /// The wall time in milliseconds since 1970.
    #[must_use]
    pub fn wall_ms(&self) -> u64 {
        self.state.lock().wall_ms
    }

    pub(super) fn moment(&self) -> Moment {
        Moment { since_start: self.state.lock().since_start }
    }

    pub(super) fn attach(&self, signal: &Signal) {
        let mut state = self.state.lock();
        state.waiting.retain(Signal::shared);
        if !state.waiting.iter().any(|known| known.same(signal)) {
            state.waiting.push(signal.clone());
        }
    }

    pub(crate) fn clock(&self) -> Clock {
        Clock { source: Source::Driven(self.clone()) }
    }

    pub(super) fn runs_steps(&self) -> bool {
        self.state.lock().steps.is_some()
    }

    /// Takes over `work`, for as long as it lives.
    pub(crate) fn add(&self, work: &Arc<dyn Work>) {
        if let Some(steps) = &mut self.state.lock().steps {
            steps.works.retain(|known| known.strong_count() > 0);
            steps.works.push(Arc::downgrade(work));
        }
    }

    pub(super) fn count_thread(&self, begins: bool) {
        if let Some(steps) = &mut self.state.lock().steps {
            steps.threads = steps.threads.saturating_add_signed(if begins { 1 } else { -1 });
        }
    }

    pub(super) fn random(&self) -> u64 {
        self.state.lock().steps.as_mut().map_or(0, |steps| steps.random.next())
    }

    /// What a thread does that waits: a step that is due, or moves the time to the next one, or to
    /// `deadline`; false if it is to sleep, because threads may end its wait.
    ///
    /// # Panics
    /// If nothing will ever end the wait.
    pub(super) fn work_for(&self, deadline: Option<Moment>) -> bool {
        if self.step() {
            return true;
        }
        if self.state.lock().steps.as_ref().is_none_or(|steps| steps.threads > 0) {
            return false;
        }
        let next = [self.next_due(), deadline].into_iter().flatten().min();
        match next {
            Some(moment) => self.move_to(moment),
            None => panic!("deadlock: a call waits, and no step is due that could end the wait"),
        }
        true
    }

    fn works(&self) -> Vec<Arc<dyn Work>> {
        let state = self.state.lock();
        let works = state.steps.iter().flat_map(|steps| &steps.works);
        works.filter_map(Weak::upgrade).collect()
    }

    fn next_due(&self) -> Option<Moment> {
        let now = self.moment();
        self.works().iter().filter_map(|work| work.due(now)).min()
    }

    fn move_to(&self, moment: Moment) {
        let mut state = self.state.lock();
        let passed = moment.since_start.saturating_sub(state.since_start);
        state.since_start += passed;
        state.wall_ms += u64::try_from(passed.as_millis()).unwrap_or(u64::MAX);
        let waiting = state.waiting.clone();
        drop(state);
        waiting.iter().for_each(Signal::notify);
    }
}

impl fmt::Debug for DrivenClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DrivenClock").field("wall_ms", &self.wall_ms()).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Steps at fixed moments, which are noted.
    #[derive(Debug)]
    struct Steps {
        name: char,
        left: Mutex<Vec<u64>>,
        done: Arc<Mutex<Vec<(char, u64)>>>,
        clock: DrivenClock,
    }

    impl Work for Steps {
        fn due(&self, _: Moment) -> Option<Moment> {
            let next = self.left.lock().first().copied();
            next.map(|ms| Moment { since_start: Duration::from_millis(ms) })
        }

        fn step(&self) {
            self.left.lock().remove(0);
            let now = self.clock.moment().since_start.as_millis() as u64;
            self.done.lock().push((self.name, now));
        }
    }

    fn run(seed: u64, then: impl FnOnce(&DrivenClock)) -> Vec<(char, u64)> {
        let clock = DrivenClock::with_steps(0, seed);
        let done = Arc::new(Mutex::new(Rank::Append, Vec::new()));
        let works = [('a', vec![0, 0, 30]), ('b', vec![0, 20, 30]), ('c', vec![0, 30, 500])];
        let works = works.map(|(name, left)| -> Arc<dyn Work> {
            let left = Mutex::new(Rank::Grow, left);
            Arc::new(Steps { name, left, done: done.clone(), clock: clock.clone() })
        });
        works.iter().for_each(|work| clock.add(work));
        then(&clock);
        done.lock().clone()
    }

    #[test]
    fn steps_run_when_they_are_due_in_an_order_that_the_seed_chooses() {
        let half_second = |clock: &DrivenClock| clock.advance(Duration::from_millis(499));
        let done = run(1, half_second);
        let mut moments: Vec<_> = done.iter().map(|(_, ms)| *ms).collect();
        assert_eq!(moments, [0, 0, 0, 0, 20, 30, 30, 30]);
        moments.dedup();
        assert_eq!(run(1, half_second), done);
        let orders: std::collections::BTreeSet<_> = (0..20).map(|n| run(n, half_second)).collect();
        assert!(orders.len() > 5, "only {} orders", orders.len());
    }

    #[test]
    fn a_wait_runs_steps_and_moves_the_time_to_its_end() {
        let waits = |ready_at: usize| {
            move |driven: &DrivenClock| {
                let (clock, signal) = (driven.clock(), Signal::new());
                let deadline = Some(clock.moment().plus(Duration::from_millis(100)));
                let mut looks = 0;
                let ready = signal.wait_until(&clock, deadline, || {
                    looks += 1;
                    looks > ready_at
                });
                assert_eq!(
                    (ready, driven.wall_ms()),
                    if ready_at == 2 { (true, 0) } else { (false, 100) }
                );
            }
        };
        assert_eq!(run(1, waits(2)).len(), 2);
        assert_eq!(run(1, waits(usize::MAX)).len(), 8);
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn a_wait_that_nothing_can_end_is_reported() {
        run(1, |driven| {
            Signal::new().wait_until(&driven.clock(), None, || false);
        });
    }
}
