//! Which messages wait to be due, and until when (docs/design.md, "Delays").
//!
//! Instants are read on the wall clock as it is. Durations are read on a steady clock, which nobody
//! sets; what is stored of them is the wall time, so each counts by how far the wall clock was ahead
//! of the steady one when it began. As clocks are set seldom, that is one number for all.

use super::parked::{Cause, Parked};
use super::waiting_bytes::WaitingBytes;
use std::collections::{BTreeMap, BTreeSet};

/// When a message is due, as its record and the table say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DueAt {
    /// Wall time in milliseconds since 1970.
    pub(crate) ms: u64,
    /// What the wall clock says counts; otherwise it is the end of a duration.
    pub(crate) instant: bool,
}

/// Later than any clock will say.
pub(crate) const LATEST_MS: u64 = 1 << 62;
const INSTANT: u64 = 1 << 63;

impl DueAt {
    /// Both in one word.
    pub(crate) fn word(self) -> u64 {
        self.ms.min(LATEST_MS) | if self.instant { INSTANT } else { 0 }
    }

    pub(crate) fn of_word(word: u64) -> Self {
        Self { ms: word & !INSTANT, instant: word & INSTANT != 0 }
    }
}

/// The present, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Now {
    pub(crate) wall_ms: i64,
    /// The wall time as it would be had nobody set the clock since the store was opened.
    pub(crate) steady_ms: i64,
}

/// One message that waits: good for as long as it does, and as it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(crate) position: u64,
    pub(super) due: u64,
    pub(super) scale: Scale,
}

/// How a due time is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scale {
    Wall,
    /// On the steady clock, which the wall clock was so far ahead of.
    Ahead(i64),
    /// On the steady clock, and not what is stored, which is this word.
    Moved(u64),
}

impl Scale {
    /// Milliseconds from now on.
    fn until(self, due: u64, now: Now) -> i64 {
        let reading = match self {
            Self::Wall => now.wall_ms,
            Self::Ahead(ahead) => now.steady_ms + ahead,
            Self::Moved(_) => now.steady_ms,
        };
        i64::try_from(due).unwrap_or(i64::MAX).saturating_sub(reading)
    }
}

/// By due time and position.
type Order = BTreeSet<(u64, u64)>;

/// What has changed since the table was saved: a position, and a word or [`GONE`].
pub(crate) type Change = (u64, u64);

/// The word of a message that waits no more.
pub(crate) const GONE: u64 = u64::MAX;

/// All messages that wait.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    instants: Order,
    /// Durations, by how far the wall clock was ahead.
    durations: Vec<(i64, Order)>,
    /// By the steady time when they are due instead, and the position: the word that is stored.
    moved: BTreeMap<(u64, u64), u64>,
    parked: Parked,
    lost: Losses,
    pub(super) bytes: WaitingBytes,
    /// In the order of the log.
    unsaved: Vec<Change>,
    carried: Carried,
}

/// Messages that could not be read when they were due, or were to be carried forward.
#[derive(Clone, Debug, Default)]
pub(crate) struct Losses {
    pub(crate) count: u64,
    /// Why the last one was lost.
    pub(crate) reason: Option<String>,
}

/// What stood below `to` when its wait began may stand elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Carried {
    pub(crate) to: u64,
    /// How often that has begun since the store was opened.
    times: u64,
}

impl Schedule {
    /// Starts from what was stored, by position.
    pub(crate) fn new(stored: impl Iterator<Item = Change> + Clone) -> Self {
        let of = |instant| {
            let due = stored.clone().map(|(position, word)| (DueAt::of_word(word), position));
            due.filter(move |(due, _)| due.instant == instant).map(|(due, at)| (due.ms, at))
        };
        let durations: Order = of(false).collect();
        let durations = if durations.is_empty() { Vec::new() } else { vec![(0, durations)] };
        // Of what was carried forward something may still stand where it was, if there was a crash.
        let to = stored.clone().map(|(position, _)| position).max().unwrap_or(0);
        let carried = Carried { to, times: 0 };
        Self { instants: of(true).collect(), durations, carried, ..Self::default() }
    }

