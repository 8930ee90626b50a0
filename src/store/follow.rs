//! Following a store that another process writes, without changing anything in it
//! (docs/design.md, "Read-only").
//!
//! The log is read on from the last checkpoint; its end is the first record whose position or
//! checksum does not fit, so what is seen is a prefix of what the owner has appended. Below the
//! checkpoint the owner's index files tell where messages stand, as hints: every record is checked
//! before it is handed out. Above it, entries are kept in memory.

use super::checkpoint::Checkpoint;
use super::consume_queue::Entry;
use super::delivery::Deliveries;
use super::fetch::{Fetch, FetchStatus};
use super::files::{self, corrupt, io_error};
use super::followed_log::{FollowedLog, Listed, Seen};
use super::followed_queue::FollowedQueue;
use super::index_arena::{FoundBlock, IndexArena, Trust};
use super::log_file::{FOLDER, LogFile, file_of};
use super::record::{Kind, Record};
use super::topic_event::{Change, Shape, TopicEvent};
use super::topics::Topics;
use super::{STORE_KIND, STORE_NAME};
use crate::error::Result;
use crate::storage::Storage;
use crate::sync::{Arc, Counted};
use crate::topic_config::TopicConfig;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;

/// Entries kept in memory before the index files are looked at again.
const MOST_RECENT: usize = 1 << 20;
/// Times that one refresh begins anew: an owner that drops faster than that is followed later.
const RENEWALS: usize = 8;

/// A view of a store that grows with every [`refresh`](Self::refresh).
#[derive(Debug)]
pub(crate) struct Follower {
    storage: Arc<dyn Storage>,
    store_id: u64,
    log: FollowedLog,
    topics: BTreeMap<u32, (String, Shape)>,
    /// Incarnations whose deletion was seen.
    deleted: BTreeSet<u32>,
    queues: HashMap<Key, FollowedQueue>,
    /// The last record that covers what a salvage has cut out; 0 for none.
    cut_at: u64,
    /// Entries in memory.
    recent: usize,
    /// Messages were dropped before they could be seen.
    overtaken: bool,
    /// There is a checkpoint, and the index files do not have what it says.
    index_misfit: bool,
}

/// Incarnation and number of a queue.
pub(crate) type Key = (u32, u16);

impl Follower {
    /// Opens what is there now; nothing behind the last checkpoint is seen before a refresh.
    ///
    /// # Errors
    /// `Io` if there is no store; `Corrupt` or `Version` if it cannot be understood.
    pub(crate) fn open(storage: &Arc<dyn Storage>) -> Result<Self> {
        let Some((store_id, _)) = files::load(&**storage, STORE_NAME, STORE_KIND)? else {
            return Err(io_error(&**storage, "open", STORE_NAME, io::ErrorKind::NotFound.into()));
        };
        let mut follower = Self {
            storage: storage.clone(),
            store_id,
            log: FollowedLog::new(storage, store_id),
            topics: BTreeMap::new(),
            deleted: BTreeSet::new(),
            queues: HashMap::new(),
            cut_at: 0,
            recent: 0,
            overtaken: false,
            index_misfit: false,
        };
        // The checkpoint first: the tables, the index and the log have at least what it says.
        let checkpoint = match Checkpoint::load(&**storage, store_id) {
            Err(crate::Error::Corrupt { .. }) => None,
            loaded => loaded?,
        };
        Topics::read(&**storage, store_id)?.into_iter().for_each(|event| follower.change(event));
        if let Some(checkpoint) = checkpoint {
            follower.index_misfit = !follower.index(&checkpoint);
            if follower.index_misfit {
                follower.queues.clear();
            } else {
                follower.log.start_at(checkpoint.position);
            }
        }
        let begun = follower.position();
        follower.list()?;
        // Without a checkpoint everything begins with the first file.
        follower.overtaken &= begun > 0;
        Ok(follower)
    }

    /// Sees what the owner has appended and dropped meanwhile; true if there is anything new. Of
    /// an owner that goes on appending it sees no file that is made during the call: so it ends.
    ///
    /// # Errors
    /// `Io` if the directory cannot be read; `Version`.
    pub(crate) fn refresh(&mut self) -> Result<bool> {
        let before = self.position();
        let listed = self.list()?;
        if self.recent > MOST_RECENT {
            self.renew()?;
        }
        // Messages may be dropped before even the newest checkpoint has been followed.
        for _ in 0..RENEWALS {
            let before = (self.position(), self.begins_after());
            if !self.overtaken {
                break;
            }
            self.renew()?;
            if before == (self.position(), self.begins_after()) {
                break;
            }
        }
        while self.read_on() {}
        Ok(listed || self.position() != before)
    }

