//! What the service tells operators (OPS-3).

use super::super::owned_queue::OwnedQueue;
use super::super::running_info::{QueueInfo, RunningInfo};
use super::Service;
use crate::clock::Moment;

impl Service {
    pub(in super::super) fn info(&self) -> RunningInfo {
        let now = self.core.clock().moment();
        let queues: Vec<_> = self.queues.lock().values().cloned().collect();
        let status = self.group.meters().into_iter();
        RunningInfo {
            group: self.group.name.clone(),
            name: self.name.clone(),
            mode: self.mode,
            age: now.since(self.started),
            paused: self.is_paused(),
            settings: format!("{:?}", self.settings),
            subscriptions: self.group.subscriptions(),
            queues: queues.iter().map(|queue| queue.info(now)).collect(),
            status: status.map(|(topic, meter)| (topic, meter.status(now))).collect(),
        }
    }
}

impl OwnedQueue {
    fn info(&self, now: Moment) -> QueueInfo {
        let window = self.window.snapshot();
        let (last_read, waiting) = self.reads.last();
        QueueInfo {
            queue: self.owned.id.clone(),
            committed: window.low,
            next: window.next,
            in_flight: window.ends,
            messages: window.messages,
            bytes: window.bytes,
            retrying: window.waiting,
            draining: window.revoked,
            waiting,
            last_read: now.since(last_read),
            last_consumed: self.last_call.get().map(|moment| now.since(moment)),
        }
    }
}
