//! The Lion update. Must not know: views, tasks.

use crate::backend::cpu::element::Element;
use crate::backend::cpu::simd::simd;
use crate::optimizers::lion::LionStep;
use crate::optimizers::{OptimState, OptimStates};

pub fn update<G: Element>(master: &mut [f32], states: OptimStates<&mut [f32]>, grad: &[G], step: &LionStep) {
    let [m] = states.named([OptimState::ExpAvg]);
    kernel(master, m, grad, step);
}

simd! {
    fn kernel<G: Element>(master: &mut [f32], m: &mut [f32], grad: &[G], step: &LionStep) {
        let decay = 1.0 - step.lr * step.weight_decay;
        let (one_minus_beta1, one_minus_beta2) = (1.0 - step.beta1, 1.0 - step.beta2);
        for ((p, m), &g) in master.iter_mut().zip(m).zip(grad) {
            let from_m = g.load() * step.grad_scale - *m;
            let direction = one_minus_beta1.mul_add(from_m, *m);
            *m = one_minus_beta2.mul_add(from_m, *m);
            let up = if direction > 0.0 { step.lr } else { 0.0 };
            let down = if direction < 0.0 { step.lr } else { 0.0 };
            *p = *p * decay - (up - down);
        }
    }
}
