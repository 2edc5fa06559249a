//! Final LayerNorm, tied head and loss of GPT-2: the last unit. Parameters: `[ln_f.weight, ln_f.bias, wte (V, C)]`. What
//! follows the norm is every family's.
//!
//! Logits exist for a chunk of rows at a time; in training each chunk's backward follows at once, so that the
//! parameters stay gathered from forward to backward and the logits are never whole.

use super::{Dims, LossIo};
use crate::backend::ops::LinearShape;
use crate::backend::{Buf, Device, Ops, View, ViewMut};
use crate::dtype::DType;
use crate::params::{Precision, SHARED_GRAD, TensorSpec};

/// Elements of one chunk of logits, about; the number of rows follows from the shape alone (rule 8).
const CHUNK_NUMEL: usize = 1 << 23;

/// Rows of one chunk of logits.
pub fn chunk_rows(dims: &Dims) -> usize {
    (CHUNK_NUMEL / dims.vocab).max(16).min(dims.rows())
}

/// Scratch of the visit, training or not.
pub fn work<D: Ops>(dims: &Dims, precision: Precision) -> Vec<TensorSpec> {
    let (rows, c) = (dims.rows(), dims.c);
    let activation = precision.activation;
    vec![
        TensorSpec::f32("ln_f.mean", rows),
        TensorSpec::f32("ln_f.rstd", rows),
        TensorSpec::new("ln_f.out", rows * c, activation),
        TensorSpec::f32("logits", chunk_rows(dims) * dims.vocab),
        TensorSpec::new("dln_f", rows * c, activation),
        TensorSpec::f32("layer_norm_work", D::layer_norm_work_numel(rows, c)),
        TensorSpec::f32("linear_work", chunk_work_numel::<D>(dims, precision)),
    ]
}

/// Scratch of the products of [`chunks`].
pub(super) fn chunk_work_numel<D: Ops>(dims: &Dims, precision: Precision) -> usize {
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

/// Writes the loss of each token; in training also every gradient of the head and of its input.
pub fn loss<D: Device>(dev: &D, dims: &Dims, params: &[View<'_>], io: LossIo<'_>) {
    let [ln_w, ln_b, wte] = params else { panic!("a head has 3 parameters, not {}", params.len()) };
    let [mean, rstd, ln, logits, dln, layer_norm_work, linear_work] = io.work else {
        panic!("a head has 7 work buffers")
    };
    let c = dims.c;
    let (x, mut backward) = (io.input, io.backward);
    dev.layer_norm_forward(ln.view_mut(), mean.view_mut(), rstd.view_mut(), x, *ln_w, *ln_b);

    let grad = backward.as_mut().map(|b| (b.scale, &mut b.grads[2]));
    let projection = Projection { normed: ln.view(), logits, dnormed: dln, work: linear_work };
    chunks(dev, dims, *wte, projection, io.targets, io.losses, grad);

    if let Some(mut b) = backward {
        let [dln_w, dln_b, _] = b.grads else { panic!("a head has 3 gradients") };
        dev.fill_bytes(b.dresidual.reborrow(), 0);
        dev.layer_norm_backward(
            b.dresidual,
            dln_w.view_mut().range(0..c),
            dln_b.view_mut().range(0..c),
            dln.view(),
            x,
            *ln_w,
            mean.view(),
            rstd.view(),
            layer_norm_work.view_mut(),
        );
    }
}

/// The buffers around the product with the output matrix.
pub(super) struct Projection<'a> {
    /// The normed rows, (rows, C).
    pub normed: View<'a>,
    /// A chunk of logits, (chunk_rows, V) f32.
    pub logits: &'a mut Buf,
    /// In training the gradient of the normed rows, (rows, C); overwritten.
    pub dnormed: &'a mut Buf,
    /// Scratch of the products.
    pub work: &'a mut Buf,
}

/// Chunk by chunk: logits, losses, and in training the gradients of the normed rows and of the output matrix. `grad` is the
/// factor of dlogits and where the matrix's gradient goes, f32 because chunks add up in it.
pub(super) fn chunks<D: Device>(
    dev: &D,
    dims: &Dims,
    weight: View<'_>, // (V, C)
    projection: Projection<'_>,
    targets: View<'_>,                 // (rows)
    mut losses: ViewMut<'_>,           // (rows)
    mut grad: Option<(f32, &mut Buf)>, // (V, C), padded
) {
    let (rows, c, vocab) = (dims.rows(), dims.c, dims.vocab);
    let Projection { normed, logits, dnormed, work } = projection;
    let step = chunk_rows(dims);
    for start in (0..rows).step_by(step) {
        let end = rows.min(start + step);
        let shape = LinearShape { rows: end - start, n_in: c, n_out: vocab };
        let normed = normed.range(start * c..end * c);
        let used = 0..(end - start) * vocab;
        dev.linear_forward(logits.view_mut().range(used.clone()), normed, weight, None, work.view_mut(), shape);
        dev.cross_entropy(
            logits.view_mut().range(used.clone()),
            losses.reborrow().range(start..end),
            targets.range(start..end),
            grad.as_ref().map(|(scale, _)| *scale),
        );
        if let Some((_, dweight)) = &mut grad {
            let dlogits = logits.view().range(used);
            let dnormed = dnormed.view_mut().range(start * c..end * c);
            dev.linear_backward_input(dnormed, dlogits, weight, work.view_mut(), shape);
            let dweight = dweight.view_mut().range(0..vocab * c);
            dev.linear_backward_weight(dweight, None, dlogits, normed, work.view_mut(), shape, start > 0);
        }
    }
}
