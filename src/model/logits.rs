//! From normed rows to losses, as the head of every family ends: the product with the output matrix and
//! cross-entropy.
//!
//! Logits exist for a chunk of rows at a time; in training each chunk's backward follows at once, so that the
//! parameters stay gathered from forward to backward and the logits are never whole.

use super::visit::Dims;
use crate::backend::ops::LinearShape;
use crate::backend::{Ops, View, ViewMut};
use crate::dtype::DType;
use crate::params::{Precision, SHARED_GRAD};

/// Elements of one chunk of logits, about; the number of rows follows from the shape alone (rule 8).
const CHUNK_NUMEL: usize = 1 << 23;

/// Rows of one chunk of logits.
pub fn chunk_rows(dims: &Dims) -> usize {
    (CHUNK_NUMEL / dims.vocab).max(16).min(dims.rows())
}

/// Scratch of the products of [`chunks`].
pub fn work_numel<D: Ops>(dims: &Dims, precision: Precision) -> usize {
    let Precision { param, activation, .. } = precision;
    let shape = LinearShape { rows: chunk_rows(dims), n_in: dims.c, n_out: dims.vocab };
    [
        D::linear_forward_work_numel(shape, DType::F32, activation, param),
        D::linear_backward_input_work_numel(shape, activation, DType::F32, param),
        D::linear_backward_weight_work_numel(shape, SHARED_GRAD, DType::F32, activation),
    ]
    .into_iter()
    .fold(0, usize::max)
}

/// The buffers around the product with the output matrix.
pub struct Projection<'a> {
    /// The normed rows, (rows, C).
    pub normed: View<'a>,
    /// A chunk of logits, (chunk_rows, V) f32.
    pub logits: ViewMut<'a>,
    /// In training the gradient of the normed rows, (rows, C); overwritten.
    pub dnormed: ViewMut<'a>,
    /// Scratch of the products.
    pub work: ViewMut<'a>,
}

/// Chunk by chunk: logits, losses, and in training the gradients of the normed rows and of the output matrix.
/// `grad` is the factor of dlogits and where the matrix's gradient goes, f32 because chunks add up in it.
pub fn chunks<D: Ops>(
    dev: &D,
    dims: &Dims,
    weight: View<'_>, // (V, C)
    projection: Projection<'_>,
    targets: View<'_>,                    // (rows)
    mut losses: ViewMut<'_>,              // (rows)
    mut grad: Option<(f32, ViewMut<'_>)>, // (V, C)
) {
    let (rows, c, vocab) = (dims.rows(), dims.c, dims.vocab);
    let Projection { normed, mut logits, mut dnormed, mut work } = projection;
    let step = chunk_rows(dims);
    for start in (0..rows).step_by(step) {
        let end = rows.min(start + step);
        let shape = LinearShape { rows: end - start, n_in: c, n_out: vocab };
        let normed = normed.range(start * c..end * c);
        let used = 0..(end - start) * vocab;
        dev.linear_forward(
            logits.reborrow().range(used.clone()),
            normed,
            weight,
            None,
            work.reborrow(),
            shape,
        );
        dev.cross_entropy(
            logits.reborrow().range(used.clone()),
            losses.reborrow().range(start..end),
            targets.range(start..end),
            grad.as_ref().map(|(scale, _)| *scale),
        );
        if let Some((_, dweight)) = &mut grad {
            let dlogits = logits.as_view().range(used);
            let dnormed = dnormed.reborrow().range(start * c..end * c);
            dev.linear_backward_input(dnormed, dlogits, weight, work.reborrow(), shape);
            dev.linear_backward_weight(
                dweight.reborrow(),
                None,
                dlogits,
                normed,
                work.reborrow(),
                shape,
                start > 0,
            );
        }
    }
}
