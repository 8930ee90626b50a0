//! What one consumer did in all runs of the program, as the topic `flights_seen` tells it.

use crate::consumers::Consumer;
use crate::rows::Rows;
use crate::seen::Sighting;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The rows that a consumer consumed, and when.
#[derive(Debug)]
pub(crate) struct History {
    /// The runs in which each row was consumed, in rising order.
    runs: BTreeMap<u64, Vec<u64>>,
    /// Rows whose aircraft had a later row consumed before them.
    pub(crate) disorder: u64,
}

impl History {
    /// Gathers what `consumer` did.
    pub(crate) fn of(consumer: Consumer, sightings: &[Sighting], rows: &Rows) -> Self {
        let mut history = Self { runs: BTreeMap::new(), disorder: 0 };
        let mut fleet: HashMap<&str, Latest> = HashMap::new();
        for sighting in sightings.iter().filter(|sighting| sighting.consumer == consumer) {
            let runs = history.runs.entry(sighting.row).or_default();
            if let Some(aircraft) = rows.get(sighting.row).and_then(|row| row.aircraft()) {
                let latest = fleet.entry(aircraft).or_default();
                history.disorder += u64::from(!latest.admits(sighting, runs.is_empty()));
                latest.note(sighting);
            }
            runs.push(sighting.run);
        }
        // Without a tail number a row's sightings may stand in several queues.
        history.runs.values_mut().for_each(|runs| runs.sort_unstable());
        history
    }

    /// Returns the rows consumed in any run.
    pub(crate) fn rows(&self) -> BTreeSet<u64> {
        self.runs.keys().copied().collect()
    }

    /// Returns the rows consumed in a run before `run`.
    pub(crate) fn rows_before(&self, run: u64) -> BTreeSet<u64> {
        self.select(|runs| runs.iter().any(|earlier| *earlier < run))
    }

    /// Returns the rows consumed in `run` although an earlier run had consumed them.
    pub(crate) fn repeated_in(&self, run: u64) -> BTreeSet<u64> {
        self.select(|runs| runs.contains(&run) && runs.iter().any(|earlier| *earlier < run))
    }

    /// Returns how often a row was consumed twice in one run.
    pub(crate) fn doubles(&self) -> u64 {
        self.successions().filter(|(earlier, later)| earlier == later).count() as u64
    }

    /// Returns how often a row was consumed again in a later run.
    pub(crate) fn repeats(&self) -> u64 {
        self.successions().filter(|(earlier, later)| earlier < later).count() as u64
    }

    /// Returns, for the run whose death caused most repeats, how many these were.
    ///
    /// A row that is consumed again was in flight when the last run that had consumed it died.
    pub(crate) fn most_repeats_of_one_death(&self) -> u64 {
        let mut deaths: HashMap<u64, u64> = HashMap::new();
        for (earlier, later) in self.successions() {
            if earlier < later {
                *deaths.entry(earlier).or_default() += 1;
            }
        }
        deaths.into_values().max().unwrap_or(0)
    }

    fn select(&self, wanted: impl Fn(&[u64]) -> bool) -> BTreeSet<u64> {
        self.runs.iter().filter(|(_, runs)| wanted(runs)).map(|(row, _)| *row).collect()
    }

    fn successions(&self) -> impl Iterator<Item = (u64, u64)> {
        self.runs.values().flat_map(|runs| runs.windows(2).map(|pair| (pair[0], pair[1])))
    }
}

/// What was last consumed of an aircraft.
#[derive(Debug, Default)]
struct Latest {
    run: u64,
    row: u64,
    highest: u64,
}

impl Latest {
    /// Whether the sighting may come next: rows rise within a run; only a new run may step back,
    /// and then only to rows that were consumed before.
    fn admits(&self, next: &Sighting, first_time: bool) -> bool {
        (next.run > self.run || (next.run == self.run && next.row > self.row))
            && (!first_time || next.row > self.highest)
    }

    fn note(&mut self, sighting: &Sighting) {
        self.run = sighting.run;
        self.row = sighting.row;
        self.highest = self.highest.max(sighting.row);
    }
}
