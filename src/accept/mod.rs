//! `zero3 accept`: one job that measures whether this cluster can train large models, with reasons, and names
//! what cannot.
//!
//! Reading order: [`run`] here, `verdict/` (what a metric and a verdict are), then `benchmarks/`, one per
//! section, in the order they run. Every rank computes the same metrics from gathered numbers; rank 0 decides
//! what depends on a clock, and writes the reports.
//!
//! Must not know: which backend it runs on, command lines.

mod acceptance;
mod benchmarks;
mod facts;
mod output;
pub mod reference_size;
mod reports;
pub mod verdict;

pub use acceptance::Acceptance;
pub use facts::RankFacts;
pub use output::RecordPaths;

use crate::backend::Backend;
use crate::backend::agree::{all_or_none, decided_by_rank_0};
use crate::batch::signals;
use crate::batch::signals::Stop;
use crate::clock;
use crate::config::acceptance::Section;
use crate::error::{Error, Exit, Result};
use crate::harness::Deadline;
use crate::test_hooks;
use benchmarks::training::ReferenceRun;
use benchmarks::{collectives, device, elasticity, inventory, scaling, storage, training};
use facts::{AcceptanceFacts, JobFacts};
use std::path::{Path, PathBuf};
use verdict::golden_losses;
use verdict::metric::Metric;
use verdict::metric_limits::fail_missing;
use verdict::{Ending, SectionResult, blocked};

/// Working directory of the training and storage runs, under the checkpoint directory; removed before and
/// after.
const WORK_DIR: &str = "acceptance_work";
/// A section that runs at this multiple of `run.time_limit` ends the job.
const HARD_LIMIT: f64 = 1.5;

/// An acceptance under way: what was measured so far, and what later sections need.
struct AcceptanceRun<'a> {
    /// What this rank's launcher knows.
    launch_facts: &'a RankFacts,
    work_dir: PathBuf,
    /// `run.time_limit` in seconds; 0 = none.
    limit_s: f64,
    deadline: Deadline,
    facts: AcceptanceFacts,
    reference: Option<ReferenceRun>,
}

impl AcceptanceRun<'_> {
    /// A deck cannot ask for the sections that need it without `training`, and none of them runs unless
    /// `training` succeeded.
    fn reference(&self) -> &ReferenceRun {
        self.reference.as_ref().expect("training has run")
    }
}

/// Measures, judges, and writes the reports. `launch_facts` is what the launcher knows of this rank. Exit
/// code 0 = accepted, 3 = not accepted. Collective.
///
/// # Errors
/// [`Error::Agreed`] on all ranks alike; any other is of this rank alone, and the caller has to abort the
/// job.
pub fn run<B: Backend>(
    acceptance: &Acceptance<'_, B>,
    launch_facts: &RankFacts,
    record: &RecordPaths,
) -> Result<Exit> {
    let (cluster, deck) = (&acceptance.cluster, acceptance.deck);
    let run_dir = Path::new(&deck.run.dir);
    let work_dir = Path::new(deck.checkpoint_dir()).join(WORK_DIR);
    let mut locks = Vec::new();
    decided_by_rank_0(cluster.comm, || {
        record.check(run_dir)?;
        acceptance.baseline.check(deck, B::NAME)?;
        if deck.runs(Section::Training) {
            golden_losses::read(Path::new(&deck.training.known_answers))?;
        }
        locks = output::prepare(acceptance, &work_dir)?;
        Ok(())
    })?;
    if cluster.rank() == 0 && acceptance.baseline.has_other_rank_count(cluster.n()) {
        log::warn!(
            "the baseline was measured on {} ranks, this job has {}: metrics of all ranks together differ by \
             that alone",
            acceptance.baseline.n_ranks,
            cluster.n()
        );
    }
    let limit_s = deck.run.time_limit.seconds().unwrap_or(0.0);
    let job = JobFacts {
        started_unix: clock::unix(cluster.started),
        n_ranks: cluster.n(),
        backend: B::NAME,
        has_baseline: acceptance.baseline.is_given(),
        versions: cluster.versions.clone(),
        deck: deck.to_toml(),
    };
    let mut run = AcceptanceRun {
        launch_facts,
        work_dir,
        limit_s,
        deadline: Deadline::start(cluster, limit_s * HARD_LIMIT),
        facts: AcceptanceFacts::new(job),
        reference: None,
    };
    for section in Section::ALL {
        let result = run_section(acceptance, section, &mut run)?;
        if cluster.rank() == 0 {
            reports::screen::section(&result);
        }
        run.facts.sections.push(result);
    }
    run.deadline.enter("reports");
    run.facts.judge(cluster.started.elapsed().as_secs_f64());
    // Every rank has the same metrics; rank 0's clock decided which sections ran, so its verdict counts.
    let verdict = decided_by_rank_0(cluster.comm, || {
        std::fs::remove_dir_all(&run.work_dir).ok();
        // The verdict is printed even where the files cannot be written.
        let written = reports::write(&run.facts, run_dir);
        reports::screen::verdict(&run.facts, run_dir, written.is_ok());
        written?;
        record.write(acceptance, &run.facts, run.reference.as_ref().map(|run| &run.losses))?;
        Ok(run.facts.verdict.clone())
    })?;
    Ok(verdict.exit())
}

