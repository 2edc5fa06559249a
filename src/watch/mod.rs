//! `zero3 watch RUN`: a run as it goes on, or as it ended, from its own records.
//!
//! `run_files.rs` reads the files (`tail.rs` those that grow), `view.rs` makes of them what is shown,
//! `terminal_view.rs` draws it on the terminal of `terminal.rs`, `plain_view.rs` writes it as plain lines.
//! Needs no port and asks nothing of the job; never writes into a run directory. Must not know: MPI, plans,
//! devices.

mod plain_view;
mod run_files;
mod tail;
mod terminal;
mod terminal_view;
mod view;

#[cfg(test)]
mod tests;

use crate::clock::unix_now;
use crate::error::{Error, Result};
use run_files::RunFiles;
use std::path::Path;
use view::{Status, View};

/// Shows `run_dir` on the terminal until somebody leaves, also while there is no run yet.
///
/// # Errors
/// `run_dir` is no directory; the terminal cannot be drawn on.
pub fn live(run_dir: &Path) -> Result<()> {
    check(run_dir)?;
    terminal::show(&mut RunFiles::new(run_dir)).map_err(|e| {
        Error::Input(format!(
            "this terminal cannot be drawn on: {e}; `zero3 watch {} --once` prints plain lines",
            run_dir.display()
        ))
    })
}

/// The run as it is now, in plain lines.
///
/// # Errors
/// There is no run.
pub fn once(run_dir: &Path) -> Result<String> {
    check(run_dir)?;
    let mut records = RunFiles::new(run_dir);
    // More ranks than one look reads.
    let now = unix_now();
    records.look(now);
    while records.has_unread_signs() {
        records.look(now);
    }
    let view = View::of(&records, now);
    if view.status == Status::Nothing {
        return Err(Error::Input(format!(
            "{}: no records of a run; a run.dir would do (on a terminal, without --once, `zero3 watch` waits \
             for a run to begin)",
            run_dir.display()
        )));
    }
    Ok(plain_view::snapshot(&view))
}

fn check(run_dir: &Path) -> Result<()> {
    match std::fs::metadata(run_dir) {
        Ok(meta) if !meta.is_dir() => {
            Err(Error::Input(format!("{} is no directory; the run.dir of a run would do", run_dir.display())))
        }
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io("look at", run_dir, &error))
        }
        _ => Ok(()),
    }
}
