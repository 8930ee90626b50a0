//! Every storage call of every script fails, once and for ever, in every way that applies to it.

use crate::script::{self, Script};
use crate::support::runner::{Ignored, argument, text_argument};
use crate::world::{Loss, World};
use crate::{Effort, Tally};
use rocklet::{Fate, FaultPlan, SimulatedStorage, StorageFault};

pub(crate) fn fail_calls() -> Result<(), Ignored> {
    let effort = Effort::from_arguments();
    println!("--seed {}", effort.seed);
    let mut tally = Tally::new("states after a fault");
    let mut injected = 0;
    let only = text_argument("--script");
    for script in script::all() {
        if only.as_deref().is_none_or(|only| script.name == only) {
            for fault in [StorageFault::Io, StorageFault::NoSpace, StorageFault::ShortWrite] {
                for times in [1, u64::MAX] {
                    injected += fail_calls_of(&script, fault, times, effort, &mut tally);
                }
            }
        }
    }
    println!("{injected} faults injected");
    tally.end();
    Ok(())
}

fn fail_calls_of(
    script: &Script,
    fault: StorageFault,
    times: u64,
    effort: Effort,
    tally: &mut Tally,
) -> u64 {
    // A slice takes every so many calls, and begins somewhere.
    let (first, stride) = match (argument("--call"), effort.full) {
        (Some(call), _) => (call, u64::MAX),
        (None, true) => (0, 1),
        (None, false) => (tally.states() % 23, 23),
    };
    let mut injected = 0;
    let mut call = first;
    loop {
        let seed = effort.seed;
        let name = |what: &str| {
            let replay = "cargo test --release --test power_fail -- fail_every";
            let script = script.name;
            let often = if times == 1 { "once" } else { "for ever" };
            format!(
                "{replay} --script {script} --call {call} --seed {seed}: {fault:?} {often}, {what}"
            )
        };
        let storage = SimulatedStorage::new(seed);
        storage.fail(FaultPlan::new(fault).after(call).times(times));
        let mut ran = None;
        tally.state(
            || name("while it runs"),
            || {
                ran = Some(World::run(script, &storage, seed));
                Ok(())
            },
        );
        injected += storage.faults();
        let none = storage.faults() == 0;
        storage.heal();
        let Some((mut world, broker)) = ran else { return injected };
        let (killed, crash) = (storage.kill(), storage.crash());
        tally.state(|| name("killed"), || world.check_all(&killed, Loss::Process, seed));
        let lost = crash.with(|_| Fate::Lost);
        tally.state(|| name("power lost"), || world.check_all(&lost, Loss::Power, seed));
        let torn = crash.at_random(seed ^ call);
        tally.state(|| name("power lost, torn"), || world.check_all(&torn, Loss::Power, seed));
        if let Some(broker) = broker {
            // It may close now, or has been poisoned.
            tally.state(
                || name("closed"),
                || {
                    world.close(&storage, &broker);
                    drop(broker);
                    world.check_all(&storage.kill(), Loss::Process, seed)?;
                    world.check_all(&storage.crash().with(|_| Fate::Lost), Loss::Power, seed)
                },
            );
        }
        let Some(next) = call.checked_add(stride).filter(|_| !none) else { return injected };
        call = next;
    }
}
