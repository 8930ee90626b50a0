//! What a topic offers: how many queues to write to and to read from, and whether at all.

use crate::error::{Error, Result};
use std::fmt;

/// How many queues a topic has, and what may be done with them (MODEL-1, MODEL-3, MODEL-4).
///
/// Producers see the queues below `write_queues`, consumers those below `read_queues`: usually the
/// same. To shrink a topic set both lower: writes to the surplus queues stop at once, and each
/// group goes on reading them until it has reached their ends. Messages in queues from
/// `read_queues` up to `write_queues` are stored, and consumed once `read_queues` is raised.
///
/// ```
/// use rocklet::{Permission, TopicConfig};
/// let config = TopicConfig::new(8).write_queues(4).permission(Permission::ReadOnly);
/// assert_eq!((config.read_queues, config.write_queues), (8, 4));
/// assert_eq!(config.to_string(), "8 to read, 4 to write, R--");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct TopicConfig {
    /// How many queues consumers see.
    pub read_queues: u16,
    /// How many queues producers see.
    pub write_queues: u16,
    /// What may be done.
    pub permission: Permission,
}

impl TopicConfig {
    /// A topic with `queues` queues to read from and to write to.
    #[must_use]
    pub fn new(queues: u16) -> Self {
        Self { read_queues: queues, write_queues: queues, permission: Permission::ReadWrite }
    }

    /// Sets how many queues consumers see: 1 to 65 535.
    #[must_use]
    pub fn read_queues(mut self, queues: u16) -> Self {
        self.read_queues = queues;
        self
    }

    /// Sets how many queues producers see: 1 to 65 535.
    #[must_use]
    pub fn write_queues(mut self, queues: u16) -> Self {
        self.write_queues = queues;
        self
    }

    /// Sets what may be done.
    #[must_use]
    pub fn permission(mut self, permission: Permission) -> Self {
        self.permission = permission;
        self
    }

    /// The queues that producers or consumers see.
    pub(crate) fn queues(&self) -> u16 {
        self.read_queues.max(self.write_queues)
    }

    pub(crate) fn validate(&self) -> Result<()> {
        if self.read_queues.min(self.write_queues) == 0 {
            let (name, rule) = ("queues", "a number");
            return Err(Error::Setting { name, value: 0, rule, min: 1, max: 65_535 });
        }
        Ok(())
    }
}

impl From<u16> for TopicConfig {
    fn from(queues: u16) -> Self {
        Self::new(queues)
    }
}

impl fmt::Display for TopicConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { read_queues, write_queues, permission } = self;
        write!(f, "{read_queues} to read, {write_queues} to write, {permission}")
    }
}

/// What may be done with a topic (MODEL-4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Permission {
    /// Sending and consuming.
    #[default]
    ReadWrite,
    /// Consuming alone: sends fail with `NotPermitted`.
    ReadOnly,
    /// Sending alone: consumers get no queue.
    WriteOnly,
    /// Nothing: the messages are kept.
    Neither,
}

const READ: u8 = 4;
const WRITE: u8 = 2;

impl Permission {
    /// Whether messages may be consumed.
    #[must_use]
    pub fn can_read(self) -> bool {
        self.bits() & READ != 0
    }

    /// Whether messages may be sent.
    #[must_use]
    pub fn can_write(self) -> bool {
        self.bits() & WRITE != 0
    }

    /// As RocketMQ numbers them.
    pub(crate) fn bits(self) -> u8 {
        match self {
            Self::ReadWrite => READ | WRITE,
            Self::ReadOnly => READ,
            Self::WriteOnly => WRITE,
            Self::Neither => 0,
        }
    }

    pub(crate) fn from_bits(bits: u8) -> Self {
        match (bits & READ != 0, bits & WRITE != 0) {
            (true, true) => Self::ReadWrite,
            (true, false) => Self::ReadOnly,
            (false, true) => Self::WriteOnly,
            (false, false) => Self::Neither,
        }
    }
}

impl fmt::Display for Permission {
    /// Three characters, of which the last is for inheriting, which rocklet has no use for.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = |granted, letter| if granted { letter } else { '-' };
        write!(f, "{}{}-", letter(self.can_read(), 'R'), letter(self.can_write(), 'W'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_4_permissions_have_the_bits_and_the_text_of_rocketmq() {
        use Permission::{Neither, ReadOnly, ReadWrite, WriteOnly};
        let all = [
            (ReadWrite, 6, "RW-"),
            (ReadOnly, 4, "R--"),
            (WriteOnly, 2, "-W-"),
            (Neither, 0, "---"),
        ];
        for (permission, bits, text) in all {
            assert_eq!((permission.bits(), permission.to_string().as_str()), (bits, text));
            assert_eq!(Permission::from_bits(bits), permission);
            assert_eq!(Permission::from_bits(bits | 8 | 1), permission, "priority and inherit");
        }
    }

    #[test]
    fn model_1_a_config_has_queues_to_read_and_to_write() {
        assert_eq!(TopicConfig::from(3), TopicConfig::new(3));
        assert_eq!(TopicConfig::new(3).write_queues(5).queues(), 5);
        for refused in [TopicConfig::new(0), TopicConfig::new(1).read_queues(0)] {
            assert!(matches!(refused.validate(), Err(Error::Setting { min: 1, .. })));
        }
        TopicConfig::new(1).validate().unwrap();
    }
}
