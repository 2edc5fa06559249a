//! The program of a pass: a schedule, the buffers it needs, and the lifetime of each of them.
//!
//! Their placement is packed afterwards (`packing.rs`). Must not know: what lives between passes.

use super::knobs::Knobs;
use super::partition::Partition;
use super::schedule::{self, GatherId, Gradients, Instr, Pass, ReduceId, Schedule, Visit};
use super::slots::{Peaks, Slot, SlotId};
use crate::dtype::DType;
use crate::params::{ModelSpec, SHARED_GRAD, TensorSpec, UnitId, UnitRole};
use crate::telemetry::ledger::MemKind;
use std::collections::HashMap;

/// A schedule and the buffers it needs.
#[derive(Debug, Clone, PartialEq)]
pub struct Program {
    /// The instructions, in order.
    pub schedule: Schedule,
    /// Every buffer that lives only during the program.
    pub slots: Vec<Slot>,
    /// Token ids of the micro-batch, (B, T).
    pub tokens: SlotId,
    /// Target ids of the micro-batch, (B, T).
    pub targets: SlotId,
    /// Loss of each token, (B, T).
    pub losses: SlotId,
    /// Gathered parameters of each gather, in the gather's order; padded.
    pub gathered: Vec<Vec<SlotId>>,
    /// Residual stream written by each unit except the head, (B, T, C).
    pub residual: Vec<SlotId>,
    /// Tensors each unit's forward saves. If a unit is recomputed in backward they end with the forward
    /// visit.
    pub saved: Vec<Vec<SlotId>>,
    /// The same tensors, recomputed at the start of the backward visit; empty without recomputation.
    pub recomputed: Vec<Vec<SlotId>>,
    /// Output of the recomputed forward, which is not read.
    pub recomputed_out: Vec<Option<SlotId>>,
    /// Scratch of each unit's forward visit.
    pub forward_work: Vec<Vec<SlotId>>,
    /// Scratch of the recomputed forward.
    pub recompute_work: Vec<Vec<SlotId>>,
    /// Scratch of each unit's backward visit (the head: of its loss visit, training or not).
    pub backward_work: Vec<Vec<SlotId>>,
    /// Gradient of the residual stream, (B, T, C); training only.
    pub dresidual: Option<SlotId>,
    /// Full gradient of each parameter from this micro-step alone, padded; empty for evaluation.
    pub grads: Vec<SlotId>,
    /// The same rounded to the communicated type, if it is a sum of parts in f32; padded.
    pub rounded: Vec<Option<SlotId>>,
    /// Receive staging of each reduction; none if nothing is received.
    pub staging: Vec<Option<SlotId>>,
    /// Slots whose lifetime starts with each instruction.
    pub begins: Vec<Vec<SlotId>>,
    /// Slots whose lifetime ends with each instruction.
    pub ends: Vec<Vec<SlotId>>,
    /// Peak memory including the resident state and buffers of a whole step.
    pub peaks: Peaks,
}

impl Program {
    /// An instruction as text, and its unit.
    pub fn describe(&self, instr: Instr) -> (&'static str, UnitId) {
        let Schedule { gathers, reduces, .. } = &self.schedule;
        match instr {
            Instr::Gather(g) => ("gather", gathers[g].unit),
            Instr::Wait(g) => ("wait", gathers[g].unit),
            Instr::Compute(Visit { unit, pass: Pass::Forward, .. }) => ("forward", unit),
            Instr::Compute(Visit { unit, pass: Pass::Loss, .. }) => ("loss", unit),
            Instr::Compute(Visit { unit, pass: Pass::Backward, .. }) => ("backward", unit),
            Instr::Release(g) => ("release", gathers[g].unit),
            Instr::Accumulate(r) => ("hold gradients", reduces[r].unit),
            Instr::Round(r) => ("round gradients", reduces[r].unit),
            Instr::Reduce(r) => ("reduce", reduces[r].unit),
            Instr::ReduceWait(r) => ("wait for the reduction", reduces[r].unit),
        }
    }
}

/// Collects slots and their lifetimes while walking a schedule.
pub(super) struct Lifetimes<'a> {
    spec: &'a ModelSpec,
    partitions: &'a [Partition],
    knobs: &'a Knobs,
    /// Position of each instruction; visits under `gather: None`.
    places: HashMap<Instr, usize>,
    gradients: Gradients,
    slots: Vec<Slot>,
}

