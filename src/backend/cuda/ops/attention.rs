//! Causal attention: which tiles the kernels work in, by element type, channels of a head, and shared memory of the device.

use super::{CHUNK, THREADS, int};
use crate::backend::cuda::kernels::Kernel;
use crate::backend::cuda::{CudaDevice, Grid};
use crate::backend::ops::AttentionShape;
use crate::backend::{View, ViewMut};
use crate::dtype::DType;

/// Most channels of a head.
pub const MAX_D_HEAD: usize = 128;

/// Rows of a block: `ROWS` of kernels/tiles.cuh.
const ROWS: usize = 64;

/// The tiles that there are kernels for, `ATTENTION_KERNELS` of kernels/attention.cu: type, channels, rows of the tiles that go
/// by. Of two that a head fits into the first is faster; the second takes less shared memory.
const MADE: [(DType, usize, usize); 7] = [
    (DType::F32, 32, 64),
    (DType::F32, 64, 64),
    (DType::F32, 128, 64),
    (DType::F32, 128, 16),
    (DType::Bf16, 32, 64),
    (DType::Bf16, 64, 64),
    (DType::Bf16, 128, 32),
];

/// How the kernels of a type and a number of channels work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tiles {
    dtype: DType,
    /// Channels of a tile.
    channels: usize,
    /// Rows of the tiles that go by.
    rows: usize,
}

impl Tiles {
    /// The first ones that a head and the shared memory of a block allow; None where there are none.
    fn of(dtype: DType, d_head: usize, max_shared_bytes: u32) -> Option<Self> {
        let made = MADE.map(|(dtype, channels, rows)| Tiles { dtype, channels, rows }).into_iter();
        let channels = made.clone().find(|tiles| tiles.dtype == dtype && d_head <= tiles.channels)?.channels;
        let mut alike = made.filter(|tiles| tiles.dtype == dtype && tiles.channels == channels);
        alike.find(|tiles| tiles.most_shared_bytes() <= max_shared_bytes as usize)
    }

    /// # Panics
    /// Where there are none: a deck whose heads have more than [`MAX_D_HEAD`] channels is refused before, and so is a
    /// device that has less than [`shared_bytes_needed`].
    #[track_caller]
    fn on(device: &CudaDevice, dtype: DType, d_head: usize) -> Self {
        let max_shared_bytes = device.props().max_shared_bytes;
        Self::of(dtype, d_head, max_shared_bytes).unwrap_or_else(|| {
            panic!("no attention over {} heads of {d_head} channels in {max_shared_bytes} bytes", dtype.name())
        })
    }

    /// Dynamic shared memory of a kernel that has so many tiles of its own and that go by.
    fn shared_bytes(self, own: usize, passing: usize) -> usize {
        // 16 bytes more than the channels or rows.
        let bytes = self.dtype.bytes();
        let gap = 16 / bytes;
        // f32 factors of a product pass through shared memory.
        let scratch = if self.dtype == DType::F32 { ROWS * (self.rows + gap) } else { 0 };
        ((own * ROWS + passing * self.rows) * (self.channels + gap) + scratch) * bytes
    }

    /// Shared memory of the kernel that takes most: that of keys and values, which has two f32 of each query besides.
    fn most_shared_bytes(self) -> usize {
        self.shared_bytes(2, 2) + 2 * self.rows * DType::F32.bytes()
    }

    /// The kernel, and a grid of a block for each of `items` items.
    fn launch(self, name: &'static str, items: usize, own: usize, passing: usize) -> (Kernel, Grid) {
        let threads = if self.dtype == DType::Bf16 { THREADS / 2 } else { THREADS } as u32;
        let shared_bytes = self.shared_bytes(own, passing) as u32;
        let kernel = Kernel::new(name).of(self.dtype).with_tile(self.channels, self.rows);
        (kernel, Grid { blocks: int(items) as u32, threads, shared_bytes })
    }
}

/// Shared memory that a block must be able to have, so that there are tiles for every head.
pub fn shared_bytes_needed() -> u32 {
    let least = |&(dtype, channels, _): &(DType, usize, usize)| {
        let alike = MADE.into_iter().filter(|made| (made.0, made.1) == (dtype, channels));
        alike.map(|(dtype, channels, rows)| Tiles { dtype, channels, rows }.most_shared_bytes()).min()
    };
    MADE.iter().filter_map(least).max().expect("the table is not empty") as u32
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
    let (kernel, grid) = Tiles::on(device, qkv.dtype(), shape.d_head).launch("attention_forward", items, 1, 2);
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
        .launch(Kernel::new("attention_delta").of(qkv.dtype()), device.blocks((needed * CHUNK).div_ceil(THREADS)))
        .write(delta.reborrow())
        .read(dout)
        .read(out)
        .int(int(b))
        .int(int(t))
        .int(int(n_heads))
        .int(int(d_head))
        .go();
    let tiles = Tiles::on(device, qkv.dtype(), d_head);
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
        let lines = text.lines().filter(|line| line.starts_with("ATTENTION_KERNELS("));
        let listed =
            MADE.map(|(dtype, channels, rows)| format!("ATTENTION_KERNELS({}, {channels}, {rows})", dtype.name()));
        assert_eq!(lines.collect::<Vec<_>>(), listed);
    }

    #[test]
    fn tiles_have_the_channels_of_a_head_and_the_rows_that_fit() {
        let of = |dtype, d_head, kib: u32| Tiles::of(dtype, d_head, kib << 10).map(|t| (t.channels, t.rows));
        for (d_head, channels) in [(1, 32), (32, 32), (33, 64), (64, 64)] {
            assert_eq!([99, 163].map(|kib| of(DType::F32, d_head, kib)), [Some((channels, 64)); 2]);
            assert_eq!([99, 163].map(|kib| of(DType::Bf16, d_head, kib)), [Some((channels, 64)); 2]);
        }
        for d_head in [65, 80, 96, 128] {
            assert_eq!([99, 163].map(|kib| of(DType::F32, d_head, kib)), [Some((128, 16)), Some((128, 64))]);
            assert_eq!([99, 163].map(|kib| of(DType::Bf16, d_head, kib)), [Some((128, 32)); 2]);
        }
        assert_eq!((of(DType::F32, 129, 227), of(DType::F32, 128, 64)), (None, None));
    }

    /// What a block may have, by CUDA's table of compute capabilities: 99 KiB on 8.6, 8.9, 12.0 and 12.1; 163 KiB on 8.0 and 8.7;
    /// 227 KiB on 9.0, 10.0, 10.3 and 11.0.
    #[test]
    fn every_device_from_8_0_on_has_what_attention_needs() {
        let needed = shared_bytes_needed();
        assert!(needed <= 99 << 10, "{needed} bytes");
        for dtype in [DType::F32, DType::Bf16] {
            assert!((1..=MAX_D_HEAD).all(|d_head| Tiles::of(dtype, d_head, needed).is_some()));
        }
        assert_eq!(Tiles::of(DType::F32, 128, needed - 1), None);
    }
}
