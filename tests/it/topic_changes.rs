//! Topics that change, are purged, deleted and made again, while they are used.

use crate::support::*;
use rocklet::{Broker, Error, Message, Permission, PullStatus, PushConsumer, TopicConfig};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

fn push(broker: &Broker, group: &str, seen: &Seen) -> PushConsumer {
    let seen = seen.clone();
    let builder = broker.push_consumer(group).subscribe("t", "*").unwrap();
    builder.start(move |delivery| seen.note(number(delivery))).unwrap()
}

#[track_caller]
fn no_such_topic<T: std::fmt::Debug>(result: Result<T, Error>) {
    let error = result.unwrap_err();
    assert!(matches!(error, Error::NoSuchTopic { ref topic } if topic == "t"), "{error}");
}

/// (MODEL-3)
#[test]
fn b_095_queues_that_are_taken_away_are_read_to_their_ends() {
    let scene = scene();
    scene.broker.create_topic("t", 10).unwrap();
    for nth in 0..200 {
        send_to(&scene.broker, "t", (nth % 10) as u16, nth);
    }
    // A group that has read a part of the backlog, and one that has not begun.
    let mut pull = scene.broker.pull_consumer("old").subscribe("t", "*").unwrap().start().unwrap();
    let polled = pull.poll(SOON).unwrap().len();
    pull.commit().unwrap();
    scene.broker.update_topic("t", 5).unwrap();
    for queue in [5, 9] {
        let message = Message::new("t", body(0)).queue(queue);
        let error = scene.broker.producer().send(&message).unwrap_err();
        assert!(matches!(error, Error::NoSuchQueue { queues: 5, .. }), "{error}");
    }
    assert_eq!(scene.broker.queues("t").unwrap().len(), 5);
    let scene = scene.reopen();
    drop(pull);
    let mut pull = scene.broker.pull_consumer("old").subscribe("t", "*").unwrap().start().unwrap();
    assert!(pull.assignment().len() > 5, "queues with a backlog are still shared");
    let mut count = polled;
    while count < 200 {
        count += pull.poll(SOON).unwrap().len();
        pull.commit().unwrap();
    }
    let seen = Seen::default();
    let new = push(&scene.broker, "new", &seen);
    wait_for("all of the backlog", || seen.len() == 200);
    seen.assert_each_once(0..200);
    send(&scene.broker.producer(), "t", 200..220);
    wait_for("what was sent later", || seen.len() == 220);
    // Once they are read nobody has them any more.
    let end = |queue| scene.broker.max_offset(&q("t", queue)).unwrap();
    wait_for("commit", || {
        (0..10).all(|nth| scene.broker.committed("new", &q("t", nth)).unwrap() == Some(end(nth)))
    });
    drop(new);
    let (new, pull_again) = (push(&scene.broker, "new", &seen), pull);
    wait_for("five queues", || new.assignment().len() == 5);
    drop(pull_again);
    // They come back as they were.
    scene.broker.update_topic("t", 10).unwrap();
    assert_eq!(send_to(&scene.broker, "t", 9, 220).offset, 20);
    wait_for("the queue that came back", || seen.len() == 221);
    seen.assert_each_once(0..221);
}

#[test]
fn model_3_counts_to_read_and_to_write_differ() {
    let scene = scene();
    let config = TopicConfig::new(2).write_queues(4);
    scene.broker.create_topic("t", config).unwrap();
    assert_eq!(scene.broker.topic_config("t").unwrap(), config);
    let seen = Seen::default();
    let consumer = push(&scene.broker, "g", &seen);
    send(&scene.broker.producer(), "t", 0..40);
    wait_for("the queues that are read", || seen.len() == 20);
    assert_eq!(consumer.assignment(), [q("t", 0), q("t", 1)]);
    assert_eq!(stored(&scene.broker, "t"), 40, "the others are stored");
    scene.broker.update_topic("t", TopicConfig::new(6).write_queues(4)).unwrap();
    wait_for("the rest", || seen.len() == 40);
    seen.assert_each_once(0..40);
    assert_eq!(consumer.assignment().len(), 6, "those that nobody writes to stay empty");
    assert_eq!(scene.broker.max_offset(&q("t", 5)).unwrap(), 0);
    for (config, queues) in [(TopicConfig::new(0), 0), (TopicConfig::new(1).read_queues(0), 0)] {
        let error = scene.broker.update_topic("t", config).unwrap_err();
        assert!(matches!(error, Error::Setting { value, .. } if value == queues), "{error}");
    }
}

