//! The linear layer: its three products on shapes of a block and of the head.

use super::bench::{Bench, Timed};
use crate::backend::Device;
use crate::backend::ops::LinearShape;
use crate::backend::reference;
use crate::dtype::DType;
use crate::error::Result;

/// A shape that divides by 8, as GPUs have it, and by nothing larger.
const SMALL: LinearShape = LinearShape { rows: 40, n_in: 72, n_out: 56 };

/// Sums of some dozens of products in f32, and one rounding to bf16 of numbers up to about 8.
const TOLERANCE: [f64; 2] = [1e-5, 1.0 / 256.0];

/// One rounding more, of what goes through GELU, where the library does not compute it with the product.
const GELU_TOLERANCE: [f64; 2] = [1e-5, 2.0 / 256.0];

/// Runs all of them.
pub fn run<D: Device>(b: &mut Bench<'_, D>) -> Result<()> {
    let s = b.scale;
    let (fc, proj) = (
        LinearShape { rows: s.rows, n_in: s.c, n_out: 4 * s.c },
        LinearShape { rows: s.rows, n_in: 4 * s.c, n_out: s.c },
    );
    let qkv = LinearShape { rows: s.rows, n_in: s.c, n_out: 3 * s.c };
    forward(b, "linear_forward qkv", qkv)?;
    forward(b, "linear_forward fc", fc)?;
    forward(b, "linear_forward proj", proj)?;
    gelu_forward(b, fc)?;
    gelu_backward_input(b, proj)?;
    backward_input(b, "linear_backward_input fc", fc)?;
    backward_weight(b, "linear_backward_weight fc", fc)?;
    head(b, LinearShape { rows: s.rows.min(1024), n_in: s.c, n_out: s.vocab })
}

fn in_words(shape: LinearShape) -> String {
    format!("{} x {} x {}", shape.rows, shape.n_in, shape.n_out)
}

fn flops(shape: LinearShape) -> f64 {
    2.0 * (shape.rows * shape.n_in * shape.n_out) as f64
}

fn forward<D: Device>(b: &mut Bench<'_, D>, name: &'static str, large: LinearShape) -> Result<()> {
    b.case(
        name,
        TOLERANCE,
        |b| {
            let LinearShape { rows, n_in, n_out } = SMALL;
            let ((inp, inp_is), (weight, weight_is)) =
                (b.numbers(b.dtype, rows * n_in)?, b.numbers(b.dtype, n_out * n_in)?);
            let (bias, bias_is) = b.numbers(b.dtype, n_out)?;
            let mut out = b.unwritten(b.dtype, rows * n_out);
            let mut work =
                b.zeros(DType::F32, D::linear_forward_work_numel(SMALL, b.dtype, b.dtype, b.dtype));
            let (o, w) = (out.view_mut(), work.view_mut());
            b.device.linear_forward(o, inp.view(), weight.view(), Some(bias.view()), w, SMALL);
            Ok(vec![(out, reference::linear_forward(&inp_is, &weight_is, &bias_is, SMALL))])
        },
        |b| {
            let (device, LinearShape { rows, n_in, n_out }) = (b.device, large);
            let (inp, weight) = (b.zeros(b.dtype, rows * n_in), b.zeros(b.dtype, n_out * n_in));
            let (bias, mut out) = (b.zeros(b.dtype, n_out), b.zeros(b.dtype, rows * n_out));
            let mut work =
                b.zeros(DType::F32, D::linear_forward_work_numel(large, b.dtype, b.dtype, b.dtype));
            Ok(Timed {
                shape: in_words(large),
                bytes: inp.bytes() + weight.bytes() + out.bytes(),
                flops: flops(large),
                call: Box::new(move || {
                    let (o, w) = (out.view_mut(), work.view_mut());
                    device.linear_forward(o, inp.view(), weight.view(), Some(bias.view()), w, large);
                }),
            })
        },
    )
}

