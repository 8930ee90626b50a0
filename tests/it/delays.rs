//! Messages that are delivered later.

use crate::support::*;
use rocklet::{
    AtLimit, Broker, DelayLevels, DrivenClock, Error, Message, Permission, Receipt, Recovery,
    Retention, TopicConfig,
};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const NOW_MS: u64 = 1_700_000_000_000;
const SEGMENT: u64 = 64 << 10;
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// A broker that lives by a clock, which runs its background work, too.
struct Timed {
    broker: Broker,
    dir: tempfile::TempDir,
    clock: DrivenClock,
}

fn open(dir: &Path, clock: &DrivenClock) -> Broker {
    Broker::builder(dir).segment_bytes(SEGMENT).clock(clock).open().unwrap()
}

fn timed() -> Timed {
    let (clock, dir) = (DrivenClock::with_steps(NOW_MS, 1), tempfile::tempdir().unwrap());
    let broker = open(dir.path(), &clock);
    broker.create_topic("t", 1).unwrap();
    Timed { broker, dir, clock }
}

impl Timed {
    fn delay(&self, nth: u32, delay: Duration) -> Receipt {
        self.broker.producer().send(&Message::new("t", body(nth)).delay(delay)).unwrap()
    }

    fn deliver_at(&self, nth: u32, ms: u64) -> Receipt {
        let message = Message::new("t", body(nth)).deliver_at(at(ms));
        self.broker.producer().send(&message).unwrap()
    }

    fn advance(&self, duration: Duration) {
        self.clock.advance(duration);
    }

    /// The numbers of all messages in the topic, in the order in which they came.
    fn arrived(&self) -> Vec<u32> {
        self.broker.browse("t").unwrap().map(|found| number(&found.unwrap().delivery())).collect()
    }

    fn waiting(&self) -> usize {
        self.broker.stats().delayed
    }

    fn reopen(self) -> Self {
        let Self { broker, dir, clock } = self;
        broker.close().unwrap();
        drop(broker);
        let broker = open(dir.path(), &clock);
        assert!(broker.recovery_report().clean);
        Self { broker, dir, clock }
    }

    /// Opens what a kill would leave now.
    fn killed(&self) -> Self {
        let dir = copy_of(self.dir.path());
        let clock = DrivenClock::with_steps(self.clock.wall_ms(), 2);
        let broker = open(dir.path(), &clock);
        Self { broker, dir, clock }
    }
}

fn at(ms: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(ms)
}

#[test]
fn delay_2_a_message_comes_when_its_delay_is_over_and_not_before() {
    let scene = timed();
    let receipt = scene.delay(1, 10 * SECOND);
    assert_eq!((receipt.queue, receipt.offset), (0, u64::MAX));
    assert_eq!((scene.arrived(), scene.waiting()), (vec![], 1));
    scene.advance(10 * SECOND - Duration::from_millis(1));
    assert_eq!(scene.arrived(), []);
    scene.advance(Duration::from_millis(1));
    assert_eq!((scene.arrived(), scene.waiting()), (vec![1], 0));
    scene.advance(HOUR);
    assert_eq!(scene.arrived(), [1]);
}

