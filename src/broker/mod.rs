//! Floor 3: who gets which message. No files and no unsafe code from here on up.
//!
//! ```text
//! handle builder topics         the open directory, as users hold it
//! stats pull_stats              what it does, in numbers
//! group_progress meter samples  how far groups have come, and how fast
//! look_up browse topic_stats    what is stored in it, on no group's account
//! expiry                        what of it is not delivered any more
//! core background               what they share: store, hold table, timer, groups, threads
//! group assign start mode lease who owns which queue
//! group_settings group_admin    what operators decide about groups
//! process_queue run             what an owner has in flight
//! send_back back_off copies     what becomes of what it fails
//! dead_letters turns            what a group has given up on
//! hold timer filter readers     who waits, until when, and for what
//! ```

pub(crate) mod assign;
mod back_off;
mod background;
mod browse;
mod builder;
pub(crate) mod copies;
pub(crate) mod core;
mod dead_letters;
mod delay;
pub(crate) mod expiry;
pub(crate) mod filter;
pub(crate) mod group;
mod group_admin;
mod group_progress;
mod group_settings;
mod handle;
pub(crate) mod hold;
pub(crate) mod lease;
mod look_up;
pub(crate) mod meter;
mod mode;
pub(crate) mod process_queue;
pub(crate) mod pull_stats;
pub(crate) mod readers;
#[cfg(feature = "testing")]
pub(crate) mod replayed_queue;
pub(crate) mod run;
mod samples;
pub(crate) mod send_back;
mod start;
mod stats;
#[cfg(all(test, not(loom)))]
mod tests;
pub(crate) mod timer;
mod topic_stats;
mod topics;
mod turns;
pub(crate) mod write;

pub use back_off::BackOff;
pub use browse::Browse;
pub use builder::BrokerBuilder;
pub use dead_letters::{DeadLetter, DeadLetters};
pub use group_admin::ResetTo;
pub use group_progress::{GroupProgress, QueueProgress};
pub use group_settings::GroupSettings;
pub use handle::Broker;
pub use meter::Rates;
pub use mode::Mode;
pub use pull_stats::PullStats;
pub use samples::Window;
pub use start::Start;
pub use stats::Stats;
pub use topic_stats::{QueueStats, TopicStats};
