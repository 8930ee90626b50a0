//! Leases: who consumes which queue in order (ORD-1..5).
//!
//! Whoever gets a queue gets its lease before, and renews it. A holder that has not done so for
//! half of the expiry stops working until it has; after all of it others may take the lease over.
//! Every lease that is taken has a generation that no other had, and what a holder commits is
//! compared with it under the lock: whoever is late changes nothing.
//!
//! Nothing of it is stored: a restart frees everything.

use crate::clock::Moment;
use crate::store::OffsetKey;
use crate::sync::{Mutex, Rank};
use std::collections::HashMap;
use std::time::Duration;

/// The leases of one group.
#[derive(Debug)]
pub(crate) struct Leases {
    expiry: Duration,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    taken: HashMap<OffsetKey, Taken>,
    generations: u64,
}

#[derive(Debug)]
struct Taken {
    member: String,
    generation: u64,
    renewed: Moment,
}

/// What a holder has of a lease: worth something as long as nobody else has taken it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) key: OffsetKey,
    generation: u64,
}

impl Leases {
    pub(crate) fn new(expiry: Duration) -> Self {
        Self { expiry, table: Mutex::new(Rank::Lease, Table::default()) }
    }

    /// Takes the lease of a queue for `member`, who may have it already; `None` if somebody else
    /// has it and it has not expired (ORD-2).
    pub(crate) fn take(&self, key: OffsetKey, member: &str, now: Moment) -> Option<Lease> {
        let mut table = self.table.lock();
        if let Some(taken) = table.taken.get_mut(&key) {
            if taken.member == member {
                taken.renewed = now;
                return Some(Lease { key, generation: taken.generation });
            }
            #[cfg(not(broken_lease_taken_early))]
            if !has_expired(taken, now, self.expiry) {
                return None;
            }
        }
        table.generations += 1;
        let generation = table.generations;
        let taken = Taken { member: member.to_owned(), generation, renewed: now };
        table.taken.insert(key, taken);
        Some(Lease { key, generation })
    }

    /// Renews leases, whether they have expired or not; returns those that are still held (ORD-3,
    /// ORD-4). One that was given up, or that somebody else has taken, stays so.
    pub(crate) fn renew(&self, leases: &[Lease], now: Moment) -> Vec<Lease> {
        let mut table = self.table.lock();
        let mut held = leases.to_vec();
        held.retain(|lease| match table.taken.get_mut(&lease.key) {
            Some(taken) if is_own(taken, *lease) => {
                taken.renewed = now;
                true
            }
            _ => false,
        });
        held
    }

    /// Gives up those of `keys` that `member` has, expired or not (ORD-3).
    pub(crate) fn give_up(&self, keys: &[OffsetKey], member: &str) {
        let mut table = self.table.lock();
        for key in keys {
            if table.taken.get(key).is_some_and(|taken| taken.member == member) {
                table.taken.remove(key);
            }
        }
    }

    /// Whether its holder may work: it was renewed within half of the expiry, so that the holder
    /// stops well before anybody else may begin (ORD-5).
    pub(crate) fn is_valid(&self, lease: Lease, now: Moment) -> bool {
        let table = self.table.lock();
        let taken = table.taken.get(&lease.key);
        taken.is_some_and(|taken| {
            taken.generation == lease.generation && !has_expired(taken, now, self.expiry / 2)
        })
    }

    /// Whether others may take the lease of a queue from its holder.
    pub(crate) fn has_expired(&self, key: OffsetKey, now: Moment) -> bool {
        let table = self.table.lock();
        table.taken.get(&key).is_some_and(|taken| has_expired(taken, now, self.expiry))
    }

    /// Runs `commit` unless somebody else has taken the lease; nobody can meanwhile.
    pub(crate) fn fenced<R>(&self, lease: Lease, commit: impl FnOnce() -> R) -> Option<R> {
        let table = self.table.lock();
        let taken = table.taken.get(&lease.key);
        #[cfg(not(broken_lease_unfenced))]
        let own = taken.is_some_and(|taken| taken.generation == lease.generation);
        #[cfg(broken_lease_unfenced)]
        let own = taken.is_some();
        own.then(commit)
    }
}