#[test]
fn delay_5_what_comes_is_the_message_that_was_sent() {
    let scene = timed();
    let message = Message::new("t", b"body").tag("paid").key("a").key("b").flag(7);
    let message = message.property("x", "1").born_ms(NOW_MS - 5).delay(SECOND);
    let receipt = scene.broker.producer().send(&message).unwrap();
    scene.advance(SECOND);
    let mut found = scene.broker.browse("t").unwrap();
    let found = found.next().unwrap().unwrap();
    let found = found.delivery();
    assert_eq!(found.id(), receipt.id);
    assert!(found.position() > receipt.position);
    assert_eq!((found.topic(), found.body(), found.tag()), ("t", &b"body"[..], Some("paid")));
    assert_eq!(found.keys().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(found.properties().collect::<Vec<_>>(), [("x", "1")]);
    assert_eq!((found.flag(), found.born_ms(), found.attempt()), (7, NOW_MS - 5, 0));
    assert_eq!((found.offset(), found.store_ms()), (0, NOW_MS + 1000));
    let by_key = scene.broker.find_by_key("t", "b", 0..=u64::MAX, 10).unwrap();
    assert_eq!(by_key.iter().map(|found| found.id()).collect::<Vec<_>>(), [receipt.id]);
}

#[test]
fn delay_4_messages_come_in_the_order_in_which_they_are_due() {
    let scene = timed();
    for (nth, seconds) in [30, 10, 20, 10, 0].into_iter().enumerate() {
        scene.delay(nth as u32, seconds * SECOND);
    }
    scene.deliver_at(5, NOW_MS + 15_000);
    scene.deliver_at(6, NOW_MS - 1);
    scene.advance(HOUR);
    assert_eq!(scene.arrived(), [4, 6, 1, 3, 5, 2, 0]);
}

/// (DELAY-12)
#[test]
fn delay_7_what_waits_survives_a_close_and_a_kill_and_comes_once() {
    let mut scene = timed();
    for nth in 0..20 {
        scene.delay(nth, (nth + 1) * SECOND);
    }
    scene.advance(5 * SECOND);
    let killed = scene.killed();
    assert_eq!((killed.arrived(), killed.waiting()), ((0..5).collect(), 15));
    killed.advance(HOUR);
    assert_eq!(killed.arrived(), (0..20).collect::<Vec<_>>());
    for round in 1..4 {
        scene = scene.reopen();
        assert_eq!(scene.waiting() as u32, 20 - 5 * round);
        scene.advance(5 * SECOND);
        assert_eq!(scene.killed().waiting() as u32, 15 - 5 * round);
    }
    assert_eq!(scene.arrived(), (0..20).collect::<Vec<_>>());
    assert!(scene.broker.verify().unwrap().is_sound());
}

#[test]
fn delay_7_the_log_alone_tells_what_waits() {
    let scene = timed();
    let cancelled = scene.delay(9, HOUR);
    for nth in 0..6 {
        scene.delay(nth, (nth + 1) * SECOND);
    }
    scene.advance(3 * SECOND);
    scene.broker.cancel(cancelled.id).unwrap();
    let scene = scene.reopen();
    scene.broker.close().unwrap();
    let path = scene.dir.path();
    for damage in 0..3 {
        let copy = copy_of(path);
        let table = copy.path().join("meta/delays");
        match damage {
            0 => std::fs::remove_file(&table).unwrap(),
            1 => std::fs::write(&table, vec![0; 100]).unwrap(),
            _ => {
                let bytes = std::fs::read(&table).unwrap();
                std::fs::write(&table, &bytes[..bytes.len() - 1]).unwrap();
            }
        }
        let clock = DrivenClock::with_steps(scene.clock.wall_ms(), 1);
        let builder = || Broker::builder(copy.path()).segment_bytes(SEGMENT).clock(&clock);
        let salvage = if damage == 2 { Recovery::Salvage } else { Recovery::Strict };
        let broker = builder().recovery(salvage).open().unwrap();
        assert!(broker.recovery_report().index_rebuilt.is_some());
        let (dir, clock) = (copy, clock.clone());
        let found = Timed { broker, dir, clock };
        assert_eq!((found.arrived(), found.waiting()), (vec![0, 1, 2], 3));
        let found = found.reopen();
        found.advance(HOUR);
        assert_eq!(found.arrived(), [0, 1, 2, 3, 4, 5]);
    }
}

/// (DELAY-8)
#[test]
fn b_131_a_table_that_does_not_fit_the_log_is_made_anew() {
    let scene = timed();
    let cancelled = scene.delay(9, HOUR);
    (0..4).for_each(|nth| _ = scene.delay(nth, (nth + 1) * SECOND));
    let scene = scene.reopen();
    let table = |dir: &Path| dir.join("meta/delays");
    let old = std::fs::read(table(scene.dir.path())).unwrap();
    scene.advance(2 * SECOND);
    scene.broker.cancel(cancelled.id).unwrap();
    // A kill, and the table of a time before.
    let behind = copy_of(scene.dir.path());
    scene.broker.flush().unwrap();
    let ahead = copy_of(scene.dir.path());
    let later = scene.delay(4, 5 * SECOND);
    let scene = scene.reopen();
    let new = std::fs::read(table(scene.dir.path())).unwrap();
    std::fs::write(table(ahead.path()), &new).unwrap();
    std::fs::write(table(behind.path()), &old[..old.len() - 1]).unwrap();
    let closed = copy_of(scene.dir.path());
    scene.broker.close().unwrap();
    let behind_the_close = copy_of(scene.dir.path());
    std::fs::write(table(behind_the_close.path()), &old).unwrap();
    for (dir, last) in [(behind, 4), (ahead, 4), (closed, 5), (behind_the_close, 5)] {
        let clock = DrivenClock::with_steps(scene.clock.wall_ms(), 1);
        let broker = open(dir.path(), &clock);
        let found = Timed { broker, dir, clock };
        assert_eq!(found.arrived(), [0, 1]);
        assert!(!found.broker.cancel(cancelled.id).unwrap());
        assert_eq!(found.waiting() as u32, last - 2, "{}", found.broker.recovery_report());
        let found = found.reopen();
        found.advance(HOUR);
        assert_eq!(found.arrived(), (0..last).collect::<Vec<_>>());
        assert!(found.broker.verify().unwrap().is_sound());
    }
    assert!(later.position > cancelled.position);
}

#[test]
fn a_message_that_waits_is_cancelled_once_and_for_good() {
    let scene = timed();
    let ids: Vec<_> = (0..4).map(|nth| scene.delay(nth, (nth + 1) * SECOND).id).collect();
    let at_once = send_to(&scene.broker, "t", 0, 9).id;
    scene.advance(SECOND);
    let cancel = |id| scene.broker.cancel(id).unwrap();
    assert!(!cancel(ids[0]), "it has come");
    assert!(!cancel(at_once) && !cancel("0".repeat(32).parse().unwrap()));
    assert!(cancel(ids[2]) && !cancel(ids[2]));
    assert_eq!(scene.waiting(), 2);
    let killed = scene.killed();
    let scene = scene.reopen();
    assert!(!scene.broker.cancel(ids[2]).unwrap());
    assert!(scene.broker.cancel(ids[3]).unwrap());
    for (scene, expected) in [(killed, vec![9, 0, 1, 3]), (scene, vec![9, 0, 1])] {
        scene.advance(HOUR);
        assert_eq!(scene.arrived(), expected);
    }
}

#[test]
fn delay_10_nonsense_is_refused_before_anything_is_stored() {
    let scene = timed();
    let producer = scene.broker.producer();
    let year = 366 * 24 * HOUR;
    let message = || Message::new("t", b"x");
    for far in [
        message().delay(year + SECOND),
        message().delay(Duration::MAX),
        message().deliver_at(at(NOW_MS) + year + SECOND),
    ] {
        assert!(matches!(producer.send(&far), Err(Error::DelayTooLong { .. })), "{far:?}");
    }
    let batch = [message(), message().delay(SECOND)];
    assert!(matches!(producer.send_batch(&batch), Err(Error::Batch { .. })));
    producer.send_batch(&[message(), message().delay(Duration::ZERO)]).unwrap();
    let system = Message::new("SCHEDULE_TOPIC_XXXX", b"x").delay(SECOND);
    assert!(matches!(producer.send(&system), Err(Error::Name { .. })));
    assert_eq!((scene.waiting(), stored(&scene.broker, "t")), (0, 2));
    assert_eq!(scene.broker.topics(), ["t"]);
}

/// (STORE-10)
#[test]
fn delay_1_levels_are_those_of_the_table() {
    let (clock, dir) = (DrivenClock::with_steps(NOW_MS, 1), tempfile::tempdir().unwrap());
    let levels = DelayLevels::parse("5s 1m").unwrap();
    let builder = Broker::builder(dir.path()).segment_bytes(SEGMENT).clock(&clock);
    let broker = builder.delay_levels(levels).open().unwrap();
    broker.create_topic("t", 1).unwrap();
    let scene = Timed { broker, dir, clock };
    for (nth, level) in [(0, 0), (1, 1), (2, 2), (3, 18)] {
        // A level comes before a duration.
        let message = Message::new("t", body(nth)).delay_level(level);
        let message = if level > 0 { message.delay(HOUR) } else { message };
        scene.broker.producer().send(&message).unwrap();
    }
    assert_eq!(scene.arrived(), [0]);
    scene.advance(5 * SECOND);
    assert_eq!(scene.arrived(), [0, 1]);
    scene.advance(55 * SECOND);
    assert_eq!(scene.arrived(), [0, 1, 2, 3]);
}

#[test]
fn a_message_goes_with_its_topic_and_that_is_counted() {
    let scene = timed();
    scene.broker.create_topic("gone", 1).unwrap();
    let producer = scene.broker.producer();
    for topic in ["gone", "t"] {
        producer.send(&Message::new(topic, body(1)).delay(SECOND)).unwrap();
    }
    scene.broker.delete_topic("gone").unwrap();
    scene.broker.create_topic("gone", 1).unwrap();
    scene.advance(SECOND);
    assert_eq!((scene.arrived(), stored(&scene.broker, "gone")), (vec![1], 0));
    let stats = scene.broker.stats();
    assert_eq!((stats.delayed, stats.dropped_delays, stats.failed_delays), (0, 1, 0));
    assert_eq!(scene.killed().waiting(), 0);
}

#[test]
fn a_queue_that_was_given_up_has_another_one_in_its_place() {
    let scene = timed();
    scene.broker.update_topic("t", 4).unwrap();
    let message = Message::new("t", body(1)).queue(3).delay(SECOND);
    scene.broker.producer().send(&message).unwrap();
    scene.broker.update_topic("t", 1).unwrap();
    scene.advance(SECOND);
    assert_eq!(scene.arrived(), [1]);
}

#[test]
fn b_135_one_that_cannot_be_stored_holds_up_nobody_and_nothing_comes_twice() {
    let scene = timed();
    let shut = TopicConfig::new(1).permission(Permission::ReadOnly);
    scene.broker.create_topic("shut", 1).unwrap();
    for nth in 0..10 {
        let topic = if nth == 6 { "shut" } else { "t" };
        let message = Message::new(topic, body(nth)).delay(SECOND);
        scene.broker.producer().send(&message).unwrap();
    }
    scene.broker.update_topic("shut", shut).unwrap();
    scene.advance(2 * SECOND);
    let others = [0, 1, 2, 3, 4, 5, 7, 8, 9];
    assert_eq!((scene.arrived(), scene.waiting()), (others.to_vec(), 1));
    assert_eq!(scene.killed().waiting(), 1);
    scene.broker.update_topic("shut", 1).unwrap();
    scene.advance(60 * SECOND);
    assert_eq!((scene.arrived(), stored(&scene.broker, "shut")), (others.to_vec(), 1));
    assert_eq!(scene.waiting(), 0);
}

/// (B-135)
#[test]
fn delay_4_a_thousand_that_cannot_be_stored_are_tried_as_one_and_seldom() {
    let scene = timed();
    let shut = TopicConfig::new(1).permission(Permission::ReadOnly);
    scene.broker.create_topic("shut", 1).unwrap();
    let send = |nth, ms| {
        let message = Message::new("shut", body(nth)).delay(Duration::from_millis(ms));
        scene.broker.producer().send(&message).unwrap().id
    };
    let ids: Vec<_> = (0..1000).map(|nth| send(nth, 2000 - u64::from(nth))).collect();
    scene.broker.update_topic("shut", shut).unwrap();
    scene.advance(HOUR);
    let failed = scene.broker.stats().failed_delays;
    // After 1, 2, 4, 8, 16 and 32 seconds, and then each minute.
    assert!((60..=70).contains(&failed), "{failed}");
    scene.delay(5, SECOND);
    scene.advance(SECOND);
    assert_eq!((scene.arrived(), scene.waiting()), (vec![5], 1000), "others go");
    assert!(scene.broker.cancel(ids[7]).unwrap() && !scene.broker.cancel(ids[7]).unwrap());
    let killed = scene.killed();
    killed.advance(HOUR);
    assert_eq!((killed.waiting(), scene.waiting()), (999, 999));
    scene.broker.update_topic("shut", 1).unwrap();
    scene.advance(60 * SECOND);
    assert_eq!((scene.waiting(), stored(&scene.broker, "shut")), (0, 999));
    let come: Vec<u32> =
        scene.broker.browse("shut").unwrap().map(|m| number(&m.unwrap().delivery())).collect();
    assert!(come.is_sorted_by(|a, b| a > b), "in the order in which they were due");
}

/// Damages the body of a message that stands at a position, under the open broker.
fn damage(scene: &Timed, position: u64) {
    let (base, at) = (position / SEGMENT * SEGMENT, position % SEGMENT);
    let log = std::fs::read_dir(scene.dir.path().join("commitlog")).unwrap();
    let mut paths = log.map(|entry| entry.unwrap().path());
    let path = paths.find(|path| path.to_string_lossy().contains(&format!("{base:020}")));
    let file = std::fs::File::options().write(true).open(path.unwrap()).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0xff; 4], at + 72).unwrap();
}

