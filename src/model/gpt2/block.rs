//! A pre-LayerNorm transformer block of GPT-2, forward and backward by hand.
//!
//! ```text
//! x2  = x  + proj(attention(qkv(ln_1(x))))
//! out = x2 + proj(gelu(fc(ln_2(x2))))
//! ```
//! Parameters, in order: `ln_1.weight, ln_1.bias, attn.c_attn.weight, attn.c_attn.bias, attn.c_proj.weight,
//! attn.c_proj.bias, ln_2.weight, ln_2.bias, mlp.c_fc.weight, mlp.c_fc.bias, mlp.c_proj.weight, mlp.c_proj.bias`.

use crate::backend::ops::{AttentionShape, LinearShape};
use crate::backend::{Device, Ops, View};
use crate::model::{BackwardIo, Dims, ForwardIo, attend, dense};
use crate::params::{Precision, TensorSpec};

/// Shape of the block's attention.
pub fn attention_shape(dims: &Dims) -> AttentionShape {
    AttentionShape {
        b: dims.b,
        t: dims.t,
        n_heads: dims.n_heads,
        n_kv_heads: dims.n_heads,
        d_head: dims.c / dims.n_heads,
    }
}

/// Tensors kept from forward to backward.
pub fn saved(dims: &Dims, precision: Precision) -> Vec<TensorSpec> {
    let (rows, c) = (dims.rows(), dims.c);
    let activation = |name, numel| TensorSpec::new(name, numel, precision.activation);
    vec![
        TensorSpec::f32("ln_1.mean", rows),
        TensorSpec::f32("ln_1.rstd", rows),
        activation("ln_1.out", rows * c),
        activation("qkv", rows * 3 * c),
        activation("attention", rows * c),
        TensorSpec::f32("lse", rows * dims.n_heads),
        activation("x2", rows * c),
        TensorSpec::f32("ln_2.mean", rows),
        TensorSpec::f32("ln_2.rstd", rows),
        activation("ln_2.out", rows * c),
        activation("fc", rows * 4 * c),
        activation("gelu", rows * 4 * c),
    ]
}

/// Scratch of a forward visit.
pub fn forward_work<D: Ops>(dims: &Dims, precision: Precision) -> Vec<TensorSpec> {
    let Precision { param, activation, .. } = precision;
    let attention = D::attention_forward_work_numel(attention_shape(dims), activation);
    let linear = |shape| D::linear_forward_work_numel(shape, activation, activation, param);
    vec![
        TensorSpec::new("branch", dims.rows() * dims.c, activation),
        TensorSpec::f32("attention_work", attention),
        TensorSpec::f32("linear_work", largest(dims, linear)),
    ]
}

/// Scratch of a backward visit.
pub fn backward_work<D: Ops>(dims: &Dims, precision: Precision) -> Vec<TensorSpec> {
    let (rows, c) = (dims.rows(), dims.c);
    let Precision { param, activation, grad } = precision;
    let attention = D::attention_backward_work_numel(attention_shape(dims), activation);
    let linear = |shape| {
        let input = D::linear_backward_input_work_numel(shape, activation, activation, param);
        input.max(D::linear_backward_weight_work_numel(shape, grad, activation, activation))
    };
    vec![
        TensorSpec::new("dwide", rows * 4 * c, activation),
        TensorSpec::new("dnarrow", rows * c, activation),
        TensorSpec::f32("attention_work", attention),
        TensorSpec::f32("layer_norm_work", D::layer_norm_work_numel(rows, c)),
        TensorSpec::f32("linear_work", largest(dims, linear)),
    ]
}

/// The largest of what each linear layer needs.
fn largest(dims: &Dims, numel: impl Fn(LinearShape) -> usize) -> usize {
    let Shapes { qkv, attn_proj, fc, mlp_proj } = shapes(dims);
    [qkv, attn_proj, fc, mlp_proj].into_iter().map(numel).fold(0, usize::max)
}

struct Shapes {
    qkv: LinearShape,
    attn_proj: LinearShape,
    fc: LinearShape,
    mlp_proj: LinearShape,
}

fn shapes(dims: &Dims) -> Shapes {
    let (rows, c) = (dims.rows(), dims.c);
    Shapes {
        qkv: LinearShape { rows, n_in: c, n_out: 3 * c },
        attn_proj: LinearShape { rows, n_in: c, n_out: c },
        fc: LinearShape { rows, n_in: c, n_out: 4 * c },
        mlp_proj: LinearShape { rows, n_in: 4 * c, n_out: c },
    }
}

