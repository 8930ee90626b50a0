//! When messages go: by age, by size, at a limit, and what never goes.

use crate::support::*;
use rocklet::{
    AtLimit, Broker, BrokerBuilder, DrivenClock, Error, Message, PullConsumer, PullStatus,
    Retention, Start,
};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

const SEGMENT: u64 = 64 << 10;
const NOW_MS: u64 = 1_700_000_000_000;
const HOUR: Duration = Duration::from_secs(3600);

fn builder(dir: &Path, clock: &DrivenClock) -> BrokerBuilder {
    Broker::builder(dir).segment_bytes(SEGMENT).clock(clock)
}

/// Background work is done as steps, at the time that the clock shows and no later.
fn scene_by(retention: Retention) -> (Scene, DrivenClock) {
    let (clock, dir) = (DrivenClock::with_steps(NOW_MS, 1), tempfile::tempdir().unwrap());
    let broker = builder(dir.path(), &clock).retention(retention).open().unwrap();
    broker.create_topic("t", 1).unwrap();
    (Scene { broker, dir }, clock)
}

fn reopen(scene: Scene, clock: &DrivenClock, retention: Retention) -> Scene {
    let Scene { broker, dir } = scene;
    broker.close().unwrap();
    let broker = builder(dir.path(), clock).retention(retention).open().unwrap();
    Scene { broker, dir }
}

/// Sends numbered messages of 20 KB, of which three fill a file.
fn send_large(broker: &Broker, numbers: std::ops::Range<u32>) {
    for nth in numbers {
        send_one(broker, nth).unwrap();
    }
}

fn send_one(broker: &Broker, nth: u32) -> rocklet::Result<rocklet::Receipt> {
    let mut body = body(nth);
    body.resize(20_000, 0);
    broker.producer().send(&Message::new("t", body))
}

fn number_of(delivery: &rocklet::Delivery<'_>) -> u32 {
    u32::from_le_bytes(delivery.body()[..4].try_into().unwrap())
}

fn bounds(broker: &Broker) -> (u64, u64) {
    (broker.min_offset(&q("t", 0)).unwrap(), broker.max_offset(&q("t", 0)).unwrap())
}

/// The numbers of all messages that are stored, which must be those of their offsets.
fn stored_numbers(broker: &Broker) -> Vec<u32> {
    let reader = broker.pull_consumer("reading").start().unwrap();
    let (min, max) = bounds(broker);
    let numbers = from(&reader, min, max);
    assert_eq!(numbers, (min as u32..max as u32).collect::<Vec<_>>());
    numbers
}

fn from(reader: &PullConsumer, mut offset: u64, end: u64) -> Vec<u32> {
    let mut numbers = Vec::new();
    while offset < end {
        let pull = reader.pull(&q("t", 0), offset, 100).unwrap();
        assert_eq!(pull.status, PullStatus::Found);
        numbers.extend(pull.messages.iter().map(|delivery| number_of(&delivery)));
        offset = pull.next;
    }
    numbers
}

#[track_caller]
fn advance_until(clock: &DrivenClock, step: Duration, what: &str, condition: impl Fn() -> bool) {
    wait_for(what, || {
        clock.advance(step);
        condition()
    });
}

/// (STORE-49)
#[test]
fn b_069_files_made_while_the_broker_runs_expire_like_old_ones() {
    let retention = Retention::none().age(Duration::from_secs(2));
    let (mut scene, clock) = scene_by(retention.clone());
    for round in 0..30 {
        // One second each, and as many more as the threads of a busy machine take.
        send_large(&scene.broker, 3 * round..3 * round + 3);
        clock.advance(Duration::from_secs(1));
        advance_until(&clock, Duration::from_millis(100), "flat use", || {
            scene.broker.stats().retention.log_bytes <= 5 * SEGMENT
        });
        if round == 15 {
            scene = reopen(scene, &clock, retention.clone());
        }
    }
    assert_eq!(bounds(&scene.broker).1, 90);
    assert!(bounds(&scene.broker).0 >= 72, "{:?}", bounds(&scene.broker));
    stored_numbers(&scene.broker);
    assert_eq!(scene.broker.retention_failure(), None);
}

