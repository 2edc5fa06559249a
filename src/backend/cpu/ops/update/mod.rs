//! An optimizer's update of a slice: cut into tasks, computed by the optimizer's own kernel, rounded beside.
//! A file per optimizer. Must not know: views.

mod adamw;
mod lion;
mod sgd;
#[cfg(test)]
mod tests;

use crate::backend::cpu::CpuDevice;
use crate::backend::cpu::element::Element;
use crate::backend::cpu::host::Shared;
use crate::backend::cpu::simd::convert;
use crate::optimizers::{OptimStates, UpdateStep};
use half::bf16;

/// Elements of one task.
const TASK_NUMEL: usize = 16 * 1024;

pub fn update<G: Element>(
    device: &CpuDevice,
    master: &mut [f32],
    states: OptimStates<&mut [f32]>,
    grad: &[G],
    step: &UpdateStep,
    param: Option<&mut [bf16]>,
) {
    let numel = master.len();
    assert_eq!(grad.len(), numel, "gradient of a slice of {numel}");
    for (state, values) in states.iter() {
        assert_eq!(values.len(), numel, "{} of a slice of {numel}", state.name());
    }
    let (master, states, param) = (Shared::new(master), states.map(Shared::new), param.map(Shared::new));
    if let Some(param) = &param {
        assert_eq!(param.numel(), numel, "bf16 parameters of a slice of {numel}");
    }
    device.for_each_task(numel.div_ceil(TASK_NUMEL), |task| {
        let start = task * TASK_NUMEL;
        let n = TASK_NUMEL.min(numel - start);
        // SAFETY: elements belong to one task each.
        let (master, states) =
            unsafe { (master.part(start, n), states.each_ref().map(|state| state.part(start, n))) };
        let grad = &grad[start..][..n];
        match step {
            UpdateStep::Adamw(step) => adamw::update(master, states, grad, step),
            UpdateStep::Lion(step) => lion::update(master, states, grad, step),
            UpdateStep::Sgd(step) => sgd::update(master, states, grad, step),
        }
        if let Some(param) = &param {
            // SAFETY: as above.
            convert(unsafe { param.part(start, n) }, master);
        }
    });
}
