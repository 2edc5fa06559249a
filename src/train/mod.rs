//! The training run: where it starts from, the loop, what it writes, why it ends.
//!
//! Reading order: [`step`] (the algorithm), [`stepper`] (what it is made of), then [`run`] here, then `state.rs` (restore) and `save.rs`.
//!
//! Must not know: which backend it runs on, what a family of models computes, the command line.

pub mod batches;
mod bookkeeping;
pub mod budget;
pub mod changes;
pub mod infer;
mod moves;
pub mod node_memory;
pub mod pass;
pub mod planning;
pub mod report;
pub mod run_lock;
pub mod save;
mod scratch;
mod spans;
pub mod state;
pub mod step;
pub mod stepper;
pub mod tracing;
mod visit;

use crate::backend::agree::{all_or_none, decided_by_rank_0};
use crate::backend::{Backend, Comm, Device};
use crate::config::Deck;
use crate::error::{Error, Exit, Result};
use crate::params::ModelSpec;
use crate::plan::Plan;
use crate::telemetry::allocations::{self, Owner};
use crate::telemetry::summary::SUMMARY_FILE;
use crate::telemetry::time_limit::{JobClock, parse_seconds, unix_now};
use crate::telemetry::{Flight, MemKind, RankStep, RunEvent, RunRecords, StepLog, StepRow, Timing, trace};
use crate::test_hooks::{self, fault_point};
use batches::Batches;
use infer::Sampler;
use node_memory::NodeMemory;
use report::{Report, closing};
use run_lock::{Holder, RunLock};
use save::Saver;
use state::{Position, Start};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use stepper::{Parts, Stepper};

/// Everything a run needs besides its backend.
pub struct Job {
    /// The resolved deck, the same on every rank.
    pub deck: Deck,
    /// Where to start from.
    pub start: Start,
    /// Program, MPI, HDF5 and the like, for the summary.
    pub versions: BTreeMap<String, String>,
    /// The command line that would start this run on `{ranks}` ranks, for hints.
    pub relaunch: String,
    /// Standard error is a terminal: draw a progress bar.
    pub is_terminal: bool,
    /// Fill released buffers with NaN.
    pub poison: bool,
    /// This rank's node.
    pub host: String,
    /// When the process started.
    pub started: Instant,
    /// Ends the job on every rank, from any thread.
    pub abort: fn(Exit),
    /// No banner, progress or closing words.
    pub quiet: bool,
    /// Sees every row, with what each rank measured.
    pub watch: Option<Box<Watch>>,
}

/// Called on every rank after each step: its row, and the numbers of every rank.
pub type Watch = dyn Fn(&StepRow, &[RankStep]);

