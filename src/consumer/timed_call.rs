//! The call that a worker is inside of, which is taken away when its time is up (PQ-12, PQ-14).
//!
//! Nobody looks around for calls that hang. Whoever begins one sees to it that there is an
//! appointment not later than the end of its time: an earlier call may have made it. Whoever comes
//! then finds the call still there, and takes it away, or makes another appointment for the call
//! that it finds. Under the lock a call is either taken away or ended: so one side alone decides
//! what becomes of the messages.

use crate::broker::timer::Appointment;
use crate::clock::Moment;
use crate::sync::{Mutex, Rank};
use std::ops::Range;
use std::time::Duration;

/// The calls of one worker, one at a time, each for a part of the task `T`.
pub(crate) struct TimedCall<T> {
    limit: Duration,
    state: Mutex<State<T>>,
}

struct State<T> {
    task: Option<T>,
    call: Option<Call>,
    appointment: Option<Appointment>,
}

struct Call {
    started: Moment,
    part: Range<usize>,
}

/// A call that was taken away.
#[derive(Debug)]
pub(crate) struct Late<T> {
    pub(crate) task: T,
    pub(crate) started: Moment,
    pub(crate) part: Range<usize>,
}

impl<T: Clone> TimedCall<T> {
    /// Calls may take `limit`.
    pub(crate) fn new(limit: Duration) -> Self {
        let state = State { task: None, call: None, appointment: None };
        Self { limit, state: Mutex::new(Rank::Member, state) }
    }

    /// The calls that follow are for parts of `task`.
    pub(crate) fn take_up(&self, task: T) {
        self.state.lock().task = Some(task);
    }

    pub(crate) fn put_down(&self) {
        let task = self.state.lock().task.take();
        drop(task);
    }

    /// A call begins; `appoint` has somebody [look](Self::look) at a moment.
    pub(crate) fn begin(
        &self,
        part: Range<usize>,
        started: Moment,
        appoint: impl FnOnce(Moment) -> Appointment,
    ) {
        let mut state = self.state.lock();
        state.call = Some(Call { started, part });
        if state.appointment.is_none() {
            state.appointment = Some(appoint(started.plus(self.limit)));
        }
    }

    /// The call has ended; false if it was taken away before.
    pub(crate) fn end(&self) -> bool {
        let in_time = self.state.lock().call.take().is_some();
        #[cfg(broken_late_call_counts)]
        let in_time = in_time | true;
        in_time
    }

    /// Keeps the appointment: takes the call away if its time is up `now`.
    pub(crate) fn look(
        &self,
        now: Moment,
        appoint: impl FnOnce(Moment) -> Appointment,
    ) -> Option<Late<T>> {
        let mut state = self.state.lock();
        #[cfg(not(broken_appointment_kept))]
        {
            state.appointment = None;
        }
        let due = state.call.as_ref()?.started.plus(self.limit);
        if now < due {
            state.appointment = Some(appoint(due));
            return None;
        }
        let (task, Call { started, part }) = (state.task.clone()?, state.call.take()?);
        Some(Late { task, started, part })
    }

    /// No call follows; returns the appointment that nobody needs to keep.
    pub(crate) fn retire(&self) -> Option<Appointment> {
        self.state.lock().appointment.take()
    }
}
