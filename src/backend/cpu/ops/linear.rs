//! The linear layer: three matrix products and a column sum. Must not know: views.

use crate::backend::cpu::CpuDevice;
use crate::backend::cpu::element::Element;
use crate::backend::cpu::host::Shared;
use crate::backend::cpu::matmul::{Mat, MatMut, Start};
use crate::backend::cpu::product::product;
use crate::backend::cpu::simd::simd;
use crate::backend::ops::LinearShape;

/// Columns of one task of a column sum.
const STRIPE: usize = 64;

/// Rows summed before their sum is added to the total: shorter chains of roundings than one sum over all
/// rows.
const SUM_ROWS: usize = 64;

pub fn forward<O: Element, I: Element, P: Element>(
    device: &CpuDevice,
    out: &mut [O],
    inp: &[I],
    weight: &[P],
    bias: Option<&[P]>,
    work: &mut [f32],
    shape: LinearShape,
) {
    let LinearShape { rows, n_in, n_out } = shape;
    let (inp, weight) = (Mat::new(inp, rows, n_in, n_in), Mat::new(weight, n_out, n_in, n_in));
    product(
        device,
        MatMut::new(out, rows, n_out),
        bias.map_or(Start::Zero, Start::Row),
        inp,
        weight.t(),
        work,
    );
}

pub fn backward_input<I: Element, O: Element, P: Element>(
    device: &CpuDevice,
    dinp: &mut [I],
    dout: &[O],
    weight: &[P],
    work: &mut [f32],
    shape: LinearShape,
) {
    let LinearShape { rows, n_in, n_out } = shape;
    let (dout, weight) = (Mat::new(dout, rows, n_out, n_out), Mat::new(weight, n_out, n_in, n_in));
    product(device, MatMut::new(dinp, rows, n_in), Start::<P>::Zero, dout, weight, work);
}

pub fn backward_weight<G: Element, O: Element, I: Element>(
    device: &CpuDevice,
    dweight: &mut [G],
    dout: &[O],
    inp: &[I],
    work: &mut [f32],
    shape: LinearShape,
    accumulate: bool,
) {
    let LinearShape { rows, n_in, n_out } = shape;
    let start = if accumulate { Start::<G>::Held } else { Start::Zero };
    let (dout, inp) = (Mat::new(dout, rows, n_out, n_out), Mat::new(inp, rows, n_in, n_in));
    product(device, MatMut::new(dweight, n_out, n_in), start, dout.t(), inp, work);
}

pub fn backward_bias<G: Element, O: Element>(
    device: &CpuDevice,
    dbias: &mut [G],
    dout: &[O],
    shape: LinearShape,
) {
    let LinearShape { rows, n_out, .. } = shape;
    assert_eq!((dbias.len(), dout.len()), (n_out, rows * n_out), "dbias and dout of {shape:?}");
    let dbias = Shared::new(dbias);
    device.for_each_task(n_out.div_ceil(STRIPE), |task| {
        let start = task * STRIPE;
        let n = STRIPE.min(n_out - start);
        // SAFETY: columns belong to one task each.
        column_sums(unsafe { dbias.part(start, n) }, dout, start, n_out);
    });
}

simd! {
    /// Sums of the columns of `dout` (rows of `n_out`) that begin at `start`. Overwrites `sums`.
    fn column_sums<G: Element, O: Element>(sums: &mut [G], dout: &[O], start: usize, n_out: usize) {
        let mut total = [0.0f32; STRIPE];
        for chunk in dout.chunks(SUM_ROWS * n_out) {
            let mut partial = [0.0f32; STRIPE];
            for row in chunk.chunks_exact(n_out) {
                let row = &row[start..][..sums.len()];
                if let Ok(row) = <&[O; STRIPE]>::try_from(row) {
                    for i in 0..STRIPE {
                        partial[i] += row[i].load();
                    }
                } else {
                    partial.iter_mut().zip(row).for_each(|(sum, x)| *sum += x.load());
                }
            }
            for i in 0..STRIPE {
                total[i] += partial[i];
            }
        }
        sums.iter_mut().zip(total).for_each(|(sum, total)| *sum = G::store(total));
    }
}

#[cfg(test)]
mod tests {
    use crate::backend::Ops;
    use crate::backend::cpu::host::test_memory::{buf_f32, read};
    use crate::backend::cpu::ops::test_support::*;
    use crate::backend::ops::LinearShape;
    use crate::backend::reference;

