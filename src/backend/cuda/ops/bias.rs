//! Sums over the rows of a matrix: gradients of biases, and the second half of those of norms.

use crate::backend::cuda::CudaDevice;
use crate::backend::cuda::grid::{CHUNK, WARP, int};
use crate::backend::cuda::kernels::Kernel;
use crate::backend::{View, ViewMut};
use crate::dtype::DType;

/// Columns that a block adds at a time: `STRIPE` of kernels/sums.cu.
const STRIPE: usize = WARP * CHUNK;

/// Most chunks of rows whose sums are made apart; bounds the scratch at any number of rows.
const MAX_CHUNKS: usize = 256;

/// Fewest rows of such a chunk, and what its rows are a multiple of.
const MIN_CHUNK_ROWS: usize = 32;

/// Rows of a chunk: by shape alone.
pub(super) fn chunk_rows(rows: usize) -> usize {
    rows.div_ceil(MAX_CHUNKS).next_multiple_of(MIN_CHUNK_ROWS)
}

/// Scratch elements, f32, of one sum of `rows` rows of `c` columns.
pub fn work_numel(rows: usize, c: usize) -> usize {
    rows.div_ceil(chunk_rows(rows).max(1)) * c
}

/// Blocks of a kernel that makes the sums of all chunks.
pub(super) fn blocks(rows: usize, c: usize) -> usize {
    c.div_ceil(STRIPE) * rows.div_ceil(chunk_rows(rows).max(1))
}

/// `dbias = column sums of dout`. Overwrites `dbias`.
pub fn backward(
    device: &CudaDevice,
    dbias: ViewMut<'_>,    // (n_out)
    dout: View<'_>,        // (rows, n_out)
    mut work: ViewMut<'_>, // (work_numel) f32
    rows: usize,
    n_out: usize,
) {
    assert_eq!((dout.numel(), dbias.numel()), (rows * n_out, n_out), "dout and dbias of {rows} x {n_out}");
    assert!(
        work.numel() >= work_numel(rows, n_out) && work.dtype() == DType::F32,
        "scratch of {}",
        work.numel()
    );
    device
        .launch(Kernel::new("column_sums").of(dout.dtype()), device.blocks(blocks(rows, n_out)))
        .write(work.reborrow())
        .read(dout)
        .long(rows as i64)
        .int(int(n_out))
        .int(int(chunk_rows(rows)))
        .go();
    fold(device, dbias, work.as_view(), rows, n_out);
}

/// `out = sum over the chunks of rows of partials`, whose rows are `stride` elements apart. Overwrites `out`
/// (C).
pub(super) fn fold(device: &CudaDevice, out: ViewMut<'_>, partials: View<'_>, rows: usize, stride: usize) {
    let c = out.numel();
    device
        .launch(Kernel::new("fold_chunks").of(out.dtype()), device.blocks(c.div_ceil(WARP)))
        .write(out)
        .read(partials)
        .int(int(rows.div_ceil(chunk_rows(rows).max(1))))
        .long(stride as i64)
        .int(int(c))
        .go();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_all_rows_within_the_scratch() {
        for rows in [0, 1, 31, 32, 33, 4096, 8192, 8193, 1 << 20] {
            let chunk_rows = chunk_rows(rows);
            assert_eq!(chunk_rows % MIN_CHUNK_ROWS, 0);
            let chunks = work_numel(rows, 1);
            assert!(
                chunks <= MAX_CHUNKS && chunks * chunk_rows >= rows,
                "{rows} rows in {chunks} chunks of {chunk_rows}"
            );
            assert_eq!(blocks(rows, STRIPE + 1), 2 * chunks);
        }
    }
}
