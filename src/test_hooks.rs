//! Faults that tests ask for through the environment; nothing happens where the variables are not set.
//!
//! | variable | effect |
//! | --- | --- |
//! | `ZERO3_TEST_FAULT=KIND@POINT:RANK:STEP` | the rank (`*`: each) fails at that point of that step: `panic`, `exit`, `kill` (SIGKILL), `hang`, `slow` (a second), or, where a file is written, `eio`, `enospc` |
//! | `ZERO3_TEST_MAX_MESSAGE_NUMEL=N` | messages are cut at N elements |
//! | `ZERO3_TEST_COLLECTIVE_DELAY_US=N` | each gather and reduction takes N microseconds more |
//! | `ZERO3_TEST_SPOIL=RANK:ATTEMPT` | the rank in that attempt (counted from 0) has NaN gradients |
//! | `ZERO3_TEST_LIST_WAITS=FILE` | each place where a CUDA stream is made to wait for another is written to the file, once: `SOURCE:LINE QUEUE` |
//! | `ZERO3_TEST_SKIP_WAIT=PLACE` | the waits of that place, as the list has it, are left out; several with `;` |
//!
//! Points, in the order of a save: `step` (before it); `prepare.cleaned`, `prepare.made`; `save.begin`; `write.structure`, `write.half`,
//! `write.values` (before the fsync), `write.synced`; `save.written`; `save.commit`; `master.written`; `commit.checked`,
//! `commit.manifest` (before its fsync), `commit.synced`, `commit.aside` (re-saves only), `commit.renamed`, `latest.made`, `latest.moved`,
//! `commit.done`; of each deletion, with the step that is deleted: `doom.renamed`, `doom.half`, `doom.done`; `save.done`. What rank 0
//! alone does has the rank 0.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::io;
use std::panic::Location;
use std::sync::{Mutex, OnceLock};
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

/// Whether this rank's arithmetic of this attempt is to be spoilt.
pub fn spoils(rank: usize, attempt: u64) -> bool {
    static SPOIL: OnceLock<Option<String>> = OnceLock::new();
    let spoil = SPOIL.get_or_init(|| std::env::var("ZERO3_TEST_SPOIL").ok());
    spoil.as_ref().is_some_and(|spoil| spoil.split(',').any(|one| *one == format!("{rank}:{attempt}")))
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
    skipped.as_ref().is_some_and(|skipped| skipped.split(';').any(|place| place == name))
}

fn number_from(variable: &str) -> Option<usize> {
    std::env::var(variable).ok()?.parse().ok()
}