fn backward_input<D: Device>(b: &mut Bench<'_, D>, name: &'static str, large: LinearShape) -> Result<()> {
    b.case(
        name,
        TOLERANCE,
        |b| {
            let LinearShape { rows, n_in, n_out } = SMALL;
            let (dout, dout_is) = b.numbers(b.dtype, rows * n_out)?;
            let ((_, inp_is), (weight, weight_is)) =
                (b.numbers(b.dtype, rows * n_in)?, b.numbers(b.dtype, n_out * n_in)?);
            let mut dinp = b.unwritten(b.dtype, rows * n_in);
            let mut work =
                b.zeros(DType::F32, D::linear_backward_input_work_numel(SMALL, b.dtype, b.dtype, b.dtype));
            b.device.linear_backward_input(
                dinp.view_mut(),
                dout.view(),
                weight.view(),
                work.view_mut(),
                SMALL,
            );
            Ok(vec![(dinp, reference::linear_backward(&dout_is, &inp_is, &weight_is, SMALL).0)])
        },
        |b| {
            let (device, LinearShape { rows, n_in, n_out }) = (b.device, large);
            let (dout, weight) = (b.zeros(b.dtype, rows * n_out), b.zeros(b.dtype, n_out * n_in));
            let mut dinp = b.zeros(b.dtype, rows * n_in);
            let mut work =
                b.zeros(DType::F32, D::linear_backward_input_work_numel(large, b.dtype, b.dtype, b.dtype));
            Ok(Timed {
                shape: in_words(large),
                bytes: dout.bytes() + weight.bytes() + dinp.bytes(),
                flops: flops(large),
                call: Box::new(move || {
                    device.linear_backward_input(
                        dinp.view_mut(),
                        dout.view(),
                        weight.view(),
                        work.view_mut(),
                        large,
                    );
                }),
            })
        },
    )
}

/// GELU with the product, where the library has it.
fn gelu_forward<D: Device>(b: &mut Bench<'_, D>, large: LinearShape) -> Result<()> {
    b.case(
        "linear_gelu_forward fc",
        GELU_TOLERANCE,
        |b| {
            let LinearShape { rows, n_in, n_out } = SMALL;
            let ((inp, inp_is), (weight, weight_is)) =
                (b.numbers(b.dtype, rows * n_in)?, b.numbers(b.dtype, n_out * n_in)?);
            let (bias, bias_is) = b.numbers(b.dtype, n_out)?;
            let (mut out, mut pre) = (b.unwritten(b.dtype, rows * n_out), b.unwritten(b.dtype, rows * n_out));
            let mut work =
                b.zeros(DType::F32, D::linear_forward_work_numel(SMALL, b.dtype, b.dtype, b.dtype));
            let (o, p, w) = (out.view_mut(), pre.view_mut(), work.view_mut());
            b.device.linear_gelu_forward(o, p, inp.view(), weight.view(), bias.view(), w, SMALL);
            let pre_want = reference::linear_forward(&inp_is, &weight_is, &bias_is, SMALL);
            let out_want = reference::gelu_forward(&pre_want);
            Ok(vec![(out, out_want), (pre, pre_want)])
        },
        |b| {
            let (device, LinearShape { rows, n_in, n_out }) = (b.device, large);
            let (inp, weight) = (b.zeros(b.dtype, rows * n_in), b.zeros(b.dtype, n_out * n_in));
            let bias = b.zeros(b.dtype, n_out);
            let (mut out, mut pre) = (b.zeros(b.dtype, rows * n_out), b.zeros(b.dtype, rows * n_out));
            let mut work =
                b.zeros(DType::F32, D::linear_forward_work_numel(large, b.dtype, b.dtype, b.dtype));
            Ok(Timed {
                shape: in_words(large),
                bytes: inp.bytes() + weight.bytes() + out.bytes() + pre.bytes(),
                flops: flops(large),
                call: Box::new(move || {
                    let (o, p, w) = (out.view_mut(), pre.view_mut(), work.view_mut());
                    device.linear_gelu_forward(o, p, inp.view(), weight.view(), bias.view(), w, large);
                }),
            })
        },
    )
}

/// The derivative of GELU with the product.
fn gelu_backward_input<D: Device>(b: &mut Bench<'_, D>, large: LinearShape) -> Result<()> {
    b.case(
        "linear_gelu_backward_input proj",
        GELU_TOLERANCE,
        |b| {
            let LinearShape { rows, n_in, n_out } = SMALL;
            let ((dout, dout_is), (pre, pre_is)) =
                (b.numbers(b.dtype, rows * n_out)?, b.numbers(b.dtype, rows * n_in)?);
            let (weight, weight_is) = b.numbers(b.dtype, n_out * n_in)?;
            let mut dinp = b.unwritten(b.dtype, rows * n_in);
            let mut work =
                b.zeros(DType::F32, D::linear_backward_input_work_numel(SMALL, b.dtype, b.dtype, b.dtype));
            let (d, w) = (dinp.view_mut(), work.view_mut());
            b.device.linear_gelu_backward_input(d, dout.view(), weight.view(), pre.view(), w, SMALL);
            let (dgelu, ..) = reference::linear_backward(&dout_is, &pre_is, &weight_is, SMALL);
            Ok(vec![(dinp, reference::gelu_backward(&pre_is, &dgelu))])
        },
        |b| {
            let (device, LinearShape { rows, n_in, n_out }) = (b.device, large);
            let (dout, weight) = (b.zeros(b.dtype, rows * n_out), b.zeros(b.dtype, n_out * n_in));
            let (pre, mut dinp) = (b.zeros(b.dtype, rows * n_in), b.zeros(b.dtype, rows * n_in));
            let mut work =
                b.zeros(DType::F32, D::linear_backward_input_work_numel(large, b.dtype, b.dtype, b.dtype));
            Ok(Timed {
                shape: in_words(large),
                bytes: dout.bytes() + weight.bytes() + pre.bytes() + dinp.bytes(),
                flops: flops(large),
                call: Box::new(move || {
                    let (d, w) = (dinp.view_mut(), work.view_mut());
                    device.linear_gelu_backward_input(d, dout.view(), weight.view(), pre.view(), w, large);
                }),
            })
        },
    )
}

