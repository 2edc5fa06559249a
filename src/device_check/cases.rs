//! The kernels that are no products: a check on a small shape that divides nothing, a time on a large one.
//!
//! Tolerances in f32 are a few roundings of sums of such lengths; in bf16 half a unit in the last place of the result, 2^-9,
//! and where a kernel rounds in between (probabilities of attention), several of them.

use super::Scale;
use super::bench::{Bench, Timed};
use crate::backend::Device;
use crate::backend::ops::{AdamwStep, AttentionShape};
use crate::backend::reference;
use crate::dtype::DType;
use crate::error::Result;

/// Rows, tokens per sequence and width of a check.
pub(super) const ROWS: usize = 39;
const T: usize = 13;
pub(super) const C: usize = 72;

/// One rounding to bf16.
pub(super) const ONE_ROUNDING: f64 = 1.0 / 256.0;

/// Runs all of them.
pub fn run<D: Device>(b: &mut Bench<'_, D>) -> Result<()> {
    embedding(b)?;
    layer_norm(b)?;
    super::llama_cases::run(b)?;
    elementwise(b)?;
    attention(b)?;
    cross_entropy(b)?;
    optimizer(b)
}

fn embedding<D: Device>(b: &mut Bench<'_, D>) -> Result<()> {
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
                    device.embedding_forward(out.view_mut(), tokens.view(), wte.view(), Some(wpe.view()), s.t);
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
            let mut work = b.zeros(DType::U32, D::embedding_backward_work_numel(ROWS, DType::F32, DType::F32));
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
            let mut work = b.zeros(DType::U32, D::embedding_backward_work_numel(s.rows, DType::F32, DType::F32));
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

fn layer_norm<D: Device>(b: &mut Bench<'_, D>) -> Result<()> {
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
            let (out_want, mean_want, rstd_want) = reference::layer_norm_forward(&inp_is, &weight_is, &bias_is);
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
        "layer_norm_backward",
        [1e-4, 8.0 * ONE_ROUNDING],
        |b| {
            let ((dout, dout_is), (inp, inp_is)) = (b.numbers(b.dtype, ROWS * C)?, b.numbers(b.dtype, ROWS * C)?);
            let ((weight, weight_is), (bias, bias_is)) = (b.numbers(b.dtype, C)?, b.numbers(b.dtype, C)?);
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
            let _ = bias_is;
            let (dinp_want, dweight_want, dbias_want) = reference::layer_norm_backward(&dout_is, &inp_is, &weight_is);
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

fn elementwise<D: Device>(b: &mut Bench<'_, D>) -> Result<()> {
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

fn attention<D: Device>(b: &mut Bench<'_, D>) -> Result<()> {
    // Over one tile of queries and keys, and heads that share keys.
    let small = AttentionShape { b: 2, t: 67, n_heads: 4, n_kv_heads: 2, d_head: 24 };
    let Scale { rows, t, c, n_heads, .. } = b.scale;
    let large = AttentionShape { b: rows / t, t, n_heads, n_kv_heads: n_heads, d_head: c / n_heads };
    let numel = |s: AttentionShape| (s.b * s.t * s.qkv_row(), s.b * s.t * s.out_row(), s.b * s.n_heads * s.t);
    // Scores and their product with the values: of a causal mask half.
    let flops = 4.0 * (rows * t * c) as f64 / 2.0;
    let shape = format!("{} x {} x {} x {}", large.b, t, n_heads, large.d_head);
    let label = shape.clone();
    b.case(
        "attention_forward",
        [1e-5, 4.0 * ONE_ROUNDING],
        |b| {
            let (qkv_numel, out_numel, lse_numel) = numel(small);
            let (qkv, qkv_is) = b.numbers(b.dtype, qkv_numel)?;
            let (mut out, mut lse) = (b.unwritten(b.dtype, out_numel), b.unwritten(DType::F32, lse_numel));
            let mut work = b.zeros(DType::F32, D::attention_forward_work_numel(small, b.dtype));
            b.device.attention_forward(out.view_mut(), lse.view_mut(), qkv.view(), work.view_mut(), small);
            let (out_want, lse_want) = reference::attention_forward(&qkv_is, small);
            Ok(vec![(out, out_want), (lse, lse_want)])
        },
        |b| {
            let device = b.device;
            let (qkv_numel, out_numel, lse_numel) = numel(large);
            let (qkv, mut out) = (b.zeros(b.dtype, qkv_numel), b.zeros(b.dtype, out_numel));
            let mut lse = b.zeros(DType::F32, lse_numel);
            let mut work = b.zeros(DType::F32, D::attention_forward_work_numel(large, b.dtype));
            Ok(Timed {
                shape: label,
                bytes: qkv.bytes() + out.bytes(),
                flops,
                call: Box::new(move || {
                    device.attention_forward(out.view_mut(), lse.view_mut(), qkv.view(), work.view_mut(), large);
                }),
            })
        },
    )?;
    b.case(
        "attention_backward",
        [1e-4, 16.0 * ONE_ROUNDING],
        |b| {
            let (qkv_numel, out_numel, lse_numel) = numel(small);
            let ((qkv, qkv_is), (dout, dout_is)) = (b.numbers(b.dtype, qkv_numel)?, b.numbers(b.dtype, out_numel)?);
            let (mut out, mut lse) = (b.zeros(b.dtype, out_numel), b.zeros(DType::F32, lse_numel));
            let mut work = b.zeros(DType::F32, D::attention_forward_work_numel(small, b.dtype));
            b.device.attention_forward(out.view_mut(), lse.view_mut(), qkv.view(), work.view_mut(), small);
            let mut dqkv = b.unwritten(b.dtype, qkv_numel);
            let mut work = b.zeros(DType::F32, D::attention_backward_work_numel(small, b.dtype));
            b.device.attention_backward(
                dqkv.view_mut(),
                dout.view(),
                qkv.view(),
                out.view(),
                lse.view(),
                work.view_mut(),
                small,
            );
            Ok(vec![(dqkv, reference::attention_backward(&dout_is, &qkv_is, small))])
        },
        |b| {
            let device = b.device;
            let (qkv_numel, out_numel, lse_numel) = numel(large);
            let (qkv, dout) = (b.zeros(b.dtype, qkv_numel), b.zeros(b.dtype, out_numel));
            let (out, lse) = (b.zeros(b.dtype, out_numel), b.zeros(DType::F32, lse_numel));
            let mut dqkv = b.zeros(b.dtype, qkv_numel);
            let mut work = b.zeros(DType::F32, D::attention_backward_work_numel(large, b.dtype));
            Ok(Timed {
                shape,
                bytes: 2 * qkv.bytes() + 2 * out.bytes(),
                flops: 2.5 * flops,
                call: Box::new(move || {
                    device.attention_backward(
                        dqkv.view_mut(),
                        dout.view(),
                        qkv.view(),
                        out.view(),
                        lse.view(),
                        work.view_mut(),
                        large,
                    );
                }),
            })
        },
    )
}

fn cross_entropy<D: Device>(b: &mut Bench<'_, D>) -> Result<()> {
    const V: usize = 517;
    let scale = 1.0 / 8.0;
    b.case(
        "cross_entropy",
        [1e-5, 1e-5],
        |b| {
            let ((mut logits, logits_are), (targets, ids)) = (b.numbers(DType::F32, ROWS * V)?, b.tokens(ROWS, V)?);
            let mut losses = b.unwritten(DType::F32, ROWS);
            b.device.cross_entropy(logits.view_mut(), losses.view_mut(), targets.view(), Some(scale));
            let (losses_want, dlogits_want) = reference::cross_entropy(&logits_are, &ids, f64::from(scale));
            Ok(vec![(losses, losses_want), (logits, dlogits_want)])
        },
        |b| {
            let (device, s) = (b.device, b.scale);
            let rows = s.rows.min(1024);
            let (targets, _) = b.tokens(rows, s.vocab)?;
            let (mut logits, mut losses) = (b.zeros(DType::F32, rows * s.vocab), b.zeros(DType::F32, rows));
            Ok(Timed {
                shape: format!("{rows} x {}", s.vocab),
                bytes: 2 * logits.bytes(),
                flops: 0.0,
                call: Box::new(move || {
                    device.cross_entropy(logits.view_mut(), losses.view_mut(), targets.view(), Some(scale));
                }),
            })
        },
    )
}

fn optimizer<D: Device>(b: &mut Bench<'_, D>) -> Result<()> {
    const N: usize = 4099;
    let step = AdamwStep {
        lr: 1e-3,
        beta1: 0.9,
        beta2: 0.95,
        eps: 1e-8,
        weight_decay: 0.1,
        bias_correction1: 0.271,
        bias_correction2: 0.142_625,
        grad_scale: 0.5,
    };
    b.case(
        "adamw",
        [1e-6, 1e-6],
        |b| {
            let ((mut master, mut master_is), (grad, grad_is)) = (b.numbers(DType::F32, N)?, b.numbers(b.dtype, N)?);
            let (mut m, mut v) = (b.zeros(DType::F32, N), b.zeros(DType::F32, N));
            b.device.adamw(master.view_mut(), m.view_mut(), v.view_mut(), grad.view(), &step, None);
            let (mut m_is, mut v_is) = (vec![0.0; N], vec![0.0; N]);
            reference::adamw(&mut master_is, &mut m_is, &mut v_is, &grad_is, &step);
            Ok(vec![(master, master_is), (m, m_is), (v, v_is)])
        },
        |b| {
            let (device, s) = (b.device, b.scale);
            let n = 4 * s.c * s.c;
            let (mut master, grad) = (b.zeros(DType::F32, n), b.zeros(b.dtype, n));
            let (mut m, mut v) = (b.zeros(DType::F32, n), b.zeros(DType::F32, n));
            Ok(Timed {
                shape: format!("{n}"),
                bytes: 6 * master.bytes() + grad.bytes(),
                flops: 0.0,
                call: Box::new(move || {
                    device.adamw(master.view_mut(), m.view_mut(), v.view_mut(), grad.view(), &step, None);
                }),
            })
        },
    )
}