    /// Adds a message; true if nothing of its kind is due before. The wall clock was `ahead` of the
    /// steady one when it was sent.
    pub(crate) fn add(&mut self, position: u64, due: DueAt, ahead: i64) -> bool {
        self.unsaved.push((position, due.word()));
        self.insert(position, due, ahead)
    }

    fn insert(&mut self, position: u64, due: DueAt, ahead: i64) -> bool {
        let order = match due.instant {
            true => &mut self.instants,
            false => self.durations_of(ahead),
        };
        order.insert((due.ms, position));
        order.first() == Some(&(due.ms, position))
    }

    fn durations_of(&mut self, ahead: i64) -> &mut Order {
        let known = self.durations.iter().position(|(known, _)| *known == ahead);
        let at = known.unwrap_or_else(|| {
            self.durations.retain(|(_, order)| !order.is_empty());
            self.durations.push((ahead, Order::new()));
            self.durations.len() - 1
        });
        &mut self.durations[at].1
    }

    /// The message that is due first, or overdue most, and the milliseconds until then.
    pub(crate) fn next(&self, now: Now) -> Option<(i64, Ticket)> {
        let durations = self.durations.iter().map(|(ahead, order)| (Scale::Ahead(*ahead), order));
        let orders = durations.chain([(Scale::Wall, &self.instants)]);
        let firsts = orders.filter_map(|(scale, order)| {
            let (due, position) = *order.first()?;
            Some(Ticket { position, due, scale })
        });
        let moved = self.moved.first_key_value().map(|(&(due, position), word)| Ticket {
            position,
            due,
            scale: Scale::Moved(*word),
        });
        let all = firsts.chain(moved).map(|ticket| (ticket.scale.until(ticket.due, now), ticket));
        let parked = self.parked.firsts();
        let parked = parked.map(|(at, ticket)| (at.saturating_sub(now.steady_ms), ticket));
        all.chain(parked).min_by_key(|(until, ticket)| (*until, ticket.position))
    }

    /// Whether the message waits still, and in the same way.
    pub(crate) fn has(&self, ticket: &Ticket) -> bool {
        let place = (ticket.due, ticket.position);
        let scheduled = match ticket.scale {
            Scale::Wall => self.instants.contains(&place),
            Scale::Ahead(ahead) => self
                .durations
                .iter()
                .any(|(known, order)| *known == ahead && order.contains(&place)),
            Scale::Moved(word) => self.moved.get(&place) == Some(&word),
        };
        scheduled || self.parked.has(ticket)
    }

    /// Takes a message out that waits.
    pub(crate) fn remove(&mut self, ticket: &Ticket) {
        if self.parked.end(ticket) || self.take(ticket) {
            self.unsaved.push((ticket.position, GONE));
        }
    }

    fn take(&mut self, ticket: &Ticket) -> bool {
        let place = (ticket.due, ticket.position);
        let scheduled = match ticket.scale {
            Scale::Wall => self.instants.remove(&place),
            Scale::Ahead(ahead) => self.durations_of(ahead).remove(&place),
            Scale::Moved(_) => self.moved.remove(&place).is_some(),
        };
        scheduled || self.parked.take(ticket)
    }

    /// Lets a message wait for others, or be the first of them, that cannot be stored.
    pub(crate) fn park(&mut self, ticket: &Ticket, cause: Cause, steady_ms: i64) {
        if self.take(ticket) {
            self.parked.add(ticket, cause, steady_ms);
        }
    }

    /// Whether nothing is to be tried that may fail for this cause.
    pub(crate) fn holds(&self, cause: Cause, steady_ms: i64) -> bool {
        self.parked.holds(cause, steady_ms)
    }

    /// A message was lost.
    pub(crate) fn note_loss(&mut self, reason: String) {
        self.lost = Losses { count: self.lost.count + 1, reason: Some(reason) };
    }

    pub(crate) fn losses(&self) -> &Losses {
        &self.lost
    }

