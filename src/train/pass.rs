//! One pass over a program while it runs: what it is for, who computes in it, and where it stands.
//!
//! Must not know: what an instruction does (`moves.rs`), in what order they come ([`super::step`]).

use super::scratch::{PassLists, get_mut};
use super::stepper::Stepper;
use crate::backend::{Backend, Device, MarkOf};
use crate::error::Result;
use crate::plan::Program;
use crate::plan::schedule::{Instr, Pass, Visit};
use crate::telemetry::{CommClass, Phase};
use crate::zero::reduce::Contributions;

/// What a pass over a program is for.
#[derive(Clone, Copy)]
pub enum Purpose {
    /// A micro-step of training.
    Train {
        /// 1 / tokens of the global batch.
        dlogits_scale: f32,
        /// Whose gradients are added up.
        contributions: Contributions,
        /// First micro-step of the step.
        first: bool,
    },
    /// Forward only: a loss, or logits.
    Evaluate,
}

impl Purpose {
    /// Whether the pass counts for the figures of training.
    pub(super) fn trains(self) -> bool {
        matches!(self, Purpose::Train { .. })
    }

    /// The phase that `instr` is timed as; none for one that takes no time of its own. The head's one visit
    /// counts as backward: two thirds of its work are.
    pub(super) fn phase_of(self, instr: Instr) -> Option<Phase> {
        match (self, instr) {
            (Purpose::Train { .. }, Instr::Wait(_) | Instr::ReduceWait(_)) => Some(Phase::ExposedComm),
            (Purpose::Train { .. }, Instr::Compute(Visit { pass: Pass::Forward, .. })) => {
                Some(Phase::Forward)
            }
            (Purpose::Train { .. }, Instr::Compute(Visit { pass: Pass::Loss | Pass::Backward, .. })) => {
                Some(Phase::Backward)
            }
            (Purpose::Evaluate, Instr::Wait(_) | Instr::Compute(_)) => Some(Phase::Evaluation),
            _ => None,
        }
    }

    /// Whether gradients begin with this micro-step.
    pub(super) fn is_first_micro_step(self) -> bool {
        let Purpose::Train { first, .. } = self else { panic!("an evaluation has no gradients") };
        first
    }

    /// Whose gradients the reductions add up.
    pub(super) fn contributions(self) -> Contributions {
        let Purpose::Train { contributions, .. } = self else { panic!("an evaluation reduces nothing") };
        contributions
    }

    /// The counter that the bytes of an all-gather belong to.
    pub(super) fn gather_class(self) -> CommClass {
        match self {
            Purpose::Train { .. } => CommClass::TrainAllGather,
            Purpose::Evaluate => CommClass::EvalAllGather,
        }
    }
}

/// What a pass computes on this rank. Training, validation, the loss of a file and generation differ in this
/// alone.
pub(super) trait Visitor<B: Backend> {
    /// Uploads tokens and targets, before the first visit.
    fn upload(&mut self, stepper: &Stepper<'_, B>, pass: &mut PassState<'_, B>) -> Result<()>;

    /// Computes one visit of a unit whose parameters are there.
    fn visit(&mut self, stepper: &Stepper<'_, B>, visit: Visit, pass: &mut PassState<'_, B>) -> Result<()>;
}

/// Where a pass over a program stands.
pub(super) struct PassState<'p, B: Backend> {
    /// What is executed.
    pub program: &'p Program,
    /// What it is for.
    pub purpose: Purpose,
    /// This rank has a micro-batch; without one it joins the collectives and computes nothing.
    pub has_batch: bool,
    /// Index of the instruction under way.
    pub at: usize,
    /// When it began.
    pub began: MarkOf<B>,
    /// The phase to time again after it.
    pub outer_phase: Option<Phase>,
    /// Buffers and collectives.
    pub lists: PassLists<B>,
}

impl<B: Backend> PassState<'_, B> {
    /// The instruction under way.
    pub fn instr(&self) -> Instr {
        self.program.schedule.instrs[self.at]
    }

    /// Uploads the token and target ids of a micro-batch.
    pub fn upload(&mut self, device: &B::Device, tokens: &[u32], targets: &[u32]) -> Result<()> {
        for (id, ids) in [(self.program.tokens, tokens), (self.program.targets, targets)] {
            device.upload(get_mut(&mut self.lists.live, id).view_mut(), bytemuck::cast_slice(ids))?;
        }
        Ok(())
    }
}
