//! The loop over steps: attempt one; skip it, or sample, validate, save and log; until the steps are done or
//! training cannot continue.
//!
//! Must not know: how a step is computed, how a checkpoint is written.

use super::batches::Batches;
use super::infer::Sampler;
use super::job::{Ending, Job, Verdict};
use super::run_report::{self, RunReport};
use super::save::Saver;
use super::state::Position;
use super::step::StepOutcome;
use super::stepper::Stepper;
use super::tracing;
use crate::backend::{Backend, Comm};
use crate::batch::signals::Stop;
use crate::error::{Exit, Result};
use crate::optim;
use crate::records::StepLog;
use crate::telemetry::allocations::{self, Owner};
use crate::test_hooks::{self, fault_point};
use std::path::Path;
use std::time::Instant;

/// The state of the loop.
pub(super) struct TrainLoop<'r, 's, B: Backend> {
    stepper: &'r mut Stepper<'s, B>,
    job: &'r Job,
    batches: &'r Batches,
    at: Position,
    /// Rank 0's.
    log: Option<StepLog>,
    report: &'r mut RunReport,
    saver: Saver<'r>,
    sampler: Option<Sampler>,
    skipped_in_a_row: u64,
    /// The step that this process started from.
    first_step: u64,
}

impl<'r, 's, B: Backend> TrainLoop<'r, 's, B> {
    /// Ready for the step after `at`. Collective.
    pub fn new(
        stepper: &'r mut Stepper<'s, B>,
        job: &'r Job,
        batches: &'r Batches,
        at: Position,
        log: Option<StepLog>,
        report: &'r mut RunReport,
    ) -> Result<Self> {
        let saver = Saver::new(stepper, &job.deck, batches);
        let samples = job.deck.train.sample_every > 0;
        let sampler = samples.then(|| Sampler::open::<B>(stepper.comm, &job.deck)).transpose()?;
        Ok(TrainLoop {
            stepper,
            job,
            batches,
            at,
            log,
            report,
            saver,
            sampler,
            skipped_in_a_row: 0,
            first_step: at.step,
        })
    }

    /// Runs to the end, including a save still in progress. Collective.
    pub fn run(mut self) -> Result<Ending> {
        let mut verdict = self.run_steps()?;
        if self.stepper.trace.holds_events() {
            // The run ended within the traced steps.
            tracing::write(self.stepper, Path::new(&self.job.deck.run.dir), &self.job.host)?;
        }
        self.saver.drain(self.stepper, self.log.as_mut())?;
        if let Some(seconds) = self.saver.take_seconds() {
            self.report.timing.saved(seconds);
        }
        if let (Exit::Finished | Exit::StoppedEarly, Some(why)) = (verdict.exit, self.saver.newest_failure())
        {
            let reason = format!(
                "all {} steps are done, but their checkpoint could not be saved: \
                         {why}",
                self.at.step
            );
            verdict = Verdict { exit: Exit::CommFailure, reason };
        }
        Ok(Ending { position: self.at, last_checkpoint: self.saver.into_last(), verdict })
    }

    fn run_steps(&mut self) -> Result<Verdict> {
        self.report.begin_steps(self.stepper)?;
        allocations::count_this_thread(Owner::Program);
        let steps = self.job.deck.train.steps;
        while self.at.step < steps {
            let outcome = self.attempt()?;
            let verdict = match outcome.updated {
                true => self.complete(&outcome)?,
                false => self.skip(&outcome)?,
            };
            if let Some(verdict) = verdict {
                return Ok(verdict);
            }
        }
        Ok(Verdict { exit: Exit::Finished, reason: format!("finished: all {steps} steps are done") })
    }

    /// Attempts the next step.
    fn attempt(&mut self) -> Result<StepOutcome> {
        let TrainLoop { stepper, job, batches, at, report, .. } = self;
        let (deck, t) = (&job.deck, &job.deck.train);
        let next = at.step + 1;
        report.timing.begin_round();
        fault_point("step", stepper.comm.rank(), next);
        stepper.trace.set_step(deck.log.trace.contains(next).then_some(next));
        test_hooks::begin_attempt(at.attempts);
        let samples = at.samples;
        let load = |j, into: &mut _| batches.training_micro_batch(samples, j, t.micro_batch_size, into);
        allocations::take();
        let outcome = stepper.step(t.n_micro(), next, &deck.optim, load)?;
        report.allocated(allocations::take());
        at.attempts += 1;
        at.samples += t.global_batch_size as u64;
        at.tokens += (t.global_batch_size * deck.model.seq_len) as u64;
        Ok(outcome)
    }

