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
            threads: self.threads(),
            settings: format!("{:?}", self.settings),
            subscriptions: self.group.subscriptions(),
            queues: queues.iter().map(|queue| self.queue_info(queue, now)).collect(),
            status: status.map(|(topic, meter)| (topic, meter.status(now))).collect(),
        }
    }

    fn queue_info(&self, queue: &OwnedQueue, now: Moment) -> QueueInfo {
        let window = queue.window.snapshot();
        let (last_read, waiting) = queue.reads.last();
        QueueInfo {
            queue: queue.owned.id.clone(),
            committed: window.low,
            next: window.next,
            in_flight: window.ends,
            messages: window.messages,
            bytes: window.bytes,
            retrying: window.waiting,
            draining: window.revoked,
            waiting,
            leased: queue.owned.lease.map(|lease| self.group.leases.is_valid(lease, now)),
            last_read: Some(now.since(last_read)),
            last_consumed: queue.last_call.get().map(|moment| now.since(moment)),
        }
    }
}