/// (DELAY-4)
#[test]
fn b_135_one_that_cannot_be_read_is_lost_once_and_told() {
    let scene = timed();
    let ids: Vec<_> = (0..3).map(|nth| scene.delay(nth, SECOND).id).collect();
    damage(&scene, ids[1].position());
    scene.advance(HOUR);
    let stats = scene.broker.stats();
    assert_eq!((stats.delayed, stats.failed_delays, stats.lost_delays), (0, 0, 1));
    assert!(scene.broker.delay_failure().unwrap().contains("checksum"));
    assert_eq!(scene.arrived(), [0, 2]);
}

#[test]
fn b_137_what_cannot_be_read_keeps_no_file() {
    let scene = timed();
    let ids: Vec<_> = (0..3).map(|nth| scene.delay(nth, HOUR).id).collect();
    damage(&scene, ids[1].position());
    for _ in 0..8 {
        scene.broker.producer().send(&Message::new("t", vec![0; 20_000])).unwrap();
    }
    scene.broker.drop_before(scene.broker.stats().log_end).unwrap();
    let stats = scene.broker.stats();
    assert!(stats.log_start > ids[2].position(), "{stats:?}");
    assert_eq!((stats.delayed, stats.lost_delays), (2, 1));
    assert!(!scene.broker.cancel(ids[1]).unwrap() && scene.broker.cancel(ids[2]).unwrap());
    let scene = scene.reopen();
    assert_eq!(scene.waiting(), 1);
    assert!(scene.broker.verify().unwrap().is_sound());
}