    /// After a non-finite step, which changed nothing.
    fn skip(&mut self, outcome: &StepOutcome) -> Result<Option<Verdict>> {
        self.skipped_in_a_row += 1;
        let in_a_row = self.skipped_in_a_row;
        self.report.skipped(self.stepper, self.at, outcome, in_a_row)?;
        if in_a_row < self.job.deck.train.max_skipped_steps {
            return Ok(None);
        }
        let reason = format!(
            "{in_a_row} steps in a row were not finite (loss {}, gradient norm {}{}); the weights are those \
             of step {}; {}",
            outcome.loss,
            outcome.grad_norm,
            run_report::origin(&self.stepper.model.spec, outcome),
            self.at.step,
            self.remedy_of_non_finite_steps()?
        );
        Ok(Some(Verdict { exit: Exit::NonFinite, reason }))
    }

    fn remedy_of_non_finite_steps(&self) -> Result<String> {
        let Stepper { device, comm, model, shards, .. } = &*self.stepper;
        let bad = optim::first_non_finite_weight(*device, *comm, shards, &model.spec)?;
        Ok(match bad {
            // No update of this process has touched them.
            None if self.at.step == self.first_step => {
                "no step was finite: the initial weights are too large to compute with, so start from \
                 different ones"
                    .into()
            }
            None => "lower optim.lr, or raise train.max_skipped_steps".into(),
            Some(p) => format!(
                "{} has non-finite values, which training cannot repair: start from finite weights",
                model.spec.params[p].name
            ),
        })
    }

    /// After a completed step: samples, validates, saves and logs as due.
    fn complete(&mut self, outcome: &StepOutcome) -> Result<Option<Verdict>> {
        self.skipped_in_a_row = 0;
        self.at.step += 1;
        self.stepper.trace.set_step(None);
        let (deck, t) = (&self.job.deck, &self.job.deck.train);
        let is_last = self.at.step == t.steps;
        let stop = outcome.stop.filter(|_| !is_last);

        if self.is_due(t.sample_every) {
            self.sample()?;
        }
        let val_loss = if self.is_due(t.eval_every) { Some(self.validate()?) } else { None };
        let began = Instant::now();
        if self.is_due(deck.checkpoint.every) || stop.is_some() {
            self.saver.begin(self.stepper, self.at, self.log.as_mut())?;
        }
        let mut stalled = began.elapsed();
        self.log_row(outcome, val_loss)?;
        let began = Instant::now();
        self.saver.advance(self.stepper, self.log.as_mut())?;
        stalled += began.elapsed();
        self.time_saves(stalled.as_secs_f64());
        Ok(stop.map(|stop| self.stopped(stop)))
    }

    /// Whether this step is the last one or a multiple of `every`; 0 = never.
    fn is_due(&self, every: u64) -> bool {
        let step = self.at.step;
        every > 0 && (step.is_multiple_of(every) || step == self.job.deck.train.steps)
    }

    fn sample(&mut self) -> Result<()> {
        let sampler = self.sampler.as_ref().expect("a run that samples has opened it");
        let ran = sampler.sample(self.stepper, self.at.step, self.job.quiet)?;
        self.report.sampled(ran);
        Ok(())
    }

    /// Mean validation loss in nats per token.
    fn validate(&mut self) -> Result<f64> {
        let (t, batches) = (&self.job.deck.train, self.batches);
        let load = |i, into: &mut _| batches.validation_micro_batch(i, t.micro_batch_size, into);
        self.stepper.evaluate(t.eval_batches as usize, load)
    }

    /// The row of the step reaches the disk before its checkpoint counts: no checkpoint is newer than the
    /// log.
    fn log_row(&mut self, outcome: &StepOutcome, val_loss: Option<f64>) -> Result<()> {
        let deck = &self.job.deck;
        let row = self.report.row(self.stepper, deck, self.at, outcome, val_loss)?;
        if let Some(log) = &mut self.log {
            log.write(&row)?;
        }
        if let Some(on_step) = &self.job.on_step {
            on_step(&row, self.report.last_ranks());
        }
        if deck.log.trace.ends_with(self.at.step) {
            tracing::write(self.stepper, Path::new(&deck.run.dir), &self.job.host)?;
        }
        let print = self.is_due(deck.log.every) || val_loss.is_some() && deck.log.every > 0;
        self.report.show(&row, print);
        Ok(())
    }

    fn time_saves(&mut self, stalled_seconds: f64) {
        let timing = &mut self.report.timing;
        timing.stalled(stalled_seconds);
        let ended = self.saver.take_seconds();
        if let Some(seconds) = ended {
            timing.saved(seconds);
        }
        timing.write(ended.is_some());
    }

    fn stopped(&self, stop: Stop) -> Verdict {
        let (step, steps) = (self.at.step, self.job.deck.train.steps);
        let reason =
            format!("stopped early: {stop}; step {step} of {steps} is saved, run the same command to resume");
        Verdict { exit: Exit::StoppedEarly, reason }
    }
}
