//! The classifier's end: loss and gradient of the logits.

use crate::backend::cuda::CudaDevice;
use crate::backend::cuda::grid::{CHUNK, Grid, WARP, int};
use crate::backend::cuda::kernels::Kernel;
use crate::backend::{View, ViewMut};
use crate::dtype::DType;

/// Most threads of a block: `CLASSIFIER_THREADS` of kernels/cross_entropy.cu.
const MAX_THREADS: usize = 1024;

/// Blocks that a multiprocessor runs at once.
const BLOCKS_PER_MULTIPROCESSOR: usize = 2;

/// Overwrites `losses`, and `logits` where there is a scale.
pub fn cross_entropy(
    device: &CudaDevice,
    logits: ViewMut<'_>, // (rows, V) f32
    losses: ViewMut<'_>, // (rows) f32
    targets: View<'_>,   // (rows) u32
    dlogits_scale: Option<f32>,
) {
    let rows = targets.numel();
    assert_eq!(losses.numel(), rows, "losses of {rows} targets");
    assert_eq!((logits.dtype(), losses.dtype(), targets.dtype()), (DType::F32, DType::F32, DType::U32));
    if rows == 0 {
        return;
    }
    assert!(logits.numel().is_multiple_of(rows), "{} logits in {rows} rows", logits.numel());
    let vocab = logits.numel() / rows;
    let threads = vocab.div_ceil(CHUNK).next_multiple_of(WARP).min(MAX_THREADS);
    let most =
        device.props().n_multiprocessors as usize * BLOCKS_PER_MULTIPROCESSOR * (MAX_THREADS / threads);
    device
        .launch(Kernel::new("cross_entropy"), Grid::row(rows.min(most) as u32, threads as u32))
        .write(logits)
        .write(losses)
        .read(targets)
        .long(rows as i64)
        .int(int(vocab))
        .float(dlogits_scale.unwrap_or(0.0))
        .int(i32::from(dlogits_scale.is_some()))
        .go();
}
