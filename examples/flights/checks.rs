//! What must hold at the end.

use crate::Result;
use crate::acks::Acks;
use crate::consumers::{Consumer, LATE, MEMBERS};
use crate::history::History;
use crate::log::{Log, QUEUES};
use crate::rows::Rows;
use crate::seen::Sighting;
use crate::stored::Stored;
use crate::table::Table;
use rocklet::QueueId;
use std::collections::{BTreeMap, BTreeSet};

/// What earlier runs left in the directory.
#[derive(Debug)]
pub(crate) struct Before {
    /// The number of this run.
    pub(crate) run: u64,
    /// The highest row in the log.
    pub(crate) highest_row: u64,
    /// The highest row that was acknowledged.
    acknowledged: u64,
    /// The highest row that a consumer recorded.
    highest_seen: u64,
    /// What each consumer had committed for each queue.
    committed: Vec<(Consumer, BTreeMap<QueueId, u64>)>,
}

impl Before {
    /// Reads it, before anything is sent or consumed.
    pub(crate) fn read(log: &mut Log, acks: &Acks) -> Result<Self> {
        let sightings = Sighting::read_all(log)?;
        let mut committed = Vec::new();
        for consumer in Consumer::ALL {
            let mut offsets = BTreeMap::new();
            for queue in log.queues()? {
                offsets.insert(queue.clone(), log.committed(consumer.group(), &queue)?);
            }
            committed.push((consumer, offsets));
        }
        Ok(Self {
            run: sightings.iter().map(|sighting| sighting.run).max().unwrap_or(0) + 1,
            highest_row: log.highest_row()?,
            acknowledged: acks.highest()?,
            highest_seen: sightings.iter().map(|sighting| sighting.row).max().unwrap_or(0),
            committed,
        })
    }
}

/// Compares the log, the consumers' records and the file.
pub(crate) fn check(
    rows: &Rows,
    log: &mut Log,
    before: &Before,
    shares: &[Vec<QueueId>],
) -> Result<Table> {
    let mut table = Table::default();
    let stored = Stored::read(log, rows)?;
    let sightings = Sighting::read_all(log)?;
    let known = before.acknowledged.max(before.highest_seen);

    let all = rows.iter().map(|row| row.number).collect();
    table.rows("rows sent", &stored.places.keys().copied().collect(), &all);
    table.exactly("  sent again", stored.again, 0);
    table.exactly("  unlike the file in body, tag, key or a property", stored.unlike, 0);
    table.exactly("  gaps in the offsets", stored.gaps, 0);
    table.exactly(
        "  lost although acknowledged or consumed earlier",
        known.saturating_sub(before.highest_row),
        0,
    );
    table.exactly("aircraft's rows outside the aircraft's queue", stored.astray, 0);
    table.exactly("  out of order in the queues", stored.disorder, 0);

    let held: BTreeSet<_> = shares.iter().flatten().collect();
    table.exactly("queues held in the group of 3", held.len() as u64, u64::from(QUEUES));
    let share = usize::from(QUEUES) / MEMBERS;
    let uneven = shares.iter().filter(|queues| queues.len() != share).count();
    table.exactly("  members with more or fewer than their share", uneven as u64, 0);

    let mut consumed = Vec::new();
    let mut repeats = Vec::new();
    for (consumer, committed) in &before.committed {
        let history = History::of(*consumer, &sightings, rows);
        let wanted = rows.iter().filter(|row| consumer.wants(row)).map(|row| row.number).collect();
        table.rows(format!("rows consumed by {}", consumer.title()), &history.rows(), &wanted);
        table.exactly("  twice in one run", history.doubles(), 0);
        if matches!(consumer, Consumer::Pull | Consumer::InOrder) {
            table.exactly("  out of order along an aircraft", history.disorder, 0);
        }
        // Exactly what had been recorded and not committed comes again, nothing else.
        let uncommitted = |row: &u64| {
            stored.places.get(row).is_some_and(|(queue, offset)| *offset >= committed[queue])
        };
        let left = history.rows_before(before.run);
        let left = left.into_iter().filter(uncommitted).collect();
        table.rows("  again in this run", &history.repeated_in(before.run), &left);
        table.at_most(
            "  again after any one kill",
            history.most_repeats_of_one_death(),
            consumer.in_flight(),
        );
        consumed.push(history.rows().len());
        repeats.push(history.repeats());
    }

    let late = log.browse(LATE)?;
    let wanted =
        rows.iter().filter(|row| Consumer::Late.wants(row)).map(|row| row.number).collect();
    table.rows("rows found by browsing for late UA and AA", &late, &wanted);

    table.summary = format!(
        "{} sent, {} consumed by the group of 3, {} by JFK || LGA, {} pulled, {} by 3 that come and \
         go, order held for {} aircraft, {LATE}: {} sent, {} pushed, {} pulled, {} browsed\nrepeats after {} earlier runs: \
         {} by the group of 3, {} by JFK || LGA, {} pulled",
        stored.places.len(),
        consumed[0],
        consumed[1],
        consumed[2],
        consumed[5],
        stored.aircraft,
        wanted.len(),
        consumed[3],
        consumed[4],
        late.len(),
        before.run - 1,
        repeats[0],
        repeats[1],
        repeats[2],
    );
    Ok(table)
}
