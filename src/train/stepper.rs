//! One rank's executor: its state, and how it allocates memory.
//!
//! Must not know: how it is used ([`super::step`], [`super::infer`]).

use super::scratch::Scratch;
use super::spans::PendingSpan;
use crate::backend::agree::all_or_none;
use crate::backend::memory::Memory;
use crate::backend::{Backend, Comm, Device, MarkOf, Queue, QueueClock};
use crate::error::Result;
use crate::liveness::FlightRecorder;
use crate::model::Model;
use crate::plan::Plan;
use crate::telemetry::{CommVolume, PhaseTimer, Trace, UnitTimes};
use crate::zero::Shards;

/// One rank's executor: everything it needs to run a step.
pub struct Stepper<'a, B: Backend> {
    /// Where kernels run.
    pub device: &'a B::Device,
    /// The shard group.
    pub comm: &'a B::Comm,
    /// The model.
    pub model: &'a Model,
    /// The plan.
    pub plan: &'a Plan,
    /// The arena and its ledger.
    pub memory: Memory<B::Device>,
    /// The slices this rank owns.
    pub shards: Shards,
    /// Time by phase since the last read.
    pub timer: PhaseTimer<QueueClock<'a, B::Device>>,
    /// Bytes by collective since the start.
    pub volume: CommVolume,
    /// Spans of chosen steps.
    pub trace: Trace,
    /// Times of each unit's collectives in training since the start.
    pub units: Vec<UnitTimes>,
    /// Spans of the current step, for `units` and `trace`.
    pub spans: Vec<PendingSpan<MarkOf<B>>>,
    /// Reused lists.
    pub scratch: Scratch<B>,
    /// What this rank is doing, for ranks that wait for it.
    pub flight: FlightRecorder,
    /// The current step.
    pub step_now: u64,
}

/// The parts a [`Stepper`] is made of.
pub struct Parts<'a, B: Backend> {
    /// Where kernels run.
    pub device: &'a B::Device,
    /// The shard group.
    pub comm: &'a B::Comm,
    /// The model.
    pub model: &'a Model,
    /// The plan.
    pub plan: &'a Plan,
    /// What this rank is doing, for ranks that wait for it.
    pub flight: FlightRecorder,
    /// Maximum number of pending sums of losses.
    pub n_sums: usize,
    /// Fill released buffers with NaN.
    pub poison: bool,
}

impl<'a, B: Backend> Stepper<'a, B> {
    /// Allocates the memory of the plan, filled with zeros: on every rank or on none. Collective.
    ///
    /// # Errors
    /// A rank has too little memory.
    pub fn allocate(parts: Parts<'a, B>) -> Result<Self> {
        let Parts { device, comm, model, plan, flight, n_sums, poison } = parts;
        let mut arena = None;
        let allocated = comm.alloc(plan.arena_bytes).map(|a| _ = arena.insert(a));
        all_or_none(
            comm,
            allocated.and_then(|()| device.reserve(n_sums, model.spec.tokens_per_micro_batch)),
        )?;
        let mut memory = Memory::new(arena.expect("no rank failed"), poison);
        let shards = Shards::allocate(device, &mut memory, plan, comm.rank());
        Ok(Stepper {
            device,
            comm,
            model,
            plan,
            memory,
            shards,
            timer: PhaseTimer::new(QueueClock { device, queue: Queue::Compute }),
            volume: CommVolume::new(),
            trace: Trace::default(),
            units: vec![UnitTimes::default(); model.spec.units.len()],
            spans: Vec::new(),
            scratch: Scratch::default(),
            flight,
            step_now: 0,
        })
    }
}
