//! The process that gets killed: it describes what it finds in the store, waits until it is told
//! to go on, then works, and says what is acknowledged, a line each, once the call has returned.
//!
//! ```text
//! opened <start of the log> <report>               topic <name> <queues>
//! queue <topic> <queue> <min> <max>                message <topic> <queue> <offset> <position> <identity>
//! committed <group> <topic> <queue> <offset>       end
//! acked <topic> <queue> <offset> <identity of the first> <position>...
//! dropped <files> <used again> <at the limit>      closed
//! wrong <what>
//! ```

use crate::support::Random;
use crate::support::content::Identity;
use crate::support::process::{told, unbuffered_output};
use rocklet::{
    AtLimit, Broker, BrokerBuilder, Delivery, Error, Filter, Flush, PullConsumer, PullStatus,
    PushConsumer, QueueId, Receipt, Retention,
};
use std::collections::HashMap;
use std::fmt;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

/// How the store is flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Interval,
    EveryMessage,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

const SENDERS: u16 = 3;
const TOPICS: u64 = 3;
const GROUPS: [&str; 2] = ["pulling", "pushing"];
const LONGEST_BATCH: u64 = 12;
/// What the log may have, of files of 64 and 128 KiB.
const MOST_BYTES: u64 = 512 << 10;

pub(crate) fn run(arguments: &[String]) -> ExitCode {
    let [dir, mode, numbers @ ..] = arguments else { panic!("{arguments:?}") };
    let numbers: Vec<u64> = numbers.iter().map(|number| number.parse().unwrap()).collect();
    let [round, seed, segment_bytes] = numbers[..] else { panic!("{arguments:?}") };
    let flush = match mode.as_str() {
        "EveryMessage" => Flush::EveryMessage,
        _ => Flush::Every(Duration::from_millis(5)),
    };
    let mut random = Random(seed);
    let queues = 1 + random.below(4) as u16;
    let builder = Broker::builder(dir).flush(flush).segment_bytes(segment_bytes);
    let builder = builder.auto_create_queues(queues);
    let keeps = flush != Flush::EveryMessage;
    // Nothing is dropped while the store is described: without rules and limits.
    let Some(broker) = open(builder.clone()) else { return ExitCode::FAILURE };
    let mut description = String::new();
    describe(&broker, |line| description.extend([line, "\n"]));
    say(&(description + "end"));
    if !told() {
        return close(&broker);
    }

    let broker = if random.one_in(2) {
        broker
    } else {
        if let Err(error) = broker.close() {
            say(&format!("wrong cannot close: {error}"));
        }
        drop(broker);
        let limited = |builder: BrokerBuilder| {
            builder.max_log_bytes(MOST_BYTES).at_limit(AtLimit::DropOldest)
        };
        let builder = match (keeps, random.one_in(2)) {
            (true, _) => {
                let retention = Retention::none().log_bytes(4 * segment_bytes);
                builder.retention(retention.keep_unconsumed())
            }
            (false, true) => limited(builder),
            (false, false) => {
                let age = Duration::from_millis(random.below(50));
                limited(builder).retention(Retention::none().age(age))
            }
        };
        let Some(broker) = open(builder) else { return ExitCode::FAILURE };
        broker
    };
    let worker = Worker { broker, round: round as u32 };
    std::thread::scope(|scope| {
        for thread in 0..SENDERS {
            let (worker, random) = (&worker, Random(random.next()));
            scope.spawn(move || worker.send(thread, random));
        }
        if !round.is_multiple_of(3) {
            scope.spawn(|| worker.consume(round.is_multiple_of(2)));
        }
        scope.spawn(|| worker.create_topic(1 + (round % 3) as u16));
        let random = Random(random.next());
        scope.spawn(|| worker.watch(random, !keeps));
        // Nobody says anything more: the parent kills, or is killed itself.
        told();
        close(&worker.broker)
    })
}

