//! Token embedding of Llama: the first unit. Parameter: `[embed_tokens (V, C)]`.

use super::Shape;
use crate::backend::{Device, Ops, View};
use crate::dtype::DType;
use crate::model::{BackwardIo, Dims, ForwardIo, dense};
use crate::params::{Precision, SHARED_GRAD, TensorSpec};

/// Scratch of a backward visit.
pub fn backward_work<D: Ops>(dims: &Dims, shape: &Shape, precision: Precision) -> Vec<TensorSpec> {
    let grad = if shape.tied { SHARED_GRAD } else { precision.grad };
    vec![TensorSpec::new("token_order", D::embedding_backward_work_numel(dims.rows(), grad, grad), DType::U32)]
}

/// Writes the residual stream.
pub fn forward<D: Device>(dev: &D, dims: &Dims, params: &[View<'_>], io: ForwardIo<'_>) {
    let [embedding] = params else { panic!("an embedding has 1 parameter, not {}", params.len()) };
    dev.embedding_forward(io.out, io.tokens, *embedding, None, dims.t);
}

/// Adds to the gradient of the embedding where the tied head has written it; else overwrites it. Needs no parameters.
pub fn backward<D: Device>(dev: &D, dims: &Dims, shape: &Shape, io: BackwardIo<'_>) {
    let [dembedding] = io.grads else { panic!("an embedding has 1 gradient") };
    let [token_order] = io.work else { panic!("an embedding's backward has 1 work buffer") };
    let mut dembedding = dense(dembedding, dims.vocab * dims.c);
    if !shape.tied {
        dev.fill_bytes(dembedding.reborrow(), 0);
    }
    dev.embedding_backward(dembedding, None, io.dresidual.as_view(), io.tokens, token_order.view_mut(), dims.t);
}
