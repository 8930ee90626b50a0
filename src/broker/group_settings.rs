//! What operators decide about a group.

use super::back_off::BackOff;
use crate::error::{Error, Result};
use crate::names;
use crate::sync::Arc;

/// Settings of a consumer group, kept with the directory (SUB-6).
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let broker = rocklet::Broker::open(dir.path())?;
/// use rocklet::{Error, GroupSettings};
/// broker.create_group("audit", GroupSettings::new().forbid_consuming())?;
/// let refused = broker.pull_consumer("audit").subscribe("orders", "*")?.start();
/// assert!(matches!(refused, Err(Error::GroupForbids { .. })));
/// broker.update_group("audit", GroupSettings::new())?;
/// # broker.pull_consumer("audit").subscribe("orders", "*")?.start()?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "settings do nothing until a group gets them"]
pub struct GroupSettings {
    consuming: bool,
    broadcasting: bool,
    retry_queues: u16,
    max_retries: u16,
    back_off: BackOff,
    expired_to: Option<Arc<str>>,
}

const MAX_RETRY_QUEUES: u16 = 1024;

/// In the table of groups, before the back-off, whose kinds are other numbers.
const EXPIRED_TO: u8 = 0x80;

impl GroupSettings {
    /// What a group has that was made by its first consumer: everything is allowed, one queue for
    /// what is to be delivered again, 16 retries after RocketMQ's delays.
    pub fn new() -> Self {
        let back_off = BackOff::levels();
        let (consuming, broadcasting, retry_queues, max_retries) = (true, true, 1, 16);
        Self { consuming, broadcasting, retry_queues, max_retries, back_off, expired_to: None }
    }

    /// Lets no consumer start, and makes those that run stop reading until it is allowed again.
    pub fn forbid_consuming(mut self) -> Self {
        self.consuming = false;
        self
    }

    /// Lets no consumer start in [`Mode::Broadcasting`](crate::Mode::Broadcasting), and makes those
    /// that run stop reading.
    pub fn forbid_broadcasting(mut self) -> Self {
        self.broadcasting = false;
        self
    }

    /// Sets how many queues the topic gets that holds messages to be delivered again: 1 to 1024, or
    /// 0 to discard whatever fails, which [`Stats::discarded`](crate::Stats::discarded) counts
    /// (CONC-15).
    pub fn retry_queues(mut self, queues: u16) -> Self {
        self.retry_queues = queues;
        self
    }

    /// Sets how often a failed message is delivered again before it becomes a
    /// [dead letter](crate::Broker::dead_letters): 0 to 65 535 (CONC-18).
    pub fn max_retries(mut self, times: u16) -> Self {
        self.max_retries = times;
        self
    }

    /// Sets how long a failed message waits for its next delivery; [`BackOff::levels`] by default.
    pub fn back_off(mut self, back_off: BackOff) -> Self {
        self.back_off = back_off;
        self
    }

    /// Keeps a copy of every message in `topic` whose [time](crate::Message::time_to_live) was over
    /// before the group got it: with its id and its content, in its order, and without an end of its
    /// time. [`Delivery::expired_from`](crate::Delivery::expired_from) says where it was. The topic
    /// is made by its first message, as by a send; while it cannot take one, the group waits in front
    /// of what has expired. A group does so for itself alone, once for each
    /// message; members of a broadcasting group keep nothing.
    pub fn expired_to(mut self, topic: &str) -> Self {
        self.expired_to = Some(topic.into());
        self
    }

    /// Whether consumers may run.
    #[must_use]
    pub fn allows_consuming(&self) -> bool {
        self.consuming
    }

    /// Whether consumers may run in [`Mode::Broadcasting`](crate::Mode::Broadcasting).
    #[must_use]
    pub fn allows_broadcasting(&self) -> bool {
        self.broadcasting
    }

