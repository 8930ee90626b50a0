//! Retention: what goes, in which order, and what it must not hold up.
//!
//! Longer than other files: policies, limits and carrying forward share one scene, a store on a disk
//! whose space and calls the test decides.

use super::faulty::{Call, Faulty};
use super::*;
use crate::clock::{DrivenClock, Moment};
use crate::store::keep::Keep;
use std::io::ErrorKind;
use std::sync::Mutex as StdMutex;

const NOW_MS: u64 = 1_700_000_000_000;

/// Some 40 of these fill a file.
const BODY: usize = 1500;

struct Scene {
    dir: tempfile::TempDir,
    faulty: Arc<Faulty>,
    clock: DrivenClock,
    store: Store,
    topic: Arc<Topic>,
}

impl Scene {
    fn new(space: SpaceRules) -> Self {
        let (dir, clock) = (tempfile::tempdir().unwrap(), DrivenClock::new(NOW_MS));
        let faulty = Faulty::new(dir.path());
        let store = opened(&faulty, space, &clock);
        let topic = topic(&store, 1);
        Self { dir, faulty, clock, store, topic }
    }

    fn with(retention: Retention) -> Self {
        Self::new(SpaceRules { retention, ..SpaceRules::default() })
    }

    fn limited(at_limit: AtLimit) -> Self {
        let limits = Limits { max_bytes: Some(4 * SEGMENT), min_free: 0 };
        Self::new(SpaceRules { limits, at_limit, ..SpaceRules::default() })
    }

    /// Sends until so many files are full, as the threads of a broker would have it.
    fn fill(&self, files: u64) {
        let wanted = self.filling() + files * SEGMENT;
        while self.filling() < wanted {
            send_body(&self.store, &self.topic, 0, &sized(1, BODY)).unwrap();
            self.store.allocate_step();
        }
    }

    fn filling(&self) -> u64 {
        self.store.log.with_tail(|tail| tail.base())
    }

    fn step(&self) -> Option<Moment> {
        self.store.retain_step(self.clock.clock().moment())
    }

    fn pass(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
    }

    fn reopen(self, space: SpaceRules) -> Self {
        let Self { dir, faulty, clock, store, .. } = self;
        store.close().unwrap();
        let store = opened(&faulty, space, &clock);
        let topic = store.topics.get("t").unwrap();
        Self { dir, faulty, clock, store, topic }
    }

    fn stats(&self) -> RetentionStats {
        self.store.retention_stats()
    }
}

fn opened(faulty: &Arc<Faulty>, space: SpaceRules, clock: &DrivenClock) -> Store {
    let config = StoreConfig { space, ..config(Flush::EveryMessage) };
    Store::open(faulty.clone(), config, clock.clock()).unwrap()
}

fn hour() -> Retention {
    Retention::none().age(Duration::from_secs(3600))
}

/// (STORE-49, STORE-26)
#[test]
fn b_069_files_go_an_hour_after_they_were_full_and_the_step_says_when() {
    let scene = Scene::with(hour());
    assert_eq!(scene.step(), None, "no file is full");
    scene.fill(1);
    let full = scene.clock.clock().moment();
    assert_eq!(scene.step(), Some(full.plus(Duration::from_secs(3600))));
    scene.pass(600);
    scene.fill(2);
    assert_eq!(scene.step(), Some(full.plus(Duration::from_secs(3600))));
    scene.pass(2999);
    scene.step();
    assert_eq!((scene.store.extent().0, scene.topic.queues[0].min()), (0, 0));
    scene.pass(1);
    assert_eq!(scene.step(), Some(full.plus(Duration::from_secs(4200))));
    assert_eq!(scene.store.extent().0, SEGMENT);
    let min = scene.topic.queues[0].min();
    let entry = scene.topic.queues[0].entry(min).unwrap();
    assert_eq!(entry.position, SEGMENT + files::HEAD as u64, "the first that is left");
    scene.pass(600);
    // The one that is being filled stays, however old it gets.
    assert_eq!(scene.step(), None);
    assert_eq!(scene.store.extent().0, 3 * SEGMENT);
    scene.pass(1_000_000);
    assert_eq!(scene.step(), None);
    assert_eq!(scene.store.extent().0, 3 * SEGMENT);
    assert_eq!(scene.stats().dropped_files, 3);
}

