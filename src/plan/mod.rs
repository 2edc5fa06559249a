//! Everything that is decided before step 0, as pure functions of (model, N, deck): the cut of each parameter,
//! the order of instructions, where each buffer lies, and the bytes that travel.
//!
//! `zero3 plan` prints it, the executor runs it, the summary holds the measured figures against it.
//! Must not know: MPI, devices, the clock.

pub mod forecast;
pub mod generation;
pub mod knobs;
pub mod memory;
pub mod packing;
pub mod partition;
pub mod placement;
pub mod refresh;
pub mod schedule;
pub mod table;
#[cfg(test)]
mod tests;
pub mod volume;

use crate::config::ReduceWhen;
use crate::dtype::DType;
use crate::error::Result;
use crate::params::{ModelSpec, ParamId, SHARED_GRAD, TensorSpec, UnitId, UnitRole};
use crate::telemetry::ledger::MemKind;
use memory::{Peaks, Slot, SlotId};
use partition::Partition;
use placement::{Hold, Placement};
use refresh::Refresh;
use schedule::{GatherId, Gradients, Instr, Pass, ReduceId, Schedule};

use std::collections::HashMap;

pub use generation::Generation;
pub use knobs::Knobs;
pub use placement::State;

/// A schedule and the buffers it needs.
#[derive(Debug, Clone, PartialEq)]
pub struct Program {
    /// What happens, in order.
    pub schedule: Schedule,
    /// Every buffer alive during the program only.
    pub slots: Vec<Slot>,
    /// Token ids of the micro-batch, (B, T).
    pub tokens: SlotId,
    /// Target ids of the micro-batch, (B, T).
    pub targets: SlotId,
    /// Loss of each token, (B, T).
    pub losses: SlotId,
    /// Gathered parameters of each gather, in the gather's order; padded.
    pub gathered: Vec<Vec<SlotId>>,
    /// Residual stream written by each unit but the head, (B, T, C).
    pub residual: Vec<SlotId>,
    /// Tensors each unit's forward saves. Where a unit is computed again in backward they end with the forward visit.
    pub saved: Vec<Vec<SlotId>>,
    /// The same tensors, written anew at the start of the backward visit; empty where nothing is computed again.
    pub recomputed: Vec<Vec<SlotId>>,
    /// Where the repeated forward puts its output, which nobody reads.
    pub recomputed_out: Vec<Option<SlotId>>,
    /// Scratch of each unit's forward visit.
    pub forward_work: Vec<Vec<SlotId>>,
    /// Scratch of the repeated forward.
    pub recompute_work: Vec<Vec<SlotId>>,
    /// Scratch of each unit's backward visit (the head: of its loss visit, training or not).
    pub backward_work: Vec<Vec<SlotId>>,
    /// Gradient of the residual stream, (B, T, C); training only.
    pub dresidual: Option<SlotId>,
    /// Full gradient of each parameter from this micro-step alone, padded; empty for evaluation.
    pub grads: Vec<SlotId>,
    /// The same rounded to what travels, where it has added up from parts in f32; padded.
    pub rounded: Vec<Option<SlotId>>,
    /// Receive staging of each reduction; none where there is nobody to receive from.
    pub staging: Vec<Option<SlotId>>,
    /// Slots whose life begins with each instruction.
    pub begins: Vec<Vec<SlotId>>,
    /// Slots whose life ends with each instruction.
    pub ends: Vec<Vec<SlotId>>,
    /// Peak memory with the resident state and what lives for a whole step included.
    pub peaks: Peaks,
}

/// Buffers that live for a whole training step, over all its micro-steps.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StepSlots {
    /// All of them.
    pub slots: Vec<Slot>,
    /// Fp32 sum of each parameter's gradient slice, where the slice at rest cannot hold it: lower precision, or whole.
    pub sums: Vec<Option<SlotId>>,
    /// Fp32 full gradient of each parameter held from micro-step to micro-step (`reduce = last_micro_step`), padded.
    pub held: Vec<Option<SlotId>>,
}

/// The whole plan of a run on `world_size` ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Ranks in the shard group (N).
    pub world_size: usize,
    /// The knobs it was made with.
    pub knobs: Knobs,
    /// The cut of each parameter.
    pub partitions: Vec<Partition>,
    /// What of each parameter is cut.
    pub placements: Vec<Placement>,
    /// What a rank keeps between steps.
    pub resident: Vec<Slot>,
    /// Which of them is which state of which parameter.
    resident_ids: Vec<[Option<SlotId>; State::ALL.len()]>,
    /// What it keeps during a step besides.
    pub step: StepSlots,
    /// A micro-step of training; of `reduce = last_micro_step` the last one.
    pub train: Program,
    /// A micro-step before the last one, where it differs: gradients are held.
    pub train_hold: Option<Program>,
    /// One evaluation pass.
    pub eval: Program,
    /// Generating text; none where nobody asked for it.
    pub generation: Option<Generation>,
    /// How parameters (and, in stage 0, gradients) that are kept whole become whole again.
    pub refresh: Refresh,
    /// Size of the arena.
    pub arena_bytes: usize,
    /// Host memory beside the arena that asynchronous saves copy the state to; 0 without them.
    pub host_staging_bytes: u64,
    /// Pinned host memory of the device's transfers; 0 where the host can see the arena.
    pub pinned_bytes: u64,
}