#[test]
fn b_070_messages_of_a_clock_in_the_future_go_with_their_neighbours() {
    let ten_years = 10 * 365 * 24 * 3600 * 1000;
    for restart in [false, true] {
        let (mut scene, clock) = scene_by(Retention::none().age(HOUR));
        send_large(&scene.broker, 0..6);
        clock.set_wall_ms(NOW_MS + ten_years);
        send_large(&scene.broker, 6..12);
        clock.set_wall_ms(NOW_MS);
        if restart {
            scene = reopen(scene, &clock, Retention::none().age(HOUR));
        }
        send_large(&scene.broker, 12..24);
        assert_eq!(bounds(&scene.broker), (0, 24), "no clock makes messages old at once");
        advance_until(&clock, Duration::from_secs(60), "all but the last file to go", || {
            bounds(&scene.broker).0 >= 21
        });
        assert!(clock.wall_ms() - NOW_MS < 3 * 3_600_000, "{}", clock.wall_ms() - NOW_MS);
        stored_numbers(&scene.broker);
    }
}

#[test]
fn b_071_a_message_that_claims_to_be_old_stays_as_long_as_any_other() {
    let (scene, clock) = scene_by(Retention::none().age(HOUR));
    let producer = scene.broker.producer();
    for born_ms in [0, NOW_MS / 1000, u64::MAX] {
        for _ in 0..3 {
            let message = Message::new("t", vec![7; 20_000]).born_ms(born_ms);
            let receipt = producer.send(&message).unwrap();
            assert_eq!(receipt.store_ms, NOW_MS);
        }
    }
    advance_until(&clock, Duration::from_secs(60), "the first file to go", || {
        bounds(&scene.broker).0 > 0
    });
    assert!(clock.wall_ms() - NOW_MS >= 3_600_000);
}

#[test]
fn b_072_the_last_messages_of_a_broker_that_falls_silent_stay() {
    for round in 0..3 {
        let retention = Retention::none().age(Duration::from_secs(2));
        let (scene, clock) = scene_by(retention.clone());
        send_large(&scene.broker, 0..9);
        send_to(&scene.broker, "idle", 0, 5);
        let last = bounds(&scene.broker);
        let file = std::fs::canonicalize(scene.dir.path()).unwrap().join("commitlog");
        advance_until(&clock, Duration::from_secs(1), "the full files to go", || {
            bounds(&scene.broker).0 >= 6
        });
        clock.advance(Duration::from_secs(30));
        let scene = if round == 2 { reopen(scene, &clock, retention) } else { scene };
        clock.advance(Duration::from_secs(30));
        let consumer = scene.broker.pull_consumer("new").subscribe("idle", "*").unwrap();
        let mut consumer = consumer.start().unwrap();
        assert_eq!(numbers(&consumer.poll(SOON).unwrap()), [5]);
        assert_eq!(bounds(&scene.broker).1, last.1);
        assert!(std::fs::read_dir(file).unwrap().count() >= 1);
        send_to(&scene.broker, "idle", 0, 6);
        assert_eq!(numbers(&consumer.poll(SOON).unwrap()), [6]);
    }
}

