//! Sums over rows, for the gradients of a norm's weights: rows are summed chunk by chunk, then the chunks'
//! sums are folded.
//!
//! Chunks follow from the shape alone, so the bits do not depend on the threads. Must not know: views, what
//! is summed.

use crate::backend::cpu::CpuDevice;
use crate::backend::cpu::element::Element;
use crate::backend::cpu::host::Shared;

/// Most chunks of rows that are summed apart; bounds the scratch at any number of rows.
const MAX_CHUNKS: usize = 64;

/// Fewest rows of such a chunk.
const MIN_CHUNK_ROWS: usize = 16;

/// Columns of one task of the fold over chunks.
const STRIPE: usize = 256;

/// Rows of a chunk.
pub fn chunk_rows(rows: usize) -> usize {
    rows.div_ceil(MAX_CHUNKS).max(MIN_CHUNK_ROWS)
}

/// Chunks of so many rows.
pub fn n_chunks(rows: usize) -> usize {
    rows.div_ceil(chunk_rows(rows))
}

/// Adds up the chunks' sums in their order, for the columns from `first` on. Overwrites `out`.
pub fn fold<G: Element>(
    device: &CpuDevice,
    out: &mut [G], // (C)
    sums: &[f32],  // (chunks, stride)
    stride: usize,
    first: usize,
) {
    let c = out.len();
    assert!(
        first + c <= stride && sums.len().is_multiple_of(stride.max(1)),
        "{c} columns from {first} on of {stride}"
    );
    let out = Shared::new(out);
    device.for_each_task(c.div_ceil(STRIPE), |task| {
        let start = task * STRIPE;
        let n = STRIPE.min(c - start);
        let mut total = [0.0f32; STRIPE];
        for chunk in sums.chunks_exact(stride) {
            total.iter_mut().zip(&chunk[first + start..][..n]).for_each(|(total, x)| *total += x);
        }
        // SAFETY: columns belong to one task each.
        let out = unsafe { out.part(start, n) };
        out.iter_mut().zip(total).for_each(|(out, total)| *out = G::store(total));
    });
}
