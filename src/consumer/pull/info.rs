//! What a pull consumer tells operators (OPS-3).

use super::super::running_info::{QueueInfo, RunningInfo};
use super::cursor::Cursor;
use super::member::PullMember;

impl PullMember {
    pub(super) fn info(&self, settings: String) -> RunningInfo {
        let now = self.core.clock().moment();
        let queues: Vec<_> = self.queues.lock().owned.values().map(queue_info).collect();
        let status = self.group.meters().into_iter();
        RunningInfo {
            group: self.group.name.clone(),
            name: self.name.clone(),
            mode: self.mode,
            age: now.since(self.started),
            paused: !queues.is_empty() && self.paused().len() == queues.len(),
            threads: 0,
            settings,
            subscriptions: self.group.subscriptions(),
            queues,
            status: status.map(|(topic, meter)| (topic, meter.status(now))).collect(),
        }
    }
}

fn queue_info(cursor: &Cursor) -> QueueInfo {
    let Cursor { owned, next, committed, .. } = cursor;
    let ahead = next.saturating_sub(*committed);
    QueueInfo {
        queue: owned.id.clone(),
        committed: *committed,
        next: *next,
        in_flight: (ahead > 0).then(|| (*committed, next - 1)),
        messages: usize::try_from(ahead).unwrap_or(usize::MAX),
        bytes: 0,
        retrying: 0,
        draining: cursor.revoked,
        waiting: cursor.paused,
        leased: None,
        last_read: None,
        last_consumed: None,
    }
}