#[test]
fn b_074_a_queue_that_was_cut_to_nothing_takes_messages_at_once() {
    for dropped in [false, true] {
        let (scene, clock) = scene_by(Retention::none());
        let first = if dropped { 3 } else { 0 };
        if dropped {
            // The queue had messages once, which are all gone.
            send_large(&scene.broker, 0..3);
            let other = Message::new("other", vec![1; 20_000]);
            scene.broker.producer().send(&other).unwrap();
            let end = scene.broker.stats().log_end;
            scene.broker.drop_before(end).unwrap();
            assert_eq!(bounds(&scene.broker), (3, 3));
        }
        let torn = send_one(&scene.broker, first as u32).unwrap().position;
        // As of a process that was killed while it wrote the one message of the queue.
        let copy = copy_while_open(scene.dir.path());
        let name = std::fs::read_dir(copy.path().join("commitlog")).unwrap();
        let bases = name.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let base = bases.filter(|name| name.parse::<u64>().is_ok_and(|base| base <= torn)).max();
        let base = base.unwrap();
        let path = copy.path().join("commitlog").join(&base);
        let mut bytes = std::fs::read(&path).unwrap();
        let at = (torn - base.parse::<u64>().unwrap()) as usize;
        bytes[at + 100..at + 200].fill(9);
        std::fs::write(&path, bytes).unwrap();
        scene.broker.close().unwrap();
        let scene = Scene { broker: builder(copy.path(), &clock).open().unwrap(), dir: copy };
        assert_eq!(scene.broker.recovery_report().cut_at, Some(torn));
        assert_eq!(bounds(&scene.broker), (first, first));
        let consumer = scene.broker.pull_consumer("g").subscribe("t", "*").unwrap();
        let mut consumer = consumer.start().unwrap();
        assert_eq!(send_one(&scene.broker, first as u32).unwrap().offset, first);
        let found = consumer.poll(SOON).unwrap();
        assert_eq!(found.iter().map(|d| number_of(&d)).collect::<Vec<_>>(), [first as u32]);
        stored_numbers(&scene.broker);
    }
}

fn copy_while_open(dir: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for folder in ["", "commitlog", "index", "meta"] {
        std::fs::create_dir_all(copy.path().join(folder)).unwrap();
        for entry in std::fs::read_dir(dir.join(folder)).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_file() {
                std::fs::copy(entry.path(), copy.path().join(folder).join(entry.file_name()))
                    .unwrap();
            }
        }
    }
    copy
}

#[test]
fn b_175_a_clock_that_is_set_back_changes_no_order_and_no_age() {
    let day = Duration::from_secs(24 * 3600);
    let (scene, clock) = scene_by(Retention::none().age(HOUR));
    let consumer = |scene: &Scene| {
        let live = scene.broker.pull_consumer("live").subscribe("t", "*").unwrap();
        live.start().unwrap()
    };
    let mut live = consumer(&scene);
    let (mut receipts, mut seen) = (Vec::new(), Vec::new());
    let mut send = |scene: &Scene, live: &mut PullConsumer, range: std::ops::Range<u32>| {
        for nth in range {
            receipts.push(send_one(&scene.broker, nth).unwrap());
            let found = live.poll(SOON).unwrap();
            seen.extend(found.iter().map(|delivery| number_of(&delivery)));
        }
        live.commit().unwrap();
    };
    send(&scene, &mut live, 0..4);
    clock.set_wall_ms(NOW_MS - day.as_millis() as u64);
    send(&scene, &mut live, 4..8);
    drop(live);
    let scene = reopen(scene, &clock, Retention::none().age(HOUR));
    let mut live = consumer(&scene);
    send(&scene, &mut live, 8..12);
    assert_eq!(seen, (0..12).collect::<Vec<_>>());
    for pair in receipts.windows(2) {
        assert!(pair[0].position < pair[1].position && pair[0].offset + 1 == pair[1].offset);
        assert!(pair[0].store_ms <= pair[1].store_ms);
    }
    assert!(scene.broker.stats().log_end > receipts[11].position);
    assert_eq!(bounds(&scene.broker), (0, 12));
    let at_first = UNIX_EPOCH + Duration::from_millis(receipts[0].store_ms);
    let by_time = scene.broker.pull_consumer("time").subscribe("t", "*").unwrap();
    let mut by_time = by_time.start_from(Start::Time(at_first)).start().unwrap();
    assert_eq!(number_of(&by_time.poll(SOON).unwrap().get(0).unwrap()), 0);
    let before = clock.wall_ms();
    advance_until(&clock, Duration::from_secs(60), "the full files to go", || {
        bounds(&scene.broker).0 >= 9
    });
    // Neither a day early nor a day late.
    let passed = clock.wall_ms() - before;
    assert!((3_500_000..3 * 3_600_000).contains(&passed), "{passed}");
}

