//! Everything decided before step 0, as pure functions of (model, N, deck): the partition of each parameter,
//! the order of instructions, the placement of each buffer, and the bytes communicated.
//!
//! `zero3 plan` prints it, the executor runs it, the summary compares it with measurements. Must not know:
//! MPI, devices, the clock.

pub mod forecast;
pub mod generation;
pub mod knobs;
pub mod micro_batches;
pub mod ordered_exchange;
pub mod packing;
pub mod partition;
pub mod placement;
pub mod plan_table;
pub mod program;
pub mod refresh;
pub mod schedule;
pub mod slice;
pub mod slots;
#[cfg(test)]
mod tests;
pub mod volume;

use crate::config::ReduceWhen;
use crate::dtype::DType;
use crate::error::Result;
use crate::optimizers::BYTES_PER_STATE;
use crate::params::{ModelSpec, ParamId};
use crate::telemetry::ledger::MemKind;
use generation::{Cut, KeptSizes, PerFeed, Ran};
use partition::Partition;
use placement::{Hold, Placement};
use program::Lifetimes;
use refresh::Refresh;
use schedule::Gradients;
use slots::{Peaks, Slot, SlotId};

pub use generation::Generation;
pub use knobs::Knobs;
pub use micro_batches::MicroBatches;
pub use placement::State;
pub use program::Program;
pub use slice::Slice;

/// Buffers that live for a whole training step, across its micro-steps.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StepSlots {
    /// All of them.
    pub slots: Vec<Slot>,
    /// Fp32 sum of each parameter's gradient slice, if the slice at rest cannot hold it: lower precision, or
    /// whole.
    pub sums: Vec<Option<SlotId>>,
    /// Fp32 full gradient of each parameter accumulated over micro-steps (`reduce = last_micro_step`),
    /// padded.
    pub held: Vec<Option<SlotId>>,
}

