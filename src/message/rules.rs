//! What a tag, a key and a property must not be.

use crate::error::{Error, Result};
use crate::names::{is_blank, trim};
use crate::properties::{KEYS, TAGS, has_separator, is_reserved};
use crate::string_hash::string_hash;
use std::time::Duration;

/// Refuses a tag that no tag expression can name (SUB-2); returns its hash (STORE-22).
#[inline]
pub(super) fn check_tag(tag: &str) -> Result<i32> {
    // Plain and ASCII, as nearly all are: looked at and hashed in one pass.
    let (mut plain, mut hash) = (!tag.is_empty(), 0_u32);
    for unit in tag.bytes() {
        plain &= (unit > b' ') & (unit != b'|') & unit.is_ascii();
        hash = hash.wrapping_mul(31).wrapping_add(unit.into());
    }
    if plain { Ok(hash.cast_signed()) } else { check_odd_tag(tag) }
}

/// Refuses a key that would be read back as none or as several (MODEL-10).
#[inline]
pub(super) fn check_key(key: &str) -> Result<()> {
    if is_plain(key) { Ok(()) } else { check_odd_key(key) }
}

/// Refuses a property that would be lost, or that would change another one (MODEL-9, MODEL-12).
#[inline]
pub(super) fn check_property(name: &str, value: &str) -> Result<()> {
    let reason = if is_blank(name) {
        "has a blank name"
    } else if is_blank(value) {
        "has a blank value; leave the property away instead"
    } else if has_separator(name) || has_separator(value) {
        SEPARATOR
    } else if is_reserved(name) {
        "is reserved for the system; choose another name"
    } else {
        return Ok(());
    };
    Err(refuse(name, reason))
}

/// Refuses a time to live that cannot be meant.
pub(super) fn check_time_to_live(time: Duration) -> Result<()> {
    let (value, min, max) = (in_ms(time), 1, 3660 * 86_400_000);
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(Error::Setting { name: "time_to_live in ms", value, rule: "a number", min, max })
}

pub(super) fn in_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Whether `text` holds nothing that any rule for tags and keys looks at.
#[inline]
fn is_plain(text: &str) -> bool {
    text.bytes().fold(!text.is_empty(), |plain, b| plain & (b > b' ') & (b != b'|'))
}

#[cold]
fn check_odd_tag(tag: &str) -> Result<i32> {
    let reason = if is_blank(tag) {
        "is blank; leave the tag away instead"
    } else if trim(tag).len() < tag.len() {
        "has blanks around it, so no subscription could name it; trim it"
    } else if tag.contains("||") {
        "holds `||`, which separates the tags of a subscription"
    } else if has_separator(tag) {
        SEPARATOR
    } else {
        return Ok(string_hash(tag));
    };
    Err(refuse(TAGS, reason))
}

fn check_odd_key(key: &str) -> Result<()> {
    let reason = if is_blank(key) {
        "has a blank key; leave it away instead"
    } else if key.contains(' ') {
        "has a key with a space, which separates keys; add each by a call of its own"
    } else if has_separator(key) {
        SEPARATOR
    } else {
        return Ok(());
    };
    Err(refuse(KEYS, reason))
}

#[cold]
fn refuse(name: &str, reason: &'static str) -> Error {
    Error::Property { name: name.chars().take(256).collect(), reason }
}

const SEPARATOR: &str = "holds U+0001 or U+0002, which separate properties";
