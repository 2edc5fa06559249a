//! Faults that tests inject through the environment. The variables have no effect without `--test-hooks` on
//! the command line, so a variable left over in a shell changes no result. A run with active hooks records
//! them in its log, in `summary.json` and in its checkpoints, as does every run resumed from these.
//!
//! | variable | effect |
//! | --- | --- |
//! | `ZERO3_TEST_FAULT=KIND@POINT:RANK:STEP` | the rank (`*`: each) fails at that point of that step: `panic`, `exit`, `kill` (SIGKILL), `hang`, `slow` (a second), `late` (an hour passes on its clock of the acceptance benchmark), `late_hang`, or, where a file is written, `eio`, `enospc` |
//! | `ZERO3_TEST_MAX_MESSAGE_NUMEL=N` | messages are cut at N elements |
//! | `ZERO3_TEST_RANKS_PER_NODE=N` | ranks read only the memory of their own block of N, as if each block had a node |
//! | `ZERO3_TEST_COLLECTIVE_DELAY_US=N` | each gather and reduction takes N microseconds more |
//! | `ZERO3_TEST_SPOIL=RANK:ATTEMPT` | the rank in that attempt (counted from 0) has NaN gradients |
//! | `ZERO3_TEST_LIST_WAITS=FILE` | each place where a CUDA stream, or the host, is made to wait for a stream is written to the file, once: `SOURCE:LINE QUEUE` |
//! | `ZERO3_TEST_SKIP_WAIT=PLACE` | the waits of that place, as listed, are skipped; several with `;` |
//! | `ZERO3_TEST_FLIP=RANK` | the lowest bit of a factor of that rank's gradients is wrong |
//! | `ZERO3_TEST_WRONG_VALUE=RANK` | one value that a collective delivers to that rank is wrong |
//! | `ZERO3_TEST_DRAG=RANK:PERCENT` | that rank takes this much longer in the acceptance benchmark |
//! | `ZERO3_TEST_SLOW_LINK=A-B:US` | each round trip between ranks A < B takes this many microseconds more |
//!
//! The ranks of the last four are those of the whole job.
//!
//! Points are those of a save, [`SAVE_POINTS`], and [`OTHER_POINTS`]. Actions of rank 0 alone have the rank
//! 0. Several faults are separated by commas.

use crate::{clock, environment};
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::io;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

/// The variables of the table.
pub const VARIABLES: [&str; 11] = [
    "ZERO3_TEST_FAULT",
    "ZERO3_TEST_MAX_MESSAGE_NUMEL",
    "ZERO3_TEST_RANKS_PER_NODE",
    "ZERO3_TEST_COLLECTIVE_DELAY_US",
    "ZERO3_TEST_SPOIL",
    "ZERO3_TEST_LIST_WAITS",
    "ZERO3_TEST_SKIP_WAIT",
    "ZERO3_TEST_FLIP",
    "ZERO3_TEST_WRONG_VALUE",
    "ZERO3_TEST_DRAG",
    "ZERO3_TEST_SLOW_LINK",
];

/// The argument without which the variables do nothing.
pub const FLAG: &str = "--test-hooks";

static ACTIVE: AtomicBool = AtomicBool::new(false);
/// Hooks of this job and of those whose checkpoints it resumes from.
static OF_JOB: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// The flag was given. Must be called before anything else here.
pub fn activate() {
    ACTIVE.store(true, Ordering::Relaxed);
}

/// A variable of the table, if hooks are active.
fn variable(name: &str) -> Option<String> {
    debug_assert!(VARIABLES.contains(&name), "{name} is not listed");
    ACTIVE.load(Ordering::Relaxed).then(|| environment::variable(name)).flatten()
}

/// The hooks that are active in this process: `NAME=value`.
pub fn active() -> Vec<String> {
    VARIABLES.iter().filter_map(|name| variable(name).map(|value| format!("{name}={value}"))).collect()
}

/// Variables that are set but have no effect.
pub fn ignored() -> Vec<&'static str> {
    let set = VARIABLES.into_iter().filter(|name| environment::variable_os(name).is_some());
    set.filter(|_| !ACTIVE.load(Ordering::Relaxed)).collect()
}

/// Hooks of another rank, or of the run whose checkpoint this one resumes from.
pub fn add_to_job(hooks: impl IntoIterator<Item = String>) {
    OF_JOB.lock().expect("no holder panics").extend(hooks);
}

/// Every hook that has affected this job's results, in order.
pub fn of_job() -> Vec<String> {
    OF_JOB.lock().expect("no holder panics").iter().cloned().collect()
}

/// Which rank passes a point of a save.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passes {
    /// Every rank.
    EachRank,
    /// Rank 0.
    Rank0,
    /// Rank 0, when it re-saves an existing step.
    Rank0Again,
    /// Rank 0, with the step that is deleted.
    Rank0Deleting,
}

