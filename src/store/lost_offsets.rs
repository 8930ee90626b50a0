//! A salvage of committed offsets: a file of them that is missing or cannot be read is kept aside,
//! and an empty one takes its place, which says so in its head for good.
//!
//! Which groups had offsets in it is not known. So none that is older may begin as a new one would:
//! see [`RecoveryReport::lost_offset_files`](super::RecoveryReport::lost_offset_files).

use super::files::io_error;
use super::offset_file::{check_file, file_name, make_file, number_of};
use crate::error::{Error, Result};
use crate::storage::Storage;
use std::io::ErrorKind;

/// Replaces the files that are unfit, among those that are there and the `expected` ones.
pub(super) fn replace(storage: &dyn Storage, store_id: u64, expected: u64) -> Result<()> {
    let names = storage.list("meta").map_err(|e| io_error(storage, "list", "meta", e))?;
    let numbers: Vec<usize> = names.iter().filter_map(|name| number_of(name)).collect();
    let highest = numbers.iter().max().map_or(0, |highest| highest + 1);
    // They are numbered without a gap: no more can be missing than were expected.
    let expected = usize::try_from(expected).unwrap_or(usize::MAX);
    let count = highest.min(numbers.len().saturating_add(expected)).max(expected);
    for number in 0..count {
        let name = file_name(number);
        match check_file(storage, store_id, &name) {
            Err(Error::Corrupt { .. }) => {
                let kept = name.replace("offsets", "lost-offsets");
                let moved = storage.rename(&name, &kept);
                moved.map_err(|e| io_error(storage, "rename", &name, e))?;
            }
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {}
            fit => {
                fit?;
                continue;
            }
        }
        make_file(storage, store_id, number, true)?;
    }
    Ok(())
}
