//! A pre-RMSNorm transformer block of Llama, forward and backward by hand.
//!
//! ```text
//! x2  = x  + o_proj(attention(rope(qkv_proj(norm_1(x)))))
//! out = x2 + down_proj(swiglu(gate_up_proj(norm_2(x2))))
//! ```
//! Parameters, in order: `input_layernorm, self_attn.qkv_proj (rows of q, k, v), self_attn.o_proj,
//! post_attention_layernorm, mlp.gate_up_proj (rows of gate, up), mlp.down_proj`.

use super::Shape;
use crate::backend::ops::{AttentionShape, LinearShape, Rotation};
use crate::backend::{Device, Ops, View};
use crate::model::{BackwardIo, Dims, ForwardIo, attend, dense};
use crate::params::{Precision, TensorSpec};

/// Shape of the block's attention.
pub fn attention_shape(dims: &Dims, shape: &Shape) -> AttentionShape {
    AttentionShape {
        b: dims.b,
        t: dims.t,
        n_heads: dims.n_heads,
        n_kv_heads: shape.n_kv_heads,
        d_head: dims.c / dims.n_heads,
    }
}

/// Tensors kept from forward to backward. `qkv` is rotated.
pub fn saved(dims: &Dims, shape: &Shape, precision: Precision) -> Vec<TensorSpec> {
    let (rows, c, f) = (dims.rows(), dims.c, shape.d_ff);
    let attention = attention_shape(dims, shape);
    let activation = |name, numel| TensorSpec::new(name, numel, precision.activation);
    vec![
        TensorSpec::f32("norm_1.rstd", rows),
        activation("norm_1.out", rows * c),
        activation("qkv", rows * attention.qkv_row()),
        activation("attention", rows * attention.out_row()),
        TensorSpec::f32("lse", rows * dims.n_heads),
        activation("x2", rows * c),
        TensorSpec::f32("norm_2.rstd", rows),
        activation("norm_2.out", rows * c),
        activation("gate_up", rows * 2 * f),
        activation("swiglu", rows * f),
    ]
}

/// Scratch of a forward visit.
pub fn forward_work<D: Ops>(dims: &Dims, shape: &Shape, precision: Precision) -> Vec<TensorSpec> {
    let Precision { param, activation, .. } = precision;
    let attention = attention_shape(dims, shape);
    let linear = |shape| D::linear_forward_work_numel(shape, activation, activation, param);
    vec![
        TensorSpec::new("branch", dims.rows() * dims.c, activation),
        TensorSpec::f32("rope_work", D::rope_work_numel(attention)),
        TensorSpec::f32("attention_work", D::attention_forward_work_numel(attention, activation)),
        TensorSpec::f32("linear_work", largest(dims, shape, linear)),
    ]
}

/// Scratch of a backward visit.
pub fn backward_work<D: Ops>(dims: &Dims, shape: &Shape, precision: Precision) -> Vec<TensorSpec> {
    let (rows, c, f) = (dims.rows(), dims.c, shape.d_ff);
    let Precision { param, activation, grad } = precision;
    let attention = attention_shape(dims, shape);
    let linear = |shape| {
        let input = D::linear_backward_input_work_numel(shape, activation, activation, param);
        input.max(D::linear_backward_weight_work_numel(shape, grad, activation, activation))
    };
    vec![
        TensorSpec::new("dwide", rows * attention.qkv_row().max(2 * f), activation),
        TensorSpec::new("dswiglu", rows * f, activation),
        TensorSpec::new("dnarrow", rows * c, activation),
        TensorSpec::f32("rope_work", D::rope_work_numel(attention)),
        TensorSpec::f32("attention_work", D::attention_backward_work_numel(attention, activation)),
        TensorSpec::f32("rms_norm_work", D::rms_norm_work_numel(rows, c)),
        TensorSpec::f32("linear_work", largest(dims, shape, linear)),
    ]
}

/// The largest of what each linear layer needs.
fn largest(dims: &Dims, shape: &Shape, numel: impl Fn(LinearShape) -> usize) -> usize {
    let Shapes { qkv, o, gate_up, down } = shapes(dims, shape);
    [qkv, o, gate_up, down].into_iter().map(numel).fold(0, usize::max)
}

struct Shapes {
    qkv: LinearShape,
    o: LinearShape,
    gate_up: LinearShape,
    down: LinearShape,
}

fn shapes(dims: &Dims, shape: &Shape) -> Shapes {
    let (rows, c, f) = (dims.rows(), dims.c, shape.d_ff);
    let attention = attention_shape(dims, shape);
    Shapes {
        qkv: LinearShape { rows, n_in: c, n_out: attention.qkv_row() },
        o: LinearShape { rows, n_in: attention.out_row(), n_out: c },
        gate_up: LinearShape { rows, n_in: c, n_out: 2 * f },
        down: LinearShape { rows, n_in: f, n_out: c },
    }
}

