//! Closing the broker while somebody sends and somebody polls.
//!
//! What a send has acknowledged lies below the end that the close makes durable. A poll that sleeps is
//! woken to its end, however it meets the close, and none reads in files that were given back.
//!
//! Planted bugs: broken_append_after_close, broken_ring_early
//! Fails with: a message was acknowledged behind the end
//! Fails with: deadlock; threads =

use super::fixture::{Log, RECORD};
use super::{ORDERS, explore, race};
use crate::broker::hold::{Arrival, HoldTable, Waiter};
use crate::broker::readers::Readers;
use crate::clock::Clock;
use crate::store::model::HEAD;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Alarm, Arc};
use std::sync::atomic::AtomicU64;

struct Broker {
    log: Log,
    hold: HoldTable,
    readers: Readers,
    poller: Arc<Poller>,
    given_back: AtomicBool,
    /// Not part of the protocol, and not visible to loom.
    sent: AtomicU64,
    end: AtomicU64,
    clock: Clock,
}

/// A pull consumer, as far as sending and closing reach it.
struct Poller {
    closed: AtomicBool,
    woken: Alarm,
}

impl Waiter for Poller {
    fn wants(&self, _: Arrival) -> bool {
        true
    }

    fn skipped(&self, _: u64, _: u64) {
        unreachable!("everything is wanted");
    }

    fn wake(&self, _: u64) {
        self.woken.ring();
    }
}

impl Broker {
    fn new() -> Arc<Self> {
        let poller = Poller { closed: AtomicBool::new(false), woken: Alarm::new() };
        Arc::new(Self {
            log: Log::new(HEAD + RECORD),
            hold: HoldTable::new(),
            readers: Readers::new(),
            poller: Arc::new(poller),
            given_back: AtomicBool::new(false),
            sent: AtomicU64::new(0),
            end: AtomicU64::new(0),
            clock: Clock::system(),
        })
    }

    fn send(&self) -> &'static str {
        let Some(appended) = self.log.append_unless_closed(b'a') else { return "refused" };
        self.sent.store(appended.position + RECORD as u64, Ordering::Relaxed);
        if appended.watched {
            let message = Arrival { tag_hash: 0, position: appended.position };
            self.hold.arrived(&self.log.queue, appended.offset, std::iter::once(message));
        }
        "sent"
    }

    fn poll(&self) -> &'static str {
        loop {
            loom::thread::yield_now();
            if self.poller.closed.load(Ordering::Acquire) {
                return "closed";
            }
            match self.read() {
                None => return "closed",
                Some(true) => return "found",
                Some(false) => {}
            }
            let (queue, waiter) = (&self.log.queue, self.poller.clone() as Arc<dyn Waiter>);
            self.hold.park_unless(queue, 0, &waiter, || self.log.log.exact_max(queue));
            self.poller.woken.wait(&self.clock, None);
            self.hold.cancel(queue, &waiter);
        }
    }

    /// Whether there is a message; `None` if the broker is closed.
    fn read(&self) -> Option<bool> {
        let _reading = self.readers.enter().ok()?;
        let found = self.log.queue.max() > 0;
        let given_back = self.given_back.load(Ordering::Relaxed);
        assert!(!given_back, "a poll read in files that were given back");
        Some(found)
    }

    fn close(&self) -> &'static str {
        self.poller.closed.swap(true, Ordering::AcqRel);
        self.poller.woken.ring();
        self.log.log.close();
        let end = self.log.log.committed();
        self.end.store(end, Ordering::Relaxed);
        self.readers.close(&self.clock);
        self.given_back.store(true, Ordering::Relaxed);
        ""
    }

    fn check(&self) {
        let of = |place: &AtomicU64| place.load(Ordering::Relaxed);
        assert!(of(&self.sent) <= of(&self.end), "a message was acknowledged behind the end");
        assert_eq!(self.hold.len(), 0, "a poll is left in the hold table");
    }
}

// (HOLD-8)
#[test]
fn close_and_send_and_poll() {
    for mirrored in ORDERS {
        let seen = explore(2, move || {
            let broker = Broker::new();
            let threads = [Broker::send, Broker::poll, Broker::close];
            let [sent, polled, _] = race(mirrored, &broker, threads);
            broker.check();
            (sent, polled)
        });
        let expected = [("refused", "closed"), ("sent", "closed"), ("sent", "found")];
        assert_eq!(seen, expected.into());
    }
}