/// Runs a job to its end on the shard group `comm`. Errors of the deck, the data or a checkpoint are the same on
/// every rank; any other error is this rank's own, and the caller has to abort the job. The recorder comes back, where there
/// is one, to watch over the end of MPI.
pub fn run<B: Backend>(device: &B::Device, comm: &B::Comm, job: &Job) -> Result<(Exit, Option<Flight>)> {
    let deck = &job.deck;
    let run_dir = Path::new(&deck.run.dir);
    let (model, plan) = planning::of_deck::<B::Device>(deck, comm.size())?;
    budget::check::<B::Device>(deck, &plan)?;
    let digests = all_or_none(comm, Ok(plan.digest()))?;
    assert!(digests.iter().all(|d| *d == digests[0]), "ranks planned differently: {digests:x?}");
    let hosts = all_or_none(comm, Ok(job.host.clone()))?;
    // A device with memory of its own is asked for it when the arena is made.
    if device.free_bytes().is_none() {
        check_node_memory::<B>(comm, job, &hosts, &plan)?;
    }
    // What is soon found comes before what takes a while to read.
    let mut lock = None;
    let holder = Holder::this(&job.host);
    let (restored, finished) = decided_by_rank_0(comm, || {
        state::check_run_dir(run_dir)?;
        if run_dir.exists() {
            lock = Some(RunLock::hold(run_dir, deck.run.locking, &holder)?);
        }
        let restored = state::find(run_dir, &job.start)?;
        let by_summary = || closing::finished_without_checkpoint(deck).filter(|_| job.start == Start::Auto);
        let finished = match &restored {
            Some((dir, step)) if *step >= deck.train.steps => Some((dir.clone(), *step)),
            _ => by_summary().map(|step| (run_dir.join(SUMMARY_FILE), step)),
        };
        Ok((restored, finished))
    })?;
    if let Some((path, step)) = finished {
        if comm.rank() == 0 && !job.quiet {
            closing::already_finished(&path, step, deck.train.steps);
        }
        return Ok((Exit::Finished, None));
    }
    let flight = start_flight(comm, job, hosts, &model.spec)?;
    let batches = Batches::open(comm, deck, job.is_terminal, &flight)?;

    // The run directory comes into being here.
    decided_by_rank_0(comm, || {
        std::fs::create_dir_all(run_dir).map_err(|e| Error::io("mkdir", run_dir, &e))?;
        if lock.is_none() {
            lock = Some(RunLock::hold(run_dir, deck.run.locking, &holder)?);
        }
        Ok(())
    })?;
    flight.appear();
    device.release();
    all_or_none(comm, budget::check_free::<B::Device>(deck, &plan, device.free_bytes()))?;
    let n_sums = planning::n_sums(deck, comm.size());
    let mut stepper: Stepper<'_, B> =
        Stepper::allocate(Parts { device, comm, model: &model, plan: &plan, flight, n_sums, poison: job.poison })?;
    stepper.memory.count_outside(MemKind::Staging, plan.pinned_bytes);
    let planned = closing::peaks_of_run(deck, &plan);
    stepper.flight.show_memory(stepper.memory.share_ledger(), planned.by_kind.clone(), planned.total);
    let began = Instant::now();
    stepper.flight.at(0, "restore", None);
    let position = match &restored {
        Some((dir, _)) => state::restore(&mut stepper, deck, &batches, dir)?,
        None => {
            state::initialise(&mut stepper, deck)?;
            Position::default()
        }
    };
    let restored_from = restored.as_ref().map(|(dir, _)| dir.clone());
    let restore_seconds = if restored.is_some() { began.elapsed().as_secs_f64() } else { 0.0 };
    let keep_to = decided_by_rank_0(comm, || {
        // What stays must be this run's: nothing does where the checkpoint is from elsewhere.
        let keep_to = restored.filter(|(dir, _)| state::is_of_run(run_dir, dir)).map(|(_, step)| step);
        state::make_room(run_dir, keep_to)?;
        Ok(keep_to)
    })?;
    let mut log = open_log(comm, run_dir, keep_to)?;
    let records = open_records::<B>(comm, job, position, restored_from.as_deref())?;

    let timing = match comm.rank() {
        0 => {
            let limit = parse_seconds(&deck.run.time_limit).expect("the deck was checked");
            let clock = JobClock::find(limit, unix_now() - job.started.elapsed().as_secs_f64());
            Timing::open(run_dir, clock, keep_to, state::saved_bytes(&plan, 0))
        }
        _ => Timing::silent(),
    };
    let mut report = Report::new(job, &stepper, &batches, position, timing, records)?;
    if deck.run.job_comment {
        report.timing.comment_in_job();
    }
    report.timing.begin_steps(position.step, deck.train.steps, job.started.elapsed().as_secs_f64(), restore_seconds);
    // What an earlier job left says nothing of this one's end.
    report.timing.write(true);
    let ending = train(&mut stepper, job, &batches, position, log.as_mut(), &mut report)?;
    let exit = report.finish(job, &stepper, ending)?;
    Ok((exit, Some(stepper.flight)))
}

/// Refuses or warns where the ranks of a node would hold more than it has. Collective.
fn check_node_memory<B: Backend>(comm: &B::Comm, job: &Job, hosts: &[String], plan: &Plan) -> Result<()> {
    let on_this_node = || hosts.iter().enumerate().filter(|(_, host)| **host == job.host);
    let speaks = on_this_node().next().is_some_and(|(rank, _)| rank == comm.rank());
    let node = NodeMemory::here().filter(|_| speaks);
    let verdict =
        node.map_or(Ok(None), |node| budget::check_node::<B::Device>(&job.deck, plan, node, on_this_node().count()));
    for (host, warning) in hosts.iter().zip(all_or_none(comm, verdict)?) {
        if let (0, Some(warning)) = (comm.rank(), warning) {
            log::warn!("{host}: {warning}");
        }
    }
    Ok(())
}