#[test]
fn b_069_ages_go_on_over_a_restart() {
    let space = SpaceRules { retention: hour(), ..SpaceRules::default() };
    let scene = Scene::new(space.clone());
    scene.fill(2);
    scene.step();
    scene.pass(3000);
    scene.fill(3);
    scene.step();
    // Away for ten minutes, which count.
    let before = scene.clock.clone();
    let scene = {
        let Scene { dir, faulty, clock, store, .. } = scene;
        store.close().unwrap();
        before.advance(Duration::from_secs(600));
        let store = opened(&faulty, space, &clock);
        let topic = store.topics.get("t").unwrap();
        Scene { dir, faulty, clock, store, topic }
    };
    let next = scene.step().unwrap();
    assert_eq!(scene.store.extent().0, 2 * SEGMENT);
    assert_eq!(next, scene.clock.clock().moment().plus(Duration::from_secs(3000)));
    scene.pass(3000);
    scene.step();
    assert_eq!(scene.store.extent().0, 5 * SEGMENT);
}

/// (STORE-49)
#[test]
fn b_070_no_clock_that_jumps_drops_or_pins_anything() {
    let space = SpaceRules { retention: hour(), ..SpaceRules::default() };
    let ten_years = 10 * 365 * 24 * 3600 * 1000;
    for restart in [false, true] {
        let mut scene = Scene::new(space.clone());
        scene.fill(2);
        scene.step();
        scene.clock.set_wall_ms(NOW_MS + ten_years);
        scene.fill(3);
        scene.step();
        assert_eq!(scene.store.extent().0, 0, "nothing was full for an hour");
        scene.clock.set_wall_ms(NOW_MS);
        scene.fill(3);
        scene.step();
        if restart {
            scene = scene.reopen(space.clone());
            scene.step();
        }
        scene.pass(3599);
        scene.step();
        assert_eq!(scene.store.extent().0, 0, "restart: {restart}");
        scene.pass(1);
        scene.step();
        assert_eq!(scene.store.extent().0, 8 * SEGMENT, "restart: {restart}");
    }
}

#[test]
fn sizes_are_kept_by_the_oldest_files() {
    let scene = Scene::with(Retention::none().log_bytes(4 * SEGMENT));
    for _ in 0..20 {
        scene.fill(1);
        scene.step();
        assert!(scene.stats().log_bytes <= 4 * SEGMENT);
        assert!(scene.stats().spare_bytes <= 2 * SEGMENT);
    }
    let stats = scene.stats();
    assert_eq!(stats.log_bytes, 4 * SEGMENT, "no more than needed goes");
    assert!(stats.reused_files > 10, "{stats:?}");
    let expected = contents(&scene.store);
    let copy = copy_of(scene.dir.path());
    assert!(contents(&open(copy.path())) == expected);
}

/// (STORE-50)
#[test]
fn a_full_file_system_has_the_oldest_files_removed_until_enough_is_free() {
    let scene = Scene::with(Retention::none().disk_percent(75));
    scene.faulty.set_space(75 * SEGMENT, 25 * SEGMENT);
    scene.fill(10);
    scene.step();
    assert_eq!(scene.stats().dropped_files, 0);
    // Two files that wait for another life are returned first.
    scene.store.drop_before(3 * SEGMENT).unwrap();
    assert_eq!(scene.stats().spare_bytes, 2 * SEGMENT);
    scene.faulty.set_space(80 * SEGMENT, 20 * SEGMENT);
    scene.step();
    assert_eq!((scene.stats().dropped_files, scene.stats().spare_bytes), (6, 0));
    assert_eq!(scene.store.extent().0, 6 * SEGMENT);
    let names = log_in(scene.dir.path());
    assert_eq!(names.len(), scene.store.log.files().len(), "all of it is returned");
    // What deliveries hold returns by itself, and is not taken from others.
    let queue = &scene.topic.queues[0];
    let held = scene.store.fetch(queue, queue.min(), 1, 1, &All).unwrap().messages;
    scene.step();
    assert_eq!(scene.stats().held_bytes, SEGMENT);
    let dropped = scene.stats().dropped_files;
    scene.faulty.set_space(76 * SEGMENT, 24 * SEGMENT);
    scene.step();
    assert_eq!(scene.stats().dropped_files, dropped);
    drop(held);
    assert_eq!(scene.stats().held_bytes, 0);
    scene.fill(3);
    scene.step();
    assert_eq!(scene.stats().dropped_files, dropped + 1);
}