/// Reads the residual stream and writes it anew.
pub fn forward<D: Device>(dev: &D, dims: &Dims, shape: &Shape, params: &[View<'_>], io: ForwardIo<'_>) {
    let [norm_1_w, qkv_w, o_w, norm_2_w, gate_up_w, down_w] = params else {
        panic!("a block has 6 parameters, not {}", params.len())
    };
    let [rstd_1, norm_1, qkv, att, lse, x2, rstd_2, norm_2, gate_up, swiglu] = io.saved else {
        panic!("a block saves 10 tensors")
    };
    let [branch, rope_work, attention_work, linear_work] = io.work else {
        panic!("a block's forward has 4 work buffers")
    };
    let x = io.input.expect("a block has an input");
    let (s, attention) = (shapes(dims, shape), attention_shape(dims, shape));
    let first = io.cached.as_ref().map_or(0, |cached| cached.first);
    let rotation = Rotation { first, theta: shape.rope_theta, inverse: false };

    dev.rms_norm_forward(norm_1.view_mut(), rstd_1.view_mut(), x, *norm_1_w, shape.norm_eps);
    dev.linear_forward(qkv.view_mut(), norm_1.view(), *qkv_w, None, linear_work.view_mut(), s.qkv);
    dev.rope(qkv.view_mut(), rope_work.view_mut(), attention, rotation);
    attend(dev, att, lse, qkv.view(), attention_work, attention, io.cached);
    dev.linear_forward(branch.view_mut(), att.view(), *o_w, None, linear_work.view_mut(), s.o);

    dev.add(x2.view_mut(), x, branch.view());
    dev.rms_norm_forward(norm_2.view_mut(), rstd_2.view_mut(), x2.view(), *norm_2_w, shape.norm_eps);
    dev.linear_forward(gate_up.view_mut(), norm_2.view(), *gate_up_w, None, linear_work.view_mut(), s.gate_up);
    dev.swiglu_forward(swiglu.view_mut(), gate_up.view(), shape.d_ff);
    dev.linear_forward(branch.view_mut(), swiglu.view(), *down_w, None, linear_work.view_mut(), s.down);
    dev.add(io.out, x2.view(), branch.view());
}

/// Turns the gradient of the output into that of the input and writes every parameter's gradient.
pub fn backward<D: Device>(dev: &D, dims: &Dims, shape: &Shape, params: &[View<'_>], io: BackwardIo<'_>) {
    let [norm_1_w, qkv_w, o_w, norm_2_w, gate_up_w, down_w] = params else {
        panic!("a block has 6 parameters, not {}", params.len())
    };
    let [rstd_1, norm_1, qkv, att, lse, x2, rstd_2, norm_2, gate_up, swiglu] = io.saved else {
        panic!("a block saves 10 tensors")
    };
    let [dwide, dswiglu, dnarrow, rope_work, attention_work, rms_norm_work, linear_work] = io.work else {
        panic!("a block's backward has 7 work buffers")
    };
    let [dnorm_1_w, dqkv_w, do_w, dnorm_2_w, dgate_up_w, ddown_w] = io.grads else { panic!("a block has 6 gradients") };
    let (x, mut dres) = (io.input.expect("a block has an input"), io.dresidual);
    let (s, attention) = (shapes(dims, shape), attention_shape(dims, shape));
    let (rows, c, f) = (dims.rows(), dims.c, shape.d_ff);
    let numel = |s: LinearShape| s.n_in * s.n_out;

    // MLP branch; the residual path keeps dres.
    let grad = dense(ddown_w, numel(s.down));
    dev.linear_backward_weight(grad, None, dres.as_view(), swiglu.view(), linear_work.view_mut(), s.down, false);
    dev.linear_backward_input(dswiglu.view_mut(), dres.as_view(), *down_w, linear_work.view_mut(), s.down);
    let used = 0..rows * 2 * f;
    dev.swiglu_backward(dwide.view_mut().range(used.clone()), dswiglu.view(), gate_up.view(), f);
    let dgate_up = dwide.view().range(used);
    let grad = dense(dgate_up_w, numel(s.gate_up));
    dev.linear_backward_weight(grad, None, dgate_up, norm_2.view(), linear_work.view_mut(), s.gate_up, false);
    dev.linear_backward_input(dnarrow.view_mut(), dgate_up, *gate_up_w, linear_work.view_mut(), s.gate_up);
    dev.rms_norm_backward(
        dres.reborrow(),
        dense(dnorm_2_w, c),
        dnarrow.view(),
        x2.view(),
        *norm_2_w,
        rstd_2.view(),
        rms_norm_work.view_mut(),
    );

    // Attention branch.
    let grad = dense(do_w, numel(s.o));
    dev.linear_backward_weight(grad, None, dres.as_view(), att.view(), linear_work.view_mut(), s.o, false);
    dev.linear_backward_input(dnarrow.view_mut(), dres.as_view(), *o_w, linear_work.view_mut(), s.o);
    let used = 0..rows * attention.qkv_row();
    dev.attention_backward(
        dwide.view_mut().range(used.clone()),
        dnarrow.view(),
        qkv.view(),
        att.view(),
        lse.view(),
        attention_work.view_mut(),
        attention,
    );
    let back = Rotation { first: 0, theta: shape.rope_theta, inverse: true };
    dev.rope(dwide.view_mut().range(used.clone()), rope_work.view_mut(), attention, back);
    let dqkv = dwide.view().range(used);
    let grad = dense(dqkv_w, numel(s.qkv));
    dev.linear_backward_weight(grad, None, dqkv, norm_1.view(), linear_work.view_mut(), s.qkv, false);
    dev.linear_backward_input(dnarrow.view_mut(), dqkv, *qkv_w, linear_work.view_mut(), s.qkv);
    dev.rms_norm_backward(
        dres,
        dense(dnorm_1_w, c),
        dnarrow.view(),
        x,
        *norm_1_w,
        rstd_1.view(),
        rms_norm_work.view_mut(),
    );
}
