//! The table of consumer groups: a number for every name, for the cells of committed offsets.

use super::files::corrupt;
use super::offsets::Offsets;
use super::table::Table;
use crate::error::{Error, Result};
use crate::storage::Storage;
use crate::sync::{Arc, Mutex, Rank};
use std::collections::HashMap;

const FILE: &str = "meta/groups";
const KIND: [u8; 4] = *b"grps";

/// All groups that ever committed an offset.
#[derive(Debug)]
pub(crate) struct Groups {
    state: Mutex<State>,
    /// How many there were when the directory was opened.
    found: u32,
}

#[derive(Debug)]
struct State {
    table: Table,
    numbers: HashMap<String, u32>,
    closed: bool,
}

impl Groups {
    pub(crate) fn open(storage: &Arc<dyn Storage>, store_id: u64) -> Result<Self> {
        let mut numbers = HashMap::new();
        let table = Table::open(storage, FILE, KIND, store_id, |entry| {
            let number = numbers.len() as u32;
            numbers.insert(String::from_utf8_lossy(entry).into_owned(), number);
        })?;
        let found = numbers.len() as u32;
        let state = State { table, numbers, closed: false };
        Ok(Self { state: Mutex::new(Rank::TopicTable, state), found })
    }

    /// How many groups the table has, read without changing anything.
    pub(crate) fn read(storage: &dyn Storage, store_id: u64) -> Result<u64> {
        let mut groups = 0;
        Table::read(storage, FILE, KIND, store_id, |_| groups += 1)?;
        Ok(groups)
    }

    /// The names of all groups, by their numbers.
    pub(crate) fn names(&self) -> Vec<String> {
        let state = self.state.lock();
        let mut names: Vec<_> = state.numbers.iter().collect();
        names.sort_unstable_by_key(|(_, number)| **number);
        names.into_iter().map(|(name, _)| name.clone()).collect()
    }

    /// Refuses a table that lacks groups of which offsets are stored: their numbers would be given
    /// again. Refuses offsets that are gone as a whole: there is room for some before a group is.
    pub(crate) fn check(&self, storage: &dyn Storage, offsets: &Offsets) -> Result<()> {
        let (known, end) = {
            let state = self.state.lock();
            (state.numbers.len(), state.table.end())
        };
        if (known as u64) < u64::from(offsets.groups()) {
            return Err(corrupt(storage, FILE, end, "the last groups are missing"));
        }
        offsets.prepare(known > 0)
    }

    /// Takes no further group: the table may belong to another broker from now on.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
    }

    /// Whether the group is older than this opening of the directory.
    pub(crate) fn is_old(&self, number: u32) -> bool {
        number < self.found
    }

    /// The number of a group that exists.
    pub(crate) fn find(&self, name: &str) -> Option<u32> {
        self.state.lock().numbers.get(name).copied()
    }

    /// The number of a group, which is made durable first if it is new.
    pub(crate) fn number(&self, name: &str) -> Result<u32> {
        let mut state = self.state.lock();
        if let Some(number) = state.numbers.get(name) {
            return Ok(*number);
        }
        if state.closed {
            return Err(Error::Closed);
        }
        // Groups are numbered by their order in the table.
        state.table.append_durably(name.as_bytes())?;
        let number = state.numbers.len() as u32;
        state.numbers.insert(name.to_owned(), number);
        Ok(number)
    }
}
