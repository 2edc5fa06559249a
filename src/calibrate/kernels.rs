//! Times of every kernel of the cost model on several shapes, on as many ranks at once as have cores to
//! themselves.
//!
//! Must not know: which models are predicted with the result.

use super::fit::{Fit, fit};
use crate::backend::ops::{AttentionShape, LinearShape, Rotation};
use crate::backend::{Backend, Buf, Comm, Device, Ops, Queue};
use crate::config::hardware::Rate;
use crate::dtype::DType;
use crate::error::Result;
use crate::harness::Cluster;
use crate::optimizers::{OptimStates, OptimizerKind, UpdateNow, UpdateStep};
use crate::quantile::median;
use crate::work::{Kernel, Work};
use std::time::{Duration, Instant};

/// Rows, columns in and out of the products: a block's and a head's, narrow and wide.
const PRODUCTS: [(usize, usize, usize); 8] = [
    (256, 96, 288),
    (512, 128, 512),
    (384, 320, 320),
    (768, 256, 1024),
    (1024, 448, 448),
    (512, 768, 1536),
    (512, 1536, 768),
    (256, 256, 8192),
];
/// Sequences, tokens, heads, key/value heads and channels of a head.
const ATTENTIONS: [(usize, usize, usize, usize, usize); 6] = [
    (4, 64, 4, 4, 32),
    (4, 128, 4, 4, 48),
    (2, 256, 8, 4, 32),
    (4, 256, 4, 4, 64),
    (1, 512, 8, 8, 64),
    (2, 384, 4, 2, 96),
];
/// Rows and columns of elementwise kernels and norms.
const PASSES: [(usize, usize); 5] = [(256, 96), (512, 192), (512, 512), (1024, 768), (1024, 2560)];
/// Time of each measurement in a round.
const MEASURE: Duration = Duration::from_millis(10);
/// Calls of each measurement in a round, at least.
const MIN_CALLS: usize = 3;
/// Rounds over all kernels; the quickest round of each counts, since other processes only add to a time.
const ROUNDS: usize = 3;

/// One timed kernel.
#[derive(Debug, Clone, Copy)]
struct KernelSample {
    work: Work,
    seconds: f64,
}

/// A kernel on elements of one type, as measured.
#[derive(Debug, Clone, Copy)]
pub struct MeasuredKernel {
    /// The kernel.
    pub kernel: Kernel,
    /// Type of its elements.
    pub dtype: DType,
    /// Fitted times.
    pub rate: Rate,
    /// Largest relative error of a shape.
    pub worst: f64,
    /// FLOPs per second of the fastest shape.
    pub best_flops: f64,
    /// Bytes per second of the fastest shape.
    pub best_bytes: f64,
}

/// Measures all kernels on the ranks of `group` at once. Collective over it; the same result on each.
pub fn measure<B: Backend>(cluster: &Cluster<'_, B>, group: &B::Comm) -> Result<Vec<MeasuredKernel>> {
    let mut samples: Vec<KernelSample> = Vec::new();
    for _ in 0..ROUNDS {
        let mut bench = KernelBench { cluster, group, samples: Vec::new() };
        bench.all()?;
        let own: Vec<f64> = bench.samples.iter().map(|sample| sample.seconds).collect();
        let all = group.control().all_gather_f64(&own)?;
        for (i, sample) in bench.samples.iter_mut().enumerate() {
            let of_ranks: Vec<f64> = all.iter().skip(i).step_by(own.len()).copied().collect();
            sample.seconds = median(&of_ranks);
        }
        let quickest = |(old, new): (&KernelSample, &KernelSample)| KernelSample {
            seconds: old.seconds.min(new.seconds),
            ..*new
        };
        samples = match samples.is_empty() {
            true => bench.samples,
            false => samples.iter().zip(&bench.samples).map(quickest).collect(),
        };
    }
    Ok(Kernel::all().flat_map(|kernel| fits(kernel, &samples)).collect())
}

