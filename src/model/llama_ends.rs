//! First and last unit of a Llama: token embedding `[embed_tokens (V, C)]`, and final RMSNorm, head and loss
//! `[norm (C), lm_head (V, C)]`, where a tied head is the embedding.

use super::head::{self, Projection};
use super::llama::Shape;
use super::{BackwardIo, Dims, ForwardIo, LossIo, dense};
use crate::backend::{Device, Ops, View};
use crate::dtype::DType;
use crate::params::{Precision, SHARED_GRAD, TensorSpec};

/// Scratch of the embedding's backward visit.
pub fn embed_backward_work<D: Ops>(dims: &Dims, shape: &Shape, precision: Precision) -> Vec<TensorSpec> {
    let grad = if shape.tied { SHARED_GRAD } else { precision.grad };
    vec![TensorSpec::new("token_order", D::embedding_backward_work_numel(dims.rows(), grad, grad), DType::U32)]
}

/// Writes the residual stream.
pub fn embed<D: Device>(dev: &D, dims: &Dims, params: &[View<'_>], io: ForwardIo<'_>) {
    let [embedding] = params else { panic!("an embedding has 1 parameter, not {}", params.len()) };
    dev.embedding_forward(io.out, io.tokens, *embedding, None, dims.t);
}

/// Adds to the gradient of the embedding where the tied head has written it; else overwrites it. Needs no parameters.
pub fn embed_backward<D: Device>(dev: &D, dims: &Dims, shape: &Shape, io: BackwardIo<'_>) {
    let [dembedding] = io.grads else { panic!("an embedding has 1 gradient") };
    let [token_order] = io.work else { panic!("an embedding's backward has 1 work buffer") };
    let mut dembedding = dense(dembedding, dims.vocab * dims.c);
    if !shape.tied {
        dev.fill_bytes(dembedding.reborrow(), 0);
    }
    dev.embedding_backward(dembedding, None, io.dresidual.as_view(), io.tokens, token_order.view_mut(), dims.t);
}

/// Scratch of the head's visit, training or not.
pub fn head_work<D: Ops>(dims: &Dims, precision: Precision) -> Vec<TensorSpec> {
    let (rows, c) = (dims.rows(), dims.c);
    vec![
        TensorSpec::f32("norm.rstd", rows),
        TensorSpec::new("norm.out", rows * c, precision.activation),
        TensorSpec::f32("logits", head::chunk_rows(dims) * dims.vocab),
        TensorSpec::new("dnorm", rows * c, precision.activation),
        TensorSpec::f32("rms_norm_work", D::rms_norm_work_numel(rows, c)),
        TensorSpec::f32("linear_work", head::chunk_work_numel::<D>(dims, precision)),
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
    head::chunks(dev, dims, *output, projection, io.targets, io.losses, grad);

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
