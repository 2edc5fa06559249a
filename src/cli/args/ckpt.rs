//! `zero3 ckpt ...`: checkpoints as files.

use super::counts::{MAX_RANKS, count};
use crate::dtype::DType;
use std::path::PathBuf;

const CKPT_HELP: &str = "\
Examples:
  zero3 ckpt inspect runs/tiny
  zero3 ckpt inspect runs/tiny/checkpoints/step_00000300 --json

Exit codes: 0 finished; 2 no checkpoint there, or a damaged one; 70 internal error.";

const CKPT_VERIFY_HELP: &str = "\
Examples:
  zero3 ckpt verify runs/tiny
      the newest checkpoint of a run
  zero3 ckpt verify runs/tiny/checkpoints/step_00000300 --json

Exit codes: 0 all as written; 2 no checkpoint there, or damage: which file, dataset and elements; 70 internal error.";

const CKPT_DIFF_HELP: &str = "\
Examples:
  zero3 ckpt diff runs/tiny runs/other
      the newest checkpoints of two runs, whatever their rank counts
  zero3 ckpt diff runs/tiny/checkpoints/step_00000200 runs/tiny/checkpoints/step_00000300 --json

Exit codes: 0 equal, bit for bit; 1 they differ: which parameter, how far; 2 no checkpoint there, or a damaged \
one; 70 internal error.";

const CKPT_RESHARD_HELP: &str = "\
Examples:
  zero3 ckpt reshard runs/tiny runs/tiny-on-8 --ranks 8
  zero3 ckpt reshard runs/tiny/checkpoints/step_00000300 /scratch/archive --ranks 1
      then, if you like:  mpirun -n 1 zero3 train inputs/tiny.toml --resume /scratch/archive

Exit codes: 0 finished; 2 no checkpoint there, a damaged one, or the destination has one already; 5 it could not be \
written; 70 internal error.";

