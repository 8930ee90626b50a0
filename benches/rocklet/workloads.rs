//! rocklet's side of every case, through its public API only.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Barrier, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use rocklet::{
    Broker, Delivery, Filter, Flush, Message, PendingSend, Producer, PullStatus, PushConsumer,
};

use crate::Fallible;
use crate::cases::{Case, LISTENERS, SLOW, Work};
use crate::payload::{Check, Payload};
use crate::reference::{Arrivals, Pace};

const TOPIC: &str = "bench";
const TAG: &str = "tag";
const GROUP: &str = "group";
/// Messages asked for in one pull.
const PULL: usize = 256;
/// Longest wait for something that has to come.
const PATIENCE: Duration = Duration::from_secs(60);

/// All producers at once; then everything is pulled back and checked.
pub(crate) fn append(case: &Case, messages: u64, dir: &Path) -> Fallible<Vec<f64>> {
    let broker = open(case, dir)?;
    let share = messages / case.producers as u64;
    let start = Barrier::new(case.producers);
    let seconds = thread::scope(|scope| -> Fallible<f64> {
        let producers: Vec<_> = (0..case.producers)
            .map(|number| {
                let (producer, start) = (broker.producer(), &start);
                scope.spawn(move || {
                    start.wait();
                    let began = Instant::now();
                    produce(case, &producer, number, share)?;
                    Fallible::Ok((began, Instant::now()))
                })
            })
            .collect();
        // From the first start to the last end, as the producers saw them.
        let mut times = Vec::new();
        for producer in producers {
            times.push(producer.join().map_err(|_| "a producer panicked")??);
        }
        let began = times.iter().map(|(began, _)| *began).min().ok_or("no producer")?;
        Ok(times.iter().map(|(_, ended)| *ended - began).max().unwrap_or_default().as_secs_f64())
    })?;
    if case.work == Work::Durable && broker.stats().unflushed > 0 {
        return Err("a message that was acknowledged is not flushed".into());
    }
    pull_all(case, messages, &broker)?;
    broker.close()?;
    Ok(vec![messages as f64 / seconds])
}

/// Explicit pulls; a delivery borrows from the log.
pub(crate) fn read(case: &Case, messages: u64, dir: &Path) -> Fallible<Vec<f64>> {
    let broker = open(case, dir)?;
    produce(case, &broker.producer(), 0, messages)?;
    let began = Instant::now();
    pull_all(case, messages, &broker)?;
    let seconds = began.elapsed().as_secs_f64();
    broker.close()?;
    Ok(vec![messages as f64 / seconds])
}

/// One producer and one listener thread, until the group has committed the last offset.
pub(crate) fn relay(case: &Case, messages: u64, dir: &Path) -> Fallible<Vec<f64>> {
    let broker = open(case, dir)?;
    let check = Arc::new(Check::new(case.size, 1));
    let listener = Arc::clone(&check);
    let consumer = listen(&broker, move |delivery| _ = listener.see(delivery.body()))?;
    let began = Instant::now();
    produce(case, &broker.producer(), 0, messages)?;
    until_committed(messages, &broker)?;
    let seconds = began.elapsed().as_secs_f64();
    consumer.shutdown();
    check.finish(messages)?;
    broker.close()?;
    Ok(vec![messages as f64 / seconds])
}

/// One producer and a group whose listeners sleep, until all is committed.
pub(crate) fn listen_slowly(case: &Case, messages: u64, dir: &Path) -> Fallible<Vec<f64>> {
    let broker = open(case, dir)?;
    let check = Arc::new(Check::new(case.size, case.queues.into()));
    let consumers: Vec<_> = (0..LISTENERS)
        .map(|_| {
            let listener = Arc::clone(&check);
            listen(&broker, move |delivery| {
                listener.see(delivery.body());
                thread::sleep(SLOW);
            })
        })
        .collect::<Fallible<_>>()?;
    let began = Instant::now();
    produce(case, &broker.producer(), 0, messages)?;
    until_committed(messages, &broker)?;
    let seconds = began.elapsed().as_secs_f64();
    consumers.iter().for_each(PushConsumer::shutdown);
    check.finish(messages)?;
    broker.close()?;
    Ok(vec![messages as f64 / seconds])
}

/// Sends at a given pace to nobody.
pub(crate) fn send(case: &Case, messages: u64, dir: &Path) -> Fallible<Vec<f64>> {
    let broker = open(case, dir)?;
    let sends = send_paced(case, messages, &Pace::new(), &broker)?;
    pull_all(case, messages, &broker)?;
    broker.close()?;
    Ok(sends)
}

/// Sends at a given pace to a listener.
pub(crate) fn send_heard(case: &Case, messages: u64, dir: &Path) -> Fallible<Vec<f64>> {
    let broker = open(case, dir)?;
    let heard = Arc::new((Check::new(case.size, 1), Arrivals::new()?, OnceLock::new()));
    let listener = Arc::clone(&heard);
    let consumer = listen(&broker, move |delivery| {
        let (check, arrivals, pace) = &*listener;
        arrivals.see(pace.get_or_init(Pace::new), check.see(delivery.body()));
    })?;
    let (check, arrivals, pace) = &*heard;
    let sends = send_paced(case, messages, pace.get_or_init(Pace::new), &broker)?;
    until_committed(messages, &broker)?;
    consumer.shutdown();
    check.finish(messages)?;
    broker.close()?;
    Ok([sends, arrivals.percentiles()].concat())
}

