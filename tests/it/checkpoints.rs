//! Progress of which the application keeps count itself, and progress that polls store.

use crate::support::*;
use rocklet::{DrivenClock, Error, Filter, PullConsumer, Start};
use std::time::{Duration, UNIX_EPOCH};

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

fn polled(consumer: &mut PullConsumer) -> Vec<u32> {
    numbers(&consumer.poll(Duration::ZERO).unwrap())
}

/// A broker that lives by a driven clock, with messages in one queue, 10 ms apart.
fn driven(messages: u32) -> (Scene, DrivenClock) {
    let clock = DrivenClock::new(1_000_000);
    let scene = scene_with(|builder| builder.clock(&clock));
    scene.broker.create_topic("t", 1).unwrap();
    for nth in 0..messages {
        send_to(&scene.broker, "t", 0, nth);
        clock.advance(10 * MS);
    }
    (scene, clock)
}

#[test]
fn pc_7_an_offset_of_any_queue_is_kept_and_survives_a_kill() {
    let scene = scene();
    for topic in ["t", "unsubscribed"] {
        scene.broker.create_topic(topic, 2).unwrap();
        (0..2).for_each(|queue| fill(&scene.broker, topic, queue, 0..10));
    }
    let builder = || scene.broker.pull_consumer("g").subscribe("t", "*").unwrap();
    let (a, b) = (builder().name("a").start().unwrap(), builder().name("b").start().unwrap());
    assert_eq!((a.assignment(), b.assignment()), (vec![q("t", 0)], vec![q("t", 1)]));
    // Its own one, one of another member, one of nobody.
    for (queue, offset) in [(q("t", 0), 3), (q("t", 1), 4), (q("unsubscribed", 1), 5)] {
        a.commit_offset(&queue, 9).unwrap();
        a.commit_offset(&queue, offset).unwrap();
        assert_eq!(a.committed(&queue).unwrap(), Some(offset), "also backwards");
    }
    let killed = copy_of(scene.dir.path());
    let broker = small(killed.path()).open().unwrap();
    assert!(!broker.recovery_report().clean);
    assert_eq!((committed(&broker, "g", "t"), committed(&broker, "g", "unsubscribed")), (7, 5));
    // Whoever gets the queues next goes on there.
    let builder = broker.pull_consumer("g").subscribe("unsubscribed", "*").unwrap();
    let mut pull = builder.batch(1024).start().unwrap();
    assert_eq!(pull.poll(SOON).unwrap().len(), 15);

    for (queue, offset) in [(q("t", 0), 11), (q("unsubscribed", 0), u64::MAX)] {
        let refused = a.commit_offset(&queue, offset);
        assert!(matches!(refused, Err(Error::OffsetRange { min: 0, max: 10, .. })));
    }
    a.commit_offset(&q("t", 0), 10).unwrap();
    assert!(matches!(a.commit_offset(&q("t", 2), 0), Err(Error::NoSuchQueue { .. })));
    assert!(matches!(a.commit_offset(&q("u", 0), 0), Err(Error::NoSuchTopic { .. })));
    scene.broker.close().unwrap();
    assert!(matches!(a.commit_offset(&q("t", 0), 1), Err(Error::Closed)));
}

#[test]
fn pc_7_whoever_gets_the_queue_goes_on_where_the_offset_was_set_and_not_where_its_owner_stopped() {
    let (scene, _clock) = driven(20);
    let builder = || scene.broker.pull_consumer("g").subscribe("t", "*").unwrap().batch(10);
    let mut a = builder().start().unwrap();
    assert_eq!(polled(&mut a).len(), 10);
    a.commit().unwrap();
    drop(a);
    // A consumer that has nothing, and sets it back in the same process.
    let none = scene.broker.pull_consumer("g").start().unwrap();
    none.commit_offset(&q("t", 0), 3).unwrap();
    drop(none);
    assert_eq!(polled(&mut builder().start().unwrap()), (3..13).collect::<Vec<_>>());
}

#[test]
fn pc_7_a_set_offset_moves_no_poll_and_is_overwritten_by_what_is_polled_later() {
    let (scene, _clock) = driven(20);
    let builder = scene.broker.pull_consumer("g").subscribe("t", "*").unwrap();
    let mut a = builder.name("a").batch(4).start().unwrap();
    a.commit_offset(&q("t", 0), 15).unwrap();
    a.commit().unwrap();
    assert_eq!(a.committed(&q("t", 0)).unwrap(), Some(15), "nothing was polled");
    assert_eq!(polled(&mut a), [0, 1, 2, 3]);
    a.commit_offset(&q("t", 0), 2).unwrap();
    a.commit().unwrap();
    assert_eq!(a.committed(&q("t", 0)).unwrap(), Some(4));
    assert_eq!(polled(&mut a), [4, 5, 6, 7]);
    // It covers what was polled: the queue is free for another member.
    a.commit_offset(&q("t", 0), 6).unwrap();
    let builder = scene.broker.pull_consumer("g").subscribe("t", "*").unwrap();
    let mut first = builder.name("0").batch(4).start().unwrap();
    assert!(first.assignment().is_empty(), "6 and 7 are out");
    a.commit_offset(&q("t", 0), 8).unwrap();
    assert_eq!(first.assignment(), [q("t", 0)]);
    assert_eq!(polled(&mut first), [8, 9, 10, 11]);
}

