//! Embedding, norms and what has no neighbours: a check on a small shape that divides nothing, a time on a
//! large one.
//!
//! Tolerances in f32 are a few roundings of sums of such lengths; in bf16 half a unit in the last place of
//! the result, 2^-9, and where a kernel rounds in between (probabilities of attention), several of them.

use super::bench::{Bench, C, ONE_ROUNDING, ROWS, T, Timed};
use crate::backend::Device;
use crate::backend::ops::Columns;
use crate::backend::reference;
use crate::dtype::DType;
use crate::error::Result;

/// Lookup and its gradient.
pub fn embedding<D: Device>(b: &mut Bench<'_, D>) -> Result<()> {
    const V: usize = 31;
    b.case(
        "embedding_forward",
        [1e-6, ONE_ROUNDING],
        |b| {
            let (tokens, ids) = b.tokens(ROWS, V)?;
            let ((wte, wte_is), (wpe, wpe_is)) = (b.numbers(b.dtype, V * C)?, b.numbers(b.dtype, T * C)?);
            let mut out = b.unwritten(b.dtype, ROWS * C);
            b.device.embedding_forward(out.view_mut(), tokens.view(), wte.view(), Some(wpe.view()), T);
            Ok(vec![(out, reference::embedding_forward(&ids, &wte_is, &wpe_is, C, T))])
        },
        |b| {
            let (device, s) = (b.device, b.scale);
            let (tokens, _) = b.tokens(s.rows, s.vocab)?;
            let (wte, wpe) = (b.zeros(b.dtype, s.vocab * s.c), b.zeros(b.dtype, s.t * s.c));
            let mut out = b.zeros(b.dtype, s.rows * s.c);
            Ok(Timed {
                shape: format!("{} x {}", s.rows, s.c),
                bytes: 3 * out.bytes(),
                flops: 0.0,
                call: Box::new(move || {
                    device.embedding_forward(
                        out.view_mut(),
                        tokens.view(),
                        wte.view(),
                        Some(wpe.view()),
                        s.t,
                    );
                }),
            })
        },
    )?;
    b.case(
        "embedding_backward",
        [1e-5, 1e-5],
        |b| {
            let (tokens, ids) = b.tokens(ROWS, V)?;
            let (dout, dout_is) = b.numbers(b.dtype, ROWS * C)?;
            let (mut dwte, mut dwpe) = (b.zeros(DType::F32, V * C), b.unwritten(DType::F32, T * C));
            let mut work =
                b.zeros(DType::U32, D::embedding_backward_work_numel(ROWS, DType::F32, DType::F32));
            let (w, p) = (dwte.view_mut(), dwpe.view_mut());
            b.device.embedding_backward(w, Some(p), dout.view(), tokens.view(), work.view_mut(), T);
            let (wte_want, wpe_want) = reference::embedding_backward(&dout_is, &ids, V, T, C, T);
            Ok(vec![(dwte, wte_want), (dwpe, wpe_want)])
        },
        |b| {
            let (device, s) = (b.device, b.scale);
            let (tokens, _) = b.tokens(s.rows, s.vocab)?;
            let dout = b.zeros(b.dtype, s.rows * s.c);
            let (mut dwte, mut dwpe) = (b.zeros(DType::F32, s.vocab * s.c), b.zeros(DType::F32, s.t * s.c));
            let mut work =
                b.zeros(DType::U32, D::embedding_backward_work_numel(s.rows, DType::F32, DType::F32));
            Ok(Timed {
                shape: format!("{} x {}", s.rows, s.c),
                bytes: 2 * dout.bytes() + 2 * s.rows * s.c * 4,
                flops: 0.0,
                call: Box::new(move || {
                    let (w, p) = (dwte.view_mut(), dwpe.view_mut());
                    device.embedding_backward(w, Some(p), dout.view(), tokens.view(), work.view_mut(), s.t);
                }),
            })
        },
    )
}

