//! What an append does with the space of its file, and what it refuses.

use super::*;
use crate::store::record::HEADER;

/// The body that makes a record of `length` bytes in topic `t`.
fn filling(nth: u64, length: usize) -> Vec<u8> {
    sized(nth, length - HEADER - 1)
}

#[test]
fn store_5_a_record_that_fits_exactly_fills_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let topic = topic(&store, 1);
    let mut bodies = Vec::new();
    for round in 0..4 {
        let end = store.log.committed();
        let left = (SEGMENT - end % SEGMENT) as usize;
        // To the last byte, or so that the header of a filler remains, or one step more than that:
        // then the record goes to the next file.
        let (length, fits) =
            [(left, true), (left - 64, true), (left - 56, false), (left - 8, false)]
                [round as usize];
        let body = filling(round, length);
        let sent = send_body(&store, &topic, 0, &body).unwrap();
        assert_eq!(sent.position == end, fits, "round {round}");
        assert_eq!(sent.end - sent.position, length as u64);
        bodies.push(body);
        bodies.push(body_of_one(&store, &topic, round));
    }
    assert_eq!(read(&store, &topic, 0), bodies);
    kill(store);
    let store = open(dir.path());
    let topic = store.topics.get("t").unwrap();
    assert_eq!(read(&store, &topic, 0), bodies);
}

fn body_of_one(store: &Store, topic: &Topic, nth: u64) -> Vec<u8> {
    let body = sized(100 + nth, 50);
    send_body(store, topic, 0, &body).unwrap();
    body
}

#[test]
fn a_full_file_is_the_end_of_the_log_until_something_comes() {
    for clean in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        let topic = topic(&store, 1);
        let left = (SEGMENT - store.log.committed() % SEGMENT) as usize;
        let sent = send_body(&store, &topic, 0, &filling(0, left)).unwrap();
        assert_eq!(sent.end, SEGMENT);
        if clean {
            store.close().unwrap()
        } else {
            kill(store)
        }
        for round in 0..3 {
            let store = open(dir.path());
            assert_eq!(store.log.committed(), SEGMENT, "round {round}");
            kill(store);
        }
        let store = open(dir.path());
        let topic = store.topics.get("t").unwrap();
        assert!(send(&store, &topic, 0, 1).position > SEGMENT);
        assert_eq!(read(&store, &topic, 0), [filling(0, left), body(1)]);
    }
}

#[test]
fn the_largest_record_goes_through_and_the_next_larger_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let topic = topic(&store, 1);
    let largest = store.log.largest_record();
    for nth in 0..3 {
        send_body(&store, &topic, 0, &filling(nth, largest)).unwrap();
    }
    for over in [8, 16, 64, 1 << 20] {
        let before = store.log.committed();
        let refused = send_body(&store, &topic, 0, &filling(9, largest + over));
        assert!(matches!(refused, Err(Error::TooLarge { limit, .. }) if limit == largest));
        assert_eq!(store.log.committed(), before);
    }
    assert_eq!(read(&store, &topic, 0).len(), 3);
}

#[test]
fn store_5_a_batch_that_does_not_fit_moves_to_the_next_file_as_a_whole() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let topic = topic(&store, 1);
    let mut sent = Vec::new();
    for nth in 0..40 {
        let batch: Vec<_> = (0..7).map(|k| sized(nth * 7 + k, 1000)).collect();
        let appended = send_batch(&store, &topic, 0, &batch).unwrap();
        assert_eq!(
            appended.position / SEGMENT,
            (appended.end - 1) / SEGMENT,
            "batch {nth} is split"
        );
        assert_eq!(appended.offset, nth * 7);
        sent.extend(batch);
    }
    assert_eq!(read(&store, &topic, 0), sent);
    let position = store.log.committed();
    let refused = send_batch(&store, &topic, 0, &vec![vec![1; 7000]; 10]);
    assert!(matches!(refused, Err(Error::TooLarge { .. })));
    assert!(matches!(send_batch(&store, &topic, 0, &[]), Err(Error::Batch { .. })));
    assert_eq!(store.log.committed(), position);
    kill(store);
    let store = open(dir.path());
    assert_eq!(read(&store, &store.topics.get("t").unwrap(), 0), sent);
}

