//! Kernels without neighbours.

use crate::backend::cuda::CudaDevice;
use crate::backend::cuda::grid::int;
use crate::backend::cuda::kernels::Kernel;
use crate::backend::ops::Columns;
use crate::backend::{View, ViewMut};
use crate::dtype::DType;

/// Overwrites `out` (n).
pub fn gelu_forward(device: &CudaDevice, out: ViewMut<'_>, inp: View<'_>) {
    let n = same_shape(&out, inp);
    let grid = device.grid_over(n);
    device.launch(Kernel::new("gelu_forward").of(inp.dtype()), grid).write(out).read(inp).long(n as i64).go();
}

/// Multiplies `dout_to_dinp` (n) by the derivative at `inp` (n).
pub fn gelu_backward(device: &CudaDevice, dout_to_dinp: ViewMut<'_>, inp: View<'_>) {
    let n = same_shape(&dout_to_dinp, inp);
    let grid = device.grid_over(n);
    device
        .launch(Kernel::new("gelu_backward").of(inp.dtype()), grid)
        .write(dout_to_dinp)
        .read(inp)
        .long(n as i64)
        .go();
}

/// Overwrites `out` (n).
pub fn add(device: &CudaDevice, out: ViewMut<'_>, a: View<'_>, b: View<'_>) {
    let n = same_shape(&out, a);
    assert_eq!((b.numel(), b.dtype()), (n, a.dtype()), "a and b");
    device
        .launch(Kernel::new("add").of(a.dtype()), device.grid_over(n))
        .write(out)
        .read(a)
        .read(b)
        .long(n as i64)
        .go();
}

/// Adds to `out` (n) f32.
pub fn accumulate(device: &CudaDevice, out: ViewMut<'_>, inp: View<'_>) {
    let n = out.numel();
    assert_eq!((inp.numel(), out.dtype()), (n, DType::F32), "elements of a sum and its type");
    device
        .launch(Kernel::new("accumulate").of(inp.dtype()), device.grid_over(n))
        .write(out)
        .read(inp)
        .long(n as i64)
        .go();
}

/// Overwrites `out` (n).
pub fn cast(device: &CudaDevice, out: ViewMut<'_>, inp: View<'_>) {
    let n = out.numel();
    assert_eq!(inp.numel(), n, "elements of output and input");
    let kernel = Kernel::new("cast").of(out.dtype()).of(inp.dtype());
    device.launch(kernel, device.grid_over(n)).write(out).read(inp).long(n as i64).go();
}

/// Overwrites `n` columns of `out` (rows, to.row) with columns of `inp` (rows, from.row).
pub fn copy_columns(
    device: &CudaDevice,
    out: ViewMut<'_>,
    to: Columns,
    inp: View<'_>,
    from: Columns,
    n: usize,
) {
    let rows = rows_of(out.numel(), to.row);
    assert_eq!((inp.numel(), inp.dtype()), (rows * from.row, out.dtype()), "columns of {rows} rows");
    assert!(to.first + n <= to.row && from.first + n <= from.row, "{n} columns, {to:?}, {from:?}");
    if rows == 0 {
        return;
    }
    let (out_numel, inp_numel) = (out.numel(), inp.numel());
    device
        .launch(Kernel::new("copy_columns").of(out.dtype()), device.blocks_over_rows(rows, n))
        .write(out.range(to.first..out_numel))
        .read(inp.range(from.first..inp_numel))
        .long(rows as i64)
        .int(int(n))
        .int(int(to.row))
        .int(int(from.row))
        .go();
}

/// Overwrites `out` (rows, F); `gate_up` (rows, 2F).
pub fn swiglu_forward(device: &CudaDevice, out: ViewMut<'_>, gate_up: View<'_>, f: usize) {
    assert_eq!((gate_up.numel(), gate_up.dtype()), (2 * out.numel(), out.dtype()), "gates of rows of {f}");
    let rows = rows_of(out.numel(), f);
    let grid = device.blocks_over_rows(rows, f);
    device
        .launch(Kernel::new("swiglu_forward").of(out.dtype()), grid)
        .write(out)
        .read(gate_up)
        .long(rows as i64)
        .int(int(f))
        .go();
}

/// Overwrites `dgate_up` (rows, 2F).
pub fn swiglu_backward(
    device: &CudaDevice,
    dgate_up: ViewMut<'_>,
    dout: View<'_>,
    gate_up: View<'_>,
    f: usize,
) {
    let n = same_shape(&dgate_up, gate_up);
    assert_eq!((2 * dout.numel(), dout.dtype()), (n, gate_up.dtype()), "gates of rows of {f}");
    let rows = rows_of(dout.numel(), f);
    device
        .launch(Kernel::new("swiglu_backward").of(dout.dtype()), device.blocks_over_rows(rows, f))
        .write(dgate_up)
        .read(dout)
        .read(gate_up)
        .long(rows as i64)
        .int(int(f))
        .go();
}

fn rows_of(numel: usize, c: usize) -> usize {
    assert!(c > 0 && numel.is_multiple_of(c), "{numel} elements in rows of {c}");
    numel / c
}

/// Elements of both, which have one type.
fn same_shape(out: &ViewMut<'_>, inp: View<'_>) -> usize {
    assert_eq!((out.numel(), out.dtype()), (inp.numel(), inp.dtype()), "output and input");
    inp.numel()
}
