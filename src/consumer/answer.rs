//! What a listener's answer means for its batch.

use super::batch_listener::BatchOutcome;
use super::hook::{Consumed, ReturnType};
use super::orderly::{OrderlyOutcome, Pause};
use super::outcome::Outcome;
use std::time::Duration;

/// What came of one call of a listener.
pub(super) struct Answer {
    /// How many messages are done with, beginning with the first.
    pub(super) acknowledged: usize,
    /// The outcome of the others.
    pub(super) rest: Outcome,
    pub(super) panicked: bool,
    /// Some have failed: what is rolled back has not.
    failed: bool,
}

impl Answer {
    /// The answer to `all` messages: what the listener returned, or the text of its panic, which
    /// fails them (CONC-6).
    #[inline]
    pub(super) fn of(returned: Result<BatchOutcome, String>, all: usize) -> Self {
        let panicked = returned.is_err();
        let failed = |panic| Outcome::Failed(format!("the listener panicked: {panic}")).into();
        let (acknowledged, rest) = returned.unwrap_or_else(failed).of(all);
        Self { acknowledged, rest, panicked, failed: acknowledged < all }
    }

    /// The answer of a listener that consumes in order (ORD-14, ORD-21).
    pub(super) fn in_order(returned: &Result<OrderlyOutcome, String>, all: usize) -> Self {
        let panicked = returned.is_err();
        let rest = |pause: &Pause| Outcome::Failed(pause.reason().to_owned());
        let (acknowledged, rest, failed) = match returned {
            Ok(OrderlyOutcome::Success | OrderlyOutcome::Commit) => (all, Outcome::Success, false),
            Ok(OrderlyOutcome::Rollback(pause)) => (0, rest(pause), false),
            Ok(OrderlyOutcome::Suspend(pause)) => (0, rest(pause), true),
            Err(panic) => (0, rest(&Pause::after_panic(panic)), true),
        };
        Self { acknowledged, rest, panicked, failed }
    }

    /// Whether any of the messages count as failed.
    pub(super) fn has_failed(&self) -> bool {
        self.failed
    }

    /// What hooks are told of it (CONC-5).
    pub(super) fn told(&self, elapsed: Duration, limit: Duration) -> Consumed {
        let return_type = match () {
            () if self.panicked => ReturnType::Panicked,
            () if elapsed >= limit => ReturnType::TimedOut,
            () if self.failed => ReturnType::Failed,
            () => ReturnType::Success,
        };
        let reason = self.rest.clone().failure().map(|failure| failure.reason);
        Consumed { return_type, acknowledged: self.acknowledged, reason, elapsed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // (CONC-5, CONC-6)
    #[test]
    fn conc_5_the_first_return_type_that_applies_is_told() {
        let (quick, limit) = (Duration::from_millis(1), Duration::from_millis(2));
        let told = |returned, elapsed| {
            let Consumed { return_type, acknowledged, reason, .. } =
                Answer::of(returned, 2).told(elapsed, limit);
            (return_type, acknowledged, reason)
        };
        let failed = || Outcome::Failed("x".to_owned());
        let x = Some("x".to_owned());
        let panic = Some("the listener panicked: x".to_owned());
        for slow in [limit, 2 * limit] {
            assert_eq!(told(Err("x".into()), slow), (ReturnType::Panicked, 0, panic.clone()));
            assert_eq!(told(Ok(failed().into()), slow), (ReturnType::TimedOut, 0, x.clone()));
            // The time does not change the outcome.
            let success = Ok(Outcome::Success.into());
            assert_eq!(told(success, slow), (ReturnType::TimedOut, 2, None));
        }
        assert_eq!(told(Err("x".into()), quick), (ReturnType::Panicked, 0, panic));
        assert_eq!(told(Ok(failed().into()), quick), (ReturnType::Failed, 0, x.clone()));
        let half = Ok(BatchOutcome::acknowledge(1, failed()));
        assert_eq!(told(half, quick), (ReturnType::Failed, 1, x));
        assert_eq!(told(Ok(Outcome::Success.into()), quick), (ReturnType::Success, 2, None));
    }

    // (ORD-14, ORD-21)
    #[test]
    fn ord_14_a_commit_and_a_rollback_are_successes_to_look_at() {
        let told = |returned, elapsed| {
            let told = Answer::in_order(&returned, 2).told(elapsed, Duration::from_secs(9));
            (told.return_type, told.acknowledged, told.reason)
        };
        let pause = || Pause::because("x");
        let (quick, x) = (Duration::ZERO, Some("x".to_owned()));
        let outcomes = [
            (Ok(OrderlyOutcome::Success), (ReturnType::Success, 2, None)),
            (Ok(OrderlyOutcome::Commit), (ReturnType::Success, 2, None)),
            (Ok(OrderlyOutcome::Rollback(pause())), (ReturnType::Success, 0, x.clone())),
            (Ok(OrderlyOutcome::Suspend(pause())), (ReturnType::Failed, 0, x)),
        ];
        for (outcome, expected) in outcomes {
            assert_eq!(told(outcome, quick), expected);
        }
        let panic = Some("the listener panicked: x".to_owned());
        assert_eq!(told(Err("x".to_owned()), quick), (ReturnType::Panicked, 0, panic));
        let slow = told(Ok(OrderlyOutcome::Commit), Duration::from_secs(9));
        assert_eq!(slow, (ReturnType::TimedOut, 2, None));
    }
}
