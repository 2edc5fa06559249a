//! What a rank holds at rest: its slice of every parameter, gradient and optimizer state, or the whole tensor
//! where the stage does not shard it. During a step also the sums that the slices cannot hold.
//!
//! Must not know: units, the order of a step.

use crate::backend::memory::Memory;
use crate::backend::{Buf, Device, Ops, Queue, View, ViewMut};
use crate::optimizers::OptimStates;
use crate::params::ParamId;
use crate::plan::partition::Partition;
use crate::plan::placement::{Hold, Placement, State};
use crate::plan::slots::Slot;
use crate::plan::{Plan, StepSlots};
use std::ops::Range;

/// The state of one rank.
pub struct Shards {
    rank: usize,
    partitions: Vec<Partition>,
    placements: Vec<Placement>,
    /// States of each parameter, padded; `None` where one does not exist, or while a collective has it.
    states: Vec<[Option<Buf>; State::COUNT]>,
    /// Fp32 gradient sums of a step, where the slice at rest cannot hold them.
    sums: Vec<Option<Buf>>,
    /// Fp32 full gradients held over the micro-steps of a step.
    held: Vec<Option<Buf>>,
}

impl Shards {
    /// Takes the planned regions, filled with zeros.
    pub fn allocate<D: Device>(device: &D, memory: &mut Memory<D>, plan: &Plan, rank: usize) -> Self {
        let mut take = |slot: &Slot| {
            let mut buf = memory.take(device, slot, slot.kind, Queue::Compute);
            device.fill_bytes(buf.view_mut(), 0);
            buf
        };
        let n = plan.partitions.len();
        let states =
            (0..n).map(|p| State::ALL.map(|state| plan.resident_slot(p, state).map(&mut take))).collect();
        let none = || (0..n).map(|_| None).collect();
        Shards {
            rank,
            partitions: plan.partitions.clone(),
            placements: plan.placements.clone(),
            states,
            sums: none(),
            held: none(),
        }
    }

    /// Takes the buffers that only a step needs.
    pub fn begin_step<D: Device>(&mut self, device: &D, memory: &mut Memory<D>, step: &StepSlots) {
        for (ids, bufs) in [(&step.sums, &mut self.sums), (&step.held, &mut self.held)] {
            for (id, buf) in ids.iter().zip(bufs) {
                *buf = id.map(|id| memory.take(device, &step.slots[id], step.slots[id].kind, Queue::Compute));
            }
        }
    }

    /// Rounds the sums into the gradients at rest and gives the buffers of [`Shards::begin_step`] back.
    pub fn end_step<D: Device>(&mut self, device: &D, memory: &mut Memory<D>, step: &StepSlots) {
        for p in 0..self.sums.len() {
            if let Some(sum) = self.sums[p].take() {
                let n = self.range(p).len();
                device.cast(self.owned_mut(p, State::Grad), sum.view().range(0..n));
                memory.give(device, sum, step.slots[step.sums[p].expect("planned")].kind);
            }
            if let Some(held) = self.held[p].take() {
                memory.give(device, held, step.slots[step.held[p].expect("planned")].kind);
            }
        }
    }

    /// This rank in the shard group.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The flat range of `param` that this rank owns, without padding; may be empty.
    pub fn range(&self, param: ParamId) -> Range<usize> {
        self.partitions[param].shard_range(self.rank)
    }

    /// Elements of `param`.
    fn numel(&self, param: ParamId) -> usize {
        self.partitions[param].numel
    }

    /// How `state` of `param` is held.
    pub fn hold(&self, param: ParamId, state: State) -> Hold {
        self.placements[param].hold(state)
    }

    /// Whether `state` of `param` exists in this run.
    pub fn exists(&self, param: ParamId, state: State) -> bool {
        self.states[param][state.index()].is_some()
    }

    /// Where the owned elements are in the buffer: at its start, or at their own index in a whole tensor.
    fn owned_range(&self, param: ParamId, state: State) -> Range<usize> {
        match self.hold(param, state) {
            Hold::Sharded => 0..self.range(param).len(),
            Hold::Whole => self.range(param),
        }
    }

    fn buf(&self, param: ParamId, state: State) -> &Buf {
        self.states[param][state.index()].as_ref().expect("the state exists and no collective has it")
    }

