//! Messages that go to their queue later: one append stores them, one takes them there.
//!
//! A message that waits is a record without a queue. Whatever ends its wait is a single record whose
//! origin names it: the message in its queue, the same record further on, or the word that it is
//! done. See [`Delays`](super::delays::Delays) for who may append that.

use super::Store;
use super::append::AppendError;
use super::commit_log::Limits;
use super::consume_queue::ConsumeQueue;
use super::delays::signed;
use super::delivery::{Deliveries, DetachedDelivery};
use super::draft::{Copy, Draft, Outline, Pending, Source};
use super::files::corrupt;
use super::parked::Cause;
use super::record::{Kind, Record};
use super::schedule::{DueAt, Losses, Ticket};
use super::tail::{Appended, Refusal};
use super::topic::Topic;
use crate::clock::Moment;
use crate::delay::Due;
use crate::error::{Error, Result};
use crate::names::RETRY_PREFIX;
use crate::properties::{DELAY, DUE, FIRST_ID, Properties, encode};
use crate::sync::Alarm;
use std::time::Duration;

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

/// What may be taken for an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Space {
    /// What the limits of the log allow; if need be its oldest files go.
    Limited,
    /// What is there: some is going to be freed.
    Unlimited,
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
        let now_ms = self.clock.coarse_wall_ms();
        let appended = self.with_space(None, Space::Limited, || {
            self.delays.begin((at, ahead), || self.log.append(None, &mut drafts, now_ms))
        })?;
        self.wake_for(&appended);
        Ok(appended)
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
        let (target, now_ms) = (Some(topic.target(queue)), self.clock.coarse_wall_ms());
        let length = self.length_of(ticket);
        let appended = self.with_space(Some(queue), Space::Limited, || {
            self.delays.end(ticket, length, || self.log.append(target, &mut drafts, now_ms))
        })?;
        self.wait_ended(appended.as_ref());
        Ok(appended)
    }

    /// What waits is less now: retention may wait for that.
    fn wait_ended(&self, appended: Option<&Appended>) {
        if let Some(appended) = appended {
            self.wake_for(appended);
            if self.delays.lock().bytes.has_fallen() {
                self.retainer.ring();
            }
        }
    }

    fn length_of(&self, ticket: &Ticket) -> u64 {
        self.with_record(ticket.position, |record| record.length() as u64).unwrap_or(0)
    }

    /// Ends the wait of a message without taking it anywhere; `None` if it does not wait any more.
    pub(crate) fn append_done(&self, ticket: &Ticket) -> Result<Option<Appended>> {
        self.end_with_word(ticket, Space::Limited)
    }

    /// Ends the wait of a message that cannot be read: it is lost, and that is counted.
    pub(crate) fn give_up(&self, ticket: &Ticket, reason: &Error) -> Result<()> {
        self.lose(ticket, reason, Space::Limited)
    }

    fn lose(&self, ticket: &Ticket, reason: &Error, space: Space) -> Result<()> {
        if self.end_with_word(ticket, space)?.is_some() {
            self.delays.lock().note_loss(reason.to_string());
        }
        Ok(())
    }

    /// The messages that were lost since the store was opened.
    pub(crate) fn lost_delays(&self) -> Losses {
        self.delays.lock().losses().clone()
    }

    fn end_with_word(&self, ticket: &Ticket, space: Space) -> Result<Option<Appended>> {
        let outline = Outline::new(self.store_id, Kind::Done, 0, "");
        let properties = Source::Encoded(&[]);
        let message = Pending { tag_hash: 0, born_ms: None, properties, body: &[] };
        let copy = Copy { message, reconsumed: 0, origin: ticket.position };
        let mut drafts = [Draft::blank(&outline)];
        drafts[0].fill_copy(&outline, Kind::Done, 0, &copy);
        let now_ms = self.clock.coarse_wall_ms();
        let length = self.length_of(ticket);
        let appended = self.with_space(None, space, || {
            self.delays.end(ticket, length, || self.log.append(None, &mut drafts, now_ms))
        });
        let appended = appended.map_err(AppendError::into_error)?;
        self.wait_ended(appended.as_ref());
        Ok(appended)
    }

    /// Appends messages that wait and stand below `end` again, at the tail. What cannot be read is
    /// lost: it must not keep the log from being dropped for ever.
    pub(super) fn carry_delays(&self, end: u64) -> Result<()> {
        let mut tickets = self.delays.lock().begin_to_carry(end);
        tickets.sort_unstable_by_key(|ticket| ticket.position);
        for ticket in tickets {
            let message = match self.delayed(&ticket) {
                Ok(Some(message)) => message,
                Ok(None) => continue,
                Err(reason @ Error::Corrupt { .. }) => {
                    self.lose(&ticket, &reason, Space::Unlimited)?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let message = message.delivery();
            let record = message.record();
            let outline = Outline::new(
                self.store_id,
                Kind::Delayed,
                record.incarnation(),
                message.stored_topic(),
            );
            let id = format!("{:016x}", record.first_position());
            let kept = message.all_properties().filter(|(name, _)| *name != FIRST_ID);
            let properties = encode([(FIRST_ID, &*id)].into_iter().chain(kept));
            let mut copy = Copy::of(record);
            copy.message.properties = Source::Encoded(&properties);
            let mut drafts = [Draft::blank(&outline)];
            drafts[0].fill_copy(&outline, Kind::Delayed, record.queue(), &copy);
            let now_ms = self.clock.coarse_wall_ms();
            let carried = self.with_space(None, Space::Unlimited, || {
                self.delays.relocate(&ticket, record.length() as u64, || {
                    self.log.append(None, &mut drafts, now_ms)
                })
            });
            let carried = carried.map_err(AppendError::into_error)?;
            carried.iter().for_each(|appended| self.wake_for(appended));
        }
        Ok(())
    }

    /// How many bytes below each of these ends of the oldest files, all full, are of messages that wait.
    pub(super) fn waiting_below(&self, ends: &[u64]) -> Vec<u64> {
        let mut schedule = self.delays.lock();
        let range = schedule.bytes.begin(ends);
        // In a file that was counted before, nothing is looked at again.
        let tickets = if range.is_empty() { None } else { Some(schedule.all()) };
        let tickets = tickets.into_iter().flatten();
        let tickets: Vec<Ticket> = tickets.filter(|t| range.contains(&t.position)).collect();
        drop(schedule);
        let lengths = tickets.iter().map(|ticket| (ticket.position, self.length_of(ticket)));
        let lengths: Vec<(u64, u64)> = lengths.collect();
        let mut schedule = self.delays.lock();
        lengths.into_iter().for_each(|(at, length)| schedule.bytes.add(at, length));
        schedule.bytes.below(ends)
    }

    /// What is due now, or when something will be.
    pub(crate) fn next_due(&self) -> Next {
        let now = self.delays.now(&self.clock);
        let (next, instants) = {
            let schedule = self.delays.lock();
            (schedule.next(now), schedule.has_instants())
        };
        let Some((until, ticket)) = next else { return Next::Nothing };
        match u64::try_from(until) {
            Ok(until @ 1..) => {
                let until = Duration::from_millis(until);
                // The first one need not be an instant: the clock may be set beyond one behind it.
                let until = if instants { until.min(LOOK) } else { until };
                Next::Wait(self.clock.moment().plus(until))
            }
            _ => Next::Due(ticket),
        }
    }

    /// See [`Delays::alarm`](super::delays::Delays::alarm).
    pub(crate) fn delay_alarm(&self) -> &Alarm {
        self.delays.alarm()
    }

    /// How many messages wait to be due.
    pub(crate) fn waiting(&self) -> usize {
        self.delays.lock().len()
    }

    /// Lets a message wait that could not be stored, or would not be.
    pub(crate) fn park(&self, ticket: &Ticket, cause: Cause) {
        let steady_ms = self.delays.now(&self.clock).steady_ms;
        self.delays.lock().park(ticket, cause, steady_ms);
    }

    /// Whether nothing is to be tried that may fail for this cause.
    pub(crate) fn holds_delays(&self, cause: Cause) -> bool {
        let steady_ms = self.delays.now(&self.clock).steady_ms;
        self.delays.lock().holds(cause, steady_ms)
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
            // Its copy gets a checksum of its own.
            Kind::Delayed if !record.verify(self.store_id) => Err("the record fails its checksum"),
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
        match self.with_record(position, due_of_waiting) {
            Some(Some(due)) => {
                let schedule = self.delays.lock();
                let found = schedule.find(position, due);
                // Its file may stand long after it was carried forward.
                if found.is_some() || position >= schedule.carried().to {
                    return found;
                }
            }
            Some(None) => return None,
            None if position >= self.log.min_position() => return None,
            None => {}
        }
        // Carried forward, if at all: its id is told by the record alone.
        let first = |record: &Record<'_>| {
            // What waits to be tried again is a copy of a message that came.
            let again = record.topic().starts_with(RETRY_PREFIX.as_bytes());
            let first = record.first_position();
            (!again && first < record.position()).then_some(first)
        };
        loop {
            let schedule = self.delays.lock();
            let (seen, tickets) = (schedule.carried(), schedule.all().collect::<Vec<_>>());
            drop(schedule);
            let mut last = 0;
            for ticket in tickets {
                let first = self.with_record(ticket.position, first).flatten();
                if first == Some(position) {
                    return Some(ticket);
                }
                last = first.map_or(last, |first| last.max(first + 1));
            }
            let mut schedule = self.delays.lock();
            // Otherwise it may have been carried on just now, and its file may be gone.
            if schedule.carried() == seen {
                schedule.was_carried_to(seen, last);
                return None;
            }
        }
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

    /// Tries to append until there is room for it.
    fn with_space<R>(
        &self,
        queue: Option<&ConsumeQueue>,
        space: Space,
        mut append: impl FnMut() -> std::result::Result<R, Refusal>,
    ) -> std::result::Result<R, AppendError> {
        loop {
            match append() {
                Ok(appended) => return Ok(appended),
                Err(Refusal::Segment) if space == Space::Unlimited => {
                    self.log.grow(self.clock.coarse_wall_ms(), Limits::default())?;
                }
                Err(Refusal::Segment) => self.make_file()?,
                Err(Refusal::Pages(segment, wanted)) => self.log.populate(&segment, wanted),
                Err(refusal) => self.make_room(queue, 1, refusal)?,
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
