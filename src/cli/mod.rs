//! From arguments to an exit code: which command, on which backend.
//!
//! Commands that need one process only (`plan`, `data ...`, `ckpt ...`, `report`, `watch`, `device check`,
//! `train --dry-run`) never start MPI.

mod accept;
mod args;
mod backend_choice;
mod calibrate;
mod ckpt;
mod data;
mod device;
mod device_choice;
mod infer;
mod launch;
mod launch_checks;
mod launcher_terminal;
mod logging;
mod on_backend;
mod plan;
mod planner;
mod said;

use crate::backend::Backend;
use crate::backend::agree::decided_by_rank_0;
use crate::backend::kind::{OnKind, on_kind};
use crate::batch::signals;
use crate::clock;
use crate::config::Deck;
use crate::data::Dataset;
use crate::environment;
use crate::error::{Error, Exit, Result};
use crate::foreign::{self, shown};
use crate::liveness::{FlightRecorder, StartPlace, start_watch};
use crate::report;
use crate::say;
use crate::test_hooks::{self, fault_point};
use crate::train::batches::data_config;
use crate::train::state::{self, Start};
use crate::train::{self, HINTED_RANKS, Job, run_dir};
use crate::watch;
use args::{Command, DeviceCommand, ReportArgs, Resume, TrainArgs, WatchArgs};
use launch::Launch;
use on_backend::{Work, on_backend};
use said::Said;
use std::borrow::Cow;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a rank without a message outlives the one that prints.
const TIME_TO_SPEAK: Duration = Duration::from_secs(3);

/// Runs the program and returns its exit code. Under a launcher every rank calls it with the same arguments.
pub fn main(arguments: impl Iterator<Item = OsString>) -> Exit {
    let started = clock::process_start();
    signals::leave_limits_to_errno();
    environment::launched();
    // Before anything reads them. No command has an argument of this name.
    let (flags, arguments): (Vec<_>, Vec<_>) = arguments.partition(|word| word == test_hooks::FLAG);
    if !flags.is_empty() {
        test_hooks::activate();
    }
    let command = match args::parse(arguments.into_iter()) {
        Ok(command) => command,
        Err(usage) => {
            said_once(|| show_usage(&usage));
            return if usage.exit_code() == 0 { Exit::Finished } else { Exit::BadInput };
        }
    };
    let outcome = match command {
        Command::Train(args) if args.dry_run => alone(|| dry_run(&args)),
        Command::Train(args) => {
            let deck = args.deck.clone();
            return under_mpi(move || timeout_of(&deck), |launch| train_on(launch, &args, started));
        }
        Command::Accept(args) => {
            return under_mpi(|| None, |launch| accept::run(launch, &args, started).map(|exit| (exit, None)));
        }
        Command::Sample(args) => {
            return under_mpi(|| None, |launch| infer::sample(launch, &args).map(|exit| (exit, None)));
        }
        Command::Eval(args) => {
            return under_mpi(|| None, |launch| infer::eval(launch, &args).map(|exit| (exit, None)));
        }
        Command::Plan(args) if args.subject.of == args::PlanOf::Machine => {
            return under_mpi(
                || None,
                |launch| calibrate::run(launch, &args, started).map(|exit| (exit, None)),
            );
        }
        Command::Plan(args) => alone(|| plan::run(&args)),
        Command::Data(command) => alone(|| data::run(&command)),
        Command::Device(DeviceCommand::Check(args)) => alone(|| device::check(&args)),
        Command::Report(args) => alone(|| report_on(&args)),
        Command::Watch(args) => alone(|| watch_run(&args)),
        Command::Ckpt(command) => alone(|| ckpt::run(&command)),
    };
    match outcome {
        Ok(Said { text, exit }) => say(&text).map_or_else(
            |e| {
                let error = Error::Io(format!("standard output: {e}"));
                complain(&error.to_string());
                error.exit()
            },
            |()| exit,
        ),
        Err(error) => {
            complain(&error.to_string());
            error.exit()
        }
    }
}

/// Prints help, or what is wrong with the arguments. Open MPI gives ranks a terminal of its own, whatever it
/// does with what they print there: under a launcher the text is plain.
fn show_usage(usage: &clap::Error) {
    // A closed pipe is not an error.
    let plain = usage.render().to_string();
    if usage.use_stderr() && matches!(shown(&plain), Cow::Owned(_)) {
        say::err(plain.trim_end());
    } else if environment::launched().is_some() && !usage.use_stderr() {
        say::out(plain.trim_end()).ok();
    } else {
        usage.print().ok();
    }
}

