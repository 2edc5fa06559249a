//! Everything that is decided before step 0, as pure functions of (model, N, deck): the cut of each parameter,
//! the order of instructions, where each buffer lies, and the bytes that travel.
//!
//! `zero3 plan` prints it, the executor runs it, the summary holds the measured figures against it.
//! Must not know: MPI, devices, the clock.

pub mod memory;
pub mod partition;
pub mod schedule;
pub mod table;
#[cfg(test)]
mod tests;
pub mod volume;

use crate::dtype::DType;
use crate::error::Result;
use crate::params::{ModelSpec, ParamId, TensorSpec, UnitId, UnitRole};
use crate::telemetry::ledger::MemKind;
use memory::{Peaks, Slot, SlotId};
use partition::Partition;
use schedule::{GatherId, Instr, Knobs, Pass, ReduceId, Schedule};

/// The slices one rank keeps of one parameter between steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The parameter; in pure fp32 it is its own master.
    Param,
    /// The reduced gradient.
    Grad,
    /// Adam's first moment.
    ExpAvg,
    /// Adam's second moment.
    ExpAvgSq,
}

impl State {
    /// All of them, in the order they lie in memory.
    pub const ALL: [State; 4] = [State::Param, State::Grad, State::ExpAvg, State::ExpAvgSq];

    fn kind(self) -> MemKind {
        match self {
            State::Param => MemKind::ParamShard,
            State::Grad => MemKind::GradShard,
            State::ExpAvg | State::ExpAvgSq => MemKind::Moment,
        }
    }
}

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
    /// Gathered parameters of each gather, in the unit's order; padded.
    pub gathered: Vec<Vec<SlotId>>,
    /// Residual stream written by each unit but the head, (B, T, C).
    pub residual: Vec<SlotId>,
    /// Tensors each unit saves from forward to backward.
    pub saved: Vec<Vec<SlotId>>,
    /// Scratch of each unit's forward visit.
    pub forward_work: Vec<Vec<SlotId>>,
    /// Scratch of each unit's backward visit (the head: of its loss visit, training or not).
    pub backward_work: Vec<Vec<SlotId>>,
    /// Gradient of the residual stream, (B, T, C); training only.
    pub dresidual: Option<SlotId>,
    /// Full gradient of each parameter, padded; empty for evaluation.
    pub grads: Vec<SlotId>,
    /// Receive staging of each reduction; none where there is nobody to receive from.
    pub staging: Vec<Option<SlotId>>,
    /// Slots whose life begins with each instruction.
    pub begins: Vec<Vec<SlotId>>,
    /// Slots whose life ends with each instruction.
    pub ends: Vec<Vec<SlotId>>,
    /// Peak memory with the resident state included.
    pub peaks: Peaks,
}

/// The whole plan of a run on `world_size` ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Ranks in the shard group (N).
    pub world_size: usize,
    /// The cut of each parameter.
    pub partitions: Vec<Partition>,
    /// Resident slices: four per parameter, in the order of [`State::ALL`].
    pub resident: Vec<Slot>,
    /// One micro-step of training.
    pub train: Program,
    /// One evaluation pass.
    pub eval: Program,
    /// Size of the arena.
    pub arena_bytes: usize,
}

impl Plan {
    /// Plans a model on `world_size` ranks. Fails where a cap in the deck cannot be kept.
    pub fn new(spec: &ModelSpec, world_size: usize, knobs: &Knobs) -> Result<Self> {
        let partitions: Vec<Partition> = spec.params.iter().map(|p| Partition::new(p.numel(), world_size)).collect();
        let mut resident = Vec::with_capacity(4 * spec.params.len());
        for (param, partition) in spec.params.iter().zip(&partitions) {
            for state in State::ALL {
                resident.push(Slot {
                    name: format!("{}.{state:?}", param.name),
                    kind: state.kind(),
                    numel: partition.shard_numel(),
                    dtype: DType::F32,
                    offset: 0,
                    first: 0,
                    last: usize::MAX,
                    landed: None,
                });
            }
        }
        let resident_end = memory::lay_in_a_row(&mut resident, 0);
        let build = |schedule: Schedule, train: bool| {
            let mut program =
                Lifetimes { spec, partitions: &partitions, instrs: schedule.instrs.clone(), train, slots: Vec::new() }
                    .program(schedule);
            let end = memory::pack(&mut program.slots, resident_end);
            program.peaks = memory::peaks(&resident, &program.slots, program.schedule.instrs.len());
            (program, end)
        };
        let (train, train_end) = build(schedule::training(spec, &partitions, knobs)?, true);
        let (eval, eval_end) = build(schedule::evaluation(spec, &partitions, knobs)?, false);
        Ok(Plan { world_size, partitions, resident, train, eval, arena_bytes: train_end.max(eval_end) })
    }

    /// The slot of one parameter's resident slice.
    pub fn resident_slot(&self, param: ParamId, state: State) -> &Slot {
        &self.resident[4 * param + state as usize]
    }

    /// Bytes one rank keeps between steps.
    pub fn resident_bytes(&self) -> u64 {
        partition::resident_state_bytes(&self.partitions)
    }
}