#[test]
fn what_a_group_has_to_consume_stays() {
    let retention = Retention::none().age(Duration::ZERO).keep_unconsumed();
    let scene = Scene::with(retention);
    let group = |name: &str| scene.store.groups.number(name).unwrap();
    let key = |group| OffsetKey { group, incarnation: scene.topic.incarnation, queue: 0 };
    scene.fill(2);
    scene.step();
    assert_eq!(scene.store.extent().0, 2 * SEGMENT, "nobody consumes the topic");
    let (slow, quick) = (key(group("slow")), key(group("quick")));
    let queue = &scene.topic.queues[0];
    scene.store.offsets.set(slow, 0).unwrap();
    scene.store.offsets.set(quick, queue.max()).unwrap();
    scene.fill(4);
    assert_eq!(scene.step(), None);
    assert_eq!(scene.store.extent().0, 2 * SEGMENT);
    assert!(scene.stats().waits_for_groups);
    // Up to the file in which it is.
    let inside = queue.first_at(4 * SEGMENT) + 3;
    scene.store.offsets.set(slow, inside).unwrap();
    scene.store.offsets.set(quick, queue.max()).unwrap();
    let now = scene.clock.clock().moment();
    let rung = || scene.store.retainer.wait(&scene.clock.clock(), Some(now));
    assert!(rung() && !rung(), "files were full");
    scene.store.flush_step();
    assert!(rung(), "a commit is told to whom waits for it");
    scene.step();
    assert_eq!(scene.store.extent().0, 4 * SEGMENT);
    scene.store.offsets.set(slow, queue.max()).unwrap();
    scene.store.offsets.set(quick, queue.max()).unwrap();
    scene.step();
    assert_eq!(scene.store.extent().0, 6 * SEGMENT);
    assert!(!scene.stats().waits_for_groups);
}

#[test]
fn a_group_that_is_named_is_waited_for_before_it_has_begun() {
    let retention = Retention::none().age(Duration::ZERO).keep_unconsumed_by(["late"]);
    let scene = Scene::with(retention);
    let other = scene.store.groups.number("other").unwrap();
    let key = |group| OffsetKey { group, incarnation: scene.topic.incarnation, queue: 0 };
    scene.store.offsets.set(key(other), 0).unwrap();
    scene.fill(3);
    scene.step();
    assert_eq!(scene.store.extent().0, 0);
    let late = scene.store.groups.number("late").unwrap();
    scene.store.offsets.set(key(late), scene.topic.queues[0].max()).unwrap();
    scene.step();
    assert_eq!(scene.store.extent().0, 3 * SEGMENT, "the other group is not asked for");
}

