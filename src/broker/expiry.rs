//! Messages whose time is over: nobody gets them any more.
//!
//! A group that meets one passes it by, counts it and, if its settings say so, keeps a copy in a
//! topic. Each group does that for itself, as it has its own dead letters: what one has consumed in
//! time another may have missed. A copy is stored before progress passes the message, and names the
//! group. An owner that reads a queue again remembers what it has kept of it, and what was kept before
//! it got the queue is found again in that topic: so there is one copy for each group.

use super::copies::Copies;
use super::core::Core;
use super::group::{Group, Owned};
use super::mode::Mode;
use super::send_back::origin_of;
use super::write::{copy_of, properties_of_kept_copy};
use crate::error::{Error, Result};
use crate::names;
use crate::properties::{EXPIRED_FROM, Properties};
use crate::store::{Appended, Delivery, Fetch, FetchStatus, Record};
use crate::sync::{Arc, Mutex, OnceLock, Rank};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

/// On whose account messages are read.
#[derive(Clone, Copy)]
pub(crate) struct Account<'a> {
    pub(crate) group: &'a Group,
    pub(crate) mode: Mode,
}

/// How much to read at once.
#[derive(Clone, Copy)]
pub(crate) struct Most {
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
}

/// Which messages of a queue were passed by because they had expired, so that each is counted and
/// kept once, however often it is read.
#[derive(Debug)]
pub(crate) struct Passed {
    /// By this owner, by offset.
    here: Mutex<BTreeSet<u64>>,
    /// By those before it, as far as copies tell; looked up when that is needed first.
    before: OnceLock<Option<Copies>>,
}

impl Passed {
    pub(crate) fn nothing() -> Arc<Self> {
        let here = Mutex::new(Rank::ProcessQueue, BTreeSet::new());
        Arc::new(Self { here, before: OnceLock::new() })
    }

    /// Forgets what is below `offset`, which is not read again.
    pub(crate) fn forget_below(&self, offset: u64) {
        let mut here = self.here.lock();
        if here.first().is_some_and(|first| *first < offset) {
            *here = here.split_off(&offset);
        }
    }
}

/// What of a read has expired.
#[derive(Default)]
struct Expired {
    /// The last copy that was kept.
    kept: Option<Appended>,
    /// What is dealt with once that is durable.
    passed: Vec<u64>,
    /// Where, and why, one could not be kept: the read ends there.
    failed: Option<(u64, Error)>,
}

impl Core {
    /// Whether the time in which a message is delivered is over.
    #[inline]
    pub(crate) fn has_expired(&self, message: &Delivery<'_>) -> bool {
        let end = message.expires_ms();
        end.is_some_and(|end| end <= self.clock().coarse_wall_ms())
    }

    /// Reads for the member of a group that owns the queue: messages that pass the filter, that
    /// `also` wants, and that have not expired. What has is dealt with.
    ///
    /// # Errors
    /// As [`fetch`](Self::fetch), or as a send if an expired message cannot be kept. What stands
    /// before it has been returned then.
    pub(crate) fn fetch_for(
        &self,
        account: Account<'_>,
        owned: &Owned,
        offset: u64,
        most: Most,
        also: impl Fn(&Delivery<'_>) -> bool,
    ) -> Result<Fetch> {
        let (expired, ended) = (RefCell::new(Expired::default()), Cell::new(false));
        let lives = |message: &Delivery<'_>| {
            // Nothing is read past a message that could not be kept.
            if ended.get() || !also(message) {
                return false;
            }
            let has_expired = self.has_expired(message);
            if has_expired && !self.was_passed(account, owned, offset, message) {
                let mut expired = expired.borrow_mut();
                match self.pass_by(account, owned, message) {
                    Ok(kept) => {
                        expired.kept = kept.or(expired.kept.take());
                        expired.passed.push(message.offset());
                    }
                    Err(error) => {
                        expired.failed = Some((message.offset(), error));
                        ended.set(true);
                    }
                }
            }
            !has_expired
        };
        let (Owned { queue, filter, .. }, Most { messages, bytes }) = (owned, most);
        let mut fetch = self.fetch_those(queue, offset, messages, bytes, filter, lives)?;
        let Expired { kept, passed, failed } = expired.into_inner();
        kept.map_or(Ok(()), |kept| self.make_durable(&kept))?;
        if !passed.is_empty() {
            owned.passed.here.lock().extend(passed);
        }
        match failed {
            Some((at, error)) if at == offset => return Err(error),
            Some((at, _)) => {
                fetch.next = at;
                if fetch.messages.is_empty() {
                    fetch.status = FetchStatus::NoMatched;
                }
            }
            None => {}
        }
        Ok(fetch)
    }