/// The points of a save, in order. Tests kill at each of them, so a new one is tested from the start.
pub const SAVE_POINTS: [(&str, Passes); 22] = [
    ("prepare.cleaned", Passes::Rank0),
    ("prepare.made", Passes::Rank0),
    ("save.begin", Passes::EachRank),
    ("write.structure", Passes::EachRank),
    ("write.half", Passes::EachRank),
    ("write.values", Passes::EachRank),
    ("write.synced", Passes::EachRank),
    ("save.written", Passes::EachRank),
    ("save.commit", Passes::EachRank),
    ("master.written", Passes::Rank0),
    ("commit.checked", Passes::Rank0),
    ("commit.manifest", Passes::Rank0),
    ("commit.synced", Passes::Rank0),
    ("commit.aside", Passes::Rank0Again),
    ("commit.renamed", Passes::Rank0),
    ("latest.made", Passes::Rank0),
    ("latest.moved", Passes::Rank0),
    ("commit.done", Passes::Rank0),
    ("doom.renamed", Passes::Rank0Deleting),
    ("doom.half", Passes::Rank0Deleting),
    ("doom.done", Passes::Rank0Deleting),
    ("save.done", Passes::EachRank),
];

/// Points outside of a save: before the deck is read, before the data are read, before a training step,
/// before MPI ends; after a batch of tokens was written, and after the last one; before each chunk that the
/// acceptance benchmark writes; before a live view is redrawn, counted from 0.
pub const OTHER_POINTS: [&str; 8] =
    ["deck", "scan", "step", "leave", "tokenize.batch", "tokenize.finished", "storage.write", "watch.draw"];

/// The kind of fault requested here, if any.
fn fault_here(point: &str, rank: usize, step: u64) -> Option<&'static str> {
    static FAULTS: OnceLock<Option<String>> = OnceLock::new();
    debug_assert!(
        OTHER_POINTS.contains(&point) || SAVE_POINTS.iter().any(|(name, _)| *name == point),
        "{point} is not listed"
    );
    let faults = FAULTS.get_or_init(|| variable("ZERO3_TEST_FAULT")).as_ref()?;
    faults.split(',').find_map(|fault| {
        let (kind, place) = fault.split_once('@')?;
        let here = place == format!("{point}:{rank}:{step}") || place == format!("{point}:*:{step}");
        here.then_some(kind)
    })
}

/// The same where a file is written: the fault may also be an error of the operating system.
pub fn write_point(point: &str, rank: usize, step: u64) -> io::Result<()> {
    match fault_here(point, rank, step) {
        Some("eio") => Err(io::Error::from_raw_os_error(libc::EIO)),
        Some("enospc") => Err(io::Error::from_raw_os_error(libc::ENOSPC)),
        _ => {
            fault_point(point, rank, step);
            Ok(())
        }
    }
}

