//! Attention, forward and backward, as in `cases.rs`.

use super::bench::{Bench, ONE_ROUNDING, Scale, Timed};
use crate::backend::Device;
use crate::backend::ops::AttentionShape;
use crate::backend::reference;
use crate::dtype::DType;
use crate::error::Result;

/// Runs both.
pub fn run<D: Device>(b: &mut Bench<'_, D>) -> Result<()> {
    // Over one tile of queries and keys, and heads that share keys; as wide as each width of tiles, and
    // narrower.
    let small =
        [24, 64, 80, 128].map(|d_head| AttentionShape { b: 2, t: 67, n_heads: 4, n_kv_heads: 2, d_head });
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
            let mut checked = Vec::new();
            for small in small {
                let (qkv_numel, out_numel, lse_numel) = numel(small);
                let (qkv, qkv_is) = b.numbers(b.dtype, qkv_numel)?;
                let (mut out, mut lse) =
                    (b.unwritten(b.dtype, out_numel), b.unwritten(DType::F32, lse_numel));
                let mut work = b.zeros(DType::F32, D::attention_forward_work_numel(small, b.dtype));
                b.device.attention_forward(
                    out.view_mut(),
                    lse.view_mut(),
                    qkv.view(),
                    work.view_mut(),
                    small,
                );
                let (out_want, lse_want) = reference::attention_forward(&qkv_is, small);
                checked.extend([(out, out_want), (lse, lse_want)]);
            }
            Ok(checked)
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
                    device.attention_forward(
                        out.view_mut(),
                        lse.view_mut(),
                        qkv.view(),
                        work.view_mut(),
                        large,
                    );
                }),
            })
        },
    )?;
    b.case(
        "attention_backward",
        [1e-4, 16.0 * ONE_ROUNDING],
        |b| {
            let mut checked = Vec::new();
            for small in small {
                let (qkv_numel, out_numel, lse_numel) = numel(small);
                let ((qkv, qkv_is), (dout, dout_is)) =
                    (b.numbers(b.dtype, qkv_numel)?, b.numbers(b.dtype, out_numel)?);
                let (mut out, mut lse) = (b.zeros(b.dtype, out_numel), b.zeros(DType::F32, lse_numel));
                let mut work = b.zeros(DType::F32, D::attention_forward_work_numel(small, b.dtype));
                b.device.attention_forward(
                    out.view_mut(),
                    lse.view_mut(),
                    qkv.view(),
                    work.view_mut(),
                    small,
                );
                let mut dqkv = b.unwritten(b.dtype, qkv_numel);
                let mut work = b.zeros(DType::F32, D::attention_backward_work_numel(small, b.dtype));
                let (dq, w) = (dqkv.view_mut(), work.view_mut());
                b.device.attention_backward(dq, dout.view(), qkv.view(), out.view(), lse.view(), w, small);
                checked.push((dqkv, reference::attention_backward(&dout_is, &qkv_is, small)));
            }
            Ok(checked)
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
