//! A run: `zero3 train`, what it would be (`zero3 plan`) and what it was (`zero3 report`).

use super::counts::{MAX_RANKS, count};
use super::words::{DeckArgs, PlanSubject};
use crate::plan::forecast::sweep::Sweep;
use clap::builder::{OsStringValueParser, TypedValueParser};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

const TRAIN_HELP: &str = "\
Examples:
  mpirun -n 2 zero3 train inputs/tiny.toml
      train; the same line again resumes from the newest checkpoint
  mpirun -n 3 zero3 train inputs/tiny.toml train.steps=600
      go on with three ranks and more steps
  mpirun -n 2 zero3 train inputs/tiny.toml run.dir=/tmp/b 'data.train=a.txt,b/*.txt' --resume none
      somewhere else, on other text, from the start
  zero3 train inputs/tiny.toml --dry-run
      check the deck and print it with every default

Exit codes: 0 finished; 2 bad deck, input or checkpoint; 4 training became non-finite; \
5 communication, device or I/O failure; 70 internal error; 75 stopped early with a checkpoint saved: \
start the same command again.";

const PLAN_HELP: &str = "\
Examples:
  zero3 plan inputs/gpt2-124m.toml --ranks 8
      partition, schedule, memory and bytes of a deck
  zero3 plan --model llama3-8b --ranks 64 --hardware h100 zero.param_dtype=bf16
      also time, exposed communication, MFU, and the knob to turn first
  zero3 plan --params 7.5B --ranks 64
      bytes of exactly that many parameters, and a model of about that size
  zero3 plan --model llama2-7b --hardware h100 --sweep ranks=8..4096 --csv scaling.csv
      the same for 8, 16 ... 4096 ranks
  mpirun -n 4 zero3 plan --calibrate --out this.toml
      measure this machine and hold predictions against runs on it
  zero3 plan inputs/tiny.toml --ranks 2 --hardware this.toml

Hardware: a100-40gb, a100-80gb, h100, h200, b200, l40s, or a file; docs/planning.md lists its keys, what each figure means, \
and what the predictions leave out. Predictions for GPUs have not been held against a GPU yet.

Exit codes: 0 finished; 2 bad deck, hardware file or command line; 5 communication or I/O failure; 70 internal error.";

const REPORT_HELP: &str = "\
Examples:
  zero3 report runs/tiny
  zero3 report runs/tiny --html
      the answers and all figures in one page, runs/tiny/report.html
  zero3 report runs/tiny --figures figures --png
      storage, compute, ownership, timeline, memory, stages, loss_curve: NAME.svg, NAME-dark.svg and both as PNG
A timeline needs a trace: zero3 train ... log.trace=10 writes one of step 10.

Exit codes: 0 finished; 2 no run there, or without what is asked for; 5 a file cannot be written; 70 internal error.";

const WATCH_HELP: &str = "\
Examples:
  zero3 watch runs/tiny
  zero3 watch runs/tiny --once | head -3
  ssh login zero3 watch /scratch/me/runs/tiny --once

Exit codes: 0 finished; 2 no run there (--once), or no directory; 70 internal error.";

/// Train as a deck says, or go on where the last run stopped.
///
/// Reads a deck (a TOML file; docs/deck.md lists its keys), trains, validates, and writes logs and
/// checkpoints under run.dir. Started again, it goes on from the newest complete checkpoint, on any number of
/// ranks, or says that the run is finished.
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
    /// Check everything in the deck, print it with all defaults, start nothing.
    #[arg(long)]
    pub dry_run: bool,
}

/// Show what a run would hold, move and take, without starting it.
///
/// Computes, from the deck and a number of ranks alone, who owns which slices, the order of gathers and
/// reductions, the peak memory and the bytes each rank receives per step; with --hardware also how long a
/// step takes, and what each knob would give. Needs no MPI: it plans 4096 ranks on a laptop.
#[derive(clap::Args, Debug, Clone, PartialEq)]
#[command(override_usage = "zero3 plan DECK|--model NAME|--params COUNT --ranks N [--ranks-per-node K] \
                            [--hardware FILE|NAME]\n           [--micro-batches-per-rank M] [--sweep \
                            KEY=VALUES [--csv FILE] [--figure FILE]] [--json]\n           [KEY=VALUE ...]\n  \
                                 mpirun -n N zero3 plan --calibrate [--out FILE] [--rounds R]")]