/// How long after its due time the consumer had each delayed message.
pub(crate) fn delay(case: &Case, messages: u64, dir: &Path) -> Fallible<Vec<f64>> {
    let broker = open(case, dir)?;
    let heard = Arc::new((Check::new(case.size, 1), Arrivals::new()?, OnceLock::new()));
    let listener = Arc::clone(&heard);
    let consumer = listen(&broker, move |delivery| {
        let (check, arrivals, pace) = &*listener;
        arrivals.see(pace.get_or_init(Pace::of_delays), check.see(delivery.body()));
    })?;
    let (check, arrivals, pace) = &*heard;
    let (pace, producer) = (pace.get_or_init(Pace::of_delays), broker.producer());
    let (mut payload, first) = (Payload::new(case.size), pace.wall_time());
    for sequence in 0..messages {
        // Instants, so that a sender that is held up changes nothing.
        let message = message(payload.stamp(0, sequence), 0);
        producer.send(&message.deliver_at(first + pace.after_first(sequence)))?;
    }
    until_committed(messages, &broker)?;
    consumer.shutdown();
    check.finish(messages)?;
    broker.close()?;
    Ok(arrivals.percentiles())
}

fn open(case: &Case, dir: &Path) -> Fallible<Broker> {
    let mut builder = Broker::builder(dir.join("rocklet"));
    if case.work == Work::Durable {
        builder = builder.flush(Flush::EveryMessage);
    }
    let broker = builder.open()?;
    broker.create_topic(TOPIC, case.queues)?;
    Ok(broker)
}

fn message(body: &[u8], queue: u16) -> Message<'_> {
    Message::new(TOPIC, body).tag(TAG).queue(queue)
}

fn send_paced(case: &Case, messages: u64, pace: &Pace, broker: &Broker) -> Fallible<Vec<f64>> {
    let (producer, mut payload) = (broker.producer(), Payload::new(case.size));
    pace.send(messages, |sequence| {
        producer.send(&message(payload.stamp(0, sequence), 0))?;
        Ok(())
    })
}

fn produce(case: &Case, producer: &Producer, number: usize, messages: u64) -> Fallible<()> {
    let queue = number as u16 % case.queues;
    let mut payloads: Vec<_> = (0..case.batch).map(|_| Payload::new(case.size)).collect();
    if let ([payload], 2..) = (&mut payloads[..], case.in_flight) {
        let mut window = VecDeque::with_capacity(case.in_flight);
        for sequence in 0..messages {
            let message = message(payload.stamp(number, sequence), queue);
            window.push_back(producer.send_pending(&message)?);
            if window.len() == case.in_flight
                && let Some(oldest) = window.pop_front()
            {
                oldest.wait()?;
            }
        }
        return Ok(window.iter().try_for_each(|sent: &PendingSend| sent.wait().map(drop))?);
    }
    if let ([payload], true) = (&mut payloads[..], case.is_wide()) {
        let queues = u64::from(case.queues);
        for nth in 0..messages {
            let (queue, sequence) = ((nth % queues) as u16, nth / queues);
            producer.send(&message(payload.stamp(queue.into(), sequence), queue))?;
        }
        return Ok(());
    }
    if let [payload] = &mut payloads[..] {
        for sequence in 0..messages {
            producer.send(&message(payload.stamp(number, sequence), queue))?;
        }
        return Ok(());
    }
    for first in (0..messages).step_by(case.batch) {
        let bodies = payloads.iter_mut().zip(first..messages);
        let batch: Vec<_> = bodies
            .map(|(payload, sequence)| message(payload.stamp(number, sequence), queue))
            .collect();
        producer.send_batch(&batch)?;
    }
    Ok(())
}

fn pull_all(case: &Case, messages: u64, broker: &Broker) -> Fallible<()> {
    let stamps = if case.is_wide() { case.queues.into() } else { case.producers };
    let check = Check::new(case.size, stamps);
    let consumer = broker.pull_consumer(GROUP).subscribe(TOPIC, Filter::ALL)?.start()?;
    for queue in broker.queues(TOPIC)? {
        let mut offset = 0;
        loop {
            let pull = consumer.pull(&queue, offset, PULL)?;
            if pull.status != PullStatus::Found {
                break;
            }
            pull.messages.iter().for_each(|delivery| _ = check.see(delivery.body()));
            offset = pull.next;
        }
    }
    Ok(check.finish(messages)?)
}

fn until_committed(messages: u64, broker: &Broker) -> Fallible<()> {
    let (queues, deadline) = (broker.queues(TOPIC)?, Instant::now() + PATIENCE);
    loop {
        let offsets = queues.iter().map(|queue| Ok(broker.committed(GROUP, queue)?.unwrap_or(0)));
        match offsets.sum::<Fallible<u64>>()? {
            committed if committed == messages => return Ok(()),
            committed if Instant::now() > deadline => {
                return Err(format!("verification: committed {committed} of {messages}").into());
            }
            _ => thread::sleep(Duration::from_micros(50)),
        }
    }
}

/// One worker thread, started and with its queue assigned.
fn listen(
    broker: &Broker,
    listener: impl Fn(&Delivery<'_>) + Send + Sync + 'static,
) -> Fallible<PushConsumer> {
    let consumer =
        broker.push_consumer(GROUP).subscribe(TOPIC, Filter::ALL)?.threads(1).start(listener)?;
    let deadline = Instant::now() + PATIENCE;
    while consumer.assignment().is_empty() {
        if Instant::now() > deadline {
            return Err("the queue was not assigned".into());
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(consumer)
}
