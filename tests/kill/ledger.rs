//! What the parent knows: everything that was ever acknowledged or found in the store.

use crate::support::content::Identity;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::str::FromStr;

/// A place of a message: topic, queue, offset. Topics are numbered in the order of their first
/// mention.
type Place = (usize, u16, u64);

/// Holds every line of the workers against all that came before.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    topics: HashMap<String, usize>,
    queues: HashMap<usize, u16>,
    messages: HashMap<Place, (u64, Identity)>,
    positions: HashMap<u64, Place>,
    identities: HashMap<Identity, Place>,
    committed: HashMap<(String, usize, u16), u64>,
    /// Where the log began at the last description; what lies below was dropped.
    start: u64,
    /// Whether nothing may be dropped that a group has still to consume.
    keeps: bool,
    description: Description,
    counts: Counts,
}

/// The store as a worker describes it after opening.
#[derive(Debug, Default)]
struct Description {
    start: u64,
    topics: HashMap<usize, u16>,
    queues: BTreeMap<(usize, u16), Queue>,
    committed: HashMap<(String, usize, u16), u64>,
    /// Those that were told for the first time: retention may have dropped what stood before the
    /// group's first offset while that was on its way.
    founded: HashSet<(String, usize, u16)>,
}

#[derive(Debug, Default)]
struct Queue {
    min: u64,
    next: u64,
    max: u64,
    position: u64,
    // The batch that has begun, and what is to follow.
    batch: Option<Identity>,
}

#[derive(Debug, Default)]
struct Counts {
    acked: u64,
    acked_commits: u64,
    found_unacked: u64,
    checked: u64,
    descriptions: u64,
    cut: u64,
    rebuilt: u64,
    dropped_files: u64,
    reused_files: u64,
    dropped_at_limit: u64,
}

impl Ledger {
    pub(crate) fn new(keeps: bool) -> Self {
        Self { keeps, ..Self::default() }
    }