#[test]
fn a_batch_can_cross_several_index_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let topic = topic(&store, 1);
    let mut sent = Vec::new();
    for (round, size) in [3, 500, 1, 700].into_iter().enumerate() {
        let batch: Vec<_> = (0..size).map(|k| sized(round as u64 * 1000 + k, 8)).collect();
        send_batch(&store, &topic, 0, &batch).unwrap();
        sent.extend(batch);
    }
    assert_eq!(read(&store, &topic, 0), sent);
    kill(store);
    let store = open(dir.path());
    assert_eq!(store.report().index_rebuilt, None);
    assert_eq!(read(&store, &store.topics.get("t").unwrap(), 0), sent);
}

#[test]
fn files_of_another_size_are_kept_when_the_setting_changes() {
    let dir = tempfile::tempdir().unwrap();
    let mut sent = Vec::new();
    for (round, segment_bytes) in
        [SEGMENT, 4 * SEGMENT, SEGMENT, 8 * SEGMENT].into_iter().enumerate()
    {
        let storage = Arc::new(Directory::new(dir.path()).unwrap());
        let config = StoreConfig { segment_bytes, ..config(Flush::EveryMessage) };
        let store = Store::open(storage, config, Clock::system()).unwrap();
        let topic = topic(&store, 1);
        assert_eq!(read(&store, &topic, 0), sent);
        // Larger than the file that an earlier round has left ready.
        for nth in 0..5 {
            let body = filling(nth, store.log.largest_record() - 8 * nth as usize);
            send_body(&store, &topic, 0, &body).unwrap();
            sent.push(body);
        }
        store.make_file().unwrap();
        if round % 2 == 0 { store.close().unwrap() } else { kill(store) }
    }
    let store = open(dir.path());
    assert_eq!(read(&store, &store.topics.get("t").unwrap(), 0), sent);
}

#[test]
fn store_7_times_never_go_back_and_only_what_is_stored_takes_an_offset() {
    let dir = tempfile::tempdir().unwrap();
    let clock = crate::clock::DrivenClock::new(5000);
    let storage = Arc::new(Directory::new(dir.path()).unwrap());
    let store = Store::open(storage, config(Flush::EveryMessage), clock.clock()).unwrap();
    let topic = topic(&store, 2);
    let (mut times, mut offsets) = (Vec::new(), [Vec::new(), Vec::new()]);
    for (nth, ms) in [5000, 5007, 4000, 5006, 5008, 1, 6000].into_iter().enumerate() {
        clock.set_wall_ms(ms);
        let sent = send(&store, &topic, nth % 2, nth as u64);
        times.push(sent.store_ms);
        offsets[nth % 2].push(sent.offset);
        let refused = send_body(&store, &topic, nth % 2, &vec![7; SEGMENT as usize]);
        assert!(matches!(refused, Err(Error::TooLarge { .. })));
    }
    assert_eq!(times, [5000, 5007, 5007, 5007, 5008, 5008, 6000]);
    assert_eq!(offsets, [vec![0, 1, 2, 3], vec![0, 1, 2]]);
}

