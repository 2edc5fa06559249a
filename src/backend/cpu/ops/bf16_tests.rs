//! Every kernel with bf16 operands: the same bits on 1, 2 and 3 threads, and the f64 reference on the same
//! (rounded) inputs.
//!
//! Tolerances have two parts. A stored bf16 may be half an ulp of bf16 off, because it is rounded once; the
//! f32 sum it is rounded from may be off by what the f32 test of the same kernel allows. Two roundings would
//! show.

use super::test_support::*;
use crate::backend::cpu::CpuDevice;
use crate::backend::cpu::element::Element;
use crate::backend::cpu::host::test_memory::{buf_f32, buf_of, buf_u32, read};
use crate::backend::cpu::simd::has_bf16_dot;
use crate::backend::ops::{AttentionShape, LinearShape};
use crate::backend::reference;
use crate::backend::{Device, Ops};
use crate::dtype::DType::{self, Bf16, F32};
use crate::exact_sum::ExactSum;
use half::bf16;

const DTYPES: [DType; 2] = [F32, Bf16];

/// One unit in the last place of a bf16 of the size of `x`.
fn bf16_ulp(x: f64) -> f64 {
    2f64.powi(x.abs().max(f32::MIN_POSITIVE as f64).log2().floor() as i32 - 7)
}

/// Each element within `f32_tolerance * max(1, |want|)`, and half an ulp more where it was stored as bf16.
fn assert_rounded(name: &str, dtype: DType, got: &[f32], want: &[f64], f32_tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{name}: elements");
    for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
        let half_ulp = if dtype == Bf16 { 0.5 * bf16_ulp(want) } else { 0.0 };
        let allowed = half_ulp + f32_tolerance * want.abs().max(1.0);
        let error = (got as f64 - want).abs();
        assert!(
            error <= allowed,
            "{name}, {}: element {i} is {got}, want {want}: {error} > {allowed}",
            dtype.name()
        );
    }
}

#[test]
fn embedding_sums_all_rows_of_a_token_before_it_rounds() {
    for (b, t, c, v, t_max) in [(1, 1, 1, 1, 1), (2, 3, 5, 7, 4), (3, 17, 101, 13, 17), (5, 64, 130, 11, 70)]
    {
        for [activation, param, dwte_type, dwpe_type] in
            [[Bf16; 4], [F32, Bf16, Bf16, Bf16], [Bf16, F32, F32, Bf16], [Bf16, F32, Bf16, F32]]
        {
            let toks = tokens(b * t, v, 1);
            let (wte, wpe) = (random_of(param, v * c, 2), random_of(param, t_max * c, 3));
            let (dout, start) = (random_of(activation, b * t * c, 4), random_of(dwte_type, v * c, 5));
            let got = same_bits_on_1_2_3_threads(|device| {
                let (mut out, mut dwpe) = (nan_of(activation, b * t * c), nan_of(dwpe_type, t_max * c));
                let (mut dwte, toks) = (buf_of(dwte_type, &start), buf_u32(&toks));
                let (wte, wpe) = (buf_of(param, &wte), buf_of(param, &wpe));
                device.embedding_forward(out.view_mut(), toks.view(), wte.view(), Some(wpe.view()), t);
                let numel = CpuDevice::embedding_backward_work_numel(b * t, dwte_type, dwpe_type);
                let mut work = buf_u32(&vec![u32::MAX; numel]);
                let (dout, work) = (buf_of(activation, &dout), work.view_mut());
                device.embedding_backward(
                    dwte.view_mut(),
                    Some(dwpe.view_mut()),
                    dout.view(),
                    toks.view(),
                    work,
                    t,
                );
                vec![read(&out), read(&dwte), read(&dwpe)]
            });
            let name = format!("embedding b {b} t {t} c {c}");
            let out = reference::embedding_forward(&toks, &wide(&wte), &wide(&wpe), c, t);
            assert_rounded(&name, activation, &got[0], &out, 1e-7);
            let (mut dwte, dwpe) = reference::embedding_backward(&wide(&dout), &toks, v, t_max, c, t);
            dwte.iter_mut().zip(&start).for_each(|(d, &s)| *d += s as f64);
            assert_rounded(&name, dwte_type, &got[1], &dwte, 1e-6);
            assert_rounded(&name, dwpe_type, &got[2], &dwpe, 1e-6);
        }
    }
}

