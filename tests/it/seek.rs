//! Seeking, committing, and what a revoked queue means to a pull consumer.

use crate::support::*;
use rocklet::{Error, PullConsumer};
use std::time::Duration;

fn one_queue(messages: u32) -> Scene {
    let scene = scene();
    scene.broker.create_topic("t", 1).unwrap();
    send(&scene.broker.producer(), "t", 0..messages);
    scene
}

fn puller(scene: &Scene, name: &str) -> PullConsumer {
    let builder = scene.broker.pull_consumer("g").subscribe("t", "*").unwrap();
    builder.name(name).batch(10).start().unwrap()
}

fn polled(consumer: &mut PullConsumer) -> Vec<u32> {
    numbers(&consumer.poll(Duration::ZERO).unwrap())
}

// (OFF-5)
#[test]
fn seek_goes_both_ways_and_the_next_commit_stores_it() {
    let scene = one_queue(30);
    let mut pull = puller(&scene, "a");
    assert_eq!(polled(&mut pull), (0..10).collect::<Vec<_>>());
    pull.commit().unwrap();
    pull.seek(&q("t", 0), 25).unwrap();
    assert_eq!(polled(&mut pull), (25..30).collect::<Vec<_>>());
    pull.commit().unwrap();
    assert_eq!(pull.committed(&q("t", 0)).unwrap(), Some(30));
    pull.seek(&q("t", 0), 3).unwrap();
    assert_eq!(pull.committed(&q("t", 0)).unwrap(), Some(30), "a seek alone stores nothing");
    pull.commit().unwrap();
    assert_eq!(pull.committed(&q("t", 0)).unwrap(), Some(3), "a lower offset is stored, too");
    pull.close();
    let mut pull = puller(&scene, "a");
    assert_eq!(polled(&mut pull), (3..13).collect::<Vec<_>>());
}

#[test]
fn seek_is_bounded_by_the_queue_and_needs_the_assignment() {
    let scene = one_queue(5);
    let mut pull = puller(&scene, "a");
    for offset in [0, 5] {
        pull.seek(&q("t", 0), offset).unwrap();
    }
    assert!(matches!(
        pull.seek(&q("t", 0), 6),
        Err(Error::OffsetRange { offset: 6, min: 0, max: 5 })
    ));
    for queue in [q("t", 1), q("u", 0)] {
        assert!(matches!(pull.seek(&queue, 0), Err(Error::NotAssigned { .. })));
    }
    let mut other = puller(&scene, "b");
    assert!(matches!(other.seek(&q("t", 0), 0), Err(Error::NotAssigned { .. })));
}

#[test]
fn a_closed_consumer_says_so_and_commits_nothing() {
    let scene = one_queue(5);
    let mut pull = puller(&scene, "a");
    assert_eq!(polled(&mut pull).len(), 5);
    scene.broker.close().unwrap();
    assert!(matches!(pull.commit(), Err(Error::Closed)), "5 messages were polled");
    assert!(matches!(pull.seek(&q("t", 0), 0), Err(Error::Closed)));
    assert!(matches!(pull.poll(Duration::ZERO), Err(Error::Closed)));
    assert!(pull.assignment().is_empty());
    assert_eq!(scene.broker.committed("g", &q("t", 0)).unwrap(), Some(0));
}

#[test]
fn a_revoked_queue_with_nothing_uncommitted_is_released_at_once() {
    let scene = scene();
    scene.broker.create_topic("t", 2).unwrap();
    (0..2).for_each(|queue| fill(&scene.broker, "t", queue, 0..1));
    let mut a = puller(&scene, "a");
    assert_eq!(polled(&mut a).len(), 2);
    a.commit().unwrap();
    let b = puller(&scene, "b");
    assert_eq!((a.assignment(), b.assignment()), (vec![q("t", 0)], vec![q("t", 1)]));
}

#[test]
fn a_revoked_queue_is_released_by_the_commit_that_covers_what_was_polled() {
    let scene = scene();
    scene.broker.create_topic("t", 2).unwrap();
    fill(&scene.broker, "t", 1, 0..10);
    let builder = scene.broker.pull_consumer("g").subscribe("t", "*").unwrap();
    let mut a = builder.name("a").batch(4).start().unwrap();
    assert_eq!(polled(&mut a), [0, 1, 2, 3]);
    let mut b = puller(&scene, "b");
    assert!(b.assignment().is_empty(), "a has not committed yet");
    assert_eq!(a.assignment(), [q("t", 0)]);
    assert!(polled(&mut a).is_empty(), "a revoked queue gets no further deliveries");
    assert!(matches!(a.seek(&q("t", 1), 0), Err(Error::NotAssigned { .. })));
    assert!(polled(&mut b).is_empty());
    a.commit().unwrap();
    assert_eq!(b.assignment(), [q("t", 1)]);
    assert_eq!(polled(&mut b), [4, 5, 6, 7, 8, 9], "nothing twice, nothing lost");
}

#[test]
fn a_revoked_queue_is_released_by_dropping_its_consumer_and_delivered_again() {
    let scene = one_queue(5);
    let mut b = puller(&scene, "b");
    assert_eq!(polled(&mut b).len(), 5);
    let mut a = puller(&scene, "a");
    assert!(a.assignment().is_empty() && b.assignment().is_empty());
    drop(b);
    assert_eq!(a.assignment(), [q("t", 0)]);
    assert_eq!(polled(&mut a), [0, 1, 2, 3, 4]);
}

#[test]
fn a_revoked_queue_that_comes_back_goes_on_where_it_was() {
    let scene = one_queue(5);
    let mut b = puller(&scene, "b");
    assert_eq!(polled(&mut b).len(), 5);
    let a = puller(&scene, "a");
    drop(a);
    // It is still draining: its owner has to commit before anybody gets it, himself included.
    b.commit().unwrap();
    assert_eq!(b.assignment(), [q("t", 0)]);
    send(&scene.broker.producer(), "t", 5..6);
    assert_eq!(polled(&mut b), [5]);
}

#[test]
fn deliveries_outlive_consumer_and_broker() {
    let scene = one_queue(5);
    let mut pull = puller(&scene, "a");
    let found = pull.poll(SOON).unwrap();
    let detached = found.get(4).unwrap().detach();
    pull.close();
    drop(scene);
    assert_eq!(numbers(&found), [0, 1, 2, 3, 4]);
    drop(found);
    assert_eq!(number(&detached.delivery()), 4);
}
