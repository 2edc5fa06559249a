//! Lists that a rank reuses from one pass over a program to the next, so that a steady-state step makes no
//! heap allocations.
//!
//! Must not know: their use.

use super::batches::MicroBatch;
use crate::backend::{Backend, Buf, MarkOf, RecordOf, SumOf};
use crate::params::PerTensor;
use crate::plan::Program;
use crate::plan::slots::SlotId;
use crate::zero::refresh::BucketLists;
use crate::zero::{Gathers, Reductions};

/// The reused lists of a [`super::stepper::Stepper`].
pub struct Scratch<B: Backend> {
    /// The micro-batch that was loaded last.
    pub(super) batch: MicroBatch,
    /// Lists of the current pass.
    pub(super) pass: PassLists<B>,
    /// Sum of the losses of this rank's micro-batch in each micro-step so far; none if it had no micro-batch.
    pub(super) losses: Vec<Option<SumOf<B>>>,
    /// The same as numbers, and the flag sent with them.
    pub(super) own: Vec<f64>,
    /// `own` of every rank, in rank order.
    pub(super) all: Vec<f64>,
    /// Lists of a refresh.
    pub(super) refresh: BucketLists,
}

impl<B: Backend> Default for Scratch<B> {
    fn default() -> Self {
        let (losses, own, all) = (Vec::new(), Vec::new(), Vec::new());
        let (batch, pass, refresh) = (MicroBatch::default(), PassLists::default(), BucketLists::default());
        Scratch { batch, pass, losses, own, all, refresh }
    }
}

/// Locations of the buffers and the collectives of a pass over a program.
pub(super) struct PassLists<B: Backend> {
    /// Buffers not in use by a collective, by slot.
    pub live: Live,
    /// Gathers.
    pub gathers: Gathers<B::Comm>,
    /// Reductions.
    pub reductions: Reductions<B::Comm>,
    /// When the parameters of each gather were last used.
    pub last_use: Vec<Option<MarkOf<B>>>,
    /// The collectives that the current instruction has waited for.
    pub landed: PerTensor<RecordOf<B::Comm>>,
}

impl<B: Backend> Default for PassLists<B> {
    fn default() -> Self {
        let (gathers, reductions) = (Gathers::default(), Reductions::default());
        PassLists { live: Live::new(), gathers, reductions, last_use: Vec::new(), landed: PerTensor::new() }
    }
}

impl<B: Backend> PassLists<B> {
    /// For a pass over `program` from its first instruction: nothing is live, gathered or in flight.
    pub fn reset(&mut self, program: &Program) {
        let (n_gathers, n_reduces) = (program.schedule.gathers.len(), program.schedule.reduces.len());
        self.live.clear();
        self.live.resize_with(program.slots.len(), || None);
        self.gathers.reset(n_gathers);
        self.reductions.reset(n_reduces);
        self.last_use.clear();
        self.last_use.resize(n_gathers, None);
    }
}

/// Buffers not in use by a collective, by slot.
pub(super) type Live = Vec<Option<Buf>>;

pub(super) fn get(live: &Live, id: SlotId) -> &Buf {
    live[id].as_ref().expect("the planned life covers this use")
}

pub(super) fn get_mut(live: &mut Live, id: SlotId) -> &mut Buf {
    live[id].as_mut().expect("the planned life covers this use")
}

pub(super) fn take(live: &mut Live, ids: &[SlotId]) -> PerTensor<Buf> {
    ids.iter().map(|&id| live[id].take().expect("the planned life covers this use")).collect()
}

pub(super) fn put(live: &mut Live, ids: &[SlotId], bufs: PerTensor<Buf>) {
    for (&id, buf) in ids.iter().zip(bufs) {
        live[id] = Some(buf);
    }
}
