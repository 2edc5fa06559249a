//! Faults that tests ask for through the environment; nothing happens where the variables are not set.
//!
//! | variable | effect |
//! | --- | --- |
//! | `ZERO3_TEST_FAULT=KIND@POINT:RANK:STEP` | the rank fails at that point of that step: `panic`, `exit`, `kill` (SIGKILL) or `hang` |
//! | `ZERO3_TEST_MAX_MESSAGE_NUMEL=N` | messages are cut at N elements |
//! | `ZERO3_TEST_COLLECTIVE_DELAY_US=N` | each gather and reduction takes N microseconds more |
//! | `ZERO3_TEST_SPOIL=RANK:ATTEMPT` | the rank in that attempt (counted from 0) has NaN gradients |
//!
//! Points: `step` (before it), `save.begin`, `save.written` (this rank's file is), `save.commit` (before the rename), `save.done`.

use std::sync::OnceLock;

/// Fails here if the environment says so.
pub fn fault_point(point: &str, rank: usize, step: u64) {
    static FAULT: OnceLock<Option<String>> = OnceLock::new();
    let Some(fault) = FAULT.get_or_init(|| std::env::var("ZERO3_TEST_FAULT").ok()) else { return };
    let Some((kind, place)) = fault.split_once('@') else { return };
    if place != format!("{point}:{rank}:{step}") {
        return;
    }
    match kind {
        "panic" => panic!("a test asked rank {rank} to panic at {place}"),
        "exit" => std::process::exit(9),
        "hang" => std::thread::sleep(std::time::Duration::from_secs(3600)),
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

fn number_from(variable: &str) -> Option<usize> {
    std::env::var(variable).ok()?.parse().ok()
}