impl<'a> Lifetimes<'a> {
    pub(super) fn new(
        spec: &'a ModelSpec,
        partitions: &'a [Partition],
        knobs: &'a Knobs,
        schedule: &Schedule,
        gradients: Gradients,
    ) -> Self {
        let key = |instr: Instr| match instr {
            Instr::Compute(Visit { unit, pass, .. }) => Instr::Compute(Visit { unit, pass, gather: None }),
            other => other,
        };
        let places = schedule.instrs.iter().enumerate().map(|(at, &instr)| (key(instr), at)).collect();
        Lifetimes { spec, partitions, knobs, places, gradients, slots: Vec::new() }
    }

    fn find(&self, instr: Instr) -> usize {
        *self.places.get(&instr).expect("the schedule has every instruction it refers to")
    }

    fn visit(&self, unit: UnitId, pass: Pass) -> usize {
        self.find(Instr::Compute(Visit { unit, pass, gather: None }))
    }

    fn trains(&self) -> bool {
        self.gradients != Gradients::None
    }

    /// The last visit of a unit: the one that reads its input and its saved tensors.
    fn last_visit(&self, unit: UnitId) -> usize {
        match (self.spec.units[unit].role, self.trains()) {
            (UnitRole::Head, _) => self.visit(unit, Pass::Loss),
            (_, true) => self.visit(unit, Pass::Backward),
            (_, false) => self.visit(unit, Pass::Forward),
        }
    }

    fn add(
        &mut self,
        name: String,
        kind: MemKind,
        numel: usize,
        dtype: DType,
        first: usize,
        last: usize,
    ) -> SlotId {
        self.slots.push(Slot { name, kind, numel, dtype, offset: 0, first, last, landed: None });
        self.slots.len() - 1
    }

    fn add_all(
        &mut self,
        unit: UnitId,
        kind: MemKind,
        tensors: &[TensorSpec],
        first: usize,
        last: usize,
    ) -> Vec<SlotId> {
        let unit_name = &self.spec.units[unit].name;
        tensors
            .iter()
            .map(|t| self.add(format!("{unit_name}.{}", t.name), kind, t.numel, t.dtype, first, last))
            .collect()
    }

    pub(super) fn program(mut self, schedule: Schedule) -> Program {
        let spec = self.spec;
        let head = spec.units.len() - 1;
        let end = schedule.instrs.len() - 1;
        let n_tokens = spec.tokens_per_micro_batch;
        let activation = spec.activation_dtype;
        let tokens = self.add("tokens".into(), MemKind::Input, n_tokens, DType::U32, 0, end);
        let targets = self.add("targets".into(), MemKind::Input, n_tokens, DType::U32, 0, end);
        let loss_visit = self.visit(head, Pass::Loss);
        let losses = self.add("losses".into(), MemKind::Activation, n_tokens, DType::F32, loss_visit, end);

        let gathered = (0..schedule.gathers.len()).map(|g| self.gather(g, &schedule)).collect();
        let residual = (0..head)
            .map(|u| {
                let (first, last) = (self.visit(u, Pass::Forward), self.last_visit(u + 1));
                let name = format!("{}.out", spec.units[u].name);
                self.add(name, MemKind::Activation, spec.residual_numel, activation, first, last)
            })
            .collect();
        let (mut saved, mut forward_work, mut backward_work) = (Vec::new(), Vec::new(), Vec::new());
        let (mut recomputed, mut recomputed_out, mut recompute_work) = (Vec::new(), Vec::new(), Vec::new());
        for (u, unit) in spec.units.iter().enumerate() {
            let is_head = unit.role == UnitRole::Head;
            let first = self.visit(u, if is_head { Pass::Loss } else { Pass::Forward });
            let last = self.last_visit(u);
            let again = self.trains() && self.knobs.recomputes(spec, u);
            saved.push(self.add_all(
                u,
                MemKind::Activation,
                &unit.saved,
                first,
                if again { first } else { last },
            ));
            forward_work.push(self.add_all(u, MemKind::Workspace, &unit.forward_work, first, first));
            let (saved_again, work_again): (&[TensorSpec], &[TensorSpec]) =
                if again { (&unit.saved, &unit.forward_work) } else { (&[], &[]) };
            recomputed.push(self.add_all(u, MemKind::Activation, saved_again, last, last));
            recompute_work.push(self.add_all(u, MemKind::Workspace, work_again, last, last));
            recomputed_out.push(again.then(|| {
                let name = format!("{}.out again", unit.name);
                self.add(name, MemKind::Workspace, spec.residual_numel, activation, last, last)
            }));
            let needs_backward = self.trains() || is_head;
            let work = if needs_backward { unit.backward_work.as_slice() } else { &[] };
            backward_work.push(self.add_all(u, MemKind::Workspace, work, last, last));
        }
        let dresidual = self.trains().then(|| {
            let last = self.visit(0, Pass::Backward);
            self.add(
                "dresidual".into(),
                MemKind::Activation,
                spec.residual_numel,
                activation,
                loss_visit,
                last,
            )
        });
        let (grads, rounded) = if self.trains() { self.grads(&schedule) } else { Default::default() };
        let staging = (0..schedule.reduces.len()).map(|r| self.staging(r, &schedule)).collect();
        let at = |key: fn(&Slot) -> usize| -> Vec<Vec<SlotId>> {
            let mut by_instr = vec![Vec::new(); end + 1];
            for (id, slot) in self.slots.iter().enumerate() {
                by_instr[key(slot)].push(id);
            }
            by_instr
        };
        Program {
            begins: at(|slot| slot.first),
            ends: at(|slot| slot.last),
            slots: self.slots,
            tokens,
            targets,
            losses,
            gathered,
            residual,
            saved,
            recomputed,
            recomputed_out,
            forward_work,
            recompute_work,
            backward_work,
            dresidual,
            grads,
            rounded,
            staging,
            peaks: Peaks { by_kind: Vec::new(), total: 0, at: 0 },
            schedule,
        }
    }

