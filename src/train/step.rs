//! The algorithm: one training step of ZeRO-3, from the plan.
//!
//! At rest a rank holds slices. For each unit in turn: AllGather its parameters, compute, release them; in backward
//! AllGather again, compute gradients, ReduceScatter them to the owners of the slices. Then the optimizer updates
//! the local slices. `Stepper::run` executes the planned instructions from top to bottom and decides nothing.

use super::kept::{InHand, Kept, get, get_mut, put, take};
use super::source::MicroBatch;
use super::stepper::{Noted, Purpose, Stepper};
use super::visit::{Visit, travelling_ids};
use crate::backend::{Backend, Comm, Device, Ops, Queue, SumOf};
use crate::config::OptimSection;
use crate::error::Result;
use crate::optim;
use crate::optim::lr_schedule::lr_at;
use crate::params::{ParamId, UnitId};
use crate::plan::schedule::Instr;
use crate::plan::volume::micro_steps;
use crate::plan::{Program, State};
use crate::telemetry::signals::{self, Stop};
use crate::telemetry::{CommClass, Phase, Track};
use crate::test_hooks;
use crate::zero::reduce::Contributions;
use crate::zero::refresh::refresh;

/// Outcome of one step, the same on every rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepOutcome {
    /// Mean cross-entropy over the tokens of the global batch, in nats.
    pub loss: f64,
    /// Global gradient norm before clipping.
    pub grad_norm: f64,
    /// Learning rate that was used (or would have been).
    pub lr: f64,
    /// The update was made; false where the loss or the norm was not finite.
    pub updated: bool,
    /// Some rank wishes to stop here.
    pub stop: Option<Stop>,
    /// Where that began: the first unit in the order of backward, and its parameter, with a gradient that is not finite.
    pub not_finite: Option<(UnitId, ParamId)>,
}