    /// Lets a message wait until a steady time, whatever is stored.
    pub(crate) fn put_off(&mut self, ticket: &Ticket, steady_ms: i64) {
        if self.take(ticket) {
            let due = u64::try_from(steady_ms).unwrap_or(0);
            self.moved.insert((due, ticket.position), ticket.word());
        }
    }

    /// Its record stands at another position now.
    pub(crate) fn relocate(&mut self, ticket: &Ticket, position: u64) {
        if self.take(ticket) {
            self.unsaved.extend([(ticket.position, GONE), (position, ticket.word())]);
            let place = (ticket.due, position);
            match ticket.scale {
                Scale::Wall => _ = self.instants.insert(place),
                Scale::Ahead(ahead) => _ = self.durations_of(ahead).insert(place),
                Scale::Moved(word) => _ = self.moved.insert(place, word),
            }
        }
    }

    /// The message whose record at `position` says that it is `due`, if it waits. What waits until
    /// another time than that is looked for one by one.
    pub(crate) fn find(&self, position: u64, due: DueAt) -> Option<Ticket> {
        let ticket = |scale| Ticket { position, due: due.ms, scale };
        let scales = match due.instant {
            true => vec![Scale::Wall],
            false => self.durations.iter().map(|(ahead, _)| Scale::Ahead(*ahead)).collect(),
        };
        let stored = scales.into_iter().map(ticket).find(|ticket| self.has(ticket));
        let stored = stored.or_else(|| self.parked.find(position, due.ms));
        let others = || self.moved().chain(self.parked.all());
        stored.or_else(|| others().find(|ticket| ticket.position == position))
    }

    fn moved(&self) -> impl Iterator<Item = Ticket> {
        self.moved.iter().map(|(&(due, position), word)| Ticket {
            position,
            due,
            scale: Scale::Moved(*word),
        })
    }

    /// All messages that wait, in no order.
    pub(crate) fn all(&self) -> impl Iterator<Item = Ticket> {
        let durations = self.durations.iter().map(|(ahead, order)| (Scale::Ahead(*ahead), order));
        let orders = durations.chain([(Scale::Wall, &self.instants)]);
        let stored = orders.flat_map(|(scale, order)| {
            order.iter().map(move |&(due, position)| Ticket { position, due, scale })
        });
        stored.chain(self.moved()).chain(self.parked.all())
    }

    /// Whether anything waits for an instant, so that the wall clock counts.
    pub(crate) fn has_instants(&self) -> bool {
        !self.instants.is_empty()
    }

    /// What waits below a position, in no order. It is going to be carried forward: any of it may
    /// stand elsewhere from now on.
    pub(crate) fn begin_to_carry(&mut self, end: u64) -> Vec<Ticket> {
        self.carried = Carried { to: self.carried.to.max(end), times: self.carried.times + 1 };
        self.all().filter(|ticket| ticket.position < end).collect()
    }

    /// What may have been carried forward.
    pub(crate) fn carried(&self) -> Carried {
        self.carried
    }

    /// Everything that waits was looked at when `seen` was said: of what was carried forward before the
    /// store was opened nothing stood at `to` or behind it.
    pub(crate) fn was_carried_to(&mut self, seen: Carried, to: u64) {
        if self.carried == seen && seen.times == 0 {
            self.carried.to = to;
        }
    }

    /// How many messages wait.
    pub(crate) fn len(&self) -> usize {
        let durations = self.durations.iter().map(|(_, order)| order.len()).sum::<usize>();
        self.instants.len() + durations + self.moved.len() + self.parked.len()
    }

    /// What has changed since it was saved.
    pub(crate) fn unsaved(&self) -> &[Change] {
        &self.unsaved
    }

    /// The first `count` changes are saved.
    pub(crate) fn saved(&mut self, count: usize) {
        self.unsaved.drain(..count);
        self.unsaved.shrink_to(1024);
    }
}

impl Ticket {
    /// Whether it waits for an instant.
    pub(crate) fn is_instant(&self) -> bool {
        self.scale == Scale::Wall
    }