#[test]
fn b_039_slow_deletion_holds_up_neither_sends_nor_the_guard() {
    let limits = Limits { max_bytes: None, min_free: 10 * SEGMENT };
    let scene = Scene::new(SpaceRules { limits, ..SpaceRules::default() });
    scene.faulty.set_space(0, 11 * SEGMENT);
    scene.fill(6);
    let before = contents(&scene.store);
    scene.faulty.hold(Call::Unlink);
    std::thread::scope(|scope| {
        let dropping = scope.spawn(|| scene.store.drop_before(6 * SEGMENT));
        while scene.faulty.waiting() == 0 {
            std::thread::yield_now();
        }
        // Readers have lost the messages, and sends go on.
        assert_eq!(scene.store.extent().0, 6 * SEGMENT);
        scene.fill(4);
        scene.store.flush_step();
        // Usage comes to the level: the next file is refused at once, and none is made.
        scene.faulty.set_space(0, 11 * SEGMENT - 1);
        let made = scene.faulty.count(Call::Create);
        let refused = loop {
            match send_body(&scene.store, &scene.topic, 0, &sized(2, BODY)) {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert!(matches!(&refused, Error::DiskFull { needed, .. } if *needed == 11 * SEGMENT));
        assert_eq!(scene.faulty.count(Call::Create), made);
        assert!(!dropping.is_finished());
        scene.faulty.release();
        assert_eq!(dropping.join().unwrap().unwrap(), 6);
    });
    scene.faulty.set_space(0, 11 * SEGMENT);
    scene.fill(1);
    assert_ne!(contents(&scene.store), before);
}

/// (STORE-51)
#[test]
fn b_042_newer_files_go_while_an_older_one_is_held() {
    let scene = Scene::with(Retention::none().age(Duration::ZERO));
    scene.fill(1);
    let queue = &scene.topic.queues[0];
    let held = scene.store.fetch(queue, 0, 3, 1 << 20, &All).unwrap().messages;
    let detached = held.get(2).unwrap().detach();
    for round in 2..8 {
        scene.step();
        scene.fill(1);
        assert_eq!(scene.store.extent().0, (round - 1) * SEGMENT);
        assert_eq!(scene.stats().held_bytes, SEGMENT, "the held one alone");
        // Its name is gone at once, its memory with the last delivery.
        assert!(!scene.dir.path().join("commitlog/00000000000000000000").exists());
        for nth in 0..3 {
            assert_eq!(held.get(nth).unwrap().body(), sized(1, BODY));
        }
    }
    drop(held);
    assert_eq!(scene.stats().held_bytes, SEGMENT);
    assert_eq!(detached.delivery().body(), sized(1, BODY));
    drop(detached);
    assert_eq!(scene.stats().held_bytes, 0);
}

#[test]
fn a_file_that_another_process_reads_is_not_used_again() {
    let scene = Scene::with(Retention::none().age(Duration::ZERO));
    scene.fill(2);
    let name = scene.dir.path().join("commitlog/00000000000000000000");
    let reader = std::fs::File::open(name).unwrap();
    reader.try_lock_shared().unwrap();
    let read = |reader: &std::fs::File| {
        let mut bytes = vec![0; SEGMENT as usize];
        std::os::unix::fs::FileExt::read_exact_at(reader, &mut bytes, 0).unwrap();
        bytes
    };
    let before = read(&reader);
    scene.step();
    assert_eq!((scene.stats().dropped_files, scene.stats().reused_files), (2, 1));
    scene.fill(4);
    assert!(read(&reader) == before, "it is written over");
}

#[test]
fn a_log_at_its_limit_refuses_and_goes_on_once_there_is_room() {
    let scene = Scene::limited(AtLimit::Refuse);
    let send = || send_body(&scene.store, &scene.topic, 0, &sized(1, BODY));
    let refused = loop {
        scene.store.allocate_step();
        if let Err(error) = send() {
            break error;
        }
    };
    let Error::LogFull { bytes, limit } = refused else { panic!("{refused}") };
    assert_eq!((bytes, limit), (4 * SEGMENT, 4 * SEGMENT));
    let (max, end) = (scene.topic.queues[0].max(), scene.store.log.committed());
    let batch = vec![sized(1, BODY); 30];
    assert!(send_batch(&scene.store, &scene.topic, 0, &batch).is_err());
    assert!(scene.store.create_topic("small", 1).is_ok(), "what fits is taken");
    assert_eq!(scene.topic.queues[0].max(), max, "nothing half written");
    assert!(scene.store.log.committed() > end);
    assert_eq!(read(&scene.store, &scene.topic, 0).len() as u64, max);
    scene.store.drop_before(SEGMENT).unwrap();
    scene.fill(1);
    assert_eq!(scene.stats().log_bytes + scene.stats().spare_bytes, 4 * SEGMENT);
    assert_eq!(scene.stats().dropped_at_limit, 0);
}

#[test]
fn a_log_at_its_limit_drops_the_oldest_if_that_is_wanted_and_says_so() {
    let scene = Scene::limited(AtLimit::DropOldest);
    let group = scene.store.groups.number("slow").unwrap();
    let key = OffsetKey { group, incarnation: scene.topic.incarnation, queue: 0 };
    scene.store.offsets.set(key, 0).unwrap();
    let queue = &scene.topic.queues[0];
    let mut next = 0;
    for nth in 0..1000 {
        send_body(&scene.store, &scene.topic, 0, &sized(nth, BODY)).unwrap();
        if nth % 7 == 0 {
            scene.store.allocate_step();
        }
        let stats = scene.stats();
        assert!(stats.log_bytes + stats.spare_bytes <= 4 * SEGMENT, "{stats:?}");
        // A reader behind goes on at the first that is there.
        let fetch = scene.store.fetch(queue, next, 1, 1, &All).unwrap();
        match fetch.status {
            FetchStatus::Found => {
                assert_eq!(fetch.messages.get(0).unwrap().body(), sized(next, BODY));
            }
            FetchStatus::TooSmall => assert_eq!(fetch.next, queue.min()),
            other => panic!("{other:?}"),
        }
        next = if nth % 3 == 0 { fetch.next } else { next };
    }
    let stats = scene.stats();
    assert!(stats.dropped_at_limit > 10 && stats.dropped_at_limit == stats.dropped_files);
    assert_eq!(scene.store.offsets.get(key), Some(0));
    // A topic is made where its record needs a new file.
    for nth in 0..1000 {
        scene.store.create_topic(&format!("topic-{nth}-{}", "x".repeat(100)), 1).unwrap();
    }
    let expected = contents(&scene.store);
    kill(scene.store);
    assert!(contents(&open(scene.dir.path())) == expected);
}

#[test]
fn eight_threads_at_the_limit_drop_no_more_than_they_need() {
    let scene = Scene::limited(AtLimit::DropOldest);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let scene = &scene;
            scope.spawn(move || {
                for _ in 0..200 {
                    send_body(&scene.store, &scene.topic, 0, &sized(thread, BODY)).unwrap();
                }
            });
        }
    });
    let made = scene.filling() / SEGMENT + 2;
    let left = scene.stats().log_bytes / SEGMENT;
    assert!(scene.stats().dropped_files + left <= made, "{:?}", scene.stats());
    assert!(left >= 3, "{left}");
}