fn is_own(taken: &Taken, lease: Lease) -> bool {
    cfg!(broken_lease_renewed_foreign) || taken.generation == lease.generation
}

/// Strictly later than `limit` after it was renewed (ORD-1).
fn has_expired(taken: &Taken, now: Moment, limit: Duration) -> bool {
    now.since(taken.renewed) > limit
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::clock::Clock;

    const EXPIRY: Duration = Duration::from_secs(60);
    const MS: Duration = Duration::from_millis(1);

    fn key(queue: u16) -> OffsetKey {
        OffsetKey { group: 1, incarnation: 2, queue }
    }

    fn leases() -> (Leases, Moment) {
        (Leases::new(EXPIRY), Clock::system().moment())
    }

    // (ORD-1, ORD-2)
    #[test]
    fn ord_2_a_lease_is_taken_if_it_is_free_own_or_expired_and_not_otherwise() {
        let (leases, now) = leases();
        let a = leases.take(key(0), "a", now).expect("free");
        assert_eq!(leases.take(key(0), "a", now.plus(MS)), Some(a), "its own: refreshed");
        let end = now.plus(MS).plus(EXPIRY);
        assert!(!leases.has_expired(key(0), end));
        assert_eq!(leases.take(key(0), "b", end), None, "the very end of the expiry");
        assert!(leases.has_expired(key(0), end.plus(MS)));
        let b = leases.take(key(0), "b", end.plus(MS)).expect("expired");
        assert_ne!(a, b);
        assert_eq!(leases.take(key(0), "a", end.plus(MS)), None);
        assert!(leases.take(key(1), "a", now).is_some(), "another queue");
    }

    #[test]
    fn ord_3_batches_tell_what_is_held_and_give_up_only_what_is_their_own() {
        let (leases, now) = leases();
        let mine = [0, 1].map(|queue| leases.take(key(queue), "a", now).unwrap());
        let foreign = leases.take(key(2), "b", now).unwrap();
        let late = now.plus(10 * EXPIRY);
        assert_eq!(leases.renew(&mine, late), mine, "expired, but nobody has taken them");
        leases.give_up(&[key(0), key(2), key(3)], "a");
        assert_eq!(leases.renew(&[mine[0], mine[1], foreign], late), [mine[1], foreign]);
        assert_eq!(leases.renew(&mine[..1], late), [], "what was given up does not come back");
        assert!(leases.take(key(0), "b", late).is_some());
    }

    #[test]
    fn ord_5_a_holder_stops_at_half_of_the_expiry() {
        let (leases, now) = leases();
        let lease = leases.take(key(0), "a", now).unwrap();
        assert!(leases.is_valid(lease, now.plus(EXPIRY / 2)));
        assert!(!leases.is_valid(lease, now.plus(EXPIRY / 2).plus(MS)));
        leases.renew(&[lease], now.plus(EXPIRY));
        assert!(leases.is_valid(lease, now.plus(EXPIRY)));
    }

    #[test]
    fn ord_1_who_was_overtaken_commits_nothing_and_does_not_come_back() {
        let (leases, now) = leases();
        let a = leases.take(key(0), "a", now).unwrap();
        let late = now.plus(2 * EXPIRY);
        assert_eq!(leases.fenced(a, || 1), Some(1), "expired, but nobody has taken it");
        let b = leases.take(key(0), "b", late).unwrap();
        assert_eq!((leases.fenced(a, || 2), leases.fenced(b, || 3)), (None, Some(3)));
        assert!(!leases.is_valid(a, late) && leases.is_valid(b, late));
        leases.give_up(&[key(0)], "b");
        let again = leases.take(key(0), "a", late).unwrap();
        assert_ne!(again, a, "another generation");
        assert_eq!(leases.fenced(a, || 4), None);
    }
}
