//! `zero3 ckpt ...`: commands on checkpoint files.

use super::counts::{MAX_RANKS, count};
use crate::dtype::DType;
use std::path::PathBuf;

const CKPT_HELP: &str = "\
Examples:
  zero3 ckpt inspect runs/tiny
  zero3 ckpt inspect runs/tiny/checkpoints/step_00000300 --json

Exit codes: 0 success; 2 checkpoint missing or damaged; 70 internal error.";

const CKPT_VERIFY_HELP: &str = "\
Examples:
  zero3 ckpt verify runs/tiny
      the newest checkpoint of a run
  zero3 ckpt verify runs/tiny/checkpoints/step_00000300 --json

Exit codes: 0 intact; 2 checkpoint missing or damaged (the file, dataset and elements are named);
70 internal error.";

const CKPT_DIFF_HELP: &str = "\
Examples:
  zero3 ckpt diff runs/tiny runs/other
      the newest checkpoints of two runs, whatever their rank counts
  zero3 ckpt diff runs/tiny/checkpoints/step_00000200 runs/tiny/checkpoints/step_00000300 --json

Exit codes: 0 bitwise equal; 1 different (each parameter and its largest difference are listed);
2 checkpoint missing or damaged; 70 internal error.";

const CKPT_RESHARD_HELP: &str = "\
Examples:
  zero3 ckpt reshard runs/tiny runs/tiny-on-8 --ranks 8
  zero3 ckpt reshard runs/tiny/checkpoints/step_00000300 /scratch/archive --ranks 1
      then, for example:  mpirun -n 1 zero3 train inputs/tiny.toml --resume /scratch/archive

Exit codes: 0 success; 2 checkpoint missing or damaged, or the destination already has one;
5 write failed; 70 internal error.";

const CKPT_EXPORT_HELP: &str = "\
Examples:
  zero3 ckpt export runs/tiny tiny-hf
      then, in Python:  AutoModelForCausalLM.from_pretrained(\"tiny-hf\")
  zero3 ckpt export --dtype bf16 --max-shard-size 500MB runs/tiny/checkpoints/step_00000300 tiny-hf

Exit codes: 0 success; 2 checkpoint missing or damaged, or the directory is not empty;
5 write failed; 70 internal error.";

const CKPT_IMPORT_HELP: &str = "\
Examples:
  zero3 ckpt import gpt2 runs/gpt2 --ranks 4
      from a directory with config.json and model.safetensors (or its index)
  mpirun -n 2 zero3 train my.toml --resume runs/gpt2
      starts from it at step 0, as does model.init_from=runs/gpt2; the deck (see inputs/tiny.toml) must
      have the model's sizes

Exit codes: 0 success; 2 model not found, tensors missing, unexpected or of a wrong shape, or the
destination already has a checkpoint; 5 write failed; 70 internal error.";

/// Inspect, verify, compare and reshard checkpoints; export and import weights.
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

/// Show what a checkpoint contains.
///
/// Prints the step, rank count, model, parameters and the deck of the run, and checks that all files are
/// present. Needs no MPI.
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
/// Reports each damaged file, dataset and range of elements. A restore verifies what it reads; this verifies
/// everything, files in parallel, without a job. Needs no MPI.
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
/// The rank counts may differ. Lists the parameters that differ, the number of differing elements and the
/// largest difference. Needs no MPI.
#[derive(clap::Args, Debug, Clone, PartialEq, Eq)]
#[command(after_help = CKPT_DIFF_HELP)]
pub struct CkptDiffArgs {
    /// A run directory (its newest complete checkpoint) or a step directory.
    pub a: PathBuf,
    /// The run or step directory to compare it with.
    pub b: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Rewrite a checkpoint for another rank count, without a job.
///
/// Not required before a restore, which accepts any rank count. Use it to change the number of files, or to
/// copy a checkpoint with every digest verified. Memory use does not grow with the model. Needs no MPI.
#[derive(clap::Args, Debug, Clone, PartialEq, Eq)]
#[command(after_help = CKPT_RESHARD_HELP)]
pub struct CkptReshardArgs {
    /// A run directory (its newest complete checkpoint) or a step directory.
    pub source: PathBuf,
    /// The run directory to write to; it must not contain a checkpoint.
    pub run_dir: PathBuf,
    /// Rank count of the new checkpoint.
    #[arg(long = "ranks", value_name = "M", value_parser = count(1..=MAX_RANKS))]
    pub n_ranks: usize,
}

/// Export a checkpoint's weights for use by other programs.
///
/// Writes safetensors files with the names, shapes and config.json of Hugging Face transformers; a tied head
/// is written once. Holds one parameter in memory at a time. Needs no MPI.
#[derive(clap::Args, Debug, Clone, PartialEq, Eq)]
#[command(after_help = CKPT_EXPORT_HELP)]
pub struct CkptExportArgs {
    /// A run directory (its newest complete checkpoint) or a step directory.
    pub source: PathBuf,
    /// The directory to write to; it must be empty or not exist.
    pub out_dir: PathBuf,
    /// Output format.
    #[arg(long, value_name = "safetensors", default_value = "safetensors", value_parser = ["safetensors"])]
    format: String,
    /// f32 (the master weights, unchanged) or bf16 (rounded to nearest even).
    #[arg(long, value_name = "f32|bf16", default_value = "f32", value_parser = parse_dtype)]
    pub dtype: DType,
    /// Approximate size of a file: bytes, or KB, MB, GB (powers of 1000), KiB, MiB, GiB (of 1024).
    #[arg(long = "max-shard-size", value_name = "SIZE", default_value = "5GB", value_parser = parse_size)]
    pub max_shard_bytes: u64,
}

/// Create a checkpoint from another program's weights.
///
/// Reads safetensors files (f32, bf16, f16, f64) with the names and shapes of Hugging Face transformers,
/// either one file or those an index lists, and writes a checkpoint of step 0. All tensors that are missing,
/// unexpected or of a wrong shape are reported. Memory use does not grow with the model. Needs no MPI.
#[derive(clap::Args, Debug, Clone, PartialEq, Eq)]
#[command(after_help = CKPT_IMPORT_HELP)]
pub struct CkptImportArgs {
    /// A directory with config.json and model.safetensors (or its index), or such a file next to its
    /// config.json.
    pub source: PathBuf,
    /// The run directory to write to; it must not contain a checkpoint.
    pub run_dir: PathBuf,
    /// Rank count of the checkpoint. A restore accepts any rank count.
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