    /// Takes a line of a worker.
    pub(crate) fn note(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["opened", start, ..] => {
                let start = number(start);
                assert!(start >= self.start, "what was dropped is there again: {line}");
                self.description = Description { start, ..Description::default() };
                self.counts.cut += u64::from(line.contains("cut at"));
                self.counts.rebuilt += u64::from(line.contains("rebuilt"));
                assert!(!line.contains("lowered"), "a commit was above its queue: {line}");
            }
            ["topic", topic, queues] => self.topic(topic, number(queues)),
            ["queue", topic, queue, min, max] => {
                let key = (self.topic_number(topic), number(queue));
                let (min, max) = (number(min), number(max));
                assert!(min <= max, "{line}");
                let queue = Queue { min, next: min, max, ..Queue::default() };
                let twice = self.description.queues.insert(key, queue);
                assert!(twice.is_none(), "twice: {line}");
            }
            ["message", topic, queue, offset, position, identity] => {
                let place = (self.topic_number(topic), number(queue), number(offset));
                self.found(place, number(position), identity.parse().unwrap(), line);
            }
            ["committed", group, topic, queue, offset] => {
                let key = (group.to_owned(), self.topic_number(topic), number(queue));
                self.description.committed.insert(key.clone(), number(offset));
                if !self.committed.contains_key(&key) {
                    self.description.founded.insert(key.clone());
                }
                let known = self.committed.entry(key).or_default();
                assert!(*known <= number(offset), "a commit of {known} was lost: {line}");
                *known = number(offset);
                self.counts.acked_commits += 1;
            }
            ["acked", topic, queue, offset, first, ref positions @ ..] => {
                let (topic, queue, offset) =
                    (self.topic_number(topic), number(queue), number::<u64>(offset));
                let first: Identity = first.parse().unwrap();
                assert_eq!(usize::from(first.of), positions.len(), "{line}");
                for (nth, position) in positions.iter().enumerate() {
                    let identity = Identity { nth: nth as u16, ..first };
                    let new =
                        self.learn((topic, queue, offset + nth as u64), number(position), identity);
                    assert!(new, "given again: {line}");
                    self.counts.acked += 1;
                }
            }
            ["dropped", files, reused, at_limit] => {
                self.counts.dropped_files += number::<u64>(files);
                self.counts.reused_files += number::<u64>(reused);
                self.counts.dropped_at_limit += number::<u64>(at_limit);
            }
            ["end"] => self.described(),
            ["closed"] => {}
            _ => panic!("the worker said: {line}"),
        }
    }

    /// A description may have broken off.
    pub(crate) fn interrupted(&mut self) {
        self.description = Description::default();
    }

    fn topic(&mut self, topic: &str, queues: u16) {
        let topic = self.topic_number(topic);
        self.description.topics.insert(topic, queues);
        let known = *self.queues.entry(topic).or_insert(queues);
        assert_eq!(known, queues, "topic {topic} had other queues");
    }

    fn found(&mut self, place: Place, position: u64, identity: Identity, line: &str) {
        let (topic, queue, offset) = place;
        assert!(position >= self.description.start, "below the start of the log: {line}");
        let found = self.description.queues.get_mut(&(topic, queue)).expect("its queue");
        assert_eq!(offset, found.next, "a hole, or out of order: {line}");
        let first = offset == found.min;
        assert!(first || position > found.position, "not behind the one before: {line}");
        (found.next, found.position) = (offset + 1, position);
        let Identity { nth, of, .. } = identity;
        assert_eq!(
            found.batch.unwrap_or(Identity { nth: 0, ..identity }),
            identity,
            "half a batch"
        );
        found.batch = (nth + 1 < of).then_some(Identity { nth: nth + 1, ..identity });
        if self.learn(place, position, identity) {
            self.counts.found_unacked += 1;
        }
        self.counts.checked += 1;
    }

    /// Holds a description, which is complete, against what must be there.
    fn described(&mut self) {
        let found = std::mem::take(&mut self.description);
        for (key, queue) in &found.queues {
            assert_eq!(queue.next, queue.max, "{key:?} ends early");
            assert_eq!(queue.batch, None, "{key:?} ends with half a batch");
        }
        // All that was found is known by now, and nothing was found twice. What is not there was
        // dropped, with all that stood before it in the log.
        self.start = found.start;
        let there = |topic: usize, queue: u16, offset: u64| {
            let queue = found.queues.get(&(topic, queue));
            queue.is_some_and(|queue| (queue.min..queue.next).contains(&offset))
        };
        for ((topic, queue, offset), (position, _)) in &self.messages {
            assert_eq!(
                there(*topic, *queue, *offset),
                *position >= found.start,
                "the log begins at {}: offset {offset} of {topic}/{queue} at {position}, {:?}",
                found.start,
                found.queues.get(&(*topic, *queue))
            );
        }
        assert_eq!(found.topics, self.queues, "topics and their queues");
        for (key, known) in &self.committed {
            let offset = found.committed.get(key).copied();
            assert!(offset >= Some(*known), "{key:?}: {offset:?} instead of {known} is committed");
            let Queue { min, max, .. } = found.queues[&(key.1, key.2)];
            assert!(offset <= Some(max), "{key:?}: {offset:?} is committed of {max}");
            let founded = found.founded.contains(key);
            let kept = !self.keeps || founded || offset >= Some(min);
            assert!(kept, "{key:?}: {offset:?} is committed, and all below {min} dropped");
        }
        self.counts.descriptions += 1;
    }

    /// Notes where a message is: true if that is news.
    fn learn(&mut self, place: Place, position: u64, identity: Identity) -> bool {
        let known = self.messages.insert(place, (position, identity));
        if let Some(known) = known {
            assert_eq!(known, (position, identity), "an offset was given again: {place:?}");
        }
        let other = self.positions.insert(position, place).filter(|other| *other != place);
        assert_eq!(other, None, "position {position} was given again, to {place:?}");
        let other = self.identities.insert(identity, place).filter(|other| *other != place);
        assert_eq!(other, None, "{identity} is at {place:?} as well");
        known.is_none()
    }

    fn topic_number(&mut self, name: &str) -> usize {
        let next = self.topics.len();
        *self.topics.entry(name.to_owned()).or_insert(next)
    }
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts {
            acked, acked_commits, found_unacked, checked, descriptions, cut, rebuilt, ..
        } = &self.counts;
        let Counts { dropped_files, reused_files, dropped_at_limit, .. } = &self.counts;
        let dropped = self.messages.values().filter(|(position, _)| *position < self.start).count();
        let batches = self.messages.values().filter(|(_, id)| id.nth == 0 && id.of > 1).count();
        write!(
            f,
            "{acked} acknowledged messages, {found_unacked} found without acknowledgement, \
             {batches} batches, {acked_commits} commits, {} topics; {descriptions} full comparisons of {checked} \
             messages; {cut} torn ends cut, {rebuilt} indexes rebuilt; {dropped} messages dropped in \
             more than {dropped_files} files, {reused_files} of them used again, {dropped_at_limit} dropped \
             at the limit",
            self.queues.len(),
        )
    }
}

fn number<N: FromStr<Err: fmt::Debug>>(word: &str) -> N {
    word.parse().unwrap_or_else(|error| panic!("{word:?}: {error:?}"))
}
