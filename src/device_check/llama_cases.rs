//! The kernels that only a Llama uses, as in `cases.rs`.

use super::bench::{Bench, C, ONE_ROUNDING, ROWS, Timed};
use crate::backend::Device;
use crate::backend::ops::{AttentionShape, Rotation};
use crate::backend::reference;
use crate::dtype::DType;
use crate::error::Result;

const EPS: f32 = 1e-5;

/// Runs all of them.
pub fn run<D: Device>(b: &mut Bench<'_, D>) -> Result<()> {
    rms_norm(b)?;
    rope(b)?;
    swiglu(b)
}

fn rms_norm<D: Device>(b: &mut Bench<'_, D>) -> Result<()> {
    b.case(
        "rms_norm_forward",
        [1e-5, 4.0 * ONE_ROUNDING],
        |b| {
            let ((inp, inp_is), (weight, weight_is)) =
                (b.numbers(b.dtype, ROWS * C)?, b.numbers(b.dtype, C)?);
            let (mut out, mut rstd) = (b.unwritten(b.dtype, ROWS * C), b.unwritten(DType::F32, ROWS));
            b.device.rms_norm_forward(out.view_mut(), rstd.view_mut(), inp.view(), weight.view(), EPS);
            let (out_want, rstd_want) = reference::rms_norm_forward(&inp_is, &weight_is, EPS.into());
            Ok(vec![(out, out_want), (rstd, rstd_want)])
        },
        |b| {
            let (device, s) = (b.device, b.scale);
            let (inp, mut out) = (b.zeros(b.dtype, s.rows * s.c), b.zeros(b.dtype, s.rows * s.c));
            let (weight, mut rstd) = (b.zeros(b.dtype, s.c), b.zeros(DType::F32, s.rows));
            Ok(Timed {
                shape: format!("{} x {}", s.rows, s.c),
                bytes: 2 * out.bytes(),
                flops: 0.0,
                call: Box::new(move || {
                    device.rms_norm_forward(out.view_mut(), rstd.view_mut(), inp.view(), weight.view(), EPS);
                }),
            })
        },
    )?;
    b.case(
        "rms_norm_backward",
        [1e-4, 8.0 * ONE_ROUNDING],
        |b| {
            let ((dout, dout_is), (inp, inp_is)) =
                (b.numbers(b.dtype, ROWS * C)?, b.numbers(b.dtype, ROWS * C)?);
            let (weight, weight_is) = b.numbers(b.dtype, C)?;
            let (mut out, mut rstd) = (b.zeros(b.dtype, ROWS * C), b.zeros(DType::F32, ROWS));
            b.device.rms_norm_forward(out.view_mut(), rstd.view_mut(), inp.view(), weight.view(), EPS);
            let (mut dinp, mut dweight) = (b.zeros(b.dtype, ROWS * C), b.unwritten(DType::F32, C));
            let mut work = b.zeros(DType::F32, D::rms_norm_work_numel(ROWS, C));
            b.device.rms_norm_backward(
                dinp.view_mut(),
                dweight.view_mut(),
                dout.view(),
                inp.view(),
                weight.view(),
                rstd.view(),
                work.view_mut(),
            );
            let (dinp_want, dweight_want) =
                reference::rms_norm_backward(&dout_is, &inp_is, &weight_is, EPS.into());
            Ok(vec![(dinp, dinp_want), (dweight, dweight_want)])
        },
        |b| {
            let (device, s) = (b.device, b.scale);
            let (dout, inp) = (b.zeros(b.dtype, s.rows * s.c), b.zeros(b.dtype, s.rows * s.c));
            let (weight, mut dinp) = (b.zeros(b.dtype, s.c), b.zeros(b.dtype, s.rows * s.c));
            let (rstd, mut dweight) = (b.zeros(DType::F32, s.rows), b.zeros(DType::F32, s.c));
            let mut work = b.zeros(DType::F32, D::rms_norm_work_numel(s.rows, s.c));
            Ok(Timed {
                shape: format!("{} x {}", s.rows, s.c),
                bytes: 4 * dinp.bytes(),
                flops: 0.0,
                call: Box::new(move || {
                    device.rms_norm_backward(
                        dinp.view_mut(),
                        dweight.view_mut(),
                        dout.view(),
                        inp.view(),
                        weight.view(),
                        rstd.view(),
                        work.view_mut(),
                    );
                }),
            })
        },
    )
}

