//! `zero3 accept`: one job that says whether this cluster can be signed for to train large models, why, and which part cannot.
//!
//! Reading order: [`run`] here, `metric.rs` and `verdict.rs` (what a figure and a verdict are), then the sections in the order they run:
//! `inventory`, `device`, `collectives`, `storage`, `training` (with `bisect`), `scaling`, `elasticity`. Every rank comes to the same
//! metrics from gathered numbers; rank 0 decides what the clock decides, and writes the reports.
//!
//! Must not know: which backend it runs on, command lines.

pub mod answers;
pub mod baseline;
pub mod bisect;
pub mod collectives;
pub mod deadline;
mod device;
mod elasticity;
pub mod groups;
mod inventory;
pub mod lab;
pub mod metric;
mod product;
mod report;
mod scaling;
pub mod size;
mod storage;
mod training;
pub mod verdict;

pub use inventory::Facts;
pub use lab::{Lab, Split};

use crate::backend::Backend;
use crate::backend::agree::{all_or_none, decided_by_rank_0};
use crate::config::Locking;
use crate::config::acceptance::STAGES;
use crate::error::{Error, Exit, Result};
use crate::telemetry::signals::{self, Stop};
use crate::train::run_lock::{Holder, RunLock};
use baseline::Baseline;
use deadline::Deadline;
use metric::Metric;
use report::Report;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;
use verdict::{Ending, Section, blocked};

/// The runs' own place under the checkpoint directory; removed before and after.
const WORK_DIR: &str = "acceptance_work";
/// What is under way after so many times the time limit ends the job.
const HARD_LIMIT: f64 = 1.5;
/// There, under the run directory, while a rank that ends the job writes the reports.
const WRITING: &str = ".writing";
/// What another one that fails meanwhile gives it.
const TIME_TO_WRITE: Duration = Duration::from_secs(2);

/// What to write besides the reports.
#[derive(Debug, Clone, Default)]
pub struct Record {
    /// The figures, as a baseline.
    pub baseline: Option<PathBuf>,
    /// The losses, as an answer.
    pub answers: Option<PathBuf>,
}

impl Record {
    /// Fails where a file could not be written, or what it would be added to is no list of answers: before anything is measured.
    fn check(&self, run_dir: &Path) -> Result<()> {
        for (flag, path) in [("--record-baseline", &self.baseline), ("--record-answers", &self.answers)] {
            let Some(path) = path else { continue };
            let no = |why: String| {
                Error::Input(format!("{flag} {}: {why}; name a file that can be written", path.display()))
            };
            if path.is_dir() {
                return Err(no("it is a directory".into()));
            }
            let parent = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
            // The run directory may be about to be made.
            if parent.exists() || parent != run_dir {
                tempfile::tempfile_in(parent).map_err(|e| no(e.to_string()))?;
            }
        }
        match &self.answers {
            Some(path) if path.exists() => answers::read(&path.display().to_string()).map(drop),
            _ => Ok(()),
        }
    }
}

/// All that sections found, as it grows.
struct Findings {
    report: Report,
    reference: Option<training::Reference>,
}

impl Findings {
    /// Decks without `training` have no section that asks for it, and none of these runs where `training` has not.
    fn reference(&self) -> &training::Reference {
        self.reference.as_ref().expect("training has run")
    }
}