#[test]
fn pc_7_a_message_that_is_not_wanted_leaves_a_set_offset_where_it_is() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    (0..10).for_each(|nth| _ = send_tagged(&scene.broker, "t", "x", nth));
    let mut pull = scene.broker.pull_consumer("g").subscribe("t", "x").unwrap().start().unwrap();
    assert_eq!(polled(&mut pull).len(), 10);
    pull.commit().unwrap();
    pull.commit_offset(&q("t", 0), 3).unwrap();
    // It is read, or told while the poll sleeps: neither is a commit.
    send_tagged(&scene.broker, "t", "y", 10);
    assert!(polled(&mut pull).is_empty());
    assert_eq!(pull.committed(&q("t", 0)).unwrap(), Some(3));
    let polling = std::thread::spawn(move || (numbers(&pull.poll(SOON).unwrap()), pull));
    wait_for("a sleeping poll", || scene.broker.stats().held == 1);
    send_tagged(&scene.broker, "t", "y", 11);
    assert_eq!(committed(&scene.broker, "g", "t"), 3);
    send_tagged(&scene.broker, "t", "x", 12);
    let (found, mut pull) = polling.join().unwrap();
    assert_eq!((found, committed(&scene.broker, "g", "t")), (vec![12], 3));
    pull.commit().unwrap();
    assert_eq!(committed(&scene.broker, "g", "t"), 13, "a commit is");
}

#[test]
fn pc_1_leaving_keeps_what_was_committed_and_frees_the_name() {
    let (scene, _clock) = driven(20);
    let builder = || {
        let builder = scene.broker.pull_consumer("g").subscribe("t", "*").unwrap();
        builder.name("m").batch(5)
    };
    let mut pull = builder().start().unwrap();
    assert!(matches!(builder().start(), Err(Error::Duplicate { .. })));
    assert_eq!(polled(&mut pull), [0, 1, 2, 3, 4]);
    pull.commit().unwrap();
    assert_eq!(polled(&mut pull).len(), 5);
    pull.shutdown();
    assert_eq!(scene.broker.stats().consumers, 0);
    assert_eq!(polled(&mut builder().start().unwrap()), [5, 6, 7, 8, 9]);
}

// (LITE-8)
#[test]
fn lite_7_lite_8_polls_commit_what_earlier_ones_returned_once_the_interval_has_passed() {
    let (scene, clock) = driven(40);
    let broker = &scene.broker;
    let builder = || broker.pull_consumer("g").subscribe("t", "*").unwrap().batch(4);
    let at = || broker.committed("g", &q("t", 0)).unwrap();
    // Not by themselves.
    let mut pull = builder().start().unwrap();
    for _ in 0..3 {
        assert_eq!(polled(&mut pull).len(), 4);
        clock.advance(100 * SECOND);
    }
    drop(pull);
    assert_eq!(at(), Some(0));

    let mut pull = builder().auto_commit(SECOND).start().unwrap();
    assert_eq!(polled(&mut pull), [0, 1, 2, 3]);
    clock.advance(SECOND - MS);
    assert_eq!(polled(&mut pull), [4, 5, 6, 7]);
    assert_eq!(at(), Some(0), "a millisecond too early");
    clock.advance(MS);
    assert_eq!(at(), Some(0), "by a poll");
    assert_eq!(polled(&mut pull), [8, 9, 10, 11]);
    assert_eq!(at(), Some(8), "of what earlier polls have returned");
    clock.advance(SECOND - MS);
    assert_eq!(polled(&mut pull).len(), 4);
    assert_eq!(at(), Some(8));
    clock.advance(MS);
    assert_eq!(polled(&mut pull).len(), 4);
    assert_eq!(at(), Some(16));
    drop(pull);
    assert_eq!(at(), Some(16), "leaving commits nothing");
    let mut pull = builder().auto_commit(SECOND).start().unwrap();
    assert_eq!(polled(&mut pull), [16, 17, 18, 19]);
    // A call that commits is as good as ever.
    pull.commit().unwrap();
    assert_eq!(at(), Some(20));
}

