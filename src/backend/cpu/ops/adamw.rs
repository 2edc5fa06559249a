//! The AdamW update of a slice, in PyTorch's order of operations. Must not know: views.

use crate::backend::cpu::CpuDevice;
use crate::backend::cpu::element::Element;
use crate::backend::cpu::host::Shared;
use crate::backend::cpu::simd::{convert, simd};
use crate::backend::ops::AdamwStep;
use half::bf16;

/// Elements of one task.
const TASK_NUMEL: usize = 16 * 1024;

pub fn adamw<G: Element>(
    device: &CpuDevice,
    master: &mut [f32],
    m: &mut [f32],
    v: &mut [f32],
    grad: &[G],
    step: &AdamwStep,
    param: Option<&mut [bf16]>,
) {
    let numel = master.len();
    assert_eq!((m.len(), v.len(), grad.len()), (numel, numel, numel), "m, v and gradient of a slice of {numel}");
    let (master, m, v, param) = (Shared::new(master), Shared::new(m), Shared::new(v), param.map(Shared::new));
    if let Some(param) = &param {
        assert_eq!(param.numel(), numel, "bf16 parameters of a slice of {numel}");
    }
    device.for_each_task(numel.div_ceil(TASK_NUMEL), |task| {
        let start = task * TASK_NUMEL;
        let n = TASK_NUMEL.min(numel - start);
        // SAFETY: elements belong to one task each.
        let (master, m, v) = unsafe { (master.part(start, n), m.part(start, n), v.part(start, n)) };
        update(master, m, v, &grad[start..][..n], step);
        if let Some(param) = &param {
            // SAFETY: as above.
            convert(unsafe { param.part(start, n) }, master);
        }
    });
}

simd! {
    fn update<G: Element>(master: &mut [f32], m: &mut [f32], v: &mut [f32], grad: &[G], step: &AdamwStep) {
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

#[cfg(test)]
mod tests {
    use super::AdamwStep;
    use crate::backend::Ops;
    use crate::backend::cpu::host::test_memory::{buf_f32, read};
    use crate::backend::cpu::ops::test_support::*;
    use crate::backend::reference;

    fn step(n: i32) -> AdamwStep {
        AdamwStep {
            lr: 1e-2,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            weight_decay: 0.1,
            bias_correction1: 1.0 - 0.9f32.powi(n),
            bias_correction2: 1.0 - 0.95f32.powi(n),
            grad_scale: 0.5,
        }
    }

    #[test]
    fn three_steps_equal_the_reference_and_thread_counts_agree() {
        for n in [0, 1, 17, 40_003] {
            let (param, grad) = (random(n, 1), random(n, 2));
            let got = same_bits_on_1_2_3_threads(|device| {
                let (mut p, mut m, mut v) = (buf_f32(&param), buf_f32(&vec![0.0; n]), buf_f32(&vec![0.0; n]));
                for i in 1..=3 {
                    device.adamw(p.view_mut(), m.view_mut(), v.view_mut(), buf_f32(&grad).view(), &step(i), None);
                }
                vec![read(&p), read(&m), read(&v)]
            });
            let (mut p, mut m, mut v) = (wide(&param), vec![0.0; n], vec![0.0; n]);
            for i in 1..=3 {
                reference::adamw(&mut p, &mut m, &mut v, &wide(&grad), &step(i));
            }
            // A handful of roundings per step of numbers of size 1; m^/sqrt(v^) is about 1 and enters times lr.
            assert_close("param", &got[0], &p, 1e-6);
            assert_close("m", &got[1], &m, 1e-6);
            assert_close("v", &got[2], &v, 1e-6);
        }
    }

    #[test]
    fn a_zero_gradient_only_decays() {
        let (mut p, mut m, mut v) = (buf_f32(&[2.0]), buf_f32(&[0.0]), buf_f32(&[0.0]));
        device(1).adamw(p.view_mut(), m.view_mut(), v.view_mut(), buf_f32(&[0.0]).view(), &step(1), None);
        assert_eq!((read(&p), read(&m), read(&v)), (vec![2.0 * (1.0 - 1e-2 * 0.1)], vec![0.0], vec![0.0]));
    }
}
