//! The table of consumer groups: a number for every name, for the cells of committed offsets.

use super::table::Table;
use crate::error::Result;
use crate::storage::Storage;
use crate::sync::{Arc, Mutex, Rank};
use std::collections::HashMap;

const FILE: &str = "meta/groups";
const KIND: [u8; 4] = *b"grps";

/// All groups that ever committed an offset.
#[derive(Debug)]
pub(crate) struct Groups {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    table: Table,
    numbers: HashMap<String, u32>,
}

impl Groups {
    pub(crate) fn open(storage: &Arc<dyn Storage>, store_id: u64) -> Result<Self> {
        let mut numbers = HashMap::new();
        let table = Table::open(storage, FILE, KIND, store_id, |entry| {
            if let Ok(name) = std::str::from_utf8(entry) {
                let number = numbers.len() as u32;
                numbers.insert(name.to_owned(), number);
            }
        })?;
        Ok(Self { state: Mutex::new(Rank::TopicTable, State { table, numbers }) })
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
        // Groups are numbered by their order in the table.
        state.table.append(name.as_bytes())?;
        state.table.sync()?;
        let number = state.numbers.len() as u32;
        state.numbers.insert(name.to_owned(), number);
        Ok(number)
    }
}
