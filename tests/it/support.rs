//! What the tests have in common.

use rocklet::{
    BackOff, Broker, BrokerBuilder, Deliveries, Delivery, GroupSettings, Message, Permission,
    Producer, QueueId, Receipt, TopicConfig,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::{Duration, Instant};

pub(crate) const SOON: Duration = Duration::from_secs(30);
pub(crate) const SHORT: Duration = Duration::from_millis(20);

/// A broker in a directory of its own, with small files.
pub(crate) struct Scene {
    pub(crate) broker: Broker,
    pub(crate) dir: tempfile::TempDir,
}

pub(crate) fn scene() -> Scene {
    scene_with(|builder| builder)
}

pub(crate) fn scene_with(settings: impl FnOnce(BrokerBuilder) -> BrokerBuilder) -> Scene {
    let dir = tempfile::tempdir().unwrap();
    let broker = settings(small(dir.path())).open().unwrap();
    Scene { broker, dir }
}

pub(crate) fn small(dir: &Path) -> BrokerBuilder {
    Broker::builder(dir).segment_bytes(1 << 20)
}

impl Scene {
    /// Closes, and opens again.
    pub(crate) fn reopen(self) -> Self {
        let Self { broker, dir } = self;
        broker.close().unwrap();
        drop(broker);
        let broker = small(dir.path()).open().unwrap();
        Self { broker, dir }
    }
}

/// Waits until `condition` holds; how long that takes decides nothing.
#[track_caller]
pub(crate) fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < SOON, "no {what} within {SOON:?}");
        std::thread::sleep(Duration::from_micros(300));
    }
}

/// Runs what must not hang on a thread of its own, and fails if it does.
#[track_caller]
pub(crate) fn returns<R: Send + 'static>(
    what: &str,
    call: impl FnOnce() -> R + Send + 'static,
) -> R {
    let (done, result) = mpsc::channel();
    std::thread::spawn(move || done.send(catch_unwind(AssertUnwindSafe(call))));
    match result.recv_timeout(SOON) {
        Ok(Ok(result)) => result,
        Ok(Err(panic)) => resume_unwind(panic),
        Err(_) => panic!("{what} did not return within {SOON:?}"),
    }
}

pub(crate) fn body(number: u32) -> Vec<u8> {
    number.to_le_bytes().to_vec()
}

pub(crate) fn number(delivery: &Delivery<'_>) -> u32 {
    u32::from_le_bytes(delivery.body().try_into().unwrap())
}

pub(crate) fn numbers(deliveries: &Deliveries) -> Vec<u32> {
    deliveries.iter().map(|delivery| number(&delivery)).collect()
}

/// Sends numbered messages round robin.
pub(crate) fn send(producer: &Producer, topic: &str, range: Range<u32>) {
    for nth in range {
        producer.send(&Message::new(topic, body(nth))).unwrap();
    }
}

/// Sends one numbered message to a queue.
pub(crate) fn send_to(broker: &Broker, topic: &str, queue: u16, nth: u32) -> Receipt {
    broker.producer().send(&Message::new(topic, body(nth)).queue(queue)).unwrap()
}

/// Sends numbered messages to a queue.
pub(crate) fn fill(broker: &Broker, topic: &str, queue: u16, range: Range<u32>) {
    for nth in range {
        send_to(broker, topic, queue, nth);
    }
}

/// Sends one tagged message to queue 0.
pub(crate) fn send_tagged(broker: &Broker, topic: &str, tag: &str, nth: u32) -> Receipt {
    broker.producer().send(&Message::new(topic, body(nth)).tag(tag).queue(0)).unwrap()
}

/// The sum of what the group has committed in all queues of a topic.
pub(crate) fn committed(broker: &Broker, group: &str, topic: &str) -> u64 {
    let queues = broker.queues(topic).unwrap();
    queues.iter().map(|queue| broker.committed(group, queue).unwrap().unwrap_or(0)).sum()
}

/// How many messages a topic ever got.
pub(crate) fn stored(broker: &Broker, topic: &str) -> u64 {
    let queues = broker.queues(topic).unwrap_or_default();
    queues.iter().map(|queue| broker.max_offset(queue).unwrap()).sum()
}

/// Makes a group that gets what it fails again at once, for ever.
pub(crate) fn retry_at_once(broker: &Broker, group: &str) {
    let back_off = BackOff::table([Duration::from_millis(1)]);
    broker.create_group(group, GroupSettings::new().back_off(back_off).max_retries(9999)).unwrap();
}

