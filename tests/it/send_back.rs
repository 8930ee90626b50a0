//! Messages that a pull consumer hands back.

use crate::support::*;
use rocklet::{BackOff, DrivenClock, Error, GroupSettings, Outcome, PullConsumer};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// A broker that lives by a driven clock, and a consumer that has polled ten messages.
fn polled() -> (Scene, DrivenClock, PullConsumer, rocklet::Deliveries) {
    let clock = DrivenClock::new(1_000_000);
    let scene = scene_with(|builder| builder.clock(&clock));
    scene.broker.create_topic("t", 1).unwrap();
    fill(&scene.broker, "t", 0, 0..10);
    let back_off = BackOff::table([10 * SECOND, 30 * SECOND]);
    let settings = GroupSettings::new().max_retries(2).back_off(back_off);
    scene.broker.create_group("g", settings).unwrap();
    let mut pull = scene.broker.pull_consumer("g").subscribe("t", "*").unwrap().start().unwrap();
    let found = pull.poll(Duration::ZERO).unwrap();
    assert_eq!(found.len(), 10);
    pull.commit().unwrap();
    (scene, clock, pull, found)
}

/// What a consumer gets that has the queue of the group's retry topic.
fn retried(scene: &Scene) -> (PullConsumer, rocklet::Deliveries) {
    let broker = &scene.broker;
    let builder = broker.pull_consumer("g").assign([q("%RETRY%g", 0)], "*").unwrap();
    let mut pull = builder.start().unwrap();
    let found = pull.poll(Duration::ZERO).unwrap();
    pull.commit().unwrap();
    (pull, found)
}

#[test]
fn pc_8_a_message_that_is_sent_back_is_delivered_again_and_given_up_in_the_end() {
    let (scene, clock, pull, found) = polled();
    let first = found.get(3).unwrap();
    pull.send_back(&first, Outcome::Failed("too early".to_owned())).unwrap();
    pull.send_back(&found.get(4).unwrap(), Outcome::Success).unwrap();
    clock.advance(10 * SECOND);
    wait_for("the retry", || stored(&scene.broker, "%RETRY%g") == 1);
    let (again, second) = retried(&scene);
    let second = second.get(0).unwrap();
    assert_eq!((second.id(), second.topic(), number(&second)), (first.id(), "t", 3));
    assert_eq!((first.attempt(), second.attempt()), (0, 1));
    // The policy of the group, unless it is told otherwise.
    again.send_back(&second, Outcome::RetryAfter(5 * SECOND)).unwrap();
    clock.advance(5 * SECOND);
    wait_for("the next retry", || stored(&scene.broker, "%RETRY%g") == 2);
    let (again, third) = retried(&scene);
    assert_eq!(third.get(0).unwrap().attempt(), 2);
    again.send_back(&third.get(0).unwrap(), Outcome::Failed("no use".to_owned())).unwrap();
    let dead: Vec<_> = scene.broker.dead_letters("g").unwrap().iter().unwrap().collect();
    assert_eq!(dead.len(), 1, "the limit of the group");
    let letter = dead[0].as_ref().unwrap();
    assert_eq!((letter.id(), letter.reason(), letter.attempts()), (first.id(), "no use", 3));
    // At once, if that is wanted.
    let given_up = Outcome::DeadLetter("broken".to_owned());
    pull.send_back(&found.get(5).unwrap(), given_up).unwrap();
    assert_eq!(scene.broker.dead_letters("g").unwrap().count().unwrap(), 2);
    assert_eq!((scene.broker.stats().retries, scene.broker.stats().dead_letters), (2, 2));
}

// (PC-8, LITE-14)
#[test]
fn pc_8_lite_14_a_push_consumer_of_another_group_gets_what_is_sent_back_to_it_and_polls_do_not() {
    let (scene, clock, mut pull, found) = polled();
    pull.send_back(&found.get(0).unwrap(), Outcome::RetryAfter(SECOND)).unwrap();
    pull.send_back_to("h", &found.get(1).unwrap(), Outcome::RetryAfter(SECOND)).unwrap();
    let seen = Seen::default();
    let noted = seen.clone();
    let builder = scene.broker.push_consumer("h").subscribe("u", "*").unwrap();
    let _push = builder.start(move |delivery| noted.note(number(delivery))).unwrap();
    clock.advance(SECOND);
    wait_for("the retry", || seen.has(1));
    wait_for("the other retry", || stored(&scene.broker, "%RETRY%g") == 1);
    assert!(pull.poll(Duration::ZERO).unwrap().is_empty());
    assert!(matches!(pull.subscribe("%RETRY%g", "*"), Err(Error::Name { .. })));
    // A push consumer of its own group gets it, too, once there is one.
    pull.close();
    let noted = seen.clone();
    let builder = scene.broker.push_consumer("g").subscribe("t", "*").unwrap();
    let _push = builder.start(move |delivery| noted.note(number(delivery))).unwrap();
    wait_for("the message", || seen.has(0));
    seen.assert_each_once(0..2);
}

#[test]
fn pc_8_what_cannot_be_sent_back() {
    let (scene, _clock, mut pull, found) = polled();
    let first = found.get(0).unwrap();
    let failed = || Outcome::Failed("planted".to_owned());
    assert!(matches!(pull.send_back_to("", &first, failed()), Err(Error::Name { .. })));
    let prepared = scene.broker.pull_consumer("g").build();
    assert!(matches!(prepared.send_back(&first, failed()), Err(Error::State { .. })));
    scene.broker.close().unwrap();
    assert!(matches!(pull.send_back(&first, failed()), Err(Error::Closed)));
    pull.shutdown();
    assert!(matches!(pull.send_back(&first, failed()), Err(Error::State { .. })));
}
