//! Closing waits for reads that no consumer owns, and lets none begin: the next broker of the
//! directory may change what they look at.
//!
//! Planted bugs: broken_close_over_readers
//! Fails with: a read went on in files that were given back

use super::{ORDERS, explore, race};
use crate::broker::readers::Readers;
use crate::clock::Clock;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicBool, Ordering};
use std::collections::BTreeSet;

struct Open {
    readers: Readers,
    given_back: AtomicBool,
    clock: Clock,
}

impl Open {
    fn read(&self) -> &'static str {
        let Ok(_reading) = self.readers.enter() else { return "closed" };
        for _ in 0..2 {
            loom::thread::yield_now();
            let given_back = self.given_back.load(Ordering::Relaxed);
            assert!(!given_back, "a read went on in files that were given back");
        }
        "read"
    }

    fn close(&self) -> &'static str {
        self.readers.close(&self.clock);
        self.given_back.store(true, Ordering::Relaxed);
        ""
    }
}

#[test]
fn close_and_read() {
    for mirrored in ORDERS {
        let seen = explore(3, move || {
            let given_back = AtomicBool::new(false);
            let clock = Clock::system();
            let open = Arc::new(Open { readers: Readers::new(), given_back, clock });
            let [first, second, _] = race(mirrored, &open, [Open::read, Open::read, Open::close]);
            (first, second)
        });
        let both = ["closed", "read"];
        let all = both.iter().flat_map(|first| both.iter().map(move |second| (*first, *second)));
        assert_eq!(seen, all.collect::<BTreeSet<_>>());
    }
}