fn open(builder: BrokerBuilder) -> Option<Broker> {
    let opened = builder.open();
    opened.inspect_err(|error| say(&format!("wrong cannot open: {error}"))).ok()
}

fn close(broker: &Broker) -> ExitCode {
    match broker.close() {
        Ok(()) => say("closed"),
        Err(error) => say(&format!("wrong cannot close: {error}")),
    }
    ExitCode::SUCCESS
}

/// Says everything that is in the store.
pub(crate) fn describe(broker: &Broker, mut say: impl FnMut(&str)) {
    say(&format!("opened {} {}", broker.stats().log_start, broker.recovery_report()));
    // A member of a group of its own, as only consumers read.
    let reader = broker.pull_consumer("reading").subscribe("none", Filter::ALL).unwrap();
    let reader = reader.start().unwrap();
    for topic in broker.topics() {
        let queues = broker.queues(&topic).unwrap();
        say(&format!("topic {topic} {}", queues.len()));
        for queue in queues {
            describe_queue(broker, &reader, &queue, &mut say);
            for group in GROUPS {
                if let Some(offset) = broker.committed(group, &queue).unwrap() {
                    say(&format!("committed {group} {} {offset}", place(&queue)));
                }
            }
        }
    }
}

fn describe_queue(
    broker: &Broker,
    reader: &PullConsumer,
    queue: &QueueId,
    say: &mut impl FnMut(&str),
) {
    let (min, max) = (broker.min_offset(queue).unwrap(), broker.max_offset(queue).unwrap());
    say(&format!("queue {} {min} {max}", place(queue)));
    let mut offset = min;
    while offset < max {
        let pull = match reader.pull(queue, offset, 1024) {
            Ok(pull) if pull.status == PullStatus::Found => pull,
            other => return say(&format!("wrong pull of {queue} at {offset}: {other:?}")),
        };
        for delivery in &pull.messages {
            if delivery.queue_id() != *queue {
                say(&format!("wrong queue: {delivery:?} from {queue}"));
            }
            match Identity::check(&delivery) {
                Ok(identity) => say(&format!(
                    "message {} {} {} {identity}",
                    place(queue),
                    delivery.offset(),
                    delivery.position()
                )),
                Err(what) => say(&format!("wrong {what}")),
            }
        }
        offset = pull.next;
    }
}

struct Worker {
    broker: Broker,
    round: u32,
}

impl Worker {
    fn send(&self, thread: u16, mut random: Random) {
        let producer = self.broker.producer();
        for sequence in 0.. {
            // Now and then a topic that its first message creates.
            let new = u64::from(self.round) / 8 + TOPICS;
            let topic =
                format!("topic-{}", if random.one_in(8) { new } else { random.below(TOPICS) });
            let of = if random.one_in(3) { 1 + random.below(LONGEST_BATCH) } else { 1 };
            let batch = Identity::batch(self.round, thread, sequence, of as u16);
            let messages: Vec<_> = batch.iter().map(|identity| identity.message(&topic)).collect();
            let sent = match &messages[..] {
                [message] if random.one_in(2) => {
                    producer.send(message).map(|receipt| vec![receipt])
                }
                messages => producer.send_batch(messages),
            };
            match sent {
                Ok(receipts) if in_order(&receipts) => acknowledge(&topic, &batch[0], &receipts),
                Ok(receipts) => say(&format!("wrong receipts: {receipts:?}")),
                Err(Error::Closed) => return,
                Err(error) => return say(&format!("wrong send: {error}")),
            }
        }
    }