impl<B: Backend> Stepper<'_, B> {
    /// One optimizer step over `n_micro` micro-batches; `load(j, batch)` reads micro-batch `j`. `update` counts from 1.
    pub fn step(
        &mut self,
        n_micro: usize,
        update: u64,
        o: &OptimSection,
        mut load: impl FnMut(usize, &mut MicroBatch),
    ) -> Result<StepOutcome> {
        let (rank, n) = (self.comm.rank(), self.comm.size());
        let n_tokens = n_micro * self.model.spec.tokens_per_micro_batch;
        let plan = self.plan;

        self.step_now = update;
        self.flight.at(update, "begin", None);
        self.shards.begin_step(self.device, &mut self.memory, &plan.step);
        // Micro-batch j is computed by rank j mod N in micro-step j div N. In the last micro-step some ranks may
        // have none: they join the collectives and add nothing.
        let n_micro_steps = micro_steps(n_micro, n);
        for a in 0..n_micro_steps {
            let first = a == 0;
            let who = Contributions {
                contributors: plan.contributors(n_micro, a),
                first: first || plan.train_hold.is_some(),
            };
            let j = a * n + rank;
            let has_batch = j < n_micro;
            if has_batch {
                self.timer.time(Phase::Data, || load(j, &mut self.kept.batch));
            }
            let dlogits_scale = test_hooks::spoilt(rank, (1.0 / n_tokens as f64) as f32);
            let purpose = Purpose::Train { dlogits_scale, who, first };
            let loss = self.run(plan.micro_step(a, n_micro_steps), has_batch, purpose)?;
            self.kept.losses.push(loss);
        }
        self.shards.end_step(self.device, &mut self.memory, &plan.step);
        // The wishes to stop ride along: all ranks learn of them at the same step.
        let (sum, stop) = self.sum_in_order(signals::stop_code(), n_micro)?;
        let loss = sum / n_tokens as f64;

        let outer = self.timer.switch(Phase::Optimizer);
        self.flight.at(update, "gradient norm", None);
        let grad_norm = optim::grad_norm(self.device, self.comm, &self.shards, &self.model.spec)?;
        let lr = lr_at(update, o);
        // The norm and the loss are the same bits on every rank, so all skip alike.
        let updated = grad_norm.is_finite() && loss.is_finite();
        let not_finite = match updated {
            true => None,
            false => optim::first_non_finite(self.device, self.comm, &self.shards, &self.model.spec)?,
        };
        let refreshed = plan.refreshed_state();
        if refreshed == Some(State::Grad) {
            self.refresh(State::Grad, CommClass::TrainAllGather)?;
        }
        if updated {
            let grad_scale = optim::clip_factor(grad_norm, o.grad_clip);
            optim::update(self.device, &mut self.shards, &self.model.spec, o, update, lr, grad_scale);
        }
        if refreshed == Some(State::Param) {
            self.refresh(State::Param, CommClass::TrainAllGather)?;
        }
        self.timer.switch(outer);
        self.settle()?;
        Ok(StepOutcome { loss, grad_norm, lr, updated, stop: Stop::from_code(stop), not_finite })
    }

    /// Makes what is kept whole of `state` whole again from its owners' slices.
    pub fn refresh(&mut self, state: State, class: CommClass) -> Result<()> {
        let outer = self.timer.switch(Phase::ExposedComm);
        let Stepper { device, comm, plan, memory, shards, volume, flight, step_now, kept, .. } = self;
        memory.ledger().set_label("refresh", None);
        flight.at(*step_now, "refresh", None);
        refresh::<B>((device, comm), memory, plan, shards, state, (volume, class), &mut kept.refresh)?;
        self.timer.switch(outer);
        Ok(())
    }

    /// Mean loss of `n_batches` evaluation micro-batches: batch `i` runs on rank `i mod N`, summed in the order of `i`.
    pub fn evaluate(&mut self, n_batches: usize, mut load: impl FnMut(usize, &mut MicroBatch)) -> Result<f64> {
        let (rank, n) = (self.comm.rank(), self.comm.size());
        let plan = self.plan;
        for a in 0..micro_steps(n_batches, n) {
            let i = a * n + rank;
            let has_batch = i < n_batches;
            if has_batch {
                load(i, &mut self.kept.batch);
            }
            let loss = self.run(&plan.eval, has_batch, Purpose::Evaluate)?;
            self.kept.losses.push(loss);
        }
        let n_tokens = n_batches * self.model.spec.tokens_per_micro_batch;
        let loss = self.sum_in_order(0, n_batches)?.0 / n_tokens as f64;
        self.settle()?;
        Ok(loss)
    }

    /// Executes a program once, on the micro-batch that was loaded; without one the rank joins the collectives only. Returns the
    /// sum of the losses.
    fn run(&mut self, program: &Program, has_batch: bool, purpose: Purpose) -> Result<Option<SumOf<B>>> {
        let mut pass = std::mem::take(&mut self.kept.pass);
        pass.begin(program);
        let InHand { live, gathers, reductions, last_use } = &mut pass;
        let held = self.plan.train_hold.is_some();
        let mut loss = None;

        for (at, instr) in program.schedule.instrs.iter().enumerate() {
            if signals::report_wanted() {
                self.answer(program, at, gathers);
            }
            let began = self.device.mark(Queue::Compute);
            let mut released_bytes = 0;
            self.begin(program, at, *instr, live);
            if at == 0 && has_batch {
                let MicroBatch { tokens, targets } = &self.kept.batch;
                self.device.upload(get_mut(live, program.tokens).view_mut(), bytemuck::cast_slice(tokens))?;
                self.device.upload(get_mut(live, program.targets).view_mut(), bytemuck::cast_slice(targets))?;
            }
            match *instr {
                Instr::Gather(g) => self.start_gather(program, g, gathers, live),
                Instr::Wait(g) => self.land_gather(program, g, gathers, live, &began, purpose)?,
                Instr::Compute { unit, pass, gather } => {
                    assert!(gather.is_none_or(|g| gathers.is_live(g)), "unit {unit} is used after its gather landed");
                    if has_batch {
                        let outer = self.timer.switch(purpose.computing(pass));
                        self.compute(self.model, program, Visit { unit, pass, gather }, purpose, None, live);
                        self.timer.switch(outer);
                    }
                    if let Some(g) = gather {
                        last_use[g] = Some(self.device.mark(Queue::Compute));
                    }
                }
                Instr::Release(g) => {
                    self.release_gather(program, g, gathers);
                    released_bytes = program.gathered[g].iter().map(|&id| program.slots[id].bytes() as u64).sum();
                    if let Some(used) = &last_use[g] {
                        let unit = program.schedule.gathers[g].unit;
                        self.note(Noted::Kept { bytes: released_bytes }, unit, used, purpose);
                    }
                }
                Instr::Accumulate(r) => {
                    let Purpose::Train { first, .. } = purpose else { panic!("evaluation has no gradients") };
                    for &p in program.schedule.reduces[r].params.iter().filter(|_| has_batch) {
                        self.shards.hold_gradient(self.device, p, get(live, program.grads[p]), first);
                    }
                }
                Instr::Round(r) => {
                    for &p in program.schedule.reduces[r].params.iter().filter(|_| has_batch) {
                        let Some(id) = program.rounded[p] else { continue };
                        let mut rounded = live[id].take().expect("what travels is live");
                        let n = self.model.spec.params[p].numel();
                        self.device
                            .cast(rounded.view_mut().range(0..n), get(live, program.grads[p]).view().range(0..n));
                        live[id] = Some(rounded);
                    }
                }
                Instr::Reduce(r) => {
                    let Purpose::Train { who, .. } = purpose else { panic!("evaluation reduces nothing") };
                    let reduce = &program.schedule.reduces[r];
                    let full = match held {
                        true => reduce.params.iter().map(|&p| self.shards.lend_held(p)).collect(),
                        false => take(live, &travelling_ids(program, &reduce.params)),
                    };
                    let staging = program.staging[r].map(|id| live[id].take().expect("staging is live"));
                    let after = self.device.record(Queue::Compute);
                    reductions.start(r, reduce, self.comm, after, &mut self.shards, full, staging, who);
                }
                Instr::ReduceWait(r) => {
                    let outer = self.timer.switch(purpose.waiting());
                    let reduce = &program.schedule.reduces[r];
                    let (full, staging, record) = reductions.wait(r, reduce, &mut self.shards, self.plan)?;
                    self.timer.switch(outer);
                    self.volume.add(CommClass::TrainReduceScatter, record.received_bytes);
                    self.note_comm(Track::Reduce, reduce.unit, record, purpose);
                    self.note(Noted::Wait { on: Track::Reduce }, reduce.unit, &began, purpose);
                    match held {
                        true => {
                            full.into_iter().zip(&reduce.params).for_each(|(buf, &p)| self.shards.restore_held(p, buf))
                        }
                        false => put(live, &travelling_ids(program, &reduce.params), full),
                    }
                    if let (Some(id), staging) = (program.staging[r], staging) {
                        live[id] = staging;
                    }
                }
            }
            if at + 1 == program.schedule.instrs.len() && has_batch {
                loss = Some(self.device.start_sum(get(live, program.losses).view()));
            }
            self.end(program, at, live);
            self.note_instr(program, *instr, began, released_bytes);
        }
        self.kept.pass = pass;
        Ok(loss)
    }

    /// Sum of the losses of all micro-batches in the order of their index (`kept.losses[a]` is that of `a * N + rank`), and
    /// the largest `word` of any rank.
    fn sum_in_order(&mut self, word: i32, n_micro: usize) -> Result<(f64, i32)> {
        self.flight.at(self.step_now, "losses", None);
        let n = self.comm.size();
        let Kept { losses, own, all, .. } = &mut self.kept;
        own.clear();
        for sum in losses.drain(..) {
            own.push(sum.map_or(Ok(0.0), |sum| self.device.finish_sum(sum))?);
        }
        own.push(f64::from(word));
        all.resize(n * own.len(), 0.0);
        self.comm.control().all_gather_into(own, all)?;
        let sum = (0..n_micro).map(|j| all[(j % n) * own.len() + j / n]).sum();
        let word = all.chunks_exact(own.len()).map(|rank| rank[own.len() - 1] as i32).max();
        Ok((sum, word.unwrap_or(0)))
    }
}