/// Runs a section, unless it is skipped. The reports are written before, so that a job that hangs or is
/// killed leaves what was measured until then. Collective.
fn run_section<B: Backend>(
    acceptance: &Acceptance<'_, B>,
    section: Section,
    run: &mut AcceptanceRun<'_>,
) -> Result<SectionResult> {
    let cluster = &acceptance.cluster;
    let run_dir = Path::new(&acceptance.deck.run.dir);
    let elapsed_s = || cluster.started.elapsed().as_secs_f64();
    let mut result = SectionResult::begun(section, elapsed_s());
    if let Some((ending, reason)) = reason_to_skip(acceptance, section, run)? {
        return Ok(SectionResult { ending, reason, ..result });
    }
    run.deadline.enter(section.name());
    if cluster.rank() == 0 {
        // A failure to write is reported at the end.
        reports::write(&run.facts.interrupted_in(&result), run_dir).ok();
    }
    let outcome = measure(acceptance, section, run);
    result.took_s = elapsed_s() - result.began_s;
    match outcome {
        Ok(metrics) => {
            let metrics = fail_missing(acceptance.deck, section, metrics);
            Ok(SectionResult { ending: Ending::Completed, reason: String::new(), metrics, ..result })
        }
        // All ranks have this error, and the other sections can still run.
        Err(error @ Error::Agreed { .. }) => {
            Ok(SectionResult { ending: Ending::Failed, reason: error.to_string(), ..result })
        }
        // This rank alone has it. It ends the job, and writes the reports, since rank 0 cannot.
        Err(error) => {
            let reason = format!("{}: {error}", cluster.name(cluster.rank()));
            std::fs::remove_dir_all(&run.work_dir).ok();
            let failed = SectionResult { ending: Ending::Failed, reason, ..result };
            output::write_last(&run.facts.interrupted_in(&failed), run_dir);
            Err(error)
        }
    }
}

/// Whether a section does not run, and why. Rank 0's clock decides; a signal to any rank counts. Collective.
fn reason_to_skip<B: Backend>(
    acceptance: &Acceptance<'_, B>,
    section: Section,
    run: &AcceptanceRun<'_>,
) -> Result<Option<(Ending, String)>> {
    let Acceptance { cluster, deck, .. } = acceptance;
    let stop =
        all_or_none(cluster.comm, Ok(signals::stop_code()))?.into_iter().max().and_then(Stop::from_code);
    decided_by_rank_0(cluster.comm, || {
        let (elapsed, limit_s) =
            ((cluster.started.elapsed() + test_hooks::ahead()).as_secs_f64(), run.limit_s);
        Ok(if !deck.runs(section) {
            Some((Ending::NotAsked, "not in run.sections".to_string()))
        } else if let Some(stop) = stop {
            Some((Ending::Skipped, format!("the job was asked to stop: {stop}")))
        } else if limit_s > 0.0 && elapsed > limit_s {
            Some((Ending::Skipped, format!("{elapsed:.0} s have passed of run.time_limit = {limit_s:.0} s")))
        } else {
            blocked(section, &run.facts.sections).map(|why| (Ending::Skipped, why))
        })
    })
}

/// Runs the benchmark of a section and adds what it found to the facts. Collective.
fn measure<B: Backend>(
    acceptance: &Acceptance<'_, B>,
    section: Section,
    run: &mut AcceptanceRun<'_>,
) -> Result<Vec<Metric>> {
    let work_dir = run.work_dir.as_path();
    match section {
        Section::Inventory => {
            let (metrics, ranks) = inventory::run(acceptance, run.launch_facts)?;
            run.facts.ranks = ranks;
            Ok(metrics)
        }
        Section::Device => {
            let (metrics, rates) = device::run(acceptance)?;
            run.facts.device = rates;
            Ok(metrics)
        }
        Section::Collectives => {
            let (metrics, measured) = collectives::run(acceptance)?;
            run.facts.collectives = measured;
            Ok(metrics)
        }
        Section::Storage => {
            let (metrics, rates) = storage::run(acceptance, work_dir)?;
            run.facts.storage = rates;
            Ok(metrics)
        }
        Section::Training => {
            let (metrics, reference) = training::run(acceptance, work_dir)?;
            run.facts.reference_run = Some(reference.trained.clone());
            run.reference = Some(reference);
            Ok(metrics)
        }
        Section::Scaling => {
            let (metrics, points) = scaling::run(acceptance, work_dir, run.reference())?;
            run.facts.scaling = points;
            Ok(metrics)
        }
        Section::Elasticity => elasticity::run(acceptance, work_dir, run.reference()),
    }
}
