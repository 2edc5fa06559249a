//! The ends of a step, as in `cases.rs`: the classifier's loss, the norm of the gradient, the update.

use super::bench::{Bench, ONE_ROUNDING, ROWS, Timed};
use crate::backend::Device;
use crate::backend::ops::AdamwStep;
use crate::backend::reference;
use crate::dtype::DType;
use crate::error::Result;
use crate::exact_sum::ExactSum;

/// Runs all of them.
pub fn run<D: Device>(b: &mut Bench<'_, D>) -> Result<()> {
    cross_entropy(b)?;
    sum_of_squares(b)?;
    optimizer(b)
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

/// The exact sum of the norm: not one bit may differ. Its time is that of the launch and of the copy of the bins as well.
fn sum_of_squares<D: Device>(b: &mut Bench<'_, D>) -> Result<()> {
    // More than a block takes at a time.
    const N: usize = (1 << 17) + 3;
    b.case(
        "sum_of_squares",
        [0.0; 2],
        |b| {
            let (inp, inp_is) = b.numbers(b.dtype, N)?;
            let got = b.device.sum_of_squares([inp.view()])?.to_f64();
            // Squares of f32 have 48 bits: their f64 is exact, and the sum of so few is rounded once in a superaccumulator.
            let values: Vec<f32> = inp_is.iter().map(|&x| x as f32).collect();
            let off = (got - ExactSum::of_squares(&values).to_f64()) as f32;
            Ok(vec![(b.filled(DType::F32, &[off])?, vec![0.0])])
        },
        |b| {
            let (device, s) = (b.device, b.scale);
            let inp = b.zeros(b.dtype, 4 * s.c * s.c);
            Ok(Timed {
                shape: format!("{}", inp.numel()),
                bytes: inp.bytes(),
                flops: 0.0,
                call: Box::new(move || _ = device.sum_of_squares([inp.view()])),
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
        "adamw_rounded",
        [ONE_ROUNDING; 2],
        |b| {
            let ((mut master, mut master_is), (grad, grad_is)) = (b.numbers(DType::F32, N)?, b.numbers(b.dtype, N)?);
            let (mut m, mut v) = (b.zeros(DType::F32, N), b.zeros(DType::F32, N));
            let mut param = b.unwritten(DType::Bf16, N);
            let p = Some(param.view_mut());
            b.device.adamw(master.view_mut(), m.view_mut(), v.view_mut(), grad.view(), &step, p);
            let (mut m_is, mut v_is) = (vec![0.0; N], vec![0.0; N]);
            reference::adamw(&mut master_is, &mut m_is, &mut v_is, &grad_is, &step);
            Ok(vec![(param, master_is)])
        },
        |b| {
            let (device, s) = (b.device, b.scale);
            let n = 4 * s.c * s.c;
            let (mut master, grad) = (b.zeros(DType::F32, n), b.zeros(b.dtype, n));
            let (mut m, mut v) = (b.zeros(DType::F32, n), b.zeros(DType::F32, n));
            let mut param = b.zeros(DType::Bf16, n);
            Ok(Timed {
                shape: format!("{n}"),
                bytes: 6 * master.bytes() + grad.bytes() + param.bytes(),
                flops: 0.0,
                call: Box::new(move || {
                    let p = Some(param.view_mut());
                    device.adamw(master.view_mut(), m.view_mut(), v.view_mut(), grad.view(), &step, p);
                }),
            })
        },
    )?;
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
