//! How fast the CPU kernels are: `cargo bench --bench ops -- --quick linear` for those that have "linear" in
//! their name.
//!
//! Names are kernel/layer/model/type; the models are those of benches/peers/README.md, with the micro-batch
//! of one rank. `THREADS` (1) compute. Products and attention count floating-point operations, so what
//! criterion prints as Gelem/s is GFLOP/s: 2 rows n_in n_out for a linear layer, 4 d_head for each head and
//! pair of a token and one it sees (backward 10: it computes the scores again). The others count elements of
//! what they write, and sum_of_squares and embedding_backward of what they read; 1 / (Gelem/s) is ns/element.

use Operand::{Numbers, Tokens, Zeros};
use criterion::{Criterion, Throughput};
use half::bf16;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;
use zero3::backend::cpu::{CpuDevice, host_arena};
use zero3::backend::memory::Memory;
use zero3::backend::ops::{AttentionShape, LinearShape, Rotation};
use zero3::backend::{Arena, Buf, Device, Ops, Queue};
use zero3::dtype::DType::{self, Bf16, F32, U32};
use zero3::model::{Dims, logits::chunk_rows};
use zero3::optimizers::{OptimStates, OptimizerKind, UpdateNow, UpdateStep};
use zero3::plan::slots::{ALIGN, Slot};
use zero3::telemetry::MemKind;

const MODELS: [(&str, Dims); 3] = [
    ("S", Dims { b: 4, t: 128, t_max: 128, c: 256, n_heads: 8, d_head: 32, vocab: 512, n_layer: 4 }),
    ("M", Dims { b: 4, t: 256, t_max: 256, c: 384, n_heads: 6, d_head: 64, vocab: 4096, n_layer: 6 }),
    ("G", Dims { b: 2, t: 256, t_max: 256, c: 768, n_heads: 12, d_head: 64, vocab: 50257, n_layer: 12 }),
];
/// What the largest case takes: G's embedding or head with its gradient, and a chunk of logits.
const ARENA_BYTES: usize = 1 << 30;

struct Suite {
    criterion: Criterion,
    device: CpuDevice,
    arena: Arc<Arena>,
    /// Of the cases now.
    model: &'static str,
    dims: Dims,
    dtype: DType,
}

impl Suite {
    /// Measures one kernel on operands that are made once, and only if the case is wanted; a call counts as
    /// `n`.
    fn case<const N: usize>(
        &mut self,
        name: &str,
        n: usize,
        operands: [Operand; N],
        call: impl Fn(&CpuDevice, [&mut Buf; N]),
    ) {
        let Suite { criterion, device, arena, model, dtype, .. } = self;
        let mut group = criterion.benchmark_group(name);
        group.throughput(Throughput::Elements(n as u64));
        let mut bufs = None;
        group.bench_function(format!("{model}/{}", dtype.name()), |bencher| {
            let bufs = bufs.get_or_insert_with(|| buffers(device, arena, operands));
            bencher.iter(|| call(device, bufs.each_mut()));
        });
    }
}

/// What a buffer holds at first, and how much.
#[derive(Clone, Copy)]
enum Operand {
    Zeros(DType, usize),
    /// In [-1, 1).
    Numbers(DType, usize),
    /// So many ids below the second.
    Tokens(usize, usize),
}

/// Buffers one behind the other, as in a run.
fn buffers<const N: usize>(device: &CpuDevice, arena: &Arc<Arena>, operands: [Operand; N]) -> [Buf; N] {
    let (mut memory, mut end) = (Memory::new(Arc::clone(arena), false), 0);
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    operands.map(|operand| {
        let (dtype, numel) = match operand {
            Zeros(dtype, numel) | Numbers(dtype, numel) => (dtype, numel),
            Tokens(numel, _) => (U32, numel),
        };
        let mut slot = Slot::always("an operand".into(), MemKind::Workspace, numel, dtype);
        slot.offset = end;
        end += slot.bytes().next_multiple_of(ALIGN);
        let mut buf = memory.take(device, &slot, slot.kind, Queue::Compute);
        let mut number = || (rng.next_u32() >> 8) as f32 / (1 << 23) as f32 - 1.0;
        let bytes: Vec<u8> = match operand {
            Zeros(..) => vec![0; buf.bytes()],
            Numbers(Bf16, _) => (0..numel).flat_map(|_| bf16::from_f32(number()).to_ne_bytes()).collect(),
            Numbers(..) => (0..numel).flat_map(|_| number().to_ne_bytes()).collect(),
            Tokens(_, vocab) => {
                (0..numel).flat_map(|_| (rng.next_u32() % vocab as u32).to_ne_bytes()).collect()
            }
        };
        device.upload(buf.view_mut(), &bytes).expect("a copy");
        buf
    })
}

