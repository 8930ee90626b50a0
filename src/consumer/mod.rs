//! Floor 4, receiving: push consumers call a listener, pull consumers are asked,
//! pull schedules ask by themselves.

mod answer;
mod batch;
mod batch_listener;
mod builder;
mod concurrent;
mod handler;
mod hook;
mod offset_store;
mod orderly;
mod outcome;
mod owned_queue;
pub(crate) mod pause_gate;
mod phase;
mod pull;
mod push;
mod push_settings;
mod queue_changes;
mod running_info;
pub(crate) mod schedule;
pub(crate) mod timed_call;
mod uncommitted;

pub use batch::{Batch, BatchIter};
pub use batch_listener::{BatchListener, BatchOutcome, IntoBatchOutcome};
pub use builder::ConsumerBuilder;
pub use hook::{ConsumeHook, Consumed, ReturnType};
pub use offset_store::OffsetStore;
pub use orderly::{IntoOrderlyOutcome, OrderlyListener, OrderlyOutcome, Pause};
pub use outcome::{IntoOutcome, Listener, Outcome};
pub use pull::{Pull, PullConsumer, PullConsumerBuilder, PullSettings, PullStatus};
pub use push::PushConsumer;
pub use push_settings::{PushConsumerBuilder, PushSettings};
pub use queue_changes::QueuesChanged;
pub use running_info::{QueueInfo, RunningInfo};
pub use schedule::{NextTurn, PullSchedule, PullScheduleBuilder, PullTurn, ScheduleSettings};