#[test]
fn b_028_sends_go_on_by_themselves_once_the_index_has_room_again() {
    let dir = tempfile::tempdir().unwrap();
    let faulty = Faulty::new(dir.path());
    let store = open_on(faulty.clone()).unwrap();
    let topic = topic(&store, 200);
    for queue in 0..50 {
        send(&store, &topic, queue, 0);
    }
    // Files are made for the index alone: the log has its next one.
    store.allocate_step();
    faulty.fail(Some(Call::Create), 0, u64::MAX, ErrorKind::StorageFull);
    let mut sent = vec![1; 50];
    sent.resize(200, 0);
    let mut refused = 0;
    for nth in 1..30 {
        for (queue, sent) in sent.iter_mut().enumerate() {
            match send_body(&store, &topic, queue, &sized(nth, 20)) {
                Ok(appended) => {
                    assert_eq!(appended.offset, *sent);
                    *sent += 1;
                }
                Err(Error::DiskFull { .. }) => refused += 1,
                Err(other) => panic!("{other}"),
            }
        }
    }
    assert!(refused > 0 && store.log.with_tail(|tail| tail.base()) == 0, "the index alone");
    let queues = |store: &Store, sent: &[u64]| {
        let topic = store.topics.get("t").unwrap();
        for (queue, sent) in sent.iter().enumerate() {
            assert_eq!(read(store, &topic, queue).len() as u64, *sent, "queue {queue}");
        }
    };
    queues(&store, &sent);
    faulty.heal();
    for (queue, sent) in sent.iter_mut().enumerate() {
        send_body(&store, &topic, queue, &sized(0, 20)).unwrap();
        *sent += 1;
    }
    queues(&store, &sent);
    kill(store);
    queues(&open(dir.path()), &sent);
}

