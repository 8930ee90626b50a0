//! The store as a whole, on real directories.
//!
//! A kill is played by giving the lock back without a close: what was stored into the mappings is
//! in the files, as after the end of a process. Damage is written into the files in between.

mod ahead;
mod append;
mod backup;
mod concurrent;
mod damage;
mod delays;
mod faults;
pub(crate) mod faulty;
mod flush;
mod follow;
mod index;
mod keys;
mod offsets;
mod recovery;
mod retain;
mod retention;
mod salvage;
mod topics;

use super::draft::Draft;
use super::*;
use crate::clock::Clock;
use crate::storage::Directory;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const SEGMENT: u64 = 64 << 10;

struct All;

impl Select for All {
    fn by_hash(&self, _: i32) -> bool {
        true
    }
    fn by_message(&self, _: &Delivery<'_>) -> bool {
        true
    }
}

fn config(flush: Flush) -> StoreConfig {
    StoreConfig {
        segment_bytes: SEGMENT,
        flush,
        max_unflushed: 1 << 30,
        recovery: Recovery::Strict,
        rebuild: false,
        space: SpaceRules::default(),
        verify: Verify::OnOpen,
    }
}

pub(super) fn open(dir: &Path) -> Store {
    try_open(dir).unwrap()
}

fn try_open(dir: &Path) -> Result<Store> {
    open_on(Arc::new(Directory::new(dir).unwrap()))
}

fn open_on(storage: Arc<dyn Storage>) -> Result<Store> {
    Store::open(storage, config(Flush::EveryMessage), Clock::system())
}

/// Ends a store as a kill of the process does.
fn kill(store: Store) {
    store.storage.unlock();
}

pub(super) fn topic(store: &Store, queues: u16) -> Arc<Topic> {
    store.create_topic("t", queues).unwrap();
    store.topics.get("t").unwrap()
}

fn body(nth: u64) -> Vec<u8> {
    sized(nth, 8 + (nth % 700) as usize)
}

/// A body of `len` bytes that tells its number.
fn sized(nth: u64, len: usize) -> Vec<u8> {
    let mut body = nth.to_le_bytes().to_vec();
    body.resize(len, nth as u8);
    body
}

fn pending(body: &[u8]) -> Pending<'_> {
    Pending { tag_hash: 0, born_ms: None, properties: Source::Encoded(&[]), body }
}

/// A message for the first queue that waits for its place.
fn draft<'a>(topic: &'a Topic, body: &'a [u8]) -> Draft<'a> {
    let mut draft = Draft::blank(&topic.outline);
    draft.fill(&topic.outline, 0, 0, pending(body));
    draft
}

pub(super) fn send(store: &Store, topic: &Topic, queue: usize, nth: u64) -> Appended {
    send_body(store, topic, queue, &body(nth)).unwrap()
}

fn send_body(store: &Store, topic: &Topic, queue: usize, body: &[u8]) -> Result<Appended> {
    failed(store.append(topic, &topic.queues[queue], pending(body)))
}

fn send_batch(store: &Store, topic: &Topic, queue: usize, bodies: &[Vec<u8>]) -> Result<Appended> {
    let batch = bodies.iter().map(|body| pending(body));
    failed(store.append_batch(topic, &topic.queues[queue], batch)).map(|batch| batch.appended)
}

fn failed<T>(appended: std::result::Result<T, AppendError>) -> Result<T> {
    appended.map_err(|error| match error {
        AppendError::Failed(error) => error,
        AppendError::Gone => panic!("no topic is ever deleted here"),
    })
}

fn until(condition: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(30), "it never happens");
        std::thread::yield_now();
    }
}

/// The bodies of a queue from its minimum on.
fn read(store: &Store, topic: &Topic, queue: usize) -> Vec<Vec<u8>> {
    let queue = &topic.queues[queue];
    let mut bodies = Vec::new();
    let mut offset = queue.min();
    while offset < queue.max() {
        let fetch = store.fetch(queue, offset, 32, 1 << 20, &All).unwrap();
        assert!(fetch.next > offset);
        assert_eq!(fetch.messages.len() as u64, fetch.next - offset, "a hole at {offset}");
        bodies.extend(fetch.messages.iter().map(|message| message.body().to_vec()));
        offset = fetch.next;
    }
    bodies
}

/// Everything that a store holds: by topic and queue, the minimum and the bodies.
type Contents = BTreeMap<(String, u16), (u64, Vec<Vec<u8>>)>;

fn contents(store: &Store) -> Contents {
    let mut all = Contents::new();
    for topic in store.topics.all() {
        for (nth, queue) in topic.queues.iter().enumerate() {
            let key = (topic.name.to_string(), queue.queue);
            all.insert(key, (queue.min(), read(store, &topic, nth)));
        }
    }
    all
}

/// A copy of a directory, as it is at this moment.
pub(crate) fn copy_of(dir: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for (name, bytes) in files_in(dir) {
        let to = copy.path().join(name);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::write(to, bytes).unwrap();
    }
    copy
}

/// Every file below `dir`, by its name.
fn files_in(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(dir).unwrap().to_owned();
                files.insert(name, std::fs::read(&path).unwrap());
            }
        }
    }
    files
}

/// The files of the commit log.
fn log_in(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = files_in(dir);
    files.retain(|name, _| name.starts_with("commitlog"));
    files
}

/// The log file that `position` lies in, and where in it; every file has [`SEGMENT`] bytes.
fn place_of(dir: &Path, position: u64) -> (PathBuf, usize) {
    let name = format!("commitlog/{:020}", position / SEGMENT * SEGMENT);
    (dir.join(name), (position % SEGMENT) as usize)
}

/// Changes the bytes of a file from `at` on.
fn change(path: &Path, at: usize, change: impl FnOnce(&mut [u8])) {
    let mut bytes = std::fs::read(path).unwrap();
    change(&mut bytes[at..]);
    std::fs::write(path, bytes).unwrap();
}

/// What `try_open` complains of, which must be damage, and that it has left the log alone.
fn refused(dir: &Path) -> (PathBuf, u64, &'static str) {
    let before = log_in(dir);
    let error = try_open(dir).expect_err("a damaged directory was opened");
    assert_eq!(log_in(dir), before, "a refused open changed the log");
    match error {
        Error::Corrupt { file, position, reason } => (file, position, reason),
        other => panic!("{other}"),
    }
}