/// Measures, judges, writes. `own` is what the launcher knows of this rank. Exit code 0 = accepted, 3 = not accepted. Errors of one
/// rank alone have to abort the job. Collective.
pub fn run<B: Backend>(lab: &Lab<'_, B>, own: &Facts, record: &Record) -> Result<Exit> {
    let run_dir = Path::new(&lab.deck.run.dir);
    let work = Path::new(lab.deck.checkpoint_dir()).join(WORK_DIR);
    let mut locks = Vec::new();
    decided_by_rank_0(lab.comm, || {
        record.check(run_dir)?;
        lab.baseline.check(lab.deck, B::NAME)?;
        if lab.deck.runs("training") {
            answers::read(&lab.deck.training.known_answers)?;
        }
        locks = prepare(lab, run_dir, &work)?;
        Ok(())
    })?;
    if lab.rank() == 0 && lab.baseline.is_of_other_than(lab.n()) {
        log::warn!(
            "the baseline is of {} ranks, this job has {}: figures of all ranks together differ by that alone",
            lab.baseline.n_ranks,
            lab.n()
        );
    }
    let limit_s = lab.deck.run.time_limit.seconds().unwrap_or(0.0);
    let (name, own_work) = (lab.name(lab.rank()), lab.own_work.clone());
    let deadline = Deadline::start(name, lab.rank() == 0, own_work, (lab.started, limit_s * HARD_LIMIT), lab.abort);

    let mut found = Findings { report: Report::new(lab), reference: None };
    for stage in STAGES {
        let section = one_section(lab, stage, (own, &work, limit_s), &deadline, &mut found)?;
        if lab.rank() == 0 {
            report::screen::section(&section);
        }
        found.report.sections.push(section);
    }
    deadline.enter("reports");
    found.report.judge(lab.started.elapsed().as_secs_f64());
    // Agreed from the same metrics; said again by rank 0, whose clock decided what ran.
    let verdict = decided_by_rank_0(lab.comm, || {
        std::fs::remove_dir_all(&work).ok();
        // Whoever waited for it hears the verdict, whatever becomes of the files.
        let written = found.report.write(run_dir);
        report::screen::verdict(&found.report, run_dir, written.is_ok());
        written?;
        write_records(lab, &found, record)?;
        Ok(found.report.verdict.clone())
    })?;
    Ok(verdict.exit())
}

/// Makes the directories, empties the runs' own place, and holds both against another acceptance for as long as the locks live.
fn prepare<B: Backend>(lab: &Lab<'_, B>, run_dir: &Path, work: &Path) -> Result<Vec<RunLock>> {
    let me = Holder::this(&lab.hosts[lab.rank()]);
    let (mut locks, mut locked) = (Vec::new(), Vec::new());
    for (key, dir) in [("run.dir", run_dir), ("run.checkpoint_dir", Path::new(lab.deck.checkpoint_dir()))] {
        std::fs::create_dir_all(dir).map_err(|e| Error::io("mkdir", dir, &e))?;
        let dir = dir.canonicalize().map_err(|e| Error::io("look at", dir, &e))?;
        if !locked.contains(&dir) {
            locks.push(RunLock::hold(&dir, Locking::BestEffort, &me).map_err(|error| match error {
                Error::Input(words) => Error::Input(words.replace("run.dir", key)),
                other => other,
            })?);
            locked.push(dir);
        }
    }
    // Of a job that was killed while it wrote.
    std::fs::remove_file(run_dir.join(WRITING)).ok();
    if work.exists() {
        std::fs::remove_dir_all(work).map_err(|e| Error::io("rm -r", work, &e))?;
    }
    std::fs::create_dir_all(work).map_err(|e| Error::io("mkdir", work, &e))?;
    Ok(locks)
}

/// Runs a section, if it is to run. While it does the reports say so: a job that hangs or is killed leaves what it has found.
fn one_section<B: Backend>(
    lab: &Lab<'_, B>,
    stage: &'static str,
    (own, work, limit_s): (&Facts, &Path, f64),
    deadline: &Deadline,
    found: &mut Findings,
) -> Result<Section> {
    let run_dir = Path::new(&lab.deck.run.dir);
    let elapsed_s = || lab.started.elapsed().as_secs_f64();
    let mut section = Section::begun(stage, elapsed_s());
    if let Some((ending, reason)) = left_out(lab, stage, &found.report.sections, limit_s)? {
        return Ok(Section { ending, reason, ..section });
    }
    deadline.enter(stage);
    if lab.rank() == 0 {
        // If this cannot be written, the end will say so.
        found.report.amid(&section).write(run_dir).ok();
    }
    let outcome = run_stage(lab, stage, own, work, found);
    section.took_s = elapsed_s() - section.began_s;
    match outcome {
        Ok(metrics) => {
            let metrics = lab.with_missing(stage, metrics);
            Ok(Section { ending: Ending::Completed, reason: String::new(), metrics, ..section })
        }
        // Every rank knows, and the other sections may still have something to say.
        Err(error @ Error::Agreed { .. }) => {
            Ok(Section { ending: Ending::Failed, reason: error.to_string(), ..section })
        }
        // This rank alone knows: it ends the job, and leaves the report, since rank 0 cannot.
        Err(error) => {
            let reason = format!("{}: {error}", lab.name(lab.rank()));
            std::fs::remove_dir_all(work).ok();
            write_last(&found.report.amid(&Section { ending: Ending::Failed, reason, ..section }), run_dir);
            Err(error)
        }
    }
}

