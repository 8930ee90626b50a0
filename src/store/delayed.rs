//! Messages that go to their queue later: one append stores them, one takes them there.
//!
//! A message that waits is a record without a queue. Whatever ends its wait is a single record whose
//! origin names it: the message in its queue, the same record further on, or the word that it is
//! done. The record and the change of the schedule are made under one lock, so that nobody else can
//! end the same wait, and a checkpoint sees both or neither.

use super::Store;
use super::append::AppendError;
use super::commit_log::{CommitLog, Limits};
use super::consume_queue::ConsumeQueue;
use super::delay_table::{KnownDelays, Saving};
use super::delivery::{Deliveries, DetachedDelivery};
use super::draft::{Copy, Draft, Outline, Pending, Source};
use super::files::corrupt;
use super::record::{Kind, Record};
use super::schedule::{DueAt, LATEST_MS, Now, Schedule, Ticket};
use super::tail::{Appended, Refusal, Target};
use super::topic::Topic;
use crate::clock::{Clock, Moment};
use crate::delay::Due;
use crate::error::Result;
use crate::properties::{DELAY, DUE, FIRST_ID, Properties, encode};
use crate::sync::{Alarm, Mutex, MutexGuard, Rank};
use std::time::Duration;

/// Clocks that differ by no more are taken to go together.
const TOLERANCE_MS: i64 = 10;
/// Changes that await a checkpoint before one is written for their sake.
const MOST_UNSAVED: usize = 1 << 16;
/// How long instants are waited for without a look at the wall clock, which may be set.
const LOOK: Duration = Duration::from_secs(60);

/// What the schedule has next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It is due.
    Due(Ticket),
    /// Nothing is due before this moment.
    Wait(Moment),
    Nothing,
}

/// The messages that wait to be due.
#[derive(Debug)]
pub(super) struct Delays {
    schedule: Mutex<Schedule>,
    /// What the steady clock is ahead of the clock's moments.
    base_ms: i64,
    alarm: Alarm,
}

impl Delays {
    pub(super) fn new(clock: &Clock, known: &KnownDelays) -> Self {
        Self {
            schedule: Mutex::new(Rank::Delays, Schedule::new(known.waiting())),
            base_ms: signed(clock.wall_ms()) - signed(clock.moment().ms()),
            alarm: Alarm::new(),
        }
    }

    /// Looks where the log ends, with nothing in between, and what is to be saved then.
    pub(super) fn capture<R>(
        &self,
        saving: impl FnOnce(&Schedule) -> Saving,
        look: impl FnOnce() -> R,
    ) -> (R, Saving) {
        let schedule = self.lock();
        (look(), saving(&schedule))
    }

    /// The first `changes` are saved.
    pub(super) fn saved(&self, changes: usize) {
        self.lock().saved(changes);
    }

    /// Whether a checkpoint is to be written for what has changed.
    pub(super) fn press(&self) -> bool {
        self.lock().unsaved().len() >= MOST_UNSAVED
    }

    fn lock(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock()
    }

    fn now(&self, clock: &Clock) -> Now {
        let steady_ms = self.base_ms + signed(clock.moment().ms());
        Now { wall_ms: signed(clock.wall_ms()), steady_ms }
    }

    /// What is stored of a due time, and how far the wall clock is ahead of the steady one.
    fn due_at(&self, clock: &Clock, due: Due) -> (DueAt, i64) {
        match due {
            Due::At(ms) => (DueAt { ms: ms.min(LATEST_MS), instant: true }, 0),
            Due::After(delay) => {
                // A thread that sleeps between the two reads sees clocks that differ.
                let ahead = |now: Now| now.wall_ms - now.steady_ms;
                let looks = (0..3).map(|_| ahead(self.now(clock)));
                let ahead = looks.min_by_key(|ahead| ahead.abs()).unwrap_or(0);
                let known = self.lock().near(ahead, TOLERANCE_MS);
                let ahead = known.unwrap_or(ahead);
                // Rounded up: never early.
                let end = signed(clock.moment().plus(delay).ms_rounded_up());
                let ms = self.base_ms.saturating_add(end).saturating_add(ahead);
                let ms = u64::try_from(ms).unwrap_or(0).min(LATEST_MS);
                (DueAt { ms, instant: false }, ahead)
            }
        }
    }
}

