//! Layer normalisation over the last dimension. Must not know: views.

use super::row_sums::{self, chunk_rows, n_chunks};
use crate::backend::cpu::CpuDevice;
use crate::backend::cpu::element::Element;
use crate::backend::cpu::host::Shared;
use crate::backend::cpu::simd::{LANES, fold, simd, sum_map};

const EPS: f32 = 1e-5;

/// Elements of one task of the forward, about.
const TASK_NUMEL: usize = 16 * 1024;

#[rustfmt::skip]
pub fn forward<A: Element, R: Element, P: Element>(
    device: &CpuDevice,
    out: &mut [A],    // (rows, C)
    mean: &mut [f32], // (rows)
    rstd: &mut [f32], // (rows)
    inp: &[R],        // (rows, C)
    weight: &[P],     // (C)
    bias: &[P],       // (C)
) {
    let (rows, c) = (mean.len(), weight.len());
    assert_eq!(
        (out.len(), inp.len(), rstd.len(), bias.len()),
        (rows * c, rows * c, rows, c),
        "layer norm of {rows} x {c}"
    );
    let task_rows = (TASK_NUMEL / c.max(1)).max(1);
    let (out, mean, rstd) = (Shared::new(out), Shared::new(mean), Shared::new(rstd));
    device.for_each_task(rows.div_ceil(task_rows), |task| {
        let start = task * task_rows;
        let n = task_rows.min(rows - start);
        // SAFETY: rows belong to one task each.
        let (out, mean, rstd) =
            unsafe { (out.part(start * c, n * c), mean.part(start, n), rstd.part(start, n)) };
        forward_rows(out, mean, rstd, &inp[start * c..][..n * c], weight, bias);
    });
}

simd! {
    fn forward_rows<A: Element, R: Element, P: Element>(
        out: &mut [A],
        mean: &mut [f32],
        rstd: &mut [f32],
        inp: &[R],
        weight: &[P],
        bias: &[P],
    ) {
        let c = weight.len();
        for (row, (mean, rstd)) in mean.iter_mut().zip(rstd).enumerate() {
            let (out, inp) = (&mut out[row * c..][..c], &inp[row * c..][..c]);
            let mu = sum_map(inp, |x| x) / c as f32;
            let var = sum_map(inp, |x| (x - mu) * (x - mu)) / c as f32;
            let r = 1.0 / (var + EPS).sqrt();
            for (((o, x), w), b) in out.iter_mut().zip(inp).zip(weight).zip(bias) {
                *o = A::store(((x.load() - mu) * r).mul_add(w.load(), b.load()));
            }
            (*mean, *rstd) = (mu, r);
        }
    }
}

/// Scratch elements of the backward: one dweight and one dbias per chunk of rows.
pub fn work_numel(rows: usize, c: usize) -> usize {
    n_chunks(rows) * 2 * c
}

/// The gradient of the input; leaves sums for [`backward_weight`] in `work`.
#[rustfmt::skip]
#[allow(clippy::too_many_arguments)]
pub fn backward_input<R: Element, A: Element, P: Element>(
    device: &CpuDevice,
    dinp: &mut [R],   // (rows, C), accumulated into
    dout: &[A],       // (rows, C)
    inp: &[R],        // (rows, C)
    weight: &[P],     // (C)
    mean: &[f32],     // (rows)
    rstd: &[f32],     // (rows)
    work: &mut [f32], // (chunks, 2, C)
) {
    let (rows, c) = (mean.len(), weight.len());
    assert_eq!(
        (dinp.len(), dout.len(), inp.len()),
        (rows * c, rows * c, rows * c),
        "layer norm of {rows} x {c}"
    );
    assert_eq!(rstd.len(), rows, "layer norm of {rows} x {c}");
    assert!(
        work.len() >= work_numel(rows, c),
        "scratch of {} elements, {} \
                                                needed",
        work.len(),
        work_numel(rows, c)
    );
    let chunk_rows = chunk_rows(rows);
    let (dinp, partials) = (Shared::new(dinp), Shared::new(work));
    device.for_each_task(n_chunks(rows), |chunk| {
        let start = chunk * chunk_rows;
        let n = chunk_rows.min(rows - start);
        // SAFETY: rows, and the partial sums of a chunk, belong to one task each.
        let (dinp, partial) = unsafe { (dinp.part(start * c, n * c), partials.part(chunk * 2 * c, 2 * c)) };
        let elements = start * c..(start + n) * c;
        backward_rows(
            dinp,
            partial,
            &dout[elements.clone()],
            &inp[elements],
            weight,
            &mean[start..][..n],
            &rstd[start..][..n],
        );
    });
}