#[test]
fn f32_gradients_of_the_embedding_are_the_same_bits_in_either_order_of_summation() {
    let (b, t, c, v) = (5, 64, 130, 11);
    let (toks, dout, start) =
        (buf_u32(&tokens(b * t, v, 1)), buf_f32(&random(b * t * c, 2)), random(v * c, 3));
    let run = |dwpe_type: DType| {
        let (mut dwte, mut dwpe) = (buf_f32(&start), nan_of(dwpe_type, t * c));
        let mut work = buf_u32(&vec![0; b * t]);
        let (device, work) = (device(1), work.view_mut());
        device.embedding_backward(dwte.view_mut(), Some(dwpe.view_mut()), dout.view(), toks.view(), work, t);
        (read(&dwte), read(&dwpe))
    };
    let ((in_place, dwpe), (by_token, rounded)) = (run(F32), run(Bf16));
    assert_eq!(in_place, by_token);
    assert_eq!(read(&buf_of(Bf16, &dwpe)), rounded, "a bf16 sum is the f32 sum rounded once");
}

#[test]
fn layer_norm_rounds_once() {
    for (rows, c) in [(1, 97), (17, 16), (37, 129), (1300, 31), (130, 768)] {
        for [stream, out_type, param, grad] in [
            [Bf16; 4],
            [F32, Bf16, Bf16, Bf16],
            [Bf16, F32, F32, F32],
            [F32, F32, Bf16, F32],
            [F32, F32, F32, Bf16],
        ] {
            let (inp, start) = (random_of(stream, rows * c, 1), random_of(stream, rows * c, 5));
            let (weight, bias) = (random_of(param, c, 2), random_of(param, c, 3));
            let dout = random_of(out_type, rows * c, 4);
            let got = same_bits_on_1_2_3_threads(|device| {
                let (mut out, mut mean, mut rstd) =
                    (nan_of(out_type, rows * c), nan_buf(rows), nan_buf(rows));
                let (inp, dout) = (buf_of(stream, &inp), buf_of(out_type, &dout));
                let (weight, bias) = (buf_of(param, &weight), buf_of(param, &bias));
                device.layer_norm_forward(
                    out.view_mut(),
                    mean.view_mut(),
                    rstd.view_mut(),
                    inp.view(),
                    weight.view(),
                    bias.view(),
                );
                let (mut dinp, mut dweight, mut dbias) =
                    (buf_of(stream, &start), nan_of(grad, c), nan_of(grad, c));
                let mut work = nan_buf(CpuDevice::layer_norm_work_numel(rows, c));
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
                vec![read(&out), read(&mean), read(&rstd), read(&dinp), read(&dweight), read(&dbias)]
            });
            let name = format!("layer norm {rows} x {c}");
            let (inp, weight, bias) = (wide(&inp), wide(&weight), wide(&bias));
            let (out, mean, rstd) = reference::layer_norm_forward(&inp, &weight, &bias);
            let (mut dinp, dweight, dbias) = reference::layer_norm_backward(&wide(&dout), &inp, &weight);
            dinp.iter_mut().zip(&start).for_each(|(d, &s)| *d += s as f64);
            assert_rounded(&name, out_type, &got[0], &out, 3e-6);
            assert_rounded(&name, F32, &got[1], &mean, 1e-6);
            assert_rounded(&name, F32, &got[2], &rstd, 3e-6);
            assert_rounded(&name, stream, &got[3], &dinp, 1e-5);
            assert_rounded(&name, grad, &got[4], &dweight, 3e-5);
            assert_rounded(&name, grad, &got[5], &dbias, 3e-5);
        }
    }
}

/// The operands of a product as it sees them: where the processor has bf16 dot products, an f32 one beside a
/// bf16 one is rounded first.
fn factors((a_dtype, a): (DType, &[f32]), (b_dtype, b): (DType, &[f32])) -> (Vec<f64>, Vec<f64>) {
    if a_dtype == b_dtype || !has_bf16_dot() {
        return (wide(a), wide(b));
    }
    let rounded = |xs: &[f32]| xs.iter().map(|&x| f64::from(<bf16 as Element>::store(x).load())).collect();
    (rounded(a), rounded(b))
}