/// Who appends for the schedule, and where to.
struct Step<'a> {
    /// The message whose wait ends.
    ends: Option<&'a Ticket>,
    queue: Option<(Target, &'a ConsumeQueue)>,
    /// Space is going to be freed: the limits of the log do not count.
    beyond_limits: bool,
}

impl Store {
    /// Appends a message that goes to queue `queue` of `topic` when it is due.
    pub(crate) fn append_later(
        &self,
        topic: &Topic,
        queue: u16,
        copy: &Copy<'_>,
        due: Due,
    ) -> std::result::Result<Appended, AppendError> {
        let (at, ahead) = self.delays.due_at(&self.clock, due);
        let properties = delayed(copy.message.properties, at, due);
        let message = Pending { properties: Source::Encoded(&properties), ..copy.message };
        let mut drafts = [Draft::blank(&topic.outline)];
        let copy = Copy { message, ..*copy };
        drafts[0].fill_copy(&topic.outline, Kind::Delayed, queue, &copy);
        self.check_length(drafts[0].length())?;
        let step = Step { ends: None, queue: None, beyond_limits: false };
        let mut first = false;
        let appended = self.step(&step, &mut drafts, |schedule, appended| {
            first = schedule.add(appended.position, at, ahead);
        })?;
        if first {
            self.delays.alarm.ring();
        }
        // Only a message that has to wait can be found to wait no more.
        appended.ok_or(AppendError::Gone)
    }

    /// Takes a message to its queue, if it waits still. The copy's origin is its record.
    pub(crate) fn append_due(
        &self,
        ticket: &Ticket,
        topic: &Topic,
        queue: &ConsumeQueue,
        copy: &Copy<'_>,
    ) -> std::result::Result<Option<Appended>, AppendError> {
        let mut drafts = [Draft::blank(&topic.outline)];
        drafts[0].fill_copy(&topic.outline, Kind::Message, queue.queue, copy);
        self.check_length(drafts[0].length())?;
        let queue = Some((topic.target(queue), queue));
        let step = Step { ends: Some(ticket), queue, beyond_limits: false };
        self.step(&step, &mut drafts, |schedule, _| schedule.remove(ticket))
    }

    /// Ends the wait of a message without taking it anywhere; `None` if it does not wait any more.
    pub(crate) fn append_done(&self, ticket: &Ticket) -> Result<Option<Appended>> {
        let outline = Outline::new(self.store_id, Kind::Done, 0, "");
        let properties = Source::Encoded(&[]);
        let message = Pending { tag_hash: 0, born_ms: None, properties, body: &[] };
        let copy = Copy { message, reconsumed: 0, origin: ticket.position };
        let mut drafts = [Draft::blank(&outline)];
        drafts[0].fill_copy(&outline, Kind::Done, 0, &copy);
        let step = Step { ends: Some(ticket), queue: None, beyond_limits: false };
        let appended = self.step(&step, &mut drafts, |schedule, _| schedule.remove(ticket));
        appended.map_err(AppendError::into_error)
    }

