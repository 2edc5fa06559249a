//! LayerNorm, alone and after an addition, and RMSNorm.

use super::bias;
use crate::backend::cuda::CudaDevice;
use crate::backend::cuda::grid::{Grid, THREADS, WARP, int};
use crate::backend::cuda::kernels::Kernel;
use crate::backend::{View, ViewMut};
use crate::dtype::DType;

/// Threads that share a row: whole warps, more for longer rows.
fn team_threads(c: usize) -> usize {
    match c {
        0..=1024 => WARP,
        1025..=4096 => 4 * WARP,
        _ => THREADS,
    }
}

/// A grid of a team for each row.
fn grid(device: &CudaDevice, rows: usize, c: usize) -> Grid {
    device.blocks((rows * team_threads(c)).div_ceil(THREADS))
}

/// Overwrites `out`, `mean` and `rstd`.
pub fn layer_norm_forward(
    device: &CudaDevice,
    out: ViewMut<'_>,  // (rows, C)
    mean: ViewMut<'_>, // (rows) f32
    rstd: ViewMut<'_>, // (rows) f32
    inp: View<'_>,     // (rows, C)
    weight: View<'_>,  // (C)
    bias: View<'_>,    // (C)
) {
    let (rows, c) = (mean.numel(), weight.numel());
    check(rows, c, [out.as_view(), inp], [weight, bias], [mean.as_view(), rstd.as_view()]);
    device
        .launch(Kernel::new("layer_norm_forward").of(inp.dtype()), grid(device, rows, c))
        .write(out)
        .write(mean)
        .write(rstd)
        .read(inp)
        .read(weight)
        .read(bias)
        .long(rows as i64)
        .int(int(c))
        .int(int(team_threads(c)))
        .go();
}

/// `sum = a + b`, then the norm of it. Overwrites `sum`, `out`, `mean` and `rstd`.
#[allow(clippy::too_many_arguments)]
pub fn add_layer_norm_forward(
    device: &CudaDevice,
    sum: ViewMut<'_>,  // (rows, C)
    out: ViewMut<'_>,  // (rows, C)
    mean: ViewMut<'_>, // (rows) f32
    rstd: ViewMut<'_>, // (rows) f32
    a: View<'_>,       // (rows, C)
    b: View<'_>,       // (rows, C)
    weight: View<'_>,  // (C)
    bias: View<'_>,    // (C)
) {
    let (rows, c) = (mean.numel(), weight.numel());
    check(rows, c, [sum.as_view(), out.as_view(), a, b], [weight, bias], [mean.as_view(), rstd.as_view()]);
    device
        .launch(Kernel::new("add_layer_norm_forward").of(a.dtype()), grid(device, rows, c))
        .write(sum)
        .write(out)
        .write(mean)
        .write(rstd)
        .read(a)
        .read(b)
        .read(weight)
        .read(bias)
        .long(rows as i64)
        .int(int(c))
        .int(int(team_threads(c)))
        .go();
}