#[test]
fn b_119_automatic_commits_are_made_for_each_queue_and_cover_what_was_handed_out() {
    for start in [Start::First, Start::Last, Start::Time(UNIX_EPOCH)] {
        let clock = DrivenClock::new(1_000_000);
        let scene = scene_with(|builder| builder.clock(&clock));
        scene.broker.create_topic("t", 3).unwrap();
        let builder = scene.broker.pull_consumer("g").subscribe("t", "*").unwrap();
        let builder = builder.start_from(start).auto_commit(SECOND).batch(7);
        let mut pull = builder.start().unwrap();
        for (queue, count) in [(0, 1), (1, 10), (2, 100)] {
            fill(&scene.broker, "t", queue, 0..count);
        }
        let (mut handed_out, mut seen) = ([0; 3], [0; 3]);
        while seen != [1, 10, 100] {
            let found = pull.poll(Duration::ZERO).unwrap();
            let stored = [0, 1, 2].map(|queue| pull.committed(&q("t", queue)).unwrap());
            assert_eq!(stored, handed_out.map(Some), "what earlier polls have returned");
            for delivery in &found {
                let queue = usize::from(delivery.queue());
                assert_eq!(delivery.offset(), seen[queue]);
                seen[queue] += 1;
            }
            handed_out = seen;
            clock.advance(SECOND);
        }
    }
}

#[test]
fn lite_7_a_poll_commits_before_it_sleeps_and_when_another_member_waits() {
    let (scene, _clock) = driven(8);
    let broker = &scene.broker;
    let builder = |name: &str| {
        let builder = broker.pull_consumer("g").subscribe("t", "*").unwrap();
        builder.name(name).batch(4).auto_commit(SECOND)
    };
    let at = || broker.committed("g", &q("t", 0)).unwrap();
    let mut b = builder("b").start().unwrap();
    assert_eq!((polled(&mut b).len(), polled(&mut b).len(), at()), (4, 4, Some(0)));
    let polling = std::thread::spawn(move || (numbers(&b.poll(SOON).unwrap()), b));
    wait_for("a sleeping poll", || broker.stats().held == 1);
    assert_eq!(at(), Some(8));
    send_to(broker, "t", 0, 8);
    let (found, mut b) = polling.join().unwrap();
    assert_eq!((found, at()), (vec![8], Some(8)));
    // Its queue is another member's now, and it is not the time yet.
    let a = builder("a").start().unwrap();
    assert!(a.assignment().is_empty());
    assert!(polled(&mut b).is_empty());
    assert_eq!((at(), a.assignment()), (Some(9), vec![q("t", 0)]));
}

#[test]
fn lite_7_what_passes_no_filter_is_committed_together_with_the_rest() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    for nth in 0..30 {
        send_tagged(&scene.broker, "t", if nth == 10 { "a" } else { "b" }, nth);
    }
    let builder = scene.broker.pull_consumer("g").subscribe("t", "a").unwrap();
    let mut pull = builder.batch(1).auto_commit(SECOND).start().unwrap();
    assert_eq!(polled(&mut pull), [10]);
    assert_eq!(committed(&scene.broker, "g", "t"), 0);
    // By a poll that has the time to go to sleep.
    wait_for("the commit", || {
        assert!(pull.poll(SHORT).unwrap().is_empty());
        committed(&scene.broker, "g", "t") == 30
    });
}

// (LITE-7, CLI-3)
#[test]
fn lite_7_the_interval_is_a_second_to_a_day() {
    let (scene, _clock) = driven(0);
    let day = 86_400 * SECOND;
    let start = |interval| {
        let builder = scene.broker.pull_consumer("g").subscribe("t", "*").unwrap();
        builder.auto_commit(interval).start()
    };
    for interval in [SECOND, day] {
        drop(start(interval).unwrap());
    }
    for interval in [Duration::ZERO, SECOND - MS, day + MS, Duration::MAX] {
        let refused = start(interval).unwrap_err();
        assert!(matches!(refused, Error::Setting { min: 1000, max: 86_400_000, .. }));
        assert!(refused.to_string().starts_with("auto_commit in ms is "));
    }
}

#[test]
fn lite_10_seeks_to_the_beginning_the_end_and_a_time() {
    let (scene, _clock) = driven(20);
    let mut pull = scene.broker.pull_consumer("g").subscribe("t", "*").unwrap().start().unwrap();
    let queue = q("t", 0);
    let time = |ms| Start::Time(UNIX_EPOCH + Duration::from_millis(ms));
    for (start, first) in [
        (Start::Last, None),
        (Start::First, Some(0)),
        (time(1_000_050), Some(5)),
        (time(1_000_051), Some(6)),
        (time(0), Some(0)),
        (time(1 << 42), None),
    ] {
        pull.seek_to(&queue, start).unwrap();
        assert_eq!(polled(&mut pull).first().copied(), first, "{start:?}");
    }
    pull.seek_to(&queue, time(1_000_100)).unwrap();
    pull.commit().unwrap();
    assert_eq!(pull.committed(&queue).unwrap(), Some(10));
    let unknown = pull.seek_to(&q("t", 1), Start::First);
    assert!(matches!(unknown, Err(Error::NotAssigned { .. })));
    scene.broker.close().unwrap();
    assert!(matches!(pull.seek_to(&queue, Start::First), Err(Error::Closed)));
}

