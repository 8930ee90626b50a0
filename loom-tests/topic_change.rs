//! A change of a topic against appends: the cursor is stopped, the event is recorded, and whoever
//! chose the queue by the topic as it was before is refused.
//!
//! Planted bugs: broken_generation_unchecked
//! Fails with: a message stands behind the event that ended its topic

use super::fixture::{RECORD, TARGET, add_queue, draft, outline, segment};
use super::{ORDERS, explore, race};
use crate::store::model::{Refusal, Tail};
use crate::sync::{Arc, Mutex, Rank};
use std::collections::BTreeSet;

struct Log {
    tail: Mutex<Tail>,
}

impl Log {
    fn new() -> Arc<Self> {
        let mut tail = Tail::new(7, 0, segment(3 * RECORD, 0), 0);
        add_queue(&mut tail, &[2]);
        Arc::new(Self { tail: Mutex::new(Rank::Append, tail) })
    }

    /// The position of a message; the end of all if it was refused.
    fn send(&self) -> u64 {
        let (outline, letters) = (outline(), [b'a'; 7]);
        match self.tail.lock().append(Some(TARGET), &mut [draft(&outline, &letters)], 0) {
            Ok(appended) => appended.position,
            Err(Refusal::Gone) => u64::MAX,
            Err(refusal) => panic!("{refusal:?}"),
        }
    }

    /// The position of the event.
    fn delete(&self) -> u64 {
        self.tail.lock().cursors.at_mut(TARGET.slot).generation = 0;
        loom::thread::yield_now();
        let (outline, letters) = (outline(), [b'!'; 7]);
        self.tail.lock().append(None, &mut [draft(&outline, &letters)], 0).unwrap().position
    }
}

#[test]
fn topic_change() {
    for mirrored in ORDERS {
        let seen = explore(3, move || {
            let log = Log::new();
            let [first, second, event] = race(mirrored, &log, [Log::send, Log::send, Log::delete]);
            let sent = [first, second].map(|position| {
                let refused = position == u64::MAX;
                let before = refused || position < event;
                assert!(before, "a message stands behind the event that ended its topic");
                !refused
            });
            sent.iter().filter(|sent| **sent).count()
        });
        assert_eq!(seen, BTreeSet::from([0, 1, 2]));
    }
}
