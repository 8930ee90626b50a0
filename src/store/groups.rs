//! The table of consumer groups: for every name a number, for the cells of committed offsets, and
//! settings that mean nothing here. Numbers are given once.
//!
//! An entry says all of a group: a byte 1, its number, the length of its name, the name, its
//! settings. Or it says that it is gone: a byte 2 and the number.

use super::files::corrupt;
use super::offsets::Offsets;
use super::record::{u16_at, u32_at};
use super::table::Table;
use crate::error::{Error, Result};
use crate::storage::Storage;
use crate::sync::{Arc, Mutex, Rank};
use std::collections::BTreeMap;

const FILE: &str = "meta/groups";
const KIND: [u8; 4] = *b"grps";
const THERE: u8 = 1;
const GONE: u8 = 2;
const UNKNOWN: &str = "an entry is not understood";

/// All groups that were created, or ever committed an offset.
#[derive(Debug)]
pub(crate) struct Groups {
    state: Mutex<State>,
    /// How many there were when the directory was opened.
    found: u32,
}

#[derive(Debug)]
struct State {
    table: Table,
    groups: BTreeMap<String, Group>,
    next_number: u32,
    closed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    number: u32,
    settings: Vec<u8>,
}

impl Groups {
    pub(crate) fn open(storage: &Arc<dyn Storage>, store_id: u64) -> Result<Self> {
        let mut groups = BTreeMap::new();
        let (mut next_number, mut unknown) = (0, false);
        let table = Table::open(storage, FILE, KIND, store_id, |entry| match decode(entry) {
            Some((number, group)) => {
                next_number = next_number.max(number.saturating_add(1));
                match group {
                    Some((name, group)) => drop(groups.insert(name, group)),
                    None => groups.retain(|_, group: &mut Group| group.number != number),
                }
            }
            None => unknown = true,
        })?;
        if unknown {
            return Err(corrupt(&**storage, FILE, 0, UNKNOWN));
        }
        let state = State { table, groups, next_number, closed: false };
        Ok(Self { state: Mutex::new(Rank::TopicTable, state), found: next_number })
    }

    /// Reads the table without changing anything, to see whether it is sound.
    pub(crate) fn read(storage: &dyn Storage, store_id: u64) -> Result<()> {
        let mut unknown = false;
        Table::read(storage, FILE, KIND, store_id, |entry| unknown |= decode(entry).is_none())?;
        if unknown { Err(corrupt(storage, FILE, 0, UNKNOWN)) } else { Ok(()) }
    }

    /// All that the table has to say.
    pub(crate) fn entries(&self) -> Vec<Vec<u8>> {
        let state = self.state.lock();
        entries(&state.groups, state.next_number)
    }

    /// Stores the entries of another table in this one, which is empty.
    pub(crate) fn restore(&self, entries: &[Vec<u8>]) -> Result<()> {
        let mut state = self.state.lock();
        entries.iter().try_for_each(|entry| state.table.append_durably(entry))
    }

    /// Refuses a table that lacks groups of which offsets are stored: their numbers would be given
    /// again. Refuses offsets that are gone as a whole: there is room for some before a group is.
    pub(crate) fn check(&self, storage: &dyn Storage, offsets: &Offsets) -> Result<()> {
        let (next_number, end) = {
            let state = self.state.lock();
            (state.next_number, state.table.end())
        };
        if next_number < offsets.groups() {
            return Err(corrupt(storage, FILE, end, "the last groups are missing"));
        }
        offsets.prepare(next_number > 0)
    }

    /// See [`Table::write_again`].
    pub(crate) fn write_again(&self) -> Result<()> {
        self.state.lock().table.write_again()
    }

    /// Takes no further group: the table may belong to another broker from now on.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.table.release();
    }

    /// The number behind the last group.
    pub(crate) fn end(&self) -> u32 {
        self.state.lock().next_number
    }

    /// Whether the group is older than this opening of the directory.
    pub(crate) fn is_old(&self, number: u32) -> bool {
        number < self.found
    }

    /// The number of a group that exists.
    pub(crate) fn find(&self, name: &str) -> Option<u32> {
        self.state.lock().groups.get(name).map(|group| group.number)
    }

    /// The groups, by name.
    pub(crate) fn all(&self) -> Vec<(String, u32)> {
        let state = self.state.lock();
        state.groups.iter().map(|(name, group)| (name.clone(), group.number)).collect()
    }

    /// The number of a group, which is made durable first if it is new.
    pub(crate) fn number(&self, name: &str) -> Result<u32> {
        match self.find(name) {
            Some(number) => Ok(number),
            None => self.put(name, |settings| settings.to_vec()),
        }
    }

    /// The settings of a group; empty if it has none.
    pub(crate) fn settings(&self, name: &str) -> Vec<u8> {
        let state = self.state.lock();
        state.groups.get(name).map_or_else(Vec::new, |group| group.settings.clone())
    }

    /// Stores the settings of a group, made if it is new, durably.
    pub(crate) fn set_settings(&self, name: &str, settings: &[u8]) -> Result<u32> {
        self.put(name, |_| settings.to_vec())
    }

    /// Removes a group, durably; its number is not given again.
    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        let mut state = self.state.lock();
        let Some(Group { number, .. }) = state.groups.get(name).cloned() else { return Ok(()) };
        if state.closed {
            return Err(Error::Closed);
        }
        state.table.append_durably(&gone(number))?;
        state.groups.remove(name);
        state.compact()
    }

    fn put(&self, name: &str, settings: impl FnOnce(&[u8]) -> Vec<u8>) -> Result<u32> {
        let mut state = self.state.lock();
        let known = state.groups.get(name);
        let number = known.map_or(state.next_number, |group| group.number);
        let settings = settings(known.map_or(&[], |group| &group.settings));
        let group = Group { number, settings };
        if known == Some(&group) {
            return Ok(number);
        }
        if state.closed {
            return Err(Error::Closed);
        }
        state.table.append_durably(&there(name, &group))?;
        state.next_number = state.next_number.max(number.saturating_add(1));
        state.groups.insert(name.to_owned(), group);
        state.compact()?;
        Ok(number)
    }
}