/// Rank 0 has the log; all ranks learn whether it could be opened.
fn open_log<C: Comm>(comm: &C, run_dir: &Path, resume_after: Option<u64>) -> Result<Option<StepLog>> {
    let mut log = None;
    let opened = if comm.rank() == 0 { StepLog::open(run_dir, resume_after).map(|l| log = Some(l)) } else { Ok(()) };
    all_or_none(comm, opened)?;
    Ok(log)
}

/// Rank 0 keeps the deck and notes the start in the run directory; all ranks learn whether it could.
fn open_records<B: Backend>(
    comm: &B::Comm,
    job: &Job,
    at: Position,
    from: Option<&Path>,
) -> Result<Option<RunRecords>> {
    let mut records = None;
    let mut open = || -> Result<()> {
        let mut opened = RunRecords::open(Path::new(&job.deck.run.dir), &job.deck.to_toml())?;
        opened.add(&RunEvent::Start {
            step: at.step,
            attempts: at.attempts,
            ranks: comm.size() as u64,
            backend: B::NAME.into(),
            from: from.map(|dir| dir.display().to_string()),
        })?;
        records = Some(opened);
        Ok(())
    };
    all_or_none(comm, if comm.rank() == 0 { open() } else { Ok(()) })?;
    Ok(records)
}

/// This rank's recorder and watchdog.
fn start_flight<C: Comm>(comm: &C, job: &Job, hosts: Vec<String>, spec: &ModelSpec) -> Result<Flight> {
    let run_dir = Path::new(&job.deck.run.dir);
    let units = spec.units.iter().map(|u| u.name.clone()).collect();
    let (timeout, abort) = (Duration::from_secs(job.deck.run.timeout), job.abort);
    let mut flight = None;
    let started = Flight::start(run_dir, comm.rank(), hosts, units, timeout, move || abort(Exit::CommFailure))
        .map_err(|e| Error::io("write in", &run_dir.join("flight"), &e));
    all_or_none(comm, started.map(|f| _ = flight.insert(f)))?;
    Ok(flight.expect("no rank failed"))
}

/// Why the loop ended, and where.
pub struct Ending {
    /// How far it came.
    pub position: Position,
    /// The last complete checkpoint.
    pub last_checkpoint: Option<PathBuf>,
    /// Exit code.
    pub exit: Exit,
    /// In words.
    pub reason: String,
}

/// The loop, and after it the end of a save that is still under way.
fn train<B: Backend>(
    stepper: &mut Stepper<'_, B>,
    job: &Job,
    batches: &Batches,
    mut at: Position,
    mut log: Option<&mut StepLog>,
    report: &mut Report,
) -> Result<Ending> {
    let mut saver = Saver::new(stepper, &job.deck, batches);
    let (mut exit, mut reason) = run_steps(stepper, job, batches, &mut at, log.as_deref_mut(), report, &mut saver)?;
    if stepper.trace.holds_events() {
        // The run ended within the traced steps.
        tracing::write(stepper, Path::new(&job.deck.run.dir), &job.host)?;
    }
    saver.drain(stepper, log)?;
    if let Some(seconds) = saver.take_seconds() {
        report.timing.saved(seconds);
    }
    if let (Exit::Finished | Exit::StoppedEarly, Some(why)) = (exit, saver.newest_failure()) {
        exit = Exit::CommFailure;
        reason = format!("{} steps are done, but their checkpoint could not be saved: {why}", at.step);
    }
    Ok(Ending { position: at, last_checkpoint: saver.into_last(), exit, reason })
}

