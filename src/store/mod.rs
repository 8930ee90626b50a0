//! Floor 2: messages on a log. It knows topics and queues, but no groups and no consumers.
//!
//! ```text
//! record  commit_log(tail, log_file, ahead)  consume_queue(index_arena)   what is stored
//! append  fetch(delivery)  look_up(key_index, key_file)  time_search   what is done with it
//! delayed(delays, schedule(parked, waiting_bytes), delay_table)       what waits to be due
//! flush(flush_gate)
//! retain(retention, unconsumed, keep, drop_front, reserve)            how the oldest of it goes
//! recover(scan, salvage, rebuild)  checkpoint                         opening
//! topics  groups  offsets(offset_file, progress)                      what outlives the process
//! life_cycle(topic, topic_event)                                      what becomes of topics
//! follow  check  backup                                               beside the broker
//! ```

mod ahead;
mod append;
mod backup;
mod by_name;
mod check;
mod checkpoint;
mod commit_log;
mod consume_queue;
mod cursors;
mod cut;
mod delay_table;
mod delayed;
mod delays;
mod delivery;
mod draft;
mod drop_front;
mod fetch;
mod files;
mod flush;
mod flush_gate;
mod flushed_mark;
mod follow;
mod followed_log;
mod followed_queue;
#[cfg(any(all(test, not(loom)), fuzzing))]
pub(crate) mod fuzzing;
mod groups;
mod index_arena;
mod keep;
mod key_file;
mod key_index;
mod life_cycle;
mod log_file;
mod look_up;
mod lost_offsets;
mod offset_file;
mod offsets;
mod parked;
mod progress;
mod rebuild;
mod record;
mod recover;
mod report;
mod reserve;
mod retain;
mod retention;
mod salvage;
mod scan;
mod schedule;
mod slots;
mod table;
mod tail;
mod time_search;
mod topic;
mod topic_event;
mod topics;
mod unconsumed;
mod waiting_bytes;

#[cfg(all(test, not(loom)))]
pub(crate) mod tests;

pub(crate) use append::{AppendError, smallest_segment};
pub(crate) use check::check;
pub use check::{Fault, Verification};
pub(crate) use commit_log::Limits;
pub(crate) use consume_queue::ConsumeQueue;
pub(crate) use delayed::Next;
pub use delivery::{Deliveries, DeliveriesIter, Delivery, DetachedDelivery};
pub(crate) use draft::{Copy, Pending, Source};
pub(crate) use fetch::{Fetch, FetchStatus, Select};
pub(crate) use follow::Follower;
pub(crate) use offsets::OffsetKey;
pub(crate) use parked::Cause;
pub(crate) use record::Record;
pub use report::{Boot, Damage, LostMessages, LoweredOffset, RecoveryReport};
pub(crate) use retention::Kept;
pub use retention::{AtLimit, Retention, RetentionStats};
pub(crate) use schedule::Ticket;
pub(crate) use tail::Appended;
pub use time_search::{Edge, Volume};
pub(crate) use topic::Topic;
pub(crate) use topic_event::Shape;

#[cfg(all(test, loom))]
pub(crate) mod model {
    //! What the models in `loom-tests` reach for.
    pub(crate) use super::commit_log::{CommitLog, Limits, Opened};
    pub(crate) use super::consume_queue::{Block, ConsumeQueue};
    pub(crate) use super::cursors::{Cursor, Room};
    pub(crate) use super::delay_table::KnownDelays;
    pub(crate) use super::delays::Delays;
    pub(crate) use super::draft::{Copy, Draft, Outline, Pending, Source};
    pub(crate) use super::drop_front::Disposal;
    pub(crate) use super::files::HEAD;
    pub(crate) use super::flush_gate::FlushGate;
    pub(crate) use super::index_arena::{BLOCK_HEAD, ENTRY};
    pub(crate) use super::log_file::{LogFile, file_of};
    pub(crate) use super::offsets::{OffsetKey, Offsets};
    pub(crate) use super::record::{HEADER, Kind, Record};
    pub(crate) use super::schedule::{DueAt, Now, Ticket};
    pub(crate) use super::slots::{Slots, VALUE};
    pub(crate) use super::tail::{Refusal, Tail, Target};
}

