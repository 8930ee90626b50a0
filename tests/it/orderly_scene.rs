//! What the tests of consumers in order share: one queue, and a time that stands still.

use crate::support::*;
use rocklet::{Broker, DrivenClock, Filter, PushConsumerBuilder};
use std::time::Duration;

pub(crate) const MS: Duration = Duration::from_millis(1);
/// Longer than any test lets pass: however late a thread is, nothing expires.
pub(crate) const DAY: Duration = Duration::from_secs(86_400);

pub(crate) fn driven() -> (Scene, DrivenClock) {
    let clock = DrivenClock::new(1_700_000_000_000);
    let scene = scene_with(|builder| builder.clock(&clock).lease_expiry(DAY));
    scene.broker.create_topic("t", 1).unwrap();
    (scene, clock)
}

pub(crate) fn builder(broker: &Broker) -> PushConsumerBuilder {
    let builder = broker.push_consumer("g").subscribe("t", Filter::ALL).unwrap();
    builder.threads(2).pull_expiry(DAY)
}