fn fits(kernel: Kernel, samples: &[KernelSample]) -> Vec<MeasuredKernel> {
    let of = |dtype: DType| -> Option<MeasuredKernel> {
        let samples: Vec<&KernelSample> =
            samples.iter().filter(|s| s.work.kernel == kernel && s.work.dtype == dtype).collect();
        let rows: Vec<_> = samples.iter().map(|s| ([1.0, s.work.flops, s.work.bytes], s.seconds)).collect();
        let best = |of: fn(&Work) -> f64| samples.iter().map(|s| of(&s.work) / s.seconds).fold(0.0, f64::max);
        (!rows.is_empty()).then(|| {
            let Fit { coefficients: [launch_s, s_per_flop, s_per_byte], worst } = fit(&rows);
            let rate = Rate { launch_s, s_per_flop, s_per_byte };
            MeasuredKernel {
                kernel,
                dtype,
                rate,
                worst,
                best_flops: best(|w| w.flops),
                best_bytes: best(|w| w.bytes),
            }
        })
    };
    [DType::F32, DType::Bf16].into_iter().filter_map(of).collect()
}

struct KernelBench<'a, B: Backend> {
    cluster: &'a Cluster<'a, B>,
    group: &'a B::Comm,
    samples: Vec<KernelSample>,
}

