//! Damage that no crash explains: a salvage cuts it out, keeps a copy, and keeps every sound message
//! on both sides.

use super::faulty::Faulty;
use super::*;

fn salvage(dir: &Path) -> Store {
    try_salvage(Arc::new(Directory::new(dir).unwrap())).unwrap()
}

fn try_salvage(storage: Arc<dyn Storage>) -> Result<Store> {
    let config = StoreConfig { recovery: Recovery::Salvage, ..config(Flush::EveryMessage) };
    Store::open(storage, config, Clock::system())
}

/// The bodies of a queue by offset, as far as they are there.
type Found = BTreeMap<(u16, u64), Vec<u8>>;

fn found(store: &Store) -> Found {
    let topic = store.topics.get("t").unwrap();
    let mut found = Found::new();
    for queue in &topic.queues {
        let mut offset = queue.min();
        while offset < queue.max() {
            let fetch = store.fetch(queue, offset, 32, 1 << 20, &All).unwrap();
            let here =
                |message: Delivery<'_>| ((queue.queue, message.offset()), message.body().to_vec());
            found.extend(fetch.messages.iter().map(here));
            assert!(fetch.next > offset);
            offset = fetch.next;
        }
    }
    found
}

fn bounds(store: &Store) -> Vec<(u64, u64)> {
    let topic = store.topics.get("t").unwrap();
    topic.queues.iter().map(|queue| (queue.min(), queue.max())).collect()
}

/// Several log files with messages of two queues in turn, closed.
struct Sample {
    dir: tempfile::TempDir,
    sent: Vec<Appended>,
    found: Found,
}

impl Sample {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        let topic = topic(&store, 2);
        let send = |nth| send_body(&store, &topic, nth as usize % 2, &sized(nth, 490)).unwrap();
        let sent: Vec<_> = (0..400).map(send).collect();
        let found = found(&store);
        assert_eq!((found.len(), store.log.files().len() > 3), (400, true));
        store.close().unwrap();
        Self { dir, sent, found }
    }

    /// What is left without some of the messages.
    fn without(&self, lost: impl Fn(usize) -> bool) -> Found {
        let mut left = self.found.clone();
        for nth in (0..self.sent.len()).filter(|nth| lost(*nth)) {
            left.remove(&(nth as u16 % 2, self.sent[nth].offset));
        }
        left
    }
}

/// Opens a damaged directory and expects `left` of its messages; then opens it again in every way.
fn salvaged(dir: &Path, left: &Found) -> RecoveryReport {
    let store = salvage(dir);
    let report = store.report().clone();
    assert_eq!(report.damage, Damage::Corrupt, "{report}");
    assert!(found(&store) == *left, "{report}");
    assert_eq!(bounds(&store), [(0, 200), (0, 200)], "{report}");
    let missing: u64 = report.lost.iter().map(|lost| lost.to - lost.from).sum();
    assert_eq!(missing, 400 - left.len() as u64, "{report}");
    for lost in &report.lost {
        assert!((lost.from..lost.to).all(|offset| !left.contains_key(&(lost.queue, offset))));
    }
    kill(store);
    let store = open(dir);
    assert_eq!((store.report().damage, store.report().index_rebuilt), (Damage::None, None));
    assert!(found(&store) == *left);
    store.close().unwrap();
    let store = open(dir);
    assert!(store.report().clean && store.report().lost.is_empty());
    let topic = store.topics.get("t").unwrap();
    let next = send(&store, &topic, 0, 1);
    assert_eq!(next.offset, 200);
    kill(store);
    // The log alone says where messages are missing.
    std::fs::remove_dir_all(dir.join("index")).unwrap();
    let store = open(dir);
    let mut all = left.clone();
    all.insert((0, 200), body(1));
    assert!(found(&store) == all);
    assert_eq!((store.report().lost.clone(), bounds(&store)[1]), (report.lost.clone(), (0, 200)));
    kill(store);
    report
}