#[test]
fn b_136_a_duration_lasts_as_long_whatever_the_wall_clock_is_set_to() {
    for hours in [-1, 1] {
        let scene = timed();
        scene.delay(1, 10 * SECOND);
        scene.advance(5 * SECOND);
        scene.clock.set_wall_ms(NOW_MS.saturating_add_signed(hours * 3_600_000));
        scene.delay(2, 10 * SECOND);
        let id = scene.delay(3, 10 * SECOND).id;
        scene.advance(5 * SECOND - Duration::from_millis(1));
        assert_eq!(scene.arrived(), []);
        scene.advance(Duration::from_millis(1));
        assert_eq!(scene.arrived(), [1]);
        assert!(scene.broker.cancel(id).unwrap());
        scene.advance(5 * SECOND);
        assert_eq!(scene.arrived(), [1, 2]);
        let mut found = scene.broker.browse("t").unwrap();
        let mut stored = || found.next().unwrap().unwrap().delivery().store_ms();
        assert!(stored() <= stored(), "store times never decrease");
    }
}

#[test]
fn b_136_a_clock_that_is_set_while_closed_lengthens_no_duration() {
    for hours in [-1, 1] {
        let scene = timed();
        scene.delay(1, 10 * SECOND);
        scene.deliver_at(2, NOW_MS + 10_000);
        scene.clock.set_wall_ms(NOW_MS.saturating_add_signed(hours * 3_600_000));
        let scene = scene.reopen();
        scene.delay(3, 10 * SECOND);
        if hours > 0 {
            scene.advance(Duration::ZERO);
            assert_eq!(scene.arrived(), [1, 2]);
        }
        scene.advance(10 * SECOND - Duration::from_millis(1));
        assert_eq!(scene.arrived(), if hours > 0 { vec![1, 2] } else { vec![] });
        scene.advance(Duration::from_millis(1));
        assert_eq!(scene.arrived(), if hours > 0 { vec![1, 2, 3] } else { vec![1, 3] });
        scene.advance(HOUR);
        assert_eq!(scene.arrived().len(), 3, "an instant is one of the wall clock");
    }
}

