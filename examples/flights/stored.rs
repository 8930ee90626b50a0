//! How the rows stand in the queues.

use crate::Result;
use crate::log::{FLIGHTS, Log, number};
use crate::rows::{ROW, Row, Rows};
use rocklet::{Delivery, QueueId};
use std::collections::{BTreeMap, HashMap};

/// What the topic `flights` holds, compared with the file.
#[derive(Debug, Default)]
pub(crate) struct Stored {
    /// Where each row stands: its queue and offset.
    pub(crate) places: BTreeMap<u64, (QueueId, u64)>,
    /// Rows that stand there again.
    pub(crate) again: u64,
    /// Records that differ from their row of the file in any part.
    pub(crate) unlike: u64,
    /// Offsets between the first and the last of a queue that do not follow their predecessor.
    pub(crate) gaps: u64,
    /// How many aircraft there are.
    pub(crate) aircraft: u64,
    /// Records that are not in the queue of their aircraft's first record.
    pub(crate) astray: u64,
    /// Records whose row number does not rise along their aircraft.
    pub(crate) disorder: u64,
}

impl Stored {
    /// Reads the queues.
    pub(crate) fn read(log: &mut Log, rows: &Rows) -> Result<Self> {
        let mut stored = Self::default();
        let mut previous: Option<(QueueId, u64)> = None;
        let mut fleet: HashMap<String, (QueueId, u64)> = HashMap::new();
        log.walk(FLIGHTS, |record| {
            let (queue, offset, row) = (record.queue_id(), record.offset(), number(record, ROW)?);
            let expected = match &previous {
                Some((same, offset)) if *same == queue => offset + 1,
                _ => 0,
            };
            stored.gaps += u64::from(offset != expected);
            previous = Some((queue.clone(), offset));

            stored.unlike += u64::from(!rows.get(row).is_some_and(|row| equal(record, &row)));
            if let Some(aircraft) = record.property("tailnum") {
                match fleet.get_mut(aircraft) {
                    None => drop(fleet.insert(aircraft.to_owned(), (queue.clone(), row))),
                    Some((home, last)) => {
                        stored.astray += u64::from(*home != queue);
                        stored.disorder += u64::from(row <= *last);
                        *last = row;
                    }
                }
            }
            stored.again += u64::from(stored.places.insert(row, (queue, offset)).is_some());
            Ok(())
        })?;
        stored.aircraft = fleet.len() as u64;
        Ok(stored)
    }
}

/// Whether every part of the record is that of the row.
fn equal(record: &Delivery<'_>, row: &Row<'_>) -> bool {
    let number = row.number.to_string();
    let mut properties: BTreeMap<_, _> = row.properties().collect();
    properties.insert(ROW, &number);
    record.body() == row.line.as_bytes()
        && record.tag() == row.origin()
        && record.keys().eq(row.flight().as_deref())
        && record.properties().collect::<BTreeMap<_, _>>() == properties
}
