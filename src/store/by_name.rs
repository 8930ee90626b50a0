//! Values by name, read without a lock: a hash table of short lists, each replaced as a whole.
//!
//! Adding one copies a list of a few, and now and then all of them into a table four times as
//! long: what the n-th costs does not grow with n.

use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Arc, Swap};
use std::hash::{BuildHasher, RandomState};

/// Names of a list, on average, when the table gets longer.
const LONG: usize = 4;
const FIRST: usize = 16;

type List<V> = Vec<(Arc<str>, Arc<V>)>;

/// A map that many read while one changes it.
#[derive(Debug)]
pub(crate) struct ByName<V> {
    hasher: RandomState,
    lists: Swap<Vec<Swap<List<V>>>>,
    len: AtomicUsize,
    #[cfg(test)]
    copied: AtomicUsize,
}

impl<V> ByName<V> {
    pub(crate) fn new() -> Self {
        Self {
            hasher: RandomState::new(),
            lists: Swap::new(empty(FIRST)),
            len: AtomicUsize::new(0),
            #[cfg(test)]
            copied: AtomicUsize::new(0),
        }
    }

    #[inline]
    pub(crate) fn get(&self, name: &str) -> Option<Arc<V>> {
        let lists = self.lists.load();
        let list = lists[self.place(name, lists.len())].load();
        list.iter().find(|(known, _)| **known == *name).map(|(_, value)| value.clone())
    }

    /// All values, in no order.
    pub(crate) fn values(&self) -> Vec<Arc<V>> {
        let lists = self.lists.load();
        let mut values = Vec::with_capacity(self.len());
        lists.iter().for_each(|list| values.extend(list.load().iter().map(|(_, v)| v.clone())));
        values
    }

    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Adds a value, or replaces the one of that name. Whoever changes the map has a lock for it.
    pub(crate) fn insert(&self, name: Arc<str>, value: Arc<V>) {
        self.change(&name.clone(), |list| list.push((name, value)));
        if self.len() > LONG * self.lists.load().len() {
            self.lengthen();
        }
    }

    /// Takes a value out. Whoever changes the map has a lock for it.
    pub(crate) fn remove(&self, name: &str) {
        self.change(name, |_| {});
    }

    /// Takes `name` out of its list, and gives a copy of that to `change`.
    fn change(&self, name: &str, change: impl FnOnce(&mut List<V>)) {
        let lists = self.lists.load();
        let place = &lists[self.place(name, lists.len())];
        let old = place.load();
        let mut list = List::with_capacity(old.len() + 1);
        list.extend(old.iter().filter(|(known, _)| **known != *name).cloned());
        change(&mut list);
        self.note_copies(list.len());
        // Only here, by one thread at a time.
        self.len.fetch_add(list.len(), Ordering::Relaxed);
        self.len.fetch_sub(old.len(), Ordering::Relaxed);
        place.store(list);
    }

    fn lengthen(&self) {
        let old = self.lists.load();
        let length = old.len() * 4;
        let mut lists: Vec<List<V>> = (0..length).map(|_| List::new()).collect();
        for (name, value) in old.iter().flat_map(|list| list.load().to_vec()) {
            lists[self.place(&name, length)].push((name, value));
        }
        self.note_copies(self.len());
        self.lists.store(lists.into_iter().map(Swap::new).collect());
    }

    #[inline]
    fn place(&self, name: &str, lists: usize) -> usize {
        // A power of two.
        self.hasher.hash_one(name) as usize & (lists - 1)
    }

    #[cfg(test)]
    fn note_copies(&self, entries: usize) {
        self.copied.fetch_add(entries, Ordering::Relaxed);
    }

    #[cfg(not(test))]
    fn note_copies(&self, _: usize) {}
}

fn empty<V>(lists: usize) -> Vec<Swap<List<V>>> {
    (0..lists).map(|_| Swap::new(List::new())).collect()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn name(nth: usize) -> Arc<str> {
        Arc::from(format!("topic-{nth}").as_str())
    }

    #[test]
    fn what_is_inserted_is_found_until_it_is_removed() {
        let map = ByName::new();
        for nth in 0..1000 {
            map.insert(name(nth), Arc::new(nth));
        }
        map.insert(name(7), Arc::new(70));
        (0..1000).step_by(2).for_each(|nth| map.remove(&name(nth)));
        map.remove("unknown");
        assert_eq!(map.len(), 500);
        for nth in 0..1000 {
            let expected = (nth % 2 == 1).then_some(if nth == 7 { 70 } else { nth });
            assert_eq!(map.get(&name(nth)).map(|value| *value), expected);
        }
        let mut values: Vec<usize> = map.values().iter().map(|value| **value).collect();
        values.sort_unstable();
        assert_eq!(values.len(), 500);
        assert!(values.contains(&70) && !values.contains(&7));
    }

    #[test]
    fn b_172_the_last_insertions_copy_no_more_than_the_first() {
        let map = ByName::new();
        let mut first = 0;
        for nth in 0..100_000 {
            map.insert(name(nth), Arc::new(()));
            if nth + 1 == 1000 {
                first = map.copied.load(Ordering::Relaxed);
            }
        }
        let copied = map.copied.load(Ordering::Relaxed);
        // A list of a few for each, and all of them each time that the table got longer.
        assert!(first < 10 * 1000 && copied < 10 * 100_000, "{first}, {copied}");
        assert_eq!(map.len(), 100_000);
    }

    #[test]
    fn readers_never_miss_what_stays_while_others_come_and_go() {
        let map = ByName::new();
        (0..100).for_each(|nth| map.insert(name(nth), Arc::new(nth)));
        let done = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for nth in 100..5000 {
                    map.insert(name(nth), Arc::new(nth));
                    if nth % 2 == 0 {
                        map.remove(&name(nth));
                    }
                }
                done.store(1, Ordering::Relaxed);
            });
            while done.load(Ordering::Relaxed) == 0 {
                (0..100).for_each(|nth| assert_eq!(map.get(&name(nth)).as_deref(), Some(&nth)));
            }
        });
    }
}
