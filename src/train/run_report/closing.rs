//! The end of a run: the totals of all ranks and the plan in `summary.json`, the closing message, and what
//! the next process reads from the summary.
//!
//! Must not know: why a run ended.

use super::RunReport;
use crate::backend::agree::all_or_none;
use crate::backend::{Backend, Comm};
use crate::config::Deck;
use crate::error::{Exit, Result};
use crate::files;
use crate::plan::Plan;
use crate::plan::generation::Ran;
use crate::plan::placement::bytes_per_param;
use crate::plan::slots::Peaks;
use crate::records::summary::{KindBytes, PhaseTotal, Planned, RankBytes, Resident, SUMMARY_FILE, UnitRow};
use crate::records::{RunEvent, Summary};
use crate::say;
use crate::telemetry::{CommClass, Phase, UnitTimes};
use crate::test_hooks;
use crate::train::job::{Ending, HINTED_RANKS, Job};
use crate::train::stepper::Stepper;
use crate::train::tracing::label_in_words;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Totals of a rank over all its steps.
#[derive(Serialize, Deserialize)]
struct RankTotals {
    received: RankBytes,
    steps_off_plan: u64,
    /// In the order of [`Phase::ALL`].
    phases_ms: Vec<f64>,
    /// In the order of the model's units.
    units: Vec<UnitTimes>,
}

impl RunReport {
    /// Gathers the totals, writes `summary.json`, prints the closing message. Collective.
    pub fn finish<B: Backend>(mut self, job: &Job, stepper: &Stepper<'_, B>, ending: Ending) -> Result<Exit> {
        let Stepper { comm, plan, .. } = stepper;
        stepper.flight.at(ending.position.step, "summary", None);
        self.timing.finish(match ending.verdict.exit {
            Exit::Finished => "finished",
            Exit::StoppedEarly => "stopped early, checkpoint saved",
            _ => "ended: a step or a save failed",
        });
        let counts = stepper.volume.counts();
        let own = RankTotals {
            received: RankBytes {
                train_all_gather: counts.bytes(CommClass::TrainAllGather),
                train_reduce_scatter: counts.bytes(CommClass::TrainReduceScatter),
                eval_all_gather: counts.bytes(CommClass::EvalAllGather),
            },
            steps_off_plan: self.steps_off_plan,
            phases_ms: Phase::ALL.map(|phase| self.phases.ms(phase)).to_vec(),
            units: stepper.units.clone(),
        };
        let ranks = all_or_none(*comm, Ok(own))?;
        if comm.rank() != 0 {
            return Ok(ending.verdict.exit);
        }
        let evaluated = self.last_val_loss.is_some();
        let others = [evaluated.then(|| plan.evaluation_peaks()), plan.generation_peaks(self.sampled)];
        let planned = planned_peaks(plan.training_peaks(), others);
        // What the ledger holds now, without the copy for asynchronous saves: nothing gathered, no full
        // gradient.
        let at_rest = stepper.memory.ledger().total_now() - plan.outside_bytes();
        let n_params = stepper.model.spec.numel() as u64;
        let formula_bytes = plan.formula_bytes(n_params as usize);
        let (whole_bytes, cut_bytes) = bytes_per_param(&plan.knobs);
        let phase = |i: usize, p: &Phase| {
            let times = ranks.iter().map(|r| r.phases_ms[i]);
            let mean_ms = times.clone().sum::<f64>() / ranks.len() as f64;
            PhaseTotal { name: p.name().into(), mean_ms, max_ms: times.fold(0.0, f64::max) }
        };
        let units = stepper.model.spec.units.iter().enumerate().map(|(u, unit)| UnitRow {
            name: unit.name.clone(),
            times: UnitTimes::mean(ranks.iter().map(|r| &r.units[u])),
        });
        let hints = hints(job, &ending);
        let summary = Summary {
            exit_reason: ending.verdict.reason,
            exit_code: ending.verdict.exit.code(),
            run_dir: job.deck.run.dir.clone(),
            deck: digest_in_words(&job.deck),
            world_size: comm.size() as u64,
            step: ending.position.step,
            total_steps: job.deck.train.steps,
            start_step: self.start.step,
            tokens: ending.position.tokens - self.start.tokens,
            wall_seconds: job.started.elapsed().as_secs_f64(),
            tokens_per_s: (self.stepped_tokens > 0)
                .then(|| self.stepped_tokens as f64 / (self.stepped_ms / 1e3)),
            phases: Phase::ALL.iter().enumerate().map(|(i, p)| phase(i, p)).collect(),
            step_allocations: self.allocated,
            loss: self.last_row.map(|row| row.loss),
            val_loss: self.last_val_loss,
            unigram_entropy: self.unigram_entropy,
            all_gather_bytes_per_step: Planned {
                planned: self.planned.all_gather_bytes,
                measured: self.last_step.all_gather_bytes,
            },
            reduce_scatter_bytes_per_step: Planned {
                planned: self.planned.reduce_scatter_bytes,
                measured: self.last_step.reduce_scatter_bytes,
            },
            received_bytes: ranks.iter().map(|r| r.received).collect(),
            steps_off_plan: ranks.iter().map(|r| r.steps_off_plan).sum(),
            resident: Resident {
                n_params,
                whole_bytes_per_param: whole_bytes as u64,
                cut_bytes_per_param: cut_bytes as u64,
                formula_bytes,
                padding_bytes: plan.resident_bytes() as f64 - formula_bytes,
                bytes: Planned { planned: plan.resident_bytes(), measured: at_rest },
            },
            persistent: plan.knobs.persistence_threshold_bytes > 0,
            peak_bytes: Planned { planned: planned.total, measured: self.peak_total },
            peak_at: label_in_words(self.peak_label, &stepper.model.spec),
            peak_bytes_by_kind: planned
                .by_kind
                .iter()
                .zip(self.peak_by_kind)
                .map(|(&(kind, planned), measured)| KindBytes { kind, bytes: Planned { planned, measured } })
                .collect(),
            units: units.collect(),
            last_checkpoint: ending.last_checkpoint.as_ref().map(|dir| dir.display().to_string()),
            versions: job.versions.clone(),
            test_hooks: test_hooks::of_job(),
            hints,
        };
        summary.write(Path::new(&job.deck.run.dir))?;
        if let Some(records) = &mut self.records {
            let (step, exit_code, reason) = (summary.step, summary.exit_code, summary.exit_reason.clone());
            records.add(&RunEvent::End { step, exit_code, reason })?;
        }
        if let Some(progress) = &self.progress {
            progress.finish();
            progress.note(&format!("\n{summary}"));
        }
        Ok(ending.verdict.exit)
    }
}

