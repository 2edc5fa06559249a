//! The algorithm: one training step of ZeRO-3, and the one loop that executes a planned program.
//!
//! At rest a rank holds slices: of every parameter, gradient and optimizer state. A micro-step visits the
//! units in turn: each unit's parameters are all-gathered, used and released; in backward they are gathered
//! again, and the full gradients go to the owners of their slices, who add them up. Then each rank updates
//! its own slices. `plan/schedule.rs` writes the order down as data before step 0, and [`Stepper::execute`]
//! runs it from top to bottom: nothing is decided here. For two blocks and one unit of prefetch, a line per
//! visit:
//!
//! ```text
//! gather embed | gather h.0 | wait embed | forward embed | release embed
//! gather h.1 | wait h.0 | forward h.0 | release h.0
//! gather head | wait h.1 | forward h.1 | release h.1
//! gather h.1 | wait head | loss head | release head | reduce head
//! gather h.0 | wait h.1 | backward h.1 | release h.1 | wait for the reduction head | reduce h.1
//! wait h.0 | backward h.0 | release h.0 | wait for the reduction h.1 | reduce h.0
//! backward embed | wait for the reduction h.0 | reduce embed | wait for the reduction embed
//! ```
//!
//! `loss head` is the head's forward and backward in one visit. `backward embed` needs no parameters, so
//! none are gathered. The word matrix is tied here: its gradient, written by head and embedding, is reduced
//! once, with `reduce embed`.
//!
//! Reading order: [`Stepper::step`], [`Stepper::execute`], then what each instruction does (`moves.rs`), what
//! is recorded of it (`bookkeeping.rs`) and how a visit computes (`compute_visit.rs`).

use super::batches::MicroBatch;
use super::pass::{PassState, Purpose, Visitor};
use super::scratch::{Scratch, get};
use super::stepper::Stepper;
use crate::backend::{Backend, Comm, Device, SumOf};
use crate::batch::signals::{self, Stop};
use crate::config::OptimSection;
use crate::error::Result;
use crate::optim;
use crate::optim::lr_schedule::lr_at;
use crate::params::{ParamId, UnitId};
use crate::plan::schedule::{Instr, Pass, Visit};
use crate::plan::{MicroBatches, Program, State};
use crate::telemetry::{CommClass, Phase};
use crate::test_hooks;
use crate::zero::reduce::Contributions;
use crate::zero::refresh::Refresher;

/// Outcome of one step, the same on every rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepOutcome {
    /// Mean cross-entropy over the tokens of the global batch, in nats.
    pub loss: f64,
    /// Global gradient norm before clipping.
    pub grad_norm: f64,
    /// Learning rate of the step, even if it was skipped.
    pub lr: f64,
    /// Whether the update was made; false if the loss or the norm was not finite.
    pub updated: bool,
    /// Whether some rank requests a stop after this step.
    pub stop: Option<Stop>,
    /// The first unit in backward order with a non-finite gradient, and its parameter.
    pub not_finite: Option<(UnitId, ParamId)>,
}

