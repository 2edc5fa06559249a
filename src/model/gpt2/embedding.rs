//! Token and position embedding of GPT-2: the first unit. Parameters: `[wte (V, C), wpe (T_max, C)]`.

use crate::backend::{Device, Ops, View};
use crate::dtype::DType;
use crate::model::{BackwardIo, Dims, ForwardIo, dense};
use crate::params::{Precision, SHARED_GRAD, TensorSpec};

/// Scratch of a backward visit.
pub fn backward_work<D: Ops>(dims: &Dims, precision: Precision) -> Vec<TensorSpec> {
    let numel = D::embedding_backward_work_numel(dims.rows(), SHARED_GRAD, precision.grad);
    vec![TensorSpec::new("token_order", numel, DType::U32)]
}

/// Writes the residual stream.
pub fn forward<D: Device>(dev: &D, dims: &Dims, params: &[View<'_>], io: ForwardIo<'_>) {
    let [wte, wpe] = params else { panic!("an embedding has 2 parameters, not {}", params.len()) };
    let first = io.cached.map_or(0, |cached| cached.first);
    let positions = wpe.range(first * dims.c..wpe.numel());
    dev.embedding_forward(io.out, io.tokens, *wte, Some(positions), dims.t);
}

/// Adds to the gradient of wte (the tied head has written it) and writes that of wpe. Needs no parameters.
pub fn backward<D: Device>(dev: &D, dims: &Dims, io: BackwardIo<'_>) {
    let [dwte, dwpe] = io.grads else { panic!("an embedding has 2 gradients") };
    let [token_order] = io.work else { panic!("an embedding's backward has 1 work buffer") };
    let (dwte, dwpe) = (dense(dwte, dims.vocab * dims.c), dense(dwpe, dims.t_max * dims.c));
    dev.embedding_backward(dwte, Some(dwpe), io.dresidual.as_view(), io.tokens, token_order.view_mut(), dims.t);
}
