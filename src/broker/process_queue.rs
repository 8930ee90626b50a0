//! The process queue: what a member holds of one queue, as a sliding window over its offsets.
//!
//! Offsets are dense, so the window needs no tree: it begins at the lowest unfinished offset and
//! ends where reading goes on; a mark for each offset in between says whether it is finished.
//! Its lower end is what may be committed (PQ-5).

use super::run::{Place, Run};
use crate::sync::{Arc, Mutex, Rank};
use smallvec::SmallVec;
use std::collections::VecDeque;

/// The window of one queue, owned by one member for one generation.
#[derive(Debug)]
pub(crate) struct ProcessQueue<M> {
    state: Mutex<Window<M>>,
}

#[derive(Debug)]
struct Window<M> {
    /// The lowest unfinished offset.
    low: u64,
    /// Finished marks from `low` on.
    finished: VecDeque<bool>,
    /// How many more are finished behind the marks, up to where reading goes on: however many a
    /// filter passes by behind a message that hangs, they take no room.
    passed: u64,
    unfinished: usize,
    bytes: usize,
    /// Of the unfinished: those that wait for another attempt.
    waiting: usize,
    /// Runs that may have unclaimed messages, oldest first.
    runs: VecDeque<Arc<Run<M>>>,
    /// Where it begins is known.
    opened: bool,
    revoked: bool,
    drained: bool,
    /// The queue has another owner, though something was still in flight.
    abandoned: bool,
    /// Offsets below it were given back to be read again: who has looked at them before is late.
    again: u64,
}

/// What finishing or revoking led to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// The offset that may be committed now, if it has risen.
    pub(crate) commit: Option<u64>,
    /// The queue has been revoked, and this was the last piece of work on it.
    pub(crate) drained: bool,
}

/// How much is in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct InFlight {
    /// Registered and unfinished messages.
    pub(crate) messages: usize,
    /// Bytes of their bodies.
    pub(crate) bytes: usize,
    /// From the lowest unfinished offset to the one to be read next.
    pub(crate) span: u64,
}

/// A window as operators see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    pub(crate) low: u64,
    /// Where reading goes on.
    pub(crate) next: u64,
    /// The lowest and the highest unfinished offset.
    pub(crate) ends: Option<(u64, u64)>,
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
    pub(crate) waiting: usize,
    pub(crate) revoked: bool,
}

impl<M> ProcessQueue<M> {
    /// A window that begins at `offset`.
    pub(crate) fn new(offset: u64) -> Self {
        let queue = Self::unopened(offset);
        queue.state.lock().opened = true;
        queue
    }

    /// A window of which it is not known yet where it begins, at `offset` perhaps: it has no
    /// progress to commit until it is opened.
    pub(crate) fn unopened(offset: u64) -> Self {
        let window = Window {
            low: offset,
            finished: VecDeque::new(),
            passed: 0,
            unfinished: 0,
            bytes: 0,
            waiting: 0,
            runs: VecDeque::new(),
            opened: false,
            revoked: false,
            drained: false,
            abandoned: false,
            again: 0,
        };
        Self { state: Mutex::new(Rank::ProcessQueue, window) }
    }

    /// Begins at `offset`. False if the queue has been revoked: then a late answer changes nothing
    /// (B-096).
    pub(crate) fn open(&self, offset: u64) -> bool {
        let mut window = self.state.lock();
        if !window.revoked {
            (window.low, window.opened) = (offset, true);
        }
        !window.revoked
    }

    /// Takes `run` over; reading went on to `next`. Offsets up to there that the run leaves out
    /// count as finished.
    ///
    /// False if the queue has been revoked: then nothing is taken over.
    pub(crate) fn register(&self, run: &Arc<Run<M>>, next: u64) -> bool {
        let mut window = self.state.lock();
        #[cfg(not(broken_register_revoked))]
        if window.revoked {
            return false;
        }
        for Place { offset, size } in run.places() {
            window.pass(*offset);
            window.push(false);
            window.unfinished += 1;
            window.bytes += size;
        }
        window.pass(next);
        window.runs.push_back(run.clone());
        true
    }

    /// Marks everything below `next` that was not registered as finished (PULL-11, PULL-12).
    pub(crate) fn skip(&self, next: u64) -> Progress {
        self.state.lock().skip(next)
    }