    /// How many queues there are for messages to be delivered again.
    #[must_use]
    pub fn retry_queue_count(&self) -> u16 {
        self.retry_queues
    }

    /// How often a failed message is delivered again.
    #[must_use]
    pub fn retry_limit(&self) -> u16 {
        self.max_retries
    }

    /// How long a failed message waits for its next delivery.
    pub fn retry_back_off(&self) -> &BackOff {
        &self.back_off
    }

    /// The topic in which expired messages are kept, if they are.
    #[must_use]
    pub fn expired_topic(&self) -> Option<&str> {
        self.expired_to.as_deref()
    }

    pub(super) fn kept_in(&self) -> Option<&Arc<str>> {
        self.expired_to.as_ref()
    }

    pub(crate) fn check(&self) -> Result<()> {
        self.expired_to.as_deref().map_or(Ok(()), names::check_topic)?;
        if self.retry_queues <= MAX_RETRY_QUEUES {
            return self.back_off.check();
        }
        let (name, value) = ("retry_queues", u64::from(self.retry_queues));
        let (rule, max) = ("a number", u64::from(MAX_RETRY_QUEUES));
        Err(Error::Setting { name, value, rule, min: 0, max })
    }

    /// What the table of groups keeps.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let flags = u8::from(self.consuming) | u8::from(self.broadcasting) << 1;
        let ([a, b], [c, d]) = (self.retry_queues.to_le_bytes(), self.max_retries.to_le_bytes());
        let mut bytes = vec![flags, a, b, c, d];
        if let Some(topic) = &self.expired_to {
            // At most 127 bytes, as every topic.
            bytes.extend_from_slice(&[EXPIRED_TO, topic.len() as u8]);
            bytes.extend_from_slice(topic.as_bytes());
        }
        self.back_off.encode(&mut bytes);
        bytes
    }

    /// A group that was made by its first consumer has nothing in the table.
    pub(crate) fn decode(bytes: &[u8]) -> Self {
        let Some((&[flags, a, b, c, d], rest)) = bytes.split_first_chunk() else {
            return Self::new();
        };
        let (expired_to, rest) = match rest {
            [EXPIRED_TO, length, rest @ ..] if usize::from(*length) <= rest.len() => {
                let (topic, rest) = rest.split_at(usize::from(*length));
                (std::str::from_utf8(topic).ok().map(Arc::from), rest)
            }
            _ => (None, rest),
        };
        Self {
            consuming: flags & 1 != 0,
            broadcasting: flags & 2 != 0,
            retry_queues: u16::from_le_bytes([a, b]),
            max_retries: u16::from_le_bytes([c, d]),
            back_off: BackOff::decode(rest),
            expired_to,
        }
    }
}

impl Default for GroupSettings {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn sub_6_settings_come_back_as_they_were_stored() {
        let all = [
            GroupSettings::new(),
            GroupSettings::new().forbid_consuming().retry_queues(0),
            GroupSettings::new().expired_to("late"),
            GroupSettings::new().back_off(BackOff::table([SECOND])).expired_to("late"),
            GroupSettings::new().back_off(BackOff::exponential(SECOND, 9 * SECOND)),
            GroupSettings::new().forbid_broadcasting().max_retries(u16::MAX).retry_queues(1024),
        ];
        for settings in all {
            settings.check().unwrap();
            assert_eq!(GroupSettings::decode(&settings.encode()), settings);
        }
        assert_eq!(GroupSettings::decode(&[]), GroupSettings::new());
        // As it was stored before there were back-offs.
        let older = GroupSettings::new().retry_queues(7);
        assert_eq!(GroupSettings::decode(&[3, 7, 0, 16, 0]), older);
        assert!(GroupSettings::new().retry_queues(1025).check().is_err());
        assert!(GroupSettings::new().expired_to("%RETRY%g").check().is_err());
        let table = std::iter::empty();
        assert!(GroupSettings::new().back_off(BackOff::table(table)).check().is_err());
    }
}
