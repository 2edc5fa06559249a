//! Causal attention on the device.

use super::tiles::{ROWS, Tiles};
use crate::backend::cuda::CudaDevice;
use crate::backend::cuda::grid::{CHUNK, THREADS, int};
use crate::backend::cuda::kernels::Kernel;
use crate::backend::ops::AttentionShape;
use crate::backend::{View, ViewMut};
use crate::dtype::DType;

/// Scratch elements of [`backward`]: a number for each query and head.
pub fn backward_work_numel(shape: AttentionShape) -> usize {
    shape.b * shape.n_heads * shape.t
}

fn scale(shape: AttentionShape) -> f32 {
    1.0 / (shape.d_head as f32).sqrt()
}

/// Overwrites `out` and `lse`.
pub fn forward(
    device: &CudaDevice,
    out: ViewMut<'_>, // (B, T, H * D)
    lse: ViewMut<'_>, // (B, H, T) f32
    qkv: View<'_>,    // (B, T, (H + 2 Hkv) * D)
    shape: AttentionShape,
) {
    check(shape, [qkv], [out.as_view()], lse.as_view());
    let items = shape.b * shape.n_heads * shape.t.div_ceil(ROWS);
    let (kernel, grid) = Tiles::on(device.props().max_shared_bytes, qkv.dtype(), shape.d_head).launch(
        "attention_forward",
        items,
        1,
        2,
    );
    let AttentionShape { b, t, n_heads, n_kv_heads, d_head } = shape;
    device
        .launch(kernel, grid)
        .write(out)
        .write(lse)
        .read(qkv)
        .int(int(b))
        .int(int(t))
        .int(int(n_heads))
        .int(int(n_kv_heads))
        .int(int(d_head))
        .float(scale(shape))
        .go();
}

/// Overwrites `dqkv`.
#[allow(clippy::too_many_arguments)]
pub fn backward(
    device: &CudaDevice,
    mut dqkv: ViewMut<'_>, // (B, T, (H + 2 Hkv) * D)
    dout: View<'_>,        // (B, T, H * D)
    qkv: View<'_>,         // (B, T, (H + 2 Hkv) * D)
    out: View<'_>,         // (B, T, H * D)
    lse: View<'_>,         // (B, H, T) f32
    work: ViewMut<'_>,     // (B, H, T) f32
    shape: AttentionShape,
) {
    check(shape, [qkv, dqkv.as_view()], [dout, out], lse);
    let AttentionShape { b, t, n_heads, n_kv_heads, d_head } = shape;
    let needed = backward_work_numel(shape);
    assert!(work.numel() >= needed, "scratch of {} elements, {needed} needed", work.numel());
    let mut delta = work.range(0..needed);
    device
        .launch(
            Kernel::new("attention_delta").of(qkv.dtype()),
            device.blocks((needed * CHUNK).div_ceil(THREADS)),
        )
        .write(delta.reborrow())
        .read(dout)
        .read(out)
        .int(int(b))
        .int(int(t))
        .int(int(n_heads))
        .int(int(d_head))
        .go();
    let tiles = Tiles::on(device.props().max_shared_bytes, qkv.dtype(), d_head);
    for (name, heads) in [("attention_backward_q", n_heads), ("attention_backward_kv", n_kv_heads)] {
        let (kernel, grid) = tiles.launch(name, b * heads * t.div_ceil(ROWS), 2, 2);
        device
            .launch(kernel, grid)
            .write(dqkv.reborrow())
            .read(dout)
            .read(qkv)
            .read(lse)
            .read(delta.as_view())
            .int(int(b))
            .int(int(t))
            .int(int(n_heads))
            .int(int(n_kv_heads))
            .int(int(d_head))
            .float(scale(shape))
            .go();
    }
}

/// Projections and outputs of one type.
fn check<const P: usize, const O: usize>(
    shape: AttentionShape,
    projections: [View<'_>; P],
    outputs: [View<'_>; O],
    lse: View<'_>,
) {
    let AttentionShape { b, t, n_heads, n_kv_heads, .. } = shape;
    assert!(
        n_kv_heads > 0 && n_heads.is_multiple_of(n_kv_heads),
        "{n_heads} heads share {n_kv_heads} kv heads"
    );
    let dtype = projections[0].dtype();
    for view in projections {
        assert_eq!((view.numel(), view.dtype()), (b * t * shape.qkv_row(), dtype), "projection of {shape:?}");
    }
    for view in outputs {
        assert_eq!((view.numel(), view.dtype()), (b * t * shape.out_row(), dtype), "output of {shape:?}");
    }
    assert_eq!((lse.numel(), lse.dtype()), (b * n_heads * t, DType::F32), "lse of {shape:?}");
}
