//! `zero3 report RUN`: five answers, figures and a page from a run's records.
//!
//! `recorded_run` reads the run directory, `pictures` turns what it found and the plan into figures,
//! `questions` answers in words, `page` binds figures and answers, `drawn` writes the requested files. Must
//! not know: MPI; it starts no device, and writes nothing before everything it was asked for is made.

#[cfg(feature = "figures")]
mod drawn;
#[cfg(feature = "figures")]
mod page;
#[cfg(feature = "figures")]
mod pictures;
mod questions;
// A page and figures show more of a run than the answers do.
#[cfg_attr(not(feature = "figures"), allow(dead_code))]
mod recorded_run;
mod wanted;

use crate::error::{Error, Result};
use std::path::Path;

pub use wanted::Wanted;

/// The answers for a finished (or stopped) run; figures and the page if requested. Returns the text for
/// stdout.
///
/// # Errors
/// The directory is not a run's, or lacks a requested record: nothing is written then. A file cannot be
/// written.
pub fn run(run_dir: &Path, wanted: &Wanted) -> Result<String> {
    if wanted.figures.is_none() && wanted.html.is_none() {
        return five_answers(run_dir);
    }
    #[cfg(feature = "figures")]
    return drawn::write(run_dir, wanted);
    #[cfg(not(feature = "figures"))]
    Err(crate::features::Feature::Figures.missing("zero3 report with --html or --figures"))
}

fn five_answers(run_dir: &Path) -> Result<String> {
    match recorded_run::read_summary(run_dir)? {
        Some(summary) => Ok(questions::in_words(&summary)),
        None => Err(Error::Input(format!(
            "{}: no such file; expected the directory of a finished or stopped run (send SIGUSR2 to a \
             running job for its state)",
            run_dir.join(crate::records::summary::SUMMARY_FILE).display()
        ))),
    }
}

#[cfg(feature = "figures")]
#[cfg(test)]
mod tests;
