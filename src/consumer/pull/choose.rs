//! Queues that the user has chosen: no rebalance, no membership (LITE-1, LITE-2).

use super::super::builder::Plan;
use super::cursor::Cursor;
use super::member::PullMember;
use crate::broker::core::Running;
use crate::broker::expiry::Passed;
use crate::broker::filter::Filter;
use crate::broker::group::Owned;
use crate::error::{Error, Result};
use crate::queue_id::QueueId;
use crate::sync::Arc;
use std::collections::BTreeSet;

impl PullMember {
    /// Begins with `ids`, as a guest of the group.
    pub(super) fn enter(
        self: &Arc<Self>,
        plan: &Plan,
        ids: &BTreeSet<QueueId>,
        filter: &Filter,
    ) -> Result<()> {
        self.group.admit(self.mode)?;
        let running: Arc<dyn Running> = self.clone();
        let begun = plan.broker.core().add_consumer(Arc::downgrade(&running));
        begun.and_then(|()| self.choose(ids, filter)).inspect_err(|_| self.stop())
    }

    /// Has exactly these queues from now on. Those that it had go on where they are; what was
    /// handed out of the others and not committed is left to the group. An error changes nothing.
    pub(super) fn choose(&self, ids: &BTreeSet<QueueId>, filter: &Filter) -> Result<()> {
        if ids.is_empty() {
            return Err(Error::Assignment { reason: "no queue is named; name at least one" });
        }
        let begun = self.core.while_open(|| {
            let owned = ids.iter().map(|id| self.chosen(id, filter));
            let owned = owned.collect::<Result<Vec<_>>>()?;
            let begin = self.group.beginnings(self.mode, &owned, self.start)?;
            Ok(owned.into_iter().zip(begin))
        })?;
        let mut queues = self.queues.lock();
        self.check_open()?;
        let before = std::mem::take(&mut queues.owned);
        for (owned, offset) in begun {
            let had = before.get(&owned.id).filter(|had| had.owned.key == owned.key);
            let (id, ticket) = (owned.id.clone(), queues.ticket());
            let waiter = self.waiter(&owned, ticket);
            let cursor = match had {
                Some(had) => had.with(owned, ticket, waiter),
                None => Cursor::new(owned, ticket, waiter, offset),
            };
            queues.owned.insert(id, cursor);
        }
        drop(queues);
        // With no lock held: a predicate is the user's.
        drop(before);
        Ok(())
    }

    fn chosen(&self, id: &QueueId, filter: &Filter) -> Result<Owned> {
        let (topic, queue) = self.core.queue(id)?;
        topic.check_readable()?;
        let key = self.group.key(self.mode, &self.name, &queue)?;
        let (meter, filter) = (self.group.meter(id.topic()), filter.clone());
        let (id, lease, passed) = (id.clone(), None, Passed::nothing());
        Ok(Owned { id, queue, key, filter, lease, meter, passed })
    }
}
