//! Final RMSNorm, head and loss of Llama: the last unit. Parameters: `[norm.weight, lm_head (V, C)]`, where a tied head is the
//! embedding. What follows the norm is every family's (`logits.rs`).

use super::Shape;
use crate::backend::{Device, Ops, View};
use crate::model::logits::{self, Projection};
use crate::model::{Dims, LossIo, dense};
use crate::params::{Precision, TensorSpec};

/// Scratch of the visit, training or not.
pub fn work<D: Ops>(dims: &Dims, precision: Precision) -> Vec<TensorSpec> {
    let (rows, c) = (dims.rows(), dims.c);
    vec![
        TensorSpec::f32("norm.rstd", rows),
        TensorSpec::new("norm.out", rows * c, precision.activation),
        TensorSpec::f32("logits", logits::chunk_rows(dims) * dims.vocab),
        TensorSpec::new("dnorm", rows * c, precision.activation),
        TensorSpec::f32("rms_norm_work", D::rms_norm_work_numel(rows, c)),
        TensorSpec::f32("linear_work", logits::work_numel::<D>(dims, precision)),
    ]
}

/// Writes the loss of each token; in training also every gradient of the head and of its input.
pub fn loss<D: Device>(dev: &D, dims: &Dims, shape: &Shape, params: &[View<'_>], io: LossIo<'_>) {
    let [norm_w, output] = params else { panic!("a head has 2 parameters, not {}", params.len()) };
    let [rstd, normed, logits, dnormed, rms_norm_work, linear_work] = io.work else {
        panic!("a head has 6 work buffers")
    };
    let (x, mut backward) = (io.input, io.backward);
    dev.rms_norm_forward(normed.view_mut(), rstd.view_mut(), x, *norm_w, shape.norm_eps);

    let grad = backward.as_mut().map(|b| (b.scale, &mut b.grads[1]));
    let projection = Projection { normed: normed.view(), logits, dnormed: &mut *dnormed, work: linear_work };
    logits::chunks(dev, dims, *output, projection, io.targets, io.losses, grad);

    if let Some(mut b) = backward {
        dev.fill_bytes(b.dresidual.reborrow(), 0);
        dev.rms_norm_backward(
            b.dresidual,
            dense(&mut b.grads[0], dims.c),
            dnormed.view(),
            x,
            *norm_w,
            rstd.view(),
            rms_norm_work.view_mut(),
        );
    }
}