    /// What is stored of it.
    pub(crate) fn word(&self) -> u64 {
        match self.scale {
            Scale::Wall => DueAt { ms: self.due, instant: true }.word(),
            Scale::Ahead(_) => DueAt { ms: self.due, instant: false }.word(),
            Scale::Moved(word) => word,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn duration(ms: u64) -> DueAt {
        DueAt { ms, instant: false }
    }

    fn instant(ms: u64) -> DueAt {
        DueAt { ms, instant: true }
    }

    /// The positions of all that is due, in order.
    fn due(schedule: &mut Schedule, now: Now) -> Vec<u64> {
        let mut positions = Vec::new();
        while let Some((until, ticket)) = schedule.next(now).filter(|(until, _)| *until <= 0) {
            assert!(until <= 0 && schedule.has(&ticket));
            schedule.remove(&ticket);
            assert!(!schedule.has(&ticket));
            positions.push(ticket.position);
        }
        positions
    }

    fn at(wall_ms: i64, steady_ms: i64) -> Now {
        Now { wall_ms, steady_ms }
    }

    #[test]
    fn delay_12_a_word_says_when_and_on_which_clock() {
        for due in [duration(0), instant(0), duration(LATEST_MS), instant(1_700_000_000_000)] {
            assert_eq!(DueAt::of_word(due.word()), due);
            assert_ne!(due.word(), GONE);
        }
        assert_eq!(DueAt::of_word(instant(u64::MAX).word()), instant(LATEST_MS));
    }

    #[test]
    fn b_136_each_clock_is_read_for_what_counts_by_it() {
        let mut schedule = Schedule::default();
        assert!(schedule.add(8, duration(1000), 0));
        assert!(schedule.add(16, instant(1000), 0));
        // Sent after the wall clock was set an hour ahead: due at steady time 500.
        assert!(schedule.add(24, duration(3_600_500), 3_600_000));
        assert!(!schedule.add(32, duration(1001), 0));
        assert_eq!(schedule.len(), 4);
        assert_eq!(schedule.next(at(0, 400)).unwrap().0, 100);
        assert_eq!(due(&mut schedule, at(0, 500)), [24]);
        assert_eq!(due(&mut schedule, at(2000, 999)), [16]);
        assert_eq!(due(&mut schedule, at(0, 1001)), [8, 32]);
        assert_eq!((schedule.len(), schedule.next(at(0, 0))), (0, None));
    }

    #[test]
    fn what_is_put_off_keeps_what_is_stored_of_it() {
        let mut schedule = Schedule::default();
        schedule.add(8, instant(1000), 0);
        let (_, ticket) = schedule.next(at(1000, 50)).unwrap();
        schedule.put_off(&ticket, 70);
        assert!(!schedule.has(&ticket));
        assert!(due(&mut schedule, at(9999, 69)).is_empty());
        let moved = schedule.find(8, instant(1000)).unwrap();
        assert_eq!((moved.word(), moved.is_instant()), (instant(1000).word(), false));
        schedule.relocate(&moved, 80);
        assert_eq!(schedule.find(8, instant(1000)), None);
        assert_eq!(due(&mut schedule, at(9999, 70)), [80]);
        let word = instant(1000).word();
        assert_eq!(schedule.unsaved(), [(8, word), (8, GONE), (80, word), (80, GONE)]);
        schedule.saved(3);
        assert_eq!(schedule.unsaved(), [(80, GONE)]);
    }

    #[test]
    fn a_schedule_starts_from_what_was_stored() {
        let stored =
            [(8, duration(50).word()), (16, instant(40).word()), (24, duration(10).word())];
        let mut schedule = Schedule::new(stored.into_iter());
        assert!(schedule.unsaved().is_empty());
        let mut all: Vec<_> = schedule.all().map(|t| (t.position, t.word())).collect();
        all.sort_unstable();
        assert_eq!(all, stored);
        assert!(
            schedule.find(16, instant(40)).is_some() && schedule.find(16, duration(40)).is_none()
        );
        assert_eq!(due(&mut schedule, at(100, 100)), [24, 16, 8]);
    }
}