/// The layers of a block that differ in shape, without bias; and the head, whose logits and gradient are f32.
fn linear(suite: &mut Suite) {
    let (dims, a, rows, c) = (suite.dims, suite.dtype, suite.dims.rows(), suite.dims.c);
    let layers = [
        ("attn.c_attn", LinearShape { rows, n_in: c, n_out: 3 * c }, a),
        ("mlp.c_fc", LinearShape { rows, n_in: c, n_out: 4 * c }, a),
        ("mlp.c_proj", LinearShape { rows, n_in: 4 * c, n_out: c }, a),
        ("head", LinearShape { rows: chunk_rows(&dims), n_in: c, n_out: dims.vocab }, F32),
    ];
    for (layer, shape, o) in layers {
        let LinearShape { rows, n_in, n_out } = shape;
        let (flops, i, w) = (2 * rows * n_in * n_out, rows * n_in, n_out * n_in);
        let work = Zeros(F32, CpuDevice::linear_forward_work_numel(shape, o, a, a));
        let operands = [Zeros(o, rows * n_out), Numbers(a, i), Numbers(a, w), work];
        suite.case(&format!("linear_forward/{layer}"), flops, operands, |d, [out, inp, weight, work]| {
            d.linear_forward(out.view_mut(), inp.view(), weight.view(), None, work.view_mut(), shape);
        });
        let work = Zeros(F32, CpuDevice::linear_backward_input_work_numel(shape, a, o, a));
        let operands = [Zeros(a, i), Numbers(o, rows * n_out), Numbers(a, w), work];
        suite.case(
            &format!("linear_backward_input/{layer}"),
            flops,
            operands,
            |d, [dinp, dout, weight, work]| {
                d.linear_backward_input(dinp.view_mut(), dout.view(), weight.view(), work.view_mut(), shape);
            },
        );
        let work = Zeros(F32, CpuDevice::linear_backward_weight_work_numel(shape, o, o, a));
        let operands = [Zeros(o, w), Numbers(o, rows * n_out), Numbers(a, i), work];
        suite.case(
            &format!("linear_backward_weight/{layer}"),
            flops,
            operands,
            |d, [dweight, dout, inp, work]| {
                let (dweight, work) = (dweight.view_mut(), work.view_mut());
                d.linear_backward_weight(dweight, None, dout.view(), inp.view(), work, shape, false);
            },
        );
    }
}

fn attention(suite: &mut Suite) {
    let (Dims { b, t, c, n_heads, .. }, a) = (suite.dims, suite.dtype);
    let shape = AttentionShape { b, t, n_heads, n_kv_heads: n_heads, d_head: c / n_heads };
    let (n, flops_per_product) = (b * t * c, b * c * t * (t + 1));
    let (qkv, lse) = (Numbers(a, 3 * n), Numbers(F32, b * t * n_heads));
    let work = Zeros(F32, CpuDevice::attention_forward_work_numel(shape, a));
    let operands = [Zeros(a, n), lse, qkv, work];
    suite.case("attention_forward", 2 * flops_per_product, operands, |d, [out, lse, qkv, work]| {
        d.attention_forward(out.view_mut(), lse.view_mut(), qkv.view(), work.view_mut(), shape);
    });
    let work = Zeros(F32, CpuDevice::attention_backward_work_numel(shape, a));
    let operands = [Zeros(a, 3 * n), Numbers(a, n), qkv, Numbers(a, n), lse, work];
    suite.case(
        "attention_backward",
        5 * flops_per_product,
        operands,
        |d, [dqkv, dout, qkv, out, lse, work]| {
            let (dqkv, work) = (dqkv.view_mut(), work.view_mut());
            d.attention_backward(dqkv, dout.view(), qkv.view(), out.view(), lse.view(), work, shape);
        },
    );
    let rotation = Rotation { first: 0, theta: 10_000.0, inverse: false };
    suite.case("rope", 2 * n, [qkv, Zeros(F32, CpuDevice::rope_work_numel(shape))], |d, [qkv, work]| {
        d.rope(qkv.view_mut(), work.view_mut(), shape, rotation);
    });
}