/// Accumulates into `dinp`; overwrites `dweight` and `dbias`.
#[allow(clippy::too_many_arguments)]
pub fn layer_norm_backward(
    device: &CudaDevice,
    dinp: ViewMut<'_>,                  // (rows, C)
    [dweight, dbias]: [ViewMut<'_>; 2], // (C)
    dout: View<'_>,                     // (rows, C)
    inp: View<'_>,                      // (rows, C)
    weight: View<'_>,                   // (C)
    mean: View<'_>,                     // (rows) f32
    rstd: View<'_>,                     // (rows) f32
    mut work: ViewMut<'_>,              // (chunks, 2, C) f32
) {
    let (rows, c) = (mean.numel(), weight.numel());
    check(rows, c, [dinp.as_view(), dout, inp], [weight], [mean, rstd]);
    assert_eq!((dweight.numel(), dbias.numel()), (c, c), "elements of dweight and dbias");
    let needed = 2 * bias::work_numel(rows, c);
    assert!(work.numel() >= needed, "scratch of {} elements, {needed} needed", work.numel());
    device
        .launch(Kernel::new("layer_norm_backward").of(inp.dtype()), grid(device, rows, c))
        .write(dinp)
        .read(dout)
        .read(inp)
        .read(weight)
        .read(mean)
        .read(rstd)
        .long(rows as i64)
        .int(int(c))
        .int(int(team_threads(c)))
        .go();
    device
        .launch(Kernel::new("layer_norm_weight_sums").of(inp.dtype()), device.blocks(bias::blocks(rows, c)))
        .write(work.reborrow())
        .read(dout)
        .read(inp)
        .read(mean)
        .read(rstd)
        .long(rows as i64)
        .int(int(c))
        .int(int(bias::chunk_rows(rows)))
        .go();
    // A chunk's partial sums are those of dweight, then those of dbias.
    let partials = work.as_view();
    let second = c.min(partials.numel());
    bias::fold(device, dweight, partials, rows, 2 * c);
    bias::fold(device, dbias, partials.range(second..partials.numel()), rows, 2 * c);
}

/// Overwrites `out` and `rstd`.
pub fn rms_norm_forward(
    device: &CudaDevice,
    out: ViewMut<'_>,  // (rows, C)
    rstd: ViewMut<'_>, // (rows) f32
    inp: View<'_>,     // (rows, C)
    weight: View<'_>,  // (C)
    eps: f32,
) {
    let (rows, c) = (rstd.numel(), weight.numel());
    check(rows, c, [out.as_view(), inp], [weight], [rstd.as_view()]);
    device
        .launch(Kernel::new("rms_norm_forward").of(inp.dtype()), grid(device, rows, c))
        .write(out)
        .write(rstd)
        .read(inp)
        .read(weight)
        .long(rows as i64)
        .int(int(c))
        .float(eps)
        .int(int(team_threads(c)))
        .go();
}

/// Accumulates into `dinp`; overwrites `dweight`.
#[allow(clippy::too_many_arguments)]
pub fn rms_norm_backward(
    device: &CudaDevice,
    dinp: ViewMut<'_>,     // (rows, C)
    dweight: ViewMut<'_>,  // (C)
    dout: View<'_>,        // (rows, C)
    inp: View<'_>,         // (rows, C)
    weight: View<'_>,      // (C)
    rstd: View<'_>,        // (rows) f32
    mut work: ViewMut<'_>, // (chunks, C) f32
) {
    let (rows, c) = (rstd.numel(), weight.numel());
    check(rows, c, [dinp.as_view(), dout, inp], [weight], [rstd]);
    assert_eq!(dweight.numel(), c, "elements of dweight");
    let needed = bias::work_numel(rows, c);
    assert!(work.numel() >= needed, "scratch of {} elements, {needed} needed", work.numel());
    device
        .launch(Kernel::new("rms_norm_backward").of(inp.dtype()), grid(device, rows, c))
        .write(dinp)
        .read(dout)
        .read(inp)
        .read(weight)
        .read(rstd)
        .long(rows as i64)
        .int(int(c))
        .int(int(team_threads(c)))
        .go();
    device
        .launch(Kernel::new("rms_norm_weight_sums").of(inp.dtype()), device.blocks(bias::blocks(rows, c)))
        .write(work.reborrow())
        .read(dout)
        .read(inp)
        .read(rstd)
        .long(rows as i64)
        .int(int(c))
        .int(int(bias::chunk_rows(rows)))
        .go();
    bias::fold(device, dweight, work.as_view(), rows, c);
}

/// Matrices (rows, C) and vectors (C) of one type, statistics (rows) in f32.
fn check<const M: usize, const V: usize, const S: usize>(
    rows: usize,
    c: usize,
    matrices: [View<'_>; M],
    vectors: [View<'_>; V],
    statistics: [View<'_>; S],
) {
    let dtype = matrices[0].dtype();
    for view in matrices {
        assert_eq!((view.numel(), view.dtype()), (rows * c, dtype), "norm of {rows} x {c}");
    }
    for view in vectors {
        assert_eq!((view.numel(), view.dtype()), (c, dtype), "norm of {rows} x {c}");
    }
    for view in statistics {
        assert_eq!((view.numel(), view.dtype()), (rows, DType::F32), "norm of {rows} x {c}");
    }
}
