//! Runs: `zero3 train`, `zero3 plan` before one, `zero3 report` and `zero3 watch` after and during one.

use super::counts::{MAX_RANKS, count};
use super::words::{DeckArgs, PlanSubject};
use crate::plan::forecast::sweep::Sweep;
use clap::builder::{OsStringValueParser, TypedValueParser};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

const TRAIN_HELP: &str = "\
Examples:
  mpirun -n 2 zero3 train inputs/tiny.toml
      train; the same command resumes from the newest checkpoint
  mpirun -n 3 zero3 train inputs/tiny.toml train.steps=600
      continue on three ranks, with more steps
  mpirun -n 2 zero3 train inputs/tiny.toml run.dir=/tmp/b 'data.train=a.txt,b/*.txt' --resume none
      another run directory, other text, from scratch
  zero3 train inputs/tiny.toml --dry-run
      check the deck and print it with every default

Exit codes: 0 success; 2 bad deck, input or checkpoint; 4 training became non-finite;
5 communication, device or I/O failure; 70 internal error; 75 stopped early with a checkpoint saved:
run the same command again.";

const PLAN_HELP: &str = "\
Examples:
  zero3 plan inputs/gpt2-124m.toml --ranks 8
      partition, schedule, memory and bytes of a deck
  zero3 plan --model llama3-8b --ranks 64 --hardware h100 zero.param_dtype=bf16
      also time, exposed communication, MFU, and the setting to change first
  zero3 plan --params 7.5B --ranks 64
      memory for exactly that many parameters, and a model of about that size
  zero3 plan --model llama2-7b --hardware h100 --sweep ranks=8..4096 --csv scaling.csv
      for 8, 16 ... 4096 ranks
  mpirun -n 4 zero3 plan --calibrate --out this.toml
      measure this machine and compare predictions with runs on it
  zero3 plan inputs/tiny.toml --ranks 2 --hardware this.toml

Hardware: a100-40gb, a100-80gb, h100, h200, b200, l40s, or a file; docs/planning.md lists its keys, the
meaning of each figure, and what the predictions leave out. Predictions for GPUs have not been validated on
a GPU yet.

Exit codes: 0 success; 2 bad deck, hardware file or command line; 5 communication or I/O failure;
70 internal error.";

const REPORT_HELP: &str = "\
Examples:
  zero3 report runs/tiny
  zero3 report runs/tiny --html
      the answers and all figures in one page, runs/tiny/report.html
  zero3 report runs/tiny --figures figures --png
      storage, compute, ownership, timeline, memory, stages, loss_curve: NAME.svg, NAME-dark.svg, and PNGs
A timeline requires a trace: zero3 train ... log.trace=10 records step 10.

Exit codes: 0 success; 2 no run, or a record is missing; 5 write failed; 70 internal error.";

const WATCH_HELP: &str = "\
Examples:
  zero3 watch runs/tiny
  zero3 watch runs/tiny --once | head -3
  ssh login zero3 watch /scratch/me/runs/tiny --once

Exit codes: 0 success; 2 no run (--once), or not a directory; 70 internal error.";

/// Train a model, or resume a run.
///
/// Reads a deck (a TOML file; docs/deck.md lists its keys), trains, validates, and writes logs and
/// checkpoints under run.dir. Started again, it resumes from the newest complete checkpoint, on any number of
/// ranks, or reports that the run is finished.
#[derive(clap::Args, Debug, Clone, PartialEq, Eq)]
#[command(override_usage = "zero3 train DECK [KEY=VALUE ...] [--resume auto|none|PATH] [--dry-run]")]
#[command(after_help = TRAIN_HELP)]
pub struct TrainArgs {
    #[command(flatten)]
    pub deck: DeckArgs,
    /// Where to start from: auto = the newest complete checkpoint of run.dir, if any; none = from scratch;
    /// PATH = a run or step directory (write ./auto for a directory of that name).
    #[arg(long, value_name = "auto|none|PATH", default_value = "auto", hide_default_value = false)]
    #[arg(value_parser = OsStringValueParser::new().try_map(parse_resume))]
    pub resume: Resume,
    /// Check the deck, print it with all defaults, and exit.
    #[arg(long)]
    pub dry_run: bool,
}

/// Show the memory, communication and time of a run without starting it.
///
/// Computes, from the deck and a rank count alone, which rank owns which slices, the order of gathers and
/// reductions, the peak memory and the bytes each rank receives per step; with --hardware also the time of a
/// step, and the effect of each setting. Needs no MPI: it plans 4096 ranks on a laptop.
#[derive(clap::Args, Debug, Clone, PartialEq)]
#[command(override_usage = "zero3 plan DECK|--model NAME|--params COUNT --ranks N [--ranks-per-node K] \
                            [--hardware FILE|NAME]\n           [--micro-batches-per-rank M] [--sweep \
                            KEY=VALUES [--csv FILE] [--figure FILE]] [--json]\n           [KEY=VALUE ...]\n  \
                                 mpirun -n N zero3 plan --calibrate [--out FILE] [--rounds R]")]
