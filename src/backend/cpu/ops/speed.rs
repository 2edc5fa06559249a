//! Speed of the kernels on one thread: `cargo test --release --lib kernel_speed -- --ignored --nocapture`.

use super::test_support::{device, nan_buf, random, tokens};
use crate::backend::cpu::CpuDevice;
use crate::backend::cpu::host::test_memory::{buf_f32, buf_of, buf_u32};
use crate::backend::ops::{AdamwStep, AttentionShape, LinearShape};
use crate::backend::{Device, Ops};
use crate::dtype::DType;
use std::time::Instant;

/// Best of several runs, in seconds.
fn best_s(mut run: impl FnMut()) -> f64 {
    run();
    (0..15)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min)
}

/// `cargo test --release --lib linear_speed` for these alone.
#[test]
#[ignore = "a measurement, not a claim"]
fn linear_speed_alone() {
    linear_speed(&device(1));
}

#[test]
#[ignore = "a measurement, not a claim"]
fn kernel_speed() {
    let device = device(1);
    let per_element =
        |name: &str, n: usize, s: f64| println!("{name:24} {:8.3} ms {:7.3} ns/element", s * 1e3, s * 1e9 / n as f64);

    linear_speed(&device);

    let n = 1 << 20;
    let (mut a, b) = (buf_f32(&random(n, 1)), buf_f32(&random(n, 2)));
    per_element("gelu forward", n, best_s(|| device.gelu_forward(a.view_mut(), b.view())));
    per_element("gelu backward", n, best_s(|| device.gelu_backward(a.view_mut(), b.view())));
    per_element("add", n, best_s(|| device.add(a.view_mut(), b.view(), b.view())));
    per_element("sum of squares", n, best_s(|| assert!(device.sum_of_squares(&[b.view()]).unwrap().to_f64() > 0.0)));

    let (rows, c) = (1024, 1024);
    let (mut mean, mut rstd, weight) = (nan_buf(rows), nan_buf(rows), buf_f32(&random(c, 3)));
    per_element(
        "layer norm forward",
        n,
        best_s(|| {
            device.layer_norm_forward(
                a.view_mut(),
                mean.view_mut(),
                rstd.view_mut(),
                b.view(),
                weight.view(),
                weight.view(),
            )
        }),
    );
    let (mut dweight, mut dbias, mut work) =
        (nan_buf(c), nan_buf(c), nan_buf(CpuDevice::layer_norm_work_numel(rows, c)));
    let mut dinp = buf_f32(&vec![0.0; n]);
    per_element(
        "layer norm backward",
        n,
        best_s(|| {
            let (dinp, dweight, dbias) = (dinp.view_mut(), dweight.view_mut(), dbias.view_mut());
            device.layer_norm_backward(
                dinp,
                dweight,
                dbias,
                b.view(),
                b.view(),
                weight.view(),
                mean.view(),
                rstd.view(),
                work.view_mut(),
            );
        }),
    );

    let (vocab, rows) = (8192, 128);
    let (mut losses, targets) = (nan_buf(rows), buf_u32(&tokens(rows, vocab, 4)));
    per_element(
        "cross entropy",
        n,
        best_s(|| device.cross_entropy(a.view_mut(), losses.view_mut(), targets.view(), Some(1.0))),
    );

    let (mut m, mut v, mut p) = (buf_f32(&vec![0.0; n]), buf_f32(&vec![0.0; n]), buf_f32(&random(n, 5)));
    let step = AdamwStep {
        lr: 1e-3,
        beta1: 0.9,
        beta2: 0.95,
        eps: 1e-8,
        weight_decay: 0.1,
        bias_correction1: 0.1,
        bias_correction2: 0.05,
        grad_scale: 1.0,
    };
    per_element("adamw", n, best_s(|| device.adamw(p.view_mut(), m.view_mut(), v.view_mut(), b.view(), &step, None)));

    let (c, t, vocab) = (256, 128, 4096);
    let rows = n / c;
    let tokens = buf_u32(&tokens(rows, vocab, 6));
    let mut none_u32 = buf_u32(&[]);
    let (mut dwte, mut dwpe) = (buf_f32(&vec![0.0; vocab * c]), nan_buf(t * c));
    per_element(
        "embedding forward",
        n,
        best_s(|| device.embedding_forward(a.view_mut(), tokens.view(), b.view(), Some(b.view()), t)),
    );
    per_element(
        "embedding backward",
        n,
        best_s(|| {
            device.embedding_backward(
                dwte.view_mut(),
                Some(dwpe.view_mut()),
                b.view(),
                tokens.view(),
                none_u32.view_mut(),
                t,
            )
        }),
    );

    for (b, t, n_heads, d_head) in [(4, 128, 8, 32), (2, 1024, 12, 64)] {
        let shape = AttentionShape { b, t, n_heads, n_kv_heads: n_heads, d_head };
        let (n_qkv, n_out) = (b * t * shape.qkv_row(), b * t * shape.out_row());
        let (qkv, dout, mut dqkv) = (buf_f32(&random(n_qkv, 1)), buf_f32(&random(n_out, 2)), nan_buf(n_qkv));
        let (mut out, mut lse) = (nan_buf(n_out), nan_buf(b * n_heads * t));
        let mut work = nan_buf(CpuDevice::attention_forward_work_numel(shape, DType::F32));
        let forward =
            best_s(|| device.attention_forward(out.view_mut(), lse.view_mut(), qkv.view(), work.view_mut(), shape));
        let mut work = nan_buf(CpuDevice::attention_backward_work_numel(shape, DType::F32));
        let backward = best_s(|| {
            device.attention_backward(
                dqkv.view_mut(),
                dout.view(),
                qkv.view(),
                out.view(),
                lse.view(),
                work.view_mut(),
                shape,
            )
        });
        println!(
            "attention b {b} t {t} h {n_heads} d {d_head}: forward {:.3} ms, backward {:.3} ms",
            forward * 1e3,
            backward * 1e3
        );
    }
}

