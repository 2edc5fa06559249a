//! The subject of `zero3 plan`: the deck of a file, of a published model or of a parameter count, with
//! overrides, on a number of ranks, and its predictions.

use super::args::{PlanOf, PlanSubject};
use crate::config::hardware::{self, Hardware};
use crate::config::{BackendKind, Deck, Preset};
use crate::error::{Error, Fault, Result};
use crate::model::{self, Model, visit_kernels};
use crate::plan::Plan;
use crate::plan::forecast::advice::Overrides;
use crate::plan::forecast::model_size::{self, Shape};
use crate::plan::forecast::{Forecast, Subject};
use crate::train::for_kind;
use std::path::Path;

/// Sequence length without a deck.
const TOKENS_OF_MICRO_BATCH: usize = 8192;
/// Vocabulary size of a model of a given parameter count, unless overridden: GPT-2's.
const VOCAB_SIZE: usize = 50257;
const SEQ_LEN: usize = 1024;

/// A subject and its overrides.
pub struct Planner<'a> {
    of: &'a PlanOf,
    /// Keys of the deck.
    overrides: Overrides,
    /// Keys of the hardware file.
    of_hardware: Overrides,
    hardware: Option<&'a Path>,
    micro_batches_per_rank: Option<usize>,
}

/// A deck planned for a rank count.
pub struct PlannedDeck {
    /// The deck.
    pub deck: Deck,
    /// Its model.
    pub model: Model,
    /// Its plan.
    pub plan: Plan,
}

impl PlannedDeck {
    /// Rejects a plan that exceeds the deck's own budget.
    pub fn check_budget(&self) -> Result<()> {
        for_kind::check_budget(self.deck.run.backend, &self.deck, &self.plan)
    }

    /// A change that would fit `bytes` on each rank, as text.
    pub fn what_fits(&self, bytes: u64) -> String {
        for_kind::what_fits(self.deck.run.backend, &self.deck, self.plan.world_size, bytes)
    }

    /// The prediction of a step.
    pub fn forecast(&self, hardware: &Hardware, per_node: usize) -> Result<Forecast> {
        let works = visit_kernels::of_model(&self.model, model::precision(&self.deck));
        let subject = Subject {
            spec: &self.model.spec,
            works: &works,
            plan: &self.plan,
            n_micro: self.deck.train.n_micro(),
            per_node,
            tf32: self.deck.run.tf32,
        };
        Forecast::new(&subject, hardware)
    }
}

impl<'a> Planner<'a> {
    /// Sorts the command line's overrides.
    pub fn new(
        subject: &'a PlanSubject,
        hardware: Option<&'a Path>,
        micro_batches_per_rank: Option<usize>,
    ) -> Result<Self> {
        let (of_hardware, overrides): (Overrides, Overrides) =
            subject.overrides.iter().cloned().partition(|(key, _)| hardware::is_key(key));
        if let (None, Some((key, _))) = (hardware, of_hardware.first()) {
            return Err(Error::Input(format!("{key} is a key of hardware files: pass one with --hardware")));
        }
        Ok(Planner { of: &subject.of, overrides, of_hardware, hardware, micro_batches_per_rank })
    }

    /// The hardware, with the overrides `more`; none without --hardware.
    pub fn hardware(&self, more: &[(String, String)]) -> Result<Option<Hardware>> {
        let more = more.iter().filter(|(key, _)| hardware::is_key(key));
        let overrides: Overrides = self.of_hardware.iter().chain(more).cloned().collect();
        self.hardware.map(|name| Hardware::named(name, &overrides)).transpose()
    }