#[command(after_help = PLAN_HELP)]
pub struct PlanArgs {
    #[command(flatten)]
    pub subject: PlanSubject,
    /// Ranks to plan for.
    #[arg(long = "ranks", value_name = "N", value_parser = count(1..=MAX_RANKS))]
    #[arg(required_unless_present_any = ["sweep", "calibrate"])]
    pub n_ranks: Option<usize>,
    /// Ranks that share a node; without it as many as the hardware has devices on a node, or all of them.
    #[arg(long, value_name = "K", value_parser = count(1..))]
    pub ranks_per_node: Option<usize>,
    /// What it would run on: a file, or a100-40gb, a100-80gb, h100, h200, b200, l40s.
    #[arg(long, value_name = "FILE|NAME")]
    pub hardware: Option<PathBuf>,
    /// Micro-batches of each rank in a step: sets train.global_batch_size by the number of ranks. 1 without a
    /// deck.
    #[arg(long, value_name = "M", value_parser = count(1..=1 << 20))]
    pub micro_batches_per_rank: Option<usize>,
    /// Plan many values of one key: KEY=FROM..TO doubles, KEY=A,B,C lists; ranks, ranks_per_node, or any key
    /// of the deck or the hardware file.
    #[arg(long, value_name = "KEY=VALUES", requires = "hardware")]
    pub sweep: Option<Sweep>,
    /// Write the sweep as CSV.
    #[arg(long, value_name = "FILE", requires = "sweep")]
    pub csv: Option<PathBuf>,
    /// Draw the sweep: as PNG where FILE ends in .png, else as SVG.
    #[arg(long, value_name = "FILE", requires = "sweep")]
    pub figure: Option<PathBuf>,
    /// Where --calibrate writes the hardware file.
    #[arg(long, value_name = "FILE", requires = "calibrate", default_value = "hardware.toml")]
    #[arg(hide_default_value = false)]
    pub out: PathBuf,
    /// Rounds of the runs that --calibrate holds predictions against.
    #[arg(long, value_name = "R", requires = "calibrate", default_value = "3", value_parser = count(1..=100))]
    pub rounds: usize,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Answer five questions about a run's memory and time from its own records, and draw it.
///
/// Which shards are resident at rest; which full parameters are gathered; did prefetches overlap compute;
/// were full parameters released soon enough; were gradients reduced, or did full copies pile up. Each answer
/// cites its numbers.
#[derive(clap::Args, Debug, Clone, PartialEq, Eq)]
#[command(override_usage = "zero3 report RUN [--html [FILE]] [--figures DIR [--png]]")]
#[command(after_help = REPORT_HELP)]
pub struct ReportArgs {
    /// A run directory.
    pub run: PathBuf,
    /// Draw the run: one SVG per figure for light pages, one for dark ones.
    #[arg(long, value_name = "DIR")]
    pub figures: Option<PathBuf>,
    /// PNGs beside the SVGs.
    #[arg(long, requires = "figures")]
    pub png: bool,
    /// Write a page with the answers and the figures that needs nothing else; without FILE it is
    /// RUN/report.html.
    #[arg(long, value_name = "FILE")]
    pub html: Option<Option<PathBuf>>,
}

/// See a run live in the terminal, or how it ended.
///
/// Shows loss, step time, tokens/s, memory by kind against the plan, the units each rank has gathered and its
/// last operation, stragglers, restores and skipped steps, the time limit and the time the run still needs.
/// Reads the run directory alone, from any machine that sees it: no port, no question to the job, nothing
/// written. Waits where the run has not begun. q, Esc or Ctrl-C leave.
#[derive(clap::Args, Debug, Clone, PartialEq, Eq)]
#[command(override_usage = "zero3 watch RUN [--once]")]
#[command(after_help = WATCH_HELP)]
pub struct WatchArgs {
    /// A run directory (run.dir of the deck).
    pub run: PathBuf,
    /// Print one plain snapshot and end; so it is without a terminal too.
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
        text if text.is_empty() => Err("say auto, none or a directory".into()),
        text if text == OsStr::new("auto") => Ok(Resume::Auto),
        text if text == OsStr::new("none") => Ok(Resume::None),
        text => Ok(Resume::Path(text.into())),
    }
}