#[test]
fn model_3_a_topic_is_widened_under_producers_and_consumers() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    let seen = Seen::default();
    let consumers = [push(&scene.broker, "g", &seen), push(&scene.broker, "g", &seen)];
    let producer = scene.broker.producer();
    for queues in 1..8 {
        scene.broker.update_topic("t", queues).unwrap();
        let from = u32::from(queues) * 70;
        send(&producer, "t", from..from + 70);
        let used = (0..queues).filter(|nth| scene.broker.max_offset(&q("t", *nth)).unwrap() > 0);
        assert_eq!(used.count(), usize::from(queues), "the producer sees them at once");
    }
    wait_for("all messages", || seen.len() == 490);
    seen.assert_each_once(70..560);
    let shares = consumers.each_ref().map(|consumer| consumer.assignment().len());
    assert_eq!(shares.iter().sum::<usize>(), 7);
    assert!(shares.iter().all(|share| *share >= 3), "{shares:?}");
}

#[test]
fn model_4_what_is_not_permitted_is_refused() {
    let scene = scene();
    let (broker, producer) = (&scene.broker, scene.broker.producer());
    let permit = |permission| {
        broker.update_topic("t", TopicConfig::new(2).permission(permission)).unwrap();
    };
    broker.create_topic("t", 2).unwrap();
    send(&producer, "t", 0..10);
    let seen = Seen::default();
    let consumer = push(broker, "g", &seen);
    wait_for("the first messages", || seen.len() == 10);
    permit(Permission::WriteOnly);
    wait_for("no queue", || consumer.assignment().is_empty());
    send(&producer, "t", 10..20);
    let pull = broker.pull_consumer("p").start().unwrap();
    let refused = broker.pull_consumer("p2").subscribe("t", "*").unwrap().start().map(drop);
    for refused in [refused, pull.pull(&q("t", 0), 0, 1).map(drop)] {
        let error = refused.unwrap_err();
        assert!(matches!(error, Error::NotPermitted { action: "consumed", .. }), "{error}");
    }
    permit(Permission::ReadOnly);
    let message = Message::new("t", body(99));
    for refused in [producer.send(&message).map(drop), producer.send_batch(&[message]).map(drop)] {
        let error = refused.unwrap_err().to_string();
        assert_eq!(error, "topic \"t\" may not be sent to; update_topic can permit it");
    }
    wait_for("what was sent meanwhile", || seen.len() == 20);
    permit(Permission::Neither);
    let scene = scene.reopen();
    let config = TopicConfig::new(2).permission(Permission::Neither);
    assert_eq!(scene.broker.topic_config("t").unwrap(), config);
    scene.broker.update_topic("t", 2).unwrap();
    send(&scene.broker.producer(), "t", 20..30);
    let consumer = push(&scene.broker, "g", &seen);
    wait_for("all messages", || seen.len() == 30);
    seen.assert_each_once(0..30);
    drop(consumer);
}

#[test]
fn b_021_a_deleted_topic_is_not_there_and_asking_makes_none() {
    let scene = scene();
    send(&scene.broker.producer(), "t", 0..100);
    let consumer = push(&scene.broker, "g", &Seen::default());
    wait_for("commits", || committed(&scene.broker, "g", "t") == 100);
    let pull = scene.broker.pull_consumer("p").start().unwrap();
    let held = pull.pull(&q("t", 0), 0, 10).unwrap().messages;
    scene.broker.delete_topic("t").unwrap();
    wait_for("no queue", || consumer.assignment().is_empty());
    let ask = |scene: &Scene| {
        let broker = &scene.broker;
        no_such_topic(broker.queues("t"));
        no_such_topic(broker.topic_config("t"));
        no_such_topic(broker.min_offset(&q("t", 0)));
        no_such_topic(broker.max_offset(&q("t", 0)));
        no_such_topic(broker.committed("g", &q("t", 0)));
        no_such_topic(broker.delete_topic("t"));
        no_such_topic(broker.purge("t"));
        no_such_topic(broker.update_topic("t", 2));
        no_such_topic(broker.pull_consumer("p").start().unwrap().pull(&q("t", 0), 0, 1));
        broker.flush().unwrap();
        let mut pull = broker.pull_consumer("q").subscribe("t", "*").unwrap().start().unwrap();
        assert!(pull.poll(SHORT).unwrap().is_empty());
        pull.commit().unwrap();
        assert_eq!((broker.topics(), broker.stats().topics), (Vec::new(), 0));
    };
    ask(&scene);
    assert!(held.iter().all(|delivery| delivery.topic() == "t"), "what was received stays");
    drop((consumer, pull));
    let scene = scene.reopen();
    ask(&scene);
    // The first send makes another topic.
    assert_eq!(send_to(&scene.broker, "t", 0, 7).offset, 0);
    assert_eq!(scene.broker.committed("g", &q("t", 0)).unwrap(), None);
    let seen = Seen::default();
    let consumer = push(&scene.broker, "g", &seen);
    wait_for("the new message", || seen.has(7));
    drop(consumer);
}