    /// Counts a message that has expired before the group got it, and keeps a copy if that is
    /// wanted. In broadcasting, where everybody would, nobody does.
    ///
    /// # Errors
    /// As a send: then it is not counted either.
    pub(crate) fn pass_by(
        &self,
        account: Account<'_>,
        owned: &Owned,
        message: &Delivery<'_>,
    ) -> Result<Option<Appended>> {
        let keep = |topic: Arc<str>| self.keep_expired(&topic, account.group, message);
        let kept = account.keeps_in().map(keep).transpose()?;
        account.group.pulls.expired.add(1);
        owned.meter.count_expired(self.clock().moment());
        Ok(kept)
    }

    fn keep_expired(&self, topic: &str, group: &Group, message: &Delivery<'_>) -> Result<Appended> {
        let from = format!("{} {} {}", message.topic(), origin_of(message), group.name);
        let properties = properties_of_kept_copy(message, &[(EXPIRED_FROM, &from)]);
        let copy = copy_of(message, &properties, message.record().reconsumed());
        let topic = self.topic(topic)?;
        // So the messages of a queue keep their order.
        let queue = usize::from(message.queue()) % topic.writable()?.len();
        self.write(&topic.name, topic.config, queue as u16, &copy)
    }

    /// Whether the group has passed it by before: this owner, or one before it that has kept a copy.
    fn was_passed(
        &self,
        account: Account<'_>,
        owned: &Owned,
        offset: u64,
        message: &Delivery<'_>,
    ) -> bool {
        if owned.passed.here.lock().contains(&message.offset()) {
            return true;
        }
        let Some(topic) = account.keeps_in() else { return false };
        let look_up = || self.kept_before(account.group, owned, offset, &topic);
        let before = owned.passed.before.get_or_init(look_up);
        before.as_ref().is_some_and(|copies| copies.replace(message))
    }

    /// What a group has kept in a topic of a queue, from `offset` on.
    fn kept_before(
        &self,
        group: &Group,
        owned: &Owned,
        offset: u64,
        topic: &str,
    ) -> Option<Copies> {
        // What was before the group was moved is to expire again.
        let first = owned.queue.entry(offset.max(owned.queue.min()))?;
        let from = first.position.max(group.moved_at());
        let topic = self.store.topics.get(topic)?;
        // What is delivered again was in any queue at first.
        let any_queue = names::is_of_a_group(owned.id.topic());
        let place = format!("{} {} ", owned.id.topic(), owned.id.queue());
        let is_own = |record: &Record<'_>| {
            let from = Properties(record.properties()).get(EXPIRED_FROM);
            from.and_then(|from| from.rsplit_once(' ')).is_some_and(|(from, keeper)| {
                keeper == group.name && (any_queue || from.starts_with(&place))
            })
        };
        let mut copies = Copies::default();
        for queue in &topic.queues {
            self.store.visit_from(queue, from, |record| {
                if is_own(record) {
                    copies.note(record);
                }
            });
        }
        (!copies.is_empty()).then_some(copies)
    }
}

impl Account<'_> {
    /// The topic in which it keeps what has expired.
    fn keeps_in(self) -> Option<Arc<str>> {
        match self.mode {
            Mode::Clustering => self.group.settings().kept_in().cloned(),
            Mode::Broadcasting => None,
        }
    }
}
