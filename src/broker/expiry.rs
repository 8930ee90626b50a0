//! Messages whose time is over: nobody gets them any more.
//!
//! A group that meets one passes it by, counts it and, if its settings say so, keeps a copy in a
//! topic. Each group does that for itself, as it has its own dead letters: what one has consumed in
//! time another may have missed. A copy is stored before progress passes the message, and what was
//! stored before a kill is found again in that topic, so there is one copy for each group.

use super::core::Core;
use super::group::{Group, Owned};
use super::mode::Mode;
use super::send_back::origin_of;
use super::settled::Settled;
use super::write::{copy_of, properties_of_kept_copy};
use crate::error::{Error, Result};
use crate::properties::EXPIRED_FROM;
use crate::store::{Appended, Delivery, Fetch, FetchStatus};
use crate::sync::{Arc, OnceLock};
use std::cell::{Cell, RefCell};

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

/// What of a queue had expired, and was kept, before this owner got it; looked up when it is needed
/// first.
pub(crate) type KeptBefore = Arc<OnceLock<Option<Settled>>>;

/// What of a read has expired.
#[derive(Default)]
struct Expired {
    /// The last copy that was kept.
    kept: Option<Appended>,
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
            if has_expired && !self.was_kept(account, owned, offset, message) {
                let mut expired = expired.borrow_mut();
                match self.expire(account, owned, message) {
                    Ok(kept) => expired.kept = kept.or(expired.kept.take()),
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
        let Expired { kept, failed } = expired.into_inner();
        kept.map_or(Ok(()), |kept| self.make_durable(&kept))?;
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
    pub(crate) fn expire(
        &self,
        account: Account<'_>,
        owned: &Owned,
        message: &Delivery<'_>,
    ) -> Result<Option<Appended>> {
        let kept =
            account.keeps_in().map(|topic| self.keep_expired(&topic, message)).transpose()?;
        account.group.pulls.expired.add(1);
        owned.meter.count_expired(self.clock().moment());
        Ok(kept)
    }

    fn keep_expired(&self, topic: &str, message: &Delivery<'_>) -> Result<Appended> {
        let from = format!("{} {}", message.topic(), origin_of(message));
        let properties = properties_of_kept_copy(message, &[(EXPIRED_FROM, &from)]);
        let copy = copy_of(message, &properties, message.record().reconsumed());
        let topic = self.topic(topic)?;
        // So the messages of a queue keep their order.
        let queue = usize::from(message.queue()) % topic.writable()?.len();
        self.write(&topic.name, topic.config, queue as u16, &copy)
    }

    /// Whether the group kept it in an earlier life of the process.
    fn was_kept(
        &self,
        account: Account<'_>,
        owned: &Owned,
        offset: u64,
        message: &Delivery<'_>,
    ) -> bool {
        let Some(topic) = account.keeps_in() else { return false };
        let look_up = || {
            // What was before the group was moved is to expire again.
            let first = owned.queue.entry(offset.max(owned.queue.min()))?;
            let from = first.position.max(account.group.moved_at());
            let topic = self.store.topics.get(&topic)?;
            let mut before = Settled::default();
            for queue in &topic.queues {
                self.store.visit_from(queue, from, |record| before.note(record));
            }
            (!before.is_empty()).then_some(before)
        };
        owned.kept_before.get_or_init(look_up).as_ref().is_some_and(|kept| kept.has(message))
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