/// The gradients of weight and bias, from the sums that [`backward_input`] of as many rows left in `work`.
pub fn backward_weight<G: Element>(
    device: &CpuDevice,
    dweight: &mut [G], // (C)
    dbias: &mut [G],   // (C)
    work: &[f32],      // (chunks, 2, C)
    rows: usize,
) {
    let c = dweight.len();
    assert_eq!(dbias.len(), c, "elements of dbias");
    let needed = work_numel(rows, c);
    assert!(work.len() >= needed, "sums of {rows} x {c} in {} elements", work.len());
    // A chunk's sums are those of dweight, then those of dbias.
    row_sums::fold(device, dweight, &work[..needed], 2 * c, 0);
    row_sums::fold(device, dbias, &work[..needed], 2 * c, c);
}

simd! {
    /// Adds to `dinp`; overwrites `partial`, the sums of these rows for dweight and dbias.
    fn backward_rows<R: Element, A: Element, P: Element>(
        dinp: &mut [R],
        partial: &mut [f32],
        dout: &[A],
        inp: &[R],
        weight: &[P],
        mean: &[f32],
        rstd: &[f32],
    ) {
        let c = weight.len();
        partial.fill(0.0);
        let (dweight, dbias) = partial.split_at_mut(c);
        for (row, (&mu, &r)) in mean.iter().zip(rstd).enumerate() {
            let (dinp, dout, inp) = (&mut dinp[row * c..][..c], &dout[row * c..][..c], &inp[row * c..][..c]);
            let (sum, sum_norm) = dnorm_sums(dout, inp, weight, mu, r);
            let (dnorm_mean, dnorm_norm_mean) = (sum / c as f32, sum_norm / c as f32);
            for (((dinp, d), x), w) in dinp.iter_mut().zip(dout).zip(inp).zip(weight) {
                let norm = (x.load() - mu) * r;
                let centred = d.load().mul_add(w.load(), -dnorm_mean);
                *dinp = R::store((-norm).mul_add(dnorm_norm_mean, centred).mul_add(r, dinp.load()));
            }
            for (((dw, db), d), x) in dweight.iter_mut().zip(&mut *dbias).zip(dout).zip(inp) {
                *dw = d.load().mul_add((x.load() - mu) * r, *dw);
                *db += d.load();
            }
        }
    }
}

/// Sums over a row of `dout * weight` and of `dout * weight * norm`; see [Note: lanes].
#[inline(always)]
fn dnorm_sums<A: Element, R: Element, P: Element>(
    dout: &[A],
    inp: &[R],
    weight: &[P],
    mean: f32,
    rstd: f32,
) -> (f32, f32) {
    let mut sum = [0.0f32; LANES];
    let mut sum_norm = [0.0f32; LANES];
    let (dout_chunks, dout_tail) = dout.as_chunks::<LANES>();
    let (inp_chunks, inp_tail) = inp.as_chunks::<LANES>();
    let (weight_chunks, weight_tail) = weight.as_chunks::<LANES>();
    for ((d, x), w) in dout_chunks.iter().zip(inp_chunks).zip(weight_chunks) {
        for i in 0..LANES {
            let dnorm = d[i].load() * w[i].load();
            sum[i] += dnorm;
            sum_norm[i] = dnorm.mul_add((x[i].load() - mean) * rstd, sum_norm[i]);
        }
    }
    for (i, ((d, x), w)) in dout_tail.iter().zip(inp_tail).zip(weight_tail).enumerate() {
        let dnorm = d.load() * w.load();
        sum[i] += dnorm;
        sum_norm[i] = dnorm.mul_add((x.load() - mean) * rstd, sum_norm[i]);
    }
    (fold(sum, |a, b| a + b), fold(sum_norm, |a, b| a + b))
}

