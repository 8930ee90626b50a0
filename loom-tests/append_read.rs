//! Append against lock-free readers: bytes below what is published are complete and never change.
//!
//! Writers append under the append lock; the tail copies a record and then publishes the length of
//! the segment (Release). One reader goes by the queue's maximum, its entry, then the record; a
//! second walks the log itself by the published length (Acquire), which may well be ahead of the
//! maximum. Every byte is a cell of loom, so that looking at one that is still being written is a
//! reported race.
//!
//! Planted bugs: broken_read_relaxed, broken_publish_relaxed
//! Fails with: Causality violation
//! Fails with: a reader saw an incomplete record

use super::fixture::{RECORD, TARGET, add_queue, draft, letter_of, outline, segment};
use super::{ORDERS, explore, race};
use crate::store::model::{ConsumeQueue, LogFile, Tail};
use crate::sync::{Arc, Mutex, Rank};
use std::collections::BTreeSet;

struct Log {
    tail: Mutex<Tail>,
    queue: Arc<ConsumeQueue>,
    file: LogFile,
}

impl Log {
    fn new() -> Arc<Self> {
        let writer = segment(2 * RECORD, 0);
        let file = LogFile::made(0, 0, &writer);
        let mut tail = Tail::new(7, 0, writer, 0);
        let queue = add_queue(&mut tail, &[2]);
        Arc::new(Self { tail: Mutex::new(Rank::Append, tail), queue, file })
    }

    fn append(&self, letter: u8) {
        let letters = [letter; 7];
        let outline = outline();
        let mut drafts = [draft(&outline, &letters)];
        self.tail.lock().append(Some(TARGET), &mut drafts, 0).unwrap();
    }

    /// What a consumer reads.
    fn read(&self) -> String {
        loom::thread::yield_now();
        let max = self.queue.max();
        let letter = |offset| {
            let entry = self.queue.entry(offset).expect("an offset below the maximum has an entry");
            let record = self.file.record(entry.position).expect("an entry has a record");
            assert_eq!(record.offset(), offset);
            letter_of(&record)
        };
        (0..max).map(letter).collect()
    }

    /// What somebody sees who walks the log record by record.
    fn walk(&self) -> String {
        let mut letters = String::new();
        let mut position = 0;
        loom::thread::yield_now();
        while let Ok(record) = self.file.record(position) {
            letters.push(letter_of(&record));
            position += record.length() as u64;
        }
        letters
    }

    fn two(&self) -> String {
        self.append(b'a');
        self.append(b'b');
        String::new()
    }
}

#[test]
fn append_read() {
    for mirrored in ORDERS {
        let seen = explore(3, move || {
            let log = Log::new();
            let [_, read] = race(mirrored, &log, [Log::two, Log::read]);
            assert_eq!((log.read(), log.walk()), ("ab".to_owned(), "ab".to_owned()));
            read
        });
        assert_eq!(seen, BTreeSet::from(["", "a", "ab"].map(str::to_owned)));
    }
}

#[test]
fn append_read_along_the_log() {
    for mirrored in ORDERS {
        let seen = explore(3, move || {
            let log = Log::new();
            let [_, walked] = race(mirrored, &log, [Log::two, Log::walk]);
            walked
        });
        assert_eq!(seen, BTreeSet::from(["", "a", "ab"].map(str::to_owned)));
    }
}

#[test]
fn append_read_with_two_writers() {
    for mirrored in ORDERS {
        let seen = explore(2, move || {
            let log = Log::new();
            let writers: [fn(&Log) -> String; 2] = [
                |log| {
                    log.append(b'a');
                    String::new()
                },
                |log| {
                    log.append(b'b');
                    String::new()
                },
            ];
            let [_, _, read] = race(mirrored, &log, [writers[0], writers[1], Log::read]);
            assert_eq!(log.read(), log.walk(), "offsets are in the order of positions");
            read
        });
        assert_eq!(seen, BTreeSet::from(["", "a", "b", "ab", "ba"].map(str::to_owned)));
    }
}
