//! What a run tells: its banner, a row per step, its closing words. Collective where numbers of all ranks meet.

use super::source::Source;
use super::state::Position;
use super::step::{StepOutcome, Stepper};
use super::tracing::label_in_words;
use super::{Ending, Job};
use crate::backend::agree::all_or_none;
use crate::backend::{Backend, Comm, Device};
use crate::config::Deck;
use crate::error::{Exit, Result};
use crate::params::ModelSpec;
use crate::plan::Plan;
use crate::plan::memory::Peaks;
use crate::plan::placement::bytes_per_param;
use crate::plan::volume::{Volume, micro_steps};
use crate::telemetry::allocations::Allocations;
use crate::telemetry::ledger::Label;
use crate::telemetry::stragglers::Stragglers;
use crate::telemetry::summary::{KindBytes, PhaseTotal, Planned, RankBytes, Resident, SUMMARY_FILE, UnitRow};
use crate::telemetry::{
    CommClass, MemKind, Phase, PhaseTimes, Progress, RankStep, RunEvent, RunRecords, StepRow, Summary, Timing,
    UnitTimes, Usage, combine, comm_volume::CommCounts, human,
};
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::Path;

/// Collects what the steps of one process say.
pub struct Report {
    /// Rank 0 shows progress.
    progress: Option<Progress>,
    start: Position,
    unigram_entropy: Option<f64>,
    /// What one step moves on this rank, from the plan.
    planned: Volume,
    /// Counters when the current step began.
    counted: CommCounts,
    last_step: Volume,
    /// Counters of the process at the row before.
    usage: Usage,
    steps_off_plan: u64,
    phases: PhaseTimes,
    peak_by_kind: [u64; MemKind::ALL.len()],
    peak_total: u64,
    peak_label: Label,
    last_row: Option<StepRow>,
    last_ranks: Vec<RankStep>,
    last_val_loss: Option<f64>,
    /// Which programs of generating text ran.
    sampled: [bool; 2],
    /// What the newest step asked the heap for.
    allocated: Vec<Allocations>,
    /// Tokens and slowest rank's time of all steps.
    stepped: (u64, f64),
    /// What a scheduler wants to know.
    pub timing: Timing,
    /// Rank 0 notes what happens to the run.
    records: Option<RunRecords>,
    stragglers: Stragglers,
}

/// What each rank tells rank 0 at the end, over all its steps.
#[derive(Serialize, Deserialize)]
struct RankTotals {
    received: RankBytes,
    steps_off_plan: u64,
    /// In the order of [`Phase::ALL`].
    phases_ms: Vec<f64>,
    /// In the order of the model's units.
    units: Vec<UnitTimes>,
}

impl Report {
    /// Opens the report; rank 0 prints the banner. Collective.
    pub fn new<B: Backend>(
        job: &Job,
        stepper: &Stepper<'_, B>,
        source: &Source,
        start: Position,
        timing: Timing,
        records: Option<RunRecords>,
    ) -> Result<Self> {
        let t = &job.deck.train;
        let rank = stepper.comm.rank();
        if rank == 0 && !job.quiet {
            banner(job, stepper, source, start);
        }
        let hosts = all_or_none(stepper.comm, Ok(job.host.clone()))?;
        Ok(Report {
            progress: (rank == 0 && !job.quiet).then(|| Progress::new(t.steps, start.step, job.is_terminal)),
            start,
            unigram_entropy: source.unigram_entropy,
            planned: stepper.plan.step_volume(rank, t.global_batch_size / t.micro_batch_size),
            counted: CommCounts::default(),
            last_step: Volume::default(),
            usage: Usage::now(),
            steps_off_plan: 0,
            phases: PhaseTimes::default(),
            peak_by_kind: [0; MemKind::ALL.len()],
            peak_total: 0,
            peak_label: Label::default(),
            last_row: None,
            last_ranks: Vec::new(),
            last_val_loss: None,
            sampled: [false; 2],
            allocated: Vec::new(),
            stepped: (0, 0.0),
            timing,
            records,
            stragglers: Stragglers::new(hosts, t.global_batch_size / t.micro_batch_size),
        })
    }

