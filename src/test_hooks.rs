//! Faults that tests ask for through the environment; nothing happens where the variables are not set.
//!
//! | variable | effect |
//! | --- | --- |
//! | `ZERO3_TEST_FAULT=KIND@POINT:RANK:STEP` | the rank (`*`: each) fails at that point of that step: `panic`, `exit`, `kill` (SIGKILL), `hang`, `slow` (a second), or, where a file is written, `eio`, `enospc` |
//! | `ZERO3_TEST_MAX_MESSAGE_NUMEL=N` | messages are cut at N elements |
//! | `ZERO3_TEST_COLLECTIVE_DELAY_US=N` | each gather and reduction takes N microseconds more |
//! | `ZERO3_TEST_SPOIL=RANK:ATTEMPT` | the rank in that attempt (counted from 0) has NaN gradients |
//!
//! Points: `deck` (before the deck is read, step 0); `scan` (before the data is read, rank 0, step 0); `leave` (before MPI ends, step 0); and in the order of a save: `step` (before it); `prepare.cleaned`, `prepare.made`; `save.begin`; `write.structure`, `write.half`,
//! `write.values` (before the fsync), `write.synced`; `save.written`; `save.commit`; `master.written`; `commit.checked`,
//! `commit.manifest` (before its fsync), `commit.synced`, `commit.aside` (re-saves only), `commit.renamed`, `latest.made`, `latest.moved`,
//! `commit.done`; of each deletion, with the step that is deleted: `doom.renamed`, `doom.half`, `doom.done`; `save.done`. What rank 0
//! alone does has the rank 0.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The kind of fault asked for here, if one is.
fn fault_here(point: &str, rank: usize, step: u64) -> Option<&'static str> {
    static FAULT: OnceLock<Option<String>> = OnceLock::new();
    let fault = FAULT.get_or_init(|| std::env::var("ZERO3_TEST_FAULT").ok()).as_ref()?;
    let (kind, place) = fault.split_once('@')?;
    let here = place == format!("{point}:{rank}:{step}") || place == format!("{point}:*:{step}");
    here.then_some(kind)
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

fn number_from(variable: &str) -> Option<usize> {
    std::env::var(variable).ok()?.parse().ok()
}