    /// The deck for `n_ranks`, with the overrides `more`.
    pub fn deck(
        &self,
        n_ranks: usize,
        hardware: Option<&Hardware>,
        more: &[(String, String)],
    ) -> Result<Deck> {
        let more = more.iter().filter(|(key, _)| !hardware::is_key(key));
        let mut overrides: Overrides = self.overrides.iter().chain(more).cloned().collect();
        let deck = self.load(&overrides)?;
        let n_before = overrides.len();
        if hardware.is_some_and(|h| h.hardware.kind == BackendKind::Cuda.device_kind()) {
            match deck.run.backend {
                BackendKind::Auto => overrides.push(("run.backend".into(), BackendKind::Cuda.name().into())),
                BackendKind::Cuda => {}
                BackendKind::Cpu => {
                    let wants = "\"cuda\" or \"auto\" on this hardware, whose devices are GPUs".into();
                    return Err(Error::Deck(vec![Fault {
                        key: "run.backend".into(),
                        value: "cpu".into(),
                        wants,
                    }]));
                }
            }
        }
        let key = "train.global_batch_size";
        let is_written = overrides.iter().any(|(written, _)| written == key);
        let has_deck = matches!(self.of, PlanOf::Deck(_));
        let per_rank = self.micro_batches_per_rank.or((!has_deck).then_some(1));
        if let Some(per_rank) = per_rank.filter(|_| !is_written) {
            overrides.push((key.into(), (per_rank * n_ranks * deck.train.micro_batch_size).to_string()));
        }
        if overrides.len() > n_before { self.load(&overrides) } else { Ok(deck) }
    }

    fn load(&self, overrides: &[(String, String)]) -> Result<Deck> {
        match self.of {
            PlanOf::Deck(path) => Deck::load(path, overrides),
            PlanOf::Model(preset) => Deck::parse(&deck_of_model(*preset), overrides, "--model"),
            PlanOf::Params(_) => {
                let Shape { n_layer, n_head, d_model } = self.shape()?.expect("there is a count");
                let sizes = format!(
                    "n_layer = {n_layer}\nn_head = {n_head}\nd_model = {d_model}\nseq_len = \
                     {SEQ_LEN}\nvocab_size = {VOCAB_SIZE}"
                );
                Deck::parse(&deck_text(&sizes, SEQ_LEN), overrides, "--params")
            }
            PlanOf::Machine => Err(Error::Internal("a machine is measured, not planned".into())),
        }
    }

    /// The sizes chosen for a parameter count.
    ///
    /// # Errors
    /// The count is too small.
    pub fn shape(&self) -> Result<Option<Shape>> {
        let PlanOf::Params(count) = *self.of else { return Ok(None) };
        let written =
            |key: &str| self.overrides.iter().rev().find(|(k, _)| k == key).and_then(|(_, v)| v.parse().ok());
        let vocab_size = written("model.vocab_size").unwrap_or(VOCAB_SIZE);
        model_size::of_count(count, vocab_size, written("model.seq_len").unwrap_or(SEQ_LEN)).map(Some)
    }

    /// The exact parameter count that was requested, if the subject is a count.
    pub fn count(&self) -> Option<u64> {
        if let PlanOf::Params(count) = *self.of { Some(count) } else { None }
    }

    /// The plan of this deck, whatever memory it requires.
    pub fn plan(
        &self,
        n_ranks: usize,
        hardware: Option<&Hardware>,
        more: &[(String, String)],
    ) -> Result<PlannedDeck> {
        let deck = self.deck(n_ranks, hardware, more)?;
        let (model, plan) = for_kind::plan(deck.run.backend, &deck, n_ranks)?;
        Ok(PlannedDeck { deck, model, plan })
    }
}

fn deck_of_model(preset: Preset) -> String {
    let seq_len = preset.sizes().map_or(SEQ_LEN, |sizes| sizes.seq_len);
    deck_text(&format!("preset = \"{preset}\""), seq_len)
}

/// Defaults without a deck: mixed precision as in arXiv:1910.02054, micro-batches of 8192 tokens.
fn deck_text(model: &str, seq_len: usize) -> String {
    let micro_batch_size = (TOKENS_OF_MICRO_BATCH / seq_len).max(1);
    format!(
        "[run]\ndir = \"runs/planned\"\n[model]\n{model}\n[data]\ntrain = [\"tokens.u32\"]\nformat = \
         \"raw_u32\"\n[train]\nsteps = 1\nmicro_batch_size = {micro_batch_size}\n[zero]\nparam_dtype = \
         \"bf16\"\ngrad_dtype = \"bf16\"\nreduce_dtype = \"bf16\"\n"
    )
}