/// Step, validate, save, log, until the steps are done or there is no sense in going on: why it ended, in code and words.
fn run_steps<B: Backend>(
    stepper: &mut Stepper<'_, B>,
    job: &Job,
    batches: &Batches,
    at: &mut Position,
    mut log: Option<&mut StepLog>,
    report: &mut Report,
    saver: &mut Saver<'_>,
) -> Result<(Exit, String)> {
    let deck = &job.deck;
    let t = &deck.train;
    let traced = trace::steps_of(&deck.log.trace).expect("the deck was checked");
    let n_micro = t.n_micro();
    let mut skipped_in_a_row = 0;
    let sampler = (t.sample_every > 0).then(|| Sampler::open::<B>(stepper.comm, deck)).transpose()?;
    report.begin_steps(stepper)?;
    allocations::count_this_thread(Owner::Program);
    while at.step < t.steps {
        report.timing.begin_round();
        fault_point("step", stepper.comm.rank(), at.step + 1);
        stepper.trace.set_step(traced.contains(&(at.step + 1)).then_some(at.step + 1));
        let load = |j, into: &mut _| batches.training_micro_batch(at.samples, j, t.micro_batch_size, into);
        test_hooks::begin_attempt(at.attempts);
        allocations::take();
        let outcome = stepper.step(n_micro, at.step + 1, &deck.optim, load)?;
        report.allocated(allocations::take());
        at.attempts += 1;
        at.samples += t.global_batch_size as u64;
        at.tokens += (t.global_batch_size * deck.model.seq_len) as u64;
        if !outcome.updated {
            skipped_in_a_row += 1;
            report.skipped(stepper, *at, &outcome, skipped_in_a_row)?;
            if skipped_in_a_row >= t.max_skipped_steps {
                let reason = format!(
                    "{skipped_in_a_row} steps in a row were not finite (loss {}, gradient norm {}{}); weights are those of step {}; \
                     lower optim.lr, or raise train.max_skipped_steps",
                    outcome.loss,
                    outcome.grad_norm,
                    report::origin(&stepper.model.spec, &outcome),
                    at.step
                );
                return Ok((Exit::NonFinite, reason));
            }
            continue;
        }
        skipped_in_a_row = 0;
        at.step += 1;
        stepper.trace.set_step(None);

        let is_last = at.step == t.steps;
        let stop = outcome.stop.filter(|_| !is_last);
        let due = |every: u64| every > 0 && (at.step.is_multiple_of(every) || is_last);
        if let Some(sampler) = sampler.as_ref().filter(|_| due(t.sample_every)) {
            let ran = sampler.sample(stepper, at.step, job.quiet)?;
            report.sampled(ran);
        }
        let val_loss = if due(t.eval_every) { Some(validate(stepper, deck, batches)?) } else { None };
        let stall_began = Instant::now();
        let saves = due(deck.checkpoint.every) || stop.is_some();
        if saves {
            saver.begin(stepper, *at, log.as_deref_mut())?;
        }
        let mut stalled = stall_began.elapsed();
        // The row reaches the disk before the checkpoint counts: no checkpoint is newer than the log.
        let row = report.row(stepper, deck, *at, &outcome, val_loss)?;
        if let Some(log) = log.as_deref_mut() {
            log.write(&row)?;
        }
        if let Some(watch) = &job.watch {
            watch(&row, report.last_ranks());
        }
        if at.step + 1 == traced.end {
            tracing::write(stepper, Path::new(&deck.run.dir), &job.host)?;
        }
        report.show(&row, due(deck.log.every) || val_loss.is_some() && deck.log.every > 0);
        let stall_began = Instant::now();
        saver.advance(stepper, log.as_deref_mut())?;
        stalled += stall_began.elapsed();
        report.timing.stalled(stalled.as_secs_f64());
        let ended = saver.take_seconds();
        if let Some(seconds) = ended {
            report.timing.saved(seconds);
        }
        report.timing.write(ended.is_some());
        if let Some(stop) = stop {
            let reason =
                format!("stopped early: {stop}; step {} of {} is saved, the same command goes on", at.step, t.steps);
            return Ok((Exit::StoppedEarly, reason));
        }
    }
    let reason = format!("finished: all {} steps are done", t.steps);
    Ok((Exit::Finished, reason))
}

/// Mean validation loss in nats per token.
fn validate<B: Backend>(stepper: &mut Stepper<'_, B>, deck: &Deck, batches: &Batches) -> Result<f64> {
    let b = deck.train.micro_batch_size;
    stepper.evaluate(deck.train.eval_batches as usize, |i, into| batches.validation_micro_batch(i, b, into))
}
