//! One rank's executor: what it holds, how it gets its memory, and the moves that every pass over a program is made of.
//!
//! Must not know: in what order they come ([`super::step`], [`super::infer`]).

use super::kept::{Kept, Live, put, take};
use crate::backend::agree::all_or_none;
use crate::backend::memory::Memory;
use crate::backend::{Backend, Comm, Device, MarkOf, Queue, QueueClock};
use crate::error::Result;
use crate::model::Model;
use crate::params::UnitId;
use crate::plan::schedule::{GatherId, Instr, Pass};
use crate::plan::{Plan, Program};
use crate::telemetry::{CommClass, CommVolume, Flight, MemKind, Phase, PhaseTimer, Trace, Track, UnitTimes};
use crate::zero::reduce::Contributions;
use crate::zero::{Gathers, Shards};

/// What a pass over a program is for.
#[derive(Clone, Copy)]
pub enum Purpose {
    /// A micro-step of training.
    Train {
        /// 1 / tokens of the global batch.
        dlogits_scale: f32,
        /// Whose gradients are added.
        who: Contributions,
        /// First micro-step of the step.
        first: bool,
    },
    /// A loss and nothing else.
    Evaluate,
}

impl Purpose {
    /// Whether it counts for the figures of training.
    pub(super) fn trains(self) -> bool {
        matches!(self, Purpose::Train { .. })
    }

    /// The phase that a wait for a collective belongs to.
    pub(super) fn waiting(self) -> Phase {
        match self {
            Purpose::Train { .. } => Phase::ExposedComm,
            Purpose::Evaluate => Phase::Evaluation,
        }
    }

    /// The phase that a visit belongs to. The head's one visit is counted as backward: two thirds of it are.
    pub(super) fn computing(self, pass: Pass) -> Phase {
        match (self, pass) {
            (Purpose::Evaluate, _) => Phase::Evaluation,
            (_, Pass::Forward) => Phase::Forward,
            (_, Pass::Loss | Pass::Backward) => Phase::Backward,
        }
    }

    /// The counter that an all-gather belongs to.
    fn gathering(self) -> CommClass {
        match self {
            Purpose::Train { .. } => CommClass::TrainAllGather,
            Purpose::Evaluate => CommClass::EvalAllGather,
        }
    }
}

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
    /// Collectives of each unit in training, since the start.
    pub units: Vec<UnitTimes>,
    /// What the step under way has to tell to `units` and `trace`, once its times are known.
    pub notes: Vec<Note<MarkOf<B>>>,
    /// Lists, for their room.
    pub kept: Kept<B>,
    /// What this rank is at, for ranks that wait for it.
    pub flight: Flight,
    /// The step that is under way.
    pub step_now: u64,
}

/// Something a step has to tell, with marks where its times will be. A device may not have come to them while the step is
/// under way, so [`Stepper::settle`] reads them at its end.
pub struct Note<M> {
    pub(super) noted: Noted,
    pub(super) unit: Option<UnitId>,
    pub(super) start: M,
    pub(super) end: M,
    /// It belongs to training: it counts for its unit.
    pub(super) counts: bool,
}

