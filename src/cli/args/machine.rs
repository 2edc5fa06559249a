//! Hardware checks: `zero3 accept` for a cluster, `zero3 device check` for one GPU.

use super::words::DeckArgs;
use std::path::PathBuf;

const ACCEPT_HELP: &str = "\
Examples:
  mpirun -n 2 zero3 accept inputs/acceptance_quick.toml run.dir=runs/acceptance
      takes less than a minute on two cores; runs/acceptance/report.html has the plots
  sbatch --nodes=16 slurm/acceptance.sbatch
  srun -n 128 zero3 accept inputs/acceptance.toml --record-baseline good.json
      then, after the next maintenance:  ... --baseline good.json

Exit codes: 0 accepted; 2 bad deck or baseline; 3 not accepted; 5 communication, device or I/O failure,
or out of time; 70 internal error.";

const DEVICE_HELP: &str = "\
Examples:
  zero3 device check
  zero3 device check --device 1 --json

Exit codes: 0 all kernels within tolerance; 1 a kernel out of tolerance; 5 no GPU available, or it failed;
70 internal error.";

/// Run the acceptance benchmark of a cluster.
///
/// Measures devices, collectives, storage, training, scaling and restarts on the job's ranks, checks every
/// result, compares the figures with the deck's limits and a baseline, names outlier ranks, nodes and links,
/// and ends with one line: VALID or INVALID, ACCEPTED or NOT ACCEPTED. docs/acceptance.md explains each
/// figure and the deck.
#[derive(clap::Args, Debug, Clone, PartialEq, Eq)]
#[command(override_usage = "zero3 accept DECK [KEY=VALUE ...] [--baseline FILE] [--record-baseline FILE] \
    [--record-answers FILE]")]
#[command(after_help = ACCEPT_HELP)]
pub struct AcceptArgs {
    #[command(flatten)]
    pub deck: DeckArgs,
    /// Compare figures with those of an earlier run, where the deck gives no reference.
    #[arg(long, value_name = "FILE")]
    pub baseline: Option<PathBuf>,
    /// Write this run's figures as a baseline for later runs; not if the run is INVALID.
    #[arg(long, value_name = "FILE")]
    pub record_baseline: Option<PathBuf>,
    /// Add this run's losses, as golden losses, to a file for training.known_answers.
    #[arg(long, value_name = "FILE")]
    pub record_answers: Option<PathBuf>,
}

/// Check a GPU of this node.
#[derive(clap::Subcommand, Debug, Clone, PartialEq, Eq)]
#[command(after_help = DEVICE_HELP)]
pub enum DeviceCommand {
    Check(DeviceCheckArgs),
}

/// Compare every GPU kernel with a naive f64 implementation, and time it.
///
/// Prints a line per kernel and element type: its error, its tolerance, its time on the shapes of GPT-2 124M,
/// and the resulting bandwidth or TFLOP/s. Needs one GPU, and no MPI.
#[derive(clap::Args, Debug, Clone, PartialEq, Eq)]
#[command(after_help = DEVICE_HELP)]
pub struct DeviceCheckArgs {
    /// CUDA ordinal of the device.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub device: usize,
    /// Time small shapes; the figures do not reflect speed.
    #[arg(long)]
    pub small: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Also write JSON to a file.
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
}
