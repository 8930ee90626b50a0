//! Whether the members of a group share the messages, or get all of them each.

/// How the members of a group divide its topics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// Each message goes to one member: they share the queues, and the group's progress.
    #[default]
    Clustering,
    /// Each message goes to every member: each has all queues, and progress of its own under its
    /// name. What a listener fails is dropped, reported and counted, not delivered again (REB-3).
    Broadcasting,
}