fn rope<D: Device>(b: &mut Bench<'_, D>) -> Result<()> {
    let small = AttentionShape { b: 2, t: 67, n_heads: 4, n_kv_heads: 2, d_head: 24 };
    let rotation = Rotation { first: 3, theta: 10_000.0, inverse: false };
    b.case(
        "rope",
        [1e-6, ONE_ROUNDING],
        |b| {
            let (mut qkv, qkv_is) = b.numbers(b.dtype, small.b * small.t * small.qkv_row())?;
            let mut work = b.zeros(DType::F32, D::rope_work_numel(small));
            b.device.rope(qkv.view_mut(), work.view_mut(), small, rotation);
            Ok(vec![(qkv, reference::rope(&qkv_is, small, rotation))])
        },
        |b| {
            let (device, s) = (b.device, b.scale);
            let (n_heads, d_head) = (s.n_heads, s.c / s.n_heads);
            let large = AttentionShape { b: s.rows / s.t, t: s.t, n_heads, n_kv_heads: n_heads, d_head };
            let mut qkv = b.zeros(b.dtype, s.rows * large.qkv_row());
            let mut work = b.zeros(DType::F32, D::rope_work_numel(large));
            Ok(Timed {
                shape: format!("{} x {} x {d_head}", s.rows, 2 * n_heads),
                bytes: 2 * qkv.bytes() / 3 * 2,
                flops: 0.0,
                call: Box::new(move || device.rope(qkv.view_mut(), work.view_mut(), large, rotation)),
            })
        },
    )
}

fn swiglu<D: Device>(b: &mut Bench<'_, D>) -> Result<()> {
    b.case(
        "swiglu_forward",
        [1e-6, ONE_ROUNDING],
        |b| {
            let (gate_up, gate_up_is) = b.numbers(b.dtype, ROWS * 2 * C)?;
            let mut out = b.unwritten(b.dtype, ROWS * C);
            b.device.swiglu_forward(out.view_mut(), gate_up.view(), C);
            Ok(vec![(out, reference::swiglu_forward(&gate_up_is, C))])
        },
        |b| {
            let (device, s) = (b.device, b.scale);
            let f = 4 * s.c;
            let (gate_up, mut out) = (b.zeros(b.dtype, s.rows * 2 * f), b.zeros(b.dtype, s.rows * f));
            Ok(Timed {
                shape: format!("{} x {f}", s.rows),
                bytes: gate_up.bytes() + out.bytes(),
                flops: 0.0,
                call: Box::new(move || device.swiglu_forward(out.view_mut(), gate_up.view(), f)),
            })
        },
    )?;
    b.case(
        "swiglu_backward",
        [1e-6, ONE_ROUNDING],
        |b| {
            let ((gate_up, gate_up_is), (dout, dout_is)) =
                (b.numbers(b.dtype, ROWS * 2 * C)?, b.numbers(b.dtype, ROWS * C)?);
            let mut dgate_up = b.unwritten(b.dtype, ROWS * 2 * C);
            b.device.swiglu_backward(dgate_up.view_mut(), dout.view(), gate_up.view(), C);
            Ok(vec![(dgate_up, reference::swiglu_backward(&dout_is, &gate_up_is, C))])
        },
        |b| {
            let (device, s) = (b.device, b.scale);
            let f = 4 * s.c;
            let (gate_up, dout) = (b.zeros(b.dtype, s.rows * 2 * f), b.zeros(b.dtype, s.rows * f));
            let mut dgate_up = b.zeros(b.dtype, s.rows * 2 * f);
            Ok(Timed {
                shape: format!("{} x {f}", s.rows),
                bytes: 2 * gate_up.bytes() + dout.bytes(),
                flops: 0.0,
                call: Box::new(move || {
                    device.swiglu_backward(dgate_up.view_mut(), dout.view(), gate_up.view(), f)
                }),
            })
        },
    )
}
