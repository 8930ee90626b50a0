//! What a reader of another process sees: whole appends, verified, and no more.

use super::faulty::{Call, Faulty};
use super::recovery::with_last_batch;
use super::*;

fn follow(dir: &Path) -> Follower {
    let storage: Arc<dyn Storage> = Arc::new(Directory::read_only(dir));
    let mut follower = Follower::open(&storage).unwrap();
    follower.refresh().unwrap();
    follower
}

#[test]
fn the_log_ends_before_an_append_that_is_not_whole() {
    let (dir, sent, last) = with_last_batch(4);
    let length = (last.end - last.position) as usize;
    let key = (1, 0);
    for torn in (0..length).step_by(7) {
        for garbled in [true, false] {
            let copy = copy_of(dir.path());
            let (file, at) = place_of(copy.path(), last.position);
            let whole = std::fs::read(&file).unwrap();
            change(&file, at + torn, |rest| if garbled { rest[0] ^= 4 } else { rest.fill(0) });
            if std::fs::read(&file).unwrap() == whole {
                continue;
            }
            let mut follower = follow(copy.path());
            assert_eq!(follower.position(), last.position, "torn at {torn}");
            assert_eq!(follower.queue(key).unwrap().max(), 20);
            assert!(!follower.refresh().unwrap());
            // As the owner goes on writing it, into the pages that are mapped here.
            let owner = std::fs::OpenOptions::new().write(true).open(&file).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&owner, &whole[at..], at as u64).unwrap();
            assert!(follower.refresh().unwrap());
            assert_eq!(follower.position(), last.end);
            let fetch = follower.fetch(key, 0, 100).unwrap();
            assert!(fetch.messages.iter().map(|message| message.body()).eq(sent.iter()));
        }
    }
}

#[test]
fn entries_of_the_index_are_hints() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let topic = topic(&store, 1);
    for nth in 0..20 {
        send(&store, &topic, 0, nth);
    }
    store.close().unwrap();
    let index = dir.path().join("index/00000000");
    let bytes = std::fs::read(&index).unwrap();
    let entries = bytes.windows(4).position(|four| four == b"blck").unwrap() + 32;
    for lie in [0, 64, 72, 5000, SEGMENT, u64::MAX] {
        change(&index, entries + 3 * 16, |rest| rest[..8].copy_from_slice(&lie.to_le_bytes()));
        let follower = follow(dir.path());
        assert_eq!(follower.fetch((1, 0), 0, 3).unwrap().messages.len(), 3);
        let refused = follower.fetch((1, 0), 3, 1).unwrap_err();
        assert!(matches!(refused, Error::Corrupt { .. }), "{refused}");
        assert_eq!(follower.fetch((1, 0), 4, 100).unwrap().messages.len(), 16);
    }
    // Without the index all of the log is read.
    std::fs::remove_file(&index).unwrap();
    let follower = follow(dir.path());
    assert!(follower.index_misfits());
    let fetch = follower.fetch((1, 0), 0, 100).unwrap();
    assert_eq!((fetch.messages.len(), fetch.min, fetch.max), (20, 0, 20));
}

#[test]
fn what_is_dropped_while_a_follower_opens_is_not_the_end_of_its_queue() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let topic = topic(&store, 2);
    send(&store, &topic, 0, 0);
    store.write_checkpoint(&mut store.checkpoint.lock(), None).unwrap();
    let slow = Faulty::new(dir.path());
    slow.hold(Call::List);
    std::thread::scope(|scope| {
        let found = scope.spawn(|| check(&(slow.clone() as Arc<dyn Storage>)).unwrap());
        // It has read the checkpoint, and not yet looked which files there are.
        until(|| slow.waiting() == 1);
        send(&store, &topic, 0, 1);
        let group = store.groups.number("g").unwrap();
        store.offsets.set(OffsetKey { group, incarnation: 1, queue: 0 }, 2).unwrap();
        for nth in 2..1000 {
            send(&store, &topic, 1, nth);
        }
        assert!(store.drop_before(store.log.committed()).unwrap() > 1);
        assert_eq!((topic.queues[0].min(), topic.queues[0].max()), (2, 2));
        slow.release();
        let found = found.join().unwrap();
        assert!(found.is_sound() && found.offsets == 1, "{found}");
    });
}