#[test]
fn b_003_a_salvage_keeps_what_stands_on_both_sides() {
    let sample = Sample::new();
    for nth in [0, 1, 3, 200, 397, 398, 399] {
        for k in [0, 4, 8, 16, 24, 40, 63, 70, 500] {
            let copy = copy_of(sample.dir.path());
            let (file, at) = place_of(copy.path(), sample.sent[nth].position + k);
            change(&file, at, |rest| rest[0] ^= 0x11);
            let damaged = std::fs::read(&file).unwrap();
            let report = salvaged(copy.path(), &sample.without(|n| n == nth));
            let (position, end) = (sample.sent[nth].position, sample.sent[nth].end);
            assert_eq!(report.salvaged.len(), 1);
            assert_eq!(report.salvaged[0].start, position);
            // Nothing that is damaged goes without a copy.
            let kept = std::fs::read(&report.kept[0]).unwrap();
            let from = (position % SEGMENT) as usize;
            let whole = &damaged[from..from + (end - position) as usize];
            let (copied, rest) = whole.split_at(kept.len().min(whole.len()));
            assert!(kept == copied && rest.iter().all(|byte| *byte == 0), "message {nth}");
        }
    }
}

#[test]
fn several_damages_in_one_file_and_across_files_are_cut_out() {
    let sample = Sample::new();
    let (second, first) = (sample.sent.len() / 2, 20);
    let damage = |nth: usize| [first, first + 1, first + 5, second].contains(&nth);
    for nth in (0..400).filter(|nth| damage(*nth)) {
        let (file, at) = place_of(sample.dir.path(), sample.sent[nth].position);
        change(&file, at, |rest| rest[..300].fill(0x5a));
    }
    let report = salvaged(sample.dir.path(), &sample.without(damage));
    assert_eq!((report.salvaged.len(), report.kept.len()), (3, 3));
    // The end of one file, and the beginning of the next one.
    let sample = Sample::new();
    let damage = |nth: usize| (110..=130).contains(&nth);
    for nth in 110..=130 {
        let (file, at) = place_of(sample.dir.path(), sample.sent[nth].position);
        change(&file, at, |rest| rest[..8].fill(0));
    }
    assert!(sample.sent[110].position < SEGMENT && sample.sent[130].position > SEGMENT);
    salvaged(sample.dir.path(), &sample.without(damage));
}

#[test]
fn a_batch_with_a_missing_part_is_dropped_as_a_whole() {
    for part in 0..5 {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        let topic = topic(&store, 1);
        for nth in 0..10 {
            send(&store, &topic, 0, nth);
        }
        let batch: Vec<_> = (0..5).map(|nth| sized(nth, 100)).collect();
        let placed = send_batch(&store, &topic, 0, &batch).unwrap();
        for nth in 15..25 {
            send(&store, &topic, 0, nth);
        }
        store.close().unwrap();
        let length = (placed.end - placed.position) / 5;
        let (file, at) = place_of(dir.path(), placed.position + part * length + 70);
        change(&file, at, |rest| rest[0] ^= 1);
        let store = salvage(dir.path());
        let left = found(&store);
        assert!(left.keys().map(|(_, offset)| *offset).eq((0..10).chain(15..25)), "part {part}");
        let lost = LostMessages { topic: "t".into(), queue: 0, from: 10, to: 15 };
        assert_eq!(store.report().lost, [lost]);
        let cut_out = placed.position..placed.end;
        assert_eq!(store.report().salvaged, vec![cut_out]);
    }
}

