//! Background work: steps, each of which says when the next one is due.
//!
//! A thread of its own runs each kind of work and sleeps in between, until the next step is due or
//! an alarm rings. In a simulation nobody sleeps: whoever waits, or moves the clock, runs the steps
//! that are due.

use super::core::{Core, thread_error};
use crate::clock::Moment;
use crate::error::Result;
use crate::sync::{Alarm, Arc, Mutex, Rank, Thread, contain, spawn};
#[cfg(any(test, feature = "testing"))]
use crate::{clock::Work, sync::Weak};

/// One step; it is told whether the alarm has rung, and says when the next one is due without it.
type Step = Box<dyn FnMut(&Core, bool) -> Option<Moment> + Send>;

/// One kind of background work of a broker.
pub(super) struct Background {
    name: &'static str,
    alarm: fn(&Core) -> &Alarm,
    state: Mutex<State>,
}

struct State {
    /// Away while it runs: steps of one kind run one at a time.
    step: Option<Step>,
    due: Option<Moment>,
}

/// What runs the steps.
#[derive(Debug)]
pub(super) enum Runner {
    Thread(Thread),
    /// The clock of a simulation, as long as this lives.
    #[cfg(any(test, feature = "testing"))]
    Clock(#[allow(dead_code, reason = "kept, not looked at")] Arc<dyn Work>),
}

impl Background {
    /// Begins the work with a first step, which is due at once.
    pub(super) fn start(
        core: &Arc<Core>,
        name: &'static str,
        alarm: fn(&Core) -> &Alarm,
        step: impl FnMut(&Core, bool) -> Option<Moment> + Send + 'static,
    ) -> Result<Runner> {
        let step: Option<Step> = Some(Box::new(step));
        let state = Mutex::new(Rank::Signal, State { step, due: Some(core.clock().moment()) });
        let work = Self { name, alarm, state };
        #[cfg(any(test, feature = "testing"))]
        if let Some(clock) = core.clock().steps() {
            let work: Arc<dyn Work> = Arc::new(Stepped { work, core: Arc::downgrade(core) });
            clock.add(&work);
            return Ok(Runner::Clock(work));
        }
        let shared = core.clone();
        let started = spawn(name, move || work.run(&shared));
        started.map(Runner::Thread).map_err(|error| thread_error(&core.store, error))
    }

    fn run(&self, core: &Core) {
        let mut rung = false;
        while !core.is_closed() && self.run_step(core, rung) {
            let due = self.state.lock().due;
            rung = (self.alarm)(core).wait(core.clock(), due);
        }
    }

    /// Runs a step, unless one is running; false if none will ever follow.
    fn run_step(&self, core: &Core, rung: bool) -> bool {
        let Some(mut step) = self.state.lock().step.take() else { return true };
        match contain(|| step(core, rung)) {
            Ok(due) => {
                let mut state = self.state.lock();
                (state.step, state.due) = (Some(step), due);
                true
            }
            // Nothing stops silently: without its background work the broker takes no more.
            Err(panic) => {
                core.store.poison(&format!("{} panicked: {panic}", self.name));
                false
            }
        }
    }
}

impl Runner {
    /// Whether the calling thread is the one.
    pub(super) fn is_current(&self) -> bool {
        match self {
            Self::Thread(thread) => thread.is_current(),
            #[cfg(any(test, feature = "testing"))]
            Self::Clock(_) => false,
        }
    }

    /// Waits for the last step to end.
    pub(super) fn end(self) {
        match self {
            Self::Thread(thread) => thread.join(),
            #[cfg(any(test, feature = "testing"))]
            Self::Clock(_) => {}
        }
    }
}

/// Work that a simulation runs.
#[cfg(any(test, feature = "testing"))]
#[derive(Debug)]
struct Stepped {
    work: Background,
    core: Weak<Core>,
}

#[cfg(any(test, feature = "testing"))]
impl Work for Stepped {
    fn due(&self, now: Moment) -> Option<Moment> {
        let core = self.core.upgrade().filter(|core| !core.is_closed())?;
        let state = self.work.state.lock();
        state.step.as_ref()?;
        if (self.work.alarm)(&core).is_rung() { Some(now) } else { state.due }
    }

    fn step(&self) {
        if let Some(core) = self.core.upgrade() {
            let rung = (self.work.alarm)(&core).hear();
            self.work.run_step(&core, rung);
        }
    }
}

impl std::fmt::Debug for Background {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Background").field("name", &self.name).finish_non_exhaustive()
    }
}