#[test]
fn linear_layers_of_every_mix_of_types_round_once() {
    // One of everything; odd inner dimensions; two chunks of the inner dimension; more than a block of rows
    // and columns.
    for (rows, n_in, n_out) in
        [(1, 1, 1), (13, 1, 7), (7, 13, 1), (67, 1031, 35), (1031, 3, 67), (131, 384, 127), (1030, 21, 1037)]
    {
        let shape = LinearShape { rows, n_in, n_out };
        for mix in 1..16 {
            let dtype = |bit: usize| DTYPES[(mix >> bit) & 1];
            let [act_in, act_out, param, grad] = [dtype(0), dtype(1), dtype(2), dtype(3)];
            let (inp, dout) = (random_of(act_in, rows * n_in, 1), random_of(act_out, rows * n_out, 2));
            let (weight, bias) = (random_of(param, n_out * n_in, 3), random_of(param, n_out, 4));
            let start = random_of(grad, n_out * n_in, 5);
            let numels = [
                CpuDevice::linear_forward_work_numel(shape, act_out, act_in, param),
                CpuDevice::linear_backward_input_work_numel(shape, act_in, act_out, param),
                CpuDevice::linear_backward_weight_work_numel(shape, grad, act_out, act_in),
            ];
            let run = |device: &CpuDevice| {
                let (inp, dout) = (buf_of(act_in, &inp), buf_of(act_out, &dout));
                let (weight, bias) = (buf_of(param, &weight), buf_of(param, &bias));
                let [mut forward, mut input, mut weights] = numels.map(nan_buf);
                let (mut with_bias, mut without) =
                    (nan_of(act_out, rows * n_out), nan_of(act_out, rows * n_out));
                let some = Some(bias.view());
                device.linear_forward(
                    with_bias.view_mut(),
                    inp.view(),
                    weight.view(),
                    some,
                    forward.view_mut(),
                    shape,
                );
                device.linear_forward(
                    without.view_mut(),
                    inp.view(),
                    weight.view(),
                    None,
                    forward.view_mut(),
                    shape,
                );
                let (mut dinp, mut dweight) = (nan_of(act_in, rows * n_in), nan_of(grad, n_out * n_in));
                device.linear_backward_input(
                    dinp.view_mut(),
                    dout.view(),
                    weight.view(),
                    input.view_mut(),
                    shape,
                );
                let (mut dbias, mut added) = (nan_of(grad, n_out), buf_of(grad, &start));
                for (dweight, dbias, accumulate) in
                    [(&mut dweight, Some(dbias.view_mut()), false), (&mut added, None, true)]
                {
                    let (dweight, work) = (dweight.view_mut(), weights.view_mut());
                    device.linear_backward_weight(
                        dweight,
                        dbias,
                        dout.view(),
                        inp.view(),
                        work,
                        shape,
                        accumulate,
                    );
                }
                vec![
                    read(&with_bias),
                    read(&without),
                    read(&dinp),
                    read(&dweight),
                    read(&dbias),
                    read(&added),
                ]
            };
            let got = same_bits_on_1_2_3_threads(run);
            let bias = wide(&bias);
            let (inp_of_weight, weight_of_inp) = factors((act_in, &inp), (param, &weight));
            let (dout_of_weight, weight_of_dout) = factors((act_out, &dout), (param, &weight));
            let (dout_of_inp, inp_of_dout) = factors((act_out, &dout), (act_in, &inp));
            let (dinp, ..) =
                reference::linear_backward(&dout_of_weight, &inp_of_dout, &weight_of_dout, shape);
            let (_, dweight, _) =
                reference::linear_backward(&dout_of_inp, &inp_of_dout, &weight_of_dout, shape);
            let (.., dbias) = reference::linear_backward(&wide(&dout), &inp_of_dout, &weight_of_dout, shape);
            let added: Vec<f64> = dweight.iter().zip(&start).map(|(d, &s)| d + s as f64).collect();
            let want = [
                (act_out, reference::linear_forward(&inp_of_weight, &weight_of_inp, &bias, shape)),
                (
                    act_out,
                    reference::linear_forward(&inp_of_weight, &weight_of_inp, &vec![0.0; n_out], shape),
                ),
                (act_in, dinp),
                (grad, dweight),
                (grad, dbias),
                (grad, added),
            ];
            for (i, (got, (dtype, want))) in got.iter().zip(&want).enumerate() {
                // Sums of at most 1037 products: as for f32.
                assert_rounded(&format!("{shape:?}, mix {mix:#06b}, output {i}"), *dtype, got, want, 6e-5);
            }
        }
    }
}

#[test]
fn a_nan_in_a_bf16_operand_reaches_its_row_and_nothing_else() {
    let shape = LinearShape { rows: 14, n_in: 33, n_out: 35 };
    let mut inp = random(14 * 33, 1);
    inp[5 * 33 + 32] = f32::NAN;
    let (mut out, inp, weight) =
        (nan_of(Bf16, 14 * 35), buf_of(Bf16, &inp), buf_of(Bf16, &random(35 * 33, 2)));
    let mut work = nan_buf(CpuDevice::linear_forward_work_numel(shape, Bf16, Bf16, Bf16));
    device(1).linear_forward(out.view_mut(), inp.view(), weight.view(), None, work.view_mut(), shape);
    for (row, out) in read(&out).chunks(35).enumerate() {
        assert!(out.iter().all(|x| x.is_nan() == (row == 5)), "row {row}: {out:?}");
    }
}