    /// Whether there is a checkpoint, and the index files do not have what it says: then all of the
    /// log is read instead.
    pub(crate) fn index_misfits(&self) -> bool {
        self.index_misfit
    }

    /// Whether messages were dropped of which nothing is known, the ends of their queues included.
    pub(crate) fn is_overtaken(&self) -> bool {
        self.overtaken
    }

    pub(crate) fn store_id(&self) -> u64 {
        self.store_id
    }

    /// Where the log file ended that stood before the first one; 0 if there was none.
    pub(crate) fn begins_after(&self) -> u64 {
        self.log.begins_after()
    }

    /// The position behind the last verified record.
    pub(crate) fn position(&self) -> u64 {
        self.log.position()
    }

    /// The log files, ascending.
    pub(crate) fn log_files(&self) -> &[Counted<LogFile>] {
        self.log.files()
    }

    /// Incarnation, name and shape of every topic, by incarnation.
    pub(crate) fn topics(&self) -> impl Iterator<Item = (u32, &str, Shape)> {
        self.topics.iter().map(|(incarnation, (name, shape))| (*incarnation, &**name, *shape))
    }

    /// The incarnations of topics that were deleted behind the last checkpoint.
    pub(crate) fn deleted(&self) -> impl Iterator<Item = u32> {
        self.deleted.iter().copied()
    }

    /// What is known of a queue; `None` of one that never had a message.
    pub(crate) fn queue(&self, key: Key) -> Option<&FollowedQueue> {
        self.queues.get(&key)
    }

    pub(crate) fn queues(&self) -> impl Iterator<Item = (Key, &FollowedQueue)> {
        self.queues.iter().map(|(key, queue)| (*key, queue))
    }

    /// Reads up to `most` messages of a queue from `offset` on.
    ///
    /// # Errors
    /// `Corrupt` if a record cannot be read.
    pub(crate) fn fetch(&self, key: Key, offset: u64, most: usize) -> Result<Fetch> {
        let nothing = FollowedQueue::default();
        let queue = self.queues.get(&key).unwrap_or(&nothing);
        let (min, max) = (queue.min, queue.max());
        let mut messages = Deliveries::none(self.store_id);
        messages.note_stored(min, max);
        let (status, mut next) = match offset {
            _ if max == 0 => (FetchStatus::Empty, 0),
            _ if offset < min => (FetchStatus::TooSmall, min),
            _ if offset == max => (FetchStatus::AtEnd, offset),
            _ if offset > max => (FetchStatus::Beyond, max),
            _ => (FetchStatus::Found, offset),
        };
        if status != FetchStatus::Found {
            return Ok(Fetch { status, messages, next, min, max });
        }
        while next < max && messages.len() < most {
            let entry = queue.entry(next);
            if entry.is_some_and(|entry| entry.is_lost()) {
                next += 1;
                continue;
            }
            match self.record(key, next, entry) {
                Ok((file, record)) => messages.push(file, record.position()),
                // What was read before the damage is delivered first.
                Err(_) if !messages.is_empty() => break,
                Err(error) => return Err(error),
            }
            next += 1;
        }
        let status = if messages.is_empty() { FetchStatus::NoMatched } else { FetchStatus::Found };
        Ok(Fetch { status, messages, next, min, max })
    }

    /// The message at `offset`, verified.
    fn record(
        &self,
        key: Key,
        offset: u64,
        entry: Option<Entry>,
    ) -> Result<(&Counted<LogFile>, Record<'_>)> {
        let position = entry.map_or(0, |entry| entry.position);
        let file =
            file_of(self.log_files(), position).ok_or((FOLDER.to_owned(), "it is not there"));
        let found = file.and_then(|file| {
            let record = file.record(position).map_err(|reason| (file.name(), reason))?;
            let fits = record.kind() == Kind::Message
                && (record.incarnation(), record.queue(), record.offset())
                    == (key.0, key.1, offset);
            match () {
                () if !fits => Err((file.name(), "the index names another record")),
                () if !record.verify(self.store_id) => {
                    Err((file.name(), "the record fails its checksum"))
                }
                () => Ok((file, record)),
            }
        });
        found.map_err(|(name, reason)| corrupt(&*self.storage, &name, position, reason))
    }

