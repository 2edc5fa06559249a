//! Causal attention: tiles of the kernels' kinds, and the shared memory that they take.

use super::{CHUNK, THREADS, int, kernel};
use crate::backend::cuda::{CudaDevice, Grid};
use crate::backend::ops::AttentionShape;
use crate::backend::{View, ViewMut};
use crate::dtype::DType;

/// Most channels of a head.
pub const MAX_D_HEAD: usize = 128;

/// Rows of a block: `ROWS` of kernels/tiles.cuh.
const ROWS: usize = 64;

/// How the kernels of a type and a number of channels work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tiles {
    /// Channels of a tile.
    padded: usize,
    /// Rows of the tiles that go by.
    n: usize,
    /// Threads of a block.
    threads: usize,
    /// Elements from one row of a tile to the next.
    stride: usize,
    /// Elements of shared memory that a left operand passes through.
    scratch: usize,
    /// Bytes of an element.
    bytes: usize,
}

impl Tiles {
    /// # Panics
    /// Where a head has more than [`MAX_D_HEAD`] channels.
    fn of(dtype: DType, d_head: usize) -> Self {
        let padded = [32, 64, MAX_D_HEAD].into_iter().find(|&padded| d_head <= padded);
        let padded = padded.unwrap_or_else(|| panic!("heads of {d_head} channels; at most {MAX_D_HEAD} on CUDA"));
        let bytes = dtype.bytes();
        let n = if dtype == DType::Bf16 && padded == 128 { 32 } else { 64 };
        // 16 bytes more than the channels or columns.
        let (threads, scratch) = if dtype == DType::Bf16 { (128, 0) } else { (THREADS, ROWS * (n + 16 / bytes)) };
        Tiles { padded, n, threads, stride: padded + 16 / bytes, scratch, bytes }
    }

    /// The kernel, and a grid of a block for each of `items` items that has so many tiles of its own and that go by.
    fn launch(self, name: &str, dtype: DType, items: usize, own: usize, passing: usize) -> (String, Grid) {
        let shared_bytes = ((own * ROWS + passing * self.n) * self.stride + self.scratch) * self.bytes;
        let grid = Grid { blocks: int(items) as u32, threads: self.threads as u32, shared_bytes: shared_bytes as u32 };
        (format!("{}_{}", kernel(name, dtype), self.padded), grid)
    }
}

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
    let (kernel, grid) = Tiles::of(qkv.dtype(), shape.d_head).launch("attention_forward", qkv.dtype(), items, 1, 2);
    let AttentionShape { b, t, n_heads, n_kv_heads, d_head } = shape;
    device
        .launch(&kernel, grid)
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
        .launch(&kernel("attention_delta", qkv.dtype()), device.blocks((needed * CHUNK).div_ceil(THREADS)))
        .write(delta.reborrow())
        .read(dout)
        .read(out)
        .int(int(b))
        .int(int(t))
        .int(int(n_heads))
        .int(int(d_head))
        .go();
    let tiles = Tiles::of(qkv.dtype(), d_head);
    for (name, heads) in [("attention_backward_q", n_heads), ("attention_backward_kv", n_kv_heads)] {
        let (kernel, grid) = tiles.launch(name, qkv.dtype(), b * heads * t.div_ceil(ROWS), 2, 2);
        device
            .launch(&kernel, grid)
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
    assert!(n_kv_heads > 0 && n_heads.is_multiple_of(n_kv_heads), "{n_heads} heads share {n_kv_heads} kv heads");
    let dtype = projections[0].dtype();
    for view in projections {
        assert_eq!((view.numel(), view.dtype()), (b * t * shape.qkv_row(), dtype), "projection of {shape:?}");
    }
    for view in outputs {
        assert_eq!((view.numel(), view.dtype()), (b * t * shape.out_row(), dtype), "output of {shape:?}");
    }
    assert_eq!((lse.numel(), lse.dtype()), (b * n_heads * t, DType::F32), "lse of {shape:?}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cuda::kernels;

    /// The table of tiles stands twice, here and where the kernels are made.
    #[test]
    fn tiles_are_those_of_the_kernels() {
        let text = kernels::FILES.iter().find(|(name, _)| *name == "attention.cu").expect("it is a file").1;
        for dtype in [DType::F32, DType::Bf16] {
            for (d_head, padded) in [(1, 32), (32, 32), (33, 64), (64, 64), (65, 128), (128, 128)] {
                let tiles = Tiles::of(dtype, d_head);
                assert_eq!(tiles.padded, padded);
                let line = format!("ATTENTION_KERNELS({}, {padded}, {})", dtype.name(), tiles.n);
                assert!(text.contains(&line), "no {line}");
            }
        }
    }

    /// 163 KiB are what sm_80 has. Devices of 8.6, 8.9 and 12.0 have less, and cannot take the widest f32 heads.
    #[test]
    fn tiles_fit_the_shared_memory_of_every_architecture() {
        for (dtype, d_head) in [(DType::F32, 128), (DType::Bf16, 128), (DType::F32, 64)] {
            let (_, grid) = Tiles::of(dtype, d_head).launch("attention_backward_q", dtype, 1, 2, 2);
            assert!(grid.shared_bytes <= 163 << 10, "{grid:?}");
        }
    }
}