impl<B: Backend> Stepper<'_, B> {
    /// One optimizer step over `n_micro` micro-batches; `load(j, batch)` reads micro-batch `j`. `update`
    /// counts from 1.
    pub fn step(
        &mut self,
        n_micro: usize,
        update: u64,
        o: &OptimSection,
        mut load: impl FnMut(usize, &mut MicroBatch),
    ) -> Result<StepOutcome> {
        let (plan, spec) = (self.plan, &self.model.spec);
        let order = MicroBatches::new(n_micro, self.comm.size());
        let n_tokens = n_micro * spec.tokens_per_micro_batch;
        self.step_now = update;
        self.flight.at(update, "begin", None);

        // 1. Every micro-batch forward and backward; owners add up the gradients of their slices.
        self.shards.begin_step(self.device, &mut self.memory, &plan.step);
        for a in 0..order.micro_steps() {
            self.micro_step(a, order, n_tokens, &mut load)?;
        }
        self.shards.end_step(self.device, &mut self.memory, &plan.step);

        // 2. The loss of the global batch. Stop requests of ranks travel with it: all stop after the same
        //    step.
        let (sum, stop) = self.sum_losses(order, signals::stop_code())?;
        let loss = sum / n_tokens as f64;

        // 3. The norm of the whole gradient. It and the loss are the same bits on every rank, so all ranks
        //    skip the update, or none.
        let outer = self.timer.switch(Phase::Optimizer);
        self.flight.at(update, "gradient norm", None);
        let grad_norm = optim::grad_norm(self.device, self.comm, &self.shards, spec)?;
        let updated = grad_norm.is_finite() && loss.is_finite();
        let not_finite = match updated {
            true => None,
            false => optim::first_non_finite(self.device, self.comm, &self.shards, spec)?,
        };

        // 4. Each rank updates the elements it owns. Stage 0: that is every element, so the gradients are
        //    gathered before. Stages 1 and 2, and parameters under the persistence threshold: the updated
        //    slices are gathered after. Skipped steps gather too: their bytes are those of any other step.
        let lr = lr_at(update, o);
        let refreshed = plan.refreshed_state();
        if refreshed == Some(State::Grad) {
            self.refresh(State::Grad, CommClass::TrainAllGather)?;
        }
        if updated {
            let grad_scale = optim::clip_factor(grad_norm, o.grad_clip);
            optim::update(self.device, &mut self.shards, spec, o, update, lr, grad_scale);
        }
        if refreshed == Some(State::Param) {
            self.refresh(State::Param, CommClass::TrainAllGather)?;
        }
        self.timer.switch(outer);
        self.settle()?;
        Ok(StepOutcome { loss, grad_norm, lr, updated, stop: Stop::from_code(stop), not_finite })
    }

    /// Micro-step `a`. In the last one some ranks may have no micro-batch: they join the collectives and
    /// contribute nothing.
    fn micro_step(
        &mut self,
        a: usize,
        order: MicroBatches,
        n_tokens: usize,
        load: &mut impl FnMut(usize, &mut MicroBatch),
    ) -> Result<()> {
        let (rank, plan) = (self.comm.rank(), self.plan);
        let j = order.of(a, rank);
        if let Some(j) = j {
            self.timer.time(Phase::Data, || load(j, &mut self.scratch.batch));
        }
        let is_first = a == 0;
        let contributions = Contributions {
            contributors: plan.contributors(order.n_micro(), a),
            // Where gradients are accumulated over the step there is one reduction, in the last micro-step.
            overwrites: is_first || plan.reduces_once(),
        };
        let dlogits_scale = test_hooks::spoilt(rank, (1.0 / n_tokens as f64) as f32);
        let purpose = Purpose::Train { dlogits_scale, contributions, is_first_micro_step: is_first };
        self.run_micro_batch(plan.micro_step(a, order.micro_steps()), purpose, j.is_some())
    }

    /// Mean loss of `n_batches` evaluation micro-batches, distributed and summed like those of a step.
    pub fn evaluate(
        &mut self,
        n_batches: usize,
        mut load: impl FnMut(usize, &mut MicroBatch),
    ) -> Result<f64> {
        let order = MicroBatches::new(n_batches, self.comm.size());
        let plan = self.plan;
        for a in 0..order.micro_steps() {
            let i = order.of(a, self.comm.rank());
            if let Some(i) = i {
                load(i, &mut self.scratch.batch);
            }
            self.run_micro_batch(&plan.eval, Purpose::Evaluate, i.is_some())?;
        }
        let n_tokens = n_batches * self.model.spec.tokens_per_micro_batch;
        let loss = self.sum_losses(order, 0)?.0 / n_tokens as f64;
        self.settle()?;
        Ok(loss)
    }

    /// Executes `program` on the loaded micro-batch, if this rank has one, and starts the sum of its losses.
    fn run_micro_batch(&mut self, program: &Program, purpose: Purpose, has_batch: bool) -> Result<()> {
        let mut loss = LossOfBatch { sum: None };
        self.execute(program, purpose, has_batch.then_some(&mut loss))?;
        self.scratch.losses.push(loss.sum);
        Ok(())
    }

    /// Executes `program` from top to bottom, once. `visitor` computes; a rank without one joins the
    /// collectives only. Collective.
    pub(super) fn execute<V: Visitor<B>>(
        &mut self,
        program: &Program,
        purpose: Purpose,
        mut visitor: Option<&mut V>,
    ) -> Result<()> {
        let mut pass = self.begin_pass(program, purpose, visitor.is_some());
        for (at, &instr) in program.schedule.instrs.iter().enumerate() {
            self.begin(&mut pass, at);
            self.take_buffers(&mut pass);
            if at == 0
                && let Some(visitor) = visitor.as_deref_mut()
            {
                visitor.upload(self, &mut pass)?;
            }
            match instr {
                Instr::Gather(g) => self.start_gather(&mut pass, g),
                Instr::Wait(g) => self.land_gather(&mut pass, g)?,
                Instr::Compute(visit) => self.visit_unit(&mut pass, visit, visitor.as_deref_mut())?,
                Instr::Release(g) => self.release(&mut pass, g),
                Instr::Accumulate(r) => self.accumulate_gradients(&mut pass, r),
                Instr::Round(r) => self.round_gradients(&mut pass, r),
                Instr::Reduce(r) => self.start_reduce(&mut pass, r),
                Instr::ReduceWait(r) => self.land_reduce(&mut pass, r)?,
            }
            self.end(&mut pass);
            self.return_buffers(&mut pass);
        }
        self.end_pass(pass);
        Ok(())
    }

    /// All-gathers from their owners the parts of `state` that this rank holds whole.
    pub fn refresh(&mut self, state: State, class: CommClass) -> Result<()> {
        let outer = self.timer.switch(Phase::ExposedComm);
        let Stepper { device, comm, plan, memory, shards, volume, flight, step_now, scratch, .. } = self;
        memory.ledger().set_label("refresh", None);
        flight.at(*step_now, "refresh", None);
        let lists = &mut scratch.refresh;
        Refresher::<B> { device, comm, plan, memory, shards, volume, class, lists }.refresh(state)?;
        self.timer.switch(outer);
        Ok(())
    }

    /// Sum of the losses of all micro-batches in the order of their index, and the largest stop code of any
    /// rank.
    fn sum_losses(&mut self, order: MicroBatches, stop_code: i32) -> Result<(f64, i32)> {
        self.flight.at(self.step_now, "losses", None);
        let Scratch { losses, own, all, .. } = &mut self.scratch;
        own.clear();
        for sum in losses.drain(..) {
            own.push(sum.map_or(Ok(0.0), |sum| self.device.finish_sum(sum))?);
        }
        own.push(f64::from(stop_code));
        all.resize(self.comm.size() * own.len(), 0.0);
        self.comm.control().all_gather_into(own, all)?;
        let sum = order.sum(|rank, a| all[rank * own.len() + a]);
        let largest = all.chunks_exact(own.len()).map(|rank| rank[own.len() - 1] as i32).max();
        Ok((sum, largest.unwrap_or(0)))
    }
}