    /// The owned elements, without padding.
    pub fn owned(&self, param: ParamId, state: State) -> View<'_> {
        self.buf(param, state).view().range(self.owned_range(param, state))
    }

    /// The owned elements for writing, without padding.
    pub fn owned_mut(&mut self, param: ParamId, state: State) -> ViewMut<'_> {
        let place = self.owned_range(param, state);
        let buf =
            self.states[param][state.index()].as_mut().expect("the state exists and no collective has it");
        buf.view_mut().range(place)
    }

    /// A whole parameter to compute with, without padding; only where every rank holds it whole.
    pub fn whole(&self, param: ParamId) -> View<'_> {
        assert_eq!(self.hold(param, State::Param), Hold::Whole, "a sharded parameter has to be gathered");
        self.buf(param, State::Param).view().range(0..self.numel(param))
    }

    /// What the optimizer updates on this rank: every state of the owned elements (in stage 0: of all
    /// elements), without padding.
    pub fn updated(&mut self, param: ParamId) -> Updated<'_> {
        let whole = self.placements[param].optim == Hold::Whole;
        let places =
            State::ALL.map(|state| if whole { 0..self.numel(param) } else { self.owned_range(param, state) });
        let (mut weight, mut master, mut grad, mut states) = (None, None, None, OptimStates::default());
        for ((state, buf), place) in State::ALL.into_iter().zip(&mut self.states[param]).zip(places) {
            let Some(view) = buf.as_mut().map(|buf| buf.view_mut().range(place)) else { continue };
            match state {
                State::Param => weight = Some(view),
                State::Master => master = Some(view),
                State::Grad => grad = Some(view.into_view()),
                State::Optim(state) => states.set(state, view),
            }
        }
        // In fp32 the parameter is its own master; else it gets the rounded master.
        let (master, rounded) = match master {
            Some(master) => (Some(master), weight),
            None => (weight, None),
        };
        let here = "parameters and gradients exist in training";
        Updated { master: master.expect(here), rounded, grad: grad.expect(here), states }
    }

    /// Rounds the owned master weights into the parameter.
    pub fn round_master<D: Ops>(&mut self, device: &D, param: ParamId) {
        let (from, to) = (self.owned_range(param, State::Master), self.owned_range(param, State::Param));
        let mut weight = self.lend(param, State::Param);
        device.cast(weight.view_mut().range(to), self.buf(param, State::Master).view().range(from));
        self.restore(param, State::Param, weight);
    }

    /// Lends a state to a collective.
    pub fn lend(&mut self, param: ParamId, state: State) -> Buf {
        self.states[param][state.index()].take().expect("one collective at a time has a state")
    }

    /// Takes a lent state back.
    pub fn restore(&mut self, param: ParamId, state: State, buf: Buf) {
        put_back(&mut self.states[param][state.index()], buf);
    }

    /// Lends the fp32 slice that a reduction adds into.
    pub fn lend_sum(&mut self, param: ParamId) -> Buf {
        match self.sums[param].take() {
            Some(sum) => sum,
            None => self.lend(param, State::Grad),
        }
    }

    /// Takes a lent sum back.
    pub fn restore_sum(&mut self, param: ParamId, buf: Buf, plan: &Plan) {
        match plan.step.sums[param] {
            Some(_) => put_back(&mut self.sums[param], buf),
            None => self.restore(param, State::Grad, buf),
        }
    }

    /// Adds a full gradient to the held one; overwrites it where `first`.
    pub fn accumulate_gradient<D: Ops>(&mut self, device: &D, param: ParamId, full: &Buf, first: bool) {
        let n = self.numel(param);
        let held = self.held[param]
            .as_mut()
            .expect("a plan that holds gradients has their slots")
            .view_mut()
            .range(0..n);
        let full = full.view().range(0..n);
        if first { device.cast(held, full) } else { device.accumulate(held, full) }
    }

    /// Lends a held gradient to a reduction.
    pub fn lend_held(&mut self, param: ParamId) -> Buf {
        self.held[param].take().expect("one collective at a time has a gradient")
    }

    /// Takes a lent gradient back.
    pub fn restore_held(&mut self, param: ParamId, buf: Buf) {
        put_back(&mut self.held[param], buf);
    }
}

/// The slices of one parameter that an update reads and writes, all of the same elements.
pub struct Updated<'a> {
    /// Fp32 weights.
    pub master: ViewMut<'a>,
    /// The parameter in lower precision, which gets the rounded weights; None where it is the master itself.
    pub rounded: Option<ViewMut<'a>>,
    /// The reduced gradient.
    pub grad: View<'a>,
    /// The optimizer's states.
    pub states: OptimStates<ViewMut<'a>>,
}

fn put_back(place: &mut Option<Buf>, buf: Buf) {
    assert!(place.is_none(), "only a buffer that was lent comes back");
    *place = Some(buf);
}
