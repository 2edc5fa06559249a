//! `zero3 plan`: the plan of a deck on paper. No MPI, no data, no device.

use super::args::PlanArgs;
use super::backend_choice::check_kernels;
use crate::backend::Device;
use crate::backend::cpu::CpuDevice;
use crate::backend::cuda::CudaDevice;
use crate::config::{BackendKind, Deck};
use crate::error::Result;
use crate::model::Model;
use crate::plan::Plan;
use crate::plan::table::{Paper, Shape};
use crate::train::{budget, planning};

/// The plan of a deck's model on `n_ranks` ranks, within the deck's budget. `run.backend = "auto"` is planned for CPUs: what a
/// node has is not looked at.
pub fn of_deck(deck: &Deck, n_ranks: usize) -> Result<(Model, Plan)> {
    match deck.run.backend {
        BackendKind::Cuda => {
            check_kernels(deck)?;
            within_budget::<CudaDevice>(deck, n_ranks)
        }
        BackendKind::Auto | BackendKind::Cpu => within_budget::<CpuDevice>(deck, n_ranks),
    }
}

/// The same for a deck of which nobody has said how many ranks it is for: its budget must be kept by some number of them.
pub fn of_deck_on_any_ranks(deck: &Deck) -> Result<(Model, Plan)> {
    let keeps = |&n: &usize| of_deck(deck, n).is_ok();
    let n_ranks = (0..=16).map(|k| 1 << k).find(keeps);
    of_deck(deck, n_ranks.unwrap_or(1))
}

fn within_budget<D: Device>(deck: &Deck, n_ranks: usize) -> Result<(Model, Plan)> {
    let (model, plan) = planning::of_deck::<D>(deck, n_ranks)?;
    budget::check::<D>(deck, &plan)?;
    Ok((model, plan))
}

/// The printed plan, as text or JSON.
pub fn run(args: &PlanArgs) -> Result<String> {
    let deck = Deck::load(&args.deck.path, &args.deck.overrides)?;
    let (model, plan) = of_deck(&deck, args.n_ranks)?;
    let shape = Shape {
        n_micro: deck.train.global_batch_size / deck.train.micro_batch_size,
        ranks_per_node: args.ranks_per_node.unwrap_or(args.n_ranks),
    };
    let paper = Paper::new(&model.spec, &plan, shape);
    Ok(if args.json { serde_json::to_string_pretty(&paper).expect("plain data") } else { paper.to_string() })
}
