//! Root-mean-square normalisation over the last dimension (arXiv:1910.07467). Must not know: views.

use super::row_sums::{self, chunk_rows, n_chunks};
use crate::backend::cpu::CpuDevice;
use crate::backend::cpu::element::Element;
use crate::backend::cpu::host::Shared;
use crate::backend::cpu::simd::{LANES, fold, simd, sum_map};

/// Elements of one task of the forward, about.
const TASK_NUMEL: usize = 16 * 1024;

#[rustfmt::skip]
pub fn forward<A: Element, R: Element, P: Element>(
    device: &CpuDevice,
    out: &mut [A],    // (rows, C)
    rstd: &mut [f32], // (rows)
    inp: &[R],        // (rows, C)
    weight: &[P],     // (C)
    eps: f32,
) {
    let (rows, c) = (rstd.len(), weight.len());
    assert_eq!((out.len(), inp.len()), (rows * c, rows * c), "RMS norm of {rows} x {c}");
    let task_rows = (TASK_NUMEL / c.max(1)).max(1);
    let (out, rstd) = (Shared::new(out), Shared::new(rstd));
    device.for_each_task(rows.div_ceil(task_rows), |task| {
        let start = task * task_rows;
        let n = task_rows.min(rows - start);
        // SAFETY: rows belong to one task each.
        let (out, rstd) = unsafe { (out.part(start * c, n * c), rstd.part(start, n)) };
        forward_rows(out, rstd, &inp[start * c..][..n * c], weight, eps);
    });
}

simd! {
    fn forward_rows<A: Element, R: Element, P: Element>(
        out: &mut [A],
        rstd: &mut [f32],
        inp: &[R],
        weight: &[P],
        eps: f32,
    ) {
        let c = weight.len();
        for (row, rstd) in rstd.iter_mut().enumerate() {
            let (out, inp) = (&mut out[row * c..][..c], &inp[row * c..][..c]);
            let r = 1.0 / (sum_map(inp, |x| x * x) / c as f32 + eps).sqrt();
            for ((o, x), w) in out.iter_mut().zip(inp).zip(weight) {
                *o = A::store(x.load() * r * w.load());
            }
            *rstd = r;
        }
    }
}

/// Scratch elements of the backward: one dweight per chunk of rows.
pub fn work_numel(rows: usize, c: usize) -> usize {
    n_chunks(rows) * c
}

/// The gradient of the input; leaves sums for [`backward_weight`] in `work`.
#[rustfmt::skip]
pub fn backward_input<R: Element, A: Element, P: Element>(
    device: &CpuDevice,
    dinp: &mut [R],   // (rows, C), accumulated into
    dout: &[A],       // (rows, C)
    inp: &[R],        // (rows, C)
    weight: &[P],     // (C)
    rstd: &[f32],     // (rows)
    work: &mut [f32], // (chunks, C)
) {
    let (rows, c) = (rstd.len(), weight.len());
    assert_eq!((dinp.len(), dout.len(), inp.len()), (rows * c, rows * c, rows * c), "RMS norm of {rows} x \
                                                                                     {c}");
    assert!(work.len() >= work_numel(rows, c), "scratch of {} elements, {} \
                                                needed", work.len(), work_numel(rows, c));
    let chunk_rows = chunk_rows(rows);
    let (dinp, partials) = (Shared::new(dinp), Shared::new(work));
    device.for_each_task(n_chunks(rows), |chunk| {
        let start = chunk * chunk_rows;
        let n = chunk_rows.min(rows - start);
        // SAFETY: rows, and the partial sums of a chunk, belong to one task each.
        let (dinp, partial) = unsafe { (dinp.part(start * c, n * c), partials.part(chunk * c, c)) };
        let elements = start * c..(start + n) * c;
        backward_rows(dinp, partial, &dout[elements.clone()], &inp[elements], weight, &rstd[start..][..n]);
    });
}

/// The gradient of the weight, from the sums that [`backward_input`] of as many rows left in `work`.
pub fn backward_weight<G: Element>(
    device: &CpuDevice,
    dweight: &mut [G], // (C)
    work: &[f32],      // (chunks, C)
    rows: usize,
) {
    let c = dweight.len();
    let needed = work_numel(rows, c);
    assert!(work.len() >= needed, "sums of {rows} x {c} in {} elements", work.len());
    row_sums::fold(device, dweight, &work[..needed], c, 0);
}

simd! {
    /// Adds to `dinp`; overwrites `partial`, the sums of these rows for dweight.
    fn backward_rows<R: Element, A: Element, P: Element>(
        dinp: &mut [R],
        partial: &mut [f32],
        dout: &[A],
        inp: &[R],
        weight: &[P],
        rstd: &[f32],
    ) {
        let c = weight.len();
        partial.fill(0.0);
        for (row, &r) in rstd.iter().enumerate() {
            let (dinp, dout, inp) = (&mut dinp[row * c..][..c], &dout[row * c..][..c], &inp[row * c..][..c]);
            let dnorm_norm_mean = dnorm_norm_sum(dout, inp, weight, r) / c as f32;
            for (((dinp, d), x), w) in dinp.iter_mut().zip(dout).zip(inp).zip(weight) {
                let norm = x.load() * r;
                let dnorm = d.load() * w.load();
                *dinp = R::store((-norm).mul_add(dnorm_norm_mean, dnorm).mul_add(r, dinp.load()));
            }
            for ((dw, d), x) in partial.iter_mut().zip(dout).zip(inp) {
                *dw = d.load().mul_add(x.load() * r, *dw);
            }
        }
    }
}