/// A live view prints nothing on exit.
fn watch_run(args: &WatchArgs) -> Result<String> {
    if args.once || !std::io::stdout().is_terminal() {
        return watch::once(&args.run);
    }
    watch::live(&args.run).map(|()| String::new())
}

/// The command's output; empty if it has already been printed.
fn say(text: &str) -> std::io::Result<()> {
    if text.is_empty() { Ok(()) } else { say::out(text) }
}

/// Ranks that are not connected would all print the same: the first one prints. A launcher ends a job when
/// its first process fails, so the other ranks give that rank time to print, and print themselves if no such
/// rank is visible.
fn said_once(words: impl FnOnce()) {
    if environment::launched().is_none_or(|own| own.rank == 0) {
        words();
        return;
    }
    // If the launcher ends it by SIGTERM first, its exit code would hide that of the printing rank.
    signals::hold();
    let has_twin = environment::twin().is_some();
    clock::rest(TIME_TO_SPEAK);
    if !has_twin {
        words();
    }
}

/// One message on standard error; if that is closed, only the exit code remains.
fn complain(text: &str) {
    say::err(&format!("zero3: {text}"));
}

/// How long a rank looks for a lower one with the same command, which the launcher may be about to start.
const TWIN_APPEARS: Duration = Duration::from_millis(300);

/// The lower rank that runs the command of this process.
fn stands_aside_for() -> Option<usize> {
    environment::launched().filter(|own| own.rank > 0)?;
    let look = || Ok::<_, ()>(environment::twin());
    clock::wait_for(TWIN_APPEARS, Duration::from_millis(50), look).ok().flatten()
}

/// Runs a command that requires one process. Of several ranks with the same command, the lowest of a node
/// runs it, and the others log that they do not.
fn alone<T: Into<Said>>(work: impl FnOnce() -> Result<T>) -> Result<Said> {
    if let Some(other) = stands_aside_for() {
        let own = environment::launched().map_or(0, |own| own.rank);
        complain(&format!(
            "rank {own} does nothing: rank {other} runs the same command, and its exit code counts"
        ));
        return Ok(Said::from(String::new()));
    }
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !info.payload().is::<Error>() && !foreign::is_guarded() {
            print(info);
        }
    }));
    let broken = |_| Box::new(Error::Internal("an internal invariant was violated; please report it".into()));
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work))
        .unwrap_or_else(|panic| Err(*panic.downcast::<Error>().unwrap_or_else(broken)))
        .map(Into::into)
}

fn report_on(args: &ReportArgs) -> Result<String> {
    let html = args.html.clone().map(|path| path.unwrap_or_else(|| args.run.join("report.html")));
    report::run(&args.run, &report::Wanted { figures: args.figures.clone(), png: args.png, html })
}

fn dry_run(args: &TrainArgs) -> Result<String> {
    let deck = Deck::load(&args.deck.path, &args.deck.overrides)?;
    // Also checks what lies outside the deck: whether the plan respects its caps, the run directory, the
    // data, and the checkpoint to start from.
    let (model, _) = plan::of_deck_on_any_ranks(&deck)?;
    run_dir::check(Path::new(&deck.run.dir))?;
    let report = Dataset::open(&data_config(&deck))?.scan(&|_| {})?;
    state::check_start(&deck, &start(&args.resume), &model.spec, &report.digest)?;
    Ok(deck.to_commented_toml())
}

fn start(resume: &Resume) -> Start {
    match resume {
        Resume::Auto => Start::Auto,
        Resume::None => Start::Scratch,
        Resume::Path(path) => Start::Path(path.clone()),
    }
}

/// Starts MPI, runs the work, and ends the job: together if all ranks share the verdict, by abort if not.
fn under_mpi(
    timeout: impl FnOnce() -> Option<Duration> + Send + 'static,
    work: impl FnOnce(&Launch) -> Result<(Exit, Option<FlightRecorder>)>,
) -> Exit {
    signals::hold();
    let launch = match Launch::start(timeout) {
        Ok(launch) => launch,
        Err(error) => {
            said_once(|| complain(&error.to_string()));
            return error.exit();
        }
    };
    let result = work(&launch);
    start_watch::end();
    let here = format!("rank {} on {}", launch.rank(), launch.host());
    match result {
        Ok((exit, flight)) => {
            launch.leave(flight);
            exit
        }
        // All ranks have the same verdict: one prints it, all exit.
        Err(error @ (Error::Deck(_) | Error::Input(_) | Error::Checkpoint(_))) => {
            if launch.rank() == 0 {
                complain(&error.to_string());
            }
            error.exit()
        }
        Err(Error::Agreed { rank, error }) => {
            if launch.rank() == rank {
                match error.exit() {
                    Exit::BadInput => complain(&error.to_string()),
                    _ => complain(&format!("{here}: {error}")),
                }
            }
            error.exit()
        }
        Err(error) => {
            complain(&format!("{here}: {error}"));
            launch.abort(error.exit())
        }
    }
}