/// Layer norm, alone and after an addition.
pub fn layer_norm<D: Device>(b: &mut Bench<'_, D>) -> Result<()> {
    b.case(
        "layer_norm_forward",
        [1e-5, 4.0 * ONE_ROUNDING],
        |b| {
            let (inp, inp_is) = b.numbers(b.dtype, ROWS * C)?;
            let ((weight, weight_is), (bias, bias_is)) = (b.numbers(b.dtype, C)?, b.numbers(b.dtype, C)?);
            let mut out = b.unwritten(b.dtype, ROWS * C);
            let (mut mean, mut rstd) = (b.unwritten(DType::F32, ROWS), b.unwritten(DType::F32, ROWS));
            let (o, m, r) = (out.view_mut(), mean.view_mut(), rstd.view_mut());
            b.device.layer_norm_forward(o, m, r, inp.view(), weight.view(), bias.view());
            let (out_want, mean_want, rstd_want) =
                reference::layer_norm_forward(&inp_is, &weight_is, &bias_is);
            Ok(vec![(out, out_want), (mean, mean_want), (rstd, rstd_want)])
        },
        |b| {
            let (device, s) = (b.device, b.scale);
            let (inp, mut out) = (b.zeros(b.dtype, s.rows * s.c), b.zeros(b.dtype, s.rows * s.c));
            let (weight, bias) = (b.zeros(b.dtype, s.c), b.zeros(b.dtype, s.c));
            let (mut mean, mut rstd) = (b.zeros(DType::F32, s.rows), b.zeros(DType::F32, s.rows));
            Ok(Timed {
                shape: format!("{} x {}", s.rows, s.c),
                bytes: 2 * out.bytes(),
                flops: 0.0,
                call: Box::new(move || {
                    let (o, m, r) = (out.view_mut(), mean.view_mut(), rstd.view_mut());
                    device.layer_norm_forward(o, m, r, inp.view(), weight.view(), bias.view());
                }),
            })
        },
    )?;
    b.case(
        "add_layer_norm_forward",
        [1e-5, 4.0 * ONE_ROUNDING],
        |b| {
            let ((x, x_is), (y, y_is)) = (b.numbers(b.dtype, ROWS * C)?, b.numbers(b.dtype, ROWS * C)?);
            let ((weight, weight_is), (bias, bias_is)) = (b.numbers(b.dtype, C)?, b.numbers(b.dtype, C)?);
            let (mut sum, mut out) = (b.unwritten(b.dtype, ROWS * C), b.unwritten(b.dtype, ROWS * C));
            let (mut mean, mut rstd) = (b.unwritten(DType::F32, ROWS), b.unwritten(DType::F32, ROWS));
            let (s, o, m, r) = (sum.view_mut(), out.view_mut(), mean.view_mut(), rstd.view_mut());
            b.device.add_layer_norm_forward(s, o, m, r, x.view(), y.view(), weight.view(), bias.view());
            // The norm is of the sum as it is stored.
            let stored: Vec<f64> = b.device.read(sum.view())?.iter().map(|&x| f64::from(x)).collect();
            let (out_want, mean_want, rstd_want) =
                reference::layer_norm_forward(&stored, &weight_is, &bias_is);
            let sum_want = x_is.iter().zip(y_is).map(|(x, y)| x + y).collect();
            Ok(vec![(sum, sum_want), (out, out_want), (mean, mean_want), (rstd, rstd_want)])
        },
        |b| {
            let (device, s) = (b.device, b.scale);
            let n = s.rows * s.c;
            let (x, y, mut sum, mut out) =
                (b.zeros(b.dtype, n), b.zeros(b.dtype, n), b.zeros(b.dtype, n), b.zeros(b.dtype, n));
            let (weight, bias) = (b.zeros(b.dtype, s.c), b.zeros(b.dtype, s.c));
            let (mut mean, mut rstd) = (b.zeros(DType::F32, s.rows), b.zeros(DType::F32, s.rows));
            Ok(Timed {
                shape: format!("{} x {}", s.rows, s.c),
                bytes: 4 * out.bytes(),
                flops: 0.0,
                call: Box::new(move || {
                    let (s, o, m, r) = (sum.view_mut(), out.view_mut(), mean.view_mut(), rstd.view_mut());
                    device.add_layer_norm_forward(s, o, m, r, x.view(), y.view(), weight.view(), bias.view());
                }),
            })
        },
    )?;
    b.case(
        "layer_norm_backward",
        [1e-4, 8.0 * ONE_ROUNDING],
        |b| {
            let ((dout, dout_is), (inp, inp_is)) =
                (b.numbers(b.dtype, ROWS * C)?, b.numbers(b.dtype, ROWS * C)?);
            let ((weight, weight_is), (bias, _)) = (b.numbers(b.dtype, C)?, b.numbers(b.dtype, C)?);
            let (mut mean, mut rstd) = (b.zeros(DType::F32, ROWS), b.zeros(DType::F32, ROWS));
            let mut out = b.zeros(b.dtype, ROWS * C);
            let (o, m, r) = (out.view_mut(), mean.view_mut(), rstd.view_mut());
            b.device.layer_norm_forward(o, m, r, inp.view(), weight.view(), bias.view());
            let mut dinp = b.zeros(b.dtype, ROWS * C);
            let (mut dweight, mut dbias) = (b.unwritten(DType::F32, C), b.unwritten(DType::F32, C));
            let mut work = b.zeros(DType::F32, D::layer_norm_work_numel(ROWS, C));
            b.device.layer_norm_backward(
                dinp.view_mut(),
                dweight.view_mut(),
                dbias.view_mut(),
                dout.view(),
                inp.view(),
                weight.view(),
                mean.view(),
                rstd.view(),
                work.view_mut(),
            );
            let (dinp_want, dweight_want, dbias_want) =
                reference::layer_norm_backward(&dout_is, &inp_is, &weight_is);
            Ok(vec![(dinp, dinp_want), (dweight, dweight_want), (dbias, dbias_want)])
        },
        |b| {
            let (device, s) = (b.device, b.scale);
            let (dout, inp) = (b.zeros(b.dtype, s.rows * s.c), b.zeros(b.dtype, s.rows * s.c));
            let (weight, mut dinp) = (b.zeros(b.dtype, s.c), b.zeros(b.dtype, s.rows * s.c));
            let (mean, rstd) = (b.zeros(DType::F32, s.rows), b.zeros(DType::F32, s.rows));
            let (mut dweight, mut dbias) = (b.zeros(DType::F32, s.c), b.zeros(DType::F32, s.c));
            let mut work = b.zeros(DType::F32, D::layer_norm_work_numel(s.rows, s.c));
            Ok(Timed {
                shape: format!("{} x {}", s.rows, s.c),
                bytes: 4 * dinp.bytes(),
                flops: 0.0,
                call: Box::new(move || {
                    device.layer_norm_backward(
                        dinp.view_mut(),
                        dweight.view_mut(),
                        dbias.view_mut(),
                        dout.view(),
                        inp.view(),
                        weight.view(),
                        mean.view(),
                        rstd.view(),
                        work.view_mut(),
                    );
                }),
            })
        },
    )
}