    /// Start-up is over: times, counters and peaks begin here.
    pub fn begin_steps<B: Backend>(&mut self, stepper: &Stepper<'_, B>) -> Result<()> {
        stepper.timer.take()?;
        stepper.memory.ledger().begin_steps();
        self.counted = stepper.volume.counts();
        Ok(())
    }

    /// A text was generated, by these programs of the plan.
    pub fn sampled(&mut self, ran: [bool; 2]) {
        self.sampled.iter_mut().zip(ran).for_each(|(sampled, ran)| *sampled |= ran);
    }

    /// The step that has just ended asked the heap for this.
    pub fn allocated(&mut self, by_owner: impl Into<Vec<Allocations>>) {
        self.allocated = by_owner.into();
    }

    /// A step was not finite and changed nothing.
    pub fn skipped<B: Backend>(
        &mut self,
        stepper: &Stepper<'_, B>,
        at: Position,
        outcome: &StepOutcome,
        in_a_row: u64,
    ) -> Result<()> {
        let (times, _) = self.measure(stepper, at)?;
        self.timing.skipped(times.step_ms() / 1e3);
        if let Some(records) = &mut self.records {
            let finite = |x: f64| x.is_finite().then_some(x);
            records.add(&RunEvent::Skip {
                step: at.step,
                attempts: at.attempts,
                loss: finite(outcome.loss),
                grad_norm: finite(outcome.grad_norm),
                in_a_row,
            })?;
        }
        if let Some(progress) = &self.progress {
            progress.note(&format!(
                "attempt {} skipped: loss {}, gradient norm {}{}; step {} stands, {in_a_row} skipped in a row",
                at.attempts,
                outcome.loss,
                outcome.grad_norm,
                origin(&stepper.model.spec, outcome),
                at.step
            ));
        }
        Ok(())
    }

    /// Gathers every rank's numbers of the step since the last row. Collective.
    pub fn row<B: Backend>(
        &mut self,
        stepper: &Stepper<'_, B>,
        deck: &Deck,
        at: Position,
        outcome: &StepOutcome,
        val_loss: Option<f64>,
    ) -> Result<StepRow> {
        let (times, moved) = self.measure(stepper, at)?;
        let (ledger, usage) = (stepper.memory.ledger(), Usage::now());
        let own = RankStep {
            step_ms: times.step_ms(),
            data_ms: times.ms(Phase::Data),
            forward_ms: times.ms(Phase::Forward),
            backward_ms: times.ms(Phase::Backward),
            optimizer_ms: times.ms(Phase::Optimizer),
            checkpoint_ms: times.ms(Phase::Checkpoint),
            exposed_comm_ms: times.ms(Phase::ExposedComm),
            all_gather_bytes: moved.bytes(CommClass::TrainAllGather) as f64,
            reduce_scatter_bytes: moved.bytes(CommClass::TrainReduceScatter) as f64,
            live_peak_bytes: ledger.total_peak() as f64,
            resident_bytes: ledger.resident() as f64,
            peak_rss_bytes: usage.peak_rss_bytes as f64,
            page_faults: (usage.page_faults - self.usage.page_faults) as f64,
        };
        self.usage = usage;
        for (peak, kind) in self.peak_by_kind.iter_mut().zip(MemKind::ALL) {
            *peak = (*peak).max(ledger.peak(kind));
        }
        if ledger.total_peak() > self.peak_total {
            (self.peak_total, self.peak_label) = (ledger.total_peak(), ledger.peak_label());
        }
        ledger.reset_peaks();

        stepper.flight.at(at.step, "log row", None);
        let all = stepper.comm.all_gather_f64(&own.to_array())?;
        let ranks: Vec<RankStep> = all
            .chunks_exact(own.to_array().len())
            .map(|c| RankStep::from_array(c.try_into().expect("one rank's")))
            .collect();
        if stepper.comm.rank() == 0 {
            self.timing.step(at.step, &ranks, times.ms(Phase::Evaluation) / 1e3, times.ms(Phase::Checkpoint) / 1e3);
            if let Some(straggler) = self.stragglers.step(at.step, &ranks) {
                log::warn!("{straggler}");
                if let Some(records) = &mut self.records {
                    records.add(&RunEvent::Straggler(straggler))?;
                }
            }
        }
        let mut row = StepRow {
            step: at.step,
            tokens: (deck.train.global_batch_size * deck.model.seq_len) as u64,
            loss: outcome.loss,
            val_loss,
            grad_norm: outcome.grad_norm,
            lr: outcome.lr,
            mfu: None,
            ranks: combine(&ranks),
        };
        if deck.run.peak_gflops > 0.0 {
            let peak = deck.run.peak_gflops * 1e9 * stepper.comm.size() as f64;
            row.mfu = Some(row.tokens_per_s() * stepper.model.spec.flops_per_token / peak);
        }
        self.stepped.0 += row.tokens;
        self.stepped.1 += row.ranks.max.step_ms;
        self.last_val_loss = val_loss.or(self.last_val_loss);
        self.last_row = Some(row);
        self.last_ranks = ranks;
        Ok(row)
    }