#[test]
fn store_35_offset_at_finds_the_first_message_stored_then_or_later() {
    let dir = tempfile::tempdir().unwrap();
    let clock = crate::clock::DrivenClock::new(1_000);
    let storage = Arc::new(Directory::new(dir.path()).unwrap());
    let store = Store::open(storage, config(Flush::EveryMessage), clock.clock()).unwrap();
    let topic = topic(&store, 2);
    let queue = &topic.queues[0];
    assert_eq!(store.offset_at(queue, 0, Edge::AtOrAfter).unwrap(), 0);
    assert_eq!(store.offset_at(queue, u64::MAX, Edge::AtOrAfter).unwrap(), 0);
    // 1000, 1000, 1000, 2000, 2000, then the wall clock goes back: never earlier than before.
    for (nth, ms) in [1_000, 1_000, 1_000, 2_000, 2_000, 1_500, 3_000].into_iter().enumerate() {
        clock.set_wall_ms(ms);
        send(&store, &topic, 0, nth as u64);
    }
    let times: Vec<_> = (0..7).map(|offset| store.store_ms(queue, offset).unwrap()).collect();
    assert_eq!(times, [1_000, 1_000, 1_000, 2_000, 2_000, 2_000, 3_000]);
    let expected = [(0, 0), (1_000, 0), (1_001, 3), (2_000, 3), (2_001, 6), (3_000, 6), (3_001, 7)];
    for (ms, offset) in expected {
        assert_eq!(store.offset_at(queue, ms, Edge::AtOrAfter).unwrap(), offset, "at {ms}");
    }
    assert!(matches!(store.store_ms(queue, 7), Err(Error::OffsetRange { .. })));
    // Below the minimum nothing is found.
    for nth in 0..300 {
        clock.set_wall_ms(4_000 + nth);
        send(&store, &topic, 0, 600 + nth);
    }
    store.drop_before(store.log.committed()).unwrap();
    assert!(queue.min() > 7);
    assert_eq!(store.offset_at(queue, 0, Edge::AtOrAfter).unwrap(), queue.min());
}

#[test]
fn store_28_every_place_of_an_offset_has_its_status() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let topic = topic(&store, 1);
    let queue = &topic.queues[0];
    let status = |offset| {
        let fetch = store.fetch(queue, offset, 4, 1 << 20, &All).unwrap();
        (fetch.status, fetch.next, fetch.messages.len())
    };
    assert_eq!(status(0), (FetchStatus::Empty, 0, 0));
    assert_eq!(status(5), (FetchStatus::Empty, 0, 0));
    for nth in 0..500 {
        send(&store, &topic, 0, nth);
    }
    store.drop_before(store.log.committed()).unwrap();
    let min = queue.min();
    assert!(min > 0);
    assert_eq!(status(0), (FetchStatus::TooSmall, min, 0));
    assert_eq!(status(min), (FetchStatus::Found, min + 4, 4));
    assert_eq!(status(499), (FetchStatus::Found, 500, 1));
    assert_eq!(status(500), (FetchStatus::AtEnd, 500, 0));
    assert_eq!(status(501), (FetchStatus::Beyond, 500, 0));
    assert_eq!(status(u64::MAX), (FetchStatus::Beyond, 500, 0));
    let all = store.fetch(queue, min, usize::MAX, usize::MAX, &All).unwrap();
    assert_eq!(all.next, 500);
}

#[test]
fn store_31_one_read_goes_on_across_the_blocks_of_the_index() {
    struct Tag(i32);
    impl Select for Tag {
        fn by_hash(&self, tag_hash: i32) -> bool {
            tag_hash == self.0
        }
        fn by_message(&self, _: &Delivery<'_>) -> bool {
            true
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let topic = topic(&store, 1);
    let queue = &topic.queues[0];
    for nth in 0..2000_u64 {
        let tag_hash = i32::from(nth == 790 || nth == 1700);
        let message = Pending { tag_hash, ..pending(b"x") };
        failed(store.append(&topic, queue, message)).unwrap();
    }
    let read = |offset| {
        let fetch = store.fetch(queue, offset, 1, 1 << 20, &Tag(1)).unwrap();
        let first = fetch.messages.get(0).map(|message| message.offset());
        (fetch.status, first, fetch.next)
    };
    assert_eq!(read(0), (FetchStatus::Found, Some(790), 791));
    // Nothing among the 800 entries that one read looks at: the next one goes on behind them.
    assert_eq!(read(791), (FetchStatus::NoMatched, None, 1591));
    assert_eq!(read(1591), (FetchStatus::Found, Some(1700), 1701));
    assert_eq!(read(1701), (FetchStatus::NoMatched, None, 2000));
}
