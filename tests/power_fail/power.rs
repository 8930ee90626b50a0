//! Power is lost after every storage call of every script, with every choice of what of the
//! unsynced changes has reached the disk, or a sample where there are many.

use crate::script::{self, Script};
use crate::support::Random;
use crate::support::runner::{Ignored, argument, text_argument};
use crate::world::{Loss, World};
use crate::{Effort, Tally, contained};
use rocklet::{Change, Crash, Fate, SimulatedStorage};

/// Of fewer changes every subset is tried.
const FEW: usize = 6;
/// Of more, so many are.
const MANY: u64 = 48;

pub(crate) fn lose_power() -> Result<(), Ignored> {
    let effort = Effort::from_arguments();
    println!("--seed {}", effort.seed);
    let mut tally = Tally::new("crash states");
    let only = text_argument("--script");
    for script in script::all() {
        if only.as_deref().is_none_or(|only| script.name == only) {
            lose_power_in(&script, effort, &mut tally);
        }
    }
    tally.end();
    Ok(())
}

/// A script up to the call before which power goes.
fn run_until(script: &Script, step: u64, seed: u64) -> (World, Crash, bool) {
    let storage = SimulatedStorage::new(seed);
    storage.cut_power_after(step);
    let (mut world, broker) = World::run(script, &storage, seed);
    if let Some(broker) = broker.filter(|_| !storage.power_is_cut()) {
        world.close(&storage, &broker);
    }
    let ended = !storage.power_is_cut();
    if ended && script.settings.log_bytes.is_some() {
        let first = format!("commitlog/{:020}", 0);
        assert!(!storage.files().contains(&first), "{}: nothing was dropped", script.name);
    }
    (world, storage.crash(), ended)
}

fn lose_power_in(script: &Script, effort: Effort, tally: &mut Tally) {
    let seed = effort.seed;
    let (from, to) = match argument("--step") {
        Some(step) => (step, step),
        None => (0, u64::MAX),
    };
    let before = tally.states();
    let mut steps = 0;
    let mut next = run_until(script, from, seed);
    for step in from..=to {
        let (world, crash, ended) = next;
        if ended || step == to {
            states_of(script, step, &world, &crash, effort, tally);
            steps += 1;
            break;
        }
        next = run_until(script, step + 1, seed);
        if !effort.full && step % 3 != seed % 3 {
            continue;
        }
        // A call that changes nothing leaves the same states behind; those with more promises count.
        if crash != next.1 {
            states_of(script, step, &world, &crash, effort, tally);
            steps += 1;
        }
    }
    println!("{}: {steps} steps, {} states", script.name, tally.states() - before);
}

fn states_of(
    script: &Script,
    step: u64,
    world: &World,
    crash: &Crash,
    effort: Effort,
    tally: &mut Tally,
) {
    let Effort { full, seed } = effort;
    let subsets = match argument("--subset") {
        Some(subset) => vec![subset],
        None => subsets(crash, full, &mut random(step, u64::MAX, seed)),
    };
    for subset in subsets {
        let name = || {
            let replay = "cargo test --release --test power_fail -- lose_power";
            let script = script.name;
            format!("{replay} --script {script} --step {step} --subset {subset} --seed {seed}")
        };
        let mut random = random(step, subset, seed);
        let fates = random.clone();
        let storage = || crash.with(chosen(crash.changes().len(), subset, fates.clone()));
        if argument("--subset").is_some() {
            let mut fate = chosen(crash.changes().len(), subset, fates.clone());
            crash.changes().for_each(|change| println!("{change:?}: {:?}", fate(change)));
        }
        tally.state(name, || world.check_all(&storage(), Loss::Power, seed));
        // Recovery itself is interrupted, too.
        if random.one_in(if full { 32 } else { 64 }) || argument("--subset").is_some() {
            lose_power_again(&storage, world, effort, &name, &mut random, tally);
        }
    }
}

/// Power goes again while the store recovers, and once it has.
fn lose_power_again(
    storage: &dyn Fn() -> SimulatedStorage,
    world: &World,
    effort: Effort,
    name: &dyn Fn() -> String,
    random: &mut Random,
    tally: &mut Tally,
) {
    let mut step = 0;
    loop {
        let storage = storage();
        storage.cut_power_after(step);
        let checked = contained(|| world.check(&storage, Loss::Power, effort.seed));
        let ended = !storage.power_is_cut();
        // If it could be opened, whatever it has is durable.
        let world = match (&checked, ended) {
            (Err(error), true) => {
                tally.state(name, || Err(error.clone()));
                return;
            }
            (Ok(contents), _) => world.after(contents),
            (Err(_), false) => world.clone(),
        };
        let crash = storage.crash();
        let seed = random.next();
        let name = || format!("{}, again after call {step} of the recovery", name());
        tally.state(name, || {
            let storage =
                if random.one_in(4) { crash.with(|_| Fate::Lost) } else { crash.at_random(seed) };
            world.check_all(&storage, Loss::Power, seed)
        });
        if ended {
            return;
        }
        step += 1 + random.below(if effort.full { 4 } else { 16 });
    }
}

/// Which subsets of the changes are tried.
fn subsets(crash: &Crash, full: bool, random: &mut Random) -> Vec<u64> {
    let pages = crash.changes().filter(|change| matches!(change, Change::Page { .. })).count();
    let all = match crash.changes().len() {
        0 => 1,
        few if few <= FEW => (1 << few) + 8 * pages.min(3) as u64,
        _ => MANY,
    };
    if full || all < 4 { (0..all).collect() } else { (0..4).map(|_| random.below(all)).collect() }
}

/// The fates of a subset. Of few changes each combination of lost and kept has its number; torn
/// pages come behind.
fn chosen(changes: usize, subset: u64, mut random: Random) -> impl FnMut(&Change) -> Fate {
    let mut nth = 0;
    // Few or many are kept.
    let density = [1, 4, 7][random.below(3) as usize];
    move |_| {
        nth += 1;
        let kept = match subset {
            _ if changes <= FEW && subset < 1 << changes => subset >> (nth - 1) & 1 == 1,
            0 => false,
            1 => true,
            _ if random.one_in(6) => return Fate::Front((random.below(512) * 8) as u16),
            _ if random.one_in(6) => return Fate::Sectors(random.next() as u8),
            _ => random.below(8) < density,
        };
        if kept { Fate::Kept } else { Fate::Lost }
    }
}

fn random(step: u64, subset: u64, seed: u64) -> Random {
    Random(Random(seed).next() ^ Random(step << 20 | subset).next())
}
