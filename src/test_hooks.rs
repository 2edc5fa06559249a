//! Faults that tests ask for through the environment; nothing happens where the variables are not set.
//!
//! | variable | effect |
//! | --- | --- |
//! | `ZERO3_TEST_FAULT=KIND@POINT:RANK:STEP` | the rank (`*`: each) fails at that point of that step: `panic`, `exit`, `kill` (SIGKILL), `hang`, `slow` (a second), or, where a file is written, `eio`, `enospc` |
//! | `ZERO3_TEST_MAX_MESSAGE_NUMEL=N` | messages are cut at N elements |
//! | `ZERO3_TEST_COLLECTIVE_DELAY_US=N` | each gather and reduction takes N microseconds more |
//! | `ZERO3_TEST_SPOIL=RANK:ATTEMPT` | the rank in that attempt (counted from 0) has NaN gradients |
//! | `ZERO3_TEST_LIST_WAITS=FILE` | each place where a CUDA stream is made to wait for another is written to the file, once: `SOURCE:LINE QUEUE` |
//! | `ZERO3_TEST_SKIP_WAIT=PLACE` | the waits of that place, as the list has it, are left out |
//!
//! Points are those of a save, [`SAVE_POINTS`], and [`OTHER_POINTS`]. What rank 0 alone does has the rank 0. Several faults are
//! separated by commas.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::io;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

/// Who passes a point of a save.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passes {
    /// Every rank.
    EachRank,
    /// Rank 0.
    Rank0,
    /// Rank 0, where it saves a step anew that is there already.
    Rank0Again,
    /// Rank 0, with the step that is deleted.
    Rank0Deleting,
}

/// The points of a save, in its order. Tests kill at each of them, so a new one is tested from the start.
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

/// Points that are none of a save: before the deck is read, before the data are read, before a training step, before MPI
/// ends; after a batch of tokens was written, and after the last one.
pub const OTHER_POINTS: [&str; 6] = ["deck", "scan", "step", "leave", "tokenize.batch", "tokenize.finished"];

/// The kind of fault asked for here, if one is.
fn fault_here(point: &str, rank: usize, step: u64) -> Option<&'static str> {
    static FAULTS: OnceLock<Option<String>> = OnceLock::new();
    debug_assert!(
        OTHER_POINTS.contains(&point) || SAVE_POINTS.iter().any(|(name, _)| *name == point),
        "{point} is not listed"
    );
    let faults = FAULTS.get_or_init(|| std::env::var("ZERO3_TEST_FAULT").ok()).as_ref()?;
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

/// Fails here if the environment says so.
pub fn fault_point(point: &str, rank: usize, step: u64) {
    let Some(kind) = fault_here(point, rank, step) else { return };
    match kind {
        "panic" => panic!("a test asked rank {rank} to panic at {point} of step {step}"),
        "exit" => std::process::exit(9),
        "hang" => std::thread::sleep(Duration::from_secs(3600)),
        "slow" => std::thread::sleep(Duration::from_secs(1)),
        "eio" | "enospc" => {}
        _ => {
            // SAFETY: a plain system call on this process.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
    }
}

/// Makes a collective take longer.
pub fn delay_collective() {
    static DELAY_US: OnceLock<Option<usize>> = OnceLock::new();
    if let Some(us) = DELAY_US.get_or_init(|| number_from("ZERO3_TEST_COLLECTIVE_DELAY_US")) {
        std::thread::sleep(std::time::Duration::from_micros(*us as u64));
    }
}

/// The message limit in elements, where a test lowers it.
pub fn max_message_numel() -> Option<usize> {
    number_from("ZERO3_TEST_MAX_MESSAGE_NUMEL").filter(|&n| n > 0)
}

/// The attempt that is under way, counted from 0.
static ATTEMPT: AtomicU64 = AtomicU64::new(0);

/// A step is tried.
pub fn begin_attempt(attempt: u64) {
    ATTEMPT.store(attempt, Ordering::Relaxed);
}

/// `factor`, or NaN where this rank's arithmetic of this attempt is to be spoilt.
pub fn spoilt(rank: usize, factor: f32) -> f32 {
    static SPOIL: OnceLock<Option<String>> = OnceLock::new();
    let Some(spoil) = SPOIL.get_or_init(|| std::env::var("ZERO3_TEST_SPOIL").ok()) else { return factor };
    let here = format!("{rank}:{}", ATTEMPT.load(Ordering::Relaxed));
    if spoil.split(',').any(|one| one == here) { f32::NAN } else { factor }
}

/// Whether the wait of `queue` that stands at `place` is to be left out. Lists the place where a test asks for the list.
pub fn skips_wait(place: &Location<'_>, queue: impl Debug) -> bool {
    static SKIPPED: OnceLock<Option<String>> = OnceLock::new();
    static LIST: OnceLock<Option<Mutex<BTreeSet<String>>>> = OnceLock::new();
    let skipped = SKIPPED.get_or_init(|| std::env::var("ZERO3_TEST_SKIP_WAIT").ok());
    let list = LIST.get_or_init(|| std::env::var_os("ZERO3_TEST_LIST_WAITS").map(|_| Mutex::default()));
    if skipped.is_none() && list.is_none() {
        return false;
    }
    let name = format!("{}:{} {queue:?}", place.file(), place.line());
    if let Some(list) = list {
        let mut places = list.lock().expect("no holder of the list panics");
        if places.insert(name.clone()) {
            let lines: String = places.iter().map(|place| format!("{place}\n")).collect();
            let path = std::env::var_os("ZERO3_TEST_LIST_WAITS").expect("set a moment ago");
            std::fs::write(&path, lines).expect("a test gives a path that can be written");
        }
    }
    skipped.as_ref() == Some(&name)
}

fn number_from(variable: &str) -> Option<usize> {
    std::env::var(variable).ok()?.parse().ok()
}
