//! What the simulation promises of itself.

use super::super::Carver;
use super::*;
use std::collections::BTreeSet;

const PAGE: usize = 4096;

fn changes(storage: &SimulatedStorage) -> Vec<Change> {
    storage.crash().changes().cloned().collect()
}

fn page(file: &str, page: u64) -> Change {
    Change::Page { file: file.to_owned(), page }
}

/// A storage with a durable file of two pages of ones.
fn with_file() -> (SimulatedStorage, Arc<dyn StorageFile>) {
    let storage = SimulatedStorage::new(1);
    let file = storage.create("a", 2 * PAGE as u64).unwrap();
    file.write_at(0, &[1; 2 * PAGE]).unwrap();
    file.sync().unwrap();
    storage.sync_folder("").unwrap();
    (storage, file)
}

/// The distinct contents of a file after every choice of whole changes.
fn outcomes(storage: &SimulatedStorage, file: &str) -> BTreeSet<Option<Vec<u8>>> {
    let crash = storage.crash();
    let count = crash.changes().len();
    let choose = |chosen: u32| {
        let mut nth = 0;
        crash.with(|_| {
            nth += 1;
            if chosen >> (nth - 1) & 1 == 1 { Fate::Kept } else { Fate::Lost }
        })
    };
    (0..1 << count).map(|chosen| choose(chosen).read(file)).collect()
}

#[test]
fn what_is_not_synced_may_be_lost_page_by_page_however_it_was_written() {
    let (storage, file) = with_file();
    assert_eq!(changes(&storage), []);
    let mut writer = Carver::new(file.map().unwrap()).carve(2 * PAGE, 0).unwrap();
    writer.write(&[2; 10]);
    file.write_at(PAGE as u64 + 5, &[3]).unwrap();
    assert_eq!(changes(&storage), [page("a", 0), page("a", 1)]);
    assert_eq!(outcomes(&storage, "a").len(), 4);
    // A range sync makes the pages that it touches durable, and no other one.
    writer.segment().sync(0..1).unwrap();
    assert_eq!(changes(&storage), [page("a", 1)]);
    let lost = storage.crash().with(|_| Fate::Lost).read("a").unwrap();
    assert_eq!((&lost[..11], lost[PAGE + 5]), (&[2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1][..], 1));
    file.sync().unwrap();
    assert_eq!(changes(&storage), []);
}

#[test]
fn a_page_can_be_torn_between_words_and_sectors() {
    let (storage, file) = with_file();
    file.write_at(0, &[2; PAGE]).unwrap();
    let crash = storage.crash();
    let front = crash.with(|_| Fate::Front(24)).read("a").unwrap();
    assert!(front[..24] == [2; 24] && front[24..] == [1; 2 * PAGE - 24]);
    let sectors = crash.with(|_| Fate::Sectors(0b1000_0010)).read("a").unwrap();
    let new: Vec<_> = (0..2 * PAGE).filter(|at| sectors[*at] == 2).collect();
    assert_eq!(new, (512..1024).chain(3584..4096).collect::<Vec<_>>());
}

#[test]
fn a_length_may_be_lost_without_its_pages_and_the_other_way_round() {
    let (storage, file) = with_file();
    file.write_at(2 * PAGE as u64, &[4; 3]).unwrap();
    let (old, zeroes) = (vec![1; 2 * PAGE], [vec![1; 2 * PAGE], vec![0; 3]].concat());
    let new = [vec![1; 2 * PAGE], vec![4; 3]].concat();
    let all = [old, zeroes, new].map(Some);
    assert_eq!(outcomes(&storage, "a"), all.into_iter().collect());
    file.truncate(10).unwrap();
    file.sync().unwrap();
    assert_eq!(storage.crash().with(|_| Fate::Lost).read("a").unwrap(), [1; 10]);
}

#[test]
fn names_may_be_lost_until_their_folder_is_synced_and_a_rename_is_atomic() {
    let (storage, _file) = with_file();
    let new = storage.create("new", 3).unwrap();
    new.write_at(0, b"new").unwrap();
    new.sync().unwrap();
    storage.rename("new", "a").unwrap();
    let count = |file: &str| outcomes(&storage, file).len();
    // The old one or the new one, never none.
    assert!(!outcomes(&storage, "a").contains(&None));
    assert_eq!((count("a"), count("new")), (2, 2));
    storage.unlink("a").unwrap();
    assert!(outcomes(&storage, "a").contains(&None));
    assert_eq!(storage.kill().files(), [""; 0]);
    storage.sync_folder("").unwrap();
    assert_eq!(changes(&storage), []);
    assert_eq!(storage.crash().with(|_| Fate::Lost).files(), [""; 0]);
    // Whoever has it open keeps it.
    assert_eq!(new.len().unwrap(), 3);
    assert!(storage.open("a").is_err());
}