    #[test]
    fn forward_and_backward_equal_the_reference_and_thread_counts_agree() {
        // One row, one column, primes; the inner dimension over one chunk (1031), and one large enough for
        // threads.
        for (rows, n_in, n_out) in [
            (1, 1, 1),
            (1, 7, 13),
            (13, 1, 7),
            (7, 13, 1),
            (1, 257, 129),
            (1, 1031, 67),
            (67, 1031, 3),
            (1031, 3, 67),
            (131, 101, 103),
            (257, 384, 127),
        ] {
            let shape = LinearShape { rows, n_in, n_out };
            let (inp, weight, bias) = (random(rows * n_in, 1), random(n_out * n_in, 2), random(n_out, 3));
            let (dout, start) = (random(rows * n_out, 4), random(n_out * n_in, 5));
            let got = same_bits_on_1_2_3_threads(|device| {
                let (inp, weight, bias, dout) =
                    (buf_f32(&inp), buf_f32(&weight), buf_f32(&bias), buf_f32(&dout));
                let mut none = nan_buf(0);
                let (mut with_bias, mut without) = (nan_buf(rows * n_out), nan_buf(rows * n_out));
                device.linear_forward(
                    with_bias.view_mut(),
                    inp.view(),
                    weight.view(),
                    Some(bias.view()),
                    none.view_mut(),
                    shape,
                );
                device.linear_forward(
                    without.view_mut(),
                    inp.view(),
                    weight.view(),
                    None,
                    none.view_mut(),
                    shape,
                );
                let (mut dinp, mut dweight, mut dbias) =
                    (nan_buf(rows * n_in), nan_buf(n_out * n_in), nan_buf(n_out));
                device.linear_backward_input(
                    dinp.view_mut(),
                    dout.view(),
                    weight.view(),
                    none.view_mut(),
                    shape,
                );
                device.linear_backward_weight(
                    dweight.view_mut(),
                    Some(dbias.view_mut()),
                    dout.view(),
                    inp.view(),
                    none.view_mut(),
                    shape,
                    false,
                );
                let mut added = buf_f32(&start);
                device.linear_backward_weight(
                    added.view_mut(),
                    None,
                    dout.view(),
                    inp.view(),
                    none.view_mut(),
                    shape,
                    true,
                );
                vec![
                    read(&with_bias),
                    read(&without),
                    read(&dinp),
                    read(&dweight),
                    read(&dbias),
                    read(&added),
                ]
            });
            let (inp, weight, bias, dout) = (wide(&inp), wide(&weight), wide(&bias), wide(&dout));
            let (dinp, dweight, dbias) = reference::linear_backward(&dout, &inp, &weight, shape);
            let added: Vec<f64> = dweight.iter().zip(&start).map(|(d, &s)| d + s as f64).collect();
            let no_bias = vec![0.0; n_out];
            let want = [
                reference::linear_forward(&inp, &weight, &bias, shape),
                reference::linear_forward(&inp, &weight, &no_bias, shape),
                dinp,
                dweight,
                dbias,
                added,
            ];
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                // A sum of k products of size 1 wanders by sqrt(k) * 6e-8 relative to its largest partial
                // sum, about sqrt(k): 6e-8 * k = 6e-5 for the longest.
                assert_close(&format!("{shape:?} output {i}"), got, want, 6e-5);
            }
        }
    }

    #[test]
    fn reference_gradients_are_central_differences() {
        let shape = LinearShape { rows: 3, n_in: 5, n_out: 4 };
        let (inp, weight, bias, dout) =
            (wide(&random(15, 1)), wide(&random(20, 2)), wide(&random(4, 3)), wide(&random(12, 4)));
        let (dinp, dweight, dbias) = reference::linear_backward(&dout, &inp, &weight, shape);
        let loss =
            |i: &[f64], w: &[f64], b: &[f64]| weighted(&reference::linear_forward(i, w, b, shape), &dout);
        assert_gradient("dinp", &inp, &dinp, |x| loss(x, &weight, &bias));
        assert_gradient("dweight", &weight, &dweight, |x| loss(&inp, x, &bias));
        assert_gradient("dbias", &bias, &dbias, |x| loss(&inp, &weight, x));
    }

    #[test]
    fn no_rows_leave_a_weight_gradient_of_zeros() {
        let shape = LinearShape { rows: 0, n_in: 3, n_out: 2 };
        let (empty, mut dweight, mut dbias) = (buf_f32(&[]), nan_buf(6), nan_buf(2));
        device(1).linear_backward_weight(
            dweight.view_mut(),
            Some(dbias.view_mut()),
            empty.view(),
            empty.view(),
            nan_buf(0).view_mut(),
            shape,
            false,
        );
        assert_eq!((read(&dweight), read(&dbias)), (vec![0.0; 6], vec![0.0; 2]));
    }
}