#[test]
fn b_136_a_duration_that_is_first_hides_no_instant_from_a_clock_set_forward() {
    let scene = timed();
    scene.delay(1, 600 * SECOND);
    scene.deliver_at(2, NOW_MS + 1_200_000);
    scene.advance(SECOND);
    scene.clock.set_wall_ms(NOW_MS + 1_800_000);
    scene.advance(60 * SECOND);
    assert_eq!(scene.arrived(), [2]);
    scene.advance(539 * SECOND);
    assert_eq!(scene.arrived(), [2, 1]);
}

/// (DELAY-2)
#[test]
fn delay_7_a_kill_makes_nothing_early_after_the_clock_was_set_by_little() {
    for step in [-9, -4, -1, 1, 4, 9] {
        let scene = timed();
        scene.delay(1, HOUR);
        scene.clock.set_wall_ms(NOW_MS.saturating_add_signed(step));
        scene.delay(2, SECOND);
        let killed = scene.killed();
        killed.advance(SECOND - Duration::from_millis(1));
        assert_eq!(killed.arrived(), [], "{step}");
        killed.advance(Duration::from_millis(4));
        assert_eq!(killed.arrived(), [2], "{step}");
        scene.advance(SECOND - Duration::from_millis(1));
        assert_eq!(scene.arrived(), [], "{step}");
        scene.advance(Duration::from_millis(1));
        assert_eq!(scene.arrived(), [2], "{step}");
    }
}