#[test]
fn no_rows_leave_a_bf16_weight_gradient_of_zeros() {
    let shape = LinearShape { rows: 0, n_in: 3, n_out: 2 };
    let (empty, mut dweight, mut dbias) = (buf_of(Bf16, &[]), nan_of(Bf16, 6), nan_of(Bf16, 2));
    let mut work = nan_buf(CpuDevice::linear_backward_weight_work_numel(shape, Bf16, Bf16, Bf16));
    let (e, some) = (empty.view(), Some(dbias.view_mut()));
    device(1).linear_backward_weight(dweight.view_mut(), some, e, e, work.view_mut(), shape, false);
    assert_eq!((read(&dweight), read(&dbias)), (vec![0.0; 6], vec![0.0; 2]));
}

#[test]
fn scratch_is_none_for_f32_and_bounded_for_everything_else() {
    let shape = |rows, n_in, n_out| LinearShape { rows, n_in, n_out };
    assert_eq!(CpuDevice::linear_forward_work_numel(shape(8192, 4096, 50257), F32, F32, F32), 0);
    let numel = CpuDevice::linear_forward_work_numel(shape(8192, 4096, 50257), Bf16, Bf16, Bf16);
    assert!(numel <= 2 * 1024 * 1024, "{numel}");
    let attention = AttentionShape { b: 2, t: 128, n_heads: 4, n_kv_heads: 2, d_head: 32 };
    assert_eq!(CpuDevice::attention_forward_work_numel(attention, F32), 2 * 4 * 64 * 128);
    assert_eq!(CpuDevice::embedding_backward_work_numel(512, F32, F32), 0);
}

#[test]
fn gelu_and_add_round_once() {
    let n = 40_003;
    let spread = |dtype, seed| {
        let xs: Vec<f32> = random(n, seed).iter().map(|x| x * 9.0).collect();
        read(&buf_of(dtype, &xs))
    };
    for (out_type, inp_type) in [(Bf16, Bf16), (F32, Bf16), (Bf16, F32)] {
        let (inp, dout) = (spread(inp_type, 1), spread(out_type, 2));
        let got = same_bits_on_1_2_3_threads(|device| {
            let (mut out, mut d, mut sum) =
                (nan_of(out_type, n), buf_of(out_type, &dout), nan_of(out_type, n));
            let inp = buf_of(inp_type, &inp);
            device.gelu_forward(out.view_mut(), inp.view());
            device.gelu_backward(d.view_mut(), inp.view());
            device.add(sum.view_mut(), inp.view(), buf_of(out_type, &dout).view());
            vec![read(&out), read(&d), read(&sum)]
        });
        assert_rounded("gelu", out_type, &got[0], &reference::gelu_forward(&wide(&inp)), 1e-6);
        let dinp = reference::gelu_backward(&wide(&inp), &wide(&dout));
        assert_rounded("gelu gradient", out_type, &got[1], &dinp, 1e-6);
        let sum: Vec<f64> = inp.iter().zip(&dout).map(|(&a, &b)| a as f64 + b as f64).collect();
        assert_rounded("add", out_type, &got[2], &sum, 1e-7);
    }
}

/// Ties, their neighbours, the odd ones, and numbers of all sizes.
fn hard_to_round() -> Vec<f32> {
    let mut xs: Vec<f32> =
        [0.0, f32::INFINITY, f32::NAN, f32::MAX, f32::MIN_POSITIVE, f32::from_bits(1)].to_vec();
    xs.extend(
        [0x7f80_0001, 0x7f7f_7fff, 0x7f7f_8000, 0x0000_8000, 0x0000_8001, 0x0001_8000].map(f32::from_bits),
    );
    for high in (0..0x7f80u32).step_by(7) {
        xs.extend([0x7fff, 0x8000, 0x8001, 0x1234].map(|low| f32::from_bits(high << 16 | low)));
    }
    let negative: Vec<f32> = xs.iter().map(|x| -x).collect();
    [xs, negative].concat()
}

