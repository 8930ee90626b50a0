use super::*;
use crate::storage::Directory;

fn key(queue: u16) -> OffsetKey {
    OffsetKey { group: 1, incarnation: 2, queue }
}

fn storage(dir: &std::path::Path) -> Arc<dyn Storage> {
    let storage = Directory::new(dir).unwrap();
    storage.make_folder("meta").unwrap();
    Arc::new(storage)
}

#[test]
fn commits_survive_reopening_without_a_close() {
    let dir = tempfile::tempdir().unwrap();
    let storage = storage(dir.path());
    let (offsets, _) = Offsets::open(&storage, 5, 0).unwrap();
    for queue in 0..2500 {
        assert_eq!(offsets.get(key(queue)), None);
        offsets.set(key(queue), 10).unwrap();
        offsets.set(key(queue), 10 + u64::from(queue)).unwrap();
    }
    drop(offsets);
    let (offsets, unsound) = Offsets::open(&storage, 5, 0).unwrap();
    assert_eq!(unsound, 0);
    for queue in 0..2500 {
        assert_eq!(offsets.get(key(queue)), Some(10 + u64::from(queue)));
    }
}

#[test]
fn conc_11_raise_never_lowers() {
    let dir = tempfile::tempdir().unwrap();
    let (offsets, _) = Offsets::open(&storage(dir.path()), 5, 0).unwrap();
    offsets.raise(key(0), 0).unwrap();
    assert_eq!(offsets.get(key(0)), Some(0));
    offsets.raise(key(0), 7).unwrap();
    offsets.raise(key(0), 3).unwrap();
    assert_eq!(offsets.get(key(0)), Some(7));
    offsets.set(key(0), 3).unwrap();
    assert_eq!(offsets.get(key(0)), Some(3));
}

#[test]
fn sub_6_the_cells_of_a_deleted_group_are_used_again() {
    let dir = tempfile::tempdir().unwrap();
    let storage = storage(dir.path());
    let (offsets, _) = Offsets::open(&storage, 5, 0).unwrap();
    let of = |group: u32, queue: u16| OffsetKey { group, ..key(queue) };
    for group in 0..40 {
        for queue in 0..50 {
            offsets.set(of(group, queue), 7).unwrap();
        }
        if group > 0 {
            offsets.forget_group(group);
        }
    }
    assert_eq!(offsets.files(), 1, "50 cells, and 50 that were used again");
    let check = |offsets: &Offsets| {
        assert_eq!([0, 1, 39].map(|group| offsets.get(of(group, 3))), [Some(7), None, None]);
    };
    check(&offsets);
    drop(offsets);
    let (offsets, unsound) = Offsets::open(&storage, 5, 0).unwrap();
    check(&offsets);
    assert_eq!(unsound, 0);
    offsets.close();
    offsets.forget_group(0);
    check(&offsets);
}

#[test]
fn sub_6_cells_between_others_are_used_again_by_a_later_life() {
    let dir = tempfile::tempdir().unwrap();
    let storage = storage(dir.path());
    let fill = |offsets: &Offsets, groups: std::ops::Range<u32>| {
        for group in groups {
            for queue in 0..100 {
                offsets.set(OffsetKey { group, ..key(queue) }, 7).unwrap();
            }
        }
    };
    let (offsets, _) = Offsets::open(&storage, 5, 0).unwrap();
    fill(&offsets, 0..3);
    offsets.forget_group(1);
    drop(offsets);
    let (offsets, _) = Offsets::open(&storage, 5, 0).unwrap();
    // 1023 cells are in a file.
    fill(&offsets, 3..11);
    assert_eq!(offsets.files(), 1);
    assert_eq!(offsets.all().len(), 1000);
    fill(&offsets, 11..12);
    assert_eq!(offsets.files(), 2);
}

#[test]
fn b_150_a_late_beginning_never_replaces_progress() {
    let dir = tempfile::tempdir().unwrap();
    let (offsets, _) = Offsets::open(&storage(dir.path()), 5, 0).unwrap();
    for queue in 0..500 {
        std::thread::scope(|scope| {
            scope.spawn(|| offsets.begin(key(queue), 0).unwrap());
            scope.spawn(|| {
                offsets.raise(key(queue), 7).unwrap();
                assert_eq!(offsets.get(key(queue)), Some(7));
            });
        });
        assert_eq!(offsets.get(key(queue)), Some(7));
    }
}

#[test]
fn off_13_a_frozen_offset_keeps_its_value_until_it_is_thawed() {
    let dir = tempfile::tempdir().unwrap();
    let (offsets, _) = Offsets::open(&storage(dir.path()), 5, 0).unwrap();
    offsets.raise(key(0), 10).unwrap();
    offsets.freeze(key(0), 4).unwrap();
    assert!(!offsets.raise(key(0), 11).unwrap());
    assert!(!offsets.set(key(0), 12).unwrap());
    assert!(!offsets.begin(key(0), 13).unwrap());
    assert_eq!(offsets.get(key(0)), Some(4));
    offsets.freeze(key(0), 2).unwrap();
    assert_eq!(offsets.get(key(0)), Some(2), "moved again");
    offsets.thaw(key(0));
    offsets.raise(key(0), 5).unwrap();
    assert_eq!(offsets.get(key(0)), Some(5));
    offsets.close();
    assert!(matches!(offsets.freeze(key(1), 4), Err(Error::Closed)));
    assert!(offsets.state.lock().frozen.is_empty());
}

