//! Kernels without neighbours.

use super::{kernel, kernel_of_two};
use crate::backend::cuda::CudaDevice;
use crate::backend::{View, ViewMut};
use crate::dtype::DType;

/// Overwrites `out` (n).
pub fn gelu_forward(device: &CudaDevice, out: ViewMut<'_>, inp: View<'_>) {
    let n = same_shape(&out, inp);
    let grid = device.grid_over(n);
    device.launch(&kernel("gelu_forward", inp.dtype()), grid).write(out).read(inp).long(n as i64).go();
}

/// Multiplies `dout_to_dinp` (n) by the derivative at `inp` (n).
pub fn gelu_backward(device: &CudaDevice, dout_to_dinp: ViewMut<'_>, inp: View<'_>) {
    let n = same_shape(&dout_to_dinp, inp);
    let grid = device.grid_over(n);
    device.launch(&kernel("gelu_backward", inp.dtype()), grid).write(dout_to_dinp).read(inp).long(n as i64).go();
}

/// Overwrites `out` (n).
pub fn add(device: &CudaDevice, out: ViewMut<'_>, a: View<'_>, b: View<'_>) {
    let n = same_shape(&out, a);
    assert_eq!((b.numel(), b.dtype()), (n, a.dtype()), "a and b");
    device.launch(&kernel("add", a.dtype()), device.grid_over(n)).write(out).read(a).read(b).long(n as i64).go();
}

/// Adds to `out` (n) f32.
pub fn accumulate(device: &CudaDevice, out: ViewMut<'_>, inp: View<'_>) {
    let n = out.numel();
    assert_eq!((inp.numel(), out.dtype()), (n, DType::F32), "elements of a sum and its type");
    device.launch(&kernel("accumulate", inp.dtype()), device.grid_over(n)).write(out).read(inp).long(n as i64).go();
}

/// Overwrites `out` (n).
pub fn cast(device: &CudaDevice, out: ViewMut<'_>, inp: View<'_>) {
    let n = out.numel();
    assert_eq!(inp.numel(), n, "elements of output and input");
    let kernel = kernel_of_two("cast", out.dtype(), inp.dtype());
    device.launch(&kernel, device.grid_over(n)).write(out).read(inp).long(n as i64).go();
}

/// Elements of both, which have one type.
fn same_shape(out: &ViewMut<'_>, inp: View<'_>) -> usize {
    assert_eq!((out.numel(), out.dtype()), (inp.numel(), inp.dtype()), "output and input");
    inp.numel()
}
