//! The consumers of the topic `flights`.

use crate::Result;
use crate::kill::KillSwitch;
use crate::log::{FLIGHTS, QUEUES};
use crate::rows::Row;
use crate::seen::Recorder;
use rocklet::{Broker, Delivery, Filter, PushConsumer, QueueId};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How many members share the queues in the group of 3.
pub(crate) const MEMBERS: usize = 3;
/// How many rows a member reads at once, and the pull consumer polls.
const RUN: usize = 32;
/// Without any progress for so long, the program reports a failure instead of waiting for ever.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the two consumers of late flights want.
pub(crate) const LATE: &str = "dep_delay > 60 AND carrier IN ('UA', 'AA')";

/// Who consumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Consumer {
    /// The clustering group of three members.
    GroupOf3,
    /// The group that wants two of the three airports.
    JfkOrLga,
    /// The pull consumer.
    Pull,
    /// The group that wants [`LATE`] flights.
    Late,
    /// The pull consumer that wants them, too.
    LatePull,
    /// The group whose members consume in order, and join and leave all the time.
    InOrder,
}

impl Consumer {
    /// All of them.
    pub(crate) const ALL: [Self; 6] =
        [Self::GroupOf3, Self::JfkOrLga, Self::Pull, Self::Late, Self::LatePull, Self::InOrder];

    /// Returns the name of its group.
    pub(crate) fn group(self) -> &'static str {
        match self {
            Self::GroupOf3 => "group-of-3",
            Self::JfkOrLga => "jfk-or-lga",
            Self::Pull => "pull",
            Self::Late => "late",
            Self::LatePull => "late-pull",
            Self::InOrder => "in-order",
        }
    }

    /// Returns the consumer whose group has this name.
    pub(crate) fn from_group(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|consumer| consumer.group() == name)
    }

    /// Returns what the table calls it.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::GroupOf3 => "the group of 3",
            Self::JfkOrLga => "JFK || LGA",
            Self::Pull => "the pull consumer",
            Self::Late => "late UA and AA, pushed",
            Self::LatePull => "late UA and AA, pulled",
            Self::InOrder => "3 in order that come and go",
        }
    }

    /// Whether the row is for this consumer, found without the queue's own filter.
    pub(crate) fn wants(self, row: &Row<'_>) -> bool {
        match self {
            Self::GroupOf3 | Self::Pull | Self::InOrder => true,
            Self::JfkOrLga => matches!(row.origin(), Some("JFK" | "LGA")),
            Self::Late | Self::LatePull => {
                let minutes = row.cell("dep_delay").and_then(|delay| delay.parse::<i64>().ok());
                minutes.is_some_and(|minutes| minutes > 60)
                    && matches!(row.cell("carrier"), Some("UA" | "AA"))
            }
        }
    }

    /// Returns how many rows at most are recorded but not yet committed at any moment.
    ///
    /// A member has one worker, which finishes and commits the run it read before it reads the
    /// next; the pull consumer commits each poll before the next. So a kill makes each of them
    /// repeat at most one run. In order each row is committed before the next is consumed.
    pub(crate) fn in_flight(self) -> u64 {
        let rows = match self {
            Self::GroupOf3 => MEMBERS * RUN,
            Self::InOrder => MEMBERS,
            _ => RUN,
        };
        rows as u64
    }
}

/// The running consumers.
#[derive(Debug)]
pub(crate) struct Consumers {
    broker: Broker,
    members: Vec<PushConsumer>,
    filtered: [PushConsumer; 2],
    pulling: [JoinHandle<Result<()>>; 2],
    in_order: Vec<JoinHandle<Result<()>>>,
    all_sent: Arc<AtomicBool>,
}

impl Consumers {
    /// Starts them.
    pub(crate) fn start(broker: &Broker, run: u64, kill: KillSwitch) -> Result<Self> {
        let kill = Arc::new(kill);
        let members = (1..=MEMBERS)
            .map(|member| {
                let (kill, recorder) =
                    (Arc::clone(&kill), Recorder::new(broker, Consumer::GroupOf3, run));
                broker
                    .push_consumer(Consumer::GroupOf3.group())
                    .name(format!("member-{member}"))
                    .subscribe(FLIGHTS, Filter::ALL)?
                    .threads(1)
                    .pull_batch(RUN)
                    .start(move |flight: &Delivery<'_>| -> Result<()> {
                        recorder.record(flight)?;
                        kill.consumed_one();
                        Ok(())
                    })
            })
            .collect::<rocklet::Result<_>>()?;