#[test]
fn b_136_a_wall_clock_that_is_set_forward_is_noticed_within_a_minute() {
    let scene = timed();
    scene.deliver_at(1, NOW_MS + 3_600_000);
    scene.advance(SECOND);
    scene.clock.set_wall_ms(NOW_MS + 3_600_000);
    scene.advance(60 * SECOND);
    assert_eq!(scene.arrived(), [1]);
    scene.deliver_at(2, scene.clock.wall_ms() + 10_000);
    scene.clock.set_wall_ms(NOW_MS);
    scene.advance(HOUR);
    assert_eq!(scene.arrived(), [1]);
    scene.advance(2 * HOUR);
    assert_eq!(scene.arrived(), [1, 2]);
}

#[test]
fn b_137_what_waits_outlives_the_files_of_the_log() {
    let (clock, dir) = (DrivenClock::with_steps(NOW_MS, 1), tempfile::tempdir().unwrap());
    let retention = Retention::none().age(60 * SECOND);
    let build = |dir: &Path| {
        let builder = Broker::builder(dir).segment_bytes(SEGMENT).clock(&clock);
        builder.retention(retention.clone()).open().unwrap()
    };
    let broker = build(dir.path());
    broker.create_topic("t", 1).unwrap();
    broker.create_topic("filling", 1).unwrap();
    let scene = Timed { broker, dir, clock: clock.clone() };
    let ids: Vec<_> = (0..10).map(|nth| scene.delay(nth, 300 * SECOND).id).collect();
    let first = ids[0].position();
    for _ in 0..4 {
        for _ in 0..8 {
            scene.broker.producer().send(&Message::new("filling", vec![0; 20_000])).unwrap();
        }
        scene.advance(61 * SECOND);
    }
    assert!(scene.broker.stats().log_start > first, "nothing was dropped");
    assert_eq!((scene.arrived(), scene.waiting()), (vec![], 10));
    assert!(scene.broker.cancel(ids[3]).unwrap(), "by the id of its first record");
    assert!(!scene.broker.cancel(ids[3]).unwrap());
    scene.broker.close().unwrap();
    let Timed { broker, dir, .. } = scene;
    drop(broker);
    let scene = Timed { broker: build(dir.path()), dir, clock: clock.clone() };
    assert!(scene.broker.cancel(ids[5]).unwrap());
    scene.advance(HOUR);
    assert_eq!(scene.arrived(), [0, 1, 2, 4, 6, 7, 8, 9]);
    let found: Vec<_> = scene.broker.browse("t").unwrap().collect();
    assert_eq!(found[0].as_ref().unwrap().delivery().id(), ids[0]);
    assert!(scene.broker.verify().unwrap().is_sound());
}