    /// The same for who has looked at these offsets while nobody was reading, and who may be late:
    /// what is to be read again is not passed.
    pub(crate) fn skip_held(&self, next: u64) -> Progress {
        let mut window = self.state.lock();
        #[cfg(not(broken_skip_again))]
        if next <= window.again {
            return Progress::default();
        }
        window.skip(next)
    }

    /// Goes back to `offset`: the queue does not reach to where it was to begin (PULL-12). False
    /// if anything was taken over, or if the queue has been revoked: then nothing changes.
    pub(crate) fn rewind(&self, offset: u64) -> bool {
        let mut window = self.state.lock();
        let untouched = window.finished.is_empty() && !window.revoked;
        if untouched {
            window.low = offset;
        }
        untouched
    }

    /// Finishes one message.
    pub(crate) fn finish(&self, offset: u64, size: usize) -> Progress {
        self.finish_all(&[Place { offset, size }])
    }

    /// Finishes several messages.
    pub(crate) fn finish_all(&self, places: &[Place]) -> Progress {
        self.change(|window| {
            let before = window.low;
            places.iter().for_each(|place| window.mark(before, *place));
            window.advance(before)
        })
    }

    /// One message waits for its next attempt: a revoked queue does not wait for it.
    pub(crate) fn wait_for_retry(&self) -> Progress {
        self.keep(1)
    }

    /// Messages that nobody works on wait for a commit: a revoked queue does not wait for it.
    pub(crate) fn keep(&self, messages: usize) -> Progress {
        let mut window = self.state.lock();
        window.waiting += messages;
        let before = window.low;
        window.advance(before)
    }

    /// Finishes messages in order: those that were kept, and those behind them.
    pub(crate) fn commit(&self, kept: &[Place], places: &[Place]) -> Progress {
        self.change(|window| {
            let before = window.low;
            window.waiting -= kept.len();
            for place in kept.iter().chain(places) {
                window.mark(before, *place);
            }
            window.advance(before)
        })
    }

    /// Gives back what was read and is not finished: messages that were kept, those of a batch, and
    /// what nobody has claimed of the run. They are to be read again, from the first of them on.
    pub(crate) fn give_back(&self, kept: &[Place], run: &Run<M>, batch: &[Place]) -> Progress {
        self.change(|window| {
            // Nothing is left to be claimed if it was revoked before.
            let unclaimed = &run.places()[run.claims().close()..];
            let before = window.low;
            window.waiting -= kept.len();
            let given_back = || [kept, batch, unclaimed].into_iter().flatten();
            window.unfinished -= given_back().count();
            window.bytes -= given_back().map(|place| place.size).sum::<usize>();
            window.again = window.again.max(window.end());
            if let Some(first) = given_back().next() {
                window.cut(first.offset);
            }
            #[cfg(broken_give_back_silent)]
            return Progress::default();
            #[cfg(not(broken_give_back_silent))]
            window.advance(before)
        })
    }

    /// The attempt begins; false if the queue has been revoked meanwhile.
    pub(crate) fn begin_retry(&self) -> bool {
        let mut window = self.state.lock();
        if window.revoked {
            return false;
        }
        window.waiting -= 1;
        true
    }

    /// Stops taking work: what is claimed goes on, and so does all that lies before it; the rest
    /// is left to the next owner.
    pub(crate) fn revoke(&self) -> Progress {
        let mut window = self.state.lock();
        window.revoked = true;
        while let Some(run) = window.runs.pop_back() {
            let claimed = run.claims().close();
            let abandoned = &run.places()[claimed..];
            let Some(first) = abandoned.first() else { break };
            window.unfinished -= abandoned.len();
            window.bytes -= abandoned.iter().map(|place| place.size).sum::<usize>();
            window.cut(first.offset);
            if claimed > 0 {
                break;
            }
        }
        let before = window.low;
        window.advance(before)
    }

    /// Waits no longer for what is in flight of a revoked queue: its next owner begins at the lowest
    /// unfinished offset, and what is finished here counts no more. False if the queue has drained,
    /// or is not revoked.
    pub(crate) fn abandon(&self) -> bool {
        let mut window = self.state.lock();
        let waits = window.revoked && !window.drained;
        if waits {
            (window.drained, window.abandoned) = (true, true);
        }
        waits
    }