fn norms(suite: &mut Suite) {
    let (a, rows, c) = (suite.dtype, suite.dims.rows(), suite.dims.c);
    let (n, inp, weight, rstd) = (rows * c, Numbers(a, rows * c), Numbers(a, c), Numbers(F32, rows));
    let operands = [Zeros(a, n), rstd, rstd, inp, weight, weight];
    suite.case("layer_norm_forward", n, operands, |d, [out, mean, rstd, inp, weight, bias]| {
        let (out, mean, rstd) = (out.view_mut(), mean.view_mut(), rstd.view_mut());
        d.layer_norm_forward(out, mean, rstd, inp.view(), weight.view(), bias.view());
    });
    let work = Zeros(F32, CpuDevice::layer_norm_work_numel(rows, c));
    let operands = [Zeros(a, n), Zeros(a, c), Zeros(a, c), inp, inp, weight, rstd, rstd, work];
    suite.case(
        "layer_norm_backward",
        n,
        operands,
        |d, [dinp, dweight, dbias, dout, inp, weight, mean, rstd, work]| {
            let (dinp, dweight, dbias) = (dinp.view_mut(), dweight.view_mut(), dbias.view_mut());
            let (dout, inp, weight, mean, rstd) =
                (dout.view(), inp.view(), weight.view(), mean.view(), rstd.view());
            d.layer_norm_backward(dinp, dweight, dbias, dout, inp, weight, mean, rstd, work.view_mut());
        },
    );
    suite.case("rms_norm_forward", n, [Zeros(a, n), rstd, inp, weight], |d, [out, rstd, inp, weight]| {
        d.rms_norm_forward(out.view_mut(), rstd.view_mut(), inp.view(), weight.view(), 1e-5);
    });
    let work = Zeros(F32, CpuDevice::rms_norm_work_numel(rows, c));
    let operands = [Zeros(a, n), Zeros(a, c), inp, inp, weight, rstd, work];
    suite.case("rms_norm_backward", n, operands, |d, [dinp, dweight, dout, inp, weight, rstd, work]| {
        let (dinp, dweight, work) = (dinp.view_mut(), dweight.view_mut(), work.view_mut());
        d.rms_norm_backward(dinp, dweight, dout.view(), inp.view(), weight.view(), rstd.view(), work);
    });
}

/// On activations of the width of an MLP.
fn elementwise(suite: &mut Suite) {
    let (a, n, f) = (suite.dtype, suite.dims.rows() * 4 * suite.dims.c, 4 * suite.dims.c);
    let (inp, gate_up) = (Numbers(a, n), Numbers(a, 2 * n));
    suite.case("gelu_forward", n, [Zeros(a, n), inp], |d, [out, inp]| {
        d.gelu_forward(out.view_mut(), inp.view())
    });
    // Zeros, because call after call multiplies them in place: other numbers would soon be subnormal, which
    // are slow.
    suite.case("gelu_backward", n, [Zeros(a, n), inp], |d, [dout, inp]| {
        d.gelu_backward(dout.view_mut(), inp.view())
    });
    suite.case("swiglu_forward", n, [Zeros(a, n), gate_up], |d, [out, gate_up]| {
        d.swiglu_forward(out.view_mut(), gate_up.view(), f);
    });
    suite.case("swiglu_backward", 2 * n, [Zeros(a, 2 * n), inp, gate_up], |d, [dgate_up, dout, gate_up]| {
        d.swiglu_backward(dgate_up.view_mut(), dout.view(), gate_up.view(), f);
    });
    suite.case("add", n, [Zeros(a, n), inp, inp], |d, [out, a, b]| d.add(out.view_mut(), a.view(), b.view()));
    suite.case("accumulate", n, [Zeros(F32, n), inp], |d, [out, inp]| {
        d.accumulate(out.view_mut(), inp.view())
    });
    let other = if a == F32 { Bf16 } else { F32 };
    suite.case("cast", n, [Zeros(other, n), inp], |d, [out, inp]| d.cast(out.view_mut(), inp.view()));
    suite.case("sum_of_squares", n, [inp], |d, [inp]| {
        black_box(d.sum_of_squares([inp.view()]).expect("a sum"));
    });
}