impl State {
    fn compact(&mut self) -> Result<()> {
        let Self { table, groups, next_number, .. } = self;
        table.compact(|| entries(groups, *next_number))
    }
}

fn entries(groups: &BTreeMap<String, Group>, next_number: u32) -> Vec<Vec<u8>> {
    // The last number is not given again, even if its group is gone.
    let last = next_number.checked_sub(1).map(gone);
    let live = groups.iter().map(|(name, group)| there(name, group));
    last.into_iter().chain(live).collect()
}

fn there(name: &str, group: &Group) -> Vec<u8> {
    let mut bytes = vec![THERE];
    bytes.extend_from_slice(&group.number.to_le_bytes());
    // At most 376 bytes: a group, a separator, a member.
    bytes.extend_from_slice(&(name.len() as u16).to_le_bytes());
    bytes.extend_from_slice(name.as_bytes());
    bytes.extend_from_slice(&group.settings);
    bytes
}

fn gone(number: u32) -> Vec<u8> {
    [&[GONE][..], &number.to_le_bytes()].concat()
}

/// A number, and the group that it belongs to, if that is there.
fn decode(entry: &[u8]) -> Option<(u32, Option<(String, Group)>)> {
    let (kind, rest) = entry.split_first()?;
    let number = u32_at(rest.get(..4)?, 0);
    match *kind {
        THERE => {
            let length = usize::from(u16_at(rest.get(4..6)?, 0));
            let (name, settings) = rest[6..].split_at_checked(length)?;
            let name = std::str::from_utf8(name).ok()?.to_owned();
            Some((number, Some((name, Group { number, settings: settings.to_vec() }))))
        }
        GONE => Some((number, None)),
        _ => None,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::storage::Directory;

    fn storage(dir: &std::path::Path) -> Arc<dyn Storage> {
        let storage = Directory::new(dir).unwrap();
        storage.make_folder("meta").unwrap();
        Arc::new(storage)
    }

    #[test]
    fn sub_6_groups_keep_their_numbers_and_settings() {
        let dir = tempfile::tempdir().unwrap();
        let storage = storage(dir.path());
        let groups = Groups::open(&storage, 5).unwrap();
        assert_eq!([groups.number("a"), groups.number("b")].map(Result::unwrap), [0, 1]);
        assert_eq!(groups.set_settings("a", b"first").unwrap(), 0);
        assert_eq!(groups.set_settings("a", b"second").unwrap(), 0);
        assert_eq!(groups.set_settings("c", b"new").unwrap(), 2);
        groups.remove("c").unwrap();
        groups.remove("c").unwrap();
        let groups = Groups::open(&storage, 5).unwrap();
        assert_eq!(groups.all(), [("a".to_owned(), 0), ("b".to_owned(), 1)]);
        assert_eq!((groups.settings("a"), groups.settings("b")), (b"second".to_vec(), vec![]));
        assert_eq!(groups.number("c").unwrap(), 3, "a number is given once");
        groups.close();
        assert!(matches!(groups.number("d"), Err(Error::Closed)));
        assert!(matches!(groups.remove("a"), Err(Error::Closed)));
        assert_eq!(groups.number("a").unwrap(), 0);
    }

    #[test]
    fn a_table_that_grew_by_changes_is_compacted_and_forgets_no_number() {
        let dir = tempfile::tempdir().unwrap();
        let storage = storage(dir.path());
        let groups = Groups::open(&storage, 5).unwrap();
        groups.number("a").unwrap();
        groups.number("gone").unwrap();
        groups.remove("gone").unwrap();
        for round in 0..40_u8 {
            groups.set_settings("a", &[round; 4000]).unwrap();
        }
        assert!(std::fs::metadata(dir.path().join(FILE)).unwrap().len() < 80_000);
        let groups = Groups::open(&storage, 5).unwrap();
        assert_eq!(groups.settings("a"), [39; 4000]);
        assert_eq!(groups.number("b").unwrap(), 2);
    }
}