/// Writes the reports of a job that ends here. Of several ranks that fail at once one does: two would write into one file.
fn write_last(report: &Report, run_dir: &Path) {
    let writing = run_dir.join(WRITING);
    if File::create_new(&writing).is_err() {
        std::thread::sleep(TIME_TO_WRITE);
        return;
    }
    report.write(run_dir).ok();
    std::fs::remove_file(writing).ok();
}

/// Whether a section does not run, and why. Rank 0's clock decides; a signal to any rank counts.
fn left_out<B: Backend>(
    lab: &Lab<'_, B>,
    stage: &str,
    done: &[Section],
    limit_s: f64,
) -> Result<Option<(Ending, String)>> {
    let stop = all_or_none(lab.comm, Ok(signals::stop_code()))?.into_iter().max().and_then(Stop::from_code);
    decided_by_rank_0(lab.comm, || {
        let elapsed = lab.started.elapsed().as_secs_f64();
        Ok(if !lab.deck.runs(stage) {
            Some((Ending::NotAsked, "not in run.sections".to_string()))
        } else if let Some(stop) = stop {
            Some((Ending::Skipped, format!("the job was asked to stop: {stop}")))
        } else if limit_s > 0.0 && elapsed > limit_s {
            Some((Ending::Skipped, format!("{elapsed:.0} s have passed of run.time_limit = {limit_s:.0} s")))
        } else {
            blocked(stage, done).map(|why| (Ending::Skipped, why))
        })
    })
}

fn run_stage<B: Backend>(
    lab: &Lab<'_, B>,
    stage: &str,
    own: &Facts,
    work: &Path,
    found: &mut Findings,
) -> Result<Vec<Metric>> {
    match stage {
        "inventory" => {
            let (metrics, facts) = inventory::run(lab, own)?;
            found.report.ranks = facts;
            Ok(metrics)
        }
        "device" => {
            let (metrics, points) = device::run(lab)?;
            found.report.device = points;
            Ok(metrics)
        }
        "collectives" => {
            let (metrics, measured) = collectives::run(lab)?;
            found.report.collectives = measured;
            Ok(metrics)
        }
        "storage" => {
            let (metrics, points) = storage::run(lab, work)?;
            found.report.storage = points;
            Ok(metrics)
        }
        "training" => {
            let (metrics, reference) = training::run(lab, work)?;
            found.report.reference_run = Some(reference.trained.clone());
            found.reference = Some(reference);
            Ok(metrics)
        }
        "scaling" => {
            let (metrics, points) = scaling::run(lab, work, found.reference())?;
            found.report.scaling = points;
            Ok(metrics)
        }
        "elasticity" => elasticity::run(lab, work, found.reference()),
        other => unreachable!("{other} is no section"),
    }
}

/// Rank 0 writes what later runs are held against.
fn write_records<B: Backend>(lab: &Lab<'_, B>, found: &Findings, record: &Record) -> Result<()> {
    if let Some(path) = &record.baseline {
        if !found.report.verdict.valid {
            log::warn!("{} is not written: figures of an invalid run are no baseline", path.display());
        } else {
            Baseline::of(&found.report.sections, lab.n(), lab.deck, B::NAME).write(path)?;
        }
    }
    match (&record.answers, &found.reference) {
        (Some(path), Some(reference)) => answers::record(path, reference.answer.clone()),
        (Some(path), None) => {
            log::warn!("{} is not written: the reference run did not end", path.display());
            Ok(())
        }
        (None, _) => Ok(()),
    }
}