#[test]
fn b_043_missing_log_files_are_stood_in_for() {
    let sample = Sample::new();
    let names: Vec<_> = log_in(sample.dir.path()).into_keys().collect();
    let in_file = |nth: usize, file: usize| sample.sent[nth].position / SEGMENT == file as u64;
    let files = sample.sent[399].position / SEGMENT + 1;
    for (missing, name) in names.iter().enumerate().take(files as usize) {
        let copy = copy_of(sample.dir.path());
        std::fs::remove_file(copy.path().join(name)).unwrap();
        assert!(try_open(copy.path()).is_err());
        let report = salvaged(copy.path(), &sample.without(|nth| in_file(nth, missing)));
        assert_eq!(report.salvaged.len(), 1, "{missing}");
    }
    // Two in a row, and all.
    for missing in [1..3, 0..names.len()] {
        let copy = copy_of(sample.dir.path());
        for name in &names[missing.clone()] {
            std::fs::remove_file(copy.path().join(name)).unwrap();
        }
        let lost = |nth| missing.clone().any(|file| in_file(nth, file));
        salvaged(copy.path(), &sample.without(lost));
    }
}

#[test]
fn log_files_of_another_length_or_without_a_head_are_made_whole() {
    let sample = Sample::new();
    let names: Vec<_> = log_in(sample.dir.path()).into_keys().collect();
    let whole = std::fs::read(sample.dir.path().join(&names[1])).unwrap();
    let in_second = |nth: usize| sample.sent[nth].position / SEGMENT == 1;
    let behind = |nth: usize, len: u64| in_second(nth) && sample.sent[nth].end > SEGMENT + len;
    for len in [0, 1, 64, 700, 30_000, SEGMENT - 1] {
        let copy = copy_of(sample.dir.path());
        std::fs::write(copy.path().join(&names[1]), &whole[..len as usize]).unwrap();
        salvaged(copy.path(), &sample.without(|nth| behind(nth, len)));
    }
    for damaged in [4usize, 20, 30, 60] {
        let copy = copy_of(sample.dir.path());
        change(&copy.path().join(&names[1]), damaged, |rest| rest[0] ^= 1);
        match try_salvage(Arc::new(Directory::new(copy.path()).unwrap())) {
            Ok(store) => {
                assert!(found(&store) == sample.found);
                assert_eq!(store.report().kept.len(), 1);
                kill(store);
                assert!(found(&open(copy.path())) == sample.found);
            }
            // Another version is not for us to put right.
            Err(Error::Version { .. }) => assert_eq!(damaged, 4),
            Err(other) => panic!("{other}"),
        }
    }
    let copy = copy_of(sample.dir.path());
    std::fs::write(copy.path().join(&names[1]), [&whole[..], b"more"].concat()).unwrap();
    let store = salvage(copy.path());
    assert!(found(&store) == sample.found);
    assert_eq!(std::fs::read(&store.report().kept[0]).unwrap(), b"more");
    // A file of another store in the place of one of ours is set aside.
    let other = Sample::new();
    let copy = copy_of(sample.dir.path());
    let foreign = other.dir.path().join(&names[1]);
    std::fs::copy(foreign, copy.path().join(&names[1])).unwrap();
    let report = salvaged(copy.path(), &sample.without(in_second));
    assert!(std::fs::read(&report.kept[0]).unwrap().len() > 60_000);
}

#[test]
fn b_010_a_salvage_that_is_killed_begins_anew() {
    let sample = Sample::new();
    let lost = |nth: usize| nth == 7 || nth == 250;
    for nth in [7, 250] {
        let (file, at) = place_of(sample.dir.path(), sample.sent[nth].position + 80);
        change(&file, at, |rest| rest[0] ^= 1);
    }
    // And a whole file.
    let names: Vec<_> = log_in(sample.dir.path()).into_keys().collect();
    std::fs::remove_file(sample.dir.path().join(&names[1])).unwrap();
    let in_second = |nth: usize| sample.sent[nth].position / SEGMENT == 1;
    let left = sample.without(|nth| lost(nth) || in_second(nth));
    let mut steps = 0;
    loop {
        let copy = copy_of(sample.dir.path());
        let faulty = Faulty::new(copy.path());
        faulty.fail(None, steps, u64::MAX, std::io::ErrorKind::Other);
        let opened = try_salvage(faulty.clone());
        let done = !faulty.has_failed();
        drop(opened);
        faulty.unlock();
        // A strict open refuses what is left to do, or finds nothing to be wrong.
        if let Ok(store) = try_open(copy_of(copy.path()).path()) {
            assert!(found(&store) == left, "killed after {steps} steps");
        }
        let store = salvage(copy.path());
        assert!(found(&store) == left, "killed after {steps} steps");
        assert_eq!(bounds(&store), [(0, 200), (0, 200)]);
        kill(store);
        assert!(found(&open(copy.path())) == left);
        if done {
            break;
        }
        steps += 1;
    }
    assert!(steps > 80, "only {steps} steps");
}

