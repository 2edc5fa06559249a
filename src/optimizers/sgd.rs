//! Stochastic gradient descent with momentum, as `torch.optim.SGD` has it without dampening, and with its
//! `nesterov` (Sutskever et al. 2013); but the weight decay is decoupled, as in AdamW (SGDW of
//! arXiv:1711.05101). Without momentum it keeps nothing.

use super::row::{Hyper, OptimState, OptimStates, Optimizer, Scalars, UpdateNow};
use OptimState::MomentumBuffer;

/// The numbers of one SGD update.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SgdStep {
    /// Learning rate of this step.
    pub lr: f32,
    /// Decay of the sum of gradients; 0: there is no such sum.
    pub momentum: f32,
    /// The step goes by the gradient and the sum as it will be, instead of the sum as it is.
    pub nesterov: bool,
    /// Decoupled decay; 0 for parameters that do not decay.
    pub weight_decay: f32,
    /// Factor of the gradient (clipping).
    pub grad_scale: f32,
}

impl Optimizer for SgdStep {
    const STATES: &'static [OptimState] = &[MomentumBuffer];
    const KEYS: &'static [(&'static str, f64)] = &[("momentum", 0.9), ("nesterov", 0.0)];

    fn states(hyper: &Hyper) -> &'static [OptimState] {
        if hyper.momentum == 0.0 { &[] } else { Self::STATES }
    }

    fn new(hyper: &Hyper, now: &UpdateNow) -> Self {
        SgdStep {
            lr: now.lr as f32,
            momentum: hyper.momentum as f32,
            nesterov: hyper.nesterov,
            weight_decay: if now.decays { hyper.weight_decay as f32 } else { 0.0 },
            grad_scale: now.grad_scale,
        }
    }

    fn scalars(&self) -> Scalars {
        let decay = 1.0 - self.lr * self.weight_decay;
        Scalars::from_slice(&[
            self.grad_scale,
            decay,
            self.momentum,
            f32::from(u8::from(self.nesterov)),
            self.lr,
        ])
    }

    fn element(&self, weight: &mut f64, states: &mut OptimStates<f64>, grad: f64) {
        let (lr, momentum) = (f64::from(self.lr), f64::from(self.momentum));
        let g = grad * f64::from(self.grad_scale);
        let mut direction = g;
        if let Some(&buffer) = states.get(MomentumBuffer) {
            let buffer = momentum * buffer + g;
            states.set(MomentumBuffer, buffer);
            direction = if self.nesterov { g + momentum * buffer } else { buffer };
        }
        *weight *= 1.0 - lr * f64::from(self.weight_decay);
        *weight -= lr * direction;
    }
}
