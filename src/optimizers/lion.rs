//! Lion, "evolved sign momentum" (Chen et al. 2023, arXiv:2302.06675, algorithm 2): each weight moves by the
//! learning rate, in the direction of the sign of an average of gradients. Weight decay is decoupled, as in
//! AdamW.

use super::row::{Hyper, OptimState, OptimStates, Optimizer, Scalars, UpdateNow};
use OptimState::ExpAvg;

/// The numbers of one Lion update.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LionStep {
    /// Learning rate of this step.
    pub lr: f32,
    /// Share of the average in the direction of the update.
    pub beta1: f32,
    /// Decay of the average.
    pub beta2: f32,
    /// Decoupled decay; 0 for parameters that do not decay.
    pub weight_decay: f32,
    /// Factor of the gradient (clipping).
    pub grad_scale: f32,
}

impl Optimizer for LionStep {
    const STATES: &'static [OptimState] = &[ExpAvg];
    const KEYS: &'static [(&'static str, f64)] = &[("beta1", 0.9), ("beta2", 0.99)];

    fn new(hyper: &Hyper, now: &UpdateNow) -> Self {
        LionStep {
            lr: now.lr as f32,
            beta1: hyper.beta1 as f32,
            beta2: hyper.beta2 as f32,
            weight_decay: if now.decays { hyper.weight_decay as f32 } else { 0.0 },
            grad_scale: now.grad_scale,
        }
    }

    fn scalars(&self) -> Scalars {
        let decay = 1.0 - self.lr * self.weight_decay;
        Scalars::from_slice(&[self.grad_scale, decay, 1.0 - self.beta1, 1.0 - self.beta2, self.lr])
    }

    fn element(&self, weight: &mut f64, states: &mut OptimStates<f64>, grad: f64) {
        let (beta1, beta2) = (f64::from(self.beta1), f64::from(self.beta2));
        let (g, m) = (grad * f64::from(self.grad_scale), states[ExpAvg]);
        let direction = beta1 * m + (1.0 - beta1) * g;
        let sign = if direction == 0.0 { 0.0 } else { direction.signum() };
        *weight -= f64::from(self.lr) * (sign + f64::from(self.weight_decay) * *weight);
        states[ExpAvg] = beta2 * m + (1.0 - beta2) * g;
    }
}
