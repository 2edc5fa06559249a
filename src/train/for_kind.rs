//! Planning for a kind of backend without a device or a job: `zero3 plan`, dry runs, figures.
//!
//! Pure. Must not know: whether such a device is installed here.

use super::{budget, planning};
use crate::backend::kind::{OnKind, on_kind};
use crate::backend::{Backend, Device};
use crate::config::{BackendKind, Deck};
use crate::error::{Error, Fault, Result};
use crate::model::Model;
use crate::plan::Plan;

/// The model of a deck and its plan on `n_ranks` ranks, whatever memory it requires.
///
/// # Errors
/// The kernels of this kind cannot compute the model; a cap in the deck cannot be met.
pub fn plan(kind: BackendKind, deck: &Deck, n_ranks: usize) -> Result<(Model, Plan)> {
    check_kernels(kind, deck)?;
    on_kind(kind, Planned { deck, n_ranks })
}

struct Planned<'a> {
    deck: &'a Deck,
    n_ranks: usize,
}

impl OnKind for Planned<'_> {
    type Output = Result<(Model, Plan)>;

    fn on<B: Backend>(self) -> Self::Output {
        planning::of_deck::<B::Device>(self.deck, self.n_ranks)
    }
}

/// Rejects a plan that exceeds the deck's own budget; `plan` was made from `deck`.
///
/// # Errors
/// `run.memory_budget_bytes` is too small; the message names a change that would fit.
pub fn check_budget(kind: BackendKind, deck: &Deck, plan: &Plan) -> Result<()> {
    on_kind(kind, BudgetOf { deck, plan })
}

struct BudgetOf<'a> {
    deck: &'a Deck,
    plan: &'a Plan,
}

impl OnKind for BudgetOf<'_> {
    type Output = Result<()>;

    fn on<B: Backend>(self) -> Result<()> {
        budget::check::<B::Device>(self.deck, self.plan)
    }
}

/// What would fit `bytes` on each of `n_ranks` ranks, as text.
pub fn what_fits(kind: BackendKind, deck: &Deck, n_ranks: usize, bytes: u64) -> String {
    on_kind(kind, WhatFits { deck, n_ranks, bytes })
}

struct WhatFits<'a> {
    deck: &'a Deck,
    n_ranks: usize,
    bytes: u64,
}

impl OnKind for WhatFits<'_> {
    type Output = String;

    fn on<B: Backend>(self) -> String {
        budget::what_fits::<B::Device>(self.deck, self.n_ranks, self.bytes)
    }
}

/// Rejects a deck whose model the kernels of this kind cannot compute.
pub fn check_kernels(kind: BackendKind, deck: &Deck) -> Result<()> {
    on_kind(kind, Kernels { deck })
}

struct Kernels<'a> {
    deck: &'a Deck,
}

impl OnKind for Kernels<'_> {
    type Output = Result<()>;

    fn on<B: Backend>(self) -> Result<()> {
        let model = &self.deck.model;
        let d_head = model.head_dim;
        let Some(most) = B::Device::max_d_head().filter(|&most| d_head > most) else { return Ok(()) };
        let why = format!(
            "heads of {d_head} channels are too wide for the attention kernels on GPUs, which take {most}"
        );
        let follows_width = d_head == model.d_model / model.n_head;
        Err(Error::Deck(vec![if follows_width {
            Fault {
                key: "model.n_head".into(),
                value: model.n_head.to_string(),
                wants: format!("at least {}: {why}", model.d_model.div_ceil(most)),
            }
        } else {
            Fault {
                key: "model.head_dim".into(),
                value: d_head.to_string(),
                wants: format!("at most {most}: {why}"),
            }
        }]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_that_the_kernels_cannot_take_are_refused_with_what_would_do() {
        let mut deck = Deck::default();
        (deck.model.d_model, deck.model.n_head, deck.model.head_dim) = (384, 3, 128);
        assert!(check_kernels(BackendKind::Cuda, &deck).is_ok());
        (deck.model.n_head, deck.model.head_dim) = (2, 192);
        let refusal = check_kernels(BackendKind::Cuda, &deck).unwrap_err().to_string();
        assert!(refusal.contains("model.n_head = 2: at least 3: heads of 192 channels"), "{refusal}");
        assert!(check_kernels(BackendKind::Cpu, &deck).is_ok());
        assert!(check_kernels(BackendKind::Auto, &deck).is_ok());

        // Heads of a width of their own: the model's width says nothing of them.
        (deck.model.n_head, deck.model.head_dim) = (16, 256);
        let refusal = check_kernels(BackendKind::Cuda, &deck).unwrap_err().to_string();
        assert!(refusal.contains("model.head_dim = 256: at most 128: heads of 256 channels"), "{refusal}");
        (deck.model.n_head, deck.model.head_dim) = (2, 64);
        assert!(check_kernels(BackendKind::Cuda, &deck).is_ok(), "two heads of 64 in a width of 384");
    }
}
