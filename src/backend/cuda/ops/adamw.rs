//! The AdamW update of a slice.

use crate::backend::cuda::CudaDevice;
use crate::backend::cuda::kernels::Kernel;
use crate::backend::ops::AdamwStep;
use crate::backend::{View, ViewMut};
use crate::dtype::DType;

/// Updates `master`, `m`, `v`; overwrites `param` with the rounded master.
pub fn adamw(
    device: &CudaDevice,
    master: ViewMut<'_>, // (n) f32
    m: ViewMut<'_>,      // (n) f32
    v: ViewMut<'_>,      // (n) f32
    grad: View<'_>,      // (n)
    step: &AdamwStep,
    param: Option<ViewMut<'_>>, // (n) bf16
) {
    let n = master.numel();
    assert_eq!((m.numel(), v.numel(), grad.numel()), (n, n, n), "m, v and gradient of a slice of {n}");
    assert_eq!([master.dtype(), m.dtype(), v.dtype()], [DType::F32; 3], "state of the optimizer");
    if let Some(param) = &param {
        assert_eq!((param.numel(), param.dtype()), (n, DType::Bf16), "rounded parameters of a slice of {n}");
    }
    // Products that are the same for all elements, as the CPU's kernel works them out.
    device
        .launch(Kernel::new("adamw").of(grad.dtype()), device.grid_over(n))
        .write(master)
        .write(m)
        .write(v)
        .read(grad)
        .write_or_null(param)
        .long(n as i64)
        .float(step.grad_scale)
        .float(1.0 - step.lr * step.weight_decay)
        .float(1.0 - step.beta1)
        .float(step.beta2)
        .float(1.0 - step.beta2)
        .float(step.lr / step.bias_correction1)
        .float(step.bias_correction2.sqrt())
        .float(step.eps)
        .go();
}
