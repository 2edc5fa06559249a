//! A whole micro-batch of a small model of each family, unit by unit, in f32 and in mixed precision, with
//! scratch of exactly the planned size.

use super::{BackwardIo, Cached, ForwardIo, LossGrad, LossIo, Model};
use crate::backend::cpu::CpuDevice;
use crate::backend::cpu::host::test_memory::{buf_of, buf_u32, read};
use crate::backend::ops::{AttentionShape, CachedWork};
use crate::backend::{Buf, Ops, View};
use crate::config::Deck;
use crate::dtype::DType;
use crate::params::{Init, Precision, SHARED_GRAD, TensorSpec};

/// Sequences and tokens of a micro-batch.
const B: usize = 2;
const T: usize = 13;
const VOCAB: usize = 31;
const C: usize = 24;
const N_LAYER: usize = 2;

/// What decks of the families say beside the sizes that all have.
const FAMILIES: [&str; 5] = [
    "family = 'gpt2'",
    "family = 'llama'\nn_kv_head = 2\nd_ff = 40\nrope_theta = 100.0",
    "family = 'llama'\nn_kv_head = 6\nd_ff = 40\nrope_theta = 100.0\ntied = true",
    "family = 'qwen3'\nn_kv_head = 2\nd_ff = 40\nrope_theta = 100.0\nhead_dim = 10",
    "family = 'qwen3'\nn_kv_head = 6\nd_ff = 40\nrope_theta = 100.0\nhead_dim = 2\ntied = true",
];

/// A model for `b` sequences of `t` tokens.
fn model(family: &str, b: usize, t: usize, precision: Precision) -> Model {
    let deck = format!(
        "run.dir = 'r'\ndata.train = ['a.u16']\ntrain.steps = 1\n[model]\nn_layer = {N_LAYER}\nn_head = 6\n\
         d_model = {C}\nseq_len = {T}\nvocab_size = {VOCAB}\n{family}"
    );
    Model::new::<CpuDevice>(&Deck::parse(&deck, &[], "a test").unwrap().model, b, t, precision)
}

/// Numbers in [-1, 1) that differ from element to element.
fn spread(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 1001.5 - 1.0).collect()
}

/// Buffers that show what is read before it is written.
fn bufs(specs: &[TensorSpec]) -> Vec<Buf> {
    let buf = |spec: &TensorSpec| match spec.dtype {
        DType::U32 => buf_u32(&vec![u32::MAX; spec.numel]),
        dtype => buf_of(dtype, &vec![f32::NAN; spec.numel]),
    };
    specs.iter().map(buf).collect()
}