impl Plan {
    /// xxh3 of all that ranks must agree on: partitions, instructions, offsets.
    pub fn digest(&self) -> u64 {
        struct Hasher(xxhash_rust::xxh3::Xxh3);
        impl std::fmt::Write for Hasher {
            fn write_str(&mut self, part: &str) -> std::fmt::Result {
                self.0.update(part.as_bytes());
                Ok(())
            }
        }
        let mut hasher = Hasher(xxhash_rust::xxh3::Xxh3::new());
        std::fmt::Write::write_fmt(&mut hasher, format_args!("{self:?}")).expect("hashing cannot fail");
        hasher.0.digest()
    }

    /// Plans a model on `world_size` ranks. Fails where a cap in the deck cannot be kept.
    pub fn new(spec: &ModelSpec, world_size: usize, knobs: &Knobs) -> Result<Self> {
        let partitions: Vec<Partition> = spec.params.iter().map(|p| Partition::new(p.numel(), world_size)).collect();
        let placements: Vec<Placement> = spec.params.iter().map(|p| Placement::of(p.numel(), knobs)).collect();
        let (mut resident, resident_ids) = resident_slots(spec, &partitions, &placements, knobs);
        let resident_end = memory::lay_in_a_row(&mut resident, 0);
        let mut step = step_slots(spec, &partitions, &placements, knobs);
        let step_end = memory::lay_in_a_row(&mut step.slots, resident_end);
        let mut arena_bytes = if knobs.trains { step_end } else { resident_end };

        let mut build = |gradients: Gradients| -> Result<Program> {
            let train = gradients != Gradients::None;
            let schedule = match train {
                true => schedule::training(spec, &partitions, &placements, knobs, gradients)?,
                false => schedule::evaluation(spec, &partitions, &placements, knobs)?,
            };
            let mut program = Lifetimes::new(spec, &partitions, knobs, &schedule, gradients).program(schedule);
            let (base, always) = match train {
                true => (step_end, resident.iter().chain(&step.slots).cloned().collect()),
                false => (resident_end, resident.clone()),
            };
            let end = packing::pack(&mut program.slots, base);
            if knobs.trains || !train {
                arena_bytes = arena_bytes.max(end);
            }
            program.peaks = memory::peaks(&always, &program.slots, program.schedule.instrs.len());
            Ok(program)
        };
        let hold = knobs.reduce == ReduceWhen::LastMicroStep;
        let train = build(if hold { Gradients::HoldAndReduce } else { Gradients::Reduce })?;
        let train_hold = hold.then(|| build(Gradients::Hold)).transpose()?;
        let eval = build(Gradients::None)?;
        let refresh = Refresh::new(spec, &partitions, &placements, knobs, step_end);
        if knobs.trains {
            arena_bytes = arena_bytes.max(refresh.end);
        }
        let knobs = *knobs;
        Ok(Plan {
            world_size,
            knobs,
            partitions,
            placements,
            resident,
            resident_ids,
            step,
            train,
            train_hold,
            eval,
            generation: None,
            refresh,
            arena_bytes,
            host_staging_bytes: 0,
            pinned_bytes: 0,
        })
    }

    /// The slot of one state of a parameter; None where the state does not exist.
    pub fn resident_slot(&self, param: ParamId, state: State) -> Option<&Slot> {
        self.resident_ids[param][state as usize].map(|id| &self.resident[id])
    }

    /// Bytes one rank keeps between steps.
    pub fn resident_bytes(&self) -> u64 {
        self.resident.iter().map(|slot| slot.bytes() as u64).sum()
    }

    /// What the stage's formula says without padding and persistent parameters: `whole * Psi + cut * Psi / N`.
    pub fn formula_bytes(&self, n_params: usize) -> f64 {
        let (whole, cut) = placement::bytes_per_param(&self.knobs);
        whole as f64 * n_params as f64 + cut as f64 * n_params as f64 / self.world_size as f64
    }

    /// The program of micro-step `a` of `n`.
    pub fn micro_step(&self, a: usize, n: usize) -> &Program {
        match &self.train_hold {
            Some(hold) if a + 1 < n => hold,
            _ => &self.train,
        }
    }

    /// Largest peaks of training, over its programs and the refresh after the update.
    pub fn training_peaks(&self) -> Peaks {
        let mut peaks = self.train.peaks.clone();
        let always = self.resident.clone(); // the step's own buffers are back by then
        // Other states are refreshed after a restore only.
        let buckets = self.refreshed_state().into_iter().flat_map(|state| self.refresh.of(state));
        let slots: Vec<Slot> = buckets.flat_map(|b| &b.staging).map(|&id| self.refresh.slots[id].clone()).collect();
        let refresh = memory::peaks(&always, &slots, self.refresh.buckets.len());
        for other in self.train_hold.iter().map(|p| &p.peaks).chain([&refresh]) {
            peaks.raise(other);
        }
        peaks.add_throughout(MemKind::Staging, self.outside_bytes());
        peaks
    }

