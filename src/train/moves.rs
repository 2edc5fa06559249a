//! The moves of a pass: the effect of each instruction of a program on the planned buffers.
//!
//! Must not know: their order ([`super::step`]), how they are recorded (`bookkeeping.rs`).

use super::compute_visit::travelling_ids;
use super::pass::{PassState, Visitor};
use super::scratch::{PassLists, get, put, take};
use super::stepper::Stepper;
use crate::backend::{Backend, Device, Ops, Queue};
use crate::error::Result;
use crate::plan::schedule::{GatherId, Instr, ReduceId, Visit};
use crate::telemetry::MemKind;
use crate::zero::reduce::Contribution;

impl<B: Backend> Stepper<'_, B> {
    /// Takes the buffers whose planned life begins with the instruction.
    pub(super) fn take_buffers(&mut self, pass: &mut PassState<'_, B>) {
        let (program, at) = (pass.program, pass.at);
        let queue = match pass.instr() {
            Instr::Gather(_) => Queue::Gather,
            Instr::Reduce(_) => Queue::Reduce,
            _ => Queue::Compute,
        };
        for &id in &program.begins[at] {
            let slot = &program.slots[id];
            pass.lists.live[id] = Some(self.memory.take(self.device, slot, slot.kind_at(at), queue));
        }
    }

    /// Returns the buffers whose planned life ends with the instruction.
    pub(super) fn return_buffers(&mut self, pass: &mut PassState<'_, B>) {
        let (program, at) = (pass.program, pass.at);
        for &id in &program.ends[at] {
            let buf = pass.lists.live[id].take().expect("no collective has a buffer whose life ends");
            self.memory.give(self.device, buf, program.slots[id].kind_at(at));
        }
    }

    /// Starts all-gather `g` into its buffers.
    pub(super) fn start_gather(&mut self, pass: &mut PassState<'_, B>, g: GatherId) {
        let PassLists { live, gathers, .. } = &mut pass.lists;
        let outs = take(live, &pass.program.gathered[g]);
        let after = self.device.record(Queue::Compute);
        gathers.start(g, &pass.program.schedule.gathers[g], self.comm, after, &mut self.shards, outs);
    }

    /// Waits until gather `g` has delivered whole parameters.
    pub(super) fn land_gather(&mut self, pass: &mut PassState<'_, B>, g: GatherId) -> Result<()> {
        let PassLists { live, gathers, landed, .. } = &mut pass.lists;
        let whole = gathers.wait(g, &pass.program.schedule.gathers[g], &mut self.shards, landed)?;
        for buf in &whole {
            self.memory.convert(buf, MemKind::Prefetched, MemKind::Gathered);
        }
        put(live, &pass.program.gathered[g], whole);
        Ok(())
    }

    /// Has a visitor compute one visit of a unit; a rank without a micro-batch has none.
    pub(super) fn visit_unit<V: Visitor<B>>(
        &mut self,
        pass: &mut PassState<'_, B>,
        visit: Visit,
        visitor: Option<&mut V>,
    ) -> Result<()> {
        let is_ready = visit.gather.is_none_or(|g| pass.lists.gathers.is_live(g));
        assert!(is_ready, "unit {} is visited before its parameters have landed", visit.unit);
        visitor.map_or(Ok(()), |visitor| visitor.visit(self, visit, pass))
    }

    /// The parameters of gather `g` are not used again in this pass.
    pub(super) fn release(&self, pass: &mut PassState<'_, B>, g: GatherId) {
        pass.lists.gathers.release(g);
    }

    /// Adds this micro-step's full gradients to those of earlier ones (`reduce = last_micro_step`).
    pub(super) fn accumulate_gradients(&mut self, pass: &mut PassState<'_, B>, r: ReduceId) {
        let first = pass.purpose.is_first_micro_step();
        for &p in pass.program.schedule.reduces[r].params.iter().filter(|_| pass.has_batch) {
            self.shards.accumulate_gradient(
                self.device,
                p,
                get(&pass.lists.live, pass.program.grads[p]),
                first,
            );
        }
    }

    /// Rounds full gradients that are sums of parts to the type of the reduction.
    pub(super) fn round_gradients(&mut self, pass: &mut PassState<'_, B>, r: ReduceId) {
        let PassState { program, has_batch, .. } = *pass;
        let live = &mut pass.lists.live;
        for &p in program.schedule.reduces[r].params.iter().filter(|_| has_batch) {
            let Some(id) = program.rounded[p] else { continue };
            let mut rounded = live[id].take().expect("the planned life covers this use");
            let n = self.model.spec.params[p].numel();
            self.device.cast(rounded.view_mut().range(0..n), get(live, program.grads[p]).view().range(0..n));
            live[id] = Some(rounded);
        }
    }

    /// Starts reduce-scatter `r`: full gradients to the owners of their slices.
    pub(super) fn start_reduce(&mut self, pass: &mut PassState<'_, B>, r: ReduceId) {
        let PassLists { live, reductions, .. } = &mut pass.lists;
        let reduce = &pass.program.schedule.reduces[r];
        let full = match self.plan.reduces_once() {
            true => reduce.params.iter().map(|&p| self.shards.lend_held(p)).collect(),
            false => take(live, &travelling_ids(pass.program, &reduce.params)),
        };
        let staging =
            pass.program.staging[r].map(|id| live[id].take().expect("the planned life covers this use"));
        let own = Contribution { full, staging, from: pass.purpose.contributions() };
        let after = self.device.record(Queue::Compute);
        reductions.start(r, reduce, self.comm, after, &mut self.shards, own);
    }

    /// Waits until the slices of reduction `r` hold the sums.
    pub(super) fn land_reduce(&mut self, pass: &mut PassState<'_, B>, r: ReduceId) -> Result<()> {
        let PassLists { live, reductions, landed, .. } = &mut pass.lists;
        let reduce = &pass.program.schedule.reduces[r];
        let (full, staging) = reductions.wait(r, reduce, &mut self.shards, self.plan, landed)?;
        match self.plan.reduces_once() {
            true => {
                full.into_iter().zip(&reduce.params).for_each(|(buf, &p)| self.shards.restore_held(p, buf))
            }
            false => put(live, &travelling_ids(pass.program, &reduce.params), full),
        }
        if let Some(id) = pass.program.staging[r] {
            live[id] = staging;
        }
        Ok(())
    }
}