/// Losses of the tokens, then the full gradient of every parameter. Parameter `nudged.0` is `nudged.1` times
/// [`direction`] away from where it would be.
fn micro_batch(family: &str, threads: usize, precision: Precision, nudged: (usize, f32)) -> Vec<Vec<f32>> {
    let dev = CpuDevice::new(threads).unwrap();
    let model = model(family, B, T, precision);
    let spec = &model.spec;
    let rows = B * T;
    let params: Vec<Buf> = (spec.params.iter().enumerate())
        .map(|(p, param)| {
            let offset = if param.init == Init::Ones { 1.0 } else { 0.0 };
            let mut xs: Vec<f32> = spread(param.numel(), p).iter().map(|x| offset + 0.1 * x).collect();
            if nudged.0 == p {
                xs.iter_mut().zip(direction(param.numel())).for_each(|(x, d)| *x += nudged.1 * d);
            }
            buf_of(precision.param, &xs)
        })
        .collect();
    let of = |unit: usize| -> Vec<View<'_>> {
        spec.units[unit].params.iter().map(|&p| params[p].view()).collect()
    };
    let grad_dtype = |p: usize| if spec.is_summed(p) { SHARED_GRAD } else { precision.grad };
    let mut grads: Vec<Option<Buf>> = (spec.params.iter().enumerate())
        .map(|(p, param)| Some(buf_of(grad_dtype(p), &vec![f32::NAN; param.numel()])))
        .collect();
    let ids: Vec<u32> = (0..rows).map(|i| (i * 5 % VOCAB) as u32).collect();
    let targets: Vec<u32> = (0..rows).map(|i| (i * 11 % VOCAB) as u32).collect();
    let (tokens, targets) = (buf_u32(&ids), buf_u32(&targets));
    let nan = |dtype, n| buf_of(dtype, &vec![f32::NAN; n]);
    let head = spec.units.len() - 1;
    let mut residual: Vec<Buf> = (0..head).map(|_| nan(precision.activation, rows * C)).collect();
    let mut saved: Vec<Vec<Buf>> = spec.units.iter().map(|unit| bufs(&unit.saved)).collect();
    for (unit, saved) in saved.iter_mut().enumerate().take(head) {
        let (before, rest) = residual.split_at_mut(unit);
        let io = ForwardIo {
            tokens: tokens.view(),
            input: before.last().map(Buf::view),
            out: rest[0].view_mut(),
            saved,
            work: &mut bufs(&spec.units[unit].forward_work),
            cached: None,
        };
        model.forward(&dev, unit, &of(unit), io);
    }
    let (mut losses, mut dresidual) = (nan(DType::F32, rows), nan(precision.activation, rows * C));
    for unit in (0..=head).rev() {
        let ids = &spec.units[unit].params;
        let mut unit_grads: Vec<Buf> = ids.iter().map(|&p| grads[p].take().unwrap()).collect();
        let work = &mut bufs(&spec.units[unit].backward_work);
        let dresidual = dresidual.view_mut();
        if unit == head {
            let backward = Some(LossGrad { scale: 1.0 / rows as f32, dresidual, grads: &mut unit_grads });
            let (targets, input) = (targets.view(), residual[unit - 1].view());
            model.loss(&dev, &of(unit), LossIo { targets, input, losses: losses.view_mut(), work, backward });
        } else {
            let input = (unit > 0).then(|| residual[unit - 1].view());
            let (tokens, saved, grads) = (tokens.view(), &saved[unit][..], &mut unit_grads[..]);
            model.backward(
                &dev,
                unit,
                &of(unit),
                BackwardIo { tokens, input, saved, work, dresidual, grads },
            );
        }
        ids.iter().zip(unit_grads).for_each(|(&p, grad)| grads[p] = Some(grad));
    }
    std::iter::once(read(&losses)).chain(grads.iter().map(|grad| read(grad.as_ref().unwrap()))).collect()
}

/// A direction to move a parameter in.
fn direction(n: usize) -> Vec<f32> {
    spread(n, 77)
}

#[test]
fn mixed_precision_follows_f32_and_keeps_its_bits_on_any_number_of_threads() {
    for family in FAMILIES {
        let run = |threads, precision| micro_batch(family, threads, precision, (0, 0.0));
        let f32_result = run(1, Precision::F32);
        for grad in [DType::Bf16, DType::F32] {
            let precision = Precision { param: DType::Bf16, activation: DType::Bf16, grad };
            let mixed = run(1, precision);
            let bits =
                |result: &[Vec<f32>]| -> Vec<u32> { result.iter().flatten().map(|x| x.to_bits()).collect() };
            for threads in [2, 3] {
                assert_eq!(bits(&run(threads, precision)), bits(&mixed), "{threads} threads, {family:?}");
            }
            for (i, (mixed, exact)) in mixed.iter().zip(&f32_result).enumerate() {
                let norm = |xs: &mut dyn Iterator<Item = f64>| xs.map(|x| x * x).sum::<f64>().sqrt();
                let error = norm(&mut mixed.iter().zip(exact).map(|(a, b)| (a - b) as f64));
                let size = norm(&mut exact.iter().map(|&x| x as f64));
                // Some twenty roundings of 2^-9 on the way through, as a random walk: 1 %; weights themselves
                // are rounded.
                assert!(
                    error <= 0.03 * size,
                    "output {i}: {error} off a vector of length {size}, {family:?}"
                );
            }
        }
    }
}

