//! The AdamW update, in PyTorch's order of operations. Must not know: views, tasks.

use crate::backend::cpu::element::Element;
use crate::backend::cpu::simd::simd;
use crate::optimizers::adamw::AdamwStep;
use crate::optimizers::{OptimState, OptimStates};

pub fn update<G: Element>(master: &mut [f32], states: OptimStates<&mut [f32]>, grad: &[G], step: &AdamwStep) {
    let [m, v] = states.named([OptimState::ExpAvg, OptimState::ExpAvgSq]);
    kernel(master, m, v, grad, step);
}

simd! {
    fn kernel<G: Element>(master: &mut [f32], m: &mut [f32], v: &mut [f32], grad: &[G], step: &AdamwStep) {
        let decay = 1.0 - step.lr * step.weight_decay;
        let (one_minus_beta1, one_minus_beta2) = (1.0 - step.beta1, 1.0 - step.beta2);
        let step_size = step.lr / step.bias_correction1;
        let bias_correction2_sqrt = step.bias_correction2.sqrt();
        for (((p, m), v), &g) in master.iter_mut().zip(m).zip(v).zip(grad) {
            let g = g.load() * step.grad_scale;
            *m = one_minus_beta1.mul_add(g - *m, *m);
            *v = (one_minus_beta2 * g).mul_add(g, *v * step.beta2);
            let denom = v.sqrt() / bias_correction2_sqrt + step.eps;
            *p = *p * decay - step_size * *m / denom;
        }
    }
}
