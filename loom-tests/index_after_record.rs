//! The index after the record: an entry that a reader can see points to a committed record.
//!
//! An append publishes in this order: the records, the index block, the queue's maximum (each
//! Release). A reader that sees a maximum (Acquire) finds every entry below it and the record of
//! each, a batch as a whole or not at all, also where a batch goes over into the next index block.
//!
//! Planted bugs: broken_index_first, broken_max_first, broken_max_relaxed, broken_max_read_relaxed
//! Fails with: an offset below the maximum has no entry
//! Fails with: an entry points to no record
//! Fails with: a reader saw an incomplete record
//! Fails with: Causality violation

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
    /// Room for three messages, whose entries stand in two index blocks.
    fn new() -> Arc<Self> {
        let writer = segment(3 * RECORD, 0);
        let file = LogFile::made(0, 0, &writer);
        let mut tail = Tail::new(7, 0, writer, 0);
        let queue = add_queue(&mut tail, &[2, 1]);
        Arc::new(Self { tail: Mutex::new(Rank::Append, tail), queue, file })
    }

    /// Appends a message, then a batch of two.
    fn write(&self) -> String {
        let letters = [b'a', b'b', b'c'].map(|letter| [letter; 7]);
        let outline = outline();
        let [mut first, second, third] = letters.each_ref().map(|letter| draft(&outline, letter));
        let target = Some(TARGET);
        self.tail.lock().append(target, std::slice::from_mut(&mut first), 0).unwrap();
        self.tail.lock().append(target, &mut [second, third], 0).unwrap();
        String::new()
    }

    fn read(&self) -> String {
        loom::thread::yield_now();
        let max = self.queue.max();
        let mut letters = String::new();
        self.queue.scan(0..max, |offset, entry| {
            let record = self.file.record(entry.position).expect("an entry points to no record");
            assert_eq!((record.offset(), entry.length), (offset, RECORD as u32));
            letters.push(letter_of(&record));
            true
        });
        assert_eq!(letters.len() as u64, max, "an offset below the maximum has no entry");
        letters
    }
}

#[test]
fn index_after_record() {
    for mirrored in ORDERS {
        let seen = explore(3, move || {
            let log = Log::new();
            let [_, read] = race(mirrored, &log, [Log::write, Log::read]);
            assert_eq!(log.read(), "abc");
            read
        });
        assert_eq!(seen, BTreeSet::from(["", "a", "abc"].map(str::to_owned)));
    }
}
