//! One rank's executor: what it holds, and how it gets its memory.
//!
//! Must not know: what it does with that ([`super::step`], [`super::infer`]).

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
    /// What is computed.
    pub model: &'a Model,
    /// What is executed.
    pub plan: &'a Plan,
    /// The arena and its ledger.
    pub memory: Memory<B::Device>,
    /// What this rank owns.
    pub shards: Shards,
    /// Time by phase since it was last read.
    pub timer: PhaseTimer<QueueClock<'a, B::Device>>,
    /// Bytes by collective since the start.
    pub volume: CommVolume,
    /// Spans of chosen steps.
    pub trace: Trace,
    /// Times of each unit's collectives in training since the start.
    pub units: Vec<UnitTimes>,
    /// Spans of the step under way, for `units` and `trace`.
    pub spans: Vec<PendingSpan<MarkOf<B>>>,
    /// Reused lists.
    pub scratch: Scratch<B>,
    /// What this rank is doing, for ranks that wait for it.
    pub flight: FlightRecorder,
    /// The step under way.
    pub step_now: u64,
}

/// What a [`Stepper`] is made of.
pub struct Parts<'a, B: Backend> {
    /// Where kernels run.
    pub device: &'a B::Device,
    /// The shard group.
    pub comm: &'a B::Comm,
    /// What is computed.
    pub model: &'a Model,
    /// What is executed.
    pub plan: &'a Plan,
    /// What this rank is doing, for ranks that wait for it.
    pub flight: FlightRecorder,
    /// Sums of losses that may be pending at once.
    pub n_sums: usize,
    /// Fill released buffers with NaN.
    pub poison: bool,
}

impl<'a, B: Backend> Stepper<'a, B> {
    /// Takes the memory of the plan, filled with zeros: on every rank or on none. Collective.
    ///
    /// # Errors
    /// Some rank has not enough memory.
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