/// Makes a group whose failed messages cannot be sent back, after one that could: they stay where
/// they are.
pub(crate) fn refuse_send_backs(broker: &Broker, group: &str) {
    broker.create_group(group, GroupSettings::new().max_retries(0)).unwrap();
    let builder = broker.push_consumer(group).subscribe("refused", "*").unwrap();
    let consumer = builder.start(|_: &Delivery<'_>| Err::<(), _>("planted")).unwrap();
    send(&broker.producer(), "refused", 0..1);
    wait_for("a dead letter", || broker.stats().dead_letters == 1);
    drop(consumer);
    forbid_dead_letters(broker, group, Permission::ReadOnly);
}

/// Changes what may be done with the dead letters of a group.
pub(crate) fn forbid_dead_letters(broker: &Broker, group: &str, permission: Permission) {
    let config = TopicConfig::new(1).permission(permission);
    broker.update_topic(&format!("%DLQ%{group}"), config).unwrap();
}

pub(crate) fn q(topic: &str, queue: u16) -> QueueId {
    QueueId::new(topic, queue)
}

/// How often each number was seen.
#[derive(Clone, Default)]
pub(crate) struct Seen {
    counts: Arc<Mutex<BTreeMap<u32, u32>>>,
}

impl Seen {
    pub(crate) fn note(&self, number: u32) {
        *self.counts.lock().unwrap().entry(number).or_default() += 1;
    }

    pub(crate) fn len(&self) -> usize {
        self.counts.lock().unwrap().len()
    }

    pub(crate) fn has(&self, number: u32) -> bool {
        self.counts.lock().unwrap().contains_key(&number)
    }

    pub(crate) fn count(&self, number: u32) -> u32 {
        self.counts.lock().unwrap().get(&number).copied().unwrap_or(0)
    }

    #[track_caller]
    pub(crate) fn assert_each_once(&self, expected: Range<u32>) {
        self.assert_each_once_of(expected);
    }

    #[track_caller]
    pub(crate) fn assert_each_once_of(&self, expected: impl IntoIterator<Item = u32>) {
        let expected: BTreeSet<u32> = expected.into_iter().collect();
        let counts = self.counts.lock().unwrap();
        let missing: Vec<u32> =
            expected.iter().copied().filter(|n| !counts.contains_key(n)).collect();
        let repeated: Vec<_> = counts.iter().filter(|(_, count)| **count > 1).collect();
        let foreign: Vec<_> = counts.keys().filter(|n| !expected.contains(n)).collect();
        assert!(missing.is_empty(), "missing: {missing:?}");
        assert!(repeated.is_empty(), "repeated: {repeated:?}");
        assert!(foreign.is_empty(), "foreign: {foreign:?}");
    }
}

/// A door that is shut until it is opened; for listeners that are to be stuck.
#[derive(Clone, Default)]
pub(crate) struct Door {
    state: Arc<(Mutex<(bool, usize)>, Condvar)>,
}

impl Door {
    /// Waits until the door is open; never longer than a failing test needs.
    pub(crate) fn pass(&self) {
        let (state, changed) = &*self.state;
        let mut held = state.lock().unwrap();
        held.1 += 1;
        let (mut held, _) = changed.wait_timeout_while(held, 2 * SOON, |(open, _)| !*open).unwrap();
        held.1 -= 1;
    }

    pub(crate) fn open(&self) {
        let (state, changed) = &*self.state;
        state.lock().unwrap().0 = true;
        changed.notify_all();
    }

    /// How many wait.
    pub(crate) fn waiting(&self) -> usize {
        self.state.0.lock().unwrap().1
    }
}

/// A value whose drop panics: the nastiest thing that a panic can carry.
pub(crate) struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("planted: dropped");
        }
    }
}

/// A copy of a directory as it is at this moment: what a kill would leave.
pub(crate) fn copy_of(dir: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    copy_all(dir, copy.path());
    copy
}

fn copy_all(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir(&target).unwrap();
            copy_all(&entry.path(), &target);
        } else if let Err(error) = std::fs::copy(entry.path(), target) {
            // A file that was being made has got its name meanwhile.
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}");
        }
    }
}

/// Threads of this process with this prefix in their names.
pub(crate) fn threads(prefix: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let name = |task: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(task.ok()?.path().join("comm")).ok()
    };
    tasks.filter_map(name).filter(|name| name.starts_with(prefix)).count()
}
