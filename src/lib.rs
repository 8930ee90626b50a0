//! An embedded, in-process, persistent message queue with the semantics of Apache RocketMQ.

mod broker;
mod clock;
mod consumer;
mod error;
mod message;
mod message_id;
mod names;
mod placement;
mod producer;
mod properties;
mod queue_id;
mod storage;
mod store;
mod string_hash;
mod sync;

pub use broker::assign::{AssignStrategy, Assignment, Averagely};
pub use broker::filter::Filter;
pub use broker::{Broker, BrokerBuilder, Start, Stats};
#[cfg(any(test, feature = "testing"))]
pub use clock::DrivenClock;
pub use consumer::{
    IntoOutcome, Listener, Outcome, Pull, PullConsumer, PullConsumerBuilder, PullStatus,
    PushConsumer, PushConsumerBuilder,
};
pub use error::{Error, Result};
pub use message::{Message, Receipt};
pub use message_id::MessageId;
pub use producer::{Producer, SendHook};
pub use queue_id::QueueId;
pub use store::{
    Deliveries, DeliveriesIter, Delivery, DetachedDelivery, Flush, LoweredOffset, RecoveryReport,
};