/// The three products of a linear layer, all f32 and all bf16, in turn.
fn linear_speed(device: &CpuDevice) {
    for (rows, n_in, n_out) in [(512, 1024, 1024), (1024, 384, 1536), (1024, 1536, 384)] {
        let shape = LinearShape { rows, n_in, n_out };
        let gflop = 2e-9 * (rows * n_in * n_out) as f64;
        let mut f32_s = [0.0; 3];
        for dtype in [DType::F32, DType::Bf16] {
            let random = |n, seed| buf_of(dtype, &random(n, seed));
            let (inp, weight, bias) = (random(rows * n_in, 1), random(n_out * n_in, 2), random(n_out, 3));
            let (mut out, mut dinp, dout) = (random(rows * n_out, 4), random(rows * n_in, 5), random(rows * n_out, 6));
            let (mut dweight, mut dbias) = (random(n_out * n_in, 7), random(n_out, 8));
            let numels = [
                CpuDevice::linear_forward_work_numel(shape, dtype, dtype, dtype),
                CpuDevice::linear_backward_input_work_numel(shape, dtype, dtype, dtype),
                CpuDevice::linear_backward_weight_work_numel(shape, dtype, dtype, dtype),
            ];
            let mut work = nan_buf(numels.into_iter().max().unwrap_or(0));
            let forward = best_s(|| {
                let bias = Some(bias.view());
                device.linear_forward(out.view_mut(), inp.view(), weight.view(), bias, work.view_mut(), shape);
            });
            let input = best_s(|| {
                device.linear_backward_input(dinp.view_mut(), dout.view(), weight.view(), work.view_mut(), shape);
            });
            let weights = best_s(|| {
                let (dweight, dbias) = (dweight.view_mut(), Some(dbias.view_mut()));
                device.linear_backward_weight(dweight, dbias, dout.view(), inp.view(), work.view_mut(), shape, false);
            });
            let names = ["forward", "backward input", "backward weight"];
            for (i, s) in [forward, input, weights].into_iter().enumerate() {
                let ratio = if dtype == DType::F32 { String::new() } else { format!(", {:.2} x f32", f32_s[i] / s) };
                println!(
                    "linear {rows} x {n_in} x {n_out} {} {:16} {:8.3} ms {:7.1} GFLOP/s{ratio}",
                    dtype.name(),
                    names[i],
                    s * 1e3,
                    gflop / s
                );
                if dtype == DType::F32 {
                    f32_s[i] = s;
                }
            }
        }
    }
}
