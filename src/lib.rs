//! rocklet: an embedded, in-process, persistent message queue with the semantics of Apache
//! RocketMQ. An application links it, opens a directory, and has topics and queues on a
//! memory-mapped commit log, consumer groups, push and pull consumers. There is no network and no
//! daemon.
//!
//! ```
//! # let temporary = tempfile::tempdir()?;
//! # let dir = temporary.path();
//! use rocklet::{Broker, Message};
//! use std::time::Duration;
//!
//! let broker = Broker::open(dir)?;
//! broker.producer().send(&Message::new("orders", b"42 EUR").tag("paid").order_by("user-7"))?;
//! let mut audit = broker.pull_consumer("audit").subscribe("orders", "paid || due")?.start()?;
//! let orders = audit.poll(Duration::from_secs(1))?;
//! orders.iter().for_each(|order| println!("{}", String::from_utf8_lossy(order.body())));
//! audit.commit()?;
//! # assert_eq!(orders.len(), 1);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! What a sent message survives:
//!
//! | [`Flush`] | process killed | power lost |
//! |---|---|---|
//! | `Every(interval)` (default: 500 ms) | nothing acknowledged is lost | at most what was sent since the last completed flush began |
//! | `EveryMessage` (group commit) | nothing acknowledged is lost | nothing acknowledged is lost |
//!
//! Where to look for what:
//!
//! | to | see |
//! |---|---|
//! | send | [`Message`], [`Producer`], [`PendingSend`] |
//! | send for later | [`Message::delay`], [`Message::deliver_at`], [`DelayLevels`], [`Broker::cancel`] |
//! | consume | [`PushConsumer`] and [`PullConsumer`], a [`Batch`] at a time, between [`ConsumeHook`]s, their settings in [`ConsumerBuilder`], [`Start`], [`Mode`] |
//! | consume each queue in order | [`PushConsumerBuilder::start_orderly`](ConsumerBuilder::start_orderly), [`OrderlyOutcome`] |
//! | deal with what fails | [`Outcome`], [`BackOff`], [`Broker::dead_letters`] |
//! | choose messages | [`Filter`]: tags, SQL92, closures |
//! | look without consuming | [`Broker::browse`], [`Broker::find_by_key`], [`Broker::message`], [`Broker::offset_at`] |
//! | read from another process | [`Reader`] |
//! | manage topics and groups | [`TopicConfig`], [`Broker::create_topic`], [`GroupSettings`], [`Broker::reset_offsets`] |
//! | watch | [`Broker::stats`], [`Broker::topic_stats`], [`Broker::group_progress`], [`Broker::group_rates`], [`PushConsumer::running_info`] |
//! | bound the log | [`Retention`], [`BrokerBuilder::max_log_bytes`], [`AtLimit`] |
//! | check, copy and mend | [`Broker::verify`], [`Broker::backup`], [`BrokerBuilder::repair`], [`Recovery`] |
//!
//! Ids in brackets, such as (PROD-12), name rules of RocketMQ's behaviour; `docs/design.md` lists
//! them with the files and promises behind this page, [`documentation::migration`] maps RocketMQ's
//! names to these.
//!
//! # Features
//!
//! - `testing`: for the tests of your own handlers. `DrivenClock`, a clock that tests drive and that
//!   runs the broker's background work as steps; `SimulatedStorage`, a directory in memory whose calls
//!   fail as planned and that loses power.

#![cfg_attr(
    not(test),
    deny(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        clippy::exit,
        clippy::print_stderr,
        clippy::print_stdout,
        clippy::unwrap_used
    )
)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("rocklet is tested on 64-bit Linux only; other systems follow when they are tested");

mod broker;
mod clock;
mod consumer;
mod delay;
mod error;
mod message;
mod message_id;
mod names;
mod placement;
mod producer;
mod properties;
mod queue_id;
#[cfg(any(test, feature = "testing"))]
mod random;
mod reader;
mod service_state;
mod storage;
mod store;
mod string_hash;
mod sync;
mod topic_config;

pub use broker::assign::{
    AssignStrategy, Assignment, Averagely, ByCircle, ByConfig, ConsistentHash, LabelledQueue,
    MachineRoom, MachineRoomNearby, Sticky,
};
pub use broker::filter::Filter;
pub use broker::{
    BackOff, Broker, BrokerBuilder, Browse, DeadLetter, DeadLetters, GroupProgress, GroupSettings,
    Mode, PullStats, QueueProgress, QueueStats, Rates, ResetTo, Start, Stats, TopicStats, Window,
};
#[cfg(any(test, feature = "testing"))]
pub use clock::DrivenClock;
pub use consumer::{
    Batch, BatchIter, BatchListener, BatchOutcome, ConsumeHook, Consumed, ConsumerBuilder,
    IntoBatchOutcome, IntoOrderlyOutcome, IntoOutcome, Listener, NextTurn, OffsetStore,
    OrderlyListener, OrderlyOutcome, Outcome, Pause, Pull, PullConsumer, PullConsumerBuilder,
    PullSchedule, PullScheduleBuilder, PullSettings, PullStatus, PullTurn, PushConsumer,
    PushConsumerBuilder, PushSettings, QueueInfo, QueuesChanged, ReturnType, RunningInfo,
    ScheduleSettings,
};
pub use delay::DelayLevels;
pub use error::{Error, Result};
pub use message::{Message, Receipt};
pub use message_id::MessageId;
pub use producer::{PendingSend, Producer, SendHook};
pub use queue_id::QueueId;
pub use reader::Reader;
pub use service_state::ServiceState;
#[cfg(any(test, feature = "testing"))]
pub use storage::{Change, Crash, Fate, FaultPlan, SimulatedStorage, StorageCall, StorageFault};
pub use store::{
    AtLimit, Boot, Damage, Deliveries, DeliveriesIter, Delivery, DetachedDelivery, Edge, Fault,
    Flush, LostMessages, LoweredOffset, Recovery, RecoveryReport, Retention, RetentionStats,
    Verification, Verify, Volume,
};
pub use topic_config::{Permission, TopicConfig};

/// What the targets in `fuzz/` run.
#[cfg(any(all(test, not(loom)), fuzzing))]
pub mod fuzzing {
    pub use crate::store::fuzzing::decode;
}

/// What the golden vectors of the crate's own tests are replayed on.
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod vectors {
    pub use crate::broker::replayed_queue::ReplayedQueue;
}

/// The design and the migration guide, as they stand in the repository.
pub mod documentation {
    #[doc = include_str!("../docs/design.md")]
    pub mod design {}
    #[doc = include_str!("../docs/migration.md")]
    pub mod migration {}
}

#[cfg(all(test, loom))]
#[path = "../loom-tests/mod.rs"]
mod loom_tests;

/// The samples of the README compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