/// Reads the residual stream and writes it anew.
pub fn forward<D: Device>(dev: &D, dims: &Dims, params: &[View<'_>], io: ForwardIo<'_>) {
    let [ln_1_w, ln_1_b, qkv_w, qkv_b, attn_w, attn_b, ln_2_w, ln_2_b, fc_w, fc_b, mlp_w, mlp_b] = params else {
        panic!("a block has 12 parameters, not {}", params.len())
    };
    let [mean_1, rstd_1, ln_1, qkv, att, lse, x2, mean_2, rstd_2, ln_2, fc, gelu] = io.saved else {
        panic!("a block saves 12 tensors")
    };
    let [branch, attention_work, linear_work] = io.work else { panic!("a block's forward has 3 work buffers") };
    let x = io.input.expect("a block has an input");
    let s = shapes(dims);

    dev.layer_norm_forward(ln_1.view_mut(), mean_1.view_mut(), rstd_1.view_mut(), x, *ln_1_w, *ln_1_b);
    dev.linear_forward(qkv.view_mut(), ln_1.view(), *qkv_w, Some(*qkv_b), linear_work.view_mut(), s.qkv);
    let shape = attention_shape(dims);
    attend(dev, att, lse, qkv.view(), attention_work, shape, io.cached);
    dev.linear_forward(branch.view_mut(), att.view(), *attn_w, Some(*attn_b), linear_work.view_mut(), s.attn_proj);

    dev.add_layer_norm_forward(
        x2.view_mut(),
        ln_2.view_mut(),
        mean_2.view_mut(),
        rstd_2.view_mut(),
        x,
        branch.view(),
        *ln_2_w,
        *ln_2_b,
    );
    dev.linear_gelu_forward(gelu.view_mut(), fc.view_mut(), ln_2.view(), *fc_w, *fc_b, linear_work.view_mut(), s.fc);
    dev.linear_forward(branch.view_mut(), gelu.view(), *mlp_w, Some(*mlp_b), linear_work.view_mut(), s.mlp_proj);
    dev.add(io.out, x2.view(), branch.view());
}

/// Turns the gradient of the output into that of the input and writes every parameter's gradient.
pub fn backward<D: Device>(dev: &D, dims: &Dims, params: &[View<'_>], io: BackwardIo<'_>) {
    let [ln_1_w, _, qkv_w, _, attn_w, _, ln_2_w, _, fc_w, _, mlp_w, _] = params else {
        panic!("a block has 12 parameters, not {}", params.len())
    };
    let [mean_1, rstd_1, ln_1, qkv, att, lse, x2, mean_2, rstd_2, ln_2, fc, gelu] = io.saved else {
        panic!("a block saves 12 tensors")
    };
    let [dwide, dnarrow, attention_work, layer_norm_work, linear_work] = io.work else {
        panic!("a block's backward has 5 work buffers")
    };
    let [dln_1_w, dln_1_b, dqkv_w, dqkv_b, dattn_w, dattn_b, dln_2_w, dln_2_b, dfc_w, dfc_b, dmlp_w, dmlp_b] = io.grads
    else {
        panic!("a block has 12 gradients")
    };
    let (x, mut dres) = (io.input.expect("a block has an input"), io.dresidual);
    let (s, c) = (shapes(dims), dims.c);
    let rows = dims.rows();

    // MLP branch; the residual path keeps dres.
    dev.linear_backward_weight(
        dense(dmlp_w, 4 * c * c),
        Some(dense(dmlp_b, c)),
        dres.as_view(),
        gelu.view(),
        linear_work.view_mut(),
        s.mlp_proj,
        false,
    );
    dev.linear_gelu_backward_input(
        dwide.view_mut(),
        dres.as_view(),
        *mlp_w,
        fc.view(),
        linear_work.view_mut(),
        s.mlp_proj,
    );
    dev.linear_backward_weight(
        dense(dfc_w, 4 * c * c),
        Some(dense(dfc_b, 4 * c)),
        dwide.view(),
        ln_2.view(),
        linear_work.view_mut(),
        s.fc,
        false,
    );
    dev.linear_backward_input(dnarrow.view_mut(), dwide.view(), *fc_w, linear_work.view_mut(), s.fc);
    dev.layer_norm_backward(
        dres.reborrow(),
        dense(dln_2_w, c),
        dense(dln_2_b, c),
        dnarrow.view(),
        x2.view(),
        *ln_2_w,
        mean_2.view(),
        rstd_2.view(),
        layer_norm_work.view_mut(),
    );

    // Attention branch.
    dev.linear_backward_weight(
        dense(dattn_w, c * c),
        Some(dense(dattn_b, c)),
        dres.as_view(),
        att.view(),
        linear_work.view_mut(),
        s.attn_proj,
        false,
    );
    dev.linear_backward_input(dnarrow.view_mut(), dres.as_view(), *attn_w, linear_work.view_mut(), s.attn_proj);
    let dqkv = 0..rows * 3 * c;
    dev.attention_backward(
        dwide.view_mut().range(dqkv.clone()),
        dnarrow.view(),
        qkv.view(),
        att.view(),
        lse.view(),
        attention_work.view_mut(),
        attention_shape(dims),
    );
    let dqkv = dwide.view().range(dqkv);
    dev.linear_backward_weight(
        dense(dqkv_w, 3 * c * c),
        Some(dense(dqkv_b, 3 * c)),
        dqkv,
        ln_1.view(),
        linear_work.view_mut(),
        s.qkv,
        false,
    );
    dev.linear_backward_input(dnarrow.view_mut(), dqkv, *qkv_w, linear_work.view_mut(), s.qkv);
    dev.layer_norm_backward(
        dres,
        dense(dln_1_w, c),
        dense(dln_1_b, c),
        dnarrow.view(),
        x,
        *ln_1_w,
        mean_1.view(),
        rstd_1.view(),
        layer_norm_work.view_mut(),
    );
}