#[test]
fn gradients_are_finite_differences_of_the_loss() {
    const H: f32 = 2e-3;
    for family in FAMILIES {
        let exact = micro_batch(family, 1, Precision::F32, (0, 0.0));
        let mean = |losses: &[f32]| losses.iter().map(|&x| x as f64).sum::<f64>() / losses.len() as f64;
        let spec = model(family, B, T, Precision::F32).spec;
        for (p, param) in spec.params.iter().enumerate() {
            let loss = |h| mean(&micro_batch(family, 1, Precision::F32, (p, h))[0]);
            let difference = (loss(H) - loss(-H)) / f64::from(2.0 * H);
            let products =
                exact[1 + p].iter().zip(direction(param.numel())).map(|(&g, d)| g as f64 * d as f64);
            let (slope, size) = products.fold((0.0, 0.0), |(sum, size), x| (sum + x, size + x.abs()));
            // A mean of losses of size 4 is good to some 1e-7, which 2 H divides; the third derivative adds
            // about H^2.
            let tolerance = 1e-4 + 0.01 * size.min(slope.abs()) + 1e-3 * size;
            let error = (difference - slope).abs();
            assert!(error <= tolerance, "{}: {difference} against {slope}, {family:?}", param.name);
        }
    }
}

/// The residual stream after the last block of one sequence, fed `rows` rows at a time over what was kept.
fn rows_at_a_time(family: &str, tokens: &[u32], rows: usize) -> Vec<f32> {
    let dev = CpuDevice::new(1).unwrap();
    let model = model(family, 1, rows, Precision::F32);
    let spec = &model.spec;
    let params: Vec<Buf> = (spec.params.iter().enumerate())
        .map(|(p, param)| {
            buf_of(DType::F32, &spread(param.numel(), p).iter().map(|x| 0.3 * x).collect::<Vec<_>>())
        })
        .collect();
    let (t, shape) = (tokens.len(), model.attention_shape());
    let nan = |n: usize| buf_of(DType::F32, &vec![f32::NAN; n]);
    let mut kept: Vec<Buf> = (0..N_LAYER).map(|_| nan(t * shape.qkv_row())).collect();
    let whole = AttentionShape { t, ..shape };
    let (mut out, mut lse) = (nan(t * shape.out_row()), nan(t * shape.n_heads));
    let mut work = nan(CpuDevice::attention_forward_work_numel(whole, DType::F32));
    let mut last = Vec::new();
    for first in (0..t).step_by(rows) {
        let ids = buf_u32(&tokens[first..first + rows]);
        let mut residual: Vec<Buf> = Vec::new();
        for unit in 0..spec.units.len() - 1 {
            let mut now = nan(rows * C);
            let of: Vec<View<'_>> = spec.units[unit].params.iter().map(|&p| params[p].view()).collect();
            let cached = Cached {
                first,
                qkv: unit.checked_sub(1).map(|block| &mut kept[block]),
                work: CachedWork { out: out.view_mut(), lse: lse.view_mut(), work: work.view_mut() },
            };
            let io = ForwardIo {
                tokens: ids.view(),
                input: residual.last().map(Buf::view),
                out: now.view_mut(),
                saved: &mut bufs(&spec.units[unit].saved),
                work: &mut bufs(&spec.units[unit].forward_work),
                cached: (rows < t).then_some(cached),
            };
            model.forward(&dev, unit, &of, io);
            residual.push(now);
        }
        last.extend(read(residual.last().unwrap()));
    }
    last
}

#[test]
fn rows_that_follow_kept_ones_are_those_of_the_whole_sequence() {
    let tokens: Vec<u32> = (0..12).map(|i| i * 5 % VOCAB as u32).collect();
    for family in FAMILIES {
        let whole = rows_at_a_time(family, &tokens, 12);
        for rows in [1, 4] {
            for (i, (a, b)) in rows_at_a_time(family, &tokens, rows).iter().zip(&whole).enumerate() {
                // Other sums of the same terms: a few roundings of numbers of size 1.
                assert!(
                    (a - b).abs() < 2e-5 * b.abs().max(1.0),
                    "element {i}: {a}, {b} at once, {rows} rows, {family:?}"
                );
            }
        }
    }
}
