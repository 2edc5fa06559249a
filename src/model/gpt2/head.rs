//! Final LayerNorm, tied head and loss of GPT-2: the last unit. Parameters: `[ln_f.weight, ln_f.bias, wte (V, C)]`. What
//! follows the norm is every family's (`logits.rs`).

use crate::backend::{Device, Ops, View};
use crate::model::logits::{self, Projection};
use crate::model::{Dims, LossIo, dense};
use crate::params::{Precision, TensorSpec};

/// Scratch of the visit, training or not.
pub fn work<D: Ops>(dims: &Dims, precision: Precision) -> Vec<TensorSpec> {
    let (rows, c) = (dims.rows(), dims.c);
    let activation = precision.activation;
    vec![
        TensorSpec::f32("ln_f.mean", rows),
        TensorSpec::f32("ln_f.rstd", rows),
        TensorSpec::new("ln_f.out", rows * c, activation),
        TensorSpec::f32("logits", logits::chunk_rows(dims) * dims.vocab),
        TensorSpec::new("dln_f", rows * c, activation),
        TensorSpec::f32("layer_norm_work", D::layer_norm_work_numel(rows, c)),
        TensorSpec::f32("linear_work", logits::work_numel::<D>(dims, precision)),
    ]
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
    logits::chunks(dev, dims, *wte, projection, io.targets, io.losses, grad);

    if let Some(mut b) = backward {
        let [dln_w, dln_b, _] = b.grads else { panic!("a head has 3 gradients") };
        dev.fill_bytes(b.dresidual.reborrow(), 0);
        dev.layer_norm_backward(
            b.dresidual,
            dense(dln_w, c),
            dense(dln_b, c),
            dln.view(),
            x,
            *ln_w,
            mean.view(),
            rstd.view(),
            layer_norm_work.view_mut(),
        );
    }
}