#[command(after_help = PLAN_HELP)]
pub struct PlanArgs {
    #[command(flatten)]
    pub subject: PlanSubject,
    /// Number of ranks.
    #[arg(long = "ranks", value_name = "N", value_parser = count(1..=MAX_RANKS))]
    #[arg(required_unless_present_any = ["sweep", "calibrate"])]
    pub n_ranks: Option<usize>,
    /// Ranks per node; by default the hardware's devices per node, or all ranks.
    #[arg(long, value_name = "K", value_parser = count(1..))]
    pub ranks_per_node: Option<usize>,
    /// The hardware: a file, or a100-40gb, a100-80gb, h100, h200, b200, l40s.
    #[arg(long, value_name = "FILE|NAME")]
    pub hardware: Option<PathBuf>,
    /// Micro-batches of each rank in a step: sets train.global_batch_size by the number of ranks. 1 without a
    /// deck.
    #[arg(long, value_name = "M", value_parser = count(1..=1 << 20))]
    pub micro_batches_per_rank: Option<usize>,
    /// Plan several values of one key: KEY=FROM..TO (doubling) or KEY=A,B,C; the key is ranks,
    /// ranks_per_node, or any key of the deck or the hardware file.
    #[arg(long, value_name = "KEY=VALUES", requires = "hardware")]
    pub sweep: Option<Sweep>,
    /// Write the sweep as CSV.
    #[arg(long, value_name = "FILE", requires = "sweep")]
    pub csv: Option<PathBuf>,
    /// Plot the sweep: PNG if FILE ends in .png, otherwise SVG.
    #[arg(long, value_name = "FILE", requires = "sweep")]
    pub figure: Option<PathBuf>,
    /// The hardware file --calibrate writes.
    #[arg(long, value_name = "FILE", requires = "calibrate", default_value = "hardware.toml")]
    #[arg(hide_default_value = false)]
    pub out: PathBuf,
    /// Repetitions of the runs that --calibrate compares with its predictions.
    #[arg(long, value_name = "R", requires = "calibrate", default_value = "3", value_parser = count(1..=100))]
    pub rounds: usize,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Answer five questions about a run's memory and time from its records, and plot it.
///
/// Which shards are resident at rest; which full parameters are gathered; did prefetches overlap compute;
/// were full parameters released in time; were gradients reduced, or did full copies accumulate. Each answer
/// cites its numbers.
#[derive(clap::Args, Debug, Clone, PartialEq, Eq)]
#[command(override_usage = "zero3 report RUN [--html [FILE]] [--figures DIR [--png]]")]
#[command(after_help = REPORT_HELP)]
pub struct ReportArgs {
    /// A run directory.
    pub run: PathBuf,
    /// Plot the run: each figure as an SVG for light pages and one for dark pages.
    #[arg(long, value_name = "DIR")]
    pub figures: Option<PathBuf>,
    /// Also write PNGs.
    #[arg(long, requires = "figures")]
    pub png: bool,
    /// Write a self-contained page with the answers and the figures; by default RUN/report.html.
    #[arg(long, value_name = "FILE")]
    pub html: Option<Option<PathBuf>>,
}

/// Watch a run in the terminal, live or after it ended.
///
/// Shows loss, step time, tokens/s, memory by kind against the plan, the units each rank has gathered and its
/// last operation, stragglers, restores and skipped steps, the time limit and the estimated time remaining.
/// Reads only the run directory, from any machine that mounts it: it opens no port, does not contact the job
/// and writes nothing. Waits for a run that has not started. q, Esc or Ctrl-C quit.
#[derive(clap::Args, Debug, Clone, PartialEq, Eq)]
#[command(override_usage = "zero3 watch RUN [--once]")]
#[command(after_help = WATCH_HELP)]
pub struct WatchArgs {
    /// A run directory (run.dir of the deck).
    pub run: PathBuf,
    /// Print one plain-text snapshot and exit; the default without a terminal.
    #[arg(long)]
    pub once: bool,
}

/// Where a run starts from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Resume {
    /// The newest complete checkpoint of the run directory, or step 0 when there is none.
    #[default]
    Auto,
    /// Step 0.
    None,
    /// A run or step directory.
    Path(PathBuf),
}

fn parse_resume(text: OsString) -> Result<Resume, String> {
    match text {
        text if text.is_empty() => Err("expected auto, none or a directory".into()),
        text if text == OsStr::new("auto") => Ok(Resume::Auto),
        text if text == OsStr::new("none") => Ok(Resume::None),
        text => Ok(Resume::Path(text.into())),
    }
}
