//! The update of SGD, with and without momentum. Must not know: views, tasks.

use crate::backend::cpu::element::Element;
use crate::backend::cpu::simd::simd;
use crate::optimizers::sgd::SgdStep;
use crate::optimizers::{OptimState, OptimStates};

pub fn update<G: Element>(
    master: &mut [f32],
    mut states: OptimStates<&mut [f32]>,
    grad: &[G],
    step: &SgdStep,
) {
    match states.take(OptimState::MomentumBuffer) {
        Some(buffer) => with_momentum(master, buffer, grad, step),
        None => plain(master, grad, step),
    }
}

simd! {
    fn with_momentum<G: Element>(master: &mut [f32], buffer: &mut [f32], grad: &[G], step: &SgdStep) {
        let (decay, momentum) = (1.0 - step.lr * step.weight_decay, step.momentum);
        for ((p, sum), &g) in master.iter_mut().zip(buffer).zip(grad) {
            let g = g.load() * step.grad_scale;
            *sum = momentum.mul_add(*sum, g);
            let direction = if step.nesterov { momentum.mul_add(*sum, g) } else { *sum };
            *p = *p * decay - step.lr * direction;
        }
    }
}

simd! {
    fn plain<G: Element>(master: &mut [f32], grad: &[G], step: &SgdStep) {
        let decay = 1.0 - step.lr * step.weight_decay;
        for (p, &g) in master.iter_mut().zip(grad) {
            *p = *p * decay - step.lr * (g.load() * step.grad_scale);
        }
    }
}
