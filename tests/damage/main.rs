//! Damaged and foreign files: a store is opened and right, or refused with the file and the
//! position. Never a panic, and never a message that was not sent.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "doors of the library")]

mod sample;

#[path = "../support/mod.rs"]
mod support;

use sample::{Damage, Outcome, SEGMENT, Sample};
use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::LazyLock;
use support::Random;

static SAMPLES: LazyLock<[Sample; 2]> = LazyLock::new(Sample::closed_and_killed);
static OTHERS: LazyLock<[Sample; 2]> = LazyLock::new(Sample::closed_and_killed);

/// How many bytes of a file are flipped, besides those of its head.
const FLIPS: usize = 40;
const HEAD: usize = 64;

#[test]
fn flipped_bytes_of_a_closed_store() {
    flip_bytes(&SAMPLES[0]);
}

#[test]
fn flipped_bytes_of_a_killed_store() {
    flip_bytes(&SAMPLES[1]);
}

fn flip_bytes(sample: &Sample) {
    let mut random = Random(7);
    let mut tally = Tally::default();
    for (file, content) in sample.files() {
        let used: Vec<usize> = (0..content.len()).filter(|at| content[*at] != 0).collect();
        let behind = used.partition_point(|at| *at < HEAD);
        let step = (used.len() - behind).div_ceil(FLIPS).max(1);
        let sampled = used[behind..].iter().skip(random.below(step as u64) as usize).step_by(step);
        for at in (0..HEAD.min(content.len())).step_by(3).chain(sampled.copied()) {
            let mask = 1 << random.below(8);
            let bytes = at as u64..at as u64 + 1;
            let what = format!("byte {at} ^ {mask:#x}");
            tally.damage(sample, &file, what, bytes, |path| {
                let mut content = content.clone();
                content[at] ^= mask;
                fs::write(path, content).unwrap();
            });
        }
    }
    tally.finish("flipped bytes");
}

#[test]
fn cut_files() {
    let mut tally = Tally::default();
    for sample in &*SAMPLES {
        for (file, content) in sample.files() {
            let used = content.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            let full = content.len();
            let lengths = [
                0,
                1,
                63,
                64,
                65,
                used / 2,
                used.saturating_sub(1),
                full - 4096.min(full),
                full - 1,
            ];
            for length in lengths.into_iter().filter(|length| *length < full) {
                let what = format!("cut at {length} of {full}");
                tally.damage(sample, &file, what, length as u64..u64::MAX, |path| {
                    fs::write(path, &content[..length]).unwrap();
                });
            }
            let what = "longer by a page".to_owned();
            tally.damage(sample, &file, what, full as u64..u64::MAX, |path| {
                fs::write(path, [&content[..], &[0; 4096]].concat()).unwrap();
            });
        }
    }
    tally.finish("cut files");
}

#[test]
fn missing_and_replaced_files() {
    let mut tally = Tally::default();
    let mut random = Random(8);
    for (sample, other) in SAMPLES.iter().zip(&*OTHERS) {
        let others = other.files();
        for (file, content) in sample.files() {
            let mut damage = |what: &str, change: &dyn Fn(&Path)| {
                tally.damage(sample, &file, what.to_owned(), 0..u64::MAX, change);
            };
            damage("gone", &|path| fs::remove_file(path).unwrap());
            damage("zeroes", &|path| fs::write(path, vec![0; content.len()]).unwrap());
            let noise: Vec<u8> = content.iter().map(|_| random.next() as u8).collect();
            damage("noise", &|path| fs::write(path, &noise).unwrap());
            damage("a folder", &|path| {
                fs::remove_file(path).unwrap();
                fs::create_dir(path).unwrap();
            });
            if let Some(foreign) = others.get(&file) {
                damage("of another store", &|path| fs::write(path, foreign).unwrap());
            }
            for (name, content) in sample.files().iter().filter(|(name, _)| **name != file) {
                let folder = |name: &str| name.split('/').next().map(str::to_owned);
                if folder(name) == folder(&file) {
                    damage(&format!("replaced by {name}"), &|path| {
                        fs::write(path, content).unwrap()
                    });
                }
            }
        }
    }
    tally.finish("missing and replaced files");
}

#[test]
fn missing_folders() {
    for folder in ["commitlog", "index", "meta"] {
        for sample in &*SAMPLES {
            let damage = Damage {
                file: folder.to_owned(),
                what: "no folder".to_owned(),
                bytes: 0..u64::MAX,
            };
            let outcome = sample.damaged(&damage, |path| fs::remove_dir_all(path).unwrap());
            let expected = if folder == "index" { Outcome::Whole } else { Outcome::Refused };
            assert_eq!(outcome, Ok(expected), "{damage:?}");
        }
    }
}

#[test]
fn stray_files() {
    let mut tally = Tally::default();
    for sample in &*SAMPLES {
        let files = sample.files();
        let log: Vec<_> = files.iter().filter(|(name, _)| name.starts_with("commitlog/")).collect();
        let end = log.len() as u64 * SEGMENT;
        let numbered =
            [end, end + SEGMENT, SEGMENT / 2].map(|base| format!("commitlog/{base:020}"));
        let named = ["stray", "commitlog/stray", "commitlog/12", "index/stray", "index/00000099"];
        let more =
            ["meta/stray", "meta/offsets-0077", "meta/checkpoint.new", "CLEAN.new", "index/new"];
        let names = named.iter().chain(&more).map(|name| (*name).to_owned()).chain(numbered);
        for name in names {
            let contents =
                [&b""[..], b"not of the store", log[0].1, files["meta/topics"].as_slice()];
            for content in contents {
                let damage = Damage {
                    file: name.clone(),
                    what: format!("stray, {} bytes", content.len()),
                    bytes: 0..0,
                };
                tally.add(
                    &damage,
                    sample.damaged(&damage, |path| fs::write(path, content).unwrap()),
                );
            }
        }
    }
    tally.finish("stray files");
}