/// Collects slots and how long each lives while walking a schedule.
struct Lifetimes<'a> {
    spec: &'a ModelSpec,
    partitions: &'a [Partition],
    instrs: Vec<Instr>,
    train: bool,
    slots: Vec<Slot>,
}

impl<'a> Lifetimes<'a> {
    fn find(&self, wanted: impl Fn(&Instr) -> bool) -> usize {
        self.instrs.iter().position(wanted).expect("the schedule has every instruction it refers to")
    }

    fn visit(&self, unit: UnitId, pass: Pass) -> usize {
        self.find(|i| matches!(i, Instr::Compute { unit: u, pass: p, .. } if (*u, *p) == (unit, pass)))
    }

    /// The visit that reads a tensor saved by the forward of `unit`, or its forward in evaluation.
    fn last_visit(&self, unit: UnitId) -> usize {
        match (self.spec.units[unit].role, self.train) {
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
        let end = self.instrs.len() - 1;
        let n_tokens = spec.tokens_per_micro_batch;
        let tokens = self.add("tokens".into(), MemKind::Input, n_tokens, DType::U32, 0, end);
        let targets = self.add("targets".into(), MemKind::Input, n_tokens, DType::U32, 0, end);
        let loss_visit = self.visit(head, Pass::Loss);
        let losses = self.add("losses".into(), MemKind::Activation, n_tokens, DType::F32, loss_visit, end);

        let gathered = (0..schedule.gathers.len()).map(|g| self.gather(g, &schedule)).collect();
        let residual = (0..head)
            .map(|u| {
                let (first, last) = (self.visit(u, Pass::Forward), self.last_visit(u + 1));
                let name = format!("{}.out", spec.units[u].name);
                self.add(name, MemKind::Activation, spec.residual_numel, DType::F32, first, last)
            })
            .collect();
        let (mut saved, mut forward_work, mut backward_work) = (Vec::new(), Vec::new(), Vec::new());
        for (u, unit) in spec.units.iter().enumerate() {
            let is_head = unit.role == UnitRole::Head;
            let first = self.visit(u, if is_head { Pass::Loss } else { Pass::Forward });
            let last = self.last_visit(u);
            saved.push(self.add_all(u, MemKind::Activation, &unit.saved, first, last));
            forward_work.push(self.add_all(u, MemKind::Workspace, &unit.forward_work, first, first));
            let needs_backward = self.train || is_head;
            let work = if needs_backward { unit.backward_work.as_slice() } else { &[] };
            backward_work.push(self.add_all(u, MemKind::Workspace, work, last, last));
        }
        let dresidual = self.train.then(|| {
            let last = self.visit(0, Pass::Backward);
            self.add("dresidual".into(), MemKind::Activation, spec.residual_numel, DType::F32, loss_visit, last)
        });
        let grads = if self.train { self.grads(&schedule) } else { Vec::new() };
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
            forward_work,
            backward_work,
            dresidual,
            grads,
            staging,
            peaks: Peaks { by_kind: Vec::new(), total: 0, at: 0 },
            schedule,
        }
    }

    fn gather(&mut self, g: GatherId, schedule: &Schedule) -> Vec<SlotId> {
        let start = self.find(|i| *i == Instr::Gather(g));
        let landed = self.find(|i| *i == Instr::Wait(g));
        let release = self.find(|i| *i == Instr::Release(g));
        let gather = &schedule.gathers[g];
        gather
            .params
            .iter()
            .map(|&p| {
                let name = format!("{} for {:?}", self.spec.params[p].name, gather.pass);
                let id =
                    self.add(name, MemKind::Gathered, self.partitions[p].padded_numel(), DType::F32, start, release);
                self.slots[id].landed = Some(landed);
                id
            })
            .collect()
    }

    /// A full gradient lives from the first visit that writes it (of a tied parameter: the head's) to the end of
    /// its reduction.
    fn grads(&mut self, schedule: &Schedule) -> Vec<SlotId> {
        let spec = self.spec;
        (0..spec.params.len())
            .map(|p| {
                let last_user = spec.units.iter().rposition(|u| u.params.contains(&p)).expect("used by a unit");
                let first = self.last_visit(last_user);
                let reduce =
                    schedule.reduces.iter().position(|r| r.params.contains(&p)).expect("every gradient is reduced");
                let last = self.find(|i| *i == Instr::ReduceWait(reduce));
                let name = format!("{}.full_grad", spec.params[p].name);
                self.add(name, MemKind::FullGrad, self.partitions[p].padded_numel(), DType::F32, first, last)
            })
            .collect()
    }

    fn staging(&mut self, r: ReduceId, schedule: &Schedule) -> Option<SlotId> {
        let peers = self.partitions[0].world_size - 1;
        let numel = schedule.reduces[r].buckets.iter().map(|b| b.numel() * peers).max().unwrap_or(0);
        (numel > 0).then(|| {
            let first = self.find(|i| *i == Instr::Reduce(r));
            let last = self.find(|i| *i == Instr::ReduceWait(r));
            let name = format!("{}.reduce_staging", self.spec.units[schedule.reduces[r].unit].name);
            self.add(name, MemKind::ReduceStaging, numel, DType::F32, first, last)
        })
    }
}