#[test]
fn b_137_files_go_as_soon_as_enough_of_what_waited_in_them_is_cancelled() {
    let (clock, dir) = (DrivenClock::with_steps(NOW_MS, 1), tempfile::tempdir().unwrap());
    let builder = Broker::builder(dir.path()).segment_bytes(SEGMENT).clock(&clock);
    let broker = builder.retention(Retention::none().age(60 * SECOND)).open().unwrap();
    broker.create_topic("t", 1).unwrap();
    let scene = Timed { broker, dir, clock };
    let send = |nth| {
        let message = Message::new("t", vec![nth; 10_000]).delay(HOUR);
        scene.broker.producer().send(&message).unwrap().id
    };
    let ids: Vec<_> = (0..20).map(send).collect();
    scene.advance(120 * SECOND);
    let start = || scene.broker.stats().log_start;
    let first = start();
    assert!(first < SEGMENT, "all of it waits");
    // Nothing more is sent, no file gets full.
    let cancel = |nth: usize| assert!(scene.broker.cancel(ids[nth]).unwrap());
    (0..2).for_each(cancel);
    scene.advance(SECOND);
    assert_eq!(start(), first, "too much of it waits");
    (2..20).for_each(cancel);
    scene.advance(SECOND);
    assert!(start() >= 2 * SEGMENT, "{}", start());
    assert_eq!(scene.waiting(), 0);
}

#[test]
fn b_137_a_log_full_of_what_waits_refuses_more_and_loses_nothing() {
    let (clock, dir) = (DrivenClock::with_steps(NOW_MS, 1), tempfile::tempdir().unwrap());
    let builder = Broker::builder(dir.path()).segment_bytes(SEGMENT).clock(&clock);
    let builder = builder.max_log_bytes(6 * SEGMENT).at_limit(AtLimit::DropOldest);
    let broker = builder.retention(Retention::none().log_bytes(4 * SEGMENT)).open().unwrap();
    broker.create_topic("t", 1).unwrap();
    let scene = Timed { broker, dir, clock };
    let mut sent = 0;
    let error = loop {
        let mut body = body(sent);
        body.resize(10_000, 0);
        let message = Message::new("t", body).delay(HOUR);
        match scene.broker.producer().send(&message) {
            Ok(_) => sent += 1,
            Err(error) => break error,
        }
        // Retention has its say, and would write the same messages for ever.
        scene.advance(SECOND);
    };
    assert!(matches!(error, Error::LogFull { .. }), "{error}");
    assert!((30..40).contains(&sent), "{sent}");
    assert_eq!(scene.waiting() as u32, sent);
    let end = scene.broker.stats().log_end;
    scene.advance(10 * SECOND);
    assert_eq!(scene.broker.stats().log_end, end, "written again for nothing");
    assert!(end < 8 * SEGMENT, "{end}");
}