/// The log in every condition, and what is derived from it.
#[test]
fn b_003_a_salvage_opens_whatever_has_become_of_the_log() {
    let mut random = Random(9);
    let (mut opened, mut lost, mut wrong) = (0, 0, Vec::new());
    for (sample, other) in SAMPLES.iter().zip(&*OTHERS) {
        let others = other.files();
        let derived = ["commitlog/", "index/", "keys/", "meta/checkpoint", "meta/flushed"];
        let is_derived = |name: &String| derived.iter().any(|start| name.starts_with(start));
        for (file, content) in sample.files().into_iter().filter(|(name, _)| is_derived(name)) {
            let full = content.len();
            let used = content.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            let mut variants: Vec<(String, Range<u64>, Option<Vec<u8>>)> = Vec::new();
            let step = used.saturating_sub(HEAD).div_ceil(FLIPS / 2).max(1);
            let behind =
                (HEAD..used).step_by(step).map(|at| at + random.below(step as u64) as usize);
            for at in (0..HEAD.min(full)).step_by(5).chain(behind).filter(|at| *at < full) {
                let mut flipped = content.clone();
                flipped[at] ^= 1 << (at % 8);
                variants.push((format!("byte {at}"), at as u64..at as u64 + 1, Some(flipped)));
            }
            for length in [0, 1, 64, used / 2, used.saturating_sub(1), full - 1] {
                let cut = content[..length.min(full)].to_vec();
                variants.push((format!("cut at {length}"), length as u64..u64::MAX, Some(cut)));
            }
            let noise = content.iter().map(|_| random.next() as u8).collect();
            let all = 0..u64::MAX;
            variants.push(("noise".to_owned(), all.clone(), Some(noise)));
            variants.push(("zeroes".to_owned(), all.clone(), Some(vec![0; full])));
            variants.push(("gone".to_owned(), all.clone(), None));
            let foreign = others.get(&file).map(|bytes| Some(bytes.clone()));
            variants.extend(foreign.map(|bytes| ("of another store".to_owned(), all, bytes)));
            for (what, bytes, content) in variants {
                let damage = Damage { file: file.clone(), what, bytes };
                let salvaged = sample.salvaged(&damage, |path| match &content {
                    Some(content) => fs::write(path, content).unwrap(),
                    None => fs::remove_file(path).unwrap(),
                });
                match salvaged {
                    Ok(count) => (opened, lost) = (opened + 1, lost + count),
                    Err(what) => wrong.push(what),
                }
            }
        }
    }
    println!("salvage: {opened} stores right, {lost} messages lost with what was damaged");
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// A reader delivers nothing that was not sent, and a check overlooks no byte of the log.
#[test]
fn a_check_notices_every_flipped_byte_of_the_log() {
    let mut random = Random(10);
    let (mut flipped, mut noticed, mut wrong) = (0, 0, Vec::new());
    for sample in &*SAMPLES {
        for (file, content) in sample.files() {
            let used: Vec<usize> = (0..content.len()).filter(|at| content[*at] != 0).collect();
            let step = used.len().div_ceil(3 * FLIPS).max(1);
            for at in used.iter().skip(random.below(step as u64) as usize).step_by(step) {
                let mask = 1 << random.below(8);
                let bytes = *at as u64..*at as u64 + 1;
                let what = format!("byte {at} ^ {mask:#x}");
                let damage = Damage { file: file.clone(), what, bytes };
                let checked = sample.checked(&damage, |path| {
                    let mut content = content.clone();
                    content[*at] ^= mask;
                    fs::write(path, content).unwrap();
                });
                flipped += 1;
                let base = file.strip_prefix("commitlog/").and_then(|base| base.parse().ok());
                let position = base.map(|base: u64| base + *at as u64);
                match checked {
                    // What stands behind the end, or at it as part of a torn append, is no damage.
                    Ok(false) if position.is_some_and(|at| at < sample.last_append()) => {
                        wrong.push(format!("{damage:?} was not noticed"));
                    }
                    Ok(saw) => noticed += u32::from(saw),
                    Err(what) => wrong.push(what),
                }
            }
        }
    }
    println!("check: {flipped} bytes flipped, {noticed} noticed");
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// Counts outcomes by file and kind.
#[derive(Default)]
struct Tally {
    outcomes: BTreeMap<(String, Outcome), usize>,
    wrong: Vec<String>,
}

impl Tally {
    fn damage(
        &mut self,
        sample: &Sample,
        file: &str,
        what: String,
        bytes: Range<u64>,
        change: impl FnOnce(&Path),
    ) {
        let damage = Damage { file: file.to_owned(), what, bytes };
        let outcome = sample.damaged(&damage, change);
        self.add(&damage, outcome);
    }

    fn add(&mut self, damage: &Damage, outcome: Result<Outcome, String>) {
        match outcome {
            Ok(outcome) => *self.outcomes.entry((damage.file.clone(), outcome)).or_default() += 1,
            Err(what) => self.wrong.push(what),
        }
    }

    fn finish(&self, title: &str) {
        println!("{title}: {} stores right", self.outcomes.values().sum::<usize>());
        for ((file, outcome), count) in &self.outcomes {
            println!("  {file}: {count} {outcome:?}");
        }
        assert!(self.wrong.is_empty(), "{} wrong:\n{}", self.wrong.len(), self.wrong.join("\n"));
    }
}