#[test]
fn b_080_a_damaged_newest_copy_leaves_the_one_before() {
    let dir = tempfile::tempdir().unwrap();
    let storage = storage(dir.path());
    let (offsets, _) = Offsets::open(&storage, 5, 0).unwrap();
    for offset in 1..=3 {
        offsets.set(key(0), offset).unwrap();
    }
    drop(offsets);
    let path = dir.path().join("meta/offsets-0000");
    let mut bytes = std::fs::read(&path).unwrap();
    // Sequence 2 went to the first copy.
    bytes[HEAD] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    assert_eq!(Offsets::open(&storage, 5, 0).unwrap().0.get(key(0)), Some(2));
    bytes[HEAD + COPY] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let (offsets, unsound) = Offsets::open(&storage, 5, 0).unwrap();
    assert_eq!((offsets.get(key(0)), unsound), (None, 1));
}

#[test]
fn b_079_a_commit_that_is_killed_at_any_byte_leaves_the_one_before() {
    let dir = tempfile::tempdir().unwrap();
    let storage = storage(dir.path());
    let (offsets, _) = Offsets::open(&storage, 5, 0).unwrap();
    let path = dir.path().join("meta/offsets-0000");
    let mut before = None;
    for offset in [10, 20, 30, 1 << 40] {
        let old = std::fs::read(&path).unwrap_or_else(|_| vec![0; FILE]);
        offsets.set(key(3), offset).unwrap();
        let new = std::fs::read(&path).unwrap();
        let first = (HEAD..FILE).find(|at| old[*at] != new[*at]).unwrap() / COPY * COPY;
        let cell = first..first + COPY;
        assert!(old[cell.end..] == new[cell.end..], "one copy is written");
        // Bytes reach memory from the front; a disk may take any part of them.
        let parts = (0..COPY).flat_map(|at| [cell.start..first + at, first + at..cell.end]);
        for written in parts {
            let mut bytes = new.clone();
            bytes[cell.clone()].copy_from_slice(&old[cell.clone()]);
            bytes[written.clone()].copy_from_slice(&new[written.clone()]);
            let whole = bytes[cell.clone()] == new[cell.clone()];
            let copy = tempfile::tempdir().unwrap();
            let storage = self::storage(copy.path());
            std::fs::write(copy.path().join("meta/offsets-0000"), &bytes).unwrap();
            let (again, unsound) = Offsets::open(&storage, 5, 0).unwrap();
            let expected = if whole { Some(offset) } else { before };
            assert_eq!(again.get(key(3)), expected, "{offset}, {written:?}");
            assert!(unsound == 0 || before.is_none());
        }
        before = Some(offset);
    }
}

#[test]
fn a_missing_file_is_refused_wherever_it_stood() {
    let dir = tempfile::tempdir().unwrap();
    let storage = storage(dir.path());
    let (offsets, _) = Offsets::open(&storage, 5, 0).unwrap();
    for queue in 0..2 * CELLS as u16 + 1 {
        offsets.set(key(queue), 10).unwrap();
    }
    assert_eq!(offsets.files(), 3);
    drop(offsets);
    for (missing, named) in [(0, 1), (1, 2), (2, 2)] {
        let path = storage.path(&file_name(missing));
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        match Offsets::open(&storage, 5, 3) {
            Err(Error::Corrupt { file, .. }) => {
                assert_eq!(file, storage.path(&file_name(named)))
            }
            other => panic!("{missing}: {other:?}"),
        }
        std::fs::write(&path, bytes).unwrap();
    }
    std::fs::write(dir.path().join("meta/offsets-0003.new"), b"").unwrap();
    assert_eq!(Offsets::open(&storage, 5, 3).unwrap().0.get(key(CELLS as u16)), Some(10));
}

#[test]
fn the_newest_copy_counts_after_any_number_of_commits() {
    let dir = tempfile::tempdir().unwrap();
    let storage = storage(dir.path());
    let near = u64::from(u32::MAX);
    for (queue, sequence) in [near - 1, near, 1 << 40].into_iter().enumerate() {
        let key = key(queue as u16);
        let (offsets, _) = Offsets::open(&storage, 5, 0).unwrap();
        offsets.set(key, 1).unwrap();
        offsets.state.lock().cells.get_mut(&key).unwrap().sequence = sequence;
        for offset in 2..5 {
            offsets.set(key, offset).unwrap();
            assert_eq!(Offsets::open(&storage, 5, 0).unwrap().0.get(key), Some(offset));
        }
    }
}

#[test]
fn only_files_with_commits_are_synced_and_a_closed_store_takes_none() {
    let dir = tempfile::tempdir().unwrap();
    let (offsets, _) = Offsets::open(&storage(dir.path()), 5, 0).unwrap();
    for queue in 0..CELLS as u16 + 1 {
        offsets.set(key(queue), 10).unwrap();
    }
    offsets.sync().unwrap();
    assert!(offsets.set(key(CELLS as u16), 11).unwrap());
    let dirty = |offsets: &Offsets| -> Vec<bool> {
        offsets.state.lock().files.iter().map(|cells| cells.dirty).collect()
    };
    assert_eq!(dirty(&offsets), [false, true]);
    offsets.sync().unwrap();
    assert_eq!(dirty(&offsets), [false, false]);
    offsets.close();
    assert!(matches!(offsets.set(key(0), 11), Err(Error::Closed)));
    assert!(matches!(offsets.begin(key(3000), 0), Err(Error::Closed)));
    assert!(matches!(offsets.grow(), Err(Error::Closed)));
    assert!(!offsets.raise(key(0), 9).unwrap());
    assert_eq!(offsets.get(key(0)), Some(10));
}
