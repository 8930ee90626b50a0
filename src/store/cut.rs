//! Copies of what a recovery cuts off, in the folder `cut`: by the position at which they stood.

use super::files::io_error;
use crate::error::Result;
use crate::storage::{Storage, replace};
use std::path::PathBuf;

const FOLDER: &str = "cut";

/// Keeps a copy of `bytes`, which stood at `position`, durably. Zeroes at their end are left out;
/// of zeroes alone nothing is kept.
///
/// A copy that is there already is whole, and older than what an earlier try may have left here.
pub(crate) fn keep(storage: &dyn Storage, position: u64, bytes: &[u8]) -> Result<Option<PathBuf>> {
    let Some(last) = bytes.iter().rposition(|byte| *byte != 0) else { return Ok(None) };
    let made = storage.make_folder(FOLDER);
    made.map_err(|e| io_error(storage, "create", FOLDER, e))?;
    let names = storage.list(FOLDER).map_err(|e| io_error(storage, "list", FOLDER, e))?;
    let file = format!("{position:020}");
    let name = format!("{FOLDER}/{file}");
    if !names.contains(&file) {
        let copied = replace(storage, &name, &bytes[..=last]);
        copied.map_err(|e| io_error(storage, "copy to", &name, e))?;
    }
    Ok(Some(storage.path(&name)))
}
