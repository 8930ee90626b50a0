//! What happens to a topic, as a record of the log and as an entry of the table say it.

use super::record::{put, u16_at, u32_at};
use crate::topic_config::{Permission, TopicConfig};

const HEAD: usize = 16;

/// One change of one topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TopicEvent {
    pub(crate) name: String,
    pub(crate) incarnation: u32,
    pub(crate) change: Change,
}

/// What has become of the topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// It is there, and looks like this.
    Shape(Shape),
    /// It is gone, with everything that was in it.
    Deleted,
    /// All messages before this record are gone.
    Purged,
}

/// How a topic looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) config: TopicConfig,
    /// All queues that it ever had: one that is not used any more keeps its messages and its
    /// numbering.
    pub(crate) queues: u16,
}

impl Shape {
    /// The shape of a new topic.
    pub(crate) fn new(config: TopicConfig) -> Self {
        Self { config, queues: config.queues() }
    }

    /// Makes sure that there is a queue of this `number`, in use as far as anybody knows.
    pub(crate) fn reach(&mut self, number: u16) {
        if number >= self.queues {
            *self = Self::new(TopicConfig::new(number.saturating_add(1)));
        }
    }
}

impl TopicEvent {
    /// The body of the record, and a part of a table entry.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; HEAD];
        put(&mut bytes, 0, &self.incarnation.to_le_bytes());
        // At most 127 bytes.
        put(&mut bytes, 4, &(self.name.len() as u16).to_le_bytes());
        match self.change {
            Change::Shape(Shape { config, queues }) => {
                put(&mut bytes, 6, &[1, config.permission.bits()]);
                put(&mut bytes, 8, &config.read_queues.to_le_bytes());
                put(&mut bytes, 10, &config.write_queues.to_le_bytes());
                put(&mut bytes, 12, &queues.to_le_bytes());
            }
            Change::Deleted => put(&mut bytes, 6, &[2]),
            Change::Purged => put(&mut bytes, 6, &[3]),
        }
        bytes.extend_from_slice(self.name.as_bytes());
        bytes
    }

    /// What a record says; `None` if it cannot be understood.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        Self::decode_first(bytes).map(|(event, _)| event)
    }

    /// All events of a table entry.
    pub(super) fn decode_all(mut bytes: &[u8]) -> impl Iterator<Item = Self> {
        std::iter::from_fn(move || {
            let (event, rest) = Self::decode_first(bytes)?;
            bytes = rest;
            Some(event)
        })
    }

    fn decode_first(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (head, rest) = bytes.split_at_checked(HEAD)?;
        let (name, rest) = rest.split_at_checked(usize::from(u16_at(head, 4)))?;
        let name = std::str::from_utf8(name).ok()?.to_owned();
        let change = match head[6] {
            1 => {
                let config = TopicConfig {
                    read_queues: u16_at(head, 8),
                    write_queues: u16_at(head, 10),
                    permission: Permission::from_bits(head[7]),
                };
                let queues = u16_at(head, 12).max(config.queues());
                Change::Shape(Shape { config, queues })
            }
            2 => Change::Deleted,
            3 => Change::Purged,
            _ => return None,
        };
        let event = Self { name, incarnation: u32_at(head, 0), change };
        (event.incarnation < u32::MAX).then_some((event, rest))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_change_is_read_back_and_nothing_else_is() {
        let config = TopicConfig::new(3).write_queues(9).permission(Permission::WriteOnly);
        let changes =
            [Change::Shape(Shape { config, queues: 11 }), Change::Deleted, Change::Purged];
        let event = |change| TopicEvent { name: "orders".to_owned(), incarnation: 7, change };
        let all: Vec<TopicEvent> = changes.into_iter().map(event).collect();
        let entry: Vec<u8> = all.iter().flat_map(TopicEvent::encode).collect();
        assert_eq!(TopicEvent::decode_all(&entry).collect::<Vec<_>>(), all);
        for event in all {
            let bytes = event.encode();
            assert_eq!(TopicEvent::decode(&bytes), Some(event));
            assert!((0..bytes.len()).all(|cut| TopicEvent::decode(&bytes[..cut]).is_none()));
            let unknown = [&bytes[..6], &[9], &bytes[7..]].concat();
            assert_eq!(TopicEvent::decode(&unknown), None);
        }
    }
}
