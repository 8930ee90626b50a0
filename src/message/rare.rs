//! What most messages do not have: they are made, sent and dropped without a look at it.

use super::{item, own, rules};
use crate::delay::Delay;
use crate::error::Result;
use crate::properties::{Encoder, MS_DIGITS, TIME_TO_LIVE};
use std::borrow::Cow;
use std::time::Duration;

#[derive(Clone, Default)]
pub(super) struct Rare<'a> {
    pub(super) more_keys: Vec<Cow<'a, str>>,
    pub(super) properties: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    pub(super) delay: Delay,
    pub(super) time_to_live: Option<Duration>,
}

impl<'a> Rare<'a> {
    pub(super) fn validate(&self) -> Result<()> {
        self.more_keys.iter().try_for_each(|key| rules::check_key(key))?;
        self.time_to_live.map_or(Ok(()), rules::check_time_to_live)?;
        self.properties.iter().try_for_each(|(name, value)| rules::check_property(name, value))
    }

    pub(super) fn encode(&self, encoder: &mut Encoder<'_>) {
        if let Some(time) = self.time_to_live {
            encoder.put_ms(TIME_TO_LIVE, rules::in_ms(time));
        }
        self.properties.iter().for_each(|(name, value)| encoder.put(name, value));
    }

    /// Bytes that it adds to the encoded properties.
    pub(super) fn length(&self) -> usize {
        let keys = self.more_keys.iter().map(|key| 1 + key.len()).sum::<usize>();
        let life = if self.time_to_live.is_some() { item(TIME_TO_LIVE, MS_DIGITS) } else { 0 };
        keys + life + self.properties.iter().map(|(n, v)| item(n, v.len())).sum::<usize>()
    }

    pub(super) fn into_owned(self) -> Rare<'static> {
        let properties = self.properties.into_iter();
        Rare {
            more_keys: self.more_keys.into_iter().map(own).collect(),
            properties: properties.map(|(name, value)| (own(name), own(value))).collect(),
            delay: self.delay,
            time_to_live: self.time_to_live,
        }
    }
}