    /// Appends messages that wait and stand below `end` again, at the tail.
    pub(super) fn carry_delays(&self, end: u64) -> Result<()> {
        let mut tickets: Vec<Ticket> = self.delays.lock().all().collect();
        tickets.retain(|ticket| ticket.position < end);
        tickets.sort_unstable_by_key(|ticket| ticket.position);
        for ticket in tickets {
            let Some(message) = self.delayed(&ticket)? else { continue };
            let message = message.delivery();
            let record = message.record();
            let outline =
                Outline::new(self.store_id, Kind::Delayed, record.incarnation(), message.topic());
            let id = format!("{:016x}", record.first_position());
            let kept = message.all_properties().filter(|(name, _)| *name != FIRST_ID);
            let properties = encode([(FIRST_ID, &*id)].into_iter().chain(kept));
            let mut copy = Copy::of(record);
            copy.message.properties = Source::Encoded(&properties);
            let mut drafts = [Draft::blank(&outline)];
            drafts[0].fill_copy(&outline, Kind::Delayed, record.queue(), &copy);
            let step = Step { ends: Some(&ticket), queue: None, beyond_limits: true };
            let carried = self.step(&step, &mut drafts, |schedule, appended| {
                schedule.relocate(&ticket, appended.position);
            });
            carried.map_err(AppendError::into_error)?;
        }
        Ok(())
    }

    /// What is due now, or when something will be.
    pub(crate) fn next_due(&self) -> Next {
        let now = self.delays.now(&self.clock);
        let Some((until, ticket)) = self.delays.lock().next(now) else { return Next::Nothing };
        match u64::try_from(until) {
            Ok(until @ 1..) => {
                let until = Duration::from_millis(until);
                let until = if ticket.is_instant() { until.min(LOOK) } else { until };
                Next::Wait(self.clock.moment().plus(until))
            }
            _ => Next::Due(ticket),
        }
    }

    /// Rung when something may be due earlier than was said.
    pub(crate) fn delay_alarm(&self) -> &Alarm {
        &self.delays.alarm
    }

    /// How many messages wait to be due.
    pub(crate) fn waiting(&self) -> usize {
        self.delays.lock().len()
    }

    /// Lets a message wait for so long from now on.
    pub(crate) fn put_off(&self, ticket: &Ticket, delay: Duration) {
        let steady_ms = self.delays.now(&self.clock).steady_ms;
        let until = steady_ms.saturating_add(signed(delay.as_millis().min(1 << 62) as u64));
        self.delays.lock().put_off(ticket, until);
    }

    /// The message of a ticket; `None` if it does not wait so any more.
    ///
    /// # Errors
    /// `Corrupt` if it cannot be read.
    pub(crate) fn delayed(&self, ticket: &Ticket) -> Result<Option<DetachedDelivery>> {
        let position = ticket.position;
        let Some(file) = self.log.file(position) else {
            // Carried forward meanwhile, or damage of the table.
            return match self.delays.lock().has(ticket) {
                false => Ok(None),
                true => Err(corrupt(&*self.storage, "meta/delays", position, "it is not there")),
            };
        };
        let record = file.record(position).and_then(|record| match record.kind() {
            Kind::Delayed => Ok(record),
            _ => Err("the record is not of a message that waits"),
        });
        record.map_err(|reason| corrupt(&*self.storage, &file.name(), position, reason))?;
        let mut messages = Deliveries::with_capacity(self.store_id, 1);
        messages.push(&file, position);
        Ok(messages.get(0).map(|message| message.detach()))
    }