    /// Peaks of an evaluation pass.
    pub fn evaluation_peaks(&self) -> Peaks {
        let mut peaks = self.eval.peaks.clone();
        peaks.add_throughout(MemKind::Staging, self.outside_bytes());
        peaks
    }

    /// Host memory beside the arena.
    pub fn outside_bytes(&self) -> u64 {
        self.host_staging_bytes + self.pinned_bytes
    }

    /// Room on the host for a copy of weights and both moments of this rank, padding included.
    pub fn stage_saves(&mut self) {
        self.host_staging_bytes = self.partitions.iter().map(|p| 12 * p.shard_numel() as u64).sum();
    }
}

type ResidentIds = Vec<[Option<SlotId>; State::ALL.len()]>;

fn resident_slots(
    spec: &ModelSpec,
    partitions: &[Partition],
    placements: &[Placement],
    knobs: &Knobs,
) -> (Vec<Slot>, ResidentIds) {
    let mut slots = Vec::new();
    let mut ids = Vec::new();
    for ((param, partition), placement) in spec.params.iter().zip(partitions).zip(placements) {
        ids.push(State::ALL.map(|state| {
            let dtype = state.dtype(knobs)?;
            let numel = state.numel(partition, placement);
            slots.push(Slot::always(format!("{}.{state:?}", param.name), state.kind(), numel, dtype));
            Some(slots.len() - 1)
        }));
    }
    (slots, ids)
}

fn step_slots(spec: &ModelSpec, partitions: &[Partition], placements: &[Placement], knobs: &Knobs) -> StepSlots {
    let mut step = StepSlots::default();
    let mut add = |name: String, kind: MemKind, numel: usize| {
        step.slots.push(Slot::always(name, kind, numel, DType::F32));
        step.slots.len() - 1
    };
    let mut sums = Vec::new();
    let mut held = Vec::new();
    for ((param, partition), placement) in spec.params.iter().zip(partitions).zip(placements) {
        let in_place = placement.grad == Hold::Sharded && knobs.grad_dtype == DType::F32;
        let name = |what: &str| format!("{}.{what}", param.name);
        sums.push((!in_place).then(|| add(name("grad_sum"), MemKind::GradSum, partition.shard_numel())));
        let hold = knobs.reduce == ReduceWhen::LastMicroStep;
        held.push(hold.then(|| add(name("held_grad"), MemKind::FullGrad, partition.padded_numel())));
    }
    step.sums = sums;
    step.held = held;
    step
}

/// Collects slots and how long each lives while walking a schedule.
struct Lifetimes<'a> {
    spec: &'a ModelSpec,
    partitions: &'a [Partition],
    knobs: &'a Knobs,
    /// Where each instruction is; visits under `gather: None`.
    places: HashMap<Instr, usize>,
    gradients: Gradients,
    slots: Vec<Slot>,
}

impl<'a> Lifetimes<'a> {
    fn new(
        spec: &'a ModelSpec,
        partitions: &'a [Partition],
        knobs: &'a Knobs,
        schedule: &Schedule,
        gradients: Gradients,
    ) -> Self {
        let key = |instr: Instr| match instr {
            Instr::Compute { unit, pass, .. } => Instr::Compute { unit, pass, gather: None },
            other => other,
        };
        let places = schedule.instrs.iter().enumerate().map(|(at, &instr)| (key(instr), at)).collect();
        Lifetimes { spec, partitions, knobs, places, gradients, slots: Vec::new() }
    }

    fn find(&self, instr: Instr) -> usize {
        *self.places.get(&instr).expect("the schedule has every instruction it refers to")
    }

    fn visit(&self, unit: UnitId, pass: Pass) -> usize {
        self.find(Instr::Compute { unit, pass, gather: None })
    }

    fn trains(&self) -> bool {
        self.gradients != Gradients::None
    }

    /// The last visit of a unit: what reads its input and what it has saved.
    fn last_visit(&self, unit: UnitId) -> usize {
        match (self.spec.units[unit].role, self.trains()) {
            (UnitRole::Head, _) => self.visit(unit, Pass::Loss),
            (_, true) => self.visit(unit, Pass::Backward),
            (_, false) => self.visit(unit, Pass::Forward),
        }
    }

    fn add(&mut self, name: String, kind: MemKind, numel: usize, dtype: DType, first: usize, last: usize) -> SlotId {
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

    fn program(mut self, schedule: Schedule) -> Program {
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
            saved.push(self.add_all(u, MemKind::Activation, &unit.saved, first, if again { first } else { last }));
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
            self.add("dresidual".into(), MemKind::Activation, spec.residual_numel, activation, loss_visit, last)
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
                let id = self.add(name, MemKind::Gathered, self.partitions[p].padded_numel(), dtype, start, release);
                self.slots[id].landed = Some(landed);
                id
            })
            .collect()
    }

    /// A full gradient lives from the first visit that writes it (of a tied parameter: the head's) until it has been
    /// reduced, or added to what is held. Where it is rounded before it travels, until then, and what travels from there.
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
