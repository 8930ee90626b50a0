use crate::error::{Error, Result};
use crate::queue_id::QueueId;
use crate::sync::Arc;
use std::borrow::Cow;
use std::fmt;

/// A user's choice among the queues of a topic.
pub(crate) type Selector<'a> = Arc<dyn Fn(&[QueueId]) -> Option<QueueId> + Send + Sync + 'a>;

/// Which queue of its topic a message goes to.
#[derive(Clone)]
pub(crate) enum Placement<'a> {
    RoundRobin,
    Queue(u16),
    /// The queue that [`queue_for`](crate::string_hash::queue_for) gives for this key.
    Key(Cow<'a, str>),
    Select(Selector<'a>),
    /// More than one was asked for.
    Conflict,
    /// A selector that did not survive [`Message::into_owned`](crate::Message::into_owned).
    Lost,
}

impl Placement<'_> {
    /// Adds a second wish.
    #[inline]
    pub(crate) fn or(self, wish: Self) -> Self {
        match self {
            Self::RoundRobin | Self::Lost => wish,
            _ => Self::Conflict,
        }
    }

    /// Refuses a placement that cannot name one queue.
    #[inline]
    pub(crate) fn validate(&self) -> Result<()> {
        let reason = match self {
            Self::Conflict => "give at most one of `queue`, `order_by` and `select`",
            Self::Lost => "the selector was left behind by `into_owned`; place the message anew",
            _ => return Ok(()),
        };
        Err(Error::NoQueueChosen { reason })
    }

    pub(crate) fn into_owned(self) -> Placement<'static> {
        match self {
            Self::RoundRobin => Placement::RoundRobin,
            Self::Queue(queue) => Placement::Queue(queue),
            Self::Key(key) => Placement::Key(Cow::Owned(key.into_owned())),
            Self::Conflict => Placement::Conflict,
            Self::Select(_) | Self::Lost => Placement::Lost,
        }
    }
}

impl fmt::Debug for Placement<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RoundRobin => f.write_str("RoundRobin"),
            Self::Queue(queue) => f.debug_tuple("Queue").field(queue).finish(),
            Self::Key(key) => f.debug_tuple("Key").field(key).finish(),
            Self::Select(_) => f.write_str("Select"),
            Self::Conflict => f.write_str("Conflict"),
            Self::Lost => f.write_str("Lost"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(placement: &Placement<'_>) -> bool {
        matches!(placement.validate(), Err(Error::NoQueueChosen { .. }))
    }

    #[test]
    fn prod_12_two_wishes_are_a_conflict() {
        let wishes = || {
            let last: Selector<'static> = Arc::new(|queues| queues.last().cloned());
            [Placement::Queue(1), Placement::Key("k".into()), Placement::Select(last)]
        };
        for first in wishes() {
            assert!(!refused(&Placement::RoundRobin.or(first.clone())));
            for second in wishes() {
                assert!(refused(&first.clone().or(second.clone())), "{first:?} {second:?}");
                assert!(refused(&first.clone().or(second).or(Placement::Queue(0))));
            }
        }
        assert!(!refused(&Placement::RoundRobin));
    }

    #[test]
    fn prod_12_a_lost_selector_is_refused_until_the_message_is_placed_anew() {
        let borrowed = String::from("x");
        let selector: Selector<'_> =
            Arc::new(|queues| queues.iter().find(|queue| queue.topic() == borrowed).cloned());
        let lost = Placement::Select(selector).into_owned();
        assert!(refused(&lost));
        assert!(matches!(lost.or(Placement::Queue(2)), Placement::Queue(2)));
    }
}
