//! A training run, from its deck to its exit code, in nine stations.
//!
//! Reading order: [`step`] (the algorithm), then [`run`] here, `train_loop.rs`, `state.rs` (restore) and
//! `save.rs`.
//!
//! Must not know: which backend it runs on, what a family of models computes, the command line.

pub mod batches;
mod bookkeeping;
pub mod budget;
pub mod changes;
mod compute_visit;
pub mod for_kind;
pub mod infer;
mod job;
mod moves;
pub mod node_memory;
pub mod pass;
pub mod planning;
pub mod run_dir;
pub mod run_lock;
pub mod run_report;
pub mod save;
mod scratch;
mod spans;
pub mod state;
pub mod step;
pub mod stepper;
pub mod tracing;
mod train_loop;

use crate::backend::agree::{all_or_none, decided_by_rank_0};
use crate::backend::{Backend, Comm, Device};
use crate::batch::job_clock::JobClock;
use crate::clock;
use crate::error::{Exit, Result};
use crate::liveness::FlightRecorder;
use crate::liveness::start_watch::{self, StartPlace};
use crate::model::Model;
use crate::plan::Plan;
use crate::records::summary::SUMMARY_FILE;
use crate::records::{RunEvent, RunRecords, StepLog, Timing};
use crate::telemetry::MemKind;
use batches::Batches;
use node_memory::NodeMemory;
use run_dir::RunDir;
use run_report::{RunReport, closing};
use serde::{Deserialize, Serialize};
use state::{Position, RecordedStep, Start};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use stepper::{Parts, Stepper};
use train_loop::TrainLoop;

pub use job::{Ending, HINTED_RANKS, Job, StepObserver, Verdict};

/// Runs a job to its end on the shard group `comm`. Errors of the deck, the data or a checkpoint are the same
/// on every rank; any other error is local to this rank, and the caller must abort the job. Returns the
/// recorder, if any, to monitor the end of MPI.
pub fn run<B: Backend>(
    device: &B::Device,
    comm: &B::Comm,
    job: &Job,
) -> Result<(Exit, Option<FlightRecorder>)> {
    let run = Run::<B> { device, comm, job };
    // 1. Plan every instruction and every byte, the same on every rank.
    start_watch::at(StartPlace::Plan);
    let planned = run.plan()?;
    // 2. Check that the memory is available. Quick checks come before slow ones.
    let hosts = run.check(&planned.plan)?;
    // 3. Lock the run directory, if it exists.
    start_watch::at(StartPlace::RunDir);
    let mut run_dir = RunDir::lock(comm, &job.deck.run, &job.host)?;
    // 4. Find the checkpoint to start from, or that no step remains.
    let found = run.find()?;
    if let Some(end) = &found.finished {
        run.say_finished(end);
        return Ok((Exit::Finished, None));
    }
    // 5. Open the data, monitored by the other ranks; the run directory is created once they are known to be
    //    good.
    let Opened { flight, batches } = run.open_data(&planned.model, hosts, &mut run_dir)?;
    // 6. Allocate the arena.
    let mut stepper = run.allocate(&planned, flight)?;
    // 7. Restore the checkpoint, or make initial weights.
    let restored = run.restore(&mut stepper, &batches, &found)?;
    // 8. Train.
    let Trained { ending, report } = run.train(&mut stepper, &batches, &restored)?;
    // 9. Close: the summary and the closing message.
    let exit = report.finish(job, &stepper, ending)?;
    Ok((exit, Some(stepper.flight)))
}

/// A job on this rank; its methods are the stations of [`run`], all collective.
struct Run<'r, B: Backend> {
    device: &'r B::Device,
    comm: &'r B::Comm,
    job: &'r Job,
}

/// Station 1: the model and its plan.
struct Planned {
    model: Model,
    plan: Plan,
}

/// Station 4: the start according to the run directory.
#[derive(Serialize, Deserialize)]
struct Found {
    /// The checkpoint to restore.
    checkpoint: Option<RecordedStep>,
    /// The record of a run that has made all its steps.
    finished: Option<RecordedStep>,
}

/// Station 5: the data, and this rank's recorder and watchdog.
struct Opened {
    flight: FlightRecorder,
    batches: Batches,
}

