use super::*;

fn run(offsets: &[u64]) -> Arc<Run<()>> {
    let places = offsets.iter().map(|offset| Place { offset: *offset, size: 10 });
    Arc::new(Run::new((), places.collect(), 1))
}

fn commit(offset: u64) -> Progress {
    Progress { commit: Some(offset), drained: false }
}

#[test]
fn pq_5_the_lowest_unfinished_offset_is_what_may_be_committed() {
    let queue = ProcessQueue::new(5);
    assert!(queue.register(&run(&[5, 6, 7]), 8));
    assert_eq!(queue.finish(6, 10), Progress::default());
    assert_eq!(queue.finish(5, 10), commit(7));
    assert_eq!(queue.in_flight(), InFlight { messages: 1, bytes: 10, span: 1 });
    assert_eq!(queue.finish(7, 10), commit(8));
    assert_eq!(queue.finish(7, 10), Progress::default(), "finished twice");
    let batch = run(&[8, 9, 10]);
    assert!(queue.register(&batch, 11));
    assert_eq!(queue.finish_all(&batch.places()[1..]), Progress::default());
    assert_eq!(queue.finish_all(&batch.places()[..2]), commit(11));
    assert_eq!(queue.in_flight(), InFlight::default());
}

#[test]
fn a_window_without_work_holds_no_messages() {
    let queue = ProcessQueue::new(0);
    let (first, second, third) = (run(&[0, 1]), run(&[2]), run(&[3, 4]));
    assert!([&first, &second, &third].iter().all(|run| queue.register(run, 5)));
    let held = || [&first, &second, &third].map(|run| Arc::strong_count(run) > 1);
    (0..2).for_each(|_| assert!(first.claims().claim().is_some()));
    assert!(second.claims().claim().is_some() && third.claims().claim().is_some());
    queue.finish(1, 10);
    assert_eq!(held(), [false, false, true], "of the third there is more to claim");
    let places = third.places().to_vec();
    queue.give_back(&[], &third, &places[..1]);
    assert_eq!(held(), [false; 3]);
}

#[test]
fn b_086_what_a_filter_leaves_out_is_committed_with_what_is_around_it() {
    let queue = ProcessQueue::new(0);
    assert_eq!(queue.skip(3), commit(3));
    assert!(queue.register(&run(&[5, 8]), 12));
    assert_eq!(queue.finish(5, 10), commit(8));
    assert_eq!(queue.finish(8, 10), commit(12));
    assert!(queue.register(&run(&[12]), 13));
    assert_eq!(queue.skip(20), Progress::default());
    assert_eq!(queue.finish(12, 10), commit(20));
}

#[test]
fn pull_12_a_window_goes_back_only_before_anything_was_taken_over() {
    let queue = ProcessQueue::new(9);
    assert!(queue.rewind(4));
    let run = run(&[4, 5]);
    assert!(queue.register(&run, 6) && run.claims().claim().is_some());
    assert!(!queue.rewind(0));
    assert_eq!(queue.finish(4, 10), commit(5));
    assert_eq!(queue.revoke(), Progress { commit: Some(5), drained: true });
    assert!(!queue.rewind(0));
    assert_eq!(queue.low(), 5);
}

// What nobody has claimed is left alone (CONC-2).
#[test]
fn a_revoked_queue_finishes_what_is_claimed_and_what_lies_before_it() {
    let queue = ProcessQueue::new(0);
    let (first, second) = (run(&[0, 1, 2]), run(&[3, 4, 5]));
    assert!(queue.register(&first, 3) && queue.register(&second, 6));
    assert_eq!(first.claims().claim(), Some(0..1));
    assert_eq!(second.claims().claim(), Some(0..1));
    assert_eq!(queue.revoke(), Progress::default());
    assert!(first.claims().open(), "1 and 2 lie before what is claimed");
    assert!(!second.claims().open(), "4 and 5 are left to the next owner");
    for offset in [3, 1, 0] {
        assert!(!queue.finish(offset, 10).drained);
    }
    assert_eq!(queue.finish(2, 10), Progress { commit: Some(4), drained: true });
    assert!(!queue.register(&run(&[4]), 5));
}

#[test]
fn an_idle_queue_is_drained_at_once_and_only_once() {
    let queue = ProcessQueue::<()>::new(7);
    assert_eq!(queue.revoke(), Progress { commit: Some(7), drained: true });
    assert_eq!(queue.revoke(), Progress::default());
    assert_eq!(queue.low(), 7);
}

#[test]
fn ops_3_a_snapshot_tells_what_is_in_flight() {
    let queue = ProcessQueue::new(5);
    let empty = queue.snapshot();
    assert_eq!((empty.low, empty.next, empty.ends, empty.messages), (5, 5, None, 0));
    let run = run(&[5, 6, 8, 9]);
    assert!(queue.register(&run, 12));
    (0..4).for_each(|_| assert!(run.claims().claim().is_some()));
    queue.finish(5, 10);
    queue.finish(9, 10);
    let expected = Snapshot {
        low: 6,
        next: 12,
        ends: Some((6, 8)),
        messages: 2,
        bytes: 20,
        waiting: 0,
        revoked: false,
    };
    assert_eq!(queue.snapshot(), expected);
    queue.wait_for_retry();
    queue.revoke();
    let ended = queue.snapshot();
    assert_eq!((ended.waiting, ended.revoked), (1, true));
}

#[test]
fn b_096_a_queue_that_is_revoked_before_it_is_opened_has_no_progress() {
    let queue = ProcessQueue::<()>::unopened(7);
    assert!(queue.open(3));
    assert_eq!(queue.skip(5), commit(5));
    let queue = ProcessQueue::<()>::unopened(7);
    assert_eq!(queue.revoke(), Progress { commit: None, drained: true });
    assert!(!queue.open(3), "too late");
    assert_eq!(queue.low(), 7);
}

