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
            let mut work = b.zeros(DType::F32, D::linear_forward_work_numel(SMALL, b.dtype, b.dtype, b.dtype));
            let (o, w) = (out.view_mut(), work.view_mut());
            b.device.linear_forward(o, inp.view(), weight.view(), Some(bias.view()), w, SMALL);
            Ok(vec![(out, reference::linear_forward(&inp_is, &weight_is, &bias_is, SMALL))])
        },
        |b| {
            let (device, LinearShape { rows, n_in, n_out }) = (b.device, large);
            let (inp, weight) = (b.zeros(b.dtype, rows * n_in), b.zeros(b.dtype, n_out * n_in));
            let (bias, mut out) = (b.zeros(b.dtype, n_out), b.zeros(b.dtype, rows * n_out));
            let mut work = b.zeros(DType::F32, D::linear_forward_work_numel(large, b.dtype, b.dtype, b.dtype));
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
            let mut work = b.zeros(DType::F32, D::linear_backward_input_work_numel(SMALL, b.dtype, b.dtype, b.dtype));
            b.device.linear_backward_input(dinp.view_mut(), dout.view(), weight.view(), work.view_mut(), SMALL);
            Ok(vec![(dinp, reference::linear_backward(&dout_is, &inp_is, &weight_is, SMALL).0)])
        },
        |b| {
            let (device, LinearShape { rows, n_in, n_out }) = (b.device, large);
            let (dout, weight) = (b.zeros(b.dtype, rows * n_out), b.zeros(b.dtype, n_out * n_in));
            let mut dinp = b.zeros(b.dtype, rows * n_in);
            let mut work = b.zeros(DType::F32, D::linear_backward_input_work_numel(large, b.dtype, b.dtype, b.dtype));
            Ok(Timed {
                shape: in_words(large),
                bytes: dout.bytes() + weight.bytes() + dinp.bytes(),
                flops: flops(large),
                call: Box::new(move || {
                    device.linear_backward_input(dinp.view_mut(), dout.view(), weight.view(), work.view_mut(), large);
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
            let (mut dweight, mut dbias) = (b.unwritten(DType::F32, n_out * n_in), b.unwritten(DType::F32, n_out));
            let mut work =
                b.zeros(DType::F32, D::linear_backward_weight_work_numel(SMALL, DType::F32, b.dtype, b.dtype));
            let (dw, db, w) = (dweight.view_mut(), Some(dbias.view_mut()), work.view_mut());
            b.device.linear_backward_weight(dw, db, dout.view(), inp.view(), w, SMALL, false);
            let weight_is = vec![0.0; n_out * n_in];
            let (_, dweight_want, dbias_want) = reference::linear_backward(&dout_is, &inp_is, &weight_is, SMALL);
            Ok(vec![(dweight, dweight_want), (dbias, dbias_want)])
        },
        |b| {
            let (device, LinearShape { rows, n_in, n_out }) = (b.device, large);
            let (dout, inp) = (b.zeros(b.dtype, rows * n_out), b.zeros(b.dtype, rows * n_in));
            let (mut dweight, mut dbias) = (b.zeros(DType::F32, n_out * n_in), b.zeros(DType::F32, n_out));
            let mut work =
                b.zeros(DType::F32, D::linear_backward_weight_work_numel(large, DType::F32, b.dtype, b.dtype));
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
            let mut work = b.zeros(DType::F32, D::linear_forward_work_numel(SMALL, DType::F32, b.dtype, b.dtype));
            b.device.linear_forward(out.view_mut(), inp.view(), weight.view(), None, work.view_mut(), SMALL);
            Ok(vec![(out, reference::linear_forward(&inp_is, &weight_is, &vec![0.0; n_out], SMALL))])
        },
        |b| {
            let (device, LinearShape { rows, n_in, n_out }) = (b.device, large);
            let (inp, weight) = (b.zeros(b.dtype, rows * n_in), b.zeros(b.dtype, n_out * n_in));
            let mut out = b.zeros(DType::F32, rows * n_out);
            let mut work = b.zeros(DType::F32, D::linear_forward_work_numel(large, DType::F32, b.dtype, b.dtype));
            Ok(Timed {
                shape: in_words(large),
                bytes: inp.bytes() + weight.bytes() + out.bytes(),
                flops: flops(large),
                call: Box::new(move || {
                    device.linear_forward(out.view_mut(), inp.view(), weight.view(), None, work.view_mut(), large);
                }),
            })
        },
    )
}