    /// Says what is dropped, and drops something itself now and then.
    fn watch(&self, mut random: Random, drops: bool) {
        let mut said = (0, 0, 0);
        loop {
            std::thread::sleep(Duration::from_millis(2));
            if drops && random.one_in(40) {
                let end = self.broker.stats().log_end;
                match self.broker.drop_before(random.below(end)) {
                    Ok(_) => {}
                    Err(Error::Closed) => return,
                    Err(error) => return say(&format!("wrong drop_before: {error}")),
                }
            }
            let stats = self.broker.stats().retention;
            let dropped = (stats.dropped_files, stats.reused_files, stats.dropped_at_limit);
            if dropped != said {
                let (files, reused, at_limit) = dropped;
                say(&format!(
                    "dropped {} {} {}",
                    files - said.0,
                    reused - said.1,
                    at_limit - said.2
                ));
                said = dropped;
            }
            if let Some(failure) = self.broker.retention_failure() {
                return say(&format!("wrong retention: {failure}"));
            }
        }
    }

    fn create_topic(&self, queues: u16) {
        let name = format!("made-{}", self.round);
        match self.broker.create_topic(&name, queues) {
            Ok(()) => say(&format!("topic {name} {queues}")),
            Err(Error::Closed) => {}
            Err(error) => say(&format!("wrong create_topic: {error}")),
        }
    }

    fn consume(&self, push: bool) {
        let _pushing = if push { self.push() } else { None };
        let mut builder = self.broker.pull_consumer(GROUPS[0]);
        for topic in 0..TOPICS {
            builder = builder.subscribe(&format!("topic-{topic}"), Filter::ALL).unwrap();
        }
        let mut consumer = match builder.start() {
            Ok(consumer) => consumer,
            Err(Error::Closed) => return,
            Err(error) => return say(&format!("wrong start: {error}")),
        };
        let mut said = HashMap::new();
        loop {
            match consumer.poll(Duration::from_millis(20)) {
                Ok(deliveries) => deliveries.iter().for_each(|delivery| check(&delivery)),
                Err(Error::Closed) => return,
                Err(error) => return say(&format!("wrong poll: {error}")),
            }
            match consumer.commit() {
                Ok(()) => {}
                Err(Error::Closed) => return,
                Err(error) => return say(&format!("wrong commit: {error}")),
            }
            for (group, queue) in GROUPS.iter().flat_map(|group| {
                consumer.assignment().into_iter().map(move |queue| (*group, queue))
            }) {
                let Some(offset) = self.broker.committed(group, &queue).unwrap() else { continue };
                if said.insert((group, queue.clone()), offset) != Some(offset) {
                    say(&format!("committed {group} {} {offset}", place(&queue)));
                }
            }
        }
    }

    fn push(&self) -> Option<PushConsumer> {
        let mut builder = self.broker.push_consumer(GROUPS[1]).threads(2);
        for topic in 0..TOPICS {
            builder = builder.subscribe(&format!("topic-{topic}"), Filter::ALL).unwrap();
        }
        match builder.start(|delivery: &Delivery<'_>| check(delivery)) {
            Ok(consumer) => Some(consumer),
            Err(Error::Closed) => None,
            Err(error) => {
                say(&format!("wrong start: {error}"));
                None
            }
        }
    }
}

fn check(delivery: &Delivery<'_>) {
    if let Err(what) = Identity::check(delivery) {
        say(&format!("wrong {what}"));
    }
}

fn in_order(receipts: &[Receipt]) -> bool {
    receipts.windows(2).all(|pair| {
        pair[0].queue == pair[1].queue
            && pair[0].offset + 1 == pair[1].offset
            && pair[0].position < pair[1].position
    })
}

fn acknowledge(topic: &str, first: &Identity, receipts: &[Receipt]) {
    let Receipt { queue, offset, .. } = receipts[0];
    let mut line = format!("acked {topic} {queue} {offset} {first}");
    receipts.iter().for_each(|receipt| line += &format!(" {}", receipt.position));
    say(&line);
}

fn place(queue: &QueueId) -> String {
    format!("{} {}", queue.topic(), queue.queue())
}

fn say(line: &str) {
    // Shorter than what a pipe takes at once, but for the description. If nobody listens any more,
    // there is nothing left to do.
    if unbuffered_output().write_all(format!("{line}\n").as_bytes()).is_err() {
        std::process::abort();
    }
}