#[test]
fn what_a_group_has_still_to_consume_stays_until_it_commits() {
    let (scene, clock) = scene_by(Retention::none().log_bytes(2 * SEGMENT).keep_unconsumed());
    let consumer = scene.broker.pull_consumer("slow").subscribe("t", "*").unwrap();
    let mut consumer = consumer.batch(100).start().unwrap();
    send_large(&scene.broker, 0..30);
    wait_for("retention to wait", || {
        clock.step();
        scene.broker.stats().retention.waits_for_groups
    });
    assert_eq!(bounds(&scene.broker), (0, 30));
    let mut polled = Vec::new();
    while polled.len() < 30 {
        polled.extend(consumer.poll(SOON).unwrap().iter().map(|delivery| number_of(&delivery)));
        consumer.commit().unwrap();
    }
    assert_eq!(polled, (0..30).collect::<Vec<_>>());
    advance_until(&clock, Duration::from_millis(100), "the consumed files to go", || {
        scene.broker.stats().retention.log_bytes <= 2 * SEGMENT
    });
    assert!(bounds(&scene.broker).0 > 0);
    assert_eq!(scene.broker.stats().retention.dropped_at_limit, 0);
}

#[test]
fn a_limit_of_the_log_is_told_to_the_sender_or_costs_the_oldest() {
    let dir = tempfile::tempdir().unwrap();
    let open = |at_limit| {
        let builder = Broker::builder(dir.path()).segment_bytes(SEGMENT);
        builder.max_log_bytes(4 * SEGMENT).at_limit(at_limit).open().unwrap()
    };
    let broker = open(AtLimit::Refuse);
    broker.create_topic("t", 1).unwrap();
    let error = (0..).find_map(|nth| send_one(&broker, nth).err()).unwrap();
    assert!(matches!(error, Error::LogFull { .. }), "{error}");
    let sent = bounds(&broker).1;
    assert_eq!(sent, 12, "four files");
    assert_eq!(stored_numbers(&broker).len() as u64, sent);
    let third = broker.pull_consumer("reading").start().unwrap();
    let third = third.pull(&q("t", 0), 3, 1).unwrap().messages.get(0).unwrap().position();
    assert!(broker.drop_before(third).unwrap() > 0);
    send_one(&broker, sent as u32).unwrap();
    broker.close().unwrap();

    let broker = open(AtLimit::DropOldest);
    for nth in sent as u32 + 1..200 {
        send_one(&broker, nth).unwrap();
        let stats = broker.stats().retention;
        assert!(stats.log_bytes + stats.spare_bytes <= 4 * SEGMENT, "{stats:?}");
    }
    let stats = broker.stats().retention;
    assert!(stats.dropped_at_limit > 50 && stats.failures == 0, "{stats:?}");
    assert_eq!(stored_numbers(&broker).last(), Some(&199));
}

#[test]
fn space_that_is_to_stay_free_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let builder = || Broker::builder(dir.path()).segment_bytes(SEGMENT);
    let broker = builder().min_free_bytes(1 << 60).open().unwrap();
    broker.create_topic("t", 1).unwrap();
    let error = (0..).find_map(|nth| send_one(&broker, nth).err()).unwrap();
    assert!(matches!(error, Error::DiskFull { needed, .. } if needed > 1 << 60), "{error}");
    assert_eq!(broker.stats().retention.log_bytes, SEGMENT);
    let sent = stored_numbers(&broker).len() as u32;
    broker.close().unwrap();
    let broker = builder().open().unwrap();
    send_large(&broker, sent..sent + 10);
    stored_numbers(&broker);
}

#[test]
fn settings_of_retention_are_checked() {
    let dir = tempfile::tempdir().unwrap();
    let builder = || Broker::builder(dir.path()).segment_bytes(SEGMENT);
    for percent in [0, 100, 255] {
        let retention = Retention::none().disk_percent(percent);
        let error = builder().retention(retention).open().unwrap_err();
        assert!(matches!(error, Error::Setting { name: "disk_percent", .. }), "{error}");
    }
    let error = builder().max_log_bytes(4 * SEGMENT - 1).open().unwrap_err();
    assert!(matches!(error, Error::Setting { name: "max_log_bytes", .. }), "{error}");
    let retention = Retention::none().keep_unconsumed_by(["a b"]);
    let error = builder().retention(retention).open().unwrap_err();
    assert!(matches!(error, Error::Name { what: "group", .. }), "{error}");
}