#[test]
fn lite_11_a_paused_queue_is_left_out_until_it_is_resumed() {
    let scene = scene();
    scene.broker.create_topic("t", 3).unwrap();
    (0..3).for_each(|queue| fill(&scene.broker, "t", queue, 0..5));
    let builder = scene.broker.pull_consumer("g").subscribe("t", "*").unwrap();
    let mut pull = builder.batch(2).start().unwrap();
    pull.pause(&[q("t", 1), q("t", 9), q("u", 0)]).unwrap();
    assert_eq!(pull.paused(), [q("t", 1)], "others are not ours to pause");
    let drain = |pull: &mut PullConsumer| {
        let mut counts = [0; 3];
        loop {
            let found = pull.poll(Duration::ZERO).unwrap();
            found.iter().for_each(|delivery| counts[usize::from(delivery.queue())] += 1);
            if found.is_empty() {
                return counts;
            }
        }
    };
    assert_eq!(drain(&mut pull), [5, 0, 5]);
    pull.commit().unwrap();
    assert_eq!(pull.committed(&q("t", 1)).unwrap(), Some(0));
    // Nothing of it wakes a poll.
    std::thread::scope(|scope| {
        let polling = scope.spawn(|| {
            let found = pull.poll(SOON).unwrap();
            found.iter().map(|delivery| delivery.queue()).collect::<Vec<_>>()
        });
        wait_for("a poll that waits for two queues", || scene.broker.stats().held == 2);
        send_to(&scene.broker, "t", 1, 5);
        assert_eq!(scene.broker.stats().held, 2);
        send_to(&scene.broker, "t", 2, 5);
        assert_eq!(polling.join().unwrap(), [2]);
    });
    pull.resume(&[q("t", 1), q("u", 0)]).unwrap();
    assert!(pull.paused().is_empty());
    assert_eq!(drain(&mut pull), [0, 6, 0]);
    // A queue that was lost is another one when it comes back.
    pull.commit().unwrap();
    pull.pause(&[q("t", 2)]).unwrap();
    let builder = scene.broker.pull_consumer("g").subscribe("t", "*").unwrap();
    let other = builder.name("z").start().unwrap();
    assert_eq!(other.assignment(), [q("t", 2)]);
    drop(other);
    assert!(pull.paused().is_empty());
}

// (LITE-12)
#[test]
fn lite_12_what_is_committed_and_the_offset_of_a_time() {
    let (scene, _clock) = driven(20);
    let pull = scene.broker.pull_consumer("g").assign([q("t", 0)], Filter::ALL).unwrap();
    let pull = pull.start().unwrap();
    assert_eq!(pull.committed(&q("t", 0)).unwrap(), Some(0));
    scene.broker.create_topic("u", 1).unwrap();
    assert_eq!(pull.committed(&q("u", 0)).unwrap(), None);
    assert!(matches!(pull.committed(&q("u", 1)), Err(Error::NoSuchQueue { .. })));
    let at = |ms| scene.broker.offset_at(&q("t", 0), ms, rocklet::Edge::AtOrAfter).unwrap();
    assert_eq!((at(1_000_100), at(1_000_101)), (10, 11));
}

// (LITE-4, LITE-6)
#[test]
fn lite_6_a_poll_returns_each_message_once_and_no_more_than_it_is_asked_for() {
    let (scene, clock) = driven(10);
    let builder = scene.broker.pull_consumer("g").subscribe("t", "*").unwrap();
    let mut pull = builder.batch(4).start().unwrap();
    assert_eq!(polled(&mut pull), [0, 1, 2, 3]);
    pull.seek(&q("t", 0), 2).unwrap();
    assert_eq!(polled(&mut pull), [2, 3, 4, 5], "a seek goes before");
    assert_eq!((polled(&mut pull), polled(&mut pull)), (vec![6, 7, 8, 9], vec![]));
    let before = clock.wall_ms();
    let polling = std::thread::spawn(move || pull.poll(5 * SECOND).map(|found| found.len()));
    wait_for("a sleeping poll", || scene.broker.stats().held == 1);
    wait_for("the time-out", || {
        clock.advance(100 * MS);
        polling.is_finished()
    });
    assert_eq!(polling.join().unwrap().unwrap(), 0);
    assert!(clock.wall_ms() - before >= 5000);
}