const CKPT_EXPORT_HELP: &str = "\
Examples:
  zero3 ckpt export runs/tiny tiny-hf
      then, in Python:  AutoModelForCausalLM.from_pretrained(\"tiny-hf\")
  zero3 ckpt export --dtype bf16 --max-shard-size 500MB runs/tiny/checkpoints/step_00000300 tiny-hf

Exit codes: 0 finished; 2 no checkpoint there, a damaged one, or the directory is not empty; 5 it could not be \
written; 70 internal error.";

const CKPT_IMPORT_HELP: &str = "\
Examples:
  zero3 ckpt import gpt2 runs/gpt2 --ranks 4
      of a directory with config.json and model.safetensors (or its index)
  mpirun -n 2 zero3 train my.toml --resume runs/gpt2
      trains on from it at step 0; so does model.init_from=runs/gpt2 (a deck as inputs/tiny.toml, of the same sizes)

Exit codes: 0 finished; 2 no such model, tensors amiss, or the destination has a checkpoint already; 5 it could not be \
written; 70 internal error.";

/// Look at checkpoints, cut them anew, exchange weights with other programs.
#[derive(clap::Subcommand, Debug, Clone, PartialEq, Eq)]
#[command(after_help = CKPT_HELP)]
pub enum CkptCommand {
    Inspect(CkptInspectArgs),
    Verify(CkptVerifyArgs),
    Diff(CkptDiffArgs),
    Reshard(CkptReshardArgs),
    Export(CkptExportArgs),
    Import(CkptImportArgs),
}

/// Say what a checkpoint holds.
///
/// Prints step, ranks, model, parameters and the deck it was made with, and checks that all its files are
/// there. Needs no MPI.
#[derive(clap::Args, Debug, Clone, PartialEq, Eq)]
#[command(after_help = CKPT_HELP)]
pub struct CkptInspectArgs {
    /// A run directory (its newest complete checkpoint) or a step directory.
    pub path: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Read every byte of a checkpoint and compare it with its digests.
///
/// Names each damage: the file, the dataset, the elements. A restore checks what it reads too; this checks
/// all of it, files side by side, without a job. Needs no MPI.
#[derive(clap::Args, Debug, Clone, PartialEq, Eq)]
#[command(after_help = CKPT_VERIFY_HELP)]
pub struct CkptVerifyArgs {
    /// A run directory (its newest checkpoint) or a step directory.
    pub path: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Compare the weights and optimizer states of two checkpoints, bit for bit.
///
/// The rank counts need not be the same. Says which parameters differ, in how many elements and how far.
/// Needs no MPI.
#[derive(clap::Args, Debug, Clone, PartialEq, Eq)]
#[command(after_help = CKPT_DIFF_HELP)]
pub struct CkptDiffArgs {
    /// A run directory (its newest complete checkpoint) or a step directory.
    pub a: PathBuf,
    /// Another one.
    pub b: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Write a checkpoint anew for another rank count, without a job.
///
/// A restore does not need this: it takes any rank count. Use it for fewer or more files, or to copy a
/// checkpoint with every digest checked. Takes little memory, whatever the model's size. Needs no MPI.
#[derive(clap::Args, Debug, Clone, PartialEq, Eq)]
#[command(after_help = CKPT_RESHARD_HELP)]
pub struct CkptReshardArgs {
    /// A run directory (its newest complete checkpoint) or a step directory.
    pub source: PathBuf,
    /// The run directory to write to; it may not hold a checkpoint yet.
    pub run_dir: PathBuf,
    /// Ranks to cut for.
    #[arg(long = "ranks", value_name = "M", value_parser = count(1..=MAX_RANKS))]
    pub n_ranks: usize,
}

/// Write a checkpoint's weights as other programs have them.
///
/// safetensors files with the names, shapes and config.json of Hugging Face's transformers; the tied head
/// once. Holds one parameter in memory at a time. Needs no MPI.
#[derive(clap::Args, Debug, Clone, PartialEq, Eq)]
#[command(after_help = CKPT_EXPORT_HELP)]
pub struct CkptExportArgs {
    /// A run directory (its newest complete checkpoint) or a step directory.
    pub source: PathBuf,
    /// The directory to write: empty, or not there.
    pub out_dir: PathBuf,
    /// The format.
    #[arg(long, value_name = "safetensors", default_value = "safetensors", value_parser = ["safetensors"])]
    format: String,
    /// f32 (the master weights as they are) or bf16 (rounded to nearest even).
    #[arg(long, value_name = "f32|bf16", default_value = "f32", value_parser = parse_dtype)]
    pub dtype: DType,
    /// Values in one file, about: bytes, or KB, MB, GB (powers of 1000), KiB, MiB, GiB (of 1024).
    #[arg(long = "max-shard-size", value_name = "SIZE", default_value = "5GB", value_parser = parse_size)]
    pub max_shard_bytes: u64,
}

/// Make a checkpoint of other programs' weights.
///
/// Reads safetensors files (f32, bf16, f16, f64) with the names and shapes of Hugging Face's transformers, a
/// single one or what an index lists, and writes a checkpoint of step 0. All tensors that are missing, too
/// many or misshapen are named. Takes little memory, whatever the model's size. Needs no MPI.
#[derive(clap::Args, Debug, Clone, PartialEq, Eq)]
#[command(after_help = CKPT_IMPORT_HELP)]
pub struct CkptImportArgs {
    /// A directory with config.json and model.safetensors (or its index), or such a file beside its
    /// config.json.
    pub source: PathBuf,
    /// The run directory to write to; it may not hold a checkpoint yet.
    pub run_dir: PathBuf,
    /// Ranks to cut for. A restore takes any number of ranks, whatever this one is.
    #[arg(long = "ranks", value_name = "N", default_value = "1", value_parser = count(1..=MAX_RANKS))]
    pub n_ranks: usize,
}

fn parse_dtype(word: &str) -> Result<DType, String> {
    match word {
        "f32" => Ok(DType::F32),
        "bf16" => Ok(DType::Bf16),
        _ => Err("f32 or bf16".into()),
    }
}

fn parse_size(word: &str) -> Result<u64, String> {
    let digits = word.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit: u64 = match &word[digits.len()..] {
        "" | "B" => 1,
        "KB" => 1000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => 0,
    };
    let bytes = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(unit)).filter(|&n| n > 0);
    bytes.ok_or_else(|| "a size such as 5GB, 500MB or 2GiB".into())
}