/// The whole plan of a run on `world_size` ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Ranks in the shard group (N).
    pub world_size: usize,
    /// The settings it was made with.
    pub knobs: Knobs,
    /// The partition of each parameter.
    pub partitions: Vec<Partition>,
    /// Which states of each parameter are sharded.
    pub placements: Vec<Placement>,
    /// Buffers of a rank between steps.
    pub resident: Vec<Slot>,
    /// Which of them is which state of which parameter.
    resident_ids: ResidentIds,
    /// Additional buffers during a step.
    pub step: StepSlots,
    /// A micro-step of training; with `reduce = last_micro_step` the last one.
    pub train: Program,
    /// A micro-step before the last one, if it differs: gradients are accumulated.
    pub train_hold: Option<Program>,
    /// One evaluation pass.
    pub eval: Program,
    /// Text generation; none unless requested.
    pub generation: Option<Generation>,
    /// How whole parameters (and, in stage 0, gradients) are completed after the update of their slices.
    pub refresh: Refresh,
    /// Size of the arena.
    pub arena_bytes: usize,
    /// Host memory outside the arena for the copy of asynchronous saves; 0 without them.
    pub host_staging_bytes: u64,
    /// Pinned host memory for the device's transfers; 0 if the host can access the arena.
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

    /// Plans a model on `world_size` ranks. Fails if a cap in the deck cannot be met.
    pub fn new(spec: &ModelSpec, world_size: usize, knobs: &Knobs) -> Result<Self> {
        let partitions: Vec<Partition> =
            spec.params.iter().map(|p| Partition::new(p.numel(), world_size)).collect();
        let placements: Vec<Placement> =
            spec.params.iter().map(|p| Placement::of(p.numel(), knobs)).collect();
        let (mut resident, resident_ids) = resident_slots(spec, &partitions, &placements, knobs);
        let resident_end = slots::lay_in_a_row(&mut resident, 0);
        let mut step = step_slots(spec, &partitions, &placements, knobs);
        let step_end = slots::lay_in_a_row(&mut step.slots, resident_end);
        let mut arena_bytes = if knobs.trains { step_end } else { resident_end };

        let mut build = |gradients: Gradients| -> Result<Program> {
            let train = gradients != Gradients::None;
            let schedule = match train {
                true => schedule::training(spec, &partitions, &placements, knobs, gradients)?,
                false => schedule::evaluation(spec, &partitions, &placements, knobs)?,
            };
            let mut program =
                Lifetimes::new(spec, &partitions, knobs, &schedule, gradients).program(schedule);
            let (base, always) = match train {
                true => (step_end, resident.iter().chain(&step.slots).cloned().collect()),
                false => (resident_end, resident.clone()),
            };
            let end = packing::pack(&mut program.slots, base);
            if knobs.trains || !train {
                arena_bytes = arena_bytes.max(end);
            }
            program.peaks = slots::peaks(&always, &program.slots, program.schedule.instrs.len());
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
        self.resident_ids[param][state.index()].map(|id| &self.resident[id])
    }

    /// Bytes per rank between steps.
    pub fn resident_bytes(&self) -> u64 {
        self.resident.iter().map(|slot| slot.bytes() as u64).sum()
    }

    /// The stage's formula, without padding and persistent parameters: `whole * Psi + cut * Psi / N`.
    pub fn formula_bytes(&self, n_params: usize) -> f64 {
        let (whole, cut) = placement::bytes_per_param(&self.knobs);
        whole as f64 * n_params as f64 + cut as f64 * n_params as f64 / self.world_size as f64
    }

    /// Whether gradients are accumulated on each rank over the micro-steps and reduced in the last one alone.
    pub fn reduces_once(&self) -> bool {
        self.train_hold.is_some()
    }

    /// The program of micro-step `a` of `n`.
    pub fn micro_step(&self, a: usize, n: usize) -> &Program {
        match &self.train_hold {
            Some(hold) if a + 1 < n => hold,
            _ => &self.train,
        }
    }

    /// Peaks of training, over its programs and the refresh after the update.
    pub fn training_peaks(&self) -> Peaks {
        let mut peaks = self.train.peaks.clone();
        let always = self.resident.clone(); // the step's own buffers are back by then
        // Other states are refreshed only after a restore.
        let buckets = self.refreshed_state().into_iter().flat_map(|state| self.refresh.of(state));
        let slots: Vec<Slot> =
            buckets.flat_map(|b| &b.staging).map(|&id| self.refresh.slots[id].clone()).collect();
        let refresh = slots::peaks(&always, &slots, self.refresh.buckets.len());
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

    /// Plans to generate text, with models of the same parameters and few rows.
    ///
    /// # Errors
    /// A cap in the deck cannot be kept.
    pub fn add_generation(&mut self, specs: PerFeed<&ModelSpec>, sizes: KeptSizes) -> Result<()> {
        let Plan { partitions, placements, knobs, resident, .. } = &*self;
        let generation = Generation::new(&Cut { partitions, placements, knobs, resident }, specs, sizes)?;
        self.arena_bytes = self.arena_bytes.max(generation.end);
        self.generation = Some(generation);
        Ok(())
    }

    /// Peaks of the programs that generated text; None where none ran.
    pub fn generation_peaks(&self, ran: Ran) -> Option<Peaks> {
        let mut peaks = self.generation.as_ref()?.peaks(ran)?;
        peaks.add_throughout(MemKind::Staging, self.outside_bytes());
        Some(peaks)
    }

    /// Host memory beside the arena.
    pub fn outside_bytes(&self) -> u64 {
        self.host_staging_bytes + self.pinned_bytes
    }

    /// Bytes that a rank saves per element: fp32 weights and the optimizer's states.
    pub fn saved_bytes_per_param(&self) -> usize {
        BYTES_PER_STATE * (1 + self.knobs.optim_states.len())
    }

    /// Host buffer for a copy of this rank's state, padding included.
    pub fn stage_saves(&mut self) {
        let bytes = self.saved_bytes_per_param() as u64;
        self.host_staging_bytes = self.partitions.iter().map(|p| bytes * p.shard_numel() as u64).sum();
    }
}

/// For each parameter the slot of each state, in [`State::ALL`]'s order.
type ResidentIds = Vec<[Option<SlotId>; State::COUNT]>;

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
            slots.push(Slot::always(format!("{}.{}", param.name, state.name()), state.kind(), numel, dtype));
            Some(slots.len() - 1)
        }));
    }
    (slots, ids)
}

fn step_slots(
    spec: &ModelSpec,
    partitions: &[Partition],
    placements: &[Placement],
    knobs: &Knobs,
) -> StepSlots {
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
