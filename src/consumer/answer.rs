//! What a listener's answer means for its batch.

use super::batch_listener::BatchOutcome;
use super::hook::{Consumed, ReturnType};
use super::outcome::Outcome;
use std::time::Duration;

/// What came of one call of a listener.
pub(super) struct Answer {
    all: usize,
    /// How many messages are done with, beginning with the first.
    pub(super) acknowledged: usize,
    /// The outcome of the others.
    pub(super) rest: Outcome,
    pub(super) panicked: bool,
}

impl Answer {
    /// The answer to `all` messages: what the listener returned, or the text of its panic, which
    /// fails them (CONC-6).
    #[inline]
    pub(super) fn of(returned: Result<BatchOutcome, String>, all: usize) -> Self {
        let panicked = returned.is_err();
        let failed = |panic| Outcome::Failed(format!("the listener panicked: {panic}")).into();
        let (acknowledged, rest) = returned.unwrap_or_else(failed).of(all);
        Self { all, acknowledged, rest, panicked }
    }

    /// What hooks are told of it (CONC-5).
    pub(super) fn told(&self, elapsed: Duration, limit: Duration) -> Consumed {
        let return_type = match () {
            () if self.panicked => ReturnType::Panicked,
            () if elapsed >= limit => ReturnType::TimedOut,
            () if self.acknowledged < self.all => ReturnType::Failed,
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
}