/// Fails here if the environment requests it.
pub fn fault_point(point: &str, rank: usize, step: u64) {
    let Some(kind) = fault_here(point, rank, step) else { return };
    match kind {
        "panic" => panic!("a test asked rank {rank} to panic at {point} of step {step}"),
        "exit" => std::process::exit(9),
        "late" => LATE.store(true, Ordering::Relaxed),
        "hang" | "late_hang" => {
            LATE.store(kind == "late_hang", Ordering::Relaxed);
            clock::rest(Duration::from_secs(3600));
        }
        "slow" => clock::rest(Duration::from_secs(1)),
        "eio" | "enospc" => {}
        _ => {
            // SAFETY: a plain system call on this process.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
    }
}

/// An hour has passed on the clock of the acceptance benchmark.
static LATE: AtomicBool = AtomicBool::new(false);

/// Offset of the clock that the acceptance benchmark checks its limits against.
pub fn ahead() -> Duration {
    if LATE.load(Ordering::Relaxed) { Duration::from_secs(3600) } else { Duration::ZERO }
}

/// Delays a collective.
pub fn delay_collective() {
    static DELAY_US: OnceLock<Option<usize>> = OnceLock::new();
    if let Some(us) = DELAY_US.get_or_init(|| number_from("ZERO3_TEST_COLLECTIVE_DELAY_US")) {
        clock::rest(Duration::from_micros(*us as u64));
    }
}

/// The message limit in elements, if lowered by a test.
pub fn max_message_numel() -> Option<usize> {
    number_from("ZERO3_TEST_MAX_MESSAGE_NUMEL").filter(|&n| n > 0)
}

/// Ranks that can read each other's memory, if set by a test.
pub fn ranks_per_node() -> Option<usize> {
    number_from("ZERO3_TEST_RANKS_PER_NODE").filter(|&n| n > 0)
}

/// The current attempt, counted from 0.
static ATTEMPT: AtomicU64 = AtomicU64::new(0);

/// A step is attempted.
pub fn begin_attempt(attempt: u64) {
    ATTEMPT.store(attempt, Ordering::Relaxed);
}

/// `factor`, or NaN if this rank's arithmetic in this attempt must be spoilt.
pub fn spoilt(rank: usize, factor: f32) -> f32 {
    static SPOIL: OnceLock<Option<String>> = OnceLock::new();
    static FLIP: OnceLock<Option<usize>> = OnceLock::new();
    let flips = *FLIP.get_or_init(|| number_from("ZERO3_TEST_FLIP")) == Some(world_rank());
    let factor = if flips { flipped(factor) } else { factor };
    let Some(spoil) = SPOIL.get_or_init(|| variable("ZERO3_TEST_SPOIL")) else { return factor };
    let here = format!("{rank}:{}", ATTEMPT.load(Ordering::Relaxed));
    if spoil.split(',').any(|one| one == here) { f32::NAN } else { factor }
}

/// Whether the wait of `queue` (or of the host) at `place` must be skipped. Lists the place if a test
/// requests the list.
pub fn skips_wait(place: &Location<'_>, queue: impl Debug) -> bool {
    static SKIPPED: OnceLock<Option<String>> = OnceLock::new();
    static LIST: OnceLock<Option<Mutex<BTreeSet<String>>>> = OnceLock::new();
    let skipped = SKIPPED.get_or_init(|| variable("ZERO3_TEST_SKIP_WAIT"));
    let list = LIST.get_or_init(|| variable("ZERO3_TEST_LIST_WAITS").map(|_| Mutex::default()));
    if skipped.is_none() && list.is_none() {
        return false;
    }
    let name = format!("{}:{} {queue:?}", place.file(), place.line());
    if let Some(list) = list {
        let mut places = list.lock().expect("no holder of the list panics");
        if places.insert(name.clone()) {
            let lines: String = places.iter().map(|place| format!("{place}\n")).collect();
            let path = variable("ZERO3_TEST_LIST_WAITS").expect("set a moment ago");
            std::fs::write(&path, lines).expect("a test gives a path that can be written");
        }
    }
    skipped.as_ref().is_some_and(|skipped| skipped.split(';').any(|place| place == name))
}

/// This process among all of the job.
static WORLD_RANK: AtomicU64 = AtomicU64::new(0);

/// Sets which process of the job this is.
pub fn set_world_rank(rank: usize) {
    WORLD_RANK.store(rank as u64, Ordering::Relaxed);
}

fn world_rank() -> usize {
    WORLD_RANK.load(Ordering::Relaxed) as usize
}

/// The next number but for its lowest bit.
fn flipped(x: f32) -> f32 {
    f32::from_bits(x.to_bits() ^ 1)
}

/// Corrupts one of the values that a collective has delivered.
pub fn spoil_received(values: &mut [f32]) {
    if number_from("ZERO3_TEST_WRONG_VALUE") == Some(world_rank())
        && let Some(first) = values.first_mut()
    {
        *first = flipped(*first);
    }
}

/// Delays this rank's work, in proportion to its duration.
pub fn drag(took: Duration) {
    static DRAG: OnceLock<Option<String>> = OnceLock::new();
    let Some(text) = DRAG.get_or_init(|| variable("ZERO3_TEST_DRAG")) else { return };
    if let Some((rank, percent)) = text.split_once(':')
        && rank.parse() == Ok(world_rank())
        && let Ok(percent) = percent.parse::<f64>()
    {
        clock::rest(took.mul_f64(percent / 100.0));
    }
}

/// Delays a round trip between two ranks of the job.
pub fn delay_link(a: usize, b: usize) {
    // Within a timed round trip, so the environment is searched once.
    static SLOW_LINK: OnceLock<Option<String>> = OnceLock::new();
    let Some(text) = SLOW_LINK.get_or_init(|| variable("ZERO3_TEST_SLOW_LINK")) else { return };
    if let Some((pair, us)) = text.split_once(':')
        && pair == format!("{}-{}", a.min(b), a.max(b))
        && let Ok(us) = us.parse()
    {
        clock::rest(Duration::from_micros(us));
    }
}

fn number_from(name: &str) -> Option<usize> {
    variable(name)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variable_of_the_table_is_listed_and_none_acts_without_the_flag() {
        let table = include_str!("test_hooks.rs").lines().filter_map(|line| line.strip_prefix("//! | `"));
        let table: Vec<&str> = table.map(|row| row.split(['=', '`']).next().unwrap()).collect();
        assert_eq!(table, VARIABLES);
        assert!(active().is_empty(), "the tests of this library run without the flag");
        assert_eq!(spoilt(0, 1.5), 1.5);
    }
}
