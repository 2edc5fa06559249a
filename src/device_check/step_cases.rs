//! The ends of a step, as in `cases.rs`: the classifier's loss, the norm of the gradient, the update.

use super::bench::{Bench, ONE_ROUNDING, ROWS, Timed};
use crate::backend::Device;
use crate::backend::reference;
use crate::dtype::DType;
use crate::error::Result;
use crate::exact_sum::ExactSum;
use crate::optimizers::{OptimState, OptimStates, OptimizerKind, UpdateNow, UpdateStep};

/// Runs all of them.
pub fn run<D: Device>(b: &mut Bench<'_, D>) -> Result<()> {
    cross_entropy(b)?;
    sum_of_squares(b)?;
    optimizers(b)
}

fn cross_entropy<D: Device>(b: &mut Bench<'_, D>) -> Result<()> {
    const V: usize = 517;
    let scale = 1.0 / 8.0;
    b.case(
        "cross_entropy",
        [1e-5, 1e-5],
        |b| {
            let ((mut logits, logits_are), (targets, ids)) =
                (b.numbers(DType::F32, ROWS * V)?, b.tokens(ROWS, V)?);
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

/// The exact sum of the norm: not one bit may differ. Its time is that of the launch and of the copy of the
/// bins as well.
fn sum_of_squares<D: Device>(b: &mut Bench<'_, D>) -> Result<()> {
    // More than a block takes at a time.
    const N: usize = (1 << 17) + 3;
    b.case(
        "sum_of_squares",
        [0.0; 2],
        |b| {
            let (inp, inp_is) = b.numbers(b.dtype, N)?;
            let got = b.device.sum_of_squares([inp.view()])?.to_f64();
            // Squares of f32 have 48 bits: their f64 is exact, and the sum of so few is rounded once in a
            // superaccumulator.
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

/// Every optimizer, without and with the rounded parameter beside the master.
fn optimizers<D: Device>(b: &mut Bench<'_, D>) -> Result<()> {
    for &kind in OptimizerKind::ALL {
        let (hyper, now) =
            (kind.default_hyper(0.1), UpdateNow { step: 3, lr: 1e-3, grad_scale: 0.5, decays: true });
        let (step, kept) = (UpdateStep::new(kind, &hyper, &now), kind.states(&hyper));
        update(b, step, kept, true)?;
        update(b, step, kept, false)?;
    }
    Ok(())
}

fn update<D: Device>(
    b: &mut Bench<'_, D>,
    step: UpdateStep,
    kept: &[OptimState],
    rounded: bool,
) -> Result<()> {
    const N: usize = 4099;
    let kind = step.kind();
    b.case(
        if rounded { format!("{kind}_rounded") } else { kind.name().into() },
        if rounded { [ONE_ROUNDING; 2] } else { [1e-6, 1e-6] },
        |b| {
            let ((mut master, mut master_is), (grad, grad_is)) =
                (b.numbers(DType::F32, N)?, b.numbers(b.dtype, N)?);
            let mut states = OptimStates::of(kept, |_| b.zeros(DType::F32, N));
            let mut param = rounded.then(|| b.unwritten(DType::Bf16, N));
            let views = states.each_mut().map(|state| state.view_mut());
            b.device.update(
                master.view_mut(),
                views,
                grad.view(),
                &step,
                param.as_mut().map(|p| p.view_mut()),
            );
            let mut states_are = OptimStates::of(kept, |_| vec![0.0; N]);
            step.reference(&mut master_is, &mut states_are, &grad_is);
            if let Some(param) = param {
                return Ok(vec![(param, master_is)]);
            }
            let mut results = vec![(master, master_is)];
            for &state in kept {
                results.extend(states.take(state).zip(states_are.take(state)));
            }
            Ok(results)
        },
        |b| {
            let (device, s) = (b.device, b.scale);
            let n = 4 * s.c * s.c;
            let (mut master, grad) = (b.zeros(DType::F32, n), b.zeros(b.dtype, n));
            let mut states = OptimStates::of(kept, |_| b.zeros(DType::F32, n));
            let mut param = rounded.then(|| b.zeros(DType::Bf16, n));
            let rounded_bytes = param.as_ref().map_or(0, |param| param.bytes());
            Ok(Timed {
                shape: format!("{n}"),
                bytes: 2 * (1 + kept.len()) * master.bytes() + grad.bytes() + rounded_bytes,
                flops: 0.0,
                call: Box::new(move || {
                    let states = states.each_mut().map(|state| state.view_mut());
                    let param = param.as_mut().map(|param| param.view_mut());
                    device.update(master.view_mut(), states, grad.view(), &step, param);
                }),
            })
        },
    )
}
