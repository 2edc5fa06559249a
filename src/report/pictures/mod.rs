//! From a run's records to its figures: the plan recomputed from the deck, together with the trace and the
//! log.

mod ownership;
mod planned;
mod ran;
pub(super) mod run_plan;

use super::run_dir::RunDir;
use crate::error::Result;
use crate::figures::Figure;
use run_plan::RunPlan;

/// Every figure the records allow, and for each other one a sentence that says what it requires.
pub fn draw(run: &RunDir) -> Result<(Vec<Figure>, Vec<String>)> {
    let planned = RunPlan::of(run)?;
    let mut figures =
        vec![planned::storage(&planned), planned::compute(&planned), ownership::figure(&planned)?];
    let mut missing = Vec::new();
    match ran::timeline(run, &planned) {
        Some(figure) => figures.push(figure),
        None => missing.push(
            "timeline: the run has no trace; log.trace = \"10\" in its deck (or on the command line) records \
             step 10"
                .into(),
        ),
    }
    figures.push(ran::memory(run, &planned));
    figures.push(planned::stages(&planned));
    figures.push(ran::loss_curve(run));
    Ok((figures, missing))
}