#[test]
fn whoever_drains_a_queue_commits_what_others_have_finished() {
    let queue = ProcessQueue::new(0);
    let run = run(&[0, 1, 2]);
    assert!(queue.register(&run, 3));
    (0..3).for_each(|_| assert!(run.claims().claim().is_some()));
    assert_eq!(queue.finish(0, 10), commit(1), "not stored yet by that worker");
    assert_eq!(queue.wait_for_retry(), Progress::default());
    assert_eq!(queue.revoke(), Progress::default());
    assert_eq!(queue.finish(2, 10), Progress { commit: Some(1), drained: true });
}

#[test]
fn what_is_finished_late_in_an_abandoned_queue_counts_no_more() {
    let queue = ProcessQueue::new(0);
    let run = run(&[0, 1, 2]);
    assert!(queue.register(&run, 3));
    (0..2).for_each(|_| assert!(run.claims().claim().is_some()));
    assert!(!queue.abandon(), "it is not revoked");
    assert_eq!(queue.finish(1, 10), Progress::default());
    assert_eq!(queue.revoke(), Progress::default());
    assert!(queue.abandon() && !queue.abandon());
    assert!(queue.is_abandoned());
    assert_eq!(queue.finish(0, 10), Progress::default());
    assert_eq!((queue.low(), queue.wait_for_retry()), (0, Progress::default()));
}

#[test]
fn pq_7_a_commit_finishes_what_was_kept_and_what_is_behind_it() {
    let queue = ProcessQueue::new(0);
    let run = run(&[0, 1, 3]);
    assert!(queue.register(&run, 5));
    assert_eq!(run.claims().claim(), Some(0..1));
    assert_eq!(queue.keep(1), Progress::default());
    assert_eq!(queue.skip_held(9), Progress::default(), "behind what is kept");
    assert_eq!(run.claims().claim(), Some(1..2));
    assert_eq!(queue.commit(&run.places()[..1], &run.places()[1..2]), commit(3));
    assert_eq!(queue.in_flight(), InFlight { messages: 1, bytes: 10, span: 6 });
}

// (PQ-8, PQ-9)
#[test]
fn pq_9_what_is_given_back_is_registered_again_and_what_is_kept_stays() {
    let queue = ProcessQueue::new(0);
    let first = run(&[0, 1, 3, 4]);
    assert!(queue.register(&first, 6));
    assert_eq!(first.claims().claim(), Some(0..1));
    assert_eq!(queue.keep(1), Progress::default());
    assert_eq!(first.claims().claim(), Some(1..2));
    let batch = first.places()[1..2].to_vec();
    assert_eq!(queue.give_back(&[], &first, &batch), Progress::default());
    assert_eq!(queue.in_flight(), InFlight { messages: 1, bytes: 10, span: 1 });
    assert_eq!(first.claims().claim(), None);
    let second = run(&[1, 3]);
    assert!(queue.register(&second, 4));
    assert_eq!(second.claims().claim(), Some(0..1));
    let kept = first.places()[..1].to_vec();
    assert_eq!(queue.give_back(&kept, &second, &batch), Progress::default());
    assert_eq!((queue.low(), queue.in_flight()), (0, InFlight::default()));
    assert_eq!(queue.skip_held(6), Progress::default(), "a late look");
    assert_eq!(queue.skip_held(7), commit(7));
}

#[test]
fn what_is_given_back_of_a_revoked_queue_is_left_to_the_next_owner() {
    let queue = ProcessQueue::new(0);
    let run = run(&[0, 1, 2, 3]);
    assert!(queue.register(&run, 4));
    assert_eq!(run.claims().claim(), Some(0..1));
    assert_eq!(queue.keep(1), Progress::default());
    assert_eq!(run.claims().claim(), Some(1..2));
    assert_eq!(queue.revoke(), Progress::default());
    let places = run.places();
    let drained = Progress { commit: Some(0), drained: true };
    assert_eq!(queue.give_back(&places[..1], &run, &places[1..2]), drained);
    assert_eq!(queue.in_flight(), InFlight::default());
}

#[test]
fn a_revoked_queue_does_not_wait_for_a_retry() {
    let queue = ProcessQueue::new(0);
    let run = run(&[0, 1]);
    assert!(queue.register(&run, 2));
    (0..2).for_each(|_| assert!(run.claims().claim().is_some()));
    assert_eq!(queue.wait_for_retry(), Progress::default());
    assert_eq!(queue.revoke(), Progress::default());
    assert!(queue.finish(1, 10).drained);
    assert!(!queue.begin_retry());
    assert_eq!(queue.low(), 0);
}

/// (B-107)
#[test]
fn what_is_passed_by_behind_a_message_that_hangs_takes_no_room() {
    let queue = ProcessQueue::new(0);
    assert!(queue.register(&run(&[0]), 1));
    (1..1_000_000).for_each(|next| assert_eq!(queue.skip_held(next), Progress::default()));
    assert_eq!(queue.in_flight(), InFlight { messages: 1, bytes: 10, span: 999_999 });
    assert!(queue.state.lock().finished.capacity() < 100);
    assert_eq!(queue.finish(0, 10), commit(999_999));
    // What is read behind it stands where it stands.
    assert!(queue.register(&run(&[999_999, 1_000_002]), 1_000_005));
    assert_eq!(queue.finish(1_000_002, 10), Progress::default());
    assert_eq!(queue.finish(999_999, 10), commit(1_000_005));
}