#[test]
fn a_topic_is_deleted_and_made_again_under_its_consumers() {
    let scene = scene_with(|builder| builder.auto_create_queues(0));
    let seen = Seen::default();
    let consumers = [push(&scene.broker, "g", &seen), push(&scene.broker, "g", &seen)];
    let mut pull = scene.broker.pull_consumer("p").subscribe("t", "*").unwrap().start().unwrap();
    let producer = scene.broker.producer();
    for round in 0..10_u32 {
        scene.broker.create_topic("t", 1 + (round % 3) as u16).unwrap();
        let numbers = round * 30..round * 30 + 30;
        send(&producer, "t", numbers.clone());
        wait_for("this round's messages", || numbers.clone().all(|number| seen.has(number)));
        let mut polled = 0;
        while polled < 30 {
            polled += pull.poll(SOON).unwrap().len();
        }
        if round % 2 == 0 {
            pull.commit().unwrap();
        }
        scene.broker.delete_topic("t").unwrap();
        no_such_topic(producer.send(&Message::new("t", body(0))));
        wait_for("no queue", || consumers.iter().all(|consumer| consumer.assignment().is_empty()));
        assert!(pull.assignment().is_empty());
    }
    seen.assert_each_once(0..300);
}

#[test]
fn a_message_in_flight_is_finished_when_its_topic_goes() {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    let (door, done) = (Door::default(), Seen::default());
    let (listener_door, listener_done) = (door.clone(), done.clone());
    let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap().threads(1);
    let consumer = builder
        .start(move |delivery| {
            listener_door.pass();
            listener_done.note(number(delivery));
        })
        .unwrap();
    fill(&scene.broker, "t", 0, 0..5);
    wait_for("the listener", || door.waiting() == 1);
    scene.broker.delete_topic("t").unwrap();
    scene.broker.create_topic("t", 1).unwrap();
    fill(&scene.broker, "t", 0, 100..105);
    assert_eq!(scene.broker.committed("g", &q("t", 0)).unwrap(), Some(0));
    door.open();
    wait_for("the new topic", || (100..105).all(|number| done.has(number)));
    assert!(done.has(0), "what a listener was at");
    assert_eq!(done.len(), 6, "the rest of the old topic is gone");
    wait_for("commits", || committed(&scene.broker, "g", "t") == 5);
    drop(consumer);
}

#[test]
fn consumers_go_on_behind_what_was_purged() {
    let scene = scene();
    scene.broker.create_topic("t", 3).unwrap();
    assert_eq!(scene.broker.purge("t").unwrap(), 0);
    send(&scene.broker.producer(), "t", 0..60);
    let mut pull = scene.broker.pull_consumer("p").subscribe("t", "*").unwrap().start().unwrap();
    let held = pull.poll(SOON).unwrap();
    assert!(!held.is_empty());
    let before = numbers(&held);
    assert_eq!(scene.broker.purge("t").unwrap(), 60);
    assert_eq!(numbers(&held), before, "what was received stays");
    for queue in 0..3 {
        let queue = q("t", queue);
        let (min, max) = (scene.broker.min_offset(&queue), scene.broker.max_offset(&queue));
        assert_eq!((min.unwrap(), max.unwrap()), (20, 20));
        let pulled = pull.pull(&queue, 5, 10).unwrap();
        assert_eq!((pulled.status, pulled.next), (PullStatus::OffsetIllegal, 20));
    }
    let seen = Seen::default();
    let consumer = push(&scene.broker, "g", &seen);
    send(&scene.broker.producer(), "t", 60..90);
    wait_for("what came later", || seen.len() == 30);
    seen.assert_each_once(60..90);
    let mut polled = Vec::new();
    while polled.len() < 30 {
        polled.extend(numbers(&pull.poll(SOON).unwrap()));
    }
    polled.sort_unstable();
    assert_eq!(polled, (60..90).collect::<Vec<_>>());
    pull.commit().unwrap();
    drop((consumer, pull));
    let scene = scene.reopen();
    assert_eq!(scene.broker.min_offset(&q("t", 0)).unwrap(), 20);
    assert_eq!(committed(&scene.broker, "p", "t"), 90);
}

