//! Consumers that choose their queues themselves (LITE-2): the group deals them none, but they go on
//! where it stands and store its progress.

use super::{Group, Owned};
use crate::broker::mode::Mode;
use crate::broker::start::Start;
use crate::error::{Error, Result};
use crate::store::OffsetKey;

impl Group {
    /// Counts one more of them: meanwhile the group is not deleted.
    ///
    /// # Errors
    /// `GroupForbids`; `NoSuchGroup` if the group is being deleted.
    pub(crate) fn admit(&self, mode: Mode) -> Result<()> {
        self.permits(mode)?;
        let mut state = self.state.lock();
        if state.retired {
            return Err(Error::NoSuchGroup { group: self.name.clone() });
        }
        state.guests += 1;
        Ok(())
    }

    /// Counts one less.
    pub(crate) fn dismiss(&self) {
        self.state.lock().guests -= 1;
    }

    /// How many there are.
    pub(crate) fn guests(&self) -> usize {
        self.state.lock().guests
    }

    /// Where each of the queues is to be read from: where the group stands or, if it is new, where
    /// `start` says, which is stored.
    ///
    /// # Errors
    /// `DiskFull`, `Io` or `Corrupt` if the beginning cannot be found or stored.
    pub(crate) fn beginnings(
        &self,
        mode: Mode,
        queues: &[Owned],
        start: Start,
    ) -> Result<Vec<u64>> {
        let start = if mode == Mode::Broadcasting { start.of_an_instance() } else { start };
        let known = queues.first().is_some_and(|owned| self.has_consumed(owned.key.group));
        let start = if known { Start::First } else { start };
        let begin = |owned: &Owned| {
            let stored = self.left(owned.key).or_else(|| self.store.offsets.get(owned.key));
            if let Some(stored) = stored {
                return Ok(stored);
            }
            let begin = start.offset(&self.store, &owned.queue)?;
            self.store.begin_offset(owned.key, begin)?;
            Ok(begin)
        };
        queues.iter().map(begin).collect()
    }

    /// Where the last owner of a queue has stopped, if nobody has it now. It stays known until a guest
    /// stores progress of its own: perhaps it could not be stored.
    fn left(&self, key: OffsetKey) -> Option<u64> {
        self.state.lock().left.get(&key).copied()
    }

    /// Forgets where the last owner of a queue has stopped, if nobody has it now: what is stored
    /// counts from now on.
    pub(crate) fn take_left(&self, key: OffsetKey) -> Option<u64> {
        self.state.lock().left.remove(&key)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::broker::Broker;
    use crate::broker::expiry::Passed;
    use crate::broker::filter::Filter;
    use crate::queue_id::QueueId;

    #[test]
    fn where_the_last_owner_stopped_is_known_until_a_guest_has_stored_something() {
        let dir = tempfile::tempdir().unwrap();
        let broker = Broker::builder(dir.path()).segment_bytes(1 << 20).open().unwrap();
        broker.create_topic("t", 1).unwrap();
        let (id, core) = (QueueId::new("t", 0), broker.core());
        let (group, (_, queue)) = (core.group("g").unwrap(), core.queue(&id).unwrap());
        let key = group.key(Mode::Clustering, "", &queue).unwrap();
        let (meter, passed) = (group.meter("t"), Passed::nothing());
        let owned = Owned { id, queue, key, filter: Filter::ALL, lease: None, meter, passed };
        let begin = || {
            let owned = std::slice::from_ref(&owned);
            group.beginnings(Mode::Clustering, owned, Start::First).unwrap()
        };
        core.store.set_offset(key, 2).unwrap();
        group.state.lock().left.insert(key, 7);
        assert_eq!((begin(), begin()), (vec![7], vec![7]), "one that came to nothing");
        group.take_left(key);
        assert_eq!(begin(), [2]);
    }
}
