//! What is done to a broker: short scripts that between them reach every storage call.

use crate::world::SEGMENT;
use rocklet::Flush;
use std::time::Duration;

/// The interval of the flushes that a script does not ask for.
pub(crate) const INTERVAL: Duration = Duration::from_millis(500);

/// One call of a user, or a while in which nobody calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// A topic with so many queues.
    Create(&'static str, u16),
    /// A topic gets another number of queues.
    Widen(&'static str, u16),
    Delete(&'static str),
    Purge(&'static str),
    /// A message of so many bytes to a queue of a topic, which may be new.
    Send(&'static str, u16, usize),
    /// The same with a key.
    Keyed(&'static str, u16, usize),
    /// A message to queue 0 of a topic that gets no others, due so many milliseconds later.
    Delay(&'static str, usize, u64),
    /// The delayed message of this number, from 0 on, is not to come.
    Cancel(usize),
    /// So many of them as a batch.
    Batch(&'static str, u16, usize, usize),
    Flush,
    /// An interval passes: what is due runs.
    Interval,
    /// One step of background work, if one is due.
    Step,
    /// A group goes to an offset of a queue, and commits.
    Commit(&'static str, &'static str, u16, u64),
    /// The oldest files of the log are dropped, all but so many.
    DropAllBut(u64),
    /// Closed and opened.
    Reopen,
}

/// A script by its name.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) name: &'static str,
    pub(crate) settings: Settings,
    pub(crate) ops: Vec<Op>,
}

/// What a broker is opened with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) flush: Flush,
    /// The oldest files go when the log has more bytes.
    pub(crate) log_bytes: Option<u64>,
}

impl Settings {
    pub(crate) fn new(flush: Flush) -> Self {
        Self { flush, log_bytes: None }
    }
}

/// A body of which three fill a log file.
const LARGE: usize = 20_000;

/// All of them.
pub(crate) fn all() -> Vec<Script> {
    let mut scripts = Vec::new();
    let mut add = |name, flush, ops: &[&[Op]]| {
        let settings = Settings::new(flush);
        scripts.push(Script { name, settings, ops: ops.concat() });
    };
    let each = Flush::EveryMessage;
    let every = Flush::Every(INTERVAL);
    let large = |count| vec![Op::Send("t", 0, LARGE); count];

    let appends: Vec<_> = [10, 700, 3, 4000, 100, 9000, 1, 2500]
        .into_iter()
        .map(|bytes| Op::Send("t", 0, bytes))
        .collect();
    add("append-each", each, &[&[Op::Create("t", 1)], &appends]);
    add(
        "append-every",
        every,
        &[
            &[Op::Create("t", 1)],
            &appends[..3],
            &[Op::Flush],
            &appends[3..6],
            &[Op::Interval],
            &appends[6..],
        ],
    );

    let batches = [
        Op::Batch("t", 0, 30, 3),
        Op::Send("t", 1, 500),
        Op::Batch("t", 1, 2500, 4),
        Op::Batch("t", 0, 9000, 2),
        Op::Batch("t", 0, 1, 20),
    ];
    add("batch-each", each, &[&[Op::Create("t", 2)], &batches]);
    add("batch-every", every, &[&batches[..2], &[Op::Flush], &batches[2..], &[Op::Interval]]);

    let batch = [Op::Batch("t", 0, 15_000, 2)];
    add("roll-each", each, &[&large(4), &batch, &large(3), &[Op::Send("t", 0, 7)]]);
    add("roll-every", every, &[&large(4), &batch, &[Op::Step, Op::Step], &large(4), &[Op::Flush]]);

    let commits = [
        Op::Commit("g", "t", 0, 1),
        Op::Commit("g", "t", 0, 3),
        Op::Commit("h", "t", 0, 2),
        Op::Interval,
        Op::Commit("g", "t", 1, 1),
        Op::Commit("g", "t", 0, 2),
        Op::Commit("h", "t", 0, 3),
    ];
    let sends = [[Op::Send("t", 0, 100); 3], [Op::Send("t", 1, 200); 3]].concat();
    add("commit-each", each, &[&sends, &commits, &[Op::Interval, Op::Commit("g", "t", 0, 3)]]);
    // The log may lose what a group has consumed.
    add(
        "commit-every",
        every,
        &[&sends, &commits, &[Op::Send("t", 0, 50)], &[Op::Commit("g", "t", 0, 4), Op::Interval]],
    );

    let topics = [
        Op::Create("a", 2),
        Op::Send("b", 0, 40),
        Op::Send("a", 1, 40),
        Op::Create("c", 1),
        Op::Batch("d", 1, 100, 2),
        Op::Send("c", 0, 40),
    ];
    let checkpoint = [&large(4)[..], &[Op::Interval]].concat();
    add("topics-each", each, &[&topics, &checkpoint, &[Op::Create("e", 3), Op::Send("b", 1, 9)]]);
    add("topics-every", every, &[&topics, &checkpoint, &[Op::Create("e", 3), Op::Send("b", 1, 9)]]);

    let again = [
        Op::Create("a", 1),
        Op::Send("a", 0, 30),
        Op::Send("b", 0, 30),
        Op::Commit("g", "a", 0, 1),
        Op::Interval,
        Op::Delete("a"),
        Op::Create("a", 2),
        Op::Send("a", 0, 31),
        Op::Widen("b", 3),
        Op::Send("b", 2, 32),
        Op::Purge("b"),
        Op::Send("b", 0, 33),
        Op::Delete("a"),
    ];
    let last = [Op::Send("a", 1, 34), Op::Purge("a"), Op::Delete("b")];
    add("again-each", each, &[&again, &last]);
    add("again-every", every, &[&again, &[Op::Flush], &last]);
    add("again-checkpoint", every, &[&again, &checkpoint, &last, &[Op::Interval]]);

    let keys = [Op::Keyed("t", 0, 50), Op::Keyed("t", 1, 15_000), Op::Send("t", 0, 9)];
    let keys = [&keys[..], &keys, &checkpoint, &keys[..1], &[Op::Reopen], &keys[1..]].concat();
    add("keys-each", each, &[&keys]);
    add("keys-every", every, &[&keys, &large(2), &[Op::DropAllBut(1)], &keys[..2]]);

    let drop = [&large(7)[..], &[Op::DropAllBut(1)], &large(1)].concat();
    add("drop-each", each, &[&[Op::Send("t", 1, 30)], &drop, &[Op::Send("t", 1, 30)]]);
    add("drop-every", every, &[&[Op::Send("t", 1, 30)], &drop, &[Op::Send("t", 1, 30), Op::Flush]]);
    let recycle = [&drop[..], &large(5), &[Op::DropAllBut(2), Op::Interval], &large(4)].concat();
    add("recycle-each", each, &[&recycle]);
    add("recycle-every", every, &[&recycle, &[Op::Flush], &large(2)]);

    let again = [&checkpoint[..], &[Op::Commit("g", "t", 0, 2), Op::Step], &checkpoint].concat();
    add("checkpoint-each", each, &[&again]);
    add("checkpoint-every", every, &[&again, &[Op::Send("t", 0, 3)]]);

    let small = [Op::Send("t", 0, 60), Op::Reopen, Op::Send("t", 0, 61), Op::Send("u", 0, 62)];
    let end = [Op::Commit("g", "t", 0, 1), Op::Reopen, Op::Send("t", 0, 63)];
    add("reopen-each", each, &[&small, &end]);
    add("reopen-every", every, &[&small, &end]);

    // What is due comes between intervals of a second, and the log rolls and is cut in front.
    let delays = [
        Op::Create("later", 1),
        Op::Delay("later", 40, 3_500_000),
        Op::Delay("later", 50, 2500),
        Op::Delay("later", 300, 500),
        Op::Delay("later", 9000, 500),
        Op::Delay("later", 60, 1_000_000),
    ];
    let end = [Op::Cancel(4), Op::Interval, Op::Delay("later", 70, 200), Op::Interval];
    add("delay-each", each, &[&delays, &[Op::Cancel(2), Op::Interval, Op::Reopen], &end]);
    add("delay-every", every, &[&delays, &[Op::Interval, Op::Step, Op::Reopen], &end]);
    let kept = [&delays[..2], &large(4), &[Op::Interval], &large(4), &[Op::Interval]].concat();
    let more = [Op::Delay("later", 80, 3_000_000), Op::DropAllBut(1)];
    add("delay-kept-each", each, &[&kept, &more, &large(4), &[Op::DropAllBut(1)], &delays[5..]]);
    add("delay-kept-every", every, &[&kept, &more, &[Op::Cancel(0), Op::Reopen, Op::Cancel(1)]]);

    // Blocks of 14, 62 and 254 entries.
    let index = [Op::Batch("t", 0, 1, 10), Op::Batch("t", 1, 1, 16), Op::Batch("t", 0, 1, 80)];
    add("index-each", each, &[&index, &large(3), &[Op::Interval], &index]);
    add("index-every", every, &[&index, &large(4), &[Op::Interval], &index, &[Op::Flush]]);

    let retained = [&large(6)[..], &[Op::Interval], &large(3), &[Op::Interval], &large(3)].concat();
    add("retention-each", each, &[&retained, &[Op::Send("t", 1, 50), Op::Reopen], &large(2)]);
    add("retention-every", every, &[&retained, &[Op::Flush], &large(4), &[Op::Interval]]);
    for script in scripts.iter_mut().filter(|script| script.name.starts_with("retention")) {
        script.settings.log_bytes = Some(3 * SEGMENT);
    }
    scripts
}
