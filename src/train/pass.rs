//! One pass over a program while it runs: its purpose, the visitor that computes, and its position.
//!
//! Must not know: what an instruction does (`moves.rs`), their order ([`super::step`]).

use super::scratch::{PassLists, get_mut};
use super::stepper::Stepper;
use crate::backend::{Backend, Device, MarkOf};
use crate::error::Result;
use crate::plan::Program;
use crate::plan::schedule::{Instr, Pass, Visit};
use crate::telemetry::{CommClass, Phase};
use crate::zero::reduce::Contributions;

/// The purpose of a pass over a program.
#[derive(Clone, Copy)]
pub enum Purpose {
    /// A micro-step of training.
    Train {
        /// 1 / tokens of the global batch.
        dlogits_scale: f32,
        /// The contributions whose gradients are added up.
        contributions: Contributions,
        /// First micro-step of the step.
        is_first_micro_step: bool,
    },
    /// Forward only: a loss, or logits.
    Evaluate,
}

impl Purpose {
    /// Whether the pass counts in the figures of training.
    pub(super) fn is_training(self) -> bool {
        matches!(self, Purpose::Train { .. })
    }

    /// The phase that `instr` is timed as; none if it takes no time. The head's single visit counts as
    /// backward, which is two thirds of its work.
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

    /// Whether gradients start with this micro-step.
    pub(super) fn is_first_micro_step(self) -> bool {
        let Purpose::Train { is_first_micro_step, .. } = self else {
            panic!("an evaluation has no gradients")
        };
        is_first_micro_step
    }

    /// The contributions that the reductions add up.
    pub(super) fn contributions(self) -> Contributions {
        let Purpose::Train { contributions, .. } = self else { panic!("an evaluation reduces nothing") };
        contributions
    }

    /// The counter that the bytes of an all-gather are added to.
    pub(super) fn gather_class(self) -> CommClass {
        match self {
            Purpose::Train { .. } => CommClass::TrainAllGather,
            Purpose::Evaluate => CommClass::EvalAllGather,
        }
    }
}

/// The computation of a pass on this rank. Training, validation, the loss of a file and generation differ
/// only in this.
pub(super) trait Visitor<B: Backend> {
    /// Uploads tokens and targets, before the first visit.
    fn upload(&mut self, stepper: &Stepper<'_, B>, pass: &mut PassState<'_, B>) -> Result<()>;

    /// Computes one visit of a unit whose parameters have been gathered.
    fn visit(&mut self, stepper: &Stepper<'_, B>, visit: Visit, pass: &mut PassState<'_, B>) -> Result<()>;
}

/// Position in a pass over a program.
pub(super) struct PassState<'p, B: Backend> {
    /// The program.
    pub program: &'p Program,
    /// Its purpose.
    pub purpose: Purpose,
    /// Whether this rank has a micro-batch; without one it joins the collectives and computes nothing.
    pub has_batch: bool,
    /// Index of the current instruction.
    pub at: usize,
    /// When it started.
    pub began: MarkOf<B>,
    /// The phase that timing returns to after it.
    pub outer_phase: Option<Phase>,
    /// Buffers and collectives.
    pub lists: PassLists<B>,
}

impl<B: Backend> PassState<'_, B> {
    /// The current instruction.
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
