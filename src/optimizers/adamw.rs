//! AdamW (Loshchilov and Hutter, arXiv:1711.05101) in PyTorch's order of operations: the decay first
//! (`p *= 1 - lr * weight_decay`), then `p -= lr * m^ / (sqrt(v^) + eps)`.

use super::row::{Hyper, OptimState, OptimStates, Optimizer, Scalars, UpdateNow};
use OptimState::{ExpAvg, ExpAvgSq};

/// The numbers of one AdamW update.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamwStep {
    /// Learning rate of this step.
    pub lr: f32,
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the square root.
    pub eps: f32,
    /// Decoupled decay; 0 for parameters that do not decay.
    pub weight_decay: f32,
    /// `1 - beta1^step`, step counted from 1.
    pub bias_correction1: f32,
    /// `1 - beta2^step`.
    pub bias_correction2: f32,
    /// Factor of the gradient (clipping).
    pub grad_scale: f32,
}

impl Optimizer for AdamwStep {
    const STATES: &'static [OptimState] = &[ExpAvg, ExpAvgSq];
    const KEYS: &'static [(&'static str, f64)] = &[("beta1", 0.9), ("beta2", 0.95), ("eps", 1e-8)];

    fn new(hyper: &Hyper, now: &UpdateNow) -> Self {
        AdamwStep {
            lr: now.lr as f32,
            beta1: hyper.beta1 as f32,
            beta2: hyper.beta2 as f32,
            eps: hyper.eps as f32,
            weight_decay: if now.decays { hyper.weight_decay as f32 } else { 0.0 },
            bias_correction1: (1.0 - libm::pow(hyper.beta1, now.step as f64)) as f32,
            bias_correction2: (1.0 - libm::pow(hyper.beta2, now.step as f64)) as f32,
            grad_scale: now.grad_scale,
        }
    }

    fn scalars(&self) -> Scalars {
        // Products that are the same for all elements, as the CPU's kernel computes them.
        Scalars::from([
            self.grad_scale,
            1.0 - self.lr * self.weight_decay,
            1.0 - self.beta1,
            self.beta2,
            1.0 - self.beta2,
            self.lr / self.bias_correction1,
            self.bias_correction2.sqrt(),
            self.eps,
        ])
    }

    fn element(&self, weight: &mut f64, states: &mut OptimStates<f64>, grad: f64) {
        let (lr, beta1, beta2) = (f64::from(self.lr), f64::from(self.beta1), f64::from(self.beta2));
        let g = grad * f64::from(self.grad_scale);
        *weight *= 1.0 - lr * f64::from(self.weight_decay);
        states[ExpAvg] = beta1 * states[ExpAvg] + (1.0 - beta1) * g;
        states[ExpAvgSq] = beta2 * states[ExpAvgSq] + (1.0 - beta2) * g * g;
        let m_hat = states[ExpAvg] / f64::from(self.bias_correction1);
        let v_hat = states[ExpAvgSq] / f64::from(self.bias_correction2);
        *weight -= lr * m_hat / (v_hat.sqrt() + f64::from(self.eps));
    }
}