/// Embedding, loss, and the update of one block's parameters, of bf16 ones too where the gradient is.
fn ends(suite: &mut Suite) {
    let (dims, Dims { t, c, vocab, .. }, a) = (suite.dims, suite.dims, suite.dtype);
    let (rows, n) = (dims.rows(), dims.rows() * c);
    let [tokens, wte, wpe] = [Tokens(rows, vocab), Numbers(a, vocab * c), Numbers(a, t * c)];
    suite.case("embedding_forward", n, [Zeros(a, n), tokens, wte, wpe], |d, [out, tokens, wte, wpe]| {
        d.embedding_forward(out.view_mut(), tokens.view(), wte.view(), Some(wpe.view()), t);
    });
    let work = Zeros(U32, CpuDevice::embedding_backward_work_numel(rows, F32, F32));
    let operands = [Zeros(F32, vocab * c), Zeros(F32, t * c), Numbers(a, n), tokens, work];
    suite.case("embedding_backward", n, operands, |d, [dwte, dwpe, dout, tokens, work]| {
        let (dwte, dwpe, work) = (dwte.view_mut(), dwpe.view_mut(), work.view_mut());
        d.embedding_backward(dwte, Some(dwpe), dout.view(), tokens.view(), work, t);
    });
    if a == F32 {
        let rows = chunk_rows(&dims);
        let (logits, losses, targets) = (Numbers(F32, rows * vocab), Zeros(F32, rows), Tokens(rows, vocab));
        suite.case(
            "cross_entropy",
            rows * vocab,
            [logits, losses, targets],
            |d, [logits, losses, targets]| {
                d.cross_entropy(logits.view_mut(), losses.view_mut(), targets.view(), Some(1.0));
            },
        );
    }
    let n = 12 * c * c;
    for &kind in OptimizerKind::ALL {
        let hyper = kind.default_hyper(0.1);
        let step =
            UpdateStep::new(kind, &hyper, &UpdateNow { step: 1, lr: 1e-3, grad_scale: 1.0, decays: true });
        let param = Zeros(Bf16, if a == Bf16 { n } else { 0 });
        let operands = [Numbers(F32, n), Zeros(F32, n), Zeros(F32, n), Numbers(a, n), param];
        suite.case(kind.name(), n, operands, |d, [master, s0, s1, grad, param]| {
            let mut all = [s0, s1].into_iter();
            let states =
                OptimStates::of(kind.states(&hyper), |_| all.next().expect("two at most").view_mut());
            d.update(master.view_mut(), states, grad.view(), &step, (a == Bf16).then(|| param.view_mut()));
        });
    }
}

fn main() {
    let threads = std::env::var("THREADS").map_or(1, |text| text.parse().expect("THREADS is a whole number"));
    let device = CpuDevice::new(threads).expect("threads start");
    println!("{}", device.describe());
    let criterion =
        Criterion::default().sample_size(20).measurement_time(Duration::from_secs(2)).configure_from_args();
    let arena = host_arena(ARENA_BYTES).expect("memory");
    let mut suite = Suite { criterion, device, arena, model: "", dims: MODELS[0].1, dtype: F32 };
    for (model, dims) in MODELS {
        for dtype in [F32, Bf16] {
            (suite.model, suite.dims, suite.dtype) = (model, dims, dtype);
            for family in [linear, attention, norms, elementwise, ends] {
                family(&mut suite);
            }
        }
    }
    suite.criterion.final_summary();
}