/// `run.timeout` of a deck not agreed on yet: from the command line alone, if set there.
fn timeout_of(deck: &args::DeckArgs) -> Option<Duration> {
    let said = deck.overrides.iter().rev().find(|(key, _)| key == "run.timeout");
    match said {
        Some((_, value)) => value.parse().ok().map(Duration::from_secs),
        None => {
            Deck::load(&deck.path, &deck.overrides).ok().map(|deck| Duration::from_secs(deck.run.timeout))
        }
    }
}

fn train_on(launch: &Launch, args: &TrainArgs, started: Instant) -> Result<(Exit, Option<FlightRecorder>)> {
    let group = launch.shard_group()?;
    start_watch::at(StartPlace::Deck);
    fault_point("deck", launch.rank(), 0);
    // Rank 0 reads the deck and sends it resolved, so that all ranks run the same one.
    let text = decided_by_rank_0(&group, || {
        Deck::load(&args.deck.path, &args.deck.overrides).map(|deck| deck.to_toml())
    })?;
    let deck = Deck::parse(&text, &[], "the deck of rank 0")?;
    start_watch::set_timeout(Duration::from_secs(deck.run.timeout));
    start_watch::at(StartPlace::Compare);
    logging::init(&deck.log.level, launch.rank());
    let threads = launch.threads(deck.run.threads_per_rank)?;
    launch.check_agreement(&group, &deck, threads)?;
    signals::listen(&deck.run.stop_signals.0);
    start_watch::at(StartPlace::Backend);
    let chosen = backend_choice::choose(&group, &deck, &launch.host())?;
    let mut versions = launch.versions();
    versions.extend(on_kind(chosen.kind(), LibraryVersions { has_peers: group.size() > 1 }));
    let job = Job {
        start: start(&args.resume),
        versions,
        relaunch: relaunch(args),
        launcher: launch_checks::launcher(&environment::variable, HINTED_RANKS),
        is_terminal: std::io::stderr().is_terminal() || launcher_terminal::launcher_has_a_terminal(),
        poison: cfg!(debug_assertions),
        host: launch.host(),
        started,
        abort: launch::abort_job,
        quiet: false,
        on_step: None,
        deck,
    };
    on_backend(chosen, group, &job.deck, threads, Training(&job))
}

/// Versions of the libraries that a backend loads, by name.
struct LibraryVersions {
    has_peers: bool,
}

impl OnKind for LibraryVersions {
    type Output = Vec<(String, String)>;

    fn on<B: Backend>(self) -> Self::Output {
        B::library_versions(self.has_peers)
            .into_iter()
            .map(|(name, version)| (name.into(), version))
            .collect()
    }
}

struct Training<'a>(&'a Job);

impl Work for Training<'_> {
    type Output = (Exit, Option<FlightRecorder>);

    fn on<B: Backend>(self, device: &B::Device, comm: &B::Comm) -> Result<Self::Output> {
        train::run::<B>(device, comm, self.0)
    }
}

/// The command line that starts this run again, for hints; without `train.steps`, which they set.
fn relaunch(args: &TrainArgs) -> String {
    let program = std::env::args_os().next().unwrap_or_else(|| "zero3".into()).display().to_string();
    let mut words = vec![program, "train".into(), args.deck.path.display().to_string()];
    let kept = args.deck.overrides.iter().filter(|(key, _)| key != "train.steps");
    words.extend(kept.map(|(key, value)| format!("{key}={value}")));
    words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

/// A word quoted for a shell.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "_-+=./,:@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.into()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn words_with_globs_and_spaces_are_quoted_for_the_shell() {
        let words = ["optim.lr=1e-3", "data.train=a b/*.txt", "run.dir=it's", ""].map(super::quoted);
        assert_eq!(words, ["optim.lr=1e-3", "'data.train=a b/*.txt'", r"'run.dir=it'\''s'", "''"]);
    }
}