/// Additions, casts, GELU, cross entropy and what else works element by element.
pub fn elementwise<D: Device>(b: &mut Bench<'_, D>) -> Result<()> {
    const N: usize = 4099;
    b.case(
        "gelu_forward",
        [1e-6, ONE_ROUNDING],
        |b| {
            let (inp, inp_is) = b.numbers(b.dtype, N)?;
            let mut out = b.unwritten(b.dtype, N);
            b.device.gelu_forward(out.view_mut(), inp.view());
            Ok(vec![(out, reference::gelu_forward(&inp_is))])
        },
        |b| {
            let (device, s) = (b.device, b.scale);
            let (inp, mut out) = (b.zeros(b.dtype, s.rows * 4 * s.c), b.zeros(b.dtype, s.rows * 4 * s.c));
            Ok(Timed {
                shape: format!("{}", out.numel()),
                bytes: 2 * out.bytes(),
                flops: 0.0,
                call: Box::new(move || device.gelu_forward(out.view_mut(), inp.view())),
            })
        },
    )?;
    b.case(
        "gelu_backward",
        [1e-6, ONE_ROUNDING],
        |b| {
            let ((inp, inp_is), (mut dout, dout_is)) = (b.numbers(b.dtype, N)?, b.numbers(b.dtype, N)?);
            b.device.gelu_backward(dout.view_mut(), inp.view());
            Ok(vec![(dout, reference::gelu_backward(&inp_is, &dout_is))])
        },
        |b| {
            let (device, s) = (b.device, b.scale);
            let (inp, mut dout) = (b.zeros(b.dtype, s.rows * 4 * s.c), b.zeros(b.dtype, s.rows * 4 * s.c));
            Ok(Timed {
                shape: format!("{}", dout.numel()),
                bytes: 3 * dout.bytes(),
                flops: 0.0,
                call: Box::new(move || device.gelu_backward(dout.view_mut(), inp.view())),
            })
        },
    )?;
    b.case(
        "add",
        [1e-6, ONE_ROUNDING],
        |b| {
            let ((x, x_is), (y, y_is)) = (b.numbers(b.dtype, N)?, b.numbers(b.dtype, N)?);
            let mut out = b.unwritten(b.dtype, N);
            b.device.add(out.view_mut(), x.view(), y.view());
            Ok(vec![(out, x_is.iter().zip(y_is).map(|(x, y)| x + y).collect())])
        },
        |b| {
            let (device, s) = (b.device, b.scale);
            let n = s.rows * s.c;
            let (x, y, mut out) = (b.zeros(b.dtype, n), b.zeros(b.dtype, n), b.zeros(b.dtype, n));
            Ok(Timed {
                shape: format!("{n}"),
                bytes: 3 * out.bytes(),
                flops: 0.0,
                call: Box::new(move || device.add(out.view_mut(), x.view(), y.view())),
            })
        },
    )?;
    b.case(
        "accumulate",
        [1e-6, 1e-6],
        |b| {
            let ((mut out, out_is), (inp, inp_is)) = (b.numbers(DType::F32, N)?, b.numbers(b.dtype, N)?);
            b.device.accumulate(out.view_mut(), inp.view());
            Ok(vec![(out, out_is.iter().zip(inp_is).map(|(x, y)| x + y).collect())])
        },
        |b| {
            let (device, s) = (b.device, b.scale);
            let n = s.rows * s.c;
            let (mut out, inp) = (b.zeros(DType::F32, n), b.zeros(b.dtype, n));
            Ok(Timed {
                shape: format!("{n}"),
                bytes: 2 * out.bytes() + inp.bytes(),
                flops: 0.0,
                call: Box::new(move || device.accumulate(out.view_mut(), inp.view())),
            })
        },
    )?;
    b.case(
        "copy_columns",
        [0.0, 0.0],
        |b| {
            let (to, from) = (Columns { row: 3 * C, first: C }, Columns { row: C + 16, first: 8 });
            let ((mut out, out_is), (inp, inp_is)) =
                (b.numbers(b.dtype, ROWS * to.row)?, b.numbers(b.dtype, ROWS * from.row)?);
            b.device.copy_columns(out.view_mut(), to, inp.view(), from, C);
            let want =
                reference::copy_columns(&out_is, (to.row, to.first), &inp_is, (from.row, from.first), C);
            Ok(vec![(out, want)])
        },
        |b| {
            let (device, s) = (b.device, b.scale);
            let (to, from) = (Columns { row: 3 * s.c, first: s.c }, Columns { row: s.c, first: 0 });
            let (mut out, inp) = (b.zeros(b.dtype, s.rows * to.row), b.zeros(b.dtype, s.rows * from.row));
            Ok(Timed {
                shape: format!("{} x {}", s.rows, s.c),
                bytes: 2 * inp.bytes(),
                flops: 0.0,
                call: Box::new(move || device.copy_columns(out.view_mut(), to, inp.view(), from, s.c)),
            })
        },
    )?;
    b.case(
        "cast",
        [0.0, ONE_ROUNDING / 2.0],
        |b| {
            let (inp, inp_is) = b.numbers(DType::F32, N)?;
            let mut out = b.unwritten(b.dtype, N);
            b.device.cast(out.view_mut(), inp.view());
            Ok(vec![(out, inp_is)])
        },
        |b| {
            let (device, s) = (b.device, b.scale);
            let n = s.rows * s.c;
            let (mut out, inp) = (b.zeros(b.dtype, n), b.zeros(DType::F32, n));
            Ok(Timed {
                shape: format!("{n}"),
                bytes: out.bytes() + inp.bytes(),
                flops: 0.0,
                call: Box::new(move || device.cast(out.view_mut(), inp.view())),
            })
        },
    )
}
