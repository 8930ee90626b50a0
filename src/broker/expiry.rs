//! Messages whose time is over: nobody gets them any more, and a group that meets one counts it.

use super::core::Core;
use super::group::{Group, Owned};
use crate::error::Result;
use crate::store::{Delivery, Fetch};

/// How much to read at once.
#[derive(Clone, Copy)]
pub(crate) struct Most {
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
}

impl Core {
    /// Whether the time in which a message is delivered is over.
    #[inline]
    pub(crate) fn has_expired(&self, message: &Delivery<'_>) -> bool {
        let end = message.expires_ms();
        end.is_some_and(|end| end <= self.clock().coarse_wall_ms())
    }

    /// Reads for the member of a group that owns the queue: messages that pass the filter, that
    /// `also` wants, and that have not expired. What has is counted.
    ///
    /// # Errors
    /// As [`fetch`](Self::fetch).
    pub(crate) fn fetch_for(
        &self,
        group: &Group,
        owned: &Owned,
        offset: u64,
        most: Most,
        also: impl Fn(&Delivery<'_>) -> bool,
    ) -> Result<Fetch> {
        let lives = |message: &Delivery<'_>| {
            let expired = also(message).then(|| self.has_expired(message));
            if expired == Some(true) {
                group.pulls.expired.add(1);
            }
            expired == Some(false)
        };
        let (Owned { queue, filter, .. }, Most { messages, bytes }) = (owned, most);
        self.fetch_those(queue, offset, messages, bytes, filter, lives)
    }
}