#[test]
fn dropping_needs_no_space_of_a_full_disk() {
    let scene = Scene::new(SpaceRules::default());
    scene.fill(5);
    let small = |name: &PathBuf| name.starts_with("meta");
    let reserved = scene.dir.path().join("meta/reserve");
    scene.store.flush_step();
    scene.store.drop_before(SEGMENT).unwrap();
    assert!(reserved.exists(), "{:?}", files_in(scene.dir.path()).keys().filter(|n| small(n)));
    // One call is refused for want of space, as it would be without the reserve.
    scene.faulty.fail(Some(Call::Create), 0, 1, ErrorKind::StorageFull);
    assert_eq!(scene.store.drop_before(3 * SEGMENT).unwrap(), 2);
    assert!(scene.faulty.has_failed());
    assert!(reserved.exists(), "set aside again");
    // Without any it is told, and nothing has changed.
    scene.faulty.fail(Some(Call::Create), 0, u64::MAX, ErrorKind::StorageFull);
    let refused = scene.store.drop_before(4 * SEGMENT).unwrap_err();
    assert!(matches!(refused, Error::DiskFull { .. }), "{refused}");
    assert_eq!(scene.store.extent().0, 3 * SEGMENT);
    scene.faulty.heal();
    assert_eq!(scene.store.drop_before(4 * SEGMENT).unwrap(), 1);
}

#[test]
fn a_step_that_fails_is_told_and_tried_again_later() {
    let scene = Scene::with(Retention::none().age(Duration::ZERO));
    scene.fill(2);
    scene.faulty.fail(Some(Call::Create), 0, u64::MAX, ErrorKind::StorageFull);
    let now = scene.clock.clock().moment();
    assert_eq!(scene.step(), Some(now.plus(Duration::from_secs(10))));
    assert_eq!(scene.stats().failures, 1);
    assert!(scene.store.retention_failure().unwrap().contains("no space"));
    scene.faulty.heal();
    assert_eq!(scene.step(), None);
    assert_eq!(scene.store.extent().0, 2 * SEGMENT);
    scene.store.close().unwrap();
    assert_eq!(scene.step(), None, "closed");
    assert_eq!(scene.stats().failures, 1);
}

/// Keeps chosen messages alive, as pending delays do.
#[derive(Debug, Default)]
struct Chosen {
    live: StdMutex<BTreeMap<u64, u64>>,
}

impl Keep for Chosen {
    fn live(&self, range: std::ops::Range<u64>) -> Vec<u64> {
        self.live.lock().unwrap().range(range).map(|(position, _)| *position).collect()
    }

    fn moved(&self, from: u64, to: &Appended) {
        let mut live = self.live.lock().unwrap();
        let number = live.remove(&from).expect("it was live");
        live.insert(to.position, number);
    }
}

#[test]
fn what_is_still_needed_is_carried_forward_and_names_where_it_was() {
    let scene = Scene::with(Retention::none().age(Duration::ZERO));
    let keeper = Arc::new(Chosen::default());
    scene.store.keep(keeper.clone());
    scene.store.create_topic("pending", 2).unwrap();
    let pending_topic = scene.store.topics.get("pending").unwrap();
    let mut born = BTreeMap::new();
    for nth in 0..10 {
        let body = sized(nth, 100);
        let message = Pending {
            tag_hash: nth as i32,
            born_ms: Some(NOW_MS - nth),
            properties: Source::Encoded(b"K\x01v\x02"),
            body: &body,
        };
        let queue = &pending_topic.queues[nth as usize % 2];
        let appended = failed(scene.store.append(&pending_topic, queue, message)).unwrap();
        if nth % 3 == 0 {
            keeper.live.lock().unwrap().insert(appended.position, nth);
            born.insert(nth, appended.position);
        }
        scene.fill(1);
    }
    let before = keeper.live.lock().unwrap().clone();
    scene.pass(5);
    scene.step();
    let after = keeper.live.lock().unwrap().clone();
    assert_eq!(after.len(), 4);
    for (position, nth) in &after {
        assert!(*position >= scene.store.extent().0, "it was dropped");
        let file = scene.store.log.file(*position).unwrap();
        let record = file.record(*position).unwrap();
        assert!(record.verify(scene.store.store_id));
        assert_eq!(record.body(), sized(*nth, 100));
        assert_eq!((record.tag_hash(), record.properties()), (*nth as i32, &b"K\x01v\x02"[..]));
        assert_eq!(record.born_ms(), NOW_MS - nth);
        let (origin, _) = before.iter().find(|(_, number)| *number == nth).unwrap();
        assert_eq!((record.origin(), born[nth]), (*origin, *origin));
        assert_eq!(usize::from(record.queue()), *nth as usize % 2);
    }
    // In their queues they stand at the end; the others are gone.
    let of_queue = |queue| read(&scene.store, &pending_topic, queue).len();
    assert_eq!(of_queue(0) + of_queue(1), 4);
    // Durable before the old ones went: a crash right after loses none.
    let expected = contents(&scene.store);
    kill(scene.store);
    assert!(contents(&open(scene.dir.path())) == expected);
}