    /// Takes over the owner's index up to the checkpoint; false if it does not have all of it.
    fn index(&mut self, checkpoint: &Checkpoint) -> bool {
        let bounds = &checkpoint.bounds;
        let files = checkpoint.index_files;
        let read = IndexArena::read(&*self.storage, self.store_id, files, Trust::Maxima(bounds));
        let Ok(found) = read else { return false };
        let mut chains: HashMap<Key, Vec<FoundBlock>> = HashMap::new();
        for block in found.into_iter().filter(|block| block.entries() > 0) {
            chains.entry((block.head.incarnation, block.head.queue)).or_default().push(block);
        }
        bounds.iter().all(|(key, range)| {
            let mut queue =
                FollowedQueue { min: range.start, indexed: range.end, ..FollowedQueue::default() };
            let mut chain = chains.remove(key).unwrap_or_default();
            chain.sort_by_key(|block| block.head.first);
            // Blocks of messages that were dropped meanwhile may be gone.
            let mut end = chain.first().map_or(range.end, |block| block.head.first);
            queue.min = queue.min.max(end);
            for block in chain {
                if block.head.first != end {
                    return false;
                }
                end += block.entries();
                queue.blocks.push((block.head.first, block.writer.segment().clone()));
            }
            queue.last = queue.entry(end.saturating_sub(1)).map_or(0, |entry| entry.position);
            self.queues.insert(*key, queue);
            end == range.end
        })
    }

    /// Looks which log files there are; true if that has changed.
    fn list(&mut self) -> Result<bool> {
        let listed = self.log.list()?;
        if listed != Listed::Same {
            let first = self.log_files().first().map_or(self.position(), |file| file.base);
            self.queues.values_mut().for_each(|queue| queue.min = queue.first_at(first));
        }
        self.overtaken |= listed == Listed::Overtaken;
        Ok(listed != Listed::Same)
    }

    /// Takes over the next append; false if there is none yet.
    fn read_on(&mut self) -> bool {
        let Some(mut seen) = self.log.read_on() else { return false };
        seen.drain(..).for_each(|seen| self.take_over(seen));
        self.log.reuse(seen);
        true
    }

    fn take_over(&mut self, seen: Seen) {
        let (key, offset, entry, name) = match seen {
            Seen::Lost(position) => {
                self.cut_at = position;
                return;
            }
            Seen::Topic(event) => return self.change(event),
            Seen::Message { key, offset, entry, topic } => (key, offset, entry, topic),
        };
        let unknown = || (name.unwrap_or_default(), Shape::new(TopicConfig::new(0)));
        self.topics.entry(key.0).or_insert_with(unknown).1.reach(key.1);
        let queue = self.queues.entry(key).or_default();
        if queue.max() < offset {
            if self.cut_at > queue.last && queue.max() > 0 {
                let lost = (offset - queue.max()) as usize;
                queue.recent.extend(std::iter::repeat_n(Entry::lost(self.cut_at), lost));
                self.recent += lost;
            } else {
                // What came before was dropped before it could be seen.
                let (min, indexed) = (offset, offset);
                self.recent -= queue.recent.len();
                *queue = FollowedQueue { min, indexed, ..FollowedQueue::default() };
            }
        }
        if queue.max() == offset {
            queue.recent.push(entry);
            queue.last = entry.position;
            self.recent += 1;
        }
    }

    /// Does to a topic what an event says.
    fn change(&mut self, event: TopicEvent) {
        let TopicEvent { name, incarnation, change } = event;
        let of_topic = |(key, _): &(&Key, &mut FollowedQueue)| key.0 == incarnation;
        match change {
            Change::Shape(shape) => drop(self.topics.insert(incarnation, (name, shape))),
            Change::Deleted => {
                self.topics.remove(&incarnation);
                self.deleted.insert(incarnation);
                let queues = self.queues.iter_mut().filter(of_topic);
                self.recent -= queues.map(|(_, queue)| queue.recent.len()).sum::<usize>();
                self.queues.retain(|key, _| key.0 != incarnation);
            }
            Change::Purged => {
                let queues = self.queues.iter_mut().filter(of_topic);
                queues.for_each(|(_, queue)| queue.min = queue.max());
            }
        }
    }

    /// Begins anew at the last checkpoint: it knows what was missed, and lets go of entries in
    /// memory that the index files have by now.
    fn renew(&mut self) -> Result<()> {
        let mut newer = Self::open(&self.storage)?;
        while newer.position() < self.position() && newer.read_on() {}
        let knows_as_much = self.overtaken || !newer.overtaken;
        if newer.position() >= self.position() && knows_as_much {
            *self = newer;
        }
        Ok(())
    }
}
