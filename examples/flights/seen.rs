//! What each consumer consumed, recorded in a topic of its own.

use crate::Result;
use crate::consumers::Consumer;
use crate::log::{Log, number};
use crate::rows::ROW;
use rocklet::{Broker, Delivery, Message, Producer};

/// The topic of the records.
pub(crate) const SEEN: &str = "flights_seen";

const RUN: &str = "run";

/// One row consumed by one consumer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sighting {
    /// Who consumed it.
    pub(crate) consumer: Consumer,
    /// In which run of the program; the first is 1.
    pub(crate) run: u64,
    /// Which row.
    pub(crate) row: u64,
}

impl Sighting {
    /// Reads all of them; those of one aircraft come in the order in which they were recorded.
    pub(crate) fn read_all(log: &mut Log) -> Result<Vec<Self>> {
        let mut sightings = Vec::new();
        log.walk(SEEN, |record| {
            let consumer = record.tag().and_then(Consumer::from_group);
            sightings.push(Self {
                consumer: consumer.ok_or("a sighting by an unknown consumer")?,
                run: number(record, RUN)?,
                row: number(record, ROW)?,
            });
            Ok(())
        })?;
        Ok(sightings)
    }
}

/// Records what one consumer consumes in this run.
#[derive(Clone, Debug)]
pub(crate) struct Recorder {
    producer: Producer,
    consumer: Consumer,
    run: String,
}

impl Recorder {
    /// Makes the recorder of `consumer`.
    pub(crate) fn new(broker: &Broker, consumer: Consumer, run: u64) -> Self {
        Self { producer: broker.producer(), consumer, run: run.to_string() }
    }

    /// Records a flight; what it returns decides whether the flight counts as consumed.
    pub(crate) fn record(&self, flight: &Delivery<'_>) -> Result<()> {
        let row = flight.property(ROW).ok_or("a flight without its row number")?;
        let mut sighting = Message::new(SEEN, row.as_bytes())
            .tag(self.consumer.group())
            .property(ROW, row)
            .property(RUN, self.run.as_str());
        if let Some(aircraft) = flight.property("tailnum") {
            sighting = sighting.order_by(aircraft);
        }
        self.producer.send(&sighting)?;
        Ok(())
    }
}