/// The peaks of all programs that a run of this deck has.
pub fn peaks_of_run(deck: &Deck, plan: &Plan) -> Peaks {
    let (evaluates, samples) = (deck.train.eval_every > 0, deck.train.sample_every > 0);
    let others = [
        evaluates.then(|| plan.evaluation_peaks()),
        plan.generation_peaks(Ran { prompt: samples, row: samples }),
    ];
    planned_peaks(plan.training_peaks(), others)
}

/// The peaks of training and of the other programs that ran.
fn planned_peaks(mut train: Peaks, others: [Option<Peaks>; 2]) -> Peaks {
    others.iter().flatten().for_each(|other| train.raise(other));
    train
}

/// The last step of a finished run of this very deck without checkpoints, from the summary it left. A run
/// that starts over has archived that file.
pub fn finished_without_checkpoint(deck: &Deck) -> Option<u64> {
    let path = Path::new(&deck.run.dir).join(SUMMARY_FILE);
    let text =
        (deck.checkpoint.every == 0).then(|| files::read_text(&path, files::MAX_RECORD_BYTES).ok())??;
    let past: Summary = serde_json::from_str(&text).ok()?;
    let is_its_end = past.exit_code == Exit::Finished.code() && past.step >= deck.train.steps;
    (is_its_end && past.deck == digest_in_words(deck)).then_some(past.step)
}

fn digest_in_words(deck: &Deck) -> String {
    format!("{:016x}", deck.digest())
}

/// Commands to try next.
fn hints(job: &Job, ending: &Ending) -> Vec<String> {
    let mut hints = Vec::new();
    let program = job.relaunch.split(' ').next().unwrap_or("zero3");
    if let Some(dir) = &ending.last_checkpoint {
        let (step, steps) = (ending.position.step, job.deck.train.steps);
        // An unfinished run resumes with its deck as it is: fewer steps would change its schedule.
        let more = if step < steps { steps } else { step + (steps / 3).max(1) };
        hints.push(format!(
            "resume from this checkpoint on {HINTED_RANKS} ranks, with bitwise the same result as on any \
             other number:"
        ));
        hints.push(format!("  {} {} train.steps={more}", job.launcher, job.relaunch));
        hints.push(format!("inspect it:  {program} ckpt inspect {}", dir.display()));
    }
    hints.push(format!(
        "plan the same run for 8 ranks:  {} --ranks 8",
        job.relaunch.replacen(" train ", " plan ", 1)
    ));
    hints
}

/// Prints that the run needs no more steps.
pub fn already_finished(path: &Path, step: u64, total_steps: u64) {
    let path = path.display();
    let text = format!(
        "finished: {path} holds step {step} of train.steps = {total_steps}\n\
         raise train.steps to continue, or start over with --resume none (the existing files are archived)"
    );
    // The reader may have closed the pipe.
    say::out(&text).ok();
}
