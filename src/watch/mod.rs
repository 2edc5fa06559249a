//! `zero3 watch RUN`: a run, live or finished, from its records.
//!
//! `run_files.rs` reads the files (`tail.rs` those that grow), `view.rs` makes of them what is shown,
//! `terminal_view.rs` draws it on the terminal of `terminal.rs`, `plain_view.rs` writes it as plain lines.
//! Needs no port and asks nothing of the job; never writes into a run directory. Must not know: MPI, plans,
//! devices.

mod plain_view;
mod run_files;
mod tail;
#[cfg(feature = "watch")]
mod terminal;
#[cfg(feature = "watch")]
mod terminal_view;
mod view;

#[cfg(feature = "watch")]
#[cfg(test)]
mod tests;

use crate::clock::unix_now;
use crate::error::{Error, Result};
use run_files::RunFiles;
use std::path::Path;
use view::{Status, View};

/// Shows `run_dir` on the terminal until the user quits, even before there is a run.
///
/// # Errors
/// `run_dir` is not a directory; the terminal cannot be drawn on.
pub fn live(run_dir: &Path) -> Result<()> {
    check(run_dir)?;
    #[cfg(feature = "watch")]
    return terminal::show(&mut RunFiles::new(run_dir)).map_err(|e| {
        Error::Input(format!(
            "this terminal cannot be drawn on: {e}; `zero3 watch {} --once` prints plain lines",
            run_dir.display()
        ))
    });
    #[cfg(not(feature = "watch"))]
    Err(crate::features::Feature::Watch.missing("zero3 watch without --once"))
}

/// The current state of the run, as plain lines.
///
/// # Errors
/// There is no run.
pub fn once(run_dir: &Path) -> Result<String> {
    check(run_dir)?;
    let mut records = RunFiles::new(run_dir);
    // More ranks than a single pass reads.
    let now = unix_now();
    records.look(now);
    while records.has_unread_signs() {
        records.look(now);
    }
    let view = View::of(&records, now);
    if view.status == Status::Nothing {
        return Err(Error::Input(format!(
            "{}: no records of a run; expected a run.dir (on a terminal, without --once, `zero3 watch` waits \
             for a run to start)",
            run_dir.display()
        )));
    }
    Ok(plain_view::snapshot(&view))
}

fn check(run_dir: &Path) -> Result<()> {
    match std::fs::metadata(run_dir) {
        Ok(meta) if !meta.is_dir() => Err(Error::Input(format!(
            "{} is not a directory; expected the run.dir of a \
                                      run",
            run_dir.display()
        ))),
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io("look at", run_dir, &error))
        }
        _ => Ok(()),
    }
}