    /// Visits the messages that wait, of those whose records stand at `from` in the log or behind it.
    pub(crate) fn visit_delayed(&self, from: u64, mut visit: impl FnMut(&Record<'_>)) {
        let schedule = self.delays.lock();
        let positions = schedule.all().map(|ticket| ticket.position);
        let positions: Vec<u64> = positions.filter(|position| *position >= from).collect();
        drop(schedule);
        for position in positions {
            self.with_record(position, &mut visit);
        }
    }

    /// The ticket of the message whose first record stands at `position`, if it waits.
    pub(crate) fn find_delayed(&self, position: u64) -> Option<Ticket> {
        if let Some(due) = self.with_record(position, due_of_waiting).flatten() {
            return self.delays.lock().find(position, due);
        }
        if position >= self.log.min_position() {
            return None;
        }
        // Carried forward, if at all: its id is told by the record alone.
        let tickets: Vec<Ticket> = self.delays.lock().all().collect();
        let first = |ticket: &Ticket| {
            self.with_record(ticket.position, |record| record.first_position()) == Some(position)
        };
        tickets.into_iter().find(|ticket| ticket.position > position && first(ticket))
    }

    /// After the clock was set back while nobody was looking, no duration is to last longer than it
    /// would from now on.
    pub(super) fn shorten_delays(&self, last_store_ms: u64) {
        let now = self.delays.now(&self.clock);
        if now.wall_ms >= signed(last_store_ms) {
            return;
        }
        let tickets: Vec<Ticket> = self.delays.lock().all().collect();
        for ticket in tickets.iter().filter(|ticket| !ticket.is_instant()) {
            let nominal =
                |record: &Record<'_>| Properties(record.properties()).get(DELAY)?.parse().ok();
            let Some(nominal) = self.with_record(ticket.position, nominal).flatten() else {
                continue;
            };
            let latest: i64 = now.steady_ms.saturating_add(nominal);
            if latest < signed(DueAt::of_word(ticket.word()).ms) {
                self.delays.lock().put_off(ticket, latest);
            }
        }
    }

    /// Appends, and does what follows from that for the schedule, in one step; `None` if the wait
    /// that it ends has ended.
    fn step(
        &self,
        step: &Step<'_>,
        drafts: &mut [Draft<'_>],
        mut then: impl FnMut(&mut Schedule, &Appended),
    ) -> std::result::Result<Option<Appended>, AppendError> {
        let target = step.queue.map(|(target, _)| target);
        loop {
            let now_ms = self.clock.coarse_wall_ms();
            let mut schedule = self.delays.lock();
            if step.ends.is_some_and(|ticket| !schedule.has(ticket)) {
                return Ok(None);
            }
            let refusal = match self.log.append(target, drafts, now_ms) {
                Ok(appended) => {
                    then(&mut schedule, &appended);
                    drop(schedule);
                    self.wake_for(&appended);
                    return Ok(Some(appended));
                }
                Err(refusal) => refusal,
            };
            drop(schedule);
            match refusal {
                Refusal::Segment if step.beyond_limits => {
                    self.log.grow(now_ms, Limits::default())?;
                }
                Refusal::Segment => self.make_file()?,
                Refusal::Pages(segment, wanted) => CommitLog::populate(&segment, wanted),
                refusal => {
                    self.make_room(step.queue.map(|(_, queue)| queue), drafts.len(), refusal)?;
                }
            }
        }
    }
}

/// When a record's message is due, if that waits.
fn due_of_waiting(record: &Record<'_>) -> Option<DueAt> {
    if record.kind() == Kind::Delayed { record.due() } else { None }
}

impl Record<'_> {
    /// When the message is due, if it was delayed.
    pub(super) fn due(&self) -> Option<DueAt> {
        let properties = Properties(self.properties());
        let ms = properties.get(DUE)?.parse().ok()?;
        Some(DueAt { ms, instant: properties.get(DELAY).is_none() })
    }
}

/// The properties of a message that waits: first the id that it had, then when it is due.
fn delayed(properties: Source<'_>, at: DueAt, due: Due) -> Vec<u8> {
    let mut bytes = vec![0; properties.len()];
    properties.write(&mut bytes);
    let due_text = at.ms.to_string();
    let delay = match due {
        Due::After(delay) => delay.as_millis().to_string(),
        Due::At(_) => String::new(),
    };
    let all = Properties(&bytes);
    let id = all.first_id().and_then(|_| all.get(FIRST_ID));
    let id = id.map(|id| (FIRST_ID, id));
    let times = [(DUE, &*due_text), (DELAY, &*delay)].into_iter().filter(|(_, v)| !v.is_empty());
    let rest = all.iter().filter(|(name, _)| *name != FIRST_ID);
    encode(id.into_iter().chain(times).chain(rest))
}

fn signed(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX)
}
