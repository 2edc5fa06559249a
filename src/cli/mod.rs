//! From arguments to an exit code: which command, on which backend.
//!
//! Commands that need one process only (`plan`, `data info`, `ckpt ...`, `train --dry-run`) never start MPI.

pub mod args;
mod ckpt;
mod launch;
mod plan;

use crate::backend::agree::{all_or_none, decided_by_rank_0};
use crate::backend::cpu::{Cpu, CpuDevice};
use crate::config::Deck;
use crate::data::{DataInfo, Dataset};
use crate::error::{Error, Exit, Result};
use crate::telemetry::logging;
use crate::telemetry::progress::BytesBar;
use crate::train::source::data_config;
use crate::train::state::Start;
use crate::train::{self, Job};
use args::{Command, DeckArgs, Resume, TrainArgs};
use launch::Launch;
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::time::Instant;

/// Runs the program and returns its exit code. Under a launcher every rank calls it with the same arguments.
pub fn main(arguments: impl Iterator<Item = OsString>) -> Exit {
    let started = Instant::now();
    let command = match args::parse(arguments) {
        Ok(command) => command,
        Err(usage) => {
            if launch::rank_from_environment() == 0 {
                // A closed pipe has nobody to complain to.
                usage.print().ok();
            }
            return if usage.exit_code() == 0 { Exit::Finished } else { Exit::BadInput };
        }
    };
    let outcome = match command {
        Command::Train(args) if args.dry_run => alone(|| dry_run(&args.deck)),
        Command::Train(args) => return train_under_mpi(&args, started),
        Command::Plan(args) => alone(|| plan::run(&args)),
        Command::DataInfo(args) => alone(|| data_info(&args)),
        Command::CkptInspect(args) => alone(|| ckpt::inspect(&args)),
        Command::CkptVerify(args) => alone(|| ckpt::verify(&args)),
        Command::CkptDiff(args) => alone(|| ckpt::diff(&args)),
        Command::CkptReshard(args) => alone(|| ckpt::reshard(&args)),
    };
    match outcome {
        Ok(Said { text, exit }) => {
            writeln!(std::io::stdout().lock(), "{text}").ok();
            exit
        }
        Err(error) => {
            eprintln!("zero3: {error}");
            error.exit()
        }
    }
}

/// What a command says on stdout, and its exit code.
struct Said {
    text: String,
    exit: Exit,
}

impl From<String> for Said {
    fn from(text: String) -> Self {
        Said { text, exit: Exit::Finished }
    }
}

/// Runs a command that needs one process: under a launcher, the lowest rank does it and the others have nothing to do.
fn alone<T: Into<Said>>(work: impl FnOnce() -> Result<T>) -> Result<Said> {
    if launch::rank_from_environment() == 0 { work().map(Into::into) } else { std::process::exit(0) }
}

fn dry_run(args: &DeckArgs) -> Result<String> {
    let deck = Deck::load(&args.path, &args.overrides)?;
    // What can only be seen outside the deck is checked too: data, and whether the plan keeps to its caps.
    Dataset::open(&data_config(&deck))?.scan(&|_| {})?;
    plan::of_deck(&deck, 1)?;
    Ok(deck.to_commented_toml())
}

fn data_info(args: &DeckArgs) -> Result<String> {
    let deck = Deck::load(&args.path, &args.overrides)?;
    let data = Dataset::open(&data_config(&deck))?;
    let bar = BytesBar::new("reading data", data.n_bytes(), std::io::stderr().is_terminal());
    let info = DataInfo::gather(&data, deck.train.steps, deck.train.global_batch_size as u64, &|done| bar.set(done))?;
    bar.finish();
    Ok(info.to_string())
}

/// Starts MPI, trains, and ends the job the right way: together where all ranks know the verdict, by abort where not.
fn train_under_mpi(args: &TrainArgs, started: Instant) -> Exit {
    let launch = match Launch::start() {
        Ok(launch) => launch,
        Err(error) => {
            eprintln!("zero3: {error}");
            return error.exit();
        }
    };
    let result = train_on(&launch, args, started);
    match result {
        Ok(exit) => exit,
        // All ranks have the same verdict: rank 0 says it, everybody leaves.
        Err(error @ (Error::Deck(_) | Error::Input(_) | Error::Checkpoint(_))) => {
            if launch.rank() == 0 {
                eprintln!("zero3: {error}");
            }
            error.exit()
        }
        Err(error) => {
            eprintln!("zero3: rank {} on {}: {error}", launch.rank(), launch.host());
            launch.abort(error.exit())
        }
    }
}

fn train_on(launch: &Launch, args: &TrainArgs, started: Instant) -> Result<Exit> {
    let comm = launch.shard_group()?;
    // Rank 0 reads the deck; the others get it resolved, so that all run the same one.
    let text =
        decided_by_rank_0(&comm, || Deck::load(&args.deck.path, &args.deck.overrides).map(|deck| deck.to_toml()))?;
    let deck = Deck::parse(&text, &[], "the deck of rank 0")?;
    all_or_none(&comm, logging::init(&deck.log.level, launch.rank()))?;
    launch.check_agreement(&comm)?;
    let device = CpuDevice::new(launch.threads(deck.run.threads_per_rank))?;
    let job = Job {
        start: match &args.resume {
            Resume::Auto => Start::Auto,
            Resume::None => Start::Scratch,
            Resume::Path(path) => Start::Path(path.clone()),
        },
        versions: launch.versions(),
        relaunch: relaunch(args),
        is_terminal: std::io::stderr().is_terminal(),
        poison: cfg!(debug_assertions),
        started,
        deck,
    };
    train::run::<Cpu>(&device, &comm, &job)
}

/// The command line that starts this run again, for hints; without `train.steps`, which they set.
fn relaunch(args: &TrainArgs) -> String {
    let program = std::env::args().next().unwrap_or_else(|| "zero3".into());
    let mut words = vec![program, "train".into(), args.deck.path.display().to_string()];
    let kept = args.deck.overrides.iter().filter(|(key, _)| key != "train.steps");
    words.extend(kept.map(|(key, value)| format!("{key}={value}")));
    words.join(" ")
}
