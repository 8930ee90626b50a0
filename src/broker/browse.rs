//! Browsing: reading what is stored, on no group's account.

use super::filter::Filter;
use super::{Broker, Start};
use crate::error::{Error, Result};
use crate::queue_id::QueueId;
use crate::store::{ConsumeQueue, Deliveries, Delivery, DetachedDelivery, FetchStatus};
use crate::sync::Arc;
use std::vec;

/// The messages of a topic or of one queue, read without a group and without consuming them.
///
/// Queues are read one after the other, each up to the end that it has when its turn comes, so
/// that browsing ends however fast others send. What was dropped meanwhile is left out. As an
/// iterator it yields messages that live on their own; [`read`](Self::read) returns many at once,
/// which is quicker. Of the messages found, it remembers the places of a few hundred at most.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let broker = rocklet::Broker::open(dir.path())?;
/// # use rocklet::{Filter, Message};
/// broker.producer().send(&Message::new("orders", b"42 EUR").property("amount", "42"))?;
/// for order in broker.browse("orders")?.filter(Filter::sql("amount > 40")?)? {
///     println!("{:?}", order?.delivery());
/// }
/// assert_eq!(broker.browse("orders")?.count_messages()?, 1);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "browsing does nothing until it is read from"]
pub struct Browse {
    broker: Broker,
    queues: vec::IntoIter<Arc<ConsumeQueue>>,
    from: From,
    filter: Filter,
    expired_too: bool,
    current: Option<Current>,
    /// What the iterator has read, and how many of that it has yielded.
    run: (Deliveries, usize),
}

#[derive(Clone, Copy, Debug)]
enum From {
    Start(Start),
    Offset(u64),
}

/// The queue whose turn it is.
#[derive(Debug)]
struct Current {
    queue: Arc<ConsumeQueue>,
    next: u64,
    end: u64,
}

/// How many messages the iterator reads at once.
const RUN: usize = 256;

impl Broker {
    /// Prepares browsing a topic, queue by queue.
    ///
    /// # Errors
    /// `NoSuchTopic`.
    pub fn browse(&self, topic: &str) -> Result<Browse> {
        Ok(Browse::new(self, self.core().existing(topic)?.queues.clone()))
    }

    /// Prepares browsing one queue.
    ///
    /// # Errors
    /// `NoSuchTopic`, `NoSuchQueue`.
    pub fn browse_queue(&self, queue: &QueueId) -> Result<Browse> {
        Ok(Browse::new(self, vec![self.core().queue(queue)?.1]))
    }
}

impl Browse {
    fn new(broker: &Broker, queues: Vec<Arc<ConsumeQueue>>) -> Self {
        Self {
            run: (Deliveries::none(broker.core().store.store_id()), 0),
            broker: broker.clone(),
            queues: queues.into_iter(),
            from: From::Start(Start::First),
            filter: Filter::ALL,
            expired_too: false,
            current: None,
        }
    }

    /// Begins in every queue where `start` says; [`Start::First`] by default.
    pub fn start_from(mut self, start: Start) -> Self {
        self.from = From::Start(start);
        self
    }

    /// Begins in every queue at `offset`, or with the first message behind it that is stored.
    pub fn start_at(mut self, offset: u64) -> Self {
        self.from = From::Offset(offset);
        self
    }

    /// Leaves out what does not pass `filter`.
    ///
    /// # Errors
    /// `Filter` if it is a tag expression that breaks the rules.
    pub fn filter<F>(mut self, filter: F) -> Result<Self>
    where
        F: TryInto<Filter>,
        Error: std::convert::From<F::Error>,
    {
        self.filter = filter.try_into()?;
        Ok(self)
    }

    /// Reads messages whose [time](crate::Message::time_to_live) is over, too; by default they are
    /// left out, as consumers get none of them either.
    pub fn with_expired(mut self) -> Self {
        self.expired_too = true;
        self
    }

    /// Returns up to `most` messages of one queue, at least 1; none at the end of the last queue.
    /// It looks at as many as it takes to find one that passes the filter.
    ///
    /// # Errors
    /// `Corrupt` if a message cannot be read, and everything before it has been returned; browsing
    /// ends there. `Closed`.
    pub fn read(&mut self, most: usize) -> Result<Deliveries> {
        let read = self.read_on(most.max(1));
        if read.is_err() {
            (self.queues, self.current) = (Vec::new().into_iter(), None);
        }
        read
    }

    /// Counts the messages that are left.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn count_messages(mut self) -> Result<u64> {
        let (run, yielded) = &self.run;
        let mut count = (run.len() - yielded) as u64;
        loop {
            match self.read(RUN)?.len() {
                0 => return Ok(count),
                more => count += more as u64,
            }
        }
    }

    fn read_on(&mut self, most: usize) -> Result<Deliveries> {
        let core = self.broker.core();
        loop {
            let Some(Current { queue, next, end }) = &mut self.current else {
                let Some(queue) = self.queues.next() else {
                    return Ok(Deliveries::none(core.store.store_id()));
                };
                let _reading = core.reading()?;
                let next = match self.from {
                    From::Start(start) => start.offset(&core.store, &queue)?,
                    From::Offset(offset) => offset,
                };
                let end = queue.max();
                self.current = Some(Current { queue, next, end });
                continue;
            };
            if *next >= *end {
                self.current = None;
                continue;
            }
            let _reading = core.reading()?;
            let most = most.min(usize::try_from(*end - *next).unwrap_or(usize::MAX));
            let wanted = |message: &Delivery<'_>| self.expired_too || !core.has_expired(message);
            let fetch = core.fetch_those(queue, *next, most, usize::MAX, &self.filter, wanted)?;
            *next = fetch.next;
            if fetch.status == FetchStatus::Found {
                return Ok(fetch.messages);
            }
        }
    }
}

impl Iterator for Browse {
    type Item = Result<DetachedDelivery>;

    fn next(&mut self) -> Option<Self::Item> {
        let (run, yielded) = &mut self.run;
        if *yielded == run.len() {
            match self.read(RUN) {
                Ok(more) => self.run = (more, 0),
                Err(error) => return Some(Err(error)),
            }
        }
        let (run, yielded) = &mut self.run;
        let delivery = run.get(*yielded)?.detach();
        *yielded += 1;
        Some(Ok(delivery))
    }
}
