//! What applies filters to messages does not allocate: counted, on the thread that does it.

#![allow(clippy::unwrap_used, reason = "a test")]
#![allow(unsafe_code, reason = "a global allocator is written no other way")]

use rocklet::{Broker, Delivery, Filter, Message, QueueId};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Counts the allocations of each thread.
struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is the system allocator's; the counter needs no memory of its own.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The allocations of this thread in `call`.
fn allocations(call: impl FnOnce()) -> u64 {
    let before = COUNT.get();
    call();
    COUNT.get() - before
}

const EXPRESSIONS: [&str; 8] = [
    "dep_delay > 60 AND carrier IN ('UA', 'AA')",
    "dep_delay BETWEEN -5 AND 60.5 OR carrier LIKE '_A%' AND NOT (tailnum IS NULL)",
    "TAGS = 'JFK' AND KEYS CONTAINS '15' AND carrier NOT STARTSWITH 'B'",
    "carrier > 5 OR missing = 1",
    "dep_delay = 8.0 OR missing <> carrier",
    "-dep_delay = 62 OR 61.0 < dep_delay",
    "(dep_delay > 5) = (carrier = TRUE)",
    "carrier IN ('a','b','c','d','e','f','g','h','i','j') OR dep_delay > distance",
];

fn flight(nth: usize) -> Message<'static> {
    let carrier = ["UA", "AA", "B6", "\u{1f680}"][nth % 4];
    let delay = ["62", "-4", "61.5", "late", "0x1p3", "\u{665}"][nth % 6];
    let message = Message::new("flights", b"x").tag("JFK").key("UA15").queue(0);
    message.property("carrier", carrier).property("dep_delay", delay).property("distance", "1400")
}

#[test]
fn filt_2_evaluating_a_filter_allocates_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let broker = Broker::builder(dir.path()).segment_bytes(1 << 20).open().unwrap();
    for nth in 0..24 {
        broker.producer().send(&flight(nth)).unwrap();
    }
    let flights = broker.browse_queue(&QueueId::new("flights", 0)).unwrap().read(24).unwrap();
    assert_eq!(flights.len(), 24);
    let mut filters = EXPRESSIONS.map(|text| Filter::sql(text).unwrap()).to_vec();
    filters.push(Filter::tags("JFK || LGA").unwrap());
    filters.push(filters[0].and(Filter::predicate(|flight: &Delivery<'_>| flight.offset() > 3)));
    let mut passed = 0;
    let counted = allocations(|| {
        for _ in 0..1000 {
            for flight in &flights {
                passed += filters.iter().filter(|filter| filter.passes(&flight)).count();
            }
        }
    });
    assert!(passed > 10_000, "{passed}");
    assert_eq!(counted, 0, "allocations in {} evaluations", 24 * 1000 * filters.len());
    assert!(allocations(|| drop(Filter::sql(EXPRESSIONS[0]).unwrap())) > 0, "the counter works");
}

#[test]
fn hold_3_a_producer_allocates_nothing_to_find_that_nobody_is_to_be_woken() {
    let dir = tempfile::tempdir().unwrap();
    let broker = Broker::builder(dir.path()).open().unwrap();
    broker.create_topic("flights", 1).unwrap();
    let unwanted = Filter::sql("dep_delay > 60 AND carrier IN ('XX', 'YY')").unwrap();
    let consumer = broker.push_consumer("late").subscribe("flights", unwanted).unwrap();
    let consumer = consumer.start(|_: &Delivery<'_>| Err("nothing passes")).unwrap();
    while broker.stats().held == 0 {
        std::thread::yield_now();
    }
    let producer = broker.producer();
    let flights: Vec<Message<'_>> = (0..24).map(flight).collect();
    let send = |times: usize| {
        for flight in (0..times).flat_map(|_| &flights) {
            producer.send(flight).unwrap();
        }
    };
    // Whatever is made once is made now.
    send(10);
    // The index and the log grow now and then; most sends do without.
    let fewest = (0..50).map(|_| allocations(|| send(1))).min();
    assert_eq!(fewest, Some(0), "allocations in 24 sends");
    assert_eq!(broker.stats().held, 1, "nobody was woken");
    let queue = QueueId::new("flights", 0);
    let sent = broker.max_offset(&queue).unwrap();
    assert_eq!(broker.committed("late", &queue).unwrap(), Some(sent));
    consumer.shutdown();
}
