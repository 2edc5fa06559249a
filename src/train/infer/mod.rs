//! Inference: the loss of a model on a text, and text generation.
//!
//! Ranks hold only their slices of the parameters, and gather unit by unit as in training. Must not know:
//! optimizers.

pub mod evaluate;
mod finite;
pub mod generate;

use crate::backend::agree::all_or_none;
use crate::backend::{Backend, Comm, Device};
use crate::checkpoint::{Kind, Reader};
use crate::config::Deck;
use crate::error::{Error, Result};
use crate::liveness::FlightRecorder;
use crate::model::Model;
use crate::plan::generation::Ran;
use crate::plan::{Knobs, Plan};
use crate::telemetry::Phase;
use crate::text::tokenizer::TextTokenizer;
use crate::train::stepper::{Parts, Stepper};
use generate::{Choice, Decoders, generate};
use std::path::Path;
use std::time::Duration;

/// Generates a text every `train.sample_every` steps of a run.
pub struct Sampler {
    tokenizer: TextTokenizer,
    decoders: Decoders,
    prompt_text: String,
    prompt: Vec<u32>,
    n_tokens: usize,
}

impl Sampler {
    /// Number of most probable tokens that a token is sampled from.
    const TOP_K: usize = 50;

    /// For a deck that samples. Collective.
    ///
    /// # Errors
    /// The tokenizer does not exist; the prompt has no tokens, or one outside the model's vocabulary.
    pub fn open<B: Backend>(comm: &B::Comm, deck: &Deck) -> Result<Self> {
        let prompt_text = deck.train.sample_prompt.clone();
        let loaded = TextTokenizer::load(&deck.data.tokenizer, None);
        let (prompt, tokenizer) = with_prompt(comm, loaded, &prompt_text, deck)?;
        let decoders = Decoders::of_deck::<B::Device>(deck);
        Ok(Sampler { tokenizer, decoders, prompt_text, prompt, n_tokens: deck.train.sample_tokens })
    }

    /// Generates a text and prints it on rank 0; returns the programs that ran. Collective.
    pub fn sample<B: Backend>(&self, stepper: &mut Stepper<'_, B>, step: u64, quiet: bool) -> Result<Ran> {
        stepper.flight.at(step, "sample", None);
        let outer = stepper.timer.switch(Phase::Evaluation);
        let choice = Choice { temperature: 1.0, top_k: Self::TOP_K, seed: step };
        let end = self.tokenizer.document_token();
        let generated = generate(stepper, &self.decoders, &self.prompt, self.n_tokens, choice, end)?;
        stepper.timer.switch(outer);
        if stepper.comm.rank() == 0 && !quiet {
            let text = self.tokenizer.decode(&generated.tokens);
            log::info!("sample at step {step}: {}{}", self.prompt_text, String::from_utf8_lossy(&text));
        }
        Ok(generated.ran)
    }
}

/// The tokens of a prompt, and the tokenizer that made them; an error is the same on every rank. Collective.
///
/// # Errors
/// The tokenizer could not be loaded; the prompt has no tokens.
pub fn with_prompt<C: Comm>(
    comm: &C,
    loaded: Result<TextTokenizer>,
    prompt: &str,
    deck: &Deck,
) -> Result<(Vec<u32>, TextTokenizer)> {
    let opened = loaded.and_then(|tokenizer| Ok((prompt_tokens(&tokenizer, prompt, deck)?, tokenizer)));
    let mut both = None;
    all_or_none(comm, opened.map(|opened| _ = both.insert(opened)))?;
    Ok(both.expect("no rank failed"))
}

/// The tokens of a prompt; for an empty one, the document token.
///
/// # Errors
/// There are none, some cannot be encoded, or some are not in the model's vocabulary.
fn prompt_tokens(tokenizer: &TextTokenizer, prompt: &str, deck: &Deck) -> Result<Vec<u32>> {
    let mut tokens = Vec::new();
    tokenizer
        .encode(prompt.as_bytes(), &mut tokens)
        .map_err(|fault| Error::Input(format!("the prompt, byte {}: {}", fault.offset, fault.what)))?;
    if tokens.is_empty() {
        tokens.extend(tokenizer.document_token());
    }
    let vocab_size = deck.model.vocab_size;
    match tokens.iter().find(|&&token| token as usize >= vocab_size) {
        Some(token) => Err(Error::Input(format!(
            "the prompt has token {token} of {}, but the model's vocabulary is {vocab_size}: data.tokenizer \
             is not the model's",
            tokenizer.name()
        ))),
        None if tokens.is_empty() => Err(Error::Input(format!(
            "the prompt is empty, and {} has no document token to start with",
            tokenizer.name()
        ))),
        None => Ok(tokens),
    }
}

/// A flight recorder that writes nothing and monitors no rank.
pub fn silent_flight<C: Comm>(comm: &C) -> Result<FlightRecorder> {
    FlightRecorder::start(Path::new(""), comm.rank(), Vec::new(), Vec::new(), Duration::ZERO, || {})
        .map_err(|e| Error::Internal(format!("a recorder without a file: {e}")))
}

/// Loads the weights of the step directory `dir` for the model of `deck`, sharded over the ranks of `comm`,
/// and calls `work`; `decoders` adds memory for generation. Collective.
///
/// # Errors
/// The checkpoint is of a different model, or damaged; a rank has too little memory; errors of `work`.
pub fn with_weights<B: Backend, T>(
    device: &B::Device,
    comm: &B::Comm,
    deck: &Deck,
    dir: &Path,
    decoders: Option<&Decoders>,
    work: impl FnOnce(&mut Stepper<'_, B>) -> Result<T>,
) -> Result<T> {
    let model = Model::of_deck::<B::Device>(deck);
    let mut plan = Plan::new(&model.spec, comm.size(), &Knobs::of_inference(deck))?;
    if let Some(decoders) = decoders {
        decoders.plan::<B::Device>(&mut plan)?;
    }
    device.release();
    let flight = silent_flight(comm)?;
    let poison = cfg!(debug_assertions);
    let parts = Parts { device, comm, model: &model, plan: &plan, flight, n_sums: 0, poison };
    let mut stepper: Stepper<'_, B> = Stepper::allocate(parts)?;
    stepper.timer.switch(Phase::Evaluation);
    let loaded = load(&mut stepper, deck, dir);
    all_or_none(comm, loaded)?;
    work(&mut stepper)
}

/// This rank's slices of the weights, rounded to the type of compute.
fn load<B: Backend>(stepper: &mut Stepper<'_, B>, deck: &Deck, dir: &Path) -> Result<()> {
    let mut reader = Reader::open_with(dir, deck.checkpoint.locking)?;
    let faults = super::state::unlike(reader.manifest(), &stepper.model.spec);
    if !faults.is_empty() {
        return Err(Error::Input(format!(
            "{} is of a different model:\n  {}",
            dir.display(),
            faults.join("\n  ")
        )));
    }
    super::state::for_each_owned_slice(stepper, &[Kind::Weight], |_, slice, kind, values| {
        reader.read(slice.param, kind, slice.range(), values)
    })
}
