//! The two topics, read back from their queues.

use crate::Result;
use crate::rows::ROW;
use crate::seen::SEEN;
use rocklet::{Broker, Delivery, Error, Filter, PullConsumer, PullStatus, QueueId};
use std::collections::BTreeSet;

/// The topic that the rows are sent to.
pub(crate) const FLIGHTS: &str = "flights";
/// How many queues each topic has: two for each member of the group of 3.
pub(crate) const QUEUES: u16 = 6;

const READ_AT_ONCE: usize = 512;

/// Reads queues from end to end, on no group's account.
#[derive(Debug)]
pub(crate) struct Log {
    broker: Broker,
    reader: PullConsumer,
}

impl Log {
    /// Makes the topics if they are missing.
    pub(crate) fn open(broker: &Broker) -> Result<Self> {
        for topic in [FLIGHTS, SEEN] {
            match broker.create_topic(topic, QUEUES) {
                Ok(()) | Err(Error::TopicExists { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let reader = broker
            .pull_consumer("reader")
            .subscribe(FLIGHTS, Filter::ALL)?
            .subscribe(SEEN, Filter::ALL)?
            .start()?;
        Ok(Self { broker: broker.clone(), reader })
    }

    /// Returns the queues of the topic `flights`.
    pub(crate) fn queues(&self) -> Result<Vec<QueueId>> {
        Ok(self.broker.queues(FLIGHTS)?)
    }

    /// Returns what the group has committed for a queue, 0 if nothing.
    pub(crate) fn committed(&self, group: &str, queue: &QueueId) -> Result<u64> {
        Ok(self.broker.committed(group, queue)?.unwrap_or(0))
    }

    /// Returns the highest row that was sent, 0 if none.
    ///
    /// Rows are sent in file order, so it is the last record of one of the queues.
    pub(crate) fn highest_row(&mut self) -> Result<u64> {
        let mut highest = 0;
        for queue in self.queues()? {
            if let Some(last) = self.broker.max_offset(&queue)?.checked_sub(1) {
                let pull = self.reader.pull(&queue, last, 1)?;
                let record = pull.messages.iter().next().ok_or("a queue has lost its end")?;
                highest = highest.max(number(&record, ROW)?);
            }
        }
        Ok(highest)
    }

    /// Returns the rows of the flights for which an SQL92 expression is true.
    pub(crate) fn browse(&self, expression: &str) -> Result<BTreeSet<u64>> {
        let mut rows = BTreeSet::new();
        for flight in self.broker.browse(FLIGHTS)?.filter(Filter::sql(expression)?)? {
            rows.insert(number(&flight?.delivery(), ROW)?);
        }
        Ok(rows)
    }

    /// Calls `each` for every record of the topic, queue by queue, in the order of the offsets.
    pub(crate) fn walk(
        &mut self,
        topic: &str,
        mut each: impl FnMut(&Delivery<'_>) -> Result<()>,
    ) -> Result<()> {
        for queue in self.broker.queues(topic)? {
            let mut next = self.broker.min_offset(&queue)?;
            let max = self.broker.max_offset(&queue)?;
            while next < max {
                let pull = self.reader.pull(&queue, next, READ_AT_ONCE)?;
                if pull.status != PullStatus::Found || pull.next <= next {
                    return Err(format!("{queue} at {next} of {max}: {:?}", pull.status).into());
                }
                for record in &pull.messages {
                    each(&record)?;
                }
                next = pull.next;
            }
        }
        Ok(())
    }
}

/// Returns the property as a number.
pub(crate) fn number(record: &Delivery<'_>, property: &str) -> Result<u64> {
    let place = || format!("{} at {}", record.queue_id(), record.offset());
    let text = record
        .property(property)
        .ok_or_else(|| format!("{}: no property `{property}`", place()))?;
    text.parse().map_err(|error| format!("{}: {property} `{text}`: {error}", place()).into())
}