    /// Whether the queue has been given to another owner before all was finished.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.state.lock().abandoned
    }

    /// The lowest unfinished offset.
    pub(crate) fn low(&self) -> u64 {
        self.state.lock().low
    }

    pub(crate) fn in_flight(&self) -> InFlight {
        let window = self.state.lock();
        InFlight {
            messages: window.unfinished,
            bytes: window.bytes,
            span: window.end() - window.low,
        }
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let window = self.state.lock();
        let at = |index: usize| window.low + index as u64;
        let lowest = window.finished.iter().position(|finished| !finished);
        let highest = window.finished.iter().rposition(|finished| !finished);
        Snapshot {
            low: window.low,
            next: window.end(),
            ends: lowest.map(at).zip(highest.map(at)),
            messages: window.unfinished,
            bytes: window.bytes,
            waiting: window.waiting,
            revoked: window.revoked,
        }
    }

    pub(crate) fn is_revoked(&self) -> bool {
        self.state.lock().revoked
    }

    /// Takes a step with the lock, and lets go of the runs that are claimed without it: an idle queue
    /// holds no messages, whose file may have been dropped meanwhile.
    fn change(&self, step: impl FnOnce(&mut Window<M>) -> Progress) -> Progress {
        let mut window = self.state.lock();
        let progress = step(&mut window);
        let claimed = window.take_claimed();
        drop(window);
        drop(claimed);
        progress
    }
}

impl<M> Window<M> {
    fn skip(&mut self, next: u64) -> Progress {
        if self.revoked {
            return Progress::default();
        }
        let before = self.low;
        self.pass(next);
        self.advance(before)
    }

    /// Marks a message as finished; `low` is the offset of the first mark.
    fn mark(&mut self, low: u64, Place { offset, size }: Place) {
        let at = offset.checked_sub(low).and_then(|at| usize::try_from(at).ok());
        if let Some(mark) = at.and_then(|at| self.finished.get_mut(at))
            && !std::mem::replace(mark, true)
        {
            self.unfinished -= 1;
            self.bytes -= size;
        }
    }

    fn take_claimed(&mut self) -> SmallVec<[Arc<Run<M>>; 2]> {
        let mut claimed = SmallVec::new();
        while self.runs.front().is_some_and(|oldest| !oldest.claims().open()) {
            claimed.extend(self.runs.pop_front());
        }
        claimed
    }

    /// Where reading goes on.
    fn end(&self) -> u64 {
        self.low + self.finished.len() as u64 + self.passed
    }

    /// Adds a mark at the end.
    fn push(&mut self, finished: bool) {
        let passed = usize::try_from(std::mem::take(&mut self.passed)).unwrap_or(usize::MAX);
        self.finished.extend(std::iter::repeat_n(true, passed));
        self.finished.push_back(finished);
    }

    /// Ends the window at `offset`.
    fn cut(&mut self, offset: u64) {
        let marks = self.finished.len() as u64;
        let kept = offset.saturating_sub(self.low);
        self.passed = self.passed.min(kept.saturating_sub(marks));
        self.finished.truncate(usize::try_from(kept).unwrap_or(usize::MAX));
    }

    /// Counts every offset from the end of the window up to `next` as finished.
    fn pass(&mut self, next: u64) {
        if self.finished.is_empty() {
            self.low = self.low.max(next);
        } else {
            self.passed += next.saturating_sub(self.end());
        }
    }

    fn advance(&mut self, before: u64) -> Progress {
        // The low end is where the next owner began: it does not move any more.
        #[cfg(not(broken_late_progress))]
        if self.abandoned {
            return Progress::default();
        }
        while self.finished.front() == Some(&true) {
            self.finished.pop_front();
            self.low += 1;
        }
        if self.finished.is_empty() {
            self.low += std::mem::take(&mut self.passed);
        }
        let drained = self.revoked && self.unfinished == self.waiting && !self.drained;
        self.drained |= drained;
        // The next owner begins with what is committed when this one has drained: whoever raised
        // the low end before may not have committed it yet.
        #[cfg(not(broken_drained_silent))]
        let commit = (self.opened && (drained || self.low > before)).then_some(self.low);
        #[cfg(broken_drained_silent)]
        let commit = (self.low > before).then_some(self.low);
        Progress { commit, drained }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
