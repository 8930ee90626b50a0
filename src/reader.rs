//! Reading a directory that another process may have open.

use crate::consumer::Pull;
use crate::error::{Error, Result};
use crate::names;
use crate::queue_id::QueueId;
use crate::storage::{Directory, Storage};
use crate::store::{Follower, Shape, Verification, check};
use crate::sync::Arc;
use std::path::Path;

/// A view of a directory that never changes anything in it, whether or not a broker has it open.
///
/// It sees the log as it was at the last [`refresh`](Self::refresh), a prefix of what has been
/// sent: perhaps messages that are not flushed yet, never part of a batch. Every message is
/// verified before it is returned. While the reader lives, or anything that was read, the broker
/// leaves the files alone that it looks at: what retention drops meanwhile stays readable here
/// until the next refresh, and takes up space until then.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// use rocklet::{Broker, Message, QueueId, Reader};
/// let broker = Broker::open(dir.path())?;
/// broker.create_topic("orders", 1)?;
/// let mut reader = Reader::open(dir.path())?;
/// broker.producer().send(&Message::new("orders", b"paid"))?;
/// assert!(reader.refresh()?);
/// let pull = reader.pull(&QueueId::new("orders", 0), 0, 10)?;
/// assert_eq!(pull.messages.get(0).unwrap().body(), b"paid");
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Reader {
    follower: Follower,
}

impl Reader {
    /// Opens a directory for reading alone; a broker may have it open, in this process or in
    /// another one.
    ///
    /// # Errors
    /// `Io` if there is no store or it cannot be read, `Corrupt` or `Version` if it cannot be
    /// understood.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self> {
        let mut follower = Follower::open(&storage(dir.as_ref()))?;
        follower.refresh()?;
        Ok(Self { follower })
    }

    /// Checks everything in a directory without changing it: every record, the index, the
    /// committed offsets, the tables. A broker may have it open meanwhile.
    ///
    /// # Errors
    /// `Io` if there is no store or it cannot be read, `Version`; what is wrong in a file is in the
    /// result.
    pub fn verify(dir: impl AsRef<Path>) -> Result<Verification> {
        check(&storage(dir.as_ref()))
    }

    /// Looks what has been sent and dropped meanwhile; true if there is anything new. There is
    /// nobody to wake a reader: whoever wants to follow a directory asks again and again.
    ///
    /// # Errors
    /// `Io` if the directory cannot be read.
    pub fn refresh(&mut self) -> Result<bool> {
        self.follower.refresh()
    }

    /// The topics, sorted by name, but for those that [belong to a group](crate::Broker::topics).
    #[must_use]
    pub fn topics(&self) -> Vec<String> {
        let names = self.follower.topics().map(|(_, name, _)| name);
        let names = names.filter(|name| !names::is_of_a_group(name));
        let mut names: Vec<_> = names.map(str::to_owned).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The queues of a topic, by number.
    ///
    /// # Errors
    /// `NoSuchTopic`.
    pub fn queues(&self, topic: &str) -> Result<Vec<QueueId>> {
        let (_, shape) = self.topic(topic)?;
        Ok((0..shape.config.queues()).map(|queue| QueueId::new(topic, queue)).collect())
    }

    /// The offset of the first message that is stored in a queue.
    ///
    /// # Errors
    /// `NoSuchTopic`, `NoSuchQueue`.
    pub fn min_offset(&self, queue: &QueueId) -> Result<u64> {
        Ok(self.follower.queue(self.key(queue)?).map_or(0, |queue| queue.min()))
    }

    /// The offset that the next message of a queue will get.
    ///
    /// # Errors
    /// `NoSuchTopic`, `NoSuchQueue`.
    pub fn max_offset(&self, queue: &QueueId) -> Result<u64> {
        Ok(self.follower.queue(self.key(queue)?).map_or(0, |queue| queue.max()))
    }

    /// Reads up to `max` messages of a queue from `offset` on. Go on at `next`, whatever the
    /// status.
    ///
    /// # Errors
    /// `NoSuchTopic`, `NoSuchQueue`; `Corrupt` if a message cannot be read.
    pub fn pull(&self, queue: &QueueId, offset: u64, max: usize) -> Result<Pull> {
        let fetch = self.follower.fetch(self.key(queue)?, offset, max.max(1))?;
        Ok(Pull::new(fetch, offset))
    }

    /// The position behind the last message that is seen, in bytes of the log.
    #[must_use]
    pub fn log_end(&self) -> u64 {
        self.follower.position()
    }

    fn key(&self, queue: &QueueId) -> Result<(u32, u16)> {
        let (incarnation, Shape { queues, .. }) = self.topic(queue.topic())?;
        if queue.queue() < queues {
            return Ok((incarnation, queue.queue()));
        }
        Err(Error::NoSuchQueue { topic: queue.topic().to_owned(), queue: queue.queue(), queues })
    }

    fn topic(&self, name: &str) -> Result<(u32, Shape)> {
        let named = self.follower.topics().filter(|(_, known, _)| *known == name);
        let last = named.map(|(incarnation, _, shape)| (incarnation, shape)).last();
        last.ok_or_else(|| Error::NoSuchTopic { topic: name.to_owned() })
    }
}

fn storage(dir: &Path) -> Arc<dyn Storage> {
    Arc::new(Directory::read_only(dir))
}