/// Station 7: where training resumes.
struct Restored {
    position: Position,
    /// The checkpoint that was read.
    from: Option<PathBuf>,
    /// The duration.
    seconds: f64,
    /// The step at which the records in the run directory resume.
    resumed: Option<u64>,
}

/// Station 8: how training ended, and the data of the final report.
struct Trained {
    ending: Ending,
    report: RunReport,
}

impl<'r, B: Backend> Run<'r, B> {
    fn plan(&self) -> Result<Planned> {
        let deck = &self.job.deck;
        let (model, plan) = planning::of_deck::<B::Device>(deck, self.comm.size())?;
        budget::check::<B::Device>(deck, &plan)?;
        let digests = all_or_none(self.comm, Ok(plan.digest()))?;
        assert!(digests.iter().all(|d| *d == digests[0]), "ranks planned differently: {digests:x?}");
        Ok(Planned { model, plan })
    }

    /// Rejects the job, or warns, if the ranks of a node would exceed its memory; returns the node of each
    /// rank. A device with separate memory is queried when the arena is allocated.
    fn check(&self, plan: &Plan) -> Result<Vec<String>> {
        let Run { device, comm, job } = self;
        let hosts = all_or_none(*comm, Ok(job.host.clone()))?;
        if device.free_bytes().is_some() {
            return Ok(hosts);
        }
        let on_this_node = || hosts.iter().enumerate().filter(|(_, host)| **host == job.host);
        let is_first = on_this_node().next().is_some_and(|(rank, _)| rank == comm.rank());
        let node = NodeMemory::here().filter(|_| is_first);
        let n_here = on_this_node().count();
        let verdict =
            node.map_or(Ok(None), |node| budget::check_node::<B::Device>(&job.deck, plan, node, n_here));
        for (host, warning) in hosts.iter().zip(all_or_none(*comm, verdict)?) {
            if let (0, Some(warning)) = (comm.rank(), warning) {
                log::warn!("{host}: {warning}");
            }
        }
        Ok(hosts)
    }

    fn find(&self) -> Result<Found> {
        let (deck, start) = (&self.job.deck, &self.job.start);
        let run_dir = Path::new(&deck.run.dir);
        decided_by_rank_0(self.comm, || {
            let checkpoint = state::find(run_dir, start)?;
            let finished = match &checkpoint {
                Some(found) if found.step >= deck.train.steps => Some(found.clone()),
                _ => closing::finished_without_checkpoint(deck)
                    .filter(|_| *start == Start::Auto)
                    .map(|step| RecordedStep { path: run_dir.join(SUMMARY_FILE), step }),
            };
            Ok(Found { checkpoint, finished })
        })
    }

    fn say_finished(&self, end: &RecordedStep) {
        if self.comm.rank() == 0 && !self.job.quiet {
            closing::already_finished(&end.path, end.step, self.job.deck.train.steps);
        }
    }

    fn open_data(&self, model: &Model, hosts: Vec<String>, run_dir: &mut RunDir) -> Result<Opened> {
        let flight = self.start_flight(model, hosts)?;
        let batches = Batches::open(self.comm, &self.job.deck, self.job.is_terminal, &flight)?;
        run_dir.create(self.comm)?;
        flight.appear();
        Ok(Opened { flight, batches })
    }

    /// This rank's recorder and watchdog.
    fn start_flight(&self, model: &Model, hosts: Vec<String>) -> Result<FlightRecorder> {
        let Run { comm, job, .. } = self;
        let run_dir = Path::new(&job.deck.run.dir);
        let units = model.spec.units.iter().map(|u| u.name.clone()).collect();
        let (timeout, abort) = (Duration::from_secs(job.deck.run.timeout), job.abort);
        let started = FlightRecorder::start(run_dir, comm.rank(), hosts, units, timeout, move || {
            abort(Exit::CommFailure)
        });
        agreed(*comm, started)
    }

