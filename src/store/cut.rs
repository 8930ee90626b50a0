//! Copies of what a recovery cuts off, in the folder `cut`: by the position at which they stood, or by
//! the name of the file.

use super::files::io_error;
use crate::error::Result;
use crate::storage::{Storage, folder_of, read_all, replace};
use std::path::PathBuf;

const FOLDER: &str = "cut";

/// Keeps a copy of `bytes`, which stood at `position`, durably. Zeroes at their end are left out;
/// of zeroes alone nothing is kept.
///
/// A copy that is there already is whole, and older than what an earlier try may have left here.
pub(crate) fn keep(storage: &dyn Storage, position: u64, bytes: &[u8]) -> Result<Option<PathBuf>> {
    let Some(last) = bytes.iter().rposition(|byte| *byte != 0) else { return Ok(None) };
    save(storage, &format!("{position:020}"), &bytes[..=last]).map(Some)
}

/// Moves the small file `name` out of the way, durably, under the last part of its name.
pub(crate) fn set_aside(storage: &dyn Storage, name: &str) -> Result<PathBuf> {
    let bytes = read_all(storage, name).map_err(|e| io_error(storage, "read", name, e))?;
    let file = name.rsplit('/').next().unwrap_or(name);
    let kept = save(storage, file, &bytes.unwrap_or_default())?;
    let removed = storage.unlink(name).and_then(|()| storage.sync_folder(folder_of(name)));
    removed.map_err(|e| io_error(storage, "remove", name, e))?;
    Ok(kept)
}

fn save(storage: &dyn Storage, file: &str, bytes: &[u8]) -> Result<PathBuf> {
    let made = storage.make_folder(FOLDER);
    made.map_err(|e| io_error(storage, "create", FOLDER, e))?;
    let names = storage.list(FOLDER).map_err(|e| io_error(storage, "list", FOLDER, e))?;
    let name = format!("{FOLDER}/{file}");
    if names.iter().all(|name| name != file) {
        let copied = replace(storage, &name, bytes);
        copied.map_err(|e| io_error(storage, "copy to", &name, e))?;
    }
    Ok(storage.path(&name))
}
