//! The output of a run before its first step: ranks, model, data, and the figures of the plan.
//!
//! Must not know: later output.

use crate::backend::{Backend, Comm, Device};
use crate::human;
use crate::plan::MicroBatches;
use crate::train::batches::Batches;
use crate::train::job::Job;
use crate::train::state::Position;
use crate::train::stepper::Stepper;

/// Logs it. Rank 0 only.
pub(super) fn banner<B: Backend>(job: &Job, stepper: &Stepper<'_, B>, batches: &Batches, start: Position) {
    let (deck, plan, spec) = (&job.deck, stepper.plan, &stepper.model.spec);
    let n = stepper.comm.size();
    let t = &deck.train;
    let dims = &stepper.model.dims;
    let n_micro = t.n_micro();
    let ranks = human::counted(n, "rank");
    log::info!("{ranks}, each {}", stepper.device.describe());
    log::info!(
        "model: {} parameters, {} layers, {} heads, width {}, {} tokens, vocabulary {}",
        spec.numel(),
        dims.n_layer,
        dims.n_heads,
        dims.c,
        dims.t,
        dims.vocab
    );
    log::info!(
        "data: {} training tokens, {} validation tokens, digest {}",
        batches.train().n_tokens(),
        batches.val().map_or(0, |v| v.n_tokens()),
        batches.digest
    );
    log::info!(
        "step: {} sequences = {n_micro} micro-batches of {}, in {} of {ranks}",
        t.global_batch_size,
        t.micro_batch_size,
        human::counted(MicroBatches::new(n_micro, n).micro_steps(), "micro-step"),
    );
    let volume = plan.step_volume(0, n_micro);
    log::info!(
        "plan: {} at rest and {} at peak on each rank; {} gathered and {} reduced per step",
        human::bytes(plan.resident_bytes()),
        human::bytes(plan.training_peaks().total),
        human::bytes(volume.all_gather_bytes),
        human::bytes(volume.reduce_scatter_bytes)
    );
    match start.step {
        0 => log::info!("training to step {}, logs and checkpoints in {}", t.steps, deck.run.dir),
        step => {
            log::info!("training from step {step} to {}, logs and checkpoints in {}", t.steps, deck.run.dir)
        }
    }
}