    /// What every rank measured of the newest step.
    pub fn last_ranks(&self) -> &[RankStep] {
        &self.last_ranks
    }

    /// Times and bytes of the attempt that has just ended; the bytes are held against the plan.
    fn measure<B: Backend>(&mut self, stepper: &Stepper<'_, B>, at: Position) -> Result<(PhaseTimes, CommCounts)> {
        let times = stepper.timer.take()?;
        self.phases.add(&times);
        let counts = stepper.volume.counts();
        let moved = counts.since(&self.counted);
        self.counted = counts;
        self.last_step = Volume {
            all_gather_bytes: moved.bytes(CommClass::TrainAllGather),
            reduce_scatter_bytes: moved.bytes(CommClass::TrainReduceScatter),
        };
        if self.last_step != self.planned {
            log::error!("attempt {}: moved {:?}, planned {:?}", at.attempts, self.last_step, self.planned);
            self.steps_off_plan += 1;
        }
        Ok((times, moved))
    }

    /// Shows a row on rank 0.
    pub fn show(&mut self, row: &StepRow, print: bool) {
        if let Some(progress) = &mut self.progress {
            progress.step(row, print);
        }
    }

    /// Gathers the totals, writes `summary.json`, prints the closing words. Collective.
    pub fn finish<B: Backend>(mut self, job: &Job, stepper: &Stepper<'_, B>, ending: Ending) -> Result<Exit> {
        let Stepper { comm, plan, .. } = stepper;
        stepper.flight.at(ending.position.step, "summary", None);
        self.timing.finish(match ending.exit {
            Exit::Finished => "finished",
            Exit::StoppedEarly => "stopped early, saved",
            _ => "ended for want of a good step or save",
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
            return Ok(ending.exit);
        }
        let evaluated = self.last_val_loss.is_some();
        let others = [evaluated.then(|| plan.evaluation_peaks()), plan.generation_peaks(&self.sampled)];
        let planned = planned_peaks(plan.training_peaks(), others);
        // Everything the ledger holds now, the copy for asynchronous saves apart: nothing gathered, no gradient whole.
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
            exit_reason: ending.reason,
            exit_code: ending.exit.code(),
            run_dir: job.deck.run.dir.clone(),
            deck: digest_in_words(&job.deck),
            world_size: comm.size() as u64,
            step: ending.position.step,
            total_steps: job.deck.train.steps,
            start_step: self.start.step,
            tokens: ending.position.tokens - self.start.tokens,
            wall_seconds: job.started.elapsed().as_secs_f64(),
            tokens_per_s: (self.stepped.0 > 0).then(|| self.stepped.0 as f64 / (self.stepped.1 / 1e3)),
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
        Ok(ending.exit)
    }
}

/// Where a step that was not finite began, in words to go on with.
pub fn origin(spec: &ModelSpec, outcome: &StepOutcome) -> String {
    outcome.not_finite.map_or(String::new(), |(unit, param)| {
        format!(", first in the gradient of {} of unit {}", spec.params[param].name, spec.units[unit].name)
    })
}

/// The peaks of whatever programs a run of this deck has.
pub fn peaks_of_run(deck: &Deck, plan: &Plan) -> Peaks {
    let (evaluates, samples) = (deck.train.eval_every > 0, deck.train.sample_every > 0);
    let others = [evaluates.then(|| plan.evaluation_peaks()), plan.generation_peaks(&[samples; 2])];
    planned_peaks(plan.training_peaks(), others)
}

/// The peaks of whichever programs ran.
fn planned_peaks(mut train: Peaks, others: [Option<Peaks>; 2]) -> Peaks {
    others.iter().flatten().for_each(|other| train.raise(other));
    train
}

/// The run needs no more steps.
pub fn already_finished(path: &Path, step: u64, total_steps: u64) {
    let path = path.display();
    let text = format!(
        "finished: {path} holds step {step} of train.steps = {total_steps}\n\
         raise train.steps to go on, or start over with --resume none (what is there is set aside)"
    );
    // Nobody may be reading any more.
    writeln!(std::io::stdout().lock(), "{text}").ok();
}

/// The step to which a run of this very deck went here, to its end, where the deck wants no checkpoint that would tell: from
/// the summary it left. A run that starts over has moved that file away.
pub fn finished_without_checkpoint(deck: &Deck) -> Option<u64> {
    let path = Path::new(&deck.run.dir).join(SUMMARY_FILE);
    let text = (deck.checkpoint.every == 0).then(|| std::fs::read_to_string(path).ok())??;
    let past: Summary = serde_json::from_str(&text).ok()?;
    let is_its_end = past.exit_code == Exit::Finished.code() && past.step >= deck.train.steps;
    (is_its_end && past.deck == digest_in_words(deck)).then_some(past.step)
}

fn digest_in_words(deck: &Deck) -> String {
    format!("{:016x}", deck.digest())
}

/// What to try next.
fn hints(job: &Job, ending: &Ending) -> Vec<String> {
    let mut hints = Vec::new();
    let program = job.relaunch.split(' ').next().unwrap_or("zero3");
    if let Some(dir) = &ending.last_checkpoint {
        let (step, steps) = (ending.position.step, job.deck.train.steps);
        // A run that is not over goes on as its deck says: fewer steps would bend its schedule.
        let more = if step < steps { steps } else { step + (steps / 3).max(1) };
        hints.push("go on from this checkpoint on 3 ranks, to the same bits as on any other number:".to_string());
        hints.push(format!("  mpirun -n 3 --oversubscribe {} train.steps={more}", job.relaunch));
        hints.push(format!("look into it:  {program} ckpt inspect {}", dir.display()));
    }
    hints.push(format!(
        "the same run on paper, for 8 ranks:  {} --ranks 8",
        job.relaunch.replacen(" train ", " plan ", 1)
    ));
    hints
}

fn banner<B: Backend>(job: &Job, stepper: &Stepper<'_, B>, source: &Source, start: Position) {
    let (deck, plan, spec) = (&job.deck, stepper.plan, &stepper.model.spec);
    let n = stepper.comm.size();
    let t = &deck.train;
    let dims = &stepper.model.dims;
    let n_micro = t.global_batch_size / t.micro_batch_size;
    log::info!("{n} rank{}, each {}", if n == 1 { "" } else { "s" }, stepper.device.describe());
    log::info!(
        "model: {} parameters, {} layers, {} heads, width {}, {} tokens, vocabulary {}",
        spec.numel(),
        dims.n_layer,
        dims.n_heads,
        dims.c,
        dims.t,
        dims.vocab
    );
    log::info!(
        "data: {} training tokens, {} validation tokens, digest {}",
        source.train().n_tokens(),
        source.val().map_or(0, |v| v.n_tokens()),
        source.digest
    );
    log::info!(
        "step: {} sequences = {n_micro} micro-batches of {}, in {} micro-step{} of {n} rank{}",
        t.global_batch_size,
        t.micro_batch_size,
        micro_steps(n_micro, n),
        if micro_steps(n_micro, n) == 1 { "" } else { "s" },
        if n == 1 { "" } else { "s" },
    );
    let volume = plan.step_volume(0, n_micro);
    log::info!(
        "plan: {} at rest and {} at peak on each rank; {} gathered and {} reduced per step",
        human::bytes(plan.resident_bytes()),
        human::bytes(plan.training_peaks().total),
        human::bytes(volume.all_gather_bytes),
        human::bytes(volume.reduce_scatter_bytes)
    );
    match start.step {
        0 => log::info!("training to step {}, logs and checkpoints in {}", t.steps, deck.run.dir),
        step => log::info!("training from step {step} to {}, logs and checkpoints in {}", t.steps, deck.run.dir),
    }
}
