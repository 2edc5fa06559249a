//! Inference: `zero3 sample` and `zero3 eval`.

use super::counts::count;
use super::words::{DeckArgs, parse_override};
use clap::builder::{OsStringValueParser, TypedValueParser};
use std::path::PathBuf;

const SAMPLE_HELP: &str = "\
Examples:
  zero3 sample runs/tiny --prompt 'The '
  mpirun -n 4 zero3 sample runs/tiny --prompt 'The ' --temperature 0.8 --top-k 40 --seed 7
      the same text on any number of ranks
  zero3 sample runs/web --prompt 'Once upon a time' data.tokenizer=gpt2
      for a run whose deck names no tokenizer

Exit codes: 0 success; 2 checkpoint missing or damaged, or prompt or tokenizer does not match it;
4 non-finite values; 5 communication or device failure; 70 internal error.";

const EVAL_HELP: &str = "\
Examples:
  zero3 eval runs/tiny inputs/tiny.toml
  mpirun -n 4 zero3 eval runs/tiny inputs/tiny.toml data.val=other.txt --stride 16 --json
      the same digits on any number of ranks

Exit codes: 0 success; 2 checkpoint missing or damaged, or bad data; 4 the loss is not finite;
5 communication or device failure; 70 internal error.";

/// Generate text from a checkpoint.
///
/// Each rank holds only its slices of the parameters and gathers unit by unit, as in training; a token costs
/// one row of compute and one gather of every unit. The same seed gives the same text on any number of ranks.
/// The deck is the one stored in the checkpoint; KEY=VALUE overrides it (run.backend, run.threads_per_rank,
/// data.tokenizer ...).
#[derive(clap::Args, Debug, Clone, PartialEq)]
#[command(override_usage = "zero3 sample CHECKPOINT --prompt TEXT [--temperature T] [--top-k K] [--seed S] \
                            [--max-tokens N] [KEY=VALUE ...]")]
#[command(after_help = SAMPLE_HELP)]
pub struct SampleArgs {
    /// A run directory (its newest complete checkpoint) or a step directory.
    pub checkpoint: PathBuf,
    /// Start of the text; empty = the document token, if the tokenizer has one.
    #[arg(long, value_name = "TEXT")]
    pub prompt: String,
    /// Divides the logits before sampling: lower values favour likely tokens, 0 = greedy.
    #[arg(long, value_name = "T", default_value = "1", value_parser = parse_temperature)]
    pub temperature: f64,
    /// Sample from the K most likely tokens only; 0 = from all.
    #[arg(long, value_name = "K", default_value = "0")]
    pub top_k: usize,
    /// Random seed.
    #[arg(long, value_name = "S", default_value = "1")]
    pub seed: u64,
    /// Maximum number of tokens to generate. When the context is full, its last half is carried over.
    #[arg(long, value_name = "N", default_value = "200", value_parser = count(1..))]
    pub max_tokens: usize,
    /// Deck keys to override.
    #[arg(value_name = "KEY=VALUE", value_parser = OsStringValueParser::new().try_map(parse_override))]
    pub overrides: Vec<(String, String)>,
}

/// Compute a checkpoint's loss, perplexity and bits per byte on a text.
///
/// The text is the deck's validation data, or its training data if it has none; the model's sizes come from
/// the checkpoint, not from the deck, unless overridden by KEY=VALUE. A window of model.seq_len tokens slides
/// over the text: every token but the first is predicted once, from at least model.seq_len - stride preceding
/// tokens. The result is the same to the last digit on any number of ranks.
#[derive(clap::Args, Debug, Clone, PartialEq, Eq)]
#[command(override_usage = "zero3 eval CHECKPOINT DECK [KEY=VALUE ...] [--stride N] [--json]")]
#[command(after_help = EVAL_HELP)]
pub struct EvalArgs {
    /// A run directory (its newest complete checkpoint) or a step directory.
    pub checkpoint: PathBuf,
    #[command(flatten)]
    pub deck: DeckArgs,
    /// Tokens between the starts of consecutive windows; at most model.seq_len, by default half of it.
    #[arg(long, value_name = "N", value_parser = count(1..))]
    pub stride: Option<usize>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

fn parse_temperature(word: &str) -> Result<f64, String> {
    word.parse().ok().filter(|t| (0.0..=100.0).contains(t)).ok_or_else(|| "a number from 0 to 100".into())
}
