//! What can go wrong, as one enum whose texts say what to do.

use crate::message::Receipt;
use crate::service_state::ServiceState;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// A result whose error is rocklet's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that rocklet reports as failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused a file operation.
    Io {
        /// What was being done, such as `open`.
        action: &'static str,
        /// The file or folder.
        file: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Another broker has the directory open.
    Locked {
        /// The directory.
        dir: PathBuf,
    },
    /// A file holds bytes that rocklet did not write there.
    Corrupt {
        /// The file.
        file: PathBuf,
        /// The byte: a commit-log position in a log segment, otherwise an index into the file.
        position: u64,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A file was written by a version of the format that this build does not know.
    Version {
        /// The file.
        file: PathBuf,
        /// The version found.
        found: u32,
        /// The newest version that this build reads.
        supported: u32,
    },
    /// The file system has no room, or would have less than
    /// [`min_free_bytes`](crate::BrokerBuilder::min_free_bytes) of it; nothing was stored, and the
    /// same call may be tried again.
    DiskFull {
        /// The file that could not be given its blocks.
        file: PathBuf,
        /// How many bytes were asked for; 0 if that is not known.
        needed: u64,
    },
    /// The log has reached [`max_log_bytes`](crate::BrokerBuilder::max_log_bytes); nothing was
    /// stored, and the same call may be tried again once retention has dropped a file.
    LogFull {
        /// Bytes of its files.
        bytes: u64,
        /// The most that they may have.
        limit: u64,
    },
    /// A sync failed, or a thread of the broker panicked, now or earlier: nothing more is accepted
    /// until the broker is closed and reopened.
    Poisoned {
        /// The first failure.
        cause: String,
    },
    /// The message is stored and may be delivered, but the sync that was to make it durable failed.
    NotDurable {
        /// What `send` would have returned.
        receipt: Receipt,
        /// The failure of the sync.
        cause: String,
    },
    /// The broker, or the consumer, is closed.
    Closed,
    /// A part of a message is over its limit; nothing was stored.
    TooLarge {
        /// Which part.
        what: &'static str,
        /// Its length in bytes.
        length: usize,
        /// The most that is allowed, in bytes.
        limit: usize,
    },
    /// A message has no body; nothing was stored.
    EmptyBody,
    /// A message is to wait longer than that makes sense; nothing was stored (DELAY-10).
    DelayTooLong {
        /// How long it would wait.
        delay: Duration,
        /// The longest that is allowed.
        limit: Duration,
    },
    /// A name breaks the rules, or a text is not a message id or a table of delays.
    Name {
        /// What is named: `topic`, `group`, `consumer`, `label`, `message id` or `delay level table`.
        what: &'static str,
        /// The name given.
        name: String,
        /// The rule it breaks.
        reason: &'static str,
    },
    /// A property, key or tag breaks the rules; nothing was stored.
    Property {
        /// The property's name.
        name: String,
        /// The rule it breaks.
        reason: &'static str,
    },
    /// The topic does not exist and is not created on first use.
    NoSuchTopic {
        /// The topic.
        topic: String,
    },
    /// The topic exists already.
    TopicExists {
        /// The topic.
        topic: String,
    },
    /// The topic's permission forbids it (MODEL-4).
    NotPermitted {
        /// The topic.
        topic: String,
        /// What may not be done: `sent to` or `consumed`.
        action: &'static str,
    },
    /// The topic has no such queue.
    NoSuchQueue {
        /// The topic.
        topic: String,
        /// The queue asked for.
        queue: u16,
        /// How many queues there are.
        queues: u16,
    },
    /// The message's options or its selector do not name one queue.
    NoQueueChosen {
        /// What was wrong.
        reason: &'static str,
    },
    /// A batch breaks the rules (PROD-15); nothing was stored.
    Batch {
        /// The rule it breaks.
        reason: &'static str,
    },
    /// A filter expression cannot be read.
    Filter {
        /// The expression.
        expression: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// An SQL92 expression cannot be understood. Displayed, it is the reason, and the line with a
    /// caret under the place.
    Sql {
        /// The line of the expression that has the fault, or the part around it.
        line: String,
        /// The characters of `line` before the fault.
        column: usize,
        /// The bytes of the expression before the fault.
        position: usize,
        /// What is wrong.
        reason: &'static str,
    },
    /// A setting is out of its range.
    Setting {
        /// The parameter.
        name: &'static str,
        /// The value given.
        value: u64,
        /// What it has to be, such as `a power of two`.
        rule: &'static str,
        /// The smallest value allowed.
        min: u64,
        /// The largest value allowed.
        max: u64,
    },
    /// A consumer of that name is already in the group.
    Duplicate {
        /// The group.
        group: String,
        /// The name.
        name: String,
    },
    /// A member's subscription or model differs from that of its group.
    Mismatch {
        /// The group.
        group: String,
        /// What differs.
        what: &'static str,
    },
    /// The consumer is in a state in which it cannot do this.
    State {
        /// What was asked for.
        action: &'static str,
        /// The state.
        state: ServiceState,
    },
    /// Listeners were still running when the time for shutting down was over. Their consumer has
    /// left its group, and gives its last queues back when they return.
    NotDrained {
        /// How many queues are held by them.
        queues: usize,
    },
    /// There is no such group, and it is not created by its first consumer.
    NoSuchGroup {
        /// The group.
        group: String,
    },
    /// The group exists already.
    GroupExists {
        /// The group.
        group: String,
    },
    /// The group has running members, and this is possible without any only.
    GroupInUse {
        /// The group.
        group: String,
        /// How many members run.
        members: usize,
    },
    /// The settings of the group forbid it (PULL-8).
    GroupForbids {
        /// The group.
        group: String,
        /// What is forbidden: `consuming` or `broadcasting`.
        what: &'static str,
    },
    /// Which queues a consumer is to have is said in two ways, or not at all (LITE-1).
    Assignment {
        /// What is wrong.
        reason: &'static str,
    },
    /// The group is not subscribed to the topic.
    NotSubscribed {
        /// The group.
        group: String,
        /// The topic.
        topic: String,
    },
    /// The user's offset store failed.
    OffsetStore {
        /// What it was to do: `load`, `read` or `store`.
        action: &'static str,
        /// What it reported.
        reason: String,
    },
    /// The queue is not assigned to this consumer.
    NotAssigned {
        /// The topic.
        topic: String,
        /// The queue.
        queue: u16,
    },
    /// The offset lies outside the queue.
    OffsetRange {
        /// The offset asked for.
        offset: u64,
        /// The first stored offset.
        min: u64,
        /// The next offset to be given.
        max: u64,
    },
    /// The user's assignment strategy failed or returned an impossible assignment.
    Strategy {
        /// What was wrong.
        reason: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { action, file, source } => {
                write!(f, "cannot {action} {}: {source}", file.display())
            }
            Self::Locked { dir } => write!(
                f,
                "{} is open in another broker; close that one first, or use another directory",
                dir.display()
            ),
            Self::Corrupt { file, position, reason } => write!(
                f,
                "{} is damaged at {position}: {reason}; restore it from a backup, or open the directory \
                 with Recovery::Salvage",
                file.display()
            ),
            Self::Version { file, found, supported } => write!(
                f,
                "{} has format version {found}, this build reads up to {supported}; use a newer rocklet",
                file.display()
            ),
            Self::DiskFull { file, needed: 0 } => {
                write!(f, "no space for {}; free some and try again", file.display())
            }
            Self::DiskFull { file, needed } => write!(
                f,
                "no space for {needed} bytes of {}; free some and try again",
                file.display()
            ),
            Self::LogFull { bytes, limit } => write!(
                f,
                "the log has {bytes} bytes and may have {limit}; drop its front (drop_before, Retention, \
                 AtLimit::DropOldest) or raise max_log_bytes, then try again"
            ),
            Self::Poisoned { cause } => {
                write!(f, "the broker takes no more ({cause}); close it, check the disk and reopen")
            }
            Self::NotDurable { receipt, cause } => write!(
                f,
                "the message at position {} is stored, but its sync failed ({cause}); \
                 treat it as perhaps lost",
                receipt.position
            ),
            Self::Closed => f.write_str("the broker or consumer is closed; open or start it again"),
            Self::TooLarge { what, length, limit } => {
                write!(f, "the {what} has {length} bytes, at most {limit} are allowed")
            }
            Self::DelayTooLong { delay, limit } => write!(
                f,
                "the message would wait for {delay:?}, at most {limit:?} are allowed; is the unit right?"
            ),
            Self::EmptyBody => f.write_str("the message has no body; give it at least one byte"),
            Self::Name { what, name, reason } => write!(f, "{what} name {name:?} {reason}"),
            Self::Property { name, reason } => write!(f, "property {name:?} {reason}"),
            Self::NoSuchTopic { topic } => {
                write!(f, "there is no topic {topic:?}; create it with create_topic")
            }
            Self::TopicExists { topic } => write!(f, "topic {topic:?} exists already"),
            Self::NotPermitted { topic, action } => {
                write!(f, "topic {topic:?} may not be {action}; update_topic can permit it")
            }
            Self::NoSuchQueue { topic, queue, queues } => {
                write!(
                    f,
                    "topic {topic:?} has queues 0 to {}, not {queue}",
                    queues.saturating_sub(1)
                )
            }
            Self::NoQueueChosen { reason } => write!(f, "no queue can be chosen: {reason}"),
            Self::Batch { reason } => write!(f, "the batch is refused: {reason}"),
            Self::Filter { expression, reason } => write!(f, "filter {expression:?}: {reason}"),
            Self::Sql { line, column, position, reason } => {
                write!(f, "{reason} (at byte {position}):\n  {line}\n  {:column$}^", "")
            }
            Self::Setting { name, value, rule, min, max } => {
                write!(f, "{name} is {value}, it must be {rule} from {min} to {max}")
            }
            Self::Duplicate { group, name } => write!(
                f,
                "group {group:?} has a running consumer named {name:?}; choose another name"
            ),
            Self::Mismatch { group, what } => write!(
                f,
                "the running members of group {group:?} have another {what}; all must be the same"
            ),
            Self::State { action, state } => {
                write!(f, "the consumer is {state} and cannot {action}; prepare a new one")
            }
            Self::NotDrained { queues } => write!(
                f,
                "listeners are still running and hold {queues} queues; \
                 these are given back when they return"
            ),
            Self::NoSuchGroup { group } => {
                write!(f, "there is no group {group:?}; create it with create_group")
            }
            Self::GroupExists { group } => write!(f, "group {group:?} exists already"),
            Self::GroupInUse { group, members } => {
                write!(f, "group {group:?} has {members} running members; shut them down first")
            }
            Self::GroupForbids { group, what } => {
                write!(f, "group {group:?} forbids {what}; allow it with update_group")
            }
            Self::Assignment { reason } => {
                write!(f, "the consumer's queues cannot be chosen like this: {reason}")
            }
            Self::NotSubscribed { group, topic } => {
                write!(f, "group {group:?} is not subscribed to topic {topic:?}")
            }
            Self::OffsetStore { action, reason } => {
                write!(f, "the offset store cannot {action}: {reason}")
            }
            Self::NotAssigned { topic, queue } => {
                write!(f, "queue {queue} of topic {topic:?} is not assigned to this consumer")
            }
            Self::OffsetRange { offset, min, max } => {
                write!(f, "offset {offset} is outside the queue, which holds {min} to {max}")
            }
            Self::Strategy { reason } => {
                write!(f, "the assignment strategy failed: {reason}; the old assignment stays")
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl From<std::convert::Infallible> for Error {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}
