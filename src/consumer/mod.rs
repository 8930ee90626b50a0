//! Floor 4, receiving: push consumers call a listener, pull consumers are asked.

mod concurrent;
mod outcome;
mod pull;
mod pull_member;
mod push;
mod subscribe;

pub use outcome::{IntoOutcome, Listener, Outcome};
pub use pull::{Pull, PullConsumer, PullConsumerBuilder, PullStatus};
pub use push::{PushConsumer, PushConsumerBuilder};