    fn allocate<'p>(&self, planned: &'p Planned, flight: FlightRecorder) -> Result<Stepper<'p, B>>
    where
        'r: 'p,
    {
        let Run { device, comm, job } = *self;
        let Planned { model, plan } = planned;
        device.release();
        all_or_none(comm, budget::check_free::<B::Device>(&job.deck, plan, device.free_bytes()))?;
        let n_sums = planning::n_sums(&job.deck, comm.size());
        let stepper =
            Stepper::allocate(Parts { device, comm, model, plan, flight, n_sums, poison: job.poison })?;
        stepper.memory.count_outside(MemKind::Staging, plan.pinned_bytes);
        let peaks = closing::peaks_of_run(&job.deck, plan);
        stepper.flight.show_memory(stepper.memory.share_ledger(), peaks.by_kind, peaks.total);
        Ok(stepper)
    }

    fn restore(&self, stepper: &mut Stepper<'_, B>, batches: &Batches, found: &Found) -> Result<Restored> {
        let deck = &self.job.deck;
        let began = Instant::now();
        stepper.flight.at(0, "restore", None);
        let (mut position, mut seconds) = (Position::default(), 0.0);
        match &found.checkpoint {
            Some(checkpoint) => {
                position = state::restore(stepper, deck, batches, &checkpoint.path)?;
                seconds = began.elapsed().as_secs_f64();
            }
            None => state::initialise(stepper, deck)?,
        }
        let checkpoint = found.checkpoint.as_ref();
        let resumed =
            decided_by_rank_0(self.comm, || run_dir::make_room(Path::new(&deck.run.dir), checkpoint))?;
        Ok(Restored { position, from: checkpoint.map(|found| found.path.clone()), seconds, resumed })
    }

    fn train(&self, stepper: &mut Stepper<'_, B>, batches: &Batches, restored: &Restored) -> Result<Trained> {
        let Run { comm, job, .. } = self;
        let (deck, at) = (&job.deck, restored.position);
        let log = self.open_log(restored)?;
        let records = self.open_records(restored)?;
        let mut timing = match comm.rank() {
            0 => {
                let clock = JobClock::find(deck.run.time_limit.0, clock::unix(job.started));
                let saved_bytes = state::saved_bytes(stepper.plan, 0);
                Timing::open(Path::new(&deck.run.dir), clock, restored.resumed, saved_bytes)
            }
            _ => Timing::silent(),
        };
        if deck.run.job_comment {
            timing.comment_in_job();
        }
        let mut report = RunReport::new(job, stepper, batches, at, timing, records)?;
        report.timing.begin_steps(
            at.step,
            deck.train.steps,
            job.started.elapsed().as_secs_f64(),
            restored.seconds,
        );
        // The end files of an earlier job do not apply to this one.
        report.timing.write(true);
        let ending = TrainLoop::new(stepper, job, batches, at, log, &mut report)?.run()?;
        Ok(Trained { ending, report })
    }

    /// Rank 0 has the log; all ranks learn whether it could be opened.
    fn open_log(&self, restored: &Restored) -> Result<Option<StepLog>> {
        let run_dir = Path::new(&self.job.deck.run.dir);
        let opened = (self.comm.rank() == 0).then(|| StepLog::open(run_dir, restored.resumed)).transpose();
        agreed(self.comm, opened)
    }

    /// Rank 0 writes the deck and the start into the run directory; all ranks learn whether it could.
    fn open_records(&self, restored: &Restored) -> Result<Option<RunRecords>> {
        let Run { comm, job, .. } = self;
        let open = || -> Result<RunRecords> {
            let mut records = RunRecords::open(Path::new(&job.deck.run.dir), &job.deck.to_toml())?;
            records.add(&RunEvent::Start {
                step: restored.position.step,
                attempts: restored.position.attempts,
                ranks: comm.size() as u64,
                backend: B::NAME.into(),
                from: restored.from.as_ref().map(|dir| dir.display().to_string()),
            })?;
            Ok(records)
        };
        agreed(*comm, (comm.rank() == 0).then(open).transpose())
    }
}

/// `own` of this rank, or the error of the lowest rank that failed. Collective.
fn agreed<C: Comm, T>(comm: &C, own: Result<T>) -> Result<T> {
    let mut good = None;
    all_or_none(comm, own.map(|own| _ = good.insert(own)))?;
    Ok(good.expect("no rank failed"))
}
