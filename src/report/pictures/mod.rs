//! From a run's records to its figures: the plan recomputed from the deck, together with the trace and the
//! log.

mod owned_units;
mod planned;
mod ran;
pub(super) mod run_plan;

use super::recorded_run::RecordedRun;
use crate::error::Result;
use crate::figures::Figure;
use run_plan::RunPlan;

/// Every figure that the records allow, and for each that they do not a sentence that says what would.
pub fn draw(run: &RecordedRun) -> Result<(Vec<Figure>, Vec<String>)> {
    let planned = RunPlan::of(run)?;
    let mut figures =
        vec![planned::storage(&planned), planned::compute(&planned), owned_units::figure(&planned)?];
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
