//! Which tiles the attention kernels work in, by element type, channels of a head, and shared memory of the
//! device.

use crate::backend::cuda::grid::{Grid, THREADS, int};
use crate::backend::cuda::kernels::Kernel;
use crate::dtype::DType;

/// Most channels of a head.
pub const MAX_D_HEAD: usize = 128;

/// Rows of a block: `ROWS` of kernels/tiles.cuh.
pub(super) const ROWS: usize = 64;

/// The tiles that kernels are compiled for, `ATTENTION_KERNELS` of kernels/attention.cu: type, channels, rows
/// of the tiles that pass. Of two that a head fits into, the first is faster and the second takes less shared
/// memory.
const COMPILED_TILES: [(DType, usize, usize); 7] = [
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
pub(super) struct Tiles {
    dtype: DType,
    /// Channels of a tile.
    channels: usize,
    /// Rows of the tiles that pass.
    rows: usize,
}

impl Tiles {
    /// The first ones that a head and the shared memory of a block allow; None where there are none.
    fn of(dtype: DType, d_head: usize, max_shared_bytes: u32) -> Option<Self> {
        let compiled =
            COMPILED_TILES.map(|(dtype, channels, rows)| Tiles { dtype, channels, rows }).into_iter();
        let channels =
            compiled.clone().find(|tiles| tiles.dtype == dtype && d_head <= tiles.channels)?.channels;
        let mut alike = compiled.filter(|tiles| tiles.dtype == dtype && tiles.channels == channels);
        alike.find(|tiles| tiles.most_shared_bytes() <= max_shared_bytes as usize)
    }

    /// Those on a device whose blocks may have `max_shared_bytes`.
    ///
    /// # Panics
    /// Where there are none: a deck whose heads have more than [`MAX_D_HEAD`] channels is refused before, and
    /// so is a device that has less than [`shared_bytes_needed`].
    #[track_caller]
    pub(super) fn on(max_shared_bytes: u32, dtype: DType, d_head: usize) -> Self {
        Self::of(dtype, d_head, max_shared_bytes).unwrap_or_else(|| {
            panic!(
                "no attention over {} heads of {d_head} channels in {max_shared_bytes} bytes",
                dtype.name()
            )
        })
    }

    /// Dynamic shared memory of a kernel with `own` tiles that stay and `passing` tiles at a time that pass.
    fn shared_bytes(self, own: usize, passing: usize) -> usize {
        // 16 bytes more than the channels or rows.
        let bytes = self.dtype.bytes();
        let gap = 16 / bytes;
        // f32 factors of a product pass through shared memory.
        let scratch = if self.dtype == DType::F32 { ROWS * (self.rows + gap) } else { 0 };
        ((own * ROWS + passing * self.rows) * (self.channels + gap) + scratch) * bytes
    }

    /// Shared memory of the kernel that takes most: that of keys and values, which also has two f32 of each
    /// query.
    fn most_shared_bytes(self) -> usize {
        self.shared_bytes(2, 2) + 2 * self.rows * DType::F32.bytes()
    }

    /// The kernel, and a grid of a block for each of `items` items.
    pub(super) fn launch(
        self,
        name: &'static str,
        items: usize,
        own: usize,
        passing: usize,
    ) -> (Kernel, Grid) {
        let threads = if self.dtype == DType::Bf16 { THREADS / 2 } else { THREADS } as u32;
        let shared_bytes = self.shared_bytes(own, passing) as u32;
        let kernel = Kernel::new(name).of(self.dtype).with_tile(self.channels, self.rows);
        (kernel, Grid { blocks: int(items) as u32, threads, shared_bytes })
    }
}

/// Shared memory that blocks must be allowed, so that there are tiles for every head.
pub fn shared_bytes_needed() -> u32 {
    let least = |&(dtype, channels, _): &(DType, usize, usize)| {
        let alike = COMPILED_TILES.into_iter().filter(|tiles| (tiles.0, tiles.1) == (dtype, channels));
        alike.map(|(dtype, channels, rows)| Tiles { dtype, channels, rows }.most_shared_bytes()).min()
    };
    COMPILED_TILES.iter().filter_map(least).max().expect("the table is not empty") as u32
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
        let listed = COMPILED_TILES.map(|(dtype, channels, rows)| {
            format!("ATTENTION_KERNELS({}, {channels}, {rows})", dtype.name())
        });
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

    /// What a block may have, by CUDA's table of compute capabilities: 99 KiB on 8.6, 8.9, 12.0 and 12.1; 163
    /// KiB on 8.0 and 8.7; 227 KiB on 9.0, 10.0, 10.3 and 11.0.
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