impl<B: Backend> KernelBench<'_, B> {
    /// One round.
    fn all(&mut self) -> Result<()> {
        for dtype in [DType::F32, DType::Bf16] {
            self.products(dtype)?;
            self.attentions(dtype)?;
            self.passes(dtype)?;
            self.embeddings(dtype)?;
            self.slices(dtype)?;
        }
        self.cross_entropies()
    }

    /// Adds the median time of `call` on operands of these sizes; u32 operands are ids below `n_ids`.
    fn sample(
        &mut self,
        work: Work,
        operands: &[(usize, DType)],
        n_ids: usize,
        call: impl Fn(&B::Device, &mut [Buf]),
    ) -> Result<()> {
        let mut bufs = self.cluster.buffers_of(self.group, operands)?;
        for buf in &mut bufs {
            let bytes: Vec<u8> = match buf.dtype() {
                DType::U32 => {
                    (0..buf.numel()).flat_map(|i| ((i * 31 % n_ids) as u32).to_ne_bytes()).collect()
                }
                DType::Bf16 => {
                    (0..buf.numel()).flat_map(|i| half::bf16::from_f32(number(i)).to_ne_bytes()).collect()
                }
                _ => (0..buf.numel()).flat_map(|i| number(i).to_ne_bytes()).collect(),
            };
            self.cluster.device.upload(buf.view_mut(), &bytes)?;
        }
        call(self.cluster.device, &mut bufs);
        self.group.control().barrier()?;
        let (began, mut times) = (Instant::now(), Vec::new());
        while times.len() < MIN_CALLS || began.elapsed() < MEASURE {
            let started = Instant::now();
            call(self.cluster.device, &mut bufs);
            self.cluster.device.when(&self.cluster.device.mark(Queue::Compute))?;
            times.push(started.elapsed().as_secs_f64());
        }
        self.samples.push(KernelSample { work, seconds: median(&times) });
        Ok(())
    }

    fn products(&mut self, a: DType) -> Result<()> {
        for (rows, n_in, n_out) in PRODUCTS {
            let shape = LinearShape { rows, n_in, n_out };
            // The head's logits are f32.
            let wide = if n_out > 4 * n_in.max(512) { DType::F32 } else { a };
            let (i, w, o) = (rows * n_in, n_in * n_out, rows * n_out);
            let work = |kernel| shape.work(kernel, a, wide.bytes(), false);
            let scratch = B::Device::linear_forward_work_numel(shape, wide, a, a);
            let operands = [(o, wide), (i, a), (w, a), (scratch, DType::F32)];
            self.sample(work(Kernel::LinearForward), &operands, 0, |dev, bufs| {
                let [out, inp, weight, work] = bufs else { unreachable!("four operands") };
                dev.linear_forward(out.view_mut(), inp.view(), weight.view(), None, work.view_mut(), shape);
            })?;
            let scratch = B::Device::linear_backward_input_work_numel(shape, a, wide, a);
            let operands = [(i, a), (o, wide), (w, a), (scratch, DType::F32)];
            self.sample(work(Kernel::LinearBackwardInput), &operands, 0, |dev, bufs| {
                let [dinp, dout, weight, work] = bufs else { unreachable!("four operands") };
                dev.linear_backward_input(
                    dinp.view_mut(),
                    dout.view(),
                    weight.view(),
                    work.view_mut(),
                    shape,
                );
            })?;
            let scratch = B::Device::linear_backward_weight_work_numel(shape, a, wide, a);
            let operands = [(w, a), (o, wide), (i, a), (scratch, DType::F32)];
            self.sample(work(Kernel::LinearBackwardWeight), &operands, 0, |dev, bufs| {
                let [dweight, dout, inp, work] = bufs else { unreachable!("four operands") };
                let (dout, inp) = (dout.view(), inp.view());
                dev.linear_backward_weight(
                    dweight.view_mut(),
                    None,
                    dout,
                    inp,
                    work.view_mut(),
                    shape,
                    false,
                );
            })?;
        }
        Ok(())
    }

    fn attentions(&mut self, a: DType) -> Result<()> {
        for (b, t, n_heads, n_kv_heads, d_head) in ATTENTIONS {
            let shape = AttentionShape { b, t, n_heads, n_kv_heads, d_head };
            let (qkv, out) = (b * t * shape.qkv_row(), b * t * shape.out_row());
            let lse = (b * t * n_heads, DType::F32);
            let scratch = B::Device::attention_forward_work_numel(shape, a);
            let operands = [(out, a), lse, (qkv, a), (scratch, DType::F32)];
            self.sample(shape.work(Kernel::AttentionForward, a), &operands, 0, |dev, bufs| {
                let [out, lse, qkv, work] = bufs else { unreachable!("four operands") };
                dev.attention_forward(out.view_mut(), lse.view_mut(), qkv.view(), work.view_mut(), shape);
            })?;
            let scratch = B::Device::attention_backward_work_numel(shape, a);
            let forward = B::Device::attention_forward_work_numel(shape, a);
            let operands = [(qkv, a), (out, a), (qkv, a), (out, a), lse, (scratch.max(forward), DType::F32)];
            self.sample(shape.work(Kernel::AttentionBackward, a), &operands, 0, |dev, bufs| {
                let [dqkv, dout, qkv, out, lse, work] = bufs else { unreachable!("six operands") };
                let (dout, qkv, out, lse) = (dout.view(), qkv.view(), out.view(), lse.view());
                dev.attention_backward(dqkv.view_mut(), dout, qkv, out, lse, work.view_mut(), shape);
            })?;
            self.sample(
                Work::pass(Kernel::Rope, a, 2 * qkv * a.bytes()),
                &[(qkv, a), (B::Device::rope_work_numel(shape), DType::F32)],
                0,
                |dev, bufs| {
                    let [qkv, work] = bufs else { unreachable!("two operands") };
                    dev.rope(
                        qkv.view_mut(),
                        work.view_mut(),
                        shape,
                        Rotation { first: 0, theta: 1e4, inverse: false },
                    );
                },
            )?;
        }
        Ok(())
    }

    fn passes(&mut self, a: DType) -> Result<()> {
        for (rows, c) in PASSES {
            let numel = rows * c;
            let work = |kernel, n_tensors: usize| Work::pass(kernel, a, n_tensors * numel * a.bytes());
            let row = (rows, DType::F32);
            let operands = [(numel, a), row, row, (numel, a), (c, a), (c, a)];
            self.sample(work(Kernel::NormForward, 2), &operands, 0, |dev, bufs| {
                let [out, mean, rstd, inp, weight, bias] = bufs else { unreachable!("six operands") };
                let (inp, weight, bias) = (inp.view(), weight.view(), bias.view());
                dev.layer_norm_forward(out.view_mut(), mean.view_mut(), rstd.view_mut(), inp, weight, bias);
            })?;
            let scratch = (B::Device::layer_norm_work_numel(rows, c), DType::F32);
            let operands = [(numel, a), (c, a), (c, a), (numel, a), (numel, a), (c, a), row, row, scratch];
            self.sample(work(Kernel::NormBackward, 4), &operands, 0, |dev, bufs| {
                let [dinp, dweight, dbias, dout, inp, weight, mean, rstd, work] = bufs else {
                    unreachable!("nine operands")
                };
                let (dout, inp, weight) = (dout.view(), inp.view(), weight.view());
                let (dinp, dweight, dbias) = (dinp.view_mut(), dweight.view_mut(), dbias.view_mut());
                let (mean, rstd) = (mean.view(), rstd.view());
                dev.layer_norm_backward(dinp, dweight, dbias, dout, inp, weight, mean, rstd, work.view_mut());
            })?;
            self.sample(work(Kernel::ActivationForward, 2), &[(numel, a); 2], 0, |dev, bufs| {
                let [out, inp] = bufs else { unreachable!("two operands") };
                dev.gelu_forward(out.view_mut(), inp.view());
            })?;
            self.sample(work(Kernel::ActivationBackward, 3), &[(numel, a); 2], 0, |dev, bufs| {
                let [dout, inp] = bufs else { unreachable!("two operands") };
                dev.gelu_backward(dout.view_mut(), inp.view());
            })?;
            self.sample(work(Kernel::Stream, 3), &[(numel, a); 3], 0, |dev, bufs| {
                let [out, x, y] = bufs else { unreachable!("three operands") };
                dev.add(out.view_mut(), x.view(), y.view());
            })?;
        }
        Ok(())
    }

    fn embeddings(&mut self, a: DType) -> Result<()> {
        let (vocab, f32_bytes) = (2048, DType::F32.bytes());
        for (rows, c) in PASSES {
            let numel = rows * c;
            let table = (vocab * c, a);
            let work = Work::pass(Kernel::EmbeddingForward, a, 2 * numel * a.bytes());
            self.sample(work, &[(numel, a), (rows, DType::U32), table], vocab, |dev, bufs| {
                let [out, tokens, table] = bufs else { unreachable!("three operands") };
                dev.embedding_forward(out.view_mut(), tokens.view(), table.view(), None, rows);
            })?;
            let scratch =
                (B::Device::embedding_backward_work_numel(rows, DType::F32, DType::F32), DType::U32);
            let work = Work::pass(Kernel::EmbeddingBackward, a, numel * (a.bytes() + 2 * f32_bytes));
            let operands = [(vocab * c, DType::F32), (numel, a), (rows, DType::U32), scratch];
            self.sample(work, &operands, vocab, |dev, bufs| {
                let [dtable, dout, tokens, work] = bufs else { unreachable!("four operands") };
                dev.embedding_backward(
                    dtable.view_mut(),
                    None,
                    dout.view(),
                    tokens.view(),
                    work.view_mut(),
                    rows,
                );
            })?;
        }
        Ok(())
    }

    /// The optimizer's kernels, on slices of parameters of `a`.
    fn slices(&mut self, a: DType) -> Result<()> {
        for numel in [1 << 8, 1 << 12, 1 << 16, 1 << 19, 1 << 21] {
            let work = Work::pass(Kernel::SumOfSquares, a, numel * a.bytes());
            self.sample(work, &[(numel, a)], 0, |dev, bufs| {
                std::hint::black_box(dev.sum_of_squares([bufs[0].view()])).ok();
            })?;
            for &kind in OptimizerKind::ALL {
                self.update(kind, a, numel)?;
            }
        }
        Ok(())
    }

    fn update(&mut self, kind: OptimizerKind, a: DType, numel: usize) -> Result<()> {
        let hyper = kind.default_hyper(0.1);
        let step =
            UpdateStep::new(kind, &hyper, &UpdateNow { step: 1000, lr: 1e-6, grad_scale: 1.0, decays: true });
        let kept = kind.states(&hyper);
        let operands =
            [vec![(numel, a), (numel, a), (numel, DType::F32)], vec![(numel, DType::F32); kept.len()]]
                .concat();
        self.sample(Work::update(kind, kept.len(), a, a, numel), &operands, 0, |dev, bufs| {
            let [grad, param, master, states @ ..] = bufs else {
                unreachable!("gradient, parameter, master, states")
            };
            let mut states = states.iter_mut();
            let states = OptimStates::of(kept, |_| states.next().expect("one of each").view_mut());
            let param = (a == DType::Bf16).then(|| param.view_mut());
            dev.update(master.view_mut(), states, grad.view(), &step, param);
        })
    }

    fn cross_entropies(&mut self) -> Result<()> {
        for (rows, vocab) in [(256, 512), (512, 1024), (256, 4096), (128, 16384)] {
            let work = Work::pass(Kernel::CrossEntropy, DType::F32, 2 * rows * vocab * 4);
            let operands = [(rows * vocab, DType::F32), (rows, DType::F32), (rows, DType::U32)];
            self.sample(work, &operands, vocab, |dev, bufs| {
                let [logits, losses, targets] = bufs else { unreachable!("three operands") };
                dev.cross_entropy(logits.view_mut(), losses.view_mut(), targets.view(), Some(1e-3));
            })?;
        }
        Ok(())
    }
}

/// An operand in (0, 1): no denormals, infinities or NaN, which are slow on some processors.
fn number(i: usize) -> f32 {
    ((i * 31 + 17) % 251 + 1) as f32 / 252.0
}