        let push = |consumer: Consumer, filter: Filter| {
            let recorder = Recorder::new(broker, consumer, run);
            broker
                .push_consumer(consumer.group())
                .subscribe(FLIGHTS, filter)?
                .threads(1)
                .pull_batch(RUN)
                .start(move |flight: &Delivery<'_>| recorder.record(flight))
        };
        let late = Filter::sql(LATE)?;
        let jfk_or_lga = push(Consumer::JfkOrLga, Filter::tags("JFK || LGA")?)?;
        let filtered = [jfk_or_lga, push(Consumer::Late, late.clone())?];

        let all_sent = Arc::new(AtomicBool::new(false));
        let pulling = [(Consumer::Pull, Filter::ALL), (Consumer::LatePull, late)].map(
            |(consumer, filter)| {
                let (broker, all_sent) = (broker.clone(), Arc::clone(&all_sent));
                thread::spawn(move || pull(&broker, consumer, filter, run, &all_sent))
            },
        );
        let in_order = (1..=MEMBERS as u64)
            .map(|member| {
                let (broker, all_sent) = (broker.clone(), Arc::clone(&all_sent));
                thread::spawn(move || come_and_go(&broker, member, run, &all_sent))
            })
            .collect();
        Ok(Self { broker: broker.clone(), members, filtered, pulling, in_order, all_sent })
    }

    /// Waits until the members of the group of 3 have shared the queues, and returns who has which.
    pub(crate) fn shares(&self) -> Result<Vec<Vec<QueueId>>> {
        let shares = || self.members.iter().map(PushConsumer::assignment).collect::<Vec<_>>();
        let share = usize::from(QUEUES) / MEMBERS;
        wait_for("sharing the queues", u64::from(QUEUES), || {
            Ok(shares().iter().map(|queues| queues.len().min(share) as u64).sum())
        })?;
        Ok(shares())
    }

    /// Waits until all that was sent is consumed and committed, then stops.
    pub(crate) fn finish(self) -> Result<()> {
        self.all_sent.store(true, Ordering::Release);
        let sent = sent(&self.broker)?;
        for consumer in [Consumer::GroupOf3, Consumer::JfkOrLga, Consumer::Late, Consumer::InOrder]
        {
            wait_for(consumer.title(), sent, || committed(&self.broker, consumer))?;
        }
        for consumer in self.members.into_iter().chain(self.filtered) {
            consumer.shutdown();
        }
        for consuming in self.pulling.into_iter().chain(self.in_order) {
            consuming.join().map_err(|_| "the thread of a consumer panicked")??;
        }
        Ok(())
    }
}

/// Joins the group that consumes in order and leaves it again, until everything is sent, recorded and
/// committed.
fn come_and_go(broker: &Broker, member: u64, run: u64, all_sent: &AtomicBool) -> Result<()> {
    while !all_sent.load(Ordering::Acquire) || committed(broker, Consumer::InOrder)? < sent(broker)?
    {
        let recorder = Recorder::new(broker, Consumer::InOrder, run);
        let consumer = broker
            .push_consumer(Consumer::InOrder.group())
            .subscribe(FLIGHTS, Filter::ALL)?
            .threads(1)
            .start_orderly(move |flight: &Delivery<'_>| recorder.record(flight))?;
        thread::sleep(Duration::from_millis(3 * member));
        consumer.shutdown();
    }
    Ok(())
}

/// Pulls until everything is sent, recorded and committed.
fn pull(
    broker: &Broker,
    consumer: Consumer,
    filter: Filter,
    run: u64,
    all_sent: &AtomicBool,
) -> Result<()> {
    let recorder = Recorder::new(broker, consumer, run);
    let builder = broker.pull_consumer(consumer.group()).subscribe(FLIGHTS, filter)?;
    let mut pulling = builder.batch(RUN).start()?;
    loop {
        // Asked before the poll: nothing can be sent between an empty poll and the end.
        let last_round = all_sent.load(Ordering::Acquire);
        let flights = pulling.poll(Duration::from_millis(100))?;
        // A poll may end with its time among flights that are not wanted.
        if flights.is_empty() && last_round && committed(broker, consumer)? == sent(broker)? {
            pulling.close();
            return Ok(());
        }
        for flight in &flights {
            recorder.record(&flight)?;
        }
        pulling.commit()?;
    }
}

/// How many flights there are in all queues.
fn sent(broker: &Broker) -> Result<u64> {
    sum_of_queues(broker, |queue| broker.max_offset(queue))
}

fn committed(broker: &Broker, consumer: Consumer) -> Result<u64> {
    sum_of_queues(broker, |queue| Ok(broker.committed(consumer.group(), queue)?.unwrap_or(0)))
}

fn sum_of_queues(
    broker: &Broker,
    offset: impl Fn(&QueueId) -> rocklet::Result<u64>,
) -> Result<u64> {
    Ok(broker.queues(FLIGHTS)?.iter().map(offset).sum::<rocklet::Result<u64>>()?)
}

/// Waits until `count` has reached `target`, and gives up when it stands still.
fn wait_for(what: &str, target: u64, count: impl Fn() -> Result<u64>) -> Result<()> {
    let (mut reached, mut since) = (count()?, Instant::now());
    while reached < target {
        thread::sleep(Duration::from_millis(5));
        let now = count()?;
        if now != reached {
            (reached, since) = (now, Instant::now());
        } else if since.elapsed() > PATIENCE {
            return Err(format!("{what} stands still at {reached} of {target}").into());
        }
    }
    Ok(())
}