/// Sum over a row of `dout * weight * norm`; see [Note: lanes].
#[inline(always)]
fn dnorm_norm_sum<A: Element, R: Element, P: Element>(dout: &[A], inp: &[R], weight: &[P], rstd: f32) -> f32 {
    let mut acc = [0.0f32; LANES];
    let (dout_chunks, dout_tail) = dout.as_chunks::<LANES>();
    let (inp_chunks, inp_tail) = inp.as_chunks::<LANES>();
    let (weight_chunks, weight_tail) = weight.as_chunks::<LANES>();
    for ((d, x), w) in dout_chunks.iter().zip(inp_chunks).zip(weight_chunks) {
        for i in 0..LANES {
            acc[i] = (d[i].load() * w[i].load()).mul_add(x[i].load() * rstd, acc[i]);
        }
    }
    for (((acc, d), x), w) in acc.iter_mut().zip(dout_tail).zip(inp_tail).zip(weight_tail) {
        *acc = (d.load() * w.load()).mul_add(x.load() * rstd, *acc);
    }
    fold(acc, |a, b| a + b)
}

#[cfg(test)]
mod tests {
    use super::work_numel;
    use crate::backend::Ops;
    use crate::backend::cpu::host::test_memory::{buf_f32, read};
    use crate::backend::cpu::ops::test_support::*;
    use crate::backend::reference;

    const EPS: f32 = 1e-5;

    #[test]
    fn forward_and_backward_equal_the_reference_and_thread_counts_agree() {
        for (rows, c) in [(1, 1), (1, 97), (7, 1), (17, 16), (37, 129), (1300, 31), (130, 768)] {
            let (inp, weight) = (random(rows * c, 1), random(c, 2));
            let (dout, start) = (random(rows * c, 4), random(rows * c, 5));
            let got = same_bits_on_1_2_3_threads(|device| {
                let (mut out, mut rstd) = (nan_buf(rows * c), nan_buf(rows));
                let (inp, weight, dout) = (buf_f32(&inp), buf_f32(&weight), buf_f32(&dout));
                device.rms_norm_forward(out.view_mut(), rstd.view_mut(), inp.view(), weight.view(), EPS);
                let (mut dinp, mut dweight) = (buf_f32(&start), nan_buf(c));
                let mut work = nan_buf(work_numel(rows, c));
                device.rms_norm_backward(
                    dinp.view_mut(),
                    dweight.view_mut(),
                    dout.view(),
                    inp.view(),
                    weight.view(),
                    rstd.view(),
                    work.view_mut(),
                );
                vec![read(&out), read(&rstd), read(&dinp), read(&dweight)]
            });
            let name = format!("RMS norm {rows} x {c}");
            let (inp, weight) = (wide(&inp), wide(&weight));
            let (out, rstd) = reference::rms_norm_forward(&inp, &weight, EPS.into());
            let (mut dinp, dweight) = reference::rms_norm_backward(&wide(&dout), &inp, &weight, EPS.into());
            dinp.iter_mut().zip(&start).for_each(|(d, &s)| *d += s as f64);
            // As for layer norm: some ten roundings of 6e-8 in sums of terms of size 1. With c = 1 the input
            // alone decides rstd, up to 1/sqrt(eps) = 316, which scales the difference of equals that dinp
            // is.
            assert_close(&name, &got[0], &out, 3e-6);
            assert_close(&name, &got[1], &rstd, 3e-6);
            assert_close(&name, &got[2], &dinp, if c == 1 { 3e-5 } else { 1e-5 });
            assert_close(&name, &got[3], &dweight, 3e-5);
        }
    }

    #[test]
    fn no_rows_give_a_weight_gradient_of_zero() {
        let (mut none, mut dweight, mut work) = (buf_f32(&[]), nan_buf(3), buf_f32(&[]));
        let (empty, weight) = (buf_f32(&[]), buf_f32(&[1.0; 3]));
        let e = empty.view();
        device(1).rms_norm_backward(
            none.view_mut(),
            dweight.view_mut(),
            e,
            e,
            weight.view(),
            e,
            work.view_mut(),
        );
        assert_eq!(read(&dweight), vec![0.0; 3]);
    }

    #[test]
    fn reference_gradients_are_central_differences() {
        let (rows, c) = (3, 7);
        let (inp, weight, dout) =
            (wide(&random(rows * c, 1)), wide(&random(c, 2)), wide(&random(rows * c, 4)));
        let (dinp, dweight) = reference::rms_norm_backward(&dout, &inp, &weight, 1e-5);
        let loss = |i: &[f64], w: &[f64]| weighted(&reference::rms_norm_forward(i, w, 1e-5).0, &dout);
        assert_gradient("dinp", &inp, &dinp, |x| loss(x, &weight));
        assert_gradient("dweight", &weight, &dweight, |x| loss(&inp, x));
    }
}
