//! What a rank keeps between steps: its slice of every parameter, gradient and moment. Never a whole layer.

use crate::backend::memory::Memory;
use crate::backend::{Buf, Device, Queue, View, ViewMut};
use crate::params::ParamId;
use crate::plan::{Plan, State};
use std::ops::Range;

/// The resident slices of one rank.
pub struct Shards {
    rank: usize,
    /// Four slices per parameter, padded; `None` while a collective has it.
    slices: Vec<[Option<Buf>; 4]>,
    /// Unpadded flat range of each parameter.
    ranges: Vec<Range<usize>>,
}

impl Shards {
    /// Takes the planned regions and fills them with zeros.
    pub fn allocate<D: Device>(device: &D, memory: &mut Memory<D>, plan: &Plan, rank: usize) -> Self {
        let slices = (0..plan.partitions.len())
            .map(|p| {
                State::ALL.map(|state| {
                    let slot = plan.resident_slot(p, state);
                    let mut buf = memory.take(device, slot, slot.kind, Queue::Compute);
                    device.fill_bytes(buf.view_mut(), 0);
                    Some(buf)
                })
            })
            .collect();
        let ranges = plan.partitions.iter().map(|p| p.shard_range(rank)).collect();
        Shards { rank, slices, ranges }
    }

    /// This rank in the shard group.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The flat range of `param` this rank owns, without padding; may be empty.
    pub fn range(&self, param: ParamId) -> Range<usize> {
        self.ranges[param].clone()
    }

    /// The owned elements, without padding.
    pub fn owned(&self, param: ParamId, state: State) -> View<'_> {
        let buf = self.slices[param][state as usize].as_ref().expect("no collective has the slice");
        buf.view().range(0..self.ranges[param].len())
    }

    /// The owned elements for writing, without padding.
    pub fn owned_mut(&mut self, param: ParamId, state: State) -> ViewMut<'_> {
        let n = self.ranges[param].len();
        let buf = self.slices[param][state as usize].as_mut().expect("no collective has the slice");
        buf.view_mut().range(0..n)
    }

    /// All four slices of a parameter for the optimizer: `[param, grad, exp_avg, exp_avg_sq]`, without padding.
    pub fn owned_states(&mut self, param: ParamId) -> [ViewMut<'_>; 4] {
        let n = self.ranges[param].len();
        self.slices[param]
            .each_mut()
            .map(|buf| buf.as_mut().expect("no collective has the slice").view_mut().range(0..n))
    }

    /// Hands a padded slice to a collective.
    pub fn lend(&mut self, param: ParamId, state: State) -> Buf {
        self.slices[param][state as usize].take().expect("one collective at a time has a slice")
    }

    /// Takes it back.
    pub fn restore(&mut self, param: ParamId, state: State, buf: Buf) {
        let place = &mut self.slices[param][state as usize];
        assert!(place.is_none(), "the slice was lent");
        *place = Some(buf);
    }
}