#[test]
fn a_file_in_a_folder_is_lost_with_its_name_even_if_it_was_synced() {
    let storage = SimulatedStorage::new(1);
    assert!(storage.create("folder/a", 1).is_err() && storage.list("folder").is_err());
    storage.make_folder("folder").unwrap();
    let file = storage.create("folder/a", 1).unwrap();
    file.sync().unwrap();
    assert_eq!(changes(&storage), [Change::Created { file: "folder/a".to_owned() }]);
    assert_eq!(storage.crash().with(|_| Fate::Lost).list("folder").unwrap(), [""; 0]);
    storage.sync_folder("folder").unwrap();
    assert_eq!(storage.crash().with(|_| Fate::Lost).list("folder").unwrap(), ["a"]);
}

#[test]
fn a_failed_sync_is_not_made_good_by_one_that_succeeds() {
    let (storage, file) = with_file();
    file.write_at(0, &[2]).unwrap();
    storage.fail(FaultPlan::new(StorageFault::Io).only(StorageCall::Sync).once());
    assert!(file.sync().is_err());
    file.sync().unwrap();
    assert_eq!(changes(&storage), [page("a", 0)], "nobody has written it");
    // Written again it is dirty again, even with what it holds.
    file.write_at(0, &[2]).unwrap();
    file.sync().unwrap();
    assert_eq!(changes(&storage), []);
}

#[test]
fn a_kill_loses_nothing_and_a_crash_changes_the_boot() {
    let (storage, file) = with_file();
    file.write_at(0, &[2]).unwrap();
    assert!(storage.lock().unwrap() && !storage.clone().lock().unwrap());
    let killed = storage.kill();
    assert_eq!((killed.read("a"), killed.boot_id()), (storage.read("a"), storage.boot_id()));
    assert_eq!(changes(&killed), changes(&storage));
    assert!(killed.lock().unwrap());
    let crashed = storage.crash().with(|_| Fate::Kept);
    assert_eq!(crashed.read("a"), storage.read("a"));
    assert_ne!(crashed.boot_id(), storage.boot_id());
    // They have nothing in common any more.
    file.write_at(0, &[3]).unwrap();
    assert_eq!((killed.read("a").unwrap()[0], crashed.read("a").unwrap()[0]), (2, 2));
}

#[test]
fn calls_fail_as_planned() {
    let (storage, file) = with_file();
    storage.fail(FaultPlan::new(StorageFault::Io).only(StorageCall::Write).after(1).times(2));
    let wrote: Vec<_> = (0..5).map(|_| file.write_at(0, &[2]).is_ok()).collect();
    assert_eq!(wrote, [true, false, false, true, true]);
    assert_eq!(storage.faults(), 2);
    storage.fail(FaultPlan::new(StorageFault::NoSpace));
    // Reading needs no room.
    assert!(file.len().is_ok() && storage.list("").is_ok() && storage.open("a").is_ok());
    let full = storage.create("b", 1).unwrap_err();
    assert_eq!(full.kind(), io::ErrorKind::StorageFull);
    storage.fail(FaultPlan::new(StorageFault::ShortWrite).once());
    assert!(file.sync().is_ok() && file.write_at(10, &[7; 8]).is_err());
    assert_eq!(storage.read("a").unwrap()[10..18], [7, 7, 7, 7, 1, 1, 1, 1]);
    storage.fail(FaultPlan::new(StorageFault::Io));
    assert!(storage.list("").is_err());
    storage.heal();
    assert!(storage.list("").is_ok());
}

#[test]
fn when_power_is_cut_every_call_fails_and_the_crash_is_that_of_the_moment() {
    let (storage, file) = with_file();
    storage.cut_power_after(storage.calls() + 1);
    file.write_at(0, &[2]).unwrap();
    assert!(!storage.power_is_cut());
    assert!(file.sync().is_err() && storage.power_is_cut());
    assert!(storage.list("").is_err() && file.write_at(PAGE as u64, &[2]).is_err());
    let crash = storage.crash();
    assert_eq!(crash.changes().cloned().collect::<Vec<_>>(), [page("a", 0)]);
    let after = crash.with(|_| Fate::Lost);
    assert!(!after.power_is_cut() && after.calls() == 0);
    assert_eq!(after.read("a").unwrap()[0], 1);
}

#[test]
fn fates_by_seed_are_the_same_for_the_same_seed() {
    let (storage, file) = with_file();
    for at in 0..16 {
        file.write_at(at * 512, &[at as u8 + 2; 300]).unwrap();
    }
    let crash = storage.crash();
    let after = |seed| crash.at_random(seed).read("a");
    assert!((0..20).all(|seed| after(seed) == after(seed)));
    let different: BTreeSet<_> = (0..20).map(after).collect();
    assert!(different.len() > 5, "only {} states", different.len());
}