/// What a [`Note`] is about.
pub(super) enum Noted {
    /// A collective ran.
    Comm { track: Track, bytes: u64, live_bytes: u64 },
    /// Compute waited for a collective.
    Wait { on: Track },
    /// Gathered parameters were kept after their last use.
    Kept { bytes: u64 },
    /// An instruction; in traced steps alone.
    Instr { what: &'static str, bytes: u64, live_bytes: u64 },
}

impl<'a, B: Backend> Stepper<'a, B> {
    /// Takes the memory of `plan`, filled with zeros, and room for `n_sums` sums of losses at once: on every rank or on none.
    /// `poison` fills what is given back with NaN. Collective.
    ///
    /// # Errors
    /// Memory is not to be had on some rank.
    pub fn allocate(
        (device, comm): (&'a B::Device, &'a B::Comm),
        model: &'a Model,
        plan: &'a Plan,
        flight: Flight,
        n_sums: usize,
        poison: bool,
    ) -> Result<Self> {
        let mut arena = None;
        let allocated = comm.alloc(plan.arena_bytes).map(|a| _ = arena.insert(a));
        all_or_none(comm, allocated.and_then(|()| device.reserve(n_sums, model.spec.tokens_per_micro_batch)))?;
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
            notes: Vec::new(),
            kept: Kept::default(),
            flight,
            step_now: 0,
        })
    }

    /// Starts gather `g` into the buffers that were taken for it.
    pub(super) fn start_gather(
        &mut self,
        program: &Program,
        g: GatherId,
        gathers: &mut Gathers<B::Comm>,
        live: &mut Live,
    ) {
        let outs = take(live, &program.gathered[g]);
        let after = self.device.record(Queue::Compute);
        self.flight.gathering(program.schedule.gathers[g].unit);
        gathers.start(g, &program.schedule.gathers[g], self.comm, after, &mut self.shards, outs);
    }

    /// Waits, since `began`, until gather `g` has brought whole parameters.
    pub(super) fn land_gather(
        &mut self,
        program: &Program,
        g: GatherId,
        gathers: &mut Gathers<B::Comm>,
        live: &mut Live,
        began: &MarkOf<B>,
        purpose: Purpose,
    ) -> Result<()> {
        let outer = self.timer.switch(purpose.waiting());
        let (bufs, records) = gathers.wait(g, &program.schedule.gathers[g], &mut self.shards)?;
        self.timer.switch(outer);
        let unit = program.schedule.gathers[g].unit;
        self.flight.gathered(unit);
        for record in records {
            self.volume.add(purpose.gathering(), record.received_bytes);
            self.note_comm(Track::Gather, unit, record, purpose);
        }
        self.note(Noted::Wait { on: Track::Gather }, unit, began, purpose);
        for buf in &bufs {
            self.memory.convert(buf, MemKind::Prefetched, MemKind::Gathered);
        }
        put(live, &program.gathered[g], bufs);
        Ok(())
    }

    /// The parameters of gather `g` are used no more.
    pub(super) fn release_gather(&self, program: &Program, g: GatherId, gathers: &mut Gathers<B::Comm>) {
        gathers.release(g);
        self.flight.released(program.schedule.gathers[g].unit);
    }

    /// Takes the buffers whose life begins with instruction `at`.
    pub(super) fn begin(&mut self, program: &Program, at: usize, instr: Instr, live: &mut Live) {
        let queue = match instr {
            Instr::Gather(_) => Queue::Gather,
            Instr::Reduce(_) => Queue::Reduce,
            _ => Queue::Compute,
        };
        let (what, unit) = describe(program, instr);
        self.flight.at(self.step_now, what, unit);
        self.memory.ledger().set_label(what, unit);
        for &id in &program.begins[at] {
            let slot = &program.slots[id];
            live[id] = Some(self.memory.take(self.device, slot, slot.kind_at(at), queue));
        }
    }

    /// Gives back the buffers whose life ends with instruction `at`.
    pub(super) fn end(&mut self, program: &Program, at: usize, live: &mut Live) {
        for &id in &program.ends[at] {
            let buf = live[id].take().expect("a buffer is back in hand when its life ends");
            self.memory.give(self.device, buf, program.slots[id].kind_at(at));
        }
    }
}

/// An instruction in words, and its unit, for the ledger.
pub fn describe(program: &Program, instr: Instr) -> (&'static str, Option<UnitId>) {
    let schedule = &program.schedule;
    match instr {
        Instr::Gather(g) => ("gather", Some(schedule.gathers[g].unit)),
        Instr::Wait(g) => ("wait", Some(schedule.gathers[g].unit)),
        Instr::Compute { unit, pass: Pass::Forward, .. } => ("forward", Some(unit)),
        Instr::Compute { unit, pass: Pass::Loss, .. } => ("loss", Some(unit)),
        Instr::Compute { unit, pass: Pass::Backward, .. } => ("backward", Some(unit)),
        Instr::Release(g) => ("release", Some(schedule.gathers[g].unit)),
        Instr::Accumulate(r) => ("hold gradients", Some(schedule.reduces[r].unit)),
        Instr::Round(r) => ("round gradients", Some(schedule.reduces[r].unit)),
        Instr::Reduce(r) => ("reduce", Some(schedule.reduces[r].unit)),
        Instr::ReduceWait(r) => ("wait for the reduction", Some(schedule.reduces[r].unit)),
    }
}
