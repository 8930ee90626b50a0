//! Every byte of a small store is flipped, and every file is cut at every length: an error, or
//! what was sent; never anything else.

use crate::script::{INTERVAL, Op, Script, Settings};
use crate::support::Random;
use crate::support::runner::{Ignored, argument, text_argument};
use crate::world::{Damage, Found, World, open};
use crate::{Effort, Tally};
use rocklet::{DrivenClock, Error, Flush, QueueId, SimulatedStorage};
use std::collections::BTreeMap;
use std::time::Duration;

/// A store at rest, as a close or a kill has left it.
struct Sample {
    name: &'static str,
    storage: SimulatedStorage,
    files: BTreeMap<String, Vec<u8>>,
    world: World,
}

impl Sample {
    fn all(seed: u64) -> [Self; 2] {
        let ops = [
            Op::Create("orders", 2),
            Op::Send("orders", 0, 100),
            Op::Send("payments", 1, 9),
            Op::Batch("orders", 1, 40, 3),
            Op::Commit("g", "orders", 0, 1),
            Op::Delay("later", 200, 3_000_000),
            Op::Delay("later", 30, 2_000_000),
            Op::Delay("later", 40, 1_000_000),
            Op::Cancel(2),
            Op::Send("orders", 0, 32_000),
            // Does not fit behind it: a filler does.
            Op::Send("orders", 1, 32_200),
            Op::Interval,
            Op::Commit("g", "orders", 0, 2),
            Op::Commit("h", "payments", 1, 1),
            Op::Send("payments", 0, 700),
            Op::Batch("orders", 0, 150, 2),
        ];
        let script = Script { name: "sweep", settings: settings(), ops: ops.to_vec() };
        let storage = SimulatedStorage::new(seed);
        let (mut world, broker) = World::run(&script, &storage, seed);
        let broker = broker.expect("an open broker");
        let killed = storage.kill();
        let at_kill = world.clone();
        world.close(&storage, &broker);
        drop(broker);
        [("closed", storage, world), ("killed", killed, at_kill)].map(|(name, storage, world)| {
            let content = |file: String| (file.clone(), storage.read(&file).unwrap_or_default());
            let files = storage.files().into_iter().map(content).collect();
            Self { name, storage, files, world }
        })
    }

    /// Opens a copy in which a file has another content.
    fn damaged(&self, file: &str, content: Vec<u8>) -> Result<Found, String> {
        let storage = self.storage.kill();
        storage.write(file, content);
        let clock = DrivenClock::with_steps(1_700_000_000_000, 1);
        let damage = Damage { file, killed: self.name == "killed" };
        let broker = match open(&storage, &clock, settings()) {
            Ok(broker) => broker,
            Err(error) => return self.refused(&storage, file, &error),
        };
        let mut found = self.world.examine(&broker, &damage)?;
        // What waits comes, or it is told that it is lost.
        clock.advance(Duration::from_secs(3600));
        let (stats, later) = (broker.stats(), QueueId::new("later", 0));
        let come = broker.max_offset(&later).map_err(|e| e.to_string())? as usize;
        let lost = stats.lost_delays as usize;
        if come + lost != self.world.delayed() || stats.delayed > 0 {
            return Err(format!("{come} of {} have come, {stats:?}", self.world.delayed()));
        }
        if lost > 0 {
            found = found.max(Found::Unreadable);
        }
        // Not closed: it is the copy that goes.
        Ok(found)
    }

    /// A refused open names the file, and has changed nothing that is not derived.
    fn refused(
        &self,
        storage: &SimulatedStorage,
        damaged: &str,
        error: &Error,
    ) -> Result<Found, String> {
        let (Error::Corrupt { file, .. } | Error::Version { file, .. } | Error::Io { file, .. }) =
            error
        else {
            return Err(format!("not about a file: {error}"));
        };
        if !file.starts_with("simulated") {
            return Err(format!("no file: {error}"));
        }
        for (name, content) in &self.files {
            let derived = name.starts_with("index/") || name == damaged;
            if !derived && storage.read(name).as_ref() != Some(content) {
                return Err(format!("{name} was changed before the open was refused: {error}"));
            }
        }
        Ok(Found::Refused)
    }
}

fn settings() -> Settings {
    Settings::new(Flush::Every(INTERVAL))
}

pub(crate) fn flip_bytes() -> Result<(), Ignored> {
    let effort = Effort::from_arguments();
    let mut random = Random(effort.seed);
    sweep(
        "flipped bytes",
        effort,
        |content, full| {
            let used = (0..content.len()).filter(|at| content[*at] != 0);
            let unused = (0..content.len()).filter(|at| content[*at] == 0);
            let start = random.below(61) as usize;
            match full {
                true => used.chain(unused.skip(start).step_by(61)).collect(),
                false => used
                    .skip(start * 10)
                    .step_by(607)
                    .chain(unused.skip(start).step_by(5003))
                    .collect(),
            }
        },
        |content, at| content[at] ^= 1 << (at % 8),
    )
}

pub(crate) fn cut_files() -> Result<(), Ignored> {
    let effort = Effort::from_arguments();
    sweep(
        "cut files",
        effort,
        |content, full| {
            let used = content.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            let (used, unused) = (0..used + 1, used + 1..content.len());
            let strides = if full { (1, 61) } else { (607, 5003) };
            let lengths = used.step_by(strides.0).chain(unused.step_by(strides.1));
            lengths.filter(|length| *length < content.len()).collect()
        },
        |content, at| content.truncate(at),
    )
}

/// Damages every file of both samples at the places that are chosen.
fn sweep(
    what: &'static str,
    effort: Effort,
    mut places: impl FnMut(&[u8], bool) -> Vec<usize>,
    damage: impl Fn(&mut Vec<u8>, usize),
) -> Result<(), Ignored> {
    println!("--seed {}", effort.seed);
    let mut tally = Tally::new(what);
    let mut outcomes: BTreeMap<Found, u64> = BTreeMap::new();
    let (only_file, only_byte) = (text_argument("--file"), argument("--byte"));
    for sample in Sample::all(effort.seed) {
        for (file, content) in &sample.files {
            if only_file.as_deref().is_some_and(|only| only != file) {
                continue;
            }
            let places =
                only_byte.map_or_else(|| places(content, effort.full), |at| vec![at as usize]);
            for at in places {
                let name = || {
                    let seed = effort.seed;
                    format!(
                        "{} store, {what}: --file {file} --byte {at} --seed {seed}",
                        sample.name
                    )
                };
                tally.state(name, || {
                    let mut damaged = content.clone();
                    damage(&mut damaged, at);
                    let found = sample.damaged(file, damaged)?;
                    *outcomes.entry(found).or_default() += 1;
                    Ok(())
                });
            }
        }
    }
    println!("{outcomes:?}");
    tally.end();
    Ok(())
}