#[test]
fn nothing_is_dropped_if_it_cannot_be_carried_forward() {
    let scene = Scene::limited(AtLimit::Refuse);
    let keeper = Arc::new(Chosen::default());
    scene.store.keep(keeper.clone());
    let first = send_body(&scene.store, &scene.topic, 0, &sized(7, 30_000)).unwrap();
    keeper.live.lock().unwrap().insert(first.position, 7);
    while send_body(&scene.store, &scene.topic, 0, &sized(1, BODY)).is_ok() {}
    // The copy takes a file of its own: the limit gives way to what is going to free space.
    scene.faulty.fail(Some(Call::Create), 0, u64::MAX, ErrorKind::StorageFull);
    assert!(scene.store.drop_before(SEGMENT).is_err());
    assert_eq!((scene.store.extent().0, scene.topic.queues[0].min()), (0, 0));
    scene.faulty.heal();
    assert_eq!(scene.store.drop_before(SEGMENT).unwrap(), 1);
    let position = *keeper.live.lock().unwrap().keys().next().unwrap();
    let file = scene.store.log.file(position).unwrap();
    assert_eq!(file.record(position).unwrap().body(), sized(7, 30_000));
    scene.store.close().unwrap();
}

#[test]
fn nothing_is_dropped_while_a_topic_takes_nothing_that_is_carried_forward() {
    let scene = Scene::limited(AtLimit::Refuse);
    let keeper = Arc::new(Chosen::default());
    scene.store.keep(keeper.clone());
    let first = send_body(&scene.store, &scene.topic, 0, &sized(7, 30_000)).unwrap();
    keeper.live.lock().unwrap().insert(first.position, 7);
    while send_body(&scene.store, &scene.topic, 0, &sized(1, BODY)).is_ok() {}
    let open = scene.topic.config;
    let closed = open.permission(crate::Permission::ReadOnly);
    scene.store.update_topic(&scene.topic.name, closed).unwrap();
    let dropped = scene.store.drop_before(SEGMENT);
    assert!(matches!(dropped, Err(Error::NotPermitted { .. })), "{dropped:?}");
    assert_eq!(scene.store.extent().0, 0);
    scene.store.update_topic(&scene.topic.name, open).unwrap();
    assert_eq!(scene.store.drop_before(SEGMENT).unwrap(), 1);
    assert!(*keeper.live.lock().unwrap().keys().next().unwrap() > first.position);
    scene.store.close().unwrap();
}

#[test]
fn close_waits_for_whoever_removes_files() {
    let scene = Scene::new(SpaceRules::default());
    scene.fill(5);
    scene.faulty.hold(Call::Unlink);
    std::thread::scope(|scope| {
        let dropping = scope.spawn(|| scene.store.drop_before(5 * SEGMENT));
        while scene.faulty.waiting() == 0 {
            std::thread::yield_now();
        }
        let closing = scope.spawn(|| scene.store.close());
        while scene.store.drop_before(SEGMENT).is_ok() {
            std::thread::yield_now();
        }
        assert!(!closing.is_finished());
        scene.faulty.release();
        assert_eq!(dropping.join().unwrap().unwrap(), 5);
        closing.join().unwrap().unwrap();
    });
    assert!(open(scene.dir.path()).report().clean);
}
