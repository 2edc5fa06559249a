//! A trained model at work: `zero3 sample` and `zero3 eval`.

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
      the deck of the run named no tokenizer

Exit codes: 0 finished; 2 no checkpoint there, a damaged one, a prompt that is no text of the tokenizer, or \
tokens of another one; 4 the model computes values that are not finite; 5 communication or device failure; 70 internal error.";

const EVAL_HELP: &str = "\
Examples:
  zero3 eval runs/tiny inputs/tiny.toml
  mpirun -n 4 zero3 eval runs/tiny inputs/tiny.toml data.val=other.txt --stride 16 --json
      the same digits on any number of ranks

Exit codes: 0 finished; 2 no checkpoint there, a damaged one, or bad data; 4 the loss is not finite; 5 communication or \
device failure; 70 internal error.";

/// Write text with a checkpoint's model.
///
/// Ranks hold slices of the parameters alone and gather unit by unit as in training; each token costs one row
/// of computing and one gather of every unit. The same seed gives the same text on any number of ranks. The
/// deck is the checkpoint's own; KEY=VALUE changes it (run.backend, run.threads_per_rank, data.tokenizer
/// ...).
#[derive(clap::Args, Debug, Clone, PartialEq)]
#[command(override_usage = "zero3 sample CHECKPOINT --prompt TEXT [--temperature T] [--top-k K] [--seed S] \
                            [--max-tokens N] [KEY=VALUE ...]")]
#[command(after_help = SAMPLE_HELP)]
pub struct SampleArgs {
    /// A run directory (its newest complete checkpoint) or a step directory.
    pub checkpoint: PathBuf,
    /// How the text begins; empty = with the token that begins documents, where the tokenizer has one.
    #[arg(long, value_name = "TEXT")]
    pub prompt: String,
    /// Divides the logits before the draw: below 1 nearer to the likeliest, 0 = the likeliest token always.
    #[arg(long, value_name = "T", default_value = "1", value_parser = parse_temperature)]
    pub temperature: f64,
    /// Draw from the K likeliest tokens alone; 0 = from all.
    #[arg(long, value_name = "K", default_value = "0")]
    pub top_k: usize,
    /// Seed of the draws.
    #[arg(long, value_name = "S", default_value = "1")]
    pub seed: u64,
    /// Most tokens after the prompt. When the model's context is full it goes on with the last half of it.
    #[arg(long, value_name = "N", default_value = "200", value_parser = count(1..))]
    pub max_tokens: usize,
    /// Keys of the deck to change.
    #[arg(value_name = "KEY=VALUE", value_parser = OsStringValueParser::new().try_map(parse_override))]
    pub overrides: Vec<(String, String)>,
}

/// Give the loss, perplexity and bits per byte of a checkpoint's model on a text.
///
/// The text is the deck's validation data, or its training data where it has none; the model is the
/// checkpoint's, whatever sizes the deck has, unless KEY=VALUE says otherwise. A window of model.seq_len
/// tokens slides over the text: every token but the first is predicted once, from at least model.seq_len -
/// stride tokens before it. The same digits on any number of ranks.
#[derive(clap::Args, Debug, Clone, PartialEq, Eq)]
#[command(override_usage = "zero3 eval CHECKPOINT DECK [KEY=VALUE ...] [--stride N] [--json]")]
#[command(after_help = EVAL_HELP)]
pub struct EvalArgs {
    /// A run directory (its newest complete checkpoint) or a step directory.
    pub checkpoint: PathBuf,
    #[command(flatten)]
    pub deck: DeckArgs,
    /// Tokens from the start of a window to that of the next; at most model.seq_len. Without it: half of
    /// that.
    #[arg(long, value_name = "N", value_parser = count(1..))]
    pub stride: Option<usize>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

fn parse_temperature(word: &str) -> Result<f64, String> {
    word.parse().ok().filter(|t| (0.0..=100.0).contains(t)).ok_or_else(|| "a number from 0 to 100".into())
}
