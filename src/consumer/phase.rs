//! What a consumer has in each state of its life.

use crate::error::{Error, Result};
use crate::service_state::ServiceState;

/// `P` is what a start needs, `R` what runs.
pub(super) enum Phase<P, R> {
    Created(P),
    StartFailed,
    Running(R),
    Shutdown,
}

impl<P, R> Phase<P, R> {
    pub(super) fn state(&self) -> ServiceState {
        match self {
            Self::Created(_) => ServiceState::Created,
            Self::StartFailed => ServiceState::StartFailed,
            Self::Running(_) => ServiceState::Running,
            Self::Shutdown => ServiceState::Shutdown,
        }
    }

    /// Takes out what a start needs; the start has failed until it says otherwise (CLI-1).
    ///
    /// # Errors
    /// `State` if it was started before.
    pub(super) fn begin(&mut self) -> Result<P> {
        match std::mem::replace(self, Self::StartFailed) {
            Self::Created(plan) => Ok(plan),
            other => {
                *self = other;
                Err(self.refuse("start"))
            }
        }
    }

    /// Says how a start ended; a refused duplicate may be tried again under another name (CLI-2).
    pub(super) fn end(&mut self, started: Result<R>, plan: P) -> Result<()> {
        match started {
            Ok(running) => {
                *self = Self::Running(running);
                Ok(())
            }
            Err(error) => {
                if let Error::Duplicate { .. } = error {
                    *self = Self::Created(plan);
                }
                Err(error)
            }
        }
    }

    pub(super) fn refuse(&self, action: &'static str) -> Error {
        Error::State { action, state: self.state() }
    }

    /// What runs.
    ///
    /// # Errors
    /// `State` if nothing does.
    pub(super) fn running(&self, action: &'static str) -> Result<&R> {
        if let Self::Running(running) = self { Ok(running) } else { Err(self.refuse(action)) }
    }

    /// Ends it; returns what was running (CLI-10).
    pub(super) fn shut_down(&mut self) -> Option<R> {
        match std::mem::replace(self, Self::Shutdown) {
            Self::Running(running) => Some(running),
            Self::Shutdown => None,
            other => {
                *self = other;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(error: Error) -> String {
        error.to_string()
    }

    #[test]
    fn cli_1_cli_2_a_start_is_done_once_and_a_failed_one_is_the_last() {
        let mut phase: Phase<u8, u8> = Phase::Created(1);
        assert_eq!(phase.begin().unwrap(), 1);
        assert_eq!(phase.state(), ServiceState::StartFailed, "while it starts");
        assert_eq!(
            name(phase.begin().unwrap_err()),
            "the consumer is start failed and cannot start; prepare a new one"
        );
        phase.end(Ok(2), 1).unwrap();
        assert_eq!(phase.running("poll").unwrap(), &2);
        assert!(name(phase.begin().unwrap_err()).starts_with("the consumer is running"));
        assert_eq!((phase.shut_down(), phase.shut_down()), (Some(2), None));
        assert!(name(phase.begin().unwrap_err()).starts_with("the consumer is shut down"));

        let mut phase: Phase<u8, u8> = Phase::Created(1);
        let plan = phase.begin().unwrap();
        let _ = phase.end(Err(Error::Closed), plan).unwrap_err();
        assert_eq!(phase.state(), ServiceState::StartFailed);
    }

    #[test]
    fn cli_2_a_refused_duplicate_may_be_tried_again() {
        let mut phase: Phase<u8, u8> = Phase::Created(1);
        let plan = phase.begin().unwrap();
        let (group, name) = ("g".to_owned(), "m".to_owned());
        let _ = phase.end(Err(Error::Duplicate { group, name }), plan).unwrap_err();
        assert_eq!(phase.begin().unwrap(), 1);
    }

    #[test]
    fn cli_10_shutting_down_what_does_not_run_changes_nothing() {
        let mut phase: Phase<u8, u8> = Phase::Created(1);
        assert_eq!(phase.shut_down(), None);
        assert_eq!(phase.state(), ServiceState::Created);
        assert!(matches!(phase.running("poll"), Err(Error::State { action: "poll", .. })));
    }
}