    fn gather(&mut self, g: GatherId, schedule: &Schedule) -> Vec<SlotId> {
        let start = self.find(Instr::Gather(g));
        let landed = self.find(Instr::Wait(g));
        let release = self.find(Instr::Release(g));
        let gather = &schedule.gathers[g];
        let dtype = self.knobs.param_dtype;
        gather
            .params
            .iter()
            .map(|&p| {
                let name = format!("{} for {:?}", self.spec.params[p].name, gather.pass);
                let id = self.add(
                    name,
                    MemKind::Gathered,
                    self.partitions[p].padded_numel(),
                    dtype,
                    start,
                    release,
                );
                self.slots[id].landed = Some(landed);
                id
            })
            .collect()
    }

    /// A full gradient lives from the first visit that writes it (for a tied parameter: the head's) until it
    /// has been reduced, or accumulated. If it is rounded for communication, until then, and the rounded copy
    /// from there.
    fn grads(&mut self, schedule: &Schedule) -> (Vec<SlotId>, Vec<Option<SlotId>>) {
        let spec = self.spec;
        let held = self.gradients != Gradients::Reduce;
        let mut reduce_of = vec![None; spec.params.len()];
        for (r, reduce) in schedule.reduces.iter().enumerate() {
            reduce.params.iter().for_each(|&p| reduce_of[p] = Some(r));
        }
        let (mut grads, mut rounded) = (Vec::new(), Vec::new());
        for (p, users) in spec.users().into_iter().enumerate() {
            let reduce = reduce_of[p].expect("every gradient is reduced");
            let first = self.last_visit(*users.last().expect("used by a unit"));
            let rounds = !held && schedule::is_rounded(spec, p, self.knobs);
            let done = match (held, rounds) {
                (true, _) => Instr::Accumulate(reduce),
                (false, true) => Instr::Round(reduce),
                (false, false) => Instr::ReduceWait(reduce),
            };
            let dtype = if held || rounds { SHARED_GRAD } else { self.knobs.reduce_dtype };
            let numel = self.partitions[p].padded_numel();
            let name = &spec.params[p].name;
            let last = self.find(done);
            grads.push(self.add(format!("{name}.full_grad"), MemKind::FullGrad, numel, dtype, first, last));
            rounded.push(rounds.then(|| {
                let (first, last) = (last, self.find(Instr::ReduceWait(reduce)));
                let name = format!("{name}.rounded_grad");
                self.add(name, MemKind::FullGrad, numel, self.knobs.reduce_dtype, first, last)
            }));
        }
        (grads, rounded)
    }

    fn staging(&mut self, r: ReduceId, schedule: &Schedule) -> Option<SlotId> {
        let arrivals = self.knobs.arrivals(self.partitions[0].world_size);
        let numel = schedule.reduces[r].buckets.iter().map(|b| b.numel() * arrivals).max().unwrap_or(0);
        (numel > 0 && self.gradients != Gradients::Hold).then(|| {
            let first = self.find(Instr::Reduce(r));
            let last = self.find(Instr::ReduceWait(r));
            let name = format!("{}.reduce_staging", self.spec.units[schedule.reduces[r].unit].name);
            self.add(name, MemKind::ReduceStaging, numel, self.knobs.reduce_dtype, first, last)
        })
    }
}