#[test]
fn a_sound_directory_and_a_torn_tail_are_what_they_are_to_a_strict_open() {
    let sample = Sample::new();
    let copy = copy_of(sample.dir.path());
    let store = salvage(copy.path());
    let report = store.report();
    assert!(report.damage == Damage::None && report.kept.is_empty() && report.lost.is_empty());
    assert!(report.records_scanned >= 400);
    assert!(found(&store) == sample.found);
    let topic = store.topics.get("t").unwrap();
    let last = send(&store, &topic, 0, 5);
    kill(store);
    std::fs::write(copy.path().join("meta/flushed"), b"").unwrap();
    std::fs::remove_file(copy.path().join("meta/flushed")).unwrap();
    let (file, at) = place_of(copy.path(), last.end - 8);
    change(&file, at, |rest| rest[..8].fill(9));
    let store = salvage(copy.path());
    let report = store.report();
    assert_eq!((report.damage, report.cut_at), (Damage::Torn, Some(last.position)));
    assert!(report.salvaged.is_empty() && report.lost.is_empty());
    assert!(found(&store) == sample.found);
}

#[test]
fn a_search_by_time_passes_over_what_is_lost() {
    let sample = Sample::new();
    let (file, at) = place_of(sample.dir.path(), sample.sent[100].position);
    let end = (sample.sent[160].end - sample.sent[100].position) as usize;
    change(&file, at, |rest| {
        let end = end.min(rest.len());
        rest[..end].fill(0x33);
    });
    let store = salvage(sample.dir.path());
    let queue = store.topics.get("t").unwrap().queues[0].clone();
    let times: Vec<_> = (0..200).map(|offset| store.store_ms(&queue, offset).unwrap()).collect();
    assert!(times.is_sorted());
    for nth in [0, 98, 300, 398] {
        let at = store.offset_at(&queue, sample.sent[nth].store_ms, Edge::AtOrAfter).unwrap();
        assert!(at <= sample.sent[nth].offset);
        assert!(at == 0 || times[at as usize - 1] < sample.sent[nth].store_ms);
    }
}

#[test]
fn marks_that_cannot_be_read_are_set_aside() {
    let sample = Sample::new();
    let next = sample.sent[399].position;
    for name in ["meta/flushed", "meta/next_base"] {
        for damage in 0..3 {
            let copy = copy_of(sample.dir.path());
            let path = copy.path().join(name);
            match damage {
                0 => change(&path, 20, |rest| rest[0] ^= 1),
                1 => std::fs::write(&path, b"").unwrap(),
                _ => std::fs::write(&path, [7; 4096]).unwrap(),
            }
            assert!(try_open(copy.path()).is_err());
            let bytes = std::fs::read(&path).unwrap();
            let store = salvage(copy.path());
            let report = store.report().clone();
            assert_eq!((report.damage, report.kept.len()), (Damage::Corrupt, 1));
            assert_eq!(std::fs::read(&report.kept[0]).unwrap(), bytes);
            assert!(found(&store) == sample.found);
            let topic = store.topics.get("t").unwrap();
            assert!(send(&store, &topic, 0, 1).position > next);
            kill(store);
            assert_eq!(open(copy.path()).report().damage, Damage::None);
        }
    }
}
