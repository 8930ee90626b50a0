//! What happens ahead of the tail, and who is woken for it.

use super::*;
use crate::store::ahead::Chore;

const MIB: u64 = 1 << 20;

fn open_with(dir: &Path, segment_bytes: u64) -> Store {
    let config = StoreConfig { segment_bytes, ..config(Flush::Every(HOUR)) };
    Store::open(Arc::new(Directory::new(dir).unwrap()), config, Clock::system()).unwrap()
}

fn open_fast(dir: &Path, segment_bytes: u64) -> Store {
    let store = open_with(dir, segment_bytes);
    // Woken again and again within a millisecond.
    (0..10).for_each(|_| store.log.look_ahead(5));
    store
}

const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn a_fast_log_has_the_whole_file_populated_in_one_step() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_fast(dir.path(), 24 * MIB);
    let topic = topic(&store, 1);
    send(&store, &topic, 0, 0);
    store.allocate_step();
    let segment = store.log.with_tail(|tail| tail.filling()).segment;
    assert!(segment.populated() >= segment.capacity());
}

#[test]
fn a_smaller_file_behind_the_present_one_leaves_nothing_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_fast(dir.path(), 2 * MIB);
    let topic = topic(&store, 1);
    for nth in 0..15 {
        send_body(&store, &topic, 0, &sized(nth, 100_000)).unwrap();
    }
    store.close().unwrap();
    let store = open_fast(dir.path(), MIB / 4);
    let chores: Vec<_> = (0..6)
        .map(|_| {
            let chore = store.log.populate_ahead();
            if chore == Chore::Grow {
                store.make_file().unwrap();
            }
            chore
        })
        .collect();
    assert!(chores.contains(&Chore::Grow), "{chores:?}");
    assert_eq!(chores.last(), Some(&Chore::Sleep), "{chores:?}");
}

#[test]
fn an_append_stays_within_the_pages_that_are_there() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_with(dir.path(), MIB);
    let topic = topic(&store, 1);
    let filling = || store.log.with_tail(|tail| tail.filling());
    for nth in 0..90 {
        send_body(&store, &topic, 0, &sized(nth, 10_000)).unwrap();
        let filling = filling();
        assert!(filling.segment.populated() >= filling.cursor, "{filling:?}");
    }
}

#[test]
fn allocator_and_flusher_are_woken_at_the_byte_and_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_fast(dir.path(), SEGMENT);
    let topic = topic(&store, 1);
    let append = || send_body(&store, &topic, 0, &[7; 1000]).unwrap();
    let first = append();
    let length = (first.end - first.position) as usize;
    append();
    for (bytes, woken) in [
        (2 * length - 1, [false, true, false]),
        (2 * length, [false, true, false]),
        (2 * length + 1, [false, false, true]),
    ] {
        store.log.with_tail(|tail| {
            let filling = tail.filling();
            tail.set_allocator_alarm(&filling.segment, filling.cursor + bytes);
        });
        assert_eq!([append(), append(), append()].map(|sent| sent.wake_allocator), woken);
        store.log.with_tail(|tail| tail.set_flusher_alarm(tail.committed() + bytes as u64));
        assert_eq!([append(), append(), append()].map(|sent| sent.wake_flusher), woken);
    }
    // Whoever begins a file wakes the allocator, and he alone.
    let mut base = store.log.with_tail(|tail| tail.base());
    let mut rolls = 0;
    while rolls < 3 {
        let sent = append();
        let filling = store.log.with_tail(|tail| tail.base());
        assert_eq!(sent.wake_allocator, filling > base);
        rolls += u64::from(filling > base);
        base = filling;
    }
}
