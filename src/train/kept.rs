//! Lists that a rank keeps from one pass over a program to the next with the room they have, so that a step asks the heap for
//! nothing.
//!
//! Must not know: what is done with them.

use super::source::MicroBatch;
use crate::backend::{Backend, Buf, MarkOf, SumOf};
use crate::params::PerTensor;
use crate::plan::Program;
use crate::plan::memory::SlotId;
use crate::zero::refresh::Lists;
use crate::zero::{Gathers, Reductions};

/// All of them.
pub struct Kept<B: Backend> {
    /// The micro-batch that was loaded last.
    pub(super) batch: MicroBatch,
    /// Those of a pass.
    pub(super) pass: InHand<B>,
    /// Sums of the losses of this rank's micro-batches, in the order of micro-steps; none where it had no batch.
    pub(super) losses: Vec<Option<SumOf<B>>>,
    /// The same, finished, and a word.
    pub(super) own: Vec<f64>,
    /// Those of all ranks.
    pub(super) all: Vec<f64>,
    /// Those of a refresh.
    pub(super) refresh: Lists,
}

impl<B: Backend> Default for Kept<B> {
    fn default() -> Self {
        let (losses, own, all) = (Vec::new(), Vec::new(), Vec::new());
        Kept { batch: MicroBatch::default(), pass: InHand::default(), losses, own, all, refresh: Lists::default() }
    }
}

/// Where the buffers and the collectives of one pass over a program are.
pub(super) struct InHand<B: Backend> {
    /// Buffers in the executor's hands, by slot.
    pub live: Live,
    /// Gathers.
    pub gathers: Gathers<B::Comm>,
    /// Reductions.
    pub reductions: Reductions<B::Comm>,
    /// The last visit of each gather's parameters so far.
    pub last_use: Vec<Option<MarkOf<B>>>,
}

impl<B: Backend> Default for InHand<B> {
    fn default() -> Self {
        InHand {
            live: Live::new(),
            gathers: Gathers::default(),
            reductions: Reductions::default(),
            last_use: Vec::new(),
        }
    }
}

impl<B: Backend> InHand<B> {
    /// Begins a pass over `program`: nothing is live, gathered or on its way.
    pub fn begin(&mut self, program: &Program) {
        let (n_gathers, n_reduces) = (program.schedule.gathers.len(), program.schedule.reduces.len());
        self.live.clear();
        self.live.resize_with(program.slots.len(), || None);
        self.gathers.reset(n_gathers);
        self.reductions.reset(n_reduces);
        self.last_use.clear();
        self.last_use.resize(n_gathers, None);
    }
}

/// Buffers in the executor's hands, by slot.
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
