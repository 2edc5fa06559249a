//! The plan of a run, recomputed from its deck.

use crate::error::Result;
use crate::params::ModelSpec;
use crate::plan::Plan;
use crate::report::recorded_run::RecordedRun;
use crate::train::for_kind;

/// The run's plan, recomputed: it is a function of deck, ranks and backend.
pub struct RunPlan {
    pub(super) spec: ModelSpec,
    pub(super) plan: Plan,
    pub(super) n_micro: usize,
}

impl RunPlan {
    /// Plans the run again.
    pub fn of(run: &RecordedRun) -> Result<Self> {
        let (model, plan) = for_kind::plan(run.backend, &run.deck, run.world_size)?;
        Ok(RunPlan { spec: model.spec, plan, n_micro: run.deck.train.n_micro() })
    }
}
