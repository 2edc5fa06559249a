//! From a run's records to its figures: the plan made again from the deck, and what the trace and the log say beside it.

mod ownership;
mod planned;
mod ran;

use super::records::Records;
use crate::error::Result;
use crate::figures::Figure;
use crate::params::ModelSpec;
use crate::plan::Plan;
use crate::train::for_kind;

/// The run's plan, made again: it is a function of deck, ranks and backend.
pub struct RunPlan {
    spec: ModelSpec,
    plan: Plan,
    n_micro: usize,
}

impl RunPlan {
    /// Plans.
    pub fn of(records: &Records) -> Result<Self> {
        let (model, plan) = for_kind::plan(records.backend, &records.deck, records.world_size)?;
        Ok(RunPlan { spec: model.spec, plan, n_micro: records.deck.train.n_micro() })
    }
}

/// Every figure that the records allow, and for each that they do not a sentence that says what would.
pub fn draw(records: &Records) -> Result<(Vec<Figure>, Vec<String>)> {
    let planned = RunPlan::of(records)?;
    let mut figures = vec![planned::storage(&planned), planned::compute(&planned), ownership::figure(&planned)?];
    let mut missing = Vec::new();
    match ran::timeline(records, &planned) {
        Some(figure) => figures.push(figure),
        None => missing.push(
            "timeline: the run has no trace; log.trace = \"10\" in its deck (or on the command line) writes one of step 10".into(),
        ),
    }
    figures.push(ran::memory(records, &planned));
    figures.push(planned::stages(&planned));
    figures.push(ran::course(records));
    Ok((figures, missing))
}
