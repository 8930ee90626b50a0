//! A little space set aside for a full disk: what frees space needs some itself, for the
//! checkpoint that makes the new minimum durable.

use crate::storage::Storage;

const FILE: &str = "meta/reserve";
const STEP: u64 = 64 << 10;

/// Sets aside what writing `bytes` of metadata takes, if there is so much and it is not
/// `reserved` yet.
pub(super) fn refill(storage: &dyn Storage, reserved: &mut u64, bytes: u64) {
    // With some room for small files.
    let wanted = (bytes + STEP).next_multiple_of(STEP);
    if *reserved < wanted {
        *reserved = storage.create(FILE, wanted).map_or(0, |_| wanted);
    }
}

/// Gives the blocks back, to be used at once; false if there are none.
pub(super) fn spend(storage: &dyn Storage) -> bool {
    storage.unlink(FILE).is_ok()
}