use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::storage::Storage;
use crate::sync::{Alarm, Arc, Mutex, Rank};
use ahead::Chore;
use checkpoint::Checkpointed;
use commit_log::CommitLog;
use delay_table::DelayTable;
use delays::Delays;
use flush_gate::FlushGate;
use flushed_mark::FlushedMark;
use groups::Groups;
use index_arena::IndexArena;
use keep::Keep;
use key_index::KeyIndex;
use offsets::Offsets;
use retain::Retaining;
use std::collections::HashSet;
use std::time::Duration;
use tail::Tail;
use topics::Topics;

const STORE_NAME: &str = "meta/store";
const STORE_KIND: [u8; 4] = *b"stor";

/// When a sent message is made durable against loss of power (every message survives the end of
/// the process at once).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// All that was sent is flushed at this interval; `send` does not wait, unless very much awaits
    /// a flush: see [`max_unflushed_bytes`](crate::BrokerBuilder::max_unflushed_bytes).
    Every(Duration),
    /// `send` returns when its message is flushed; concurrent senders share a flush.
    EveryMessage,
}

/// What opening a directory does about damage that no crash explains. What a crash leaves is put in
/// order in either case.
///
/// By default opening reads of the log only what is not known to be durable, and nothing of it after
/// a clean close: it does not find damage below that. [`Broker::verify`](crate::Broker::verify),
/// [`BrokerBuilder::repair`](crate::BrokerBuilder::repair) and [`Verify::OnRead`] do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recovery {
    /// It fails with file and position, and changes nothing.
    #[default]
    Strict,
    /// The whole log is read. What is damaged is cut out and kept in the folder `cut`, every sound
    /// message on both sides stays, and the report tells what was lost.
    Salvage,
}

/// When the checksum of a stored message is looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// When a directory is opened that was not closed, and of what was not durable. A read
    /// checks that the message is the one that belongs there, and all lengths; a body that has
    /// changed on the disk since is delivered as it is.
    #[default]
    OnOpen,
    /// Whenever a message is read, too: it costs a pass over its bytes, and a message that has
    /// changed on the disk is `Corrupt`.
    OnRead,
}

/// The settings of a store, already checked.
#[derive(Clone, Debug)]
pub(crate) struct StoreConfig {
    pub(crate) segment_bytes: u64,
    pub(crate) flush: Flush,
    /// Bytes of the log that may await a flush; an append that would add to more waits for one.
    pub(crate) max_unflushed: u64,
    pub(crate) recovery: Recovery,
    /// Build what is derived from the log anew, whatever is there.
    pub(crate) rebuild: bool,
    pub(crate) verify: Verify,
    pub(crate) space: SpaceRules,
}

/// What the log may take, and what goes then.
#[derive(Clone, Debug, Default)]
pub(crate) struct SpaceRules {
    pub(crate) retention: Retention,
    pub(crate) limits: Limits,
    pub(crate) at_limit: AtLimit,
}

impl StoreConfig {
    /// Bytes of the first index file of each block length.
    fn index_bytes(&self) -> usize {
        (self.segment_bytes as usize).min(1 << 20)
    }

    /// How far pages are faulted in ahead of the tail: populated pages are dirty, and cost a
    /// flush that waits.
    fn most_ahead(&self) -> usize {
        match self.flush {
            Flush::Every(_) => usize::MAX,
            Flush::EveryMessage => 1 << 20,
        }
    }
}

/// What the allocator does in one step at most.
const MOST_CHORES: u32 = 8;

/// An open store.
#[derive(Debug)]
pub(crate) struct Store {
    storage: Arc<dyn Storage>,
    store_id: u64,
    config: StoreConfig,
    clock: Clock,
    log: CommitLog,
    arena: IndexArena,
    keys: KeyIndex,
    pub(crate) topics: Topics,
    pub(crate) groups: Groups,
    pub(crate) offsets: Offsets,
    gate: FlushGate,
    mark: Mutex<FlushedMark>,
    /// Held while a queue gets a block, so that it gets each once.
    index_growth: Mutex<()>,
    checkpoint: Mutex<Checkpointed>,
    delays: Delays,
    retaining: Retaining,
    keepers: Mutex<Vec<Arc<dyn Keep>>>,
    report: RecoveryReport,
    /// Notified when the log has come near the end of what is prepared, or a queue has taken the
    /// index block that was.
    pub(crate) allocator: Alarm,
    /// Notified when a file may have to be dropped.
    pub(crate) retainer: Alarm,
}

