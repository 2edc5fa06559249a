//! The machine: `zero3 accept` of a whole cluster, `zero3 device check` of one GPU.

use super::words::DeckArgs;
use std::path::PathBuf;

const ACCEPT_HELP: &str = "\
Examples:
  mpirun -n 2 zero3 accept inputs/acceptance_quick.toml run.dir=runs/acceptance
      well under a minute on two cores; runs/acceptance/report.html has the plots
  sbatch --nodes=16 slurm/acceptance.sbatch
  srun -n 128 zero3 accept inputs/acceptance.toml --record-baseline good.json
      then, after the next maintenance:  ... --baseline good.json

Exit codes: 0 accepted; 2 bad deck or baseline; 3 not accepted; 5 communication, device or I/O failure, or out of time; \
70 internal error.";

const DEVICE_HELP: &str = "\
Examples:
  zero3 device check
  zero3 device check --device 1 --json

Exit codes: 0 all kernels keep to their tolerance; 1 one does not; 5 no GPU to be had, or it failed; 70 internal error.";

/// Say whether this cluster can be signed for, with reasons.
///
/// Measures devices, collectives, storage, training, scaling and restarts of the job's ranks, checks every
/// result, holds the figures against the deck's limits and a baseline, names the rank, node or link that
/// stands out, and ends with one line: VALID or INVALID, ACCEPTED or NOT ACCEPTED. docs/acceptance.md
/// explains each figure and the deck.
#[derive(clap::Args, Debug, Clone, PartialEq, Eq)]
#[command(override_usage = "zero3 accept DECK [KEY=VALUE ...] [--baseline FILE] [--record-baseline FILE] \
    [--record-answers FILE]")]
#[command(after_help = ACCEPT_HELP)]
pub struct AcceptArgs {
    #[command(flatten)]
    pub deck: DeckArgs,
    /// Hold figures against those of an earlier run, where the deck gives no reference.
    #[arg(long, value_name = "FILE")]
    pub baseline: Option<PathBuf>,
    /// Write this run's figures for later runs to be held against; not where the run is INVALID.
    #[arg(long, value_name = "FILE")]
    pub record_baseline: Option<PathBuf>,
    /// Add this run's losses, as golden ones, to a file for training.known_answers.
    #[arg(long, value_name = "FILE")]
    pub record_answers: Option<PathBuf>,
}

/// Check this node's GPU.
#[derive(clap::Subcommand, Debug, Clone, PartialEq, Eq)]
#[command(after_help = DEVICE_HELP)]
pub enum DeviceCommand {
    Check(DeviceCheckArgs),
}

/// Hold every kernel of a GPU against its naive sibling in f64, and time it.
///
/// Prints a line for each kernel and element type: its error, what is allowed, its time on the shapes of
/// GPT-2 124M, and the bandwidth or TFLOP/s that makes. Needs one GPU, and no MPI.
#[derive(clap::Args, Debug, Clone, PartialEq, Eq)]
#[command(after_help = DEVICE_HELP)]
pub struct DeviceCheckArgs {
    /// CUDA ordinal of the device.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub device: usize,
    /// Time small shapes: says nothing of speed.
    #[arg(long)]
    pub small: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Write JSON to a file, too.
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
}
