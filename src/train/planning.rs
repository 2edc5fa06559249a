//! From a deck to the model and the plan of a run: what `zero3 plan` prints and a run executes.
//!
//! Pure. Must not know: whether the planned device exists.

use super::infer::generate::Decoders;
use super::save;
use crate::backend::Device;
use crate::config::Deck;
use crate::error::Result;
use crate::model::Model;
use crate::plan::{Knobs, MicroBatches, Plan};

/// The model of a deck and its plan on `n_ranks` ranks, for devices of type `D`.
///
/// # Errors
/// A cap in the deck cannot be met.
pub fn of_deck<D: Device>(deck: &Deck, n_ranks: usize) -> Result<(Model, Plan)> {
    let model = Model::of_deck::<D>(deck);
    let mut plan = Plan::new(&model.spec, n_ranks, &Knobs::from_deck(deck))?;
    if deck.train.sample_every > 0 {
        Decoders::of_deck::<D>(deck).plan::<D>(&mut plan)?;
    }
    save::plan_staging(&mut plan, deck);
    plan.pinned_bytes = D::reserved_bytes(n_sums(deck, n_ranks), model.spec.tokens_per_micro_batch);
    Ok((model, plan))
}

/// Number of pending sums of losses: one for each micro-step of a step or of a validation.
pub fn n_sums(deck: &Deck, n_ranks: usize) -> usize {
    let train = &deck.train;
    let n_eval = if train.eval_every > 0 { train.eval_batches as usize } else { 0 };
    MicroBatches::new(train.n_micro().max(n_eval), n_ranks).micro_steps()
}