/// Training and validation: the units of the run's model, on the loaded micro-batch.
struct LossOfBatch<B: Backend> {
    /// Sum of the losses of its tokens, once the head has been visited.
    sum: Option<SumOf<B>>,
}

impl<B: Backend> Visitor<B> for LossOfBatch<B> {
    fn upload(&mut self, stepper: &Stepper<'_, B>, pass: &mut PassState<'_, B>) -> Result<()> {
        let MicroBatch { tokens, targets } = &stepper.scratch.batch;
        pass.upload(stepper.device, tokens, targets)
    }

    fn visit(&mut self, stepper: &Stepper<'_, B>, visit: Visit, pass: &mut PassState<'_, B>) -> Result<()> {
        stepper.compute(stepper.model, visit, None, pass);
        if visit.pass == Pass::Loss {
            self.sum = Some(stepper.device.start_sum(get(&pass.lists.live, pass.program.losses).view()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::CpuDevice;
    use crate::config::Deck;
    use crate::train::planning;

    /// A program as the head of this file shows one: a line per visit.
    fn as_text(program: &Program, units: &[&str]) -> String {
        let (mut lines, mut line) = (Vec::new(), Vec::new());
        let mut is_visited = false;
        for &instr in &program.schedule.instrs {
            let is_visit = matches!(instr, Instr::Compute(_));
            if is_visited && (is_visit || matches!(instr, Instr::Gather(_) | Instr::Wait(_))) {
                lines.push(std::mem::take(&mut line).join(" | "));
                is_visited = false;
            }
            is_visited |= is_visit;
            let (what, unit) = program.describe(instr);
            line.push(format!("{what} {}", units[unit]));
        }
        lines.push(line.join(" | "));
        lines.join("\n")
    }

    #[test]
    fn the_schedule_at_the_head_of_this_file_is_the_planned_one() {
        let mut deck = Deck::default();
        (deck.model.n_layer, deck.model.n_head, deck.model.d_model, deck.model.d_ff) = (2, 2, 8, 32);
        (deck.model.n_kv_head, deck.model.seq_len, deck.model.vocab_size) = (2, 8, 16);
        (deck.model.tied, deck.zero.deterministic) = (true, true);
        (deck.train.micro_batch_size, deck.train.global_batch_size) = (1, 2);
        let (model, plan) = planning::of_deck::<CpuDevice>(&deck, 2).unwrap();
        let units: Vec<&str> = model.spec.units.iter().map(|unit| unit.name.as_str()).collect();
        let page = include_str!("step.rs").split("//! ```").nth(1).expect("a block of text");
        let shown =
            page.lines().skip(1).map(|line| line.trim_start_matches("//! ")).collect::<Vec<_>>().join("\n");
        assert_eq!(shown.trim_end(), as_text(&plan.train, &units));
    }
}
