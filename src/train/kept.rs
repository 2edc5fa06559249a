//! Lists that a rank keeps from one pass over a program to the next with the room they have, so that a step asks the heap for
//! nothing.
//!
//! Must not know: what is done with them.

use super::step::{Mark, MicroBatch, Sum};
use super::visit::Live;
use crate::backend::Backend;
use crate::plan::Program;
use crate::zero::refresh::Lists;
use crate::zero::{Gathers, Reductions};

/// All of them.
pub struct Kept<B: Backend> {
    /// The micro-batch that was loaded last.
    pub(super) batch: MicroBatch,
    /// Those of a pass.
    pub(super) pass: InHand<B>,
    /// Sums of the losses of this rank's micro-batches, in the order of micro-steps; none where it had no batch.
    pub(super) losses: Vec<Option<Sum<B>>>,
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
    pub last_use: Vec<Option<Mark<B>>>,
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