#[test]
fn b_021_topics_come_and_go_under_traffic() {
    let scene = scene();
    let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    let seen = Seen::default();
    let consumers = [push(&scene.broker, "g", &seen), push(&scene.broker, "g", &seen)];
    std::thread::scope(|scope| {
        for worker in 0..3 {
            let (scene, stop, sent) = (&scene, &stop, &sent);
            scope.spawn(move || {
                let producer = scene.broker.producer();
                for nth in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    match producer.send(&Message::new("t", body(worker << 24 | nth))) {
                        Ok(_) => drop(sent.fetch_add(1, Ordering::Relaxed)),
                        Err(Error::NotPermitted { .. }) => {}
                        Err(other) => panic!("{other}"),
                    }
                }
            });
        }
        let read_only = TopicConfig::new(2).permission(Permission::ReadOnly);
        for round in 0..100 {
            let before = sent.load(Ordering::Relaxed);
            let changed = match round % 5 {
                0 => scene.broker.delete_topic("t"),
                1 => scene.broker.update_topic("t", 6),
                2 => scene.broker.purge("t").map(drop),
                3 => scene.broker.update_topic("t", read_only),
                _ => scene.broker.update_topic("t", 3),
            };
            match changed {
                Ok(()) | Err(Error::NoSuchTopic { .. }) => {}
                Err(other) => panic!("{other}"),
            }
            if round % 5 != 3 {
                wait_for("sends", || sent.load(Ordering::Relaxed) > before);
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    // Everything that is left is delivered, and once.
    let left = stored(&scene.broker, "t");
    wait_for("the rest", || committed(&scene.broker, "g", "t") == left);
    drop(consumers);
    let scene = scene.reopen();
    assert_eq!(stored(&scene.broker, "t"), left);
}

/// (MODEL-5, MODEL-15, MODEL-17)
#[test]
fn b_063_illegal_names_get_the_same_verdict_everywhere_and_write_nothing() {
    let scene = scene();
    let outside = || -> Vec<_> {
        let parent = std::fs::read_dir(scene.dir.path()).unwrap();
        let mut names: Vec<_> = parent.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    send(&scene.broker.producer(), "known", 0..1);
    let (before, end) = (outside(), scene.broker.stats().log_end);
    let accepted = ["CON", "a%b", "A", "a", "%retry%g"];
    let refused = [
        "",
        "../x",
        "a/b",
        "/abs",
        ".",
        "..",
        "a\0b",
        "caf\u{e9}",
        "\u{65e5}",
        "%RETRY%g",
        "%DLQ%g",
        "rmq_sys_x",
        "SCHEDULE_TOPIC_XXXX",
        "TBW102",
    ];
    for name in refused {
        let send = scene.broker.producer().send(&Message::new(name, body(1))).map(drop);
        let subscribe = scene.broker.pull_consumer("g").subscribe(name, "*").map(drop);
        let verdicts = [scene.broker.create_topic(name, 1), send, subscribe].map(|verdict| {
            let error = verdict.unwrap_err();
            assert!(matches!(error, Error::Name { what: "topic", .. }), "{name:?}: {error}");
            error.to_string()
        });
        assert!(verdicts.iter().all(|verdict| *verdict == verdicts[0]), "{verdicts:?}");
        for absent in [
            scene.broker.delete_topic(name),
            scene.broker.update_topic(name, 1),
            scene.broker.purge(name).map(drop),
        ] {
            assert!(matches!(absent, Err(Error::NoSuchTopic { .. })), "{name:?}");
        }
    }
    assert_eq!((outside(), scene.broker.stats().log_end), (before, end));
    for name in accepted {
        scene.broker.create_topic(name, 1).unwrap();
        send_to(&scene.broker, name, 0, name.len() as u32);
    }
    let scene = scene.reopen();
    assert_eq!(scene.broker.topics(), ["%retry%g", "A", "CON", "a", "a%b", "known"]);
    for name in accepted {
        // Names that differ in case alone share nothing.
        assert_eq!(stored(&scene.broker, name), 1);
        let mut pull =
            scene.broker.pull_consumer(name).subscribe(name, "*").unwrap().start().unwrap();
        assert_eq!(numbers(&pull.poll(SOON).unwrap()), [name.len() as u32]);
    }
}