#[test]
fn casts_round_to_nearest_even_and_keep_nan() {
    let xs = hard_to_round();
    let got = same_bits_on_1_2_3_threads(|device| {
        let (mut narrow, mut back, mut copy) = (nan_of(Bf16, xs.len()), nan_buf(xs.len()), nan_buf(xs.len()));
        device.cast(narrow.view_mut(), buf_f32(&xs).view());
        device.cast(back.view_mut(), narrow.view());
        device.cast(copy.view_mut(), buf_f32(&xs).view());
        assert_eq!(
            read(&copy).iter().map(|x| x.to_bits()).collect::<Vec<_>>(),
            xs.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        );
        assert_eq!(device.read(narrow.view()).unwrap().len(), xs.len());
        vec![read(&narrow), read(&back)]
    });
    for ((x, narrow), back) in xs.iter().zip(&got[0]).zip(&got[1]) {
        // Crate `half` rounds by code of its own.
        assert_eq!(narrow.to_bits(), bf16::from_f32(*x).to_f32().to_bits(), "{:#010x}", x.to_bits());
        assert_eq!(narrow.to_bits(), back.to_bits());
    }
}

#[test]
fn accumulate_adds_in_f32() {
    let n = 40_001;
    for dtype in DTYPES {
        let (start, inp) = (random(n, 1), random_of(dtype, n, 2));
        let got = same_bits_on_1_2_3_threads(|device| {
            let mut out = buf_f32(&start);
            device.accumulate(out.view_mut(), buf_of(dtype, &inp).view());
            vec![read(&out)]
        });
        let want: Vec<f32> = start.iter().zip(&inp).map(|(a, b)| a + b).collect();
        assert_eq!(got[0], want);
    }
}

#[test]
fn attention_rounds_complete_sums() {
    let shape = |b, t, n_heads, n_kv_heads, d_head| AttentionShape { b, t, n_heads, n_kv_heads, d_head };
    for shape in [
        shape(1, 1, 1, 1, 1),
        shape(2, 1, 3, 1, 5),
        shape(2, 65, 4, 2, 7),
        shape(3, 67, 3, 3, 32),
        shape(1, 131, 6, 2, 24),
        shape(1, 200, 2, 1, 64),
    ] {
        let (n_qkv, n_out, n_lse) = (
            shape.b * shape.t * shape.qkv_row(),
            shape.b * shape.t * shape.out_row(),
            shape.b * shape.t * shape.n_heads,
        );
        let qkv: Vec<f32> = random_of(Bf16, n_qkv, 1).iter().map(|x| x * 2.0).collect();
        let dout = random_of(Bf16, n_out, 2);
        let got = same_bits_on_1_2_3_threads(|device| {
            let (mut out, mut lse, mut dqkv) = (nan_of(Bf16, n_out), nan_buf(n_lse), nan_of(Bf16, n_qkv));
            let (qkv, dout) = (buf_of(Bf16, &qkv), buf_of(Bf16, &dout));
            let mut work = nan_buf(CpuDevice::attention_forward_work_numel(shape, Bf16));
            device.attention_forward(out.view_mut(), lse.view_mut(), qkv.view(), work.view_mut(), shape);
            let mut work = nan_buf(CpuDevice::attention_backward_work_numel(shape, Bf16));
            device.attention_backward(
                dqkv.view_mut(),
                dout.view(),
                qkv.view(),
                out.view(),
                lse.view(),
                work.view_mut(),
                shape,
            );
            vec![read(&out), read(&lse), read(&dqkv)]
        });
        let (out, lse) = reference::attention_forward(&wide(&qkv), shape);
        let dqkv = reference::attention_backward(&wide(&dout), &wide(&qkv), shape);
        let name = format!("{shape:?}");
        assert_rounded(&name, Bf16, &got[0], &out, 1e-5);
        assert_rounded(&name, F32, &got[1], &lse, 1e-5);
        // The kernel subtracts the scalar product of dout and the rounded out: half an ulp of each of d_head
        // terms, which add up like a random walk and enter times a probability and 1/sqrt(d_head). One ulp of
        // bf16 at 1.
        assert_rounded(&name, Bf16, &got[2], &dqkv, bf16_ulp(1.0));
    }
}

#[test]
fn sums_of_squares_of_bf16_are_exact() {
    for n in [0, 1, 1000, 200_003] {
        let xs = random_of(Bf16, n, 1);
        let want = ExactSum::of_squares(&xs).to_f64();
        for threads in [1, 2, 3] {
            let got = device(threads).sum_of_squares([buf_of(Bf16, &xs).view()]).unwrap().to_f64();
            assert_eq!(got.to_bits(), want.to_bits(), "{n} elements on {threads} threads");
        }
    }
    assert!(device(2).sum_of_squares([buf_of(Bf16, &[f32::INFINITY; 3]).view()]).unwrap().to_f64().is_nan());
}
