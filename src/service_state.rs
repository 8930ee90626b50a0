use std::fmt;

/// Where a consumer is in its life (CLI-1, CLI-9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ServiceState {
    /// Prepared, and not started.
    Created,
    /// Starting, or a start has failed: it cannot be used any more.
    StartFailed,
    /// Started.
    Running,
    /// Shut down.
    Shutdown,
}

impl fmt::Display for ServiceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Created => "created",
            Self::StartFailed => "start failed",
            Self::Running => "running",
            Self::Shutdown => "shut down",
        })
    }
}