impl Store {
    /// Opens the directory behind `storage` and brings it into order.
    ///
    /// # Errors
    /// `Locked` if another broker has it; `Corrupt` if durable records are damaged.
    pub(crate) fn open(
        storage: Arc<dyn Storage>,
        config: StoreConfig,
        clock: Clock,
    ) -> Result<Self> {
        let locked = storage.lock().map_err(|e| files::io_error(&*storage, "lock", "LOCK", e))?;
        if !locked {
            return Err(Error::Locked { dir: storage.path("") });
        }
        let opened = Self::open_locked(&storage, config, clock);
        if opened.is_err() {
            storage.unlock();
        }
        opened
    }

    fn open_locked(storage: &Arc<dyn Storage>, config: StoreConfig, clock: Clock) -> Result<Self> {
        let recovered = recover::recover(storage, &config, clock.coarse_wall_ms())?;
        let recover::Recovered { store_id, mut log, mut arena, topics, groups, offsets, .. } =
            recovered;
        arena.min_free = config.space.limits.min_free;
        let recover::Recovered { mark, durable, checkpoint, report, delays, .. } = recovered;
        log.verify = config.verify;
        if config.rebuild {
            key_file::remove_all(&**storage)?;
        }
        let end = log.committed();
        let flushed = durable.min(end);
        log.with_tail(|tail| tail.bound_unflushed(flushed, config.max_unflushed));
        let gate = FlushGate::new(clock.clone(), flushed);
        let table = DelayTable::new(&delays, report.clean);
        let checkpointed = Checkpointed { delays: table, ..Checkpointed::default() };
        let delays = Delays::new(&clock, &delays);
        let mut store = Self {
            storage: storage.clone(),
            store_id,
            config,
            clock,
            log,
            arena,
            keys: KeyIndex::new(storage, store_id),
            topics,
            groups,
            offsets,
            gate,
            mark: Mutex::new(Rank::Grow, mark),
            index_growth: Mutex::new(Rank::IndexGrowth, ()),
            checkpoint: Mutex::new(Rank::Lifecycle, checkpointed),
            delays,
            retaining: Retaining::new(),
            keepers: Mutex::new(Rank::Lifecycle, Vec::new()),
            report,
            allocator: Alarm::new(),
            retainer: Alarm::new(),
        };
        store.shorten_delays(store.log.with_tail(|tail| tail.last_store_ms()));
        let live: HashSet<u32> = store.topics.all().iter().map(|topic| topic.incarnation).collect();
        store.offsets.retain(|incarnation| live.contains(&incarnation));
        store.report.lowered = store.lower_offsets()?;
        if !store.report.clean {
            // What recovery has written of them is to be synced.
            store.flusher().ring();
        }
        store.checkpoint.lock().position = checkpoint.unwrap_or(0);
        let interval = matches!(store.config.flush, Flush::Every(_));
        if store.report.is_plain_kill() && interval && checkpoint.is_some() {
            // Nothing was changed, and a kill has lost nothing: what was read is flushed like what
            // is sent from now on, at the next interval.
            store.mark.lock().set(durable.min(end))?;
            store.flusher().ring();
            return Ok(store);
        }
        // What was read may be in the page cache only: it must not be lost after it is delivered.
        store.flush()?;
        store.mark.lock().set(end)?;
        // Before an incarnation that a loss of power has taken back is given again.
        store.offsets.sync()?;
        if !store.report.clean {
            match store.write_checkpoint(&mut store.checkpoint.lock(), None) {
                // Then the next recovery reads more. Nothing was changed that it would miss.
                Ok(()) | Err(Error::DiskFull { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(store)
    }

    /// Closes: refuses appends, makes everything durable, and leaves a clean mark. A second call
    /// does nothing.
    pub(crate) fn close(&self) -> Result<()> {
        // Whoever drops files or makes room for an append finishes; nobody changes a file after
        // the unlock.
        self.retaining.close(&self.clock);
        self.log.close();
        drop(self.index_growth.lock());
        self.arena.close();
        self.offsets.close();
        self.groups.close();
        let mut last = self.checkpoint.lock();
        if last.closed {
            return Ok(());
        }
        let closed = self.flush().and_then(|()| self.offsets.sync()).and_then(|()| {
            self.write_checkpoint(&mut last, None)?;
            self.log.with_tail(Tail::healthy)?;
            let mark = || checkpoint::mark_clean(&*self.storage, self.store_id, last.position);
            match mark() {
                Err(Error::DiskFull { .. }) if reserve::spend(&*self.storage) => mark(),
                marked => marked,
            }
        });
        last.closed = true;
        last.delays = DelayTable::default();
        drop(last);
        // Whatever is not durable by now will not be by this store.
        self.gate.shut("the broker was closed before the flush");
        self.index_keys();
        self.keys.close();
        self.release();
        self.storage.unlock();
        closed
    }

    /// Lets go of all files and mappings. Nobody reads any more; messages that were delivered keep
    /// what they look at.
    fn release(&self) {
        self.topics.changes().release(&self.topics.all());
        self.log.release();
        self.arena.release();
        self.offsets.release();
        self.mark.lock().release();
    }

    /// One step of the allocator.
    pub(crate) fn allocate_step(&self) {
        if self.log.with_tail(|tail| tail.awaits_allocator()) {
            self.allocate_log();
        }
        self.arena.prepare();
    }

    fn allocate_log(&self) {
        self.log.look_ahead(self.clock.moment().ms());
        for chore in 1.. {
            let next = self.log.populate_ahead();
            // A lack of space is told to the producer that needs it, which tries again by itself.
            let made = next == Chore::Grow && self.make_file().is_ok();
            if self.retaining.goes_on(self.log.with_tail(|tail| tail.base())) {
                // A file is full.
                self.retainer.ring();
            }
            self.arena.prepare();
            if !made && next != Chore::Populate {
                break;
            }
            if chore == MOST_CHORES {
                // Whoever waits for the step to end gets his turn.
                self.allocator.ring();
                break;
            }
        }
        if self.config.flush == Flush::EveryMessage {
            // Otherwise the flusher does it: pages are not to wait for a sync.
            self.checkpoint_step();
        }
    }

    /// Lets the key index read on, faster than the log grows, and for a while only.
    fn index_keys(&self) {
        self.keys.step(&self.log, self.gate.flushed(), 4 * self.config.segment_bytes);
    }

    /// Whether files are ever dropped by the rules, so that somebody has to call
    /// [`retain_step`](Self::retain_step).
    pub(crate) fn retains(&self) -> bool {
        !self.config.space.retention.is_none()
    }

    pub(crate) fn report(&self) -> &RecoveryReport {
        &self.report
    }

    /// Where the log starts, where it ends, and up to where it is durable.
    pub(crate) fn extent(&self) -> (u64, u64, u64) {
        (self.log.min_position(), self.log.committed(), self.gate.flushed())
    }

    /// The directory, for an error.
    pub(crate) fn directory(&self) -> std::path::PathBuf {
        self.storage.path("")
    }

    pub(crate) fn store_id(&self) -> u64 {
        self.store_id
    }

    pub(crate) fn flush_mode(&self) -> Flush {
        self.config.flush
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// See [`CommitLog::exact_max`].
    pub(crate) fn exact_max(&self, queue: &ConsumeQueue) -> u64 {
        self.log.exact_max(queue)
    }

    fn lower_offsets(&self) -> Result<Vec<LoweredOffset>> {
        let topics = self.topics.all();
        let mut queues = std::collections::HashMap::new();
        for topic in &topics {
            for queue in &topic.queues {
                queues.insert((topic.incarnation, queue.queue), (topic, queue.max()));
            }
        }
        let mut lowered = Vec::new();
        let find = |key: &OffsetKey| queues.get(&(key.incarnation, key.queue));
        self.offsets.clamp(
            |key| find(key).map(|(_, max)| *max),
            |key, from, to| {
                let topic =
                    find(&key).map_or_else(String::new, |(topic, _)| topic.name.to_string());
                lowered.push(LoweredOffset { topic, queue: key.queue, from, to });
            },
        )?;
        Ok(lowered)
    }
}