#[cfg(test)]
mod tests {
    use super::work_numel;
    use crate::backend::Ops;
    use crate::backend::cpu::host::test_memory::{buf_f32, read};
    use crate::backend::cpu::ops::test_support::*;
    use crate::backend::reference;

    #[test]
    fn forward_and_backward_equal_the_reference_and_thread_counts_agree() {
        for (rows, c) in [(1, 1), (1, 97), (7, 1), (17, 16), (37, 129), (1300, 31), (130, 768)] {
            let (inp, weight, bias) = (random(rows * c, 1), random(c, 2), random(c, 3));
            let (dout, start) = (random(rows * c, 4), random(rows * c, 5));
            let got = same_bits_on_1_2_3_threads(|device| {
                let (mut out, mut mean, mut rstd) = (nan_buf(rows * c), nan_buf(rows), nan_buf(rows));
                let (inp, weight, bias, dout) =
                    (buf_f32(&inp), buf_f32(&weight), buf_f32(&bias), buf_f32(&dout));
                device.layer_norm_forward(
                    out.view_mut(),
                    mean.view_mut(),
                    rstd.view_mut(),
                    inp.view(),
                    weight.view(),
                    bias.view(),
                );
                let (mut dinp, mut dweight, mut dbias) = (buf_f32(&start), nan_buf(c), nan_buf(c));
                let mut work = nan_buf(work_numel(rows, c));
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
            // Sums of c (or of a chunk's rows) terms of size 1 in 16 lanes: some ten roundings of 6e-8 each,
            // relative to the terms. rstd reaches 1/sqrt(eps) = 316 for c = 1, where dinp is a difference of
            // equals: exactly 0.
            assert_close(&name, &got[0], &out, 3e-6);
            assert_close(&name, &got[1], &mean, 1e-6);
            assert_close(&name, &got[2], &rstd, 3e-6);
            assert_close(&name, &got[3], &dinp, 1e-5);
            assert_close(&name, &got[4], &dweight, 3e-5);
            assert_close(&name, &got[5], &dbias, 3e-5);
        }
    }

    #[test]
    fn no_rows_give_zero_weight_gradients() {
        let (mut none, mut dweight, mut dbias) = (buf_f32(&[]), nan_buf(3), nan_buf(3));
        let (empty, weight) = (buf_f32(&[]), buf_f32(&[1.0; 3]));
        let mut work = buf_f32(&[]);
        let e = empty.view();
        device(1).layer_norm_backward(
            none.view_mut(),
            dweight.view_mut(),
            dbias.view_mut(),
            e,
            e,
            weight.view(),
            e,
            e,
            work.view_mut(),
        );
        assert_eq!((read(&dweight), read(&dbias)), (vec![0.0; 3], vec![0.0; 3]));
    }

    #[test]
    fn reference_gradients_are_central_differences() {
        let (rows, c) = (3, 7);
        let (inp, weight, bias) = (wide(&random(rows * c, 1)), wide(&random(c, 2)), wide(&random(c, 3)));
        let dout = wide(&random(rows * c, 4));
        let (dinp, dweight, dbias) = reference::layer_norm_backward(&dout, &inp, &weight);
        let loss =
            |i: &[f64], w: &[f64], b: &[f64]| weighted(&reference::layer_norm_forward(i, w, b).0, &dout);
        assert_gradient("dinp", &inp, &dinp, |x| loss(x, &weight, &bias));
        assert_gradient("dweight", &weight, &dweight, |x| loss(&inp, x, &bias));
        assert_gradient("dbias", &bias, &dbias, |x| loss(&inp, &weight, x));
    }
}
