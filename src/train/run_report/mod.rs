//! What a run reports: its banner (`banner.rs`), a row per step, its summary (`closing.rs`). Collective where
//! it needs numbers of all ranks.
//!
//! Must not know: how a step is made, what is done about a bad one.

mod banner;
pub mod closing;

use super::batches::Batches;
use super::job::Job;
use super::state::Position;
use super::step::StepOutcome;
use super::stepper::Stepper;
use crate::backend::agree::all_or_none;
use crate::backend::{Backend, Comm};
use crate::config::Deck;
use crate::environment;
use crate::error::Result;
use crate::liveness::stragglers::Stragglers;
use crate::params::ModelSpec;
use crate::plan::generation::Ran;
use crate::plan::volume::Volume;
use crate::records::{Progress, RunEvent, RunRecords, Timing};
use crate::telemetry::allocations::Allocations;
use crate::telemetry::comm_volume::CommCounts;
use crate::telemetry::ledger::Label;
use crate::telemetry::{CommClass, MemKind, Phase, PhaseTimes, RankStep, StepRow, Usage, combine};
use banner::banner;

/// Collects the figures of the steps of one process.
pub struct RunReport {
    /// Rank 0 shows progress.
    progress: Option<Progress>,
    start: Position,
    unigram_entropy: Option<f64>,
    /// Bytes that one step moves on this rank, from the plan.
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
    /// The programs of generation that ran.
    sampled: Ran,
    /// Heap requests of the newest step, by owner.
    allocated: Vec<Allocations>,
    /// Tokens of all steps, and the sum of the slowest rank's times.
    stepped_tokens: u64,
    stepped_ms: f64,
    /// Times that a batch script asks for.
    pub timing: Timing,
    /// Rank 0's log of events.
    records: Option<RunRecords>,
    stragglers: Stragglers,
}

impl RunReport {
    /// Opens the report; rank 0 prints the banner. Collective.
    pub fn new<B: Backend>(
        job: &Job,
        stepper: &Stepper<'_, B>,
        batches: &Batches,
        start: Position,
        timing: Timing,
        records: Option<RunRecords>,
    ) -> Result<Self> {
        let t = &job.deck.train;
        let rank = stepper.comm.rank();
        if rank == 0 && !job.quiet {
            banner(job, stepper, batches, start);
        }
        let hosts = all_or_none(stepper.comm, Ok(job.host.clone()))?;
        Ok(RunReport {
            progress: (rank == 0 && !job.quiet).then(|| Progress::new(t.steps, start.step, job.is_terminal)),
            start,
            unigram_entropy: batches.unigram_entropy,
            planned: stepper.plan.step_volume(rank, t.n_micro()),
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
            sampled: Ran::default(),
            allocated: Vec::new(),
            stepped_tokens: 0,
            stepped_ms: 0.0,
            timing,
            records,
            stragglers: Stragglers::new(hosts, t.n_micro()),
        })
    }

    /// Start-up is over: times, counters and peaks begin here.
    pub fn begin_steps<B: Backend>(&mut self, stepper: &Stepper<'_, B>) -> Result<()> {
        stepper.timer.take()?;
        stepper.memory.ledger().begin_steps();
        self.counted = stepper.volume.counts();
        Ok(())
    }

    /// Text was generated, by these programs of the plan.
    pub fn sampled(&mut self, ran: Ran) {
        self.sampled.add(ran);
    }

    /// Heap requests of the step that has just ended.
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
                "attempt {} skipped: loss {}, gradient norm {}{}; step {} stands, {in_a_row} skipped in a \
                 row",
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
        let all = stepper.comm.control().all_gather_f64(&own.to_array())?;
        let ranks: Vec<RankStep> = all
            .chunks_exact(own.to_array().len())
            .map(|c| RankStep::from_array(c.try_into().expect("one rank's")))
            .collect();
        if stepper.comm.rank() == 0 {
            self.timing.step(
                at.step,
                &ranks,
                times.ms(Phase::Evaluation) / 1e3,
                times.ms(Phase::Checkpoint) / 1e3,
            );
            if self.progress.is_some() {
                self.timing.warn_of_grace(environment::mpirun_grace_seconds());
            }
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
        self.stepped_tokens += row.tokens;
        self.stepped_ms += row.ranks.max.step_ms;
        self.last_val_loss = val_loss.or(self.last_val_loss);
        self.last_row = Some(row);
        self.last_ranks = ranks;
        Ok(row)
    }

    /// What every rank measured of the newest step.
    pub fn last_ranks(&self) -> &[RankStep] {
        &self.last_ranks
    }

    /// Times and bytes of the attempt that has just ended; the bytes are compared with the plan.
    fn measure<B: Backend>(
        &mut self,
        stepper: &Stepper<'_, B>,
        at: Position,
    ) -> Result<(PhaseTimes, CommCounts)> {
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
}

/// Where a step that was not finite began, as the end of a message.
pub fn origin(spec: &ModelSpec, outcome: &StepOutcome) -> String {
    outcome.not_finite.map_or(String::new(), |(unit, param)| {
        format!(", first in the gradient of {} of unit {}", spec.params[param].name, spec.units[unit].name)
    })
}
