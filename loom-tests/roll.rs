//! Rolling over: the tail fills the rest of its segment, goes on in the next, and readers follow.
//!
//! A new file is in the list of files before the tail gets it, and the tail reaches it before any
//! maximum tells of a record in it. So a reader that looks at the maximum *first* and at the list
//! *afterwards* finds the file of every record below that maximum. The filler is published before
//! the tail moves on, so that whoever walks the log comes to the next file. An allocator makes the
//! file while a producer may be making it as well.
//!
//! Planted bugs: broken_files_first, broken_list_last, broken_filler_hidden
//! Fails with: a fetch took a message for damage
//! Fails with: the log ends before its last record

use super::fixture::{Log, RECORD, letter_of};
use super::{ORDERS, explore, race};
use crate::store::model::{HEAD, HEADER, Limits, file_of};
use crate::sync::Arc;
use std::collections::BTreeSet;

// One record a file, and room for the header of a filler.
const FILE: usize = HEAD + RECORD + HEADER;

fn two(log: &Log) -> String {
    log.append(b'a');
    log.append(b'b');
    String::new()
}

fn grow(log: &Log) -> String {
    log.log.grow(0, Limits::default()).unwrap();
    String::new()
}

fn fetch(log: &Log) -> String {
    loom::thread::yield_now();
    log.fetch()
}

/// Walks the log record by record, fillers too.
fn walk(log: &Log) -> String {
    let mut letters = String::new();
    let mut position = HEAD as u64;
    loop {
        loom::thread::yield_now();
        let files = log.log.files();
        let Some(file) = file_of(&files, position) else { return letters };
        let Ok(record) = file.record(position) else { return letters };
        letters.push(letter_of(&record));
        position += record.length() as u64;
        if position == file.end() {
            position += HEAD as u64;
        }
    }
}

#[test]
fn roll() {
    for mirrored in ORDERS {
        let seen = explore(2, move || {
            let log = Arc::new(Log::new(FILE));
            let [_, _, fetched] = race(mirrored, &log, [two, grow, fetch]);
            assert_eq!(log.fetch(), "ab");
            assert_eq!(walk(&log), "a|b", "the log ends before its last record");
            fetched
        });
        assert_eq!(seen, BTreeSet::from(["", "a", "ab"].map(str::to_owned)));
    }
}

#[test]
fn roll_along_the_log() {
    for mirrored in ORDERS {
        let seen = explore(2, move || {
            let log = Arc::new(Log::new(FILE));
            let [_, walked] = race(mirrored, &log, [two, walk]);
            walked
        });
        assert_eq!(seen, BTreeSet::from(["", "a", "a|", "a|b"].map(str::to_owned)));
    }
}