fn backward_weight<D: Device>(b: &mut Bench<'_, D>, name: &'static str, large: LinearShape) -> Result<()> {
    b.case(
        name,
        [1e-5, 1e-5],
        |b| {
            let LinearShape { rows, n_in, n_out } = SMALL;
            let ((dout, dout_is), (inp, inp_is)) =
                (b.numbers(b.dtype, rows * n_out)?, b.numbers(b.dtype, rows * n_in)?);
            let (mut dweight, mut dbias) =
                (b.unwritten(DType::F32, n_out * n_in), b.unwritten(DType::F32, n_out));
            let mut work = b
                .zeros(DType::F32, D::linear_backward_weight_work_numel(SMALL, DType::F32, b.dtype, b.dtype));
            let (dw, db, w) = (dweight.view_mut(), Some(dbias.view_mut()), work.view_mut());
            b.device.linear_backward_weight(dw, db, dout.view(), inp.view(), w, SMALL, false);
            let weight_is = vec![0.0; n_out * n_in];
            let (_, dweight_want, dbias_want) =
                reference::linear_backward(&dout_is, &inp_is, &weight_is, SMALL);
            Ok(vec![(dweight, dweight_want), (dbias, dbias_want)])
        },
        |b| {
            let (device, LinearShape { rows, n_in, n_out }) = (b.device, large);
            let (dout, inp) = (b.zeros(b.dtype, rows * n_out), b.zeros(b.dtype, rows * n_in));
            let (mut dweight, mut dbias) = (b.zeros(DType::F32, n_out * n_in), b.zeros(DType::F32, n_out));
            let mut work = b
                .zeros(DType::F32, D::linear_backward_weight_work_numel(large, DType::F32, b.dtype, b.dtype));
            Ok(Timed {
                shape: in_words(large),
                bytes: dout.bytes() + inp.bytes() + dweight.bytes(),
                flops: flops(large),
                call: Box::new(move || {
                    let (dw, db, w) = (dweight.view_mut(), Some(dbias.view_mut()), work.view_mut());
                    device.linear_backward_weight(dw, db, dout.view(), inp.view(), w, large, false);
                }),
            })
        },
    )
}

/// Logits in f32 from activations of any type.
fn head<D: Device>(b: &mut Bench<'_, D>, large: LinearShape) -> Result<()> {
    b.case(
        "linear_forward head",
        [1e-5, 1e-5],
        |b| {
            let LinearShape { rows, n_in, n_out } = SMALL;
            let ((inp, inp_is), (weight, weight_is)) =
                (b.numbers(b.dtype, rows * n_in)?, b.numbers(b.dtype, n_out * n_in)?);
            let mut out = b.unwritten(DType::F32, rows * n_out);
            let mut work =
                b.zeros(DType::F32, D::linear_forward_work_numel(SMALL, DType::F32, b.dtype, b.dtype));
            b.device.linear_forward(out.view_mut(), inp.view(), weight.view(), None, work.view_mut(), SMALL);
            Ok(vec![(out, reference::linear_forward(&inp_is, &weight_is, &vec![0.0; n_out], SMALL))])
        },
        |b| {
            let (device, LinearShape { rows, n_in, n_out }) = (b.device, large);
            let (inp, weight) = (b.zeros(b.dtype, rows * n_in), b.zeros(b.dtype, n_out * n_in));
            let mut out = b.zeros(DType::F32, rows * n_out);
            let mut work =
                b.zeros(DType::F32, D::linear_forward_work_numel(large, DType::F32, b.dtype, b.dtype));
            Ok(Timed {
                shape: in_words(large),
                bytes: inp.bytes() + weight.bytes() + out.bytes(),
                flops: flops(large),
                call: Box::new(move || {
                    device.linear_forward(
                        out.view_mut(),
                        inp.view(),
                        weight.view(),
                        None,
                        work.view_mut(),
                        large,
                    );
                }),
            })
        },
    )
}
